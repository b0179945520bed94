"""The lattice in tensor operations: any device, derivatives of any order.

The same recursions as the kernels, in logarithms, one level of the whole batch at a time: the batch is one graph.
Marginals are the gradient of log Z, as of any structure.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structloss.structures.base import Found
from structloss.structures.graph.topology import Floats, Topology, Weighted
from structloss.structures.tensors import drawn, wide


class Level(NamedTuple):
    """The nodes of one level and their arcs, each a stretch of the row of all nodes and of all arcs."""

    nodes: slice
    arcs: slice
    segment: Tensor  # of each arc, which of the level's nodes it leaves
    ahead: tuple[int, ...]  # the levels that its arcs lead to
    places: Tensor  # of each arc, the node it leads to among those of these levels
    most_arcs: int  # of a node


class Plan(NamedTuple):
    """A topology on a device."""

    levels: list[Level]
    most_arcs: int  # of a node
    base: Tensor  # (A,)
    tail: Tensor  # (A,)
    arc_begin: Tensor  # (N + 1,)
    start: Tensor  # (B,)
    example: Tensor  # (N,), of each node
    example_of_arc: Tensor  # (A,)


def plan_of(w: Weighted) -> Plan:
    """The plan of a topology, made once for each device."""
    t, device = w.topology, w.scores.device
    plan: Plan = t.recent_plans.get(device, lambda: _plan(t, device))
    return plan


def _plan(t: Topology, device: torch.device) -> Plan:
    g, levels = t.graph, []
    counts = np.diff(g.arc_begin)
    for d in range(t.num_levels):
        first, last = int(t.level_begin[d]), int(t.level_begin[d + 1])
        begin, end = int(g.arc_begin[first]), int(g.arc_begin[last])
        tail = g.tail[begin:end]
        level = t.level[tail]
        ahead = np.unique(level)
        moved = np.zeros(t.num_levels, np.int64)  # from a place in the row to one among the levels ahead
        moved[ahead] = np.cumsum(t.level_begin[ahead + 1] - t.level_begin[ahead]) - t.level_begin[ahead + 1]
        segment = np.repeat(np.arange(last - first), counts[first:last])
        of_node, places = (torch.from_numpy(x).to(device) for x in (segment, tail + moved[level]))
        widest = int(counts[first:last].max(initial=0))
        levels.append(Level(slice(first, last), slice(begin, end), of_node, tuple(ahead.tolist()), places, widest))
    arrays = (g.base, g.tail, g.arc_begin, np.arange(t.batch), t.example, np.repeat(t.example, counts))
    return Plan(levels, int(counts.max(initial=0)), *(torch.from_numpy(x).to(device) for x in arrays))


def arcs_and_ends(w: Weighted, p: Plan) -> tuple[Tensor, Tensor]:
    """The score of each arc, (A,), and of ending in each node, (N,), in the precision that sums are made in."""
    scores = wide(w.scores)
    constant, final = (torch.from_numpy(x).to(scores) for x in (w.constant, w.final))
    return scores[p.base] + constant if len(constant) else scores[p.base], final


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
        if level.ahead:
            ahead = torch.cat([result[i] for i in level.ahead]) if len(level.ahead) > 1 else result[level.ahead[0]]
            result[d] = logsumexp(arcs[level.arcs] + ahead[level.places], level.segment, result[d])
    return result


def log_partition(w: Weighted) -> Tensor:
    """log Z, (B,)."""
    p = plan_of(w)
    return backward(p, *arcs_and_ends(w, p))[0].to(w.scores.dtype)


def expectation(w: Weighted, f: Weighted) -> Tensor:
    """E[score of a path under f], the path drawn under w, of one topology. (B,)

    It is the derivative of log Z(w + s * f) in s, at 0; that in the direction of what is -inf under f counts the arcs
    and ends of a path that are.
    """
    p, recorded = plan_of(w), torch.is_grad_enabled() and (w.scores.requires_grad or f.scores.requires_grad)
    with torch.enable_grad():
        steps = wide(w.scores.new_zeros(2, w.topology.batch)).requires_grad_()
        moved = []
        for x, v, owner in zip(arcs_and_ends(w, p), arcs_and_ends(f, p), (p.example_of_arc, p.example), strict=True):
            outside = v.isneginf()
            moved.append(x + steps[0, owner] * torch.where(outside, 0, v) + steps[1, owner] * outside)
        value = backward(p, *moved)[0]
        (found,) = torch.autograd.grad(value, steps, torch.ones_like(value), create_graph=recorded)
    return torch.where(found[1] > 0, -math.inf, found[0]).to(w.scores.dtype)


def leaving(p: Plan, nodes: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The arcs of nodes (...), (..., width), and which of these are there."""
    arcs = p.arc_begin[nodes][..., None] + torch.arange(width, device=nodes.device)
    inside = arcs < p.arc_begin[nodes + 1][..., None]
    return torch.where(inside, arcs, 0), inside


