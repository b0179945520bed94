"""The k best trees, by best trees that are asked for again and again."""

import heapq
import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.structures.base import Found
from structloss.structures.trees.parts import Arcs

Entry = tuple[float, tuple[int, ...], int, NDArray[np.float64]]


def ranked(p: Arcs, best: Callable[[Arcs], Found], k: int) -> Found:
    """The arcs of the k best trees (k, B, T), of equals the lexicographically smaller first, and which exist (k, B)."""
    _, width, _, labels = p.scores.shape
    trees: list[list[list[int]]] = []
    scores = p.scores.detach().double().cpu()
    # The k best trees have no other than the k best labels of an arc.
    kept = scores.sort(dim=3, descending=True, stable=True).indices[..., :k].sort(dim=3).values
    scores = scores.gather(3, kept)
    for b, n in enumerate(p.lengths.tolist()):
        own = scores[b, :n, : n + 1].flatten(1).numpy()
        names = (kept[b, :n, : n + 1] + labels * torch.arange(n + 1)[:, None]).flatten(1)  # of the arcs that are left
        part = p._replace(scores=scores, lengths=p.lengths[b : b + 1].cpu())
        found = (torch.tensor(tree, dtype=torch.int64)[:, None] for tree in _best_trees(own, part, best, k))
        trees.append([names.gather(1, arcs)[:, 0].tolist() for arcs in found])
    return Found.of(trees, k, width, p.scores.device)


def _best_trees(scores: NDArray[np.float64], p: Arcs, best: Callable[[Arcs], Found], k: int) -> list[tuple[int, ...]]:
    """The k best of one example (Lawler 1972), from scores (n, (n + 1) * R).

    The rest of the trees is split by the first word that hangs elsewhere, and the best of each part is found by
    itself: k times n of them.
    """
    n, labels = len(scores), p.scores.shape[3]
    words, found = np.arange(n), list[tuple[int, ...]]()
    queue: list[Entry] = []

    def search(parts: NDArray[np.float64], fixed: list[int]) -> None:
        arranged = torch.from_numpy(parts.reshape(len(parts), n, n + 1, labels))
        (choices,), (exists,) = best(p._replace(scores=arranged, lengths=p.lengths.expand(len(parts))))
        for tree, there, part, first in zip(choices.tolist(), exists.tolist(), parts, fixed, strict=True):
            if there:
                heapq.heappush(queue, (-math.fsum(scores[words, tree]), tuple(tree), first, part))

    search(scores[None], [0])
    while queue and len(found) < k:
        _, tree, first, part = heapq.heappop(queue)
        found.append(tree)
        if first < n:
            parts = np.repeat(part[None], n - first, 0)
            for i, d in enumerate(range(first, n)):
                parts[i, d, tree[d]] = -np.inf  # word d hangs elsewhere
                kept = parts[i + 1 :, d, tree[d]].copy()
                parts[i + 1 :, d] = -np.inf
                parts[i + 1 :, d, tree[d]] = kept
            search(parts, list(range(first, n)))
    return found


def drawn_trees(p: Arcs, log_partition: Callable[[Arcs], Tensor], n: int, generator: torch.Generator | None) -> Found:
    """n trees (n, B, T) drawn by exp(score) / Z, word after word by the marginals of the trees that are left.

    Cost T times that of the marginals (B, T, T + 1, R) of a batch of n * B.
    """
    batch, width, _, labels = p.scores.shape
    device = p.scores.device

    def shares(p: Arcs) -> Tensor:
        with torch.enable_grad():
            value = log_partition(p._replace(scores=p.scores.requires_grad_()))
            found: tuple[Tensor, ...] = torch.autograd.grad(value[value > -math.inf].sum(), p.scores)
        return found[0]

    uniforms = torch.rand((n, batch, width), generator=generator, dtype=torch.float64, device=device).flatten(0, 1)
    scores = p.scores.detach().double().flatten(2).repeat(n, 1, 1)  # (n * B, T, (T + 1) * R)
    left, chosen = p._replace(lengths=p.lengths.repeat(n)), torch.full((n * batch, width), -1, device=device)
    for d in range(width):
        here = d < left.lengths
        share = shares(left._replace(scores=scores.reshape(-1, width, width + 1, labels))).flatten(2)[:, d]
        before = share.cumsum(1) - share
        taken = (share > 0) & (before <= uniforms[:, d, None] * share.sum(1, keepdim=True))
        arc = torch.where(taken, torch.arange(share.shape[1], device=device), 0).amax(1)
        chosen[:, d] = torch.where(here, arc, -1)
        others = torch.arange(share.shape[1], device=device) != arc[:, None]
        scores[:, d] = scores[:, d].masked_fill(others & here[:, None], -math.inf)
    return Found(chosen.reshape(n, batch, width), log_partition(p) > -math.inf)
