"""Packed forests in tensor operations: any device, derivatives of any order.

The same recursions as the kernels, in logarithms, one level of the whole batch at a time: the batch is one graph.
Marginals are the gradient of log Z, as of any structure. Searches and draws are of paths.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structloss.structures import tensors
from structloss.structures.base import Found
from structloss.structures.graph.packing import Packing, Weighted
from structloss.structures.tensors import drawn, wide


class Level(NamedTuple):
    """The items of one level and their arcs, each a stretch of the row of all items and of all arcs."""

    items: slice
    arcs: slice
    segment: Tensor  # of each arc, which of the level's items is its head
    ahead: slice  # the levels from the nearest to the farthest that have its tails
    places: Tensor  # of each arc, its tails (1, a) or (2, a) among the items of these levels, the last being none
    widest: int  # the most arcs of an item


class Plan(NamedTuple):
    """A packing on a device."""

    levels: list[Level]
    arc_begin: Tensor  # (N + 2,): item N, which is none, has no arcs
    number: Tensor  # (A + 1,), the last: -1, of no arc
    tail: Tensor  # (A + 1,), the first; N of no arc
    root: Tensor  # (B,)
    owners: tuple[Tensor, Tensor]  # the examples of numbers and of constants


def plan_of(w: Weighted[Packing]) -> Plan:
    """The plan of a packing, made once for each device."""
    device = w.scores.device
    plan: Plan = w.packing.plans.get(device, lambda: _plan(w.packing, device))
    return plan


def _plan(t: Packing, device: torch.device) -> Plan:
    p, levels, level = t.packed, [], t.level_and_example[0]
    begins = np.searchsorted(level, np.arange(len(p.cell_begin[:: max(1, t.batch)]))).tolist()
    for first, last in pairwise(begins):
        arcs = slice(*p.arc_begin[[first, last]].tolist())
        own = p.tails[:, arcs]
        there = level[own[own < t.num_items]]
        near, far = (int(there.min()), int(there.max()) + 1) if there.size else (0, 0)
        places = np.where(own < t.num_items, own - begins[near], begins[far] - begins[near])
        of_item, placed = (torch.from_numpy(x).to(device) for x in (t.heads[arcs] - first, places))
        widest = int(np.diff(p.arc_begin[first : last + 1]).max(initial=0))
        levels.append(Level(slice(first, last), arcs, of_item, slice(near, far), placed, widest))
    arrays = np.append(p.arc_begin, t.num_arcs), np.append(p.number, -1), np.append(p.tails[0], t.num_items), p.root
    owners = t.owner.to(device), t.owner_of_arcs.to(device)
    begin, number, tail, root = (torch.from_numpy(x).to(device) for x in arrays)
    return Plan(levels, begin, number, tail, root, owners)


def weighed(w: Weighted[Packing]) -> tuple[Plan, Tensor, Tensor]:
    """The plan, the score of each number, and the constant of each arc, in the precision of sums."""
    scores = wide(w.scores)
    constant = w.constant if w.constant.size else np.zeros(w.packing.num_arcs)
    return plan_of(w), scores, torch.from_numpy(constant).to(scores)


def logsumexp(x: Tensor, segment: Tensor, items: int) -> Tensor:
    """log of the sum of exp(x) in each segment, for each of the items; -inf, with zero gradient, where all is -inf."""
    nothing = x.new_full((items,), -math.inf)
    top = nothing.scatter_reduce(0, segment, x.detach(), "amax")
    top = torch.where(torch.isfinite(top), top, 0)
    total = torch.zeros_like(nothing).index_add(0, segment, (x - top[segment]).exp())
    positive = total > 0
    return torch.where(positive, torch.where(positive, total, 1).log() + top, -math.inf)


def backward(p: Plan, scores: Tensor, constant: Tensor) -> Tensor:
    """Every item's log of the sum over its trees, and 0 for none, (N + 1,)."""
    arcs, none = scores[p.number[:-1]] + constant, scores.new_zeros(1)
    result: list[Tensor] = [none] * len(p.levels)
    for d in range(len(p.levels) - 1, -1, -1):
        level = p.levels[d]
        ahead = torch.cat([*result[level.ahead], none])
        values = arcs[level.arcs] + ahead[level.places].sum(0)
        result[d] = logsumexp(values, level.segment, level.items.stop - level.items.start)
    return torch.cat([*result, none])


def log_partition(w: Weighted[Packing]) -> Tensor:
    """log Z, (B,)."""
    p, scores, constant = weighed(w)
    return backward(p, scores, constant)[p.root].to(w.scores.dtype)


