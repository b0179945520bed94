"""Sums of factor graphs in tensor operations: any device, derivatives of any order.

The elimination of `kernels.elimination`, a bucket of all examples with the same graph at a time, in float64.
"""

import math

import numpy as np
import torch
from torch import Tensor

from structloss.kernels.elimination import Plan
from structloss.structures import tensors
from structloss.structures.factor_graph.native_engine import Plans
from structloss.structures.factor_graph.parts import Ints, Parts
from structloss.structures.tensors import logsumexp, wide


def _eliminated(p: Parts, group: Ints, plan: Plan) -> Tensor:
    """log Z, (n,), of the examples of a group."""
    g, scores = p.graph, p.scores
    variables, factors = g.variables[group, None], g.factors[group, None]
    messages: list[Tensor] = []
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
        messages.append(logsumexp(value, -1).reshape(len(group), -1))
        total = total + messages[-1][:, 0] if len(extents) == 1 else total
    return torch.where(total > -math.inf, total, -math.inf)  # with zero gradient


def _on(like: Tensor, places: Ints) -> Tensor:
    return torch.from_numpy(places).to(like.device)


def _total(p: Parts, plans: Plans) -> Tensor:
    value = p.scores.new_zeros(p.batch)
    for group, plan in plans:
        value = value.index_put((torch.from_numpy(group).to(value.device),), _eliminated(p, group, plan))
    return value


def log_partition(p: Parts, plans: Plans) -> Tensor:
    """log Z, (B,)."""
    return _total(p.with_scores(wide(p.scores)), plans).to(p.scores.dtype)


def expectation(p: Parts, f: Parts, plans: Plans) -> Tensor:
    """E[score under f], of what is drawn under p. (B,)"""
    mine, theirs, owner = wide(p.scores), wide(f.scores), torch.from_numpy(p.topology.owner).to(p.scores.device)

    def value(scores: list[Tensor]) -> Tensor:
        return _total(p.with_scores(scores[0]), plans)

    return tensors.expectation(value, [(mine, theirs, owner)], mine.new_zeros(p.batch)).to(p.scores.dtype)
