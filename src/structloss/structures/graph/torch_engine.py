"""The lattice in tensor operations: any device, derivatives of any order.

The same recursions as the kernels, in logarithms, one level of the whole batch at a time: the batch is one graph.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structloss.structures.base import Found
from structloss.structures.graph.topology import Floats, Topology, Weighted
from structloss.structures.tensors import wide

Combine = Callable[[Tensor, Tensor, Tensor], Tensor]


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
    base: Tensor  # (A,)
    target: Tensor  # (A,)
    arc_begin: Tensor  # (N + 1,)
    most_arcs: int  # of a node
    start: Tensor  # (B,)
    example: Tensor  # (N,), of each node
    example_of_arc: Tensor  # (A,)


def plan_of(t: Topology, device: torch.device) -> Plan:
    """The plan of a topology, made once for each device."""
    plan: Plan = t.recent_plans.get(device, lambda: _plan(t, device))
    return plan


def _plan(t: Topology, device: torch.device) -> Plan:
    g, levels = t.graph, []
    counts = np.diff(g.arc_begin)
    for d in range(t.num_levels):
        first, last = int(t.level_begin[d]), int(t.level_begin[d + 1])
        begin, end = int(g.arc_begin[first]), int(g.arc_begin[last])
        target = g.target[begin:end]
        level = t.level[target]
        ahead = np.unique(level)
        moved = np.zeros(t.num_levels, np.int64)  # from a place in the row to one among the levels ahead
        moved[ahead] = np.cumsum(t.level_begin[ahead + 1] - t.level_begin[ahead]) - t.level_begin[ahead + 1]
        segment = np.repeat(np.arange(last - first), counts[first:last])
        of_node, places = (torch.from_numpy(x).to(device) for x in (segment, target + moved[level]))
        widest = int(counts[first:last].max(initial=0))
        levels.append(Level(slice(first, last), slice(begin, end), of_node, tuple(ahead.tolist()), places, widest))
    arrays = (g.base, g.target, g.arc_begin, np.arange(t.batch), t.example, np.repeat(t.example, counts))
    base, target_, arc_begin, start, example, of_arc = (torch.from_numpy(x).to(device) for x in arrays)
    return Plan(levels, base, target_, arc_begin, int(counts.max(initial=0)), start, example, of_arc)


def arcs_of(w: Weighted, p: Plan) -> Tensor:
    """The score of each arc, (A,), in the precision that sums are made in."""
    scores = wide(w.scores)[p.base]
    return scores + _constant(w.constant, scores) if len(w.constant) else scores


def final_of(w: Weighted) -> Tensor:
    """The score of ending in each node, (N,)."""
    return _constant(w.final, wide(w.scores[:0]))


def _constant(x: Floats, like: Tensor) -> Tensor:
    return torch.from_numpy(x).to(like)


def logsumexp(x: Tensor, segment: Tensor, final: Tensor) -> Tensor:
    """log of exp(final) and of the sum of exp(x) in each segment; -inf, with zero gradient, where all is -inf."""
    top = final.detach().scatter_reduce(0, segment, x.detach(), "amax")
    top = torch.where(torch.isfinite(top), top, 0)
    total = (final - top).exp().index_add(0, segment, (x - top[segment]).exp())
    positive = total > 0
    return torch.where(positive, torch.where(positive, total, 1).log() + top, -math.inf)


def amax(x: Tensor, segment: Tensor, final: Tensor) -> Tensor:
    """The largest of final and of x in each segment."""
    return final.scatter_reduce(0, segment, x, "amax")


def backward(p: Plan, arcs: Tensor, final: Tensor, combine: Combine) -> list[Tensor]:
    """Every level's sum (logsumexp) or maximum (amax) over the ways to end."""
    result = [final[level.nodes] for level in p.levels]
    for d in range(len(p.levels) - 1, -1, -1):
        level = p.levels[d]
        if level.ahead:
            ahead = torch.cat([result[i] for i in level.ahead]) if len(level.ahead) > 1 else result[level.ahead[0]]
            result[d] = combine(arcs[level.arcs] + ahead[level.places], level.segment, result[d])
    return result


