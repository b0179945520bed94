"""Factor graphs in tensor operations: any device, derivatives of any order.

The elimination of `kernels.elimination`, a bucket of all examples with the same graph at a time, in float64.
"""

import math

import numpy as np
import torch
from torch import Tensor

from structloss.kernels.elimination import Plan
from structloss.structures.factor_graph.parts import Ints, Parts
from structloss.structures.tensors import logsumexp, wide

Plans = list[tuple[Ints, Plan]]


def _group(p: Parts, group: Ints, plan: Plan) -> Tensor:
    """log Z (n,) of the examples of a group."""
    g = p.graph
    device = p.unary.device

    def at(scores: Tensor, starts: Ints, size: int) -> Tensor:
        places = torch.from_numpy(starts[:, None] + np.arange(size)).to(device)
        return scores[places]

    messages: dict[int, Tensor] = {}
    total = p.unary.new_zeros(len(group))
    sizes, slots, scope = p.topology.local(int(group[0]))
    for i, v in enumerate(plan.order.tolist()):
        separator = plan.separator[plan.dims[i] : plan.dims[i + 1]].tolist()
        axis = {u: d + 1 for d, u in enumerate((*separator, v))}
        value = at(p.unary, g.labels[g.variables[group] + v], int(sizes[v]))
        value = value.reshape(len(group), *(1,) * len(separator), -1)
        for item in plan.item[plan.items[i] : plan.items[i + 1]].tolist():
            if item >= 0:
                over = scope[slots[item] : slots[item + 1]].tolist()
                table = at(p.tables, g.cells[g.factors[group] + item], math.prod(int(sizes[u]) for u in over))
                table = table.reshape(len(group), *(int(sizes[u]) for u in over))
            else:
                j = -1 - item
                over, table = plan.separator[plan.dims[j] : plan.dims[j + 1]].tolist(), messages.pop(j)
            table = table.permute(0, *(1 + np.argsort([axis[u] for u in over])).tolist())
            extents = [1] * (len(separator) + 1)
            for u in over:
                extents[axis[u] - 1] = int(sizes[u])
            value = value + table.reshape(len(group), *extents)
        message = logsumexp(value, value.dim() - 1)
        if separator:
            messages[i] = message
        else:
            total = total + message
    return torch.where(total > -math.inf, total, -math.inf)  # with zero gradient


def _log_partition(p: Parts, plans: Plans) -> Tensor:
    value = p.unary.new_zeros(p.batch)
    for group, plan in plans:
        value = value.index_put((torch.from_numpy(group).to(value.device),), _group(p, group, plan))
    return value


def log_partition(p: Parts, plans: Plans) -> Tensor:
    """log Z, (B,)."""
    return _log_partition(p.with_scores(wide(p.unary), wide(p.tables)), plans).to(p.unary.dtype)


def expectation(p: Parts, f: Parts, plans: Plans) -> Tensor:
    """E[score under f], of what is drawn under p: each cell's probability times its score. (B,)"""
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        scores = [
            wide(x) if recorded and x.requires_grad else wide(x.detach()).requires_grad_() for x in (p.unary, p.tables)
        ]
        value = _log_partition(p.with_scores(*scores), plans)
        value = torch.where(value > -math.inf, value, 0).sum() + 0 * scores[0].sum()  # even where nothing is there
        found = torch.autograd.grad(value, scores, create_graph=recorded, allow_unused=True)
    shares = [torch.zeros_like(x) if d is None else d for d, x in zip(found, scores, strict=True)]
    worth = wide(f.unary), wide(f.tables)
    outside = [(x > 0) & y.isneginf() for x, y in zip(shares, worth, strict=True)]
    weighed = (x * torch.where((x == 0) | out, 0, y) for x, y, out in zip(shares, worth, outside, strict=True))
    total = p.summed(*weighed)
    impossible = p.summed(*(out.to(total.dtype) for out in outside)) > 0
    return torch.where(impossible, -math.inf, total).to(p.unary.dtype)  # with zero gradient