def expectation(w: Weighted[Packing], f: Weighted[Packing]) -> Tensor:
    """E[score under f], of what is drawn under w, of one packing. (B,)"""
    (p, *mine), (_, *theirs) = weighed(w), weighed(f)
    terms = list(zip(mine, theirs, p.owners, strict=True))
    zeros = mine[0].new_zeros(w.packing.batch)
    return tensors.expectation(lambda x: backward(p, *x)[p.root], terms, zeros).to(w.scores.dtype)


# --- Paths -----------------------------------------------------------------------------------------------------------


def leaving(p: Plan, nodes: Tensor, width: int) -> Tensor:
    """The arcs of nodes (...), (..., width), -1 where there are no more."""
    arcs = p.arc_begin[nodes][..., None] + torch.arange(width, device=nodes.device)
    return torch.where(arcs < p.arc_begin[nodes + 1][..., None], arcs, -1)


def with_none(p: Plan, scores: Tensor, constant: Tensor) -> Tensor:
    """What each arc scores, (A + 1,), the last: -inf, of none."""
    return torch.nn.functional.pad(scores[p.number[:-1]] + constant, (0, 1), value=-math.inf)


def ways(p: Plan, arcs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of each node, and of none, the scores of the k best ways to end, (N + 1, k), and which these are: see `best`."""
    score = arcs.new_full((len(p.arc_begin) - 1, k), -math.inf)
    score[-1, 0] = 0.0
    via = torch.zeros(score.shape, dtype=torch.int64, device=arcs.device)
    for level in reversed(p.levels):
        if level.widest:
            nodes = torch.arange(level.items.start, level.items.stop, device=arcs.device)
            place = leaving(p, nodes, level.widest)
            values = arcs[place][:, :, None] + score[p.tail[place]]
            found, order = values.flatten(1).sort(dim=1, descending=True, stable=True)
            score[nodes, : found.shape[1]], via[nodes, : found.shape[1]] = found[:, :k], order[:, :k]
    return score, via


def numbers_of(p: Plan, state: Tensor, steps: int, go_on: Callable[[Tensor, int], tuple[Tensor, Tensor]]) -> Tensor:
    """The numbers (n, B, L) of the arcs of paths from these states (n, B), -1 after the end.

    go_on(state, t) is the arc by which a path goes on from its state, -1 of none, and the state it leads to.
    """
    arcs = []
    for t in range(steps):
        arc, state = go_on(state, t)
        arcs.append(p.number[arc])
    return torch.stack(arcs, 2)


def best(w: Weighted[Packing], k: int) -> Found:
    """The numbers of the k best paths (k, B, L), -1 after the end, and whether there are so many (k, B).

    A way is via // k, the arc among those of its node, and via % k, the way of the arc's tail.
    """
    (p, scores, constant), none = weighed(w), w.packing.num_items
    score, via = ways(p, with_none(p, scores, constant), k)
    exists = (score[p.root] > -math.inf).T

    def go_on(way: Tensor, _: int) -> tuple[Tensor, Tensor]:  # way r of node n is n * k + r
        node, choice = way // k, via.flatten()[way]
        arc = torch.where((node < none) & exists, p.arc_begin[node] + choice // k, -1)
        return arc, p.tail[arc] * k + choice % k

    starts = (p.root[:, None] * k + torch.arange(k, device=via.device)).T
    return Found(numbers_of(p, starts, w.packing.longest, go_on), exists)


def draw(w: Weighted[Packing], n: int, generator: torch.Generator | None) -> Found:
    """The numbers of n paths (n, B, L), drawn with probability exp(score) / Z, and whether there is any (B,)."""
    (p, scores, constant), shape = weighed(w), (n, w.packing.batch, w.packing.longest)
    uniforms = torch.rand(shape, generator=generator, device=w.scores.device, dtype=torch.float64)
    beta, widest = backward(p, scores, constant), max([1, *(level.widest for level in p.levels)])
    arcs = with_none(p, scores, constant)

    def go_on(nodes: Tensor, t: int) -> tuple[Tensor, Tensor]:
        place = leaving(p, nodes, widest)
        chosen = drawn(arcs[place] + beta[p.tail[place]], uniforms[:, :, t])
        arc = place.gather(-1, chosen[..., None])[..., 0]
        return arc, p.tail[arc]

    return Found(numbers_of(p, p.root.expand(shape[:2]), shape[2], go_on), beta[p.root] > -math.inf)
