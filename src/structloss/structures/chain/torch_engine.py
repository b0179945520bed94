"""The chain in tensor operations: any device, derivatives of any order.

The same recursions as the kernels, in logarithms, one level of the whole batch at a time. States are pairs of a machine
state s and a history h; a chain that no machine augments has one machine state.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structloss.kernels.levels import Machines, unpack
from structloss.structures.base import Found
from structloss.structures.chain.machines import joint
from structloss.structures.chain.parts import Parts, ranked
from structloss.structures.checks import objection, unfit
from structloss.structures.tensors import amax, first_best, logsumexp, mean, wide


class Machine(NamedTuple):
    """The loss machines of a batch, padded. S is the most states of any level."""

    next_state: Tensor  # (B, T, S, K)
    weight: Tensor  # (B, T, S, K)
    final: Tensor  # (B, S), -inf where there is no state


def machine_of(p: Parts, arrays: Machines | None = None) -> Machine:
    """The machine that augments p (or these arrays, on p's device); one that adds nothing where there is none."""
    B, T, K, like = p.lengths.shape[0], p.num_positions, p.num_labels, p.any_potential
    if arrays is None and p.machine is None:
        zeros = like.new_zeros(B, T, 1, K)
        return Machine(zeros.long(), zeros, like.new_zeros(B, 1))
    arrays = p.machines if arrays is None else arrays
    S = int(arrays.sizes.max(initial=1))
    next_state, weight = np.zeros((B, T, S, K), np.int64), np.zeros((B, T, S, K))
    final = np.full((B, S), -np.inf)
    unpack(arrays, p.lengths.cpu().numpy(), next_state, weight, final)
    return Machine(
        torch.from_numpy(next_state).to(like.device),
        torch.from_numpy(weight).to(like),
        torch.from_numpy(final).to(like),
    )


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


def backward(p: Parts, scores: list[Tensor], m: Machine, combine: Callable[[Tensor, int], Tensor]) -> list[Tensor]:
    """Every level's sum (logsumexp) or maximum (amax) over the ways to finish, (B, S, rows) each."""
    K, H, T = p.num_labels, p.num_histories, p.num_positions
    beta = m.final[:, :, None].expand(*m.final.shape, min(H, K**T))
    result = [beta]
    for t in range(T - 1, -1, -1):
        level = scores[t]
        beta = combine(arcs_at(level, m, t, beta, K), 3)
        beta = torch.where((t < p.lengths)[:, None, None], beta, m.final[:, :, None])
        result.append(beta)
    return result[::-1]


def arcs_at(level: Tensor, m: Machine, t: int, beta: Tensor, K: int) -> Tensor:
    """score + weight + what follows, of each arc of level t, (B, S, rows, K)."""
    return (level[:, None] + m.weight[:, t, :, None]) + following(beta, m.next_state[:, t], level.shape[1], K)


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    check(p)
    w = in_double(p)
    return backward(w, levels(w), machine_of(w), logsumexp)[0][:, 0, 0].to(p.any_potential.dtype)


def in_double(p: Parts) -> Parts:
    """The same scores in the precision that sums are made in: over thousands of positions float32 loses gradients."""
    named = zip(("unary", "table", "start", "end"), p.potentials, strict=True)
    return p.replace(**{name: wide(x) for name, x in named if x is not None})


class Shares(NamedTuple):
    """How probable it is that an output uses each score."""

    levels: list[Tensor]  # (B, rows, K)
    weight: Tensor  # (B, T, S, K)
    final: Tensor  # (B, S)


def shares(p: Parts, m: Machine, create_graph: bool) -> Shares:
    """The gradient of log Z in the scores of every level and in the machine's weights; 0 where there is no output."""
    check(p)
    with torch.enable_grad():
        scores = levels(p)
        if not create_graph:
            scores = [level.detach() for level in scores]
        scores = [level if level.requires_grad else level.detach().requires_grad_() for level in scores]
        m = m._replace(weight=m.weight.detach().requires_grad_(), final=m.final.detach().requires_grad_())
        value = backward(p, scores, m, logsumexp)[0][:, 0, 0]
        value = torch.where(value > -math.inf, value, 0)
        inputs = [*scores, m.weight, m.final]
        found = torch.autograd.grad(value.sum(), inputs, create_graph=create_graph, allow_unused=True)
    *in_levels, in_weight, in_final = (
        torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)
    )
    return Shares(in_levels, in_weight, in_final)


