"""The lattice in tensor operations: any device, derivatives of any order.

The same recursions as the kernels, in logarithms, one level of the whole batch at a time: the batch is one graph.
Marginals are the gradient of log Z, as of any structure.
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
from structloss.structures.graph.topology import Topology, Weighted
from structloss.structures.tensors import drawn, wide


class Level(NamedTuple):
    """The nodes of one level and their arcs, each a stretch of the row of all nodes and of all arcs."""

    nodes: slice
    arcs: slice
    segment: Tensor  # of each arc, which of the level's nodes it leaves
    ahead: slice  # the levels from the nearest to the farthest that its arcs lead to
    places: Tensor  # of each arc, the node it leads to among those of these levels
    widest: int  # the most arcs of a node


class Plan(NamedTuple):
    """A topology on a device."""

    levels: list[Level]
    arc_begin: Tensor  # (N + 1,)
    base: Tensor  # (A + 1,), the last: -1, of no arc
    tail: Tensor  # (A + 1,)
    example: Tensor  # (N,), of each node
    example_of_arc: Tensor  # (A,)


def plan_of(t: Topology, device: torch.device) -> Plan:
    """The plan of a topology, made once for each device."""
    plan: Plan = t.recent_plans.get(device, lambda: _plan(t, device))
    return plan


def _plan(t: Topology, device: torch.device) -> Plan:
    g, levels, (level, example) = t.graph, [], t.level_and_example
    counts, begins = np.diff(g.arc_begin), t.level_begin.tolist()
    head = np.repeat(np.arange(t.num_nodes), counts)
    for first, last in pairwise(begins):
        arcs = slice(*g.arc_begin[[first, last]].tolist())
        near, far = (level[g.tail[arcs].min()], level[g.tail[arcs].max()] + 1) if g.tail[arcs].size else (0, 0)
        of_node, places = (torch.from_numpy(x).to(device) for x in (head[arcs] - first, g.tail[arcs] - begins[near]))
        widest = int(counts[first:last].max(initial=0))
        levels.append(Level(slice(first, last), arcs, of_node, slice(int(near), int(far)), places, widest))
    arrays = (g.arc_begin, np.append(g.base, -1), np.append(g.tail, 0), example, example[head])
    return Plan(levels, *(torch.from_numpy(x).to(device) for x in arrays))


def weighed(w: Weighted) -> tuple[Plan, Tensor, Tensor]:
    """The plan, the score of each arc, (A,), and of ending in each node, (N,), in the precision of sums."""
    p, scores = plan_of(w.topology, w.scores.device), wide(w.scores)
    constant, final = (torch.from_numpy(x).to(scores) for x in (w.constant, w.final))
    return p, scores[p.base[:-1]] + constant, final


def logsumexp(x: Tensor, segment: Tensor, final: Tensor) -> Tensor:
    """log of exp(final) and of the sum of exp(x) in each segment; -inf, with zero gradient, where all is -inf."""
    top = final.detach().scatter_reduce(0, segment, x.detach(), "amax")
    top = torch.where(torch.isfinite(top), top, 0)
    total = (final - top).exp().index_add(0, segment, (x - top[segment]).exp())
    positive = total > 0
    return torch.where(positive, torch.where(positive, total, 1).log() + top, -math.inf)


def backward(p: Plan, arcs: Tensor, final: Tensor) -> list[Tensor]:
    """Every level's log of the sum over the ways to end."""
    result = [final[level.nodes] for level in p.levels]
    for d in range(len(p.levels) - 1, -1, -1):
        level = p.levels[d]
        if level.widest:
            ahead = torch.cat(result[level.ahead])
            result[d] = logsumexp(arcs[level.arcs] + ahead[level.places], level.segment, result[d])
    return result


def log_partition(w: Weighted) -> Tensor:
    """log Z, (B,)."""
    return backward(*weighed(w))[0].to(w.scores.dtype)


def expectation(w: Weighted, f: Weighted) -> Tensor:
    """E[score of a path under f], the path drawn under w, of one topology. (B,)"""
    (p, *mine), (_, *theirs) = weighed(w), weighed(f)
    terms = list(zip(mine, theirs, (p.example_of_arc, p.example), strict=True))
    zeros = mine[0].new_zeros(w.topology.batch)
    return tensors.expectation(lambda scores: backward(p, *scores)[0], terms, zeros).to(w.scores.dtype)


