"""Sums of factor graphs in tensor operations: any device, derivatives of any order.

The elimination of `kernels.elimination`, a bucket of all examples with the same graph at a time, in float64.
"""

import math

import numpy as np
import torch
from torch import Tensor

from structloss.kernels.elimination import Plan
from structloss.structures.factor_graph.native_engine import Plans
from structloss.structures.factor_graph.parts import Ints, Parts
from structloss.structures.tensors import logsumexp, wide


def _eliminated(p: Parts, group: Ints, plan: Plan) -> Tensor:
    """log Z, (n,), of the examples of a group."""
    g, device = p.graph, p.scores.device
    sizes, slots, scope = p.topology.local(int(group[0]))

    def at(starts: Ints, over: list[int]) -> Tensor:
        extents = [int(sizes[u]) for u in over]
        places = torch.from_numpy(starts[:, None] + np.arange(math.prod(extents)))
        return p.scores[places.to(device)].reshape(len(group), *extents)

    messages: dict[int, tuple[list[int], Tensor]] = {}  # what each is about, and (n, ...)
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
                items.append(messages.pop(-1 - item))
        value = p.scores.new_zeros(1)
        for over, table in items:
            table = table.permute(0, *(1 + np.argsort([axis[u] for u in over])).tolist())
            value = value + table.reshape(len(group), *(int(sizes[u]) if u in over else 1 for u in axis))
        message = logsumexp(value, value.dim() - 1)
        if separator:
            messages[i] = separator, message
        else:
            total = total + message
    return torch.where(total > -math.inf, total, -math.inf)  # with zero gradient


def _total(p: Parts, plans: Plans) -> Tensor:
    value = p.scores.new_zeros(p.batch)
    for group, plan in plans:
        value = value.index_put((torch.from_numpy(group).to(value.device),), _eliminated(p, group, plan))
    return value


def log_partition(p: Parts, plans: Plans) -> Tensor:
    """log Z, (B,)."""
    return _total(p.with_scores(wide(p.scores)), plans).to(p.scores.dtype)


def expectation(p: Parts, f: Parts, plans: Plans) -> Tensor:
    """E[score under f], of what is drawn under p: each cell's probability times its score. (B,)"""
    recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        x = wide(p.scores) if recorded and p.scores.requires_grad else wide(p.scores.detach()).requires_grad_()
        value = _total(p.with_scores(x), plans)
        value = torch.where(value > -math.inf, value, 0).sum() + x[:0].sum()  # recorded even where nothing is there
        (shares,) = torch.autograd.grad(value, x, create_graph=recorded)
    worth = wide(f.scores)
    outside = (shares > 0) & worth.isneginf()
    total = p.summed(shares * torch.where((shares == 0) | outside, 0, worth))
    impossible = p.summed(outside.double()) > 0
    return torch.where(impossible, -math.inf, total).to(p.scores.dtype)  # with zero gradient
