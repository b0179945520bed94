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
from structloss.structures.factor_graph.native_engine import Plans
from structloss.structures.factor_graph.parts import Parts
from structloss.structures.rows import Ints
from structloss.structures.tensors import amax, drawn, expectation_of, logsumexp, wide

Sum = Callable[[Tensor, int], Tensor]


def _eliminated(p: Parts, group: Ints, plan: Plan, add: Sum) -> tuple[Tensor, list[Tensor]]:
    """The sum over all assignments, (n,), for the examples of a group, and value(s, k), (n, ...), of each bucket."""
    g, scores = p.graph, p.scores
    variables, factors = g.variables[group, None], g.factors[group, None]
    messages: list[Tensor] = []
    values: list[Tensor] = []
    total = scores.new_zeros(len(group))
    for i, v in enumerate(plan.order.tolist()):
        first, last = plan.items[i], plan.items[i + 1]
        extents = np.append(plan.extents[plan.dims[i] : plan.dims[i + 1]], plan.sizes[i])
        value = scores[_on(scores, g.labels[variables + v] + np.arange(extents[-1]))]
        value = value.reshape(len(group), *np.ones_like(extents[1:]), -1)
        for item, strides in zip(plan.item[first:last].tolist(), plan.strides[first:last], strict=True):
            known = np.where(strides[: len(extents)] > 0, extents, 1).tolist()
            cells = np.tensordot(strides[: len(extents)], np.indices(known), 1).ravel()
            if item >= 0:
                table = scores[_on(scores, g.cells[factors + item] + cells)]
            else:
                table = messages[-1 - item][:, _on(scores, cells)]
            value = value + table.reshape(len(group), *known)
        values.append(value)
        messages.append(add(value, value.dim() - 1).reshape(len(group), -1))
        total = total + messages[-1][:, 0] if len(extents) == 1 else total
    return torch.where(total > -math.inf, total, -math.inf), values  # with zero gradient


def _on(like: Tensor, places: Ints) -> Tensor:
    return torch.from_numpy(places).to(like.device)


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

    def value(scores: list[Tensor]) -> Tensor:
        return _total(p.with_scores(scores[0]), plans, logsumexp)

    owner = torch.from_numpy(p.topology.owner).to(p.scores.device)
    return expectation_of(value, [p.scores], [f.scores], owner, p.batch)


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
        total, values = _eliminated(p, group, plan, logsumexp)
        exists[group] = (total > -math.inf).cpu().numpy()
        y = torch.zeros(len(uniforms), len(group), len(values), dtype=torch.int64, device=uniforms.device)
        rows, places = torch.arange(len(group), device=y.device), torch.from_numpy(p.graph.variables[group])
        for i, v in reversed([*enumerate(plan.order.tolist())]):
            separator = plan.separator[plan.dims[i] : plan.dims[i + 1]].tolist()
            y[..., v] = drawn(values[i][(rows, *(y[..., u] for u in separator))], uniforms[:, places + v])
        labels[:, places[:, None] + torch.arange(len(values))] = y.cpu()
    return labels.numpy(), exists
