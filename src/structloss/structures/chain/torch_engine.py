"""The chain in tensor operations: any device, derivatives of any order.

The same recursions as the kernels, in logarithms, one level of the whole batch at a time; in float64, as float32 loses
gradients over thousands of positions. States are pairs of a machine state s and a history h; a chain that no machine
augments has one machine state.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structloss.kernels.levels import Machines, unpack
from structloss.structures import tensors
from structloss.structures.base import Found
from structloss.structures.chain.machines import joint
from structloss.structures.chain.parts import Parts
from structloss.structures.checks import objection, unfit
from structloss.structures.tensors import drawn, first_best, logsumexp, wide


class Machine(NamedTuple):
    """The loss machines of a batch, padded. S is the most states of any level."""

    next_state: Sequence[Tensor]  # of each level, (B, S, K)
    weight: Sequence[Tensor]  # of each level, (B, S, K)
    final: Tensor  # (B, S), -inf where there is no state


def machine_of(p: Parts, arrays: Machines | None = None) -> Machine:
    """The machine that augments p (or these arrays, on p's device); one that adds nothing where there is none."""
    B, T, K, like = p.lengths.shape[0], p.num_positions, p.num_labels, p.any_potential
    if arrays is None and p.machine is None:
        zeros = like.new_zeros(B, T, 1, K)
        return Machine(zeros.long().unbind(1), zeros.unbind(1), like.new_zeros(B, 1))
    arrays = p.machines if arrays is None else arrays
    S = int(arrays.sizes.max(initial=1))
    next_state, weight = np.zeros((B, T, S, K), np.int64), np.zeros((B, T, S, K))
    final = np.full((B, S), -np.inf)
    unpack(arrays, p.lengths.cpu().numpy(), next_state, weight, final)
    following, added = torch.from_numpy(next_state).to(like.device), torch.from_numpy(weight).to(like)
    return Machine(following.unbind(1), added.unbind(1), torch.from_numpy(final).to(like))


def check(p: Parts) -> None:
    """Raise if a potential that matters is NaN, +inf or too large."""
    if torch.compiler.is_compiling():
        return
    for t, level in enumerate(levels(p)):
        wrong = unfit(level)
        if wrong.any():
            place = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(f"potentials: example {place[0]} has {objection(level[place], f' at position {t}')}")


def levels(p: Parts) -> list[Tensor]:
    """The scores of each level, (B, rows, K) with rows = min(H, K**t); zeros beyond a length."""
    K, H, T = p.num_labels, p.num_histories, p.num_positions
    batch, like = p.lengths.shape[0], p.any_potential
    unary = like.new_zeros(batch, T, K) if p.unary is None else torch.where(p.within[:, :, None], p.unary, 0)
    positions = torch.arange(T, device=like.device)
    if p.start is not None:
        unary = torch.where(((positions == 0) & p.within)[:, :, None], unary + p.start, unary)
    if p.end is not None:
        unary = torch.where((positions == p.lengths[:, None] - 1)[:, :, None], unary + p.end, unary)
    if p.pinned is not None:
        labels = torch.arange(K, device=like.device)
        allowed = (p.pinned[:, :, None] < 0) | (p.pinned[:, :, None] == labels) | ~p.within[:, :, None]
        unary = torch.where(allowed, unary, -math.inf)
    result = []
    for t in range(T):
        level = unary[:, t, None, :]
        rows = min(H, K**t)
        if p.table is None or (p.shared and t < p.order - 1):
            level = level.expand(batch, rows, K)
        elif p.shared:
            level = level + torch.where((t < p.lengths)[:, None, None], p.table, 0)
        else:
            level = level + torch.where((t < p.lengths)[:, None, None], p.table[:, t, :rows], 0)
        result.append(level)
    return result


def following(beta: Tensor, next_state: Tensor, rows: int, K: int) -> Tensor:
    """beta (B, S', states, ...) of the next level, by the arc (s, h, y) that leads there: (B, S, rows, K, ...)."""
    tail = beta.shape[3:]
    if beta.shape[2] == 1:
        blocks = beta[:, :, :, None].expand(-1, -1, 1, K, *tail)  # (B, S', 1, K, ...)
    else:
        blocks = beta.reshape(*beta.shape[:2], beta.shape[2] // K, K, *tail)  # (B, S', blocks, K, ...)
    index = next_state[:, :, None].reshape(*next_state.shape[:2], 1, K, *(1,) * len(tail))
    index = index.expand(*next_state.shape[:2], *blocks.shape[2:])
    repeats = rows // blocks.shape[2]
    return blocks.gather(1, index).repeat(1, 1, repeats, *(1,) * (1 + len(tail)))


def arcs_at(level: Tensor, m: Machine, t: int, beta: Tensor, K: int) -> Tensor:
    """score + weight + what follows, of each arc of level t, (B, S, rows, K, ...)."""
    own = level[:, None] + m.weight[t][:, :, None]
    following_it = following(beta, m.next_state[t], level.shape[1], K)
    return own.reshape(*own.shape, *(1,) * (following_it.dim() - 4)) + following_it


def backward(p: Parts, scores: Sequence[Tensor], m: Machine) -> list[Tensor]:
    """Every level's log of the sum over the ways to finish, (B, S, rows) each."""
    K, H, T = p.num_labels, p.num_histories, p.num_positions
    beta = m.final[:, :, None].expand(*m.final.shape, min(H, K**T))
    result = [beta]
    for t in range(T - 1, -1, -1):
        beta = logsumexp(arcs_at(scores[t], m, t, beta, K), 3)
        beta = torch.where((t < p.lengths)[:, None, None], beta, m.final[:, :, None])
        result.append(beta)
    return result[::-1]


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    check(p)
    w = p.map(wide)
    return backward(w, levels(w), machine_of(w))[0][:, 0, 0].to(p.any_potential.dtype)


def marginals(p: Parts) -> Tensor:
    """The probability of each arc, (B, T, H, K): the derivative of log Z in what is added to its score."""
    check(p)
    w = p.map(wide)
    recorded = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in p.potentials)
    with torch.enable_grad():
        added = w.any_potential.new_zeros(len(p.lengths), p.num_positions, p.num_histories, p.num_labels)
        arcs = added.requires_grad_().unbind(1)
        scores = [level + arc[:, : level.shape[1]] for level, arc in zip(levels(w), arcs, strict=True)]
        value = backward(w, scores, machine_of(w))[0][:, 0, 0].sum() + added[:0].sum()
        (found,) = torch.autograd.grad(value, added, create_graph=recorded)
    return found.to(p.any_potential.dtype)


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score of y under f], y drawn from p; what has probability 0 adds nothing. (B,)"""
    check(p)
    check(f)
    dtype, p, f, T = p.any_potential.dtype, p.map(wide), f.map(wide), p.num_positions
    m, mine, theirs = machine_of(p), levels(p), levels(f)
    if p.machine is not None or f.machine is not None:
        m, other = (machine_of(p, x) for x in joint(p.machine, f.machine, p.no_machine))
        mine, theirs = [*mine, *m.weight, m.final[:, :, None]], [*theirs, *other.weight, other.final[:, :, None]]
    examples = torch.arange(len(p.lengths), device=p.lengths.device)[:, None, None]

    def value(scores: list[Tensor]) -> Tensor:
        augmented = m._replace(weight=scores[T:-1], final=scores[-1][:, :, 0]) if scores[T:] else m
        return backward(p, scores[:T], augmented)[0][:, 0, 0]

    terms = [(x, v, examples) for x, v in zip(mine, theirs, strict=True)]
    return tensors.expectation(value, terms, p.any_potential.new_zeros(len(p.lengths))).to(dtype)


# --- Walks -----------------------------------------------------------------------------------------------------------

Place = tuple[Tensor, Tensor, Tensor]  # an example, a machine's state and a history, (n, B) each or broadcast


def walk(p: Parts, m: Machine, state: Tensor, pick: Callable[[int, Place], Tensor]) -> tuple[Tensor, Tensor]:
    """The labels (n, B, T) that pick(t, place) chooses at each level from states (n, B) on, and the last states."""
    history, batch, labels = torch.zeros_like(state), torch.arange(state.shape[1], device=state.device), []
    for t in range(p.num_positions):
        label = pick(t, (batch, state, history))
        labels.append(label)
        state = torch.where(t < p.lengths, m.next_state[t][batch, state, label], state)
        history = (history * p.num_labels + label) % p.num_histories
    return torch.stack(labels, 2) if labels else state.new_zeros(*state.shape, 0), state


def score(p: Parts, y: Tensor) -> Tensor:
    """The score of each output y (n, B, T): (n, B)."""
    dtype, p = p.any_potential.dtype, p.map(wide)
    m, scores, y = machine_of(p), levels(p), torch.where(p.within, y, 0)
    parts = [p.any_potential.new_zeros(y.shape[:2])]

    def pick(t: int, place: Place) -> Tensor:
        (batch, state, history), label = place, y[:, :, t]
        parts.append(scores[t][batch, history, label] + m.weight[t][batch, state, label])  # zeros beyond a length
        return label

    _, state = walk(p, m, y.new_zeros(y.shape[:2]), pick)
    total = torch.stack(parts).sum(0) + m.final[torch.arange(y.shape[1], device=y.device), state]
    if not torch.compiler.is_compiling() and total.isnan().any():
        check(p)
    return torch.where(total > -math.inf, total, -math.inf).to(dtype)


def argmax(p: Parts, arrays: Machines | None = None, k: int = 1) -> Found:
    """The k best outputs (V * k, B, T) from each of the V states where machines start, and whether there are so many.

    Best first, of equals the lexicographically smallest. Under these machines rather than its own where given.
    """
    check(p)
    p = p.map(wide)
    K, H, T, m, scores = p.num_labels, p.num_histories, p.num_positions, machine_of(p, arrays), levels(p)
    final = torch.nn.functional.pad(m.final[:, :, None, None], (0, k - 1), value=-math.inf)
    best, via = final.expand(-1, -1, min(H, K**T), -1), []
    for t in range(T - 1, -1, -1):
        found, order = ranked(arcs_at(scores[t], m, t, best, K).flatten(3), k)
        best = torch.where((t < p.lengths)[:, None, None, None], found, final)
        via.append(order)
    sizes = torch.ones(1) if arrays is None else torch.from_numpy(arrays.sizes[:, 0])
    starts = max([1, *sizes.int().tolist()])
    number = torch.arange(starts * k, device=p.lengths.device)[:, None].expand(-1, len(p.lengths))
    state, rank = number // k, number % k
    exists = (best[:, :, 0].permute(1, 2, 0)[:starts].flatten(0, 1) > -math.inf) & (state < sizes.to(state.device))

    def pick(t: int, place: Place) -> Tensor:
        nonlocal rank
        choice = via[T - 1 - t][(*place, rank)]
        rank = torch.where(t < p.lengths, choice % k, rank)
        return choice // k

    return Found(walk(p, m, state, pick)[0], exists)


def ranked(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest along the last axis, largest first, and where they stand, the first of equals first."""
    if k == 1:
        place = first_best(values)[..., None]
        return values.gather(-1, place), place
    found, order = values.sort(dim=-1, descending=True, stable=True)
    return found[..., :k], order[..., :k]


def best(p: Parts, k: int) -> Found:
    """The k best outputs (k, B, T), best first, and whether there are so many (k, B)."""
    return argmax(p, k=k)


def draw(p: Parts, n: int, generator: torch.Generator | None) -> Found:
    """n outputs (n, B, T) with probability exp(score) / Z, and whether there is any (B,): P(y | s, h) inverted."""
    check(p)
    uniforms, p = p.uniforms(n, generator), p.map(wide)
    m, scores = machine_of(p), levels(p)
    beta = backward(p, scores, m)

    def pick(t: int, place: Place) -> Tensor:
        return drawn(arcs_at(scores[t], m, t, beta[t + 1], p.num_labels)[place], uniforms[:, :, t])

    labels, _ = walk(p, m, p.lengths.new_zeros(uniforms.shape[:2]), pick)
    return Found(labels, beta[0][:, 0, 0] > -math.inf)
