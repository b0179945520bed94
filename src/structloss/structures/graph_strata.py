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


def _outputs(one: "FactorGraph", costs: list[NDArray[np.float64]], like: Tensor) -> tuple[NDArray[np.float64], Tensor]:
    """The values that the loss can take, and the best output at each, (V, N); -1 where there is none.

    The loss so far becomes a variable after each variable; of the last one only one label at a time is allowed.
    """
    sums, steps = _levels(costs)
    before = None
    for v, step in enumerate(steps):
        after = one.variable(like.new_zeros(1, len(sums[v + 1])))
        leads = torch.from_numpy(step)[..., None] == torch.arange(len(sums[v + 1]))
        table = torch.where(leads, 0.0, -math.inf).to(like)
        if before is None:
            one.factor((v, after), table)
        else:
            one.factor((before, v, after), table[None])
        before = after
    found = []
    for i in range(len(sums[-1])):
        reference = torch.full((1, len(costs) + len(steps)), -100)
        reference[0, -1] = i
        found.append(one.given(reference).argmax()[0, : len(costs)])
    return sums[-1], torch.stack(found)


def strata(costs: Tensor, sizes: Sequence[NDArray[np.int64]], example: "Callable[[int], FactorGraph]") -> Strata:
    """With costs (B, N, K); sizes[b] are the numbers of labels of example b, and example(b) is its graph."""
    batch, most = costs.shape[:2]
    found: list[tuple[NDArray[np.float64], Tensor]] = []
    for b in range(batch):
        own = [costs[b, v, :size].double().cpu().numpy() for v, size in enumerate(sizes[b].tolist())]
        found.append(_outputs(example(b), own, costs) if own else (np.zeros(1), torch.empty(1, 0, dtype=torch.int64)))
    widest = max(len(values) for values, _ in found)
    losses = costs.new_zeros(batch, widest)
    outputs = torch.full((batch, widest, most), -1, device=costs.device)
    exists = torch.zeros(batch, widest, dtype=torch.bool, device=costs.device)
    for b, (values, labels) in enumerate(found):
        losses[b, : len(values)] = torch.from_numpy(values)
        outputs[b, : len(values), : len(sizes[b])] = labels
        exists[b, : len(values)] = (labels >= 0).all(1).to(costs.device)
    return Strata(losses, outputs, exists)