def log_partition(w: Weighted) -> Tensor:
    """log Z, (B,)."""
    p = plan_of(w.topology, w.scores.device)
    return backward(p, arcs_of(w, p), final_of(w), logsumexp)[0].to(w.scores.dtype)


def shares(w: Weighted, p: Plan, create_graph: bool) -> tuple[Tensor, Tensor]:
    """How probable each arc (A,) and each end (N,) is: the gradient of log Z; 0 where there is no path."""
    create_graph = create_graph and w.scores.requires_grad
    with torch.enable_grad():
        arcs, final = arcs_of(w, p), final_of(w).requires_grad_()
        arcs = arcs if create_graph else arcs.detach().requires_grad_()
        value = backward(p, arcs, final, logsumexp)[0]
        value = torch.where(value > -math.inf, value, 0)
        found = torch.autograd.grad(value.sum(), (arcs, final), create_graph=create_graph, allow_unused=True)
    in_arcs, in_final = (torch.zeros_like(x) if g is None else g for g, x in zip(found, (arcs, final), strict=True))
    return in_arcs, in_final


def marginals(w: Weighted) -> Tensor:
    """The probability of each arc, (sum n_b,)."""
    p = plan_of(w.topology, w.scores.device)
    found, _ = shares(w, p, torch.is_grad_enabled())
    return torch.zeros_like(w.scores).index_add(0, p.base, found.to(w.scores.dtype))


def expectation(w: Weighted, f: Weighted) -> Tensor:
    """E[score of a path under f], the path drawn under w, of one topology; what has probability 0 adds nothing. (B,)"""
    p = plan_of(w.topology, w.scores.device)
    in_arcs, in_final = shares(w, p, create_graph=torch.is_grad_enabled())
    total = in_arcs.new_zeros(w.topology.batch)
    impossible = torch.zeros_like(total, dtype=torch.bool)
    for share, value, example in (
        (in_arcs, arcs_of(f, p), p.example_of_arc),
        (in_final, final_of(f), p.example),
    ):
        outside = (share > 0) & value.isneginf()
        impossible[example[outside]] = True
        total = total.index_add(0, example, share * torch.where((share > 0) & ~outside, value, 0))
    return torch.where(impossible, -math.inf, total).to(w.scores.dtype)


def completions(w: Weighted) -> Floats:
    """The best score of a way to end from each node, (N,)."""
    p = plan_of(w.topology, w.scores.device)
    best: Floats = torch.cat(backward(p, arcs_of(w, p), final_of(w), amax)).cpu().numpy()
    return best


