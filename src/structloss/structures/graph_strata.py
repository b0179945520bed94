"""The best output of a factor graph at each value of a loss that is a sum over variables."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.structures.base import Strata

if TYPE_CHECKING:
    from structloss.structures.factor_graph import FactorGraph


def _levels(costs: list[NDArray[np.float64]]) -> tuple[list[NDArray[np.float64]], list[NDArray[np.int64]]]:
    """The sums that are possible after each variable, and where each (sum so far, label) leads, (S, K)."""
    sums, steps = [np.zeros(1)], []
    for cost in costs:
        reached = sums[-1][:, None] + cost
        values, places = np.unique(reached.round(9), return_inverse=True)
        sums.append(values)
        steps.append(places.reshape(reached.shape))
    return sums, steps


def strata(
    costs: Tensor, sizes: Sequence[NDArray[np.int64]], example: "Callable[[int, int, float], FactorGraph]", sign: float
) -> Strata:
    """With costs (B, N, K): the loss so far is a variable after each variable, and its last value is given.

    sizes[b] are the numbers of labels of example b, and example(b, n, sign) is its graph n times.
    """
    batch, most = costs.shape[:2]
    found: list[tuple[NDArray[np.float64], Tensor, Tensor]] = []
    for b in range(batch):
        if not len(sizes[b]):
            found.append((np.zeros(1), torch.empty(1, 0, dtype=torch.int64), torch.ones(1, dtype=torch.bool)))
            continue
        own = [costs[b, v, :size].double().cpu().numpy() for v, size in enumerate(sizes[b].tolist())]
        sums, steps = _levels(own)
        values = sums[-1]
        one = example(b, len(values), sign)
        like = costs.new_zeros(len(values), 1)
        before = None
        for v, step in enumerate(steps):
            last = v == len(steps) - 1
            scores = like.expand(-1, len(sums[v + 1]))
            if last:
                scores = torch.where(torch.eye(len(values), dtype=torch.bool, device=like.device), 0.0, -math.inf)
            after = one.variable(scores.to(like))
            leads = torch.from_numpy(step)[..., None] == torch.arange(len(sums[v + 1]))
            table = torch.where(leads, 0.0, -math.inf).to(like)
            scope = [v, after] if before is None else [before, v, after]
            table = table[0] if before is None else table
            one.factor(scope, table.expand(len(values), *table.shape))
            before = after
        labels = one.argmax()
        found.append((values, labels, labels[:, 0] >= 0))
    widest = max(len(values) for values, _, _ in found)
    losses = costs.new_zeros(batch, widest)
    outputs = torch.full((batch, widest, most), -1, device=costs.device)
    there = torch.zeros(batch, widest, dtype=torch.bool, device=costs.device)
    for b, (values, labels, exists) in enumerate(found):
        count = len(sizes[b])
        losses[b, : len(values)] = torch.from_numpy(values)
        outputs[b, : len(values), :count] = labels[:, :count]
        there[b, : len(values)] = exists
    return Strata(losses, outputs, there)
