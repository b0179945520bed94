"""The strata of a loss: which values it can take, and the best output at each."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.levels import Machines
from structloss.structures.chain.machines import Augmentation, MachineBatch, joint
from structloss.structures.chain.parts import Parts
from structloss.structures.strata import sums_of

_MOST_VALUES = 1 << 14


class Levels(NamedTuple):
    """A loss that is a sum of costs as machines: a state is what the costs to come add up to, and all of them start."""

    values: NDArray[np.float64]  # (B, V), the loss of each state of the first level, ascending
    machines: Machines


def strata_levels(costs: Tensor, lengths: Tensor) -> Levels:
    """The machines of a loss that is a sum over positions of costs (B, T, K).

    Sums that differ by rounding only are one value. With n different values in all, this takes B * T * n memory.
    """
    most = max(_MOST_VALUES, costs.shape[1] + 1)
    values, sizes, cost_class, next_state = sums_of(costs, lengths, most, "positions")
    batch, positions, entries = next_state.shape
    classes = entries // values.shape[1]
    arc_begin = (np.arange(batch)[:, None] * positions + np.arange(positions + 1)) * entries
    flat = next_state.reshape(-1)
    weight = np.where(flat < 0, -np.inf, 0.0)
    machines = Machines(
        cost_class, np.full(batch, classes), np.maximum(flat, 0), weight, arc_begin, sizes, np.zeros((batch, 1))
    )
    return Levels(values[:, : int(sizes[:, 0].max(initial=1))], machines)


def distinct(final: NDArray[np.float64]) -> NDArray[np.float64]:
    """The finite values, ascending; those that differ by rounding only are one."""
    finite = final[np.isfinite(final)]
    _, first = np.unique(np.round(finite, 9), return_index=True)
    return finite[first]


def machine_strata(
    p: Parts, batch: MachineBatch, search: Callable[[Parts, Machines], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor, Tensor]:
    """The losses (V, B) of absolute machines, the best choices (V, B, T) at each, and whether there are any (V, B).

    One search for each value.
    """
    both, theirs = joint(p.machine, Augmentation(batch, 1.0), p.no_machine)
    values = [distinct(final) for final in theirs.final]
    most = max([len(v) for v in values], default=1) or 1
    losses = np.zeros((most, len(values)))
    choices, exists = [], []
    for k in range(most):
        wanted = np.full(theirs.final.shape, -np.inf)
        for b, own in enumerate(values):
            if k < len(own):
                losses[k, b] = own[k]
                wanted[b, np.abs(theirs.final[b] - own[k]) < 1e-8] = 0.0
        labels, best = search(p, both._replace(final=both.final + wanted))
        choices.append(labels[:, 0])
        exists.append(best[:, 0] > -torch.inf)
    like = p.any_potential
    return torch.from_numpy(losses).to(like), torch.stack(choices), torch.stack(exists)
