"""The values that a loss can take, and the best output at each of them."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.machines import fill_levels
from structloss.structures.base import Found, Strata

Floats = NDArray[np.float64]

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


class Sums(NamedTuple):
    """What the costs from each position on can sum to, its values: see `kernels.machines.fill_levels`.

    V is the room for values, L the number of positions.
    """

    values: Floats  # (B, V), those of the first position, ascending
    sizes: NDArray[np.int64]  # (B, L + 1), how many each position has
    cost_class: NDArray[np.int64]  # (B, L, K), choices of equal cost share a class
    next_state: NDArray[np.int32]  # (B, L, C * V), entry c * size + v: the value after a choice of class c, or -1

    def following(self) -> NDArray[np.int16]:
        """Which value of the next position is left of each value after each choice, or -1: (B, L, V, K)."""
        (batch, positions, _), choices = self.next_state.shape, self.cost_class.shape[2]
        found = np.full((batch, positions, int(self.sizes.max(initial=1)), choices), -1, np.int16)
        for b, level in np.ndindex(batch, positions):
            size = int(self.sizes[b, level])
            found[b, level, :size] = self.next_state[b, level][
                self.cost_class[b, level] * size + np.arange(size)[:, None]
            ]
        return found


def levels_of(costs: Tensor, lengths: Tensor, numbers: int, what: str) -> tuple[Floats, NDArray[np.int16]]:
    """The values (V, B) of a loss of these costs, see `sums_of`, ascending, and `following` of them.

    What is searched takes so many numbers for each value: they have a bound.
    """
    sums = sums_of(costs, lengths, max(2, min(_MOST_VALUES, _MOST_NUMBERS // numbers)), what)
    following = sums.following()
    return sums.values[:, : following.shape[2]].T, following


def sums_of(costs: Tensor, lengths: Tensor, most: int, what: str) -> Sums:
    """The sums of costs (B, L, K), one choice at each of lengths (B,) positions; raise where they are more than `most`.

    Those that differ by rounding only are one. With n different sums in all, this takes B * L * n memory.
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
            return Sums(values, sizes, cost_class, next_state)
        if needed > most:
            raise ValueError(
                f"loss: its costs sum to more than {most} different values over {positions} {what}, too many to search "
                "one by one; wanted costs that are multiples of one number (rounded costs, for instance), and fewer or "
                "shorter examples"
            )
        room, classes = min(most, max(room, 2 * needed)), choices
