"""The values that a loss can take, and the best output at each of them."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.levels import Machines
from structloss.kernels.machines import fill_levels
from structloss.structures.base import Found, Strata
from structloss.structures.rows import Floats

_MOST_VALUES = 1 << 12  # which the numbers of values in `following` have room for
_MOST_NUMBERS = 1 << 26  # that a search may keep, 512 MiB


def best_at_each(losses: Iterable[Floats], like: Tensor, best: Callable[[Floats], Found]) -> Strata:
    """The best outputs at each value of a loss, from all that it can come to in each example: one search for each.

    best(values (B,)) finds the outputs whose losses are these, up to 1e-8; NaN where an example has no value left.
    Losses that differ by rounding only are one value; inf is none.
    """
    ascending = [np.unique(x[np.isfinite(x)]) for x in losses]
    own = [x[np.diff(x, prepend=-np.inf) > 1e-8] for x in ascending]
    values = np.full((max([1, *map(len, own)]), len(own)), np.nan)
    for b, x in enumerate(own):
        values[: len(x), b] = x
    choices, exists = (torch.cat(x) for x in zip(*map(best, values), strict=True))
    return Strata(torch.from_numpy(np.nan_to_num(values)).to(like), choices, exists)


def levels_of(costs: Tensor, lengths: Tensor, numbers: int, what: str) -> tuple[Floats, NDArray[np.int16]]:
    """The values (V, B) of a loss of these costs, see `sums_of`; and (B, L, V, K) which is left after a choice, or -1.

    What is searched takes so many numbers for each value: they have a bound.
    """
    losses, m = sums_of(costs, lengths, max(2, min(_MOST_VALUES, _MOST_NUMBERS // numbers)), what)
    following = np.full((*costs.shape[:2], len(losses), costs.shape[2]), -1, np.int16)
    for b, level in np.ndindex(following.shape[:2]):
        size = int(m.sizes[b, level])
        arcs = m.arc_begin[b, level] + m.class_of[b, level] * size + np.arange(size)[:, None]
        following[b, level, :size] = np.where(m.weight[arcs] == 0.0, m.next_state[arcs], -1)
    return losses, following


def sums_of(costs: Tensor, lengths: Tensor, most: int, what: str) -> tuple[Floats, Machines]:
    """The values (V, B) that costs (B, L, K) sum up to, one choice at each of lengths (B,) positions, ascending.

    And machines, whose states at a position are what the costs from there on can sum up to; all of them start. Choices
    of equal cost share a class; what cannot be weighs -inf. Sums that differ by rounding only are one. With n different
    sums in all, this takes B * L * n memory; raise where they are more than `most`.
    """
    array, on_cpu = costs.detach().double().cpu().contiguous().numpy(), lengths.cpu().numpy()
    batch, positions, choices = array.shape
    room, classes = min(positions + 1, most), min(2, choices)
    while True:
        sizes, values = np.zeros((batch, positions + 1), np.int64), np.zeros((batch, room))
        cost_class = np.zeros((batch, max(1, positions), choices), np.int64)
        next_state = np.full((batch, positions, classes * room), -1, np.int32)
        needed = fill_levels(array, on_cpu, classes, sizes, values, cost_class, next_state)
        if needed == 0:
            begin = (np.arange(batch)[:, None] * positions + np.arange(positions + 1)) * classes * room
            flat, ends = next_state.reshape(-1), np.zeros((batch, 1))
            weight, count = np.where(flat < 0, -np.inf, 0.0), np.full(batch, classes)
            machines = Machines(cost_class, count, np.maximum(flat, 0), weight, begin, sizes, ends)
            return values[:, : int(sizes.max(initial=1))].T, machines
        if needed > most:
            raise ValueError(
                f"loss: its costs sum to more than {most} different values over {positions} {what}, too many to search "
                "one by one; wanted costs that are multiples of one number (rounded costs, for instance), and fewer or "
                "shorter examples"
            )
        room, classes = min(most, max(room, 2 * needed)), choices
