"""The chain in tensor operations: any device, derivatives of any order.

The same recursions as the kernels, in logarithms, one level of the whole batch at a time; in float64, as float32 loses
gradients over thousands of positions. States are pairs of a machine state s and a history h; a chain that no machine
augments has one machine state. A history is an oldest label a and the rest r, h = a * R + r, of which label y leaves
r * K + y: only a is forgotten.

What is made once stands before the loops, and a level is few operations: beyond a length every history has one label,
0, which scores 0 and stays in the machine's state, so that no level asks which examples it has; and sums have a very
large negative number for -inf, so that they have derivatives without a case for where all is -inf. Nothing waits for
the device: on any but the CPU, NaN and +inf are not looked for, and make the value of their example NaN or +inf.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from structloss.kernels.levels import Machines
from structloss.structures import tensors
from structloss.structures.base import Found
from structloss.structures.chain.device_machines import on_device
from structloss.structures.chain.machines import joint
from structloss.structures.chain.parts import Parts
from structloss.structures.checks import objection, unfit
from structloss.structures.tensors import drawn, lowest, wide


class Machine(NamedTuple):
    """The loss machines of a batch, padded. S is the most states of any level."""

    next_state: Tensor | None  # (B, T, S, K); None: there is one state
    weight: Tensor | None  # (B, T, S, K); None: 0
    final: Tensor  # (B, S), -inf where there is no state


def machine_of(p: Parts, arrays: Machines | None = None) -> Machine:
    """The machine that augments p (or these arrays, on p's device); one of one state where there is none."""
    B, T, K, like = p.lengths.shape[0], p.num_positions, p.num_labels, p.any_potential
    if B == 0 or (arrays is None and p.machine is None):
        return Machine(None, None, like.new_zeros(B, 1))
    if arrays is None:
        assert p.machine is not None
        m = on_device(p.machine.batch, like.device)
        (weight, final), S = m.scaled(p.machine.scale), m.most_states
        class_of, following, begins, sizes = m.class_of[:, None], m.next_state, m.arc_begins, m.sizes
    else:
        S, names = int(arrays.sizes.max(initial=1)), ("class_of", "next_state", "arc_begin", "sizes", "weight", "final")
        moved = (tensors.moved(getattr(arrays, name), like.device) for name in names)
        class_of, following, begins, sizes, weight, final = moved
    state = torch.arange(S, device=like.device)
    there = (state < sizes[:, :T, None]) & p.within[:, :, None]
    # The arc of label y from state s of level t; what is not there leads where it is, along an arc 0 that is there.
    arc = begins[:, :T, None, None] + class_of[:, :, None, :] * sizes[:, :T, None, None] + state[:, None]
    arc = torch.where(there[..., None], arc, 0)
    following = torch.nn.functional.pad(following, (0, 1))[arc].long()
    next_state = torch.where(there[..., None], following, state[:, None])
    if weight.numel():
        added = torch.where(there[..., None], weight[arc], 0).to(like)
    ends = sizes.expand(B, -1).gather(1, p.lengths[:, None])
    final = torch.nn.functional.pad(final.to(like), (0, S - final.shape[1]))
    return Machine(
        next_state.expand(B, T, S, K), added if weight.numel() else None, torch.where(state < ends, final, -math.inf)
    )


def check(p: Parts) -> None:
    """Raise if a potential that matters is NaN, +inf or too large; only where looking does not wait for a device."""
    if torch.compiler.is_compiling() or p.lengths.device.type != "cpu":
        return
    scores = levels(p.map(torch.Tensor.detach))
    wrong = unfit(scores)
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(f"potentials: example {place[0]} has {objection(scores[place], f' at position {place[1]}')}")


def levels(p: Parts) -> Tensor:
    """The scores of all arcs, (B, T, H, K); beyond a length label 0 has 0, and the others -inf."""
    K, H, T = p.num_labels, p.num_histories, p.num_positions
    level, within = p.unaries[:, :, None], p.within[:, :, None, None]
    if p.table is not None:
        level_of = torch.arange(T, device=p.lengths.device)[:, None, None]
        if p.shared:
            scored = level_of >= p.order - 1
        else:  # before the first position history axes have index 0
            scored = torch.arange(H, device=p.lengths.device)[:, None] < K ** level_of.clamp(max=p.order - 1)
        level = level + torch.where(scored, p.table, 0)
    padding = torch.where(torch.arange(K, device=p.lengths.device) == 0, 0.0, -math.inf).to(level)
    return torch.where(within, level, padding)


def ahead(p: Parts, scores: Tensor, m: Machine, several: int = 1) -> Callable[[int, Tensor], Tensor]:
    """ahead(t, beta) = score + weight + beta of what follows, of each arc of level t, (B, S, A, R, K).

    beta (B, S, A, R) is that of level t + 1. With several ways to finish, all have an axis for them, the last.
    """
    B, T, H, K = scores.shape
    A, S, tail = K if p.order > 1 else 1, m.final.shape[1], () if several == 1 else (several,)
    R, last = H // A, (None,) * len(tail)
    own, added, index = scores.reshape(B, T, 1, A, R, K), m.weight, m.next_state
    if added is not None:
        added = added.reshape(B, T, S, 1, 1, K)
    if A == 1 and index is not None:  # no more numbers than `next_state` has
        own, added = own.expand(B, T, S, 1, 1, K) if added is None else own + added, None
    if index is not None:
        index = index.reshape(B, T, S, 1, 1, K)[(..., *last)].expand(-1, -1, -1, -1, R, -1, *tail)
    owns, ways = own[(..., *last)].unbind(1), index if index is None else index.unbind(1)
    adds = added if added is None else added[(..., *last)].unbind(1)

    def step(t: int, beta: Tensor) -> Tensor:
        following = beta.reshape(B, S, 1, R, H // R, *tail)
        if ways is not None:
            following = (following if A > 1 else following.expand(B, S, 1, R, K, *tail)).gather(1, ways[t])
        return (following if adds is None else following + adds[t]) + owns[t]

    return step


def backward(p: Parts, scores: Tensor, m: Machine) -> tuple[list[Tensor], Callable[[int, Tensor], Tensor]]:
    """Every level's log of the sum over the ways to finish, (B, S, A, R) each, and `ahead` of them; finite, all."""
    low, T = lowest(scores), p.num_positions
    weight = m.weight if m.weight is None else m.weight.clamp(min=low)
    m = m._replace(weight=weight, final=m.final.clamp(min=low))
    step, A = ahead(p, scores.clamp(min=low), m), p.num_labels if p.order > 1 else 1
    result = [m.final[:, :, None, None].expand(*m.final.shape, A, p.num_histories // A)]
    for t in range(T - 1, -1, -1):
        result.append(tensors.log_total(step(t, result[-1]), -1))
    return result[::-1], step


def total(p: Parts, scores: Tensor, m: Machine) -> Tensor:
    """log Z, (B,)."""
    return tensors.lifted(backward(p, scores, m)[0][0][:, 0, 0, 0])


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    check(p)
    w = p.map(wide)
    return total(w, levels(w), machine_of(w)).to(p.any_potential.dtype)


def marginals(p: Parts) -> Tensor:
    """The probability of each arc, (B, T, H, K): the derivative of log Z in what is added to its score."""
    check(p)
    w = p.map(wide)
    recorded = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in p.potentials)
    with torch.enable_grad():
        scores = levels(w)
        added = torch.zeros_like(scores, requires_grad=True)
        value = total(w, scores + added, machine_of(w)).sum() + added[:0].sum()
        (found,) = torch.autograd.grad(value, added, create_graph=recorded)
    return torch.where(p.within[:, :, None, None], found, 0).to(p.any_potential.dtype)


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score of y under f], y drawn from p; what has probability 0 adds nothing. (B,)"""
    check(p)
    check(f)
    dtype, p, f = p.any_potential.dtype, p.map(wide), f.map(wide)
    if p.machine is None and f.machine is None:
        m = theirs = machine_of(p)
    else:
        m, theirs = (machine_of(p, x) for x in joint(p.machine, f.machine, p.no_machine))
    pairs = [(levels(p), levels(f)), (m.final, theirs.final)]
    if m.weight is not None and theirs.weight is not None:
        pairs.append((m.weight, theirs.weight))
    examples = torch.arange(p.lengths.shape[0], device=p.lengths.device)
    terms = [(x, v, examples.reshape(-1, *(1,) * (x.dim() - 1))) for x, v in pairs]

    def value(moved: list[Tensor]) -> Tensor:
        scores, final, *weight = moved
        return total(p, scores, m._replace(final=final, weight=weight[0] if weight else None))

    return tensors.expectation(value, terms, p.any_potential.new_zeros(p.lengths.shape[0])).to(dtype)


# --- Walks -----------------------------------------------------------------------------------------------------------


def walk(p: Parts, m: Machine, state: Tensor, pick: Callable[[int, Tensor], Tensor]) -> Tensor:
    """The labels (n, B, T) that pick(t, place) chooses at each level, from states (B, n) on; place = s * H + h."""
    K, H, T, history, labels = p.num_labels, p.num_histories, p.num_positions, torch.zeros_like(state), []
    following = m.next_state if m.next_state is None else m.next_state.flatten(2).unbind(1)
    for t in range(T):
        label = pick(t, history if m.next_state is None else state * H + history)
        labels.append(label)
        if following is not None:
            state = following[t].gather(1, state * K + label)
        if p.order > 1:
            history = label if p.order == 2 else (history * K + label) % H
    return (torch.stack(labels, 2) if labels else state.new_zeros(*state.shape, 0)).transpose(0, 1)


def score(p: Parts, y: Tensor) -> Tensor:
    """The score of each output y (n, B, T): (n, B)."""
    dtype, p, K, T = p.any_potential.dtype, p.map(wide), p.num_labels, p.num_positions
    m, y = machine_of(p), torch.where(p.within, y, 0).permute(1, 2, 0)  # (B, T, n)
    arc = y
    for i in range(1, p.order):
        arc = arc + K**i * torch.nn.functional.pad(y, (0, 0, i, 0))[:, :T]
    found = levels(p).flatten(2).gather(2, arc).sum(1)
    state = torch.zeros_like(y[:, 0] if T else y.new_zeros(y.shape[0], y.shape[2]))
    if m.next_state is not None:
        places: list[Tensor] = []
        for following, label in zip(m.next_state.flatten(2).unbind(1), y.unbind(1), strict=True):
            places.append(state * K + label)
            state = following.gather(1, places[-1])
        if m.weight is not None and places:
            found = found + m.weight.flatten(2).gather(2, torch.stack(places, 1)).sum(1)
        found = found + m.final.gather(1, state)
    if not torch.compiler.is_compiling() and found.device.type == "cpu" and found.isnan().any():
        check(p)
    return torch.where(found > -math.inf, found, -math.inf).T.to(dtype)


def argmax(p: Parts, arrays: Machines | None = None, k: int = 1) -> Found:
    """The k best outputs (V * k, B, T) from each of the V states where machines start, and whether there are so many.

    Best first, of equals the lexicographically smallest. Under these machines rather than its own where given.
    """
    check(p)
    p = p.map(wide)
    K, H, T, m, scores = p.num_labels, p.num_histories, p.num_positions, machine_of(p, arrays), levels(p)
    A, tail, step, via = K if p.order > 1 else 1, () if k == 1 else (k,), ahead(p, scores, m, k), []
    best = m.final if k == 1 else torch.nn.functional.pad(m.final[..., None], (0, k - 1), value=-math.inf)
    best = best[:, :, None, None].expand(*m.final.shape, A, H // A, *tail)
    for t in range(T - 1, -1, -1):
        best, order = ranked(step(t, best), k)
        via.append(order.flatten(1))
    ways = best[:, :, 0, 0].reshape(best.shape[0], best.shape[1] * k)
    starts = 1 if arrays is None else max(1, int(arrays.sizes[:, 0].max(initial=1)))
    number = torch.arange(starts * k, device=p.lengths.device)
    exists = ways[:, : starts * k] > -math.inf
    if arrays is not None:
        exists = exists & (number // k < tensors.moved(arrays.sizes[:, :1], exists.device))
    state = (number // k).expand(best.shape[0], -1)
    rank = (number % k).expand(best.shape[0], -1)

    def pick(t: int, place: Tensor) -> Tensor:
        nonlocal rank
        if k == 1:
            return via[T - 1 - t].gather(1, place)
        choice = via[T - 1 - t].gather(1, place * k + rank)
        rank = choice % k
        return choice // k

    return Found(walk(p, m, state, pick), exists.T)


def ranked(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest, largest first, and where they stand, the first of equals first.

    Of values (..., n) the largest; or of the k of each, (..., n, k), those among all.
    """
    if k == 1:
        found = values.max(-1)  # of equals it has the first
        return found.values, found.indices
    ordered = values.flatten(-2).sort(dim=-1, descending=True, stable=True)
    return ordered.values[..., :k], ordered.indices[..., :k]


def best(p: Parts, k: int) -> Found:
    """The k best outputs (k, B, T), best first, and whether there are so many (k, B)."""
    return argmax(p, k=k)


def draw(p: Parts, n: int, generator: torch.Generator | None) -> Found:
    """n outputs (n, B, T) with probability exp(score) / Z, and whether there is any (B,): P(y | s, h) inverted."""
    check(p)
    uniforms, p = p.uniforms(n, generator), p.map(wide)
    m = machine_of(p)
    beta, step = backward(p, levels(p), m)
    batch = torch.arange(p.lengths.shape[0], device=p.lengths.device)[:, None]

    def pick(t: int, place: Tensor) -> Tensor:
        return drawn(step(t, beta[t + 1]).flatten(1, 3)[batch, place], uniforms[:, :, t].T)

    labels = walk(p, m, p.lengths.new_zeros(uniforms.shape[1], n), pick)
    return Found(labels, tensors.lifted(beta[0][:, 0, 0, 0]) > -math.inf)