def leaving(p: Plan, nodes: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The arcs of nodes (...), (..., width), and which of these are there."""
    arcs = p.arc_begin[nodes][..., None] + torch.arange(width, device=nodes.device)
    inside = arcs < p.arc_begin[nodes + 1][..., None]
    return torch.where(inside, arcs, 0), inside


def ways(p: Plan, arcs: Tensor, final: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of each node the scores of the k best ways to end, (N, k), and which these are: see `best`."""
    score = final.new_full((len(final), k), -math.inf)
    score[:, 0] = final
    via = torch.zeros(len(final), k, dtype=torch.int64, device=final.device)
    for level in reversed(p.levels):
        if level.widest:
            nodes = torch.arange(level.nodes.start, level.nodes.stop, device=final.device)
            place, inside = leaving(p, nodes, level.widest)
            values = torch.where(inside[:, :, None], arcs[place][:, :, None] + score[p.tail[place]], -math.inf)
            values = torch.cat([score[nodes], values.flatten(1)], 1)  # the k ways to end here: one of them, or none
            found, order = values.sort(dim=1, descending=True, stable=True)
            score[nodes], via[nodes] = found[:, :k], order[:, :k]
    return score, via


def paths_of(state: Tensor, steps: int, go_on: Callable[[Tensor, int], tuple[Tensor, Tensor]]) -> Tensor:
    """The arcs (n, B, L) of paths from these states (n, B), -1 after an end.

    go_on(state, t) is the arc by which a path goes on from its state, -1 where it ends, and the state it leads to.
    """
    arcs, going = state.new_full((*state.shape, steps), -1), torch.ones_like(state, dtype=torch.bool)
    for t in range(steps):
        arc, following = go_on(state, t)
        going = going & (arc >= 0)
        arcs[:, :, t], state = torch.where(going, arc, -1), torch.where(going, following, state)
    return arcs


def best(w: Weighted, k: int) -> Found:
    """The scores that the k best paths use (k, B, L), -1 after an end, and whether there are so many (k, B).

    A way is via // k - 1, the arc among those of its node (-1: it ends here), and via % k, the way of the arc's tail.
    """
    t, (p, arcs, final) = w.topology, weighed(w)
    score, via = ways(p, arcs, final, k)
    exists = (score[: t.batch] > -math.inf).T

    def go_on(way: Tensor, _: int) -> tuple[Tensor, Tensor]:  # way r of node n is n * k + r
        choice = via.flatten()[way]
        arc = torch.where(choice >= k, p.arc_begin[way // k] + choice // k - 1, -1)
        return arc, p.tail[arc] * k + choice % k

    ways_of_starts = torch.arange(t.batch * k, device=via.device).reshape(t.batch, k).T
    return Found(p.base[paths_of(ways_of_starts, t.num_levels - 1, go_on)], exists)


def draw(w: Weighted, n: int, generator: torch.Generator | None) -> Found:
    """The scores that n paths use (n, B, L), drawn with probability exp(score) / Z, and whether there is any (B,)."""
    (p, arcs, final), shape = weighed(w), (n, w.topology.batch, w.topology.num_levels - 1)
    uniforms = torch.rand(shape, generator=generator, device=w.scores.device, dtype=torch.float64)
    beta, widest = torch.cat(backward(p, arcs, final)), max(level.widest for level in p.levels)
    exists = beta[: shape[1]] > -math.inf

    def go_on(nodes: Tensor, t: int) -> tuple[Tensor, Tensor]:
        place, inside = leaving(p, nodes, widest)
        values = torch.where(inside, arcs[place] + beta[p.tail[place]], -math.inf)
        chosen = drawn(torch.cat([final[nodes][..., None], values], -1), uniforms[:, :, t])  # 0: it ends here
        arc = torch.where(chosen > 0, p.arc_begin[nodes] + chosen - 1, -1)
        return arc, p.tail[arc]

    starts = torch.arange(shape[1], device=exists.device).expand(shape[:2])
    return Found(p.base[paths_of(starts, shape[2], go_on)], exists)
