"""The strata of a loss: which values it can take, and the best output at each."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from structloss.kernels.levels import Machines
from structloss.structures.base import Found, Strata
from structloss.structures.chain.machines import Augmentation, MachineBatch, joint
from structloss.structures.chain.parts import Parts
from structloss.structures.strata import Floats, best_at_each, sums_of

_MOST_VALUES = 1 << 14

Search = Callable[[Parts, Machines], Found]


def local_strata(p: Parts, costs: Tensor, search: Search) -> Strata:
    """The best choices at each value of a loss that is a sum over positions of costs (B, T, K), by one search.

    Sums that differ by rounding only are one value. With n different values in all, this takes B * T * n memory.
    """
    most = max(_MOST_VALUES, costs.shape[1] + 1)
    values, sizes, cost_class, next_state = sums_of(costs, p.lengths, most, "positions")
    batch, positions, entries = next_state.shape
    classes = entries // values.shape[1]
    arc_begin = (np.arange(batch)[:, None] * positions + np.arange(positions + 1)) * entries
    flat = next_state.reshape(-1)
    weight = np.where(flat < 0, -np.inf, 0.0)
    # A state is what the costs to come add up to, and all of them start.
    machines = Machines(
        cost_class, np.full(batch, classes), np.maximum(flat, 0), weight, arc_begin, sizes, np.zeros((batch, 1))
    )
    losses = values[:, : int(sizes[:, 0].max(initial=1))].T
    return Strata(torch.from_numpy(losses).to(p.any_potential), *search(p, machines))


def machine_strata(p: Parts, batch: MachineBatch, search: Search) -> Strata:
    """The best choices at each value of absolute machines: one search for each."""
    both, theirs = joint(p.machine, Augmentation(batch, 1.0), p.no_machine)

    def best(values: Floats) -> Found:
        wanted = np.where(np.abs(theirs.final - values[:, None]) < 1e-8, 0.0, -np.inf)
        return search(p, both._replace(final=both.final + wanted))

    return best_at_each(theirs.final, p.any_potential, best)
