"""Trees in tensor operations: sums on any device, derivatives of any order, the recursions of the kernels."""

import math

import torch
from torch import Tensor

from structloss.structures.base import Found
from structloss.structures.tensors import logsumexp, wide
from structloss.structures.trees.native_engine import best as best  # searches are compiled, on the CPU
from structloss.structures.trees.parts import Arcs, Spans
from structloss.structures.trees.search import drawn_trees


def log_partition(p: Arcs | Spans) -> Tensor:
    """log Z, (B,)."""
    scores = logsumexp(torch.where(p.within[..., None], wide(p.scores), -math.inf), 3)  # (B, T, T + 1) or (B, T, T)
    if isinstance(p, Spans):
        value = _spans(scores, p.lengths)
    else:
        value = (_projective if p.projective else _eliminated)(scores, p.lengths, p.single_root)
    return value.to(p.scores.dtype)


def draw(p: Arcs, n: int, generator: torch.Generator | None) -> Found:
    """The arcs of n trees (n, B, T), drawn by exp(score) / Z, and whether there is any (B,)."""
    return drawn_trees(p, log_partition, n, generator)


def _projective(arcs: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """Eisner's algorithm, all spans of a width at once; see `kernels.eisner`. right[w][:, i] is right(i, i + w)."""
    size = arcs.shape[2]
    zeros = arcs.new_zeros(len(arcs), size)
    right, left, onto, back = [zeros], [zeros], [zeros], [zeros]  # the last two begin at width 1
    for w in range(1, size):
        count = size - w
        terms = [right[u][:, :count] + left[w - 1 - u][:, u + 1 : u + 1 + count] for u in range(w)]
        meet = logsumexp(torch.stack(terms), 0)
        if single_root:
            meet = torch.cat([terms[0][:, :1], meet[:, 1:]], 1)
        onto.append(meet + arcs.diagonal(1 - w, 1, 2)[:, :count])  # arcs[:, i + w - 1, i]
        behind = arcs.diagonal(w + 1, 1, 2)  # arcs[:, i - 1, i + w], from i = 1
        back.append(meet + torch.nn.functional.pad(behind, (1, 0), value=-math.inf))
        parts = [onto[u][:, :count] + right[w - u][:, u : u + count] for u in range(1, w + 1)]
        right.append(logsumexp(torch.stack(parts), 0))
        parts = [left[u][:, :count] + back[w - u][:, u : u + count] for u in range(w)]
        left.append(logsumexp(torch.stack(parts), 0))
    return torch.stack([x[:, 0] for x in right], 1).gather(1, lengths[:, None])[:, 0]


def _eliminated(arcs: Tensor, lengths: Tensor, single_root: bool) -> Tensor:
    """The matrix-tree theorem without subtraction, in logarithms; see `kernels.matrix_tree`."""
    forbidden = torch.full_like(arcs[:, :, 0], -math.inf)
    free, paid = (forbidden, arcs[:, :, 0]) if single_root else (arcs[:, :, 0], forbidden)
    words, total, bought = arcs[:, :, 1:], arcs.new_zeros(len(arcs)), torch.zeros_like(lengths)
    impossible = torch.zeros_like(lengths, dtype=torch.bool)
    for v in range(arcs.shape[1] - 1, -1, -1):
        here = v < lengths
        mass = logsumexp(torch.cat([free[:, v, None], words[:, v, :v]], 1), 1)
        forced = here & (mass == -math.inf)
        mass = torch.where(forced, paid[:, v], mass)
        bought, impossible = bought + forced, impossible | (here & (mass == -math.inf))
        usable = here & (mass > -math.inf)
        mass = torch.where(usable, mass, 0)
        total = total + mass
        onto = words[:, :v, v]
        of_free = torch.where(forced, 0, free[:, v] - mass)[:, None]
        of_paid = torch.where(forced, -math.inf, paid[:, v] - mass)[:, None]
        of_words = torch.where(forced[:, None], -math.inf, words[:, v, :v] - mass[:, None])[:, None]
        free, paid = _plus(free[:, :v], onto + of_free), _plus(paid[:, :v], onto + of_paid)
        itself = torch.eye(v, dtype=torch.bool, device=arcs.device)
        words = _plus(words[:, :v, :v], torch.where(itself, -math.inf, onto[:, :, None] + of_words))
    return torch.where(impossible | (bought > 1), -math.inf, total)


def _plus(x: Tensor, y: Tensor) -> Tensor:
    """log(exp(x) + exp(y))."""
    return logsumexp(torch.stack([x, y]), 0)


def _spans(totals: Tensor, lengths: Tensor) -> Tensor:
    """The charts of binary trees; see `kernels.cky`. spans[w][:, i] is span(i, i + w)."""
    size = totals.shape[1]
    spans: list[Tensor] = []
    for w in range(size):
        label = totals.diagonal(w, 1, 2)
        parts = [spans[u][:, : size - w] + spans[w - 1 - u][:, u + 1 : u + 1 + size - w] for u in range(w)]
        whole = label + logsumexp(torch.stack(parts), 0) if w else label
        spans.append(torch.where(whole > -math.inf, whole, -math.inf))  # with zero gradient
    firsts = torch.stack([totals.new_zeros(len(totals)), *(x[:, 0] for x in spans)], 1)
    return firsts.gather(1, lengths[:, None])[:, 0]
