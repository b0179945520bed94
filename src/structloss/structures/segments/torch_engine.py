"""Segments in tensor operations: any device, derivatives of any order.

The same recursions as the kernels, in logarithms, a frame of the whole batch at a time. Nodes are (B, V, P, K + 1), V
being the values of a loss that are told apart, or 1.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from structloss.kernels.segments import Levels
from structloss.structures.base import Found
from structloss.structures.segments.parts import Parts
from structloss.structures.segments.search import ranked
from structloss.structures.tensors import amax, drawn, first_best, logsumexp, wide

Combine = Callable[[Tensor, int], Tensor]
Pick = Callable[[Tensor, int], Tensor]  # which of the last axis of values, at frame t


def strata_after(p: Parts, levels: Levels | None, t: int) -> Tensor | None:
    """The stratum that each segment from frame t on leads to from each, (B, V, durations, K), -1: none."""
    if levels is None:
        return None
    count, table = min(p.durations.shape[1], p.opening.shape[1] - t), torch.from_numpy(levels.following)
    if not levels.by_frame:
        return table[..., t].to(p.lengths).transpose(1, 2)[:, :, None].expand(-1, -1, count, -1)
    steps = table[:, t : t + count].to(p.lengths).unbind(1)  # (B, V, K) each
    found = [steps[0]]
    for step in steps[1:]:
        found.append(torch.where(found[-1] < 0, -1, step.gather(1, found[-1].clamp(min=0))))
    return torch.stack(found, 2)


def ways_at(p: Parts, beta: list[Tensor], t: int, after: Tensor | None) -> Tensor:
    """The score of each segment from frame t on and of what follows it, (B, V, durations, K)."""
    count = min(p.durations.shape[1], p.opening.shape[1] - t)
    segments = p.frames[:, t : t + count].cumsum(1) + p.durations[:, :count]
    following = torch.stack([beta[t + 1 + d][:, :, d if p.rates is not None else 0, 1:] for d in range(count)], 2)
    if after is not None:
        following = torch.where(after < 0, -math.inf, following.gather(1, after.clamp(min=0)))
    durations = torch.arange(1, count + 1, device=segments.device)
    forbidden = (durations < p.shortest) | (durations > p.limits[:, t, None])
    return torch.where(forbidden[:, None, :, None], -math.inf, segments[:, None] + following)


def nodes_of(p: Parts, ways: Tensor, t: int, combine: Combine) -> Tensor:
    """The sum or the maximum of the ways to go on from each node at frame t, (B, V, P, K + 1)."""
    if p.rates is not None:
        pairs = p.rates[:, None, ..., : ways.shape[2]] + ways.transpose(2, 3)[:, :, :, None]  # (B, V, K, P, durations)
        found = p.opening[:, t, None, None] + combine(pairs, 4).transpose(2, 3)
    else:
        found = (p.opening[:, t, None] + combine(ways, 2))[:, :, None]
    if p.transitions is not None:
        return combine(p.transitions[:, None] + found, 3)[:, :, None]
    return torch.nn.functional.pad(found, (0, 1), value=-math.inf)


def backward(p: Parts, combine: Combine, levels: Levels | None = None) -> list[Tensor]:
    """Every frame's sum (logsumexp) or maximum (amax) over the ways to finish, (B, V, P, K + 1) each."""
    frames, pairs, most = p.opening.shape[1], p.num_nodes[1], 1 if levels is None else levels.following.shape[2]
    ended = torch.arange(most, device=p.lengths.device)[:, None, None] == 0  # where the loss is all added up
    final = torch.where(ended, p.final[:, None, None].expand(-1, most, pairs, -1), -math.inf)
    beta = [final] * (frames + 1)
    for t in range(frames, -1, -1):
        going = final if t == frames else nodes_of(p, ways_at(p, beta, t, strata_after(p, levels, t)), t, combine)
        here = torch.where((t < p.lengths)[:, None, None, None], going, -math.inf)
        beta[t] = torch.where((p.lengths == t)[:, None, None, None], final, here)
    return beta


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    value = backward(p.map(wide), logsumexp)[0][:, 0, 0, 0]
    return torch.where(value > -math.inf, value, -math.inf).to(p.opening.dtype)  # with zero gradient


def walk(
    p: Parts, beta: list[Tensor], levels: Levels | None, combine: Combine, v: Tensor, state: Pick, duration: Pick
) -> Found:
    """A way through the nodes from each of the strata v (n, B) on: the states that start at each frame (n, B, T)."""
    batch, frames, states = p.opening.shape
    b = torch.arange(batch, device=v.device).expand_as(v)
    due, node, pair = torch.zeros_like(b), torch.zeros_like(b), torch.zeros_like(b)
    exists, labels = beta[0][b, v, 0, 0] > -math.inf, torch.full((*v.shape, frames), -1, device=v.device)
    for t in range(frames):
        here, after = (due == t) & exists & (t < p.lengths), strata_after(p, levels, t)
        ways, k = ways_at(p, beta, t, after), node.clamp(max=states - 1)
        if p.transitions is not None:
            k = state(p.transitions[b, node] + (p.opening[:, t, None] + combine(ways, 2))[b, v], t)
        values = ways[b, v, :, k]  # (n, B, durations)
        if p.rates is not None:
            values = values + p.rates[b, k, pair, : values.shape[2]]
        d = duration(values, t)
        labels[..., t] = torch.where(here, k, -1)
        due, node = torch.where(here, t + 1 + d, due), torch.where(here, k + 1, node)
        pair = torch.where(here, d, pair) if p.rates is not None else pair
        v = v if after is None else torch.where(here, after[b, v, d, k], v)
    return Found(labels, exists)


def strata(p: Parts, levels: Levels | None) -> Found:
    """The states that start at each frame of the best ways (V, B, T), -1 where none does; whether there are any (V, B).

    One for each value of a loss, or without levels the best of all.
    """
    p = p.map(wide)
    nodes, last = backward(p, amax, levels), p.longest_first

    def duration(values: Tensor, _: int) -> Tensor:
        return values.shape[-1] - 1 - first_best(values.flip(-1)) if last else first_best(values)

    batch, most = nodes[0].shape[:2]
    v = torch.arange(most, device=p.lengths.device)[:, None].expand(most, batch)
    return walk(p, nodes, levels, amax, v, lambda values, _: first_best(values), duration)


def best(p: Parts, k: int) -> Found:
    """The states that start at each frame of the k best ways (k, B, T), and whether there are so many (k, B)."""
    if k == 1:
        return strata(p, None)
    nodes = torch.stack(backward(p.map(wide), amax), 1)[:, :, 0]
    return ranked(p, nodes.cpu().numpy(), k)


def draw(p: Parts, n: int, generator: torch.Generator | None) -> Found:
    """The states that start at each frame of n ways (n, B, T), drawn by exp(score) / Z; whether there is any (B,)."""
    p, uniforms = p.map(wide), p.uniforms(n, generator)
    v = torch.zeros(uniforms.shape[:2], dtype=torch.int64, device=uniforms.device)
    picks: list[Pick] = [lambda values, t, i=i: drawn(values, uniforms[:, :, t, i]) for i in (0, 1)]  # type: ignore[misc]
    found = walk(p, backward(p, logsumexp), None, logsumexp, v, *picks)
    return Found(found.choices, found.exists[0])