def marginals(p: Parts) -> Tensor:
    """The probability of each arc, (B, T, H, K)."""
    K, H, dtype, p = p.num_labels, p.num_histories, p.any_potential.dtype, in_double(p)
    found = shares(p, machine_of(p), torch.is_grad_enabled()).levels
    if not found:
        return p.lengths.new_zeros(p.lengths.shape[0], 0, H, K, dtype=dtype)
    full = []
    for t, arc in enumerate(found):
        arc = torch.where((t < p.lengths)[:, None, None], arc, 0)
        full.append(torch.cat([arc, arc.new_zeros(arc.shape[0], H - arc.shape[1], K)], 1))
    return torch.stack(full, 1).to(dtype)


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score of y under f], y drawn from p; what has probability 0 adds nothing. (B,)"""
    check(f)
    dtype, p, f = p.any_potential.dtype, in_double(p), in_double(f)
    if p.machine is None and f.machine is None:
        mine = theirs = machine_of(p)
    else:
        mine, theirs = (machine_of(p, x) for x in joint(p.machine, f.machine, p.no_machine))
    found = shares(p, mine, create_graph=torch.is_grad_enabled())
    terms = [
        (torch.where((t < p.lengths)[:, None, None], share, 0), level)
        for t, (share, level) in enumerate(zip(found.levels, levels(f), strict=True))
    ]
    terms += [(found.weight, theirs.weight), (found.final, theirs.final)]
    return mean(terms, p.any_potential.new_zeros(p.lengths.shape[0])).to(dtype)


def score(p: Parts, y: Tensor) -> Tensor:
    """The score of each output y (n, B, T): (n, B)."""
    dtype, p = p.any_potential.dtype, in_double(p)
    K, H, m = p.num_labels, p.num_histories, machine_of(p)
    total = p.any_potential.new_zeros(y.shape[:2])
    history, state = y.new_zeros(y.shape[:2]), y.new_zeros(y.shape[:2])
    y = torch.where(p.within, y, 0)
    batch = torch.arange(y.shape[1], device=y.device)
    for t, level in enumerate(levels(p)):
        label = y[:, :, t]
        total = total + level[batch, history, label] + m.weight[batch, t, state, label]  # zeros beyond a length
        state = torch.where(t < p.lengths, m.next_state[batch, t, state, label], state)
        history = (history * K + label) % H
    total = total + m.final[batch, state]
    if not torch.compiler.is_compiling() and total.isnan().any():
        check(p)
    return torch.where(total > -math.inf, total, -math.inf).to(dtype)


def argmax(p: Parts, arrays: Machines | None = None) -> tuple[Tensor, Tensor]:
    """The best output (B, V, T) from each of the V states where the machines start, and its score (B, V).

    Under these machines rather than its own where given.
    """
    check(p)
    dtype, p = p.any_potential.dtype, in_double(p)
    K, H, m, scores = p.num_labels, p.num_histories, machine_of(p, arrays), levels(p)
    best = backward(p, scores, m, amax)
    sizes = np.ones(1, np.int64) if arrays is None else arrays.sizes[:, 0]
    starts = int(sizes.max(initial=1))
    outside = torch.from_numpy(np.arange(starts) >= sizes[:, None]).to(p.lengths.device)
    value = torch.where(outside, -math.inf, best[0][:, :starts, 0])
    batch = torch.arange(value.shape[0], device=value.device)[:, None]
    state = torch.arange(starts, device=value.device).expand(value.shape)
    history, labels = torch.zeros_like(state), [state.new_zeros(*state.shape, 0)]
    for t in range(p.num_positions):
        label = first_best(arcs_at(scores[t], m, t, best[t + 1], K)[batch, state, history])
        labels.append(label[:, :, None])
        state = torch.where((t < p.lengths)[:, None], m.next_state[batch, t, state, label], state)
        history = (history * K + label) % H
    return torch.where(value[:, :, None] > -math.inf, torch.cat(labels, 2), 0), value.to(dtype)


def topk(p: Parts, k: int) -> Tensor:
    """The k best outputs (B, k, T), best first, -1 where there are fewer."""
    check(p)
    p = in_double(p)
    K, H, T, m = p.num_labels, p.num_histories, p.num_positions, machine_of(p)
    scores, batch = levels(p), p.lengths.shape[0]
    first = p.any_potential.new_full((*m.final.shape, 1, k), -math.inf)
    first[..., 0] = m.final[:, :, None]
    best, via = first.expand(*m.final.shape, min(H, K**T), k), []
    for t in range(T - 1, -1, -1):
        rows = scores[t].shape[1]
        ahead = m.weight[:, t, :, None, :, None] + following(best, m.next_state[:, t], rows, K)  # (B, S, rows, K, k)
        candidates = scores[t][:, None, :, :, None] + ahead
        values, order = candidates.flatten(3).sort(dim=3, descending=True, stable=True)
        best = torch.where((t < p.lengths)[:, None, None, None], values[..., :k], first)
        via.append(order[..., :k])
    rank = torch.arange(k, device=p.lengths.device).expand(batch, k)
    exists = best[:, 0, 0] > -math.inf
    history, state, labels = torch.zeros_like(rank), torch.zeros_like(rank), []
    index = torch.arange(batch, device=p.lengths.device)[:, None]
    for t in range(T):
        choice = via[T - 1 - t][index, state, history, rank]
        label, inside = choice // k, (t < p.lengths)[:, None]
        rank = torch.where(inside, choice % k, rank)
        labels.append(torch.where(exists & inside, label, -1))
        state = torch.where(inside, m.next_state[index, t, state, label], state)
        history = (history * K + label) % H
    return torch.stack(labels, 2) if labels else rank.new_zeros(batch, k, 0)


def sample(p: Parts, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (n, B, T) by inverting P(y | s, h) at uniforms (n, B, T), and whether there is any (B,)."""
    check(p)
    p = in_double(p)
    K, H, m = p.num_labels, p.num_histories, machine_of(p)
    scores = levels(p)
    beta = backward(p, scores, m, logsumexp)
    batch = torch.arange(p.lengths.shape[0], device=p.lengths.device)
    history, state = p.lengths.new_zeros(uniforms.shape[:2]), p.lengths.new_zeros(uniforms.shape[:2])
    labels = []
    for t, level in enumerate(scores):
        arcs = arcs_at(level, m, t, beta[t + 1], K)
        probability = arcs[batch, state, history].softmax(-1).double()  # (n, B, K)
        before = probability.cumsum(-1) - probability
        taken = (probability > 0) & (before <= uniforms[:, :, t, None])
        label = torch.where(taken, torch.arange(K, device=taken.device), 0).amax(-1)
        labels.append(label)
        state = torch.where(t < p.lengths, m.next_state[batch, t, state, label], state)
        history = (history * K + label) % H
    exists = beta[0][:, 0, 0] > -math.inf
    return (torch.stack(labels, 2) if labels else history.new_zeros(*uniforms.shape)), exists


def best(p: Parts, k: int) -> Found:
    """The k best outputs (k, B, T), best first, and whether there are so many (k, B)."""
    if k == 1:
        labels, value = argmax(p)
        return Found(labels.transpose(0, 1), value.T.isfinite())
    return ranked(p, topk(p, k) if p.num_positions else None, k)


def draw(p: Parts, n: int, generator: torch.Generator | None) -> Found:
    """n outputs (n, B, T) with probability exp(score) / Z, and whether there is any (B,)."""
    return Found(*sample(p, p.uniforms(n, generator)))
