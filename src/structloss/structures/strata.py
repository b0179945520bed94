"""The values that a loss which is a sum of costs can take."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.strata import fill_levels


class Sums(NamedTuple):
    """What the costs from each position on can sum to, its values: see `kernels.strata.fill_levels`.

    V is the room for values, L the number of positions.
    """

    values: NDArray[np.float64]  # (B, V), those of the first position, ascending
    sizes: NDArray[np.int64]  # (B, L + 1), how many each position has
    cost_class: NDArray[np.int64]  # (B, L, K), choices of equal cost share a class
    next_state: NDArray[np.int32]  # (B, L, C * V), entry c * size + v: the value after a choice of class c, or -1


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