def ways(w: Weighted, p: Plan, k: int) -> tuple[Tensor, Tensor]:
    """Of each node the scores of the k best ways to end, (N, k), and which these are: see `best`."""
    arcs, final = arcs_and_ends(w, p)
    score = final.new_full((len(final), k), -math.inf)
    score[:, 0] = final
    via = torch.zeros(len(final), k, dtype=torch.int64, device=final.device)
    for level in reversed(p.levels):
        if level.ahead:
            nodes = torch.arange(level.nodes.start, level.nodes.stop, device=final.device)
            place, inside = leaving(p, nodes, level.most_arcs)
            values = torch.where(inside[:, :, None], arcs[place][:, :, None] + score[p.tail[place]], -math.inf)
            values = torch.cat([score[nodes], values.flatten(1)], 1)  # the k ways to end here: one of them, or none
            found, order = values.sort(dim=1, descending=True, stable=True)
            score[nodes], via[nodes] = found[:, :k], order[:, :k]
    return score, via


def completions(w: Weighted) -> Floats:
    """The best score of a way to end from each node, (N,)."""
    best: Floats = ways(w, plan_of(w), 1)[0][:, 0].cpu().numpy()
    return best


def best(w: Weighted, k: int) -> Found:
    """The scores that the k best paths use (k, B, L), -1 after an end, and whether there are so many (k, B).

    A way is via // k - 1, the arc among those of its node (-1: it ends here), and via % k, the way of the arc's tail.
    """
    p = plan_of(w)
    score, via = ways(w, p, k)
    exists = (score[p.start] > -math.inf).T
    paths = via.new_full((*exists.shape, w.topology.num_levels - 1), -1)
    nodes, going, rank = p.start.expand(exists.shape), exists, torch.arange(k, device=via.device)[:, None]
    for t in range(paths.shape[2] if p.most_arcs else 0):
        choice = via[nodes, rank]
        going = going & (choice >= k)
        arc = torch.where(going, p.arc_begin[nodes] + choice // k - 1, 0)
        paths[:, :, t] = torch.where(going, p.base[arc], -1)
        nodes, rank = torch.where(going, p.tail[arc], nodes), torch.where(going, choice % k, rank)
    return Found(paths, exists)


def draw(w: Weighted, n: int, generator: torch.Generator | None) -> Found:
    """The scores that n paths use (n, B, L), drawn with probability exp(score) / Z, and whether there is any (B,)."""
    p, shape = plan_of(w), (n, w.topology.batch, w.topology.num_levels - 1)
    uniforms = torch.rand(shape, generator=generator, device=w.scores.device, dtype=torch.float64)
    arcs, final = arcs_and_ends(w, p)
    beta = torch.cat(backward(p, arcs, final))
    exists = beta[p.start] > -math.inf
    paths, nodes, going = p.base.new_full(shape, -1), p.start.expand(shape[:2]), exists.expand(shape[:2])
    for t in range(shape[2] if p.most_arcs else 0):
        place, inside = leaving(p, nodes, p.most_arcs)
        values = torch.where(inside, arcs[place] + beta[p.tail[place]], -math.inf)
        chosen = drawn(torch.cat([final[nodes][..., None], values], -1), uniforms[:, :, t])  # 0: it ends here
        going = going & (chosen > 0)
        arc = place.gather(-1, (chosen - 1).clamp(min=0)[..., None])[..., 0]
        paths[:, :, t] = torch.where(going, p.base[arc], -1)
        nodes = torch.where(going, p.tail[arc], nodes)
    return Found(paths, exists)