def leaving(p: Plan, nodes: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The arcs of nodes (...), (..., width), and which of these are there."""
    arcs = p.arc_begin[nodes][..., None] + torch.arange(width, device=nodes.device)
    inside = arcs < p.arc_begin[nodes + 1][..., None]
    return torch.where(inside, arcs, 0), inside


class Walk(NamedTuple):
    """Paths on their way: the nodes they are in, and whether they go on."""

    nodes: Tensor
    going: Tensor

    def options(self, p: Plan, arcs: Tensor, final: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """The value of ending here, which comes first, and of each arc, (..., 1 + most_arcs); and these arcs."""
        place, inside = leaving(p, self.nodes, p.most_arcs)
        values = torch.where(inside, arcs[place] + beta[p.target[place]], -math.inf)
        return torch.cat([final[self.nodes][..., None], values], -1), place

    def take(self, p: Plan, chosen: Tensor, place: Tensor) -> tuple[Tensor, "Walk"]:
        """The scores that these choices use, -1 where a path has ended, and the paths after them."""
        going = self.going & (chosen > 0)
        arc = place.gather(-1, (chosen - 1).clamp(min=0)[..., None])[..., 0]
        return torch.where(going, p.base[arc], -1), Walk(torch.where(going, p.target[arc], self.nodes), going)


def _stacked(steps: list[Tensor], like: Tensor, length: int) -> Tensor:
    """Steps side by side, and -1 up to a length."""
    paths = like.new_full((*like.shape, length), -1, dtype=torch.int64)
    for t, step in enumerate(steps):
        paths[..., t] = step
    return paths


def argmax(w: Weighted) -> tuple[Tensor, Tensor]:
    """The scores that the best path uses (B, L), -1 after its end, and whether there is any (B,)."""
    p, length = plan_of(w.topology, w.scores.device), w.topology.num_levels - 1
    arcs, final = arcs_of(w, p), final_of(w)
    best = torch.cat(backward(p, arcs, final, amax))
    exists, steps = best[p.start] > -math.inf, []
    walk = Walk(p.start, exists)
    for _ in range(length if p.most_arcs else 0):
        values, place = walk.options(p, arcs, final, best)
        first = (values == values.amax(-1, keepdim=True)).int().argmax(-1)
        step, walk = walk.take(p, first, place)
        steps.append(step)
    return _stacked(steps, p.start, length), exists


def topk(w: Weighted, k: int) -> tuple[Tensor, Tensor]:
    """The scores that the k best paths use (B, k, L), -1 after an end, and whether there are so many (B, k)."""
    p, length = plan_of(w.topology, w.scores.device), w.topology.num_levels - 1
    arcs, final = arcs_of(w, p), final_of(w)
    best = final.new_full((len(final), k), -math.inf)
    best[:, 0] = final
    via = torch.zeros(len(final), k, dtype=torch.int64, device=final.device)
    for level in reversed(p.levels):
        if level.ahead:
            here = slice(level.nodes.start, level.nodes.stop)
            place, inside = leaving(p, torch.arange(here.start, here.stop, device=final.device), level.most_arcs)
            values = torch.where(inside[:, :, None], arcs[place][:, :, None] + best[p.target[place]], -math.inf)
            values = torch.cat([best[here], values.flatten(1)], 1)  # the k ways to end here: one of them, or none
            found, order = values.sort(dim=1, descending=True, stable=True)
            best[here], via[here] = found[:, :k], order[:, :k]
    rank = torch.arange(k, device=final.device).expand(w.topology.batch, k)
    exists, steps = best[p.start] > -math.inf, []
    nodes, going = p.start[:, None].expand_as(rank), exists
    for _ in range(length if p.most_arcs else 0):
        choice = via[nodes, rank]
        going = going & (choice >= k)
        arc = torch.where(going, p.arc_begin[nodes] + choice // k - 1, 0)
        steps.append(torch.where(going, p.base[arc], -1))
        nodes, rank = torch.where(going, p.target[arc], nodes), torch.where(going, choice % k, rank)
    return _stacked(steps, rank, length), exists


def sample(w: Weighted, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The scores that paths drawn at uniforms (n, B, L) use, -1 after an end, and whether there is any (B,)."""
    p, length = plan_of(w.topology, w.scores.device), uniforms.shape[2]
    arcs, final = arcs_of(w, p), final_of(w)
    beta = torch.cat(backward(p, arcs, final, logsumexp))
    exists, steps = beta[p.start] > -math.inf, []
    walk = Walk(p.start.expand(uniforms.shape[:2]), exists.expand(uniforms.shape[:2]))
    for t in range(length if p.most_arcs else 0):
        values, place = walk.options(p, arcs, final, beta)  # (n, B, 1 + most_arcs)
        probability = values.softmax(-1).double()
        before = probability.cumsum(-1) - probability
        taken = (probability > 0) & (before <= uniforms[:, :, t, None])
        chosen = torch.where(taken, torch.arange(taken.shape[-1], device=taken.device), 0).amax(-1)
        step, walk = walk.take(p, chosen, place)
        steps.append(step)
    return _stacked(steps, walk.nodes, length), exists


def best(w: Weighted, k: int) -> Found:
    """The scores that the k best paths use (k, B, L), -1 after an end, and whether there are so many (k, B)."""
    if k == 1:
        paths, exists = argmax(w)
        return Found(paths[None], exists[None])
    paths, exists = topk(w, k)
    return Found(paths.transpose(0, 1), exists.T)


def draw(w: Weighted, n: int, generator: torch.Generator | None) -> Found:
    """The scores that n paths use (n, B, L), drawn with probability exp(score) / Z, and whether there is any (B,)."""
    shape = (n, w.topology.batch, w.topology.num_levels - 1)
    return Found(*sample(w, torch.rand(shape, generator=generator, device=w.scores.device, dtype=torch.float64)))
