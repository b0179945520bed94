"""Factor graphs in tensor operations: any device, derivatives of any order.

The elimination of `kernels.elimination`, a bucket of all examples with the same graph at a time, in float64.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.elimination import Plan
from structloss.structures import tensors
from structloss.structures.factor_graph.native_engine import Plans
from structloss.structures.factor_graph.parts import Ints, Parts
from structloss.structures.tensors import amax, drawn, logsumexp, wide

Bucket = tuple[int, list[int], Tensor]  # a variable, its separator, and value(s, k), (n, ...) for n examples
Sum = Callable[[Tensor, int], Tensor]


def _eliminated(p: Parts, group: Ints, plan: Plan, add: Sum) -> tuple[Tensor, list[Bucket]]:
    """The sum over all assignments, (n,), for the examples of a group, and the buckets on the way to it."""
    g, device = p.graph, p.scores.device
    sizes, slots, scope = p.topology.local(int(group[0]))

    def at(starts: Ints, over: list[int]) -> Tensor:
        extents = [int(sizes[u]) for u in over]
        places = torch.from_numpy(starts[:, None] + np.arange(math.prod(extents)))
        return p.scores[places.to(device)].reshape(len(group), *extents)

    messages: list[Tensor] = []
    buckets: list[Bucket] = []
    total = p.scores.new_zeros(len(group))
    for i, v in enumerate(plan.order.tolist()):
        separator = plan.separator[plan.dims[i] : plan.dims[i + 1]].tolist()
        axis = {u: d + 1 for d, u in enumerate((*separator, v))}
        items = [([v], at(g.labels[g.variables[group] + v], [v]))]
        for item in plan.item[plan.items[i] : plan.items[i + 1]].tolist():
            if item >= 0:
                over = scope[slots[item] : slots[item + 1]].tolist()
                items.append((over, at(g.cells[g.factors[group] + item], over)))
            else:
                items.append((buckets[-1 - item][1], messages[-1 - item]))
        value = p.scores.new_zeros(1)
        for over, table in items:
            table = table.permute(0, *(1 + np.argsort([axis[u] for u in over])).tolist())
            value = value + table.reshape(len(group), *(int(sizes[u]) if u in over else 1 for u in axis))
        buckets.append((v, separator, value))
        messages.append(add(value, value.dim() - 1))
        total = total if separator else total + messages[-1]
    return torch.where(total > -math.inf, total, -math.inf), buckets  # with zero gradient


def _total(p: Parts, plans: Plans, add: Sum) -> Tensor:
    value = p.scores.new_zeros(p.batch)
    for group, plan in plans:
        value = value.index_put((torch.from_numpy(group).to(value.device),), _eliminated(p, group, plan, add)[0])
    return value


def log_partition(p: Parts, plans: Plans) -> Tensor:
    """log Z, (B,)."""
    return _total(p.with_scores(wide(p.scores)), plans, logsumexp).to(p.scores.dtype)


def expectation(p: Parts, f: Parts, plans: Plans) -> Tensor:
    """E[score under f], of what is drawn under p. (B,)"""
    mine, theirs, owner = wide(p.scores), wide(f.scores), torch.from_numpy(p.topology.owner).to(p.scores.device)

    def value(scores: list[Tensor]) -> Tensor:
        return _total(p.with_scores(scores[0]), plans, logsumexp)

    return tensors.expectation(value, [(mine, theirs, owner)], mine.new_zeros(p.batch)).to(p.scores.dtype)


def argmax(p: Parts, plans: Plans) -> tuple[Ints, NDArray[np.bool_]]:
    """The labels (V,) of the best assignments, -1 where there is none; whether there is one (B,).

    The gradient of the maximum is positive where some best assignment is, as ties share it. While an example has
    several, the first variable in which they differ is fixed to its smallest label: one elimination for each.
    """
    t, begin = p.topology, p.graph.labels[:-1]
    variable = np.repeat(np.arange(len(begin)), t.sizes)
    scores = wide(p.scores.detach()).clone()
    while True:
        with torch.enable_grad():
            x = scores.clone().requires_grad_()
            value = _total(p.with_scores(x), plans, amax)
            (shares,) = torch.autograd.grad(torch.where(value > -math.inf, value, 0).sum() + x[:0].sum(), x)
        best = np.flatnonzero(shares[: len(variable)].cpu().numpy() > 0)[::-1]
        labels = np.full(len(begin), -1)
        labels[variable[best]] = best - begin[variable[best]]  # the smallest comes last, and stays
        several = (np.bincount(variable[best], minlength=len(begin) + 1) > 1)[t.variable_at]
        if not several.any():
            return labels, (value > -math.inf).cpu().numpy()
        first = np.isin(variable, t.variable_at[several & (several.cumsum(1) == 1)])
        struck = first & (np.arange(len(variable)) != (begin + labels)[variable])
        scores[torch.from_numpy(struck.nonzero()[0]).to(scores.device)] = -math.inf


def sample(p: Parts, plans: Plans, uniforms: Tensor) -> tuple[Ints, NDArray[np.bool_]]:
    """The labels (n, V) of assignments drawn at uniforms (n, V), by inverting P(k | s); whether there is any (B,)."""
    labels, exists = torch.full(uniforms.shape, -1), np.empty(p.batch, bool)
    p = p.with_scores(wide(p.scores.detach()))
    for group, plan in plans:
        total, buckets = _eliminated(p, group, plan, logsumexp)
        exists[group] = (total > -math.inf).cpu().numpy()
        y = torch.zeros(len(uniforms), len(group), len(buckets), dtype=torch.int64, device=uniforms.device)
        rows, places = torch.arange(len(group), device=y.device), torch.from_numpy(p.graph.variables[group])
        for v, separator, value in reversed(buckets):
            y[..., v] = drawn(value[(rows, *(y[..., u] for u in separator))], uniforms[:, places + v])
        labels[:, places[:, None] + torch.arange(len(buckets))] = y.cpu()
    return labels.numpy(), exists
