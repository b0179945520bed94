"""The strata of a loss that is a sum over positions: which values it can take, and how they follow one another."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structloss.kernels.strata import fill_levels

_MOST_VALUES = 1 << 14


class Levels(NamedTuple):
    """What `kernels.chain_max.strata` runs on; values (B, V) are the loss of each stratum of level 0."""

    values: Tensor
    next_stratum: Tensor  # (B, T, V, C)
    cost_class: Tensor  # (B, T, K)
    sizes: Tensor  # (B, T + 1)


def strata_levels(costs: Tensor, lengths: Tensor) -> Levels:
    """The levels of costs (B, T, K), on the device of the costs.

    Sums that differ by rounding only are one value. With n different values in all, this takes B * T * n memory.
    """
    array, on_cpu = costs.detach().double().cpu().contiguous().numpy(), lengths.cpu().numpy()
    batch, positions, labels = array.shape
    strata, classes = positions + 1, min(2, labels)
    while True:
        sizes, values = np.zeros((batch, positions + 1), np.int64), np.zeros((batch, strata))
        cost_class = np.zeros((batch, positions, labels), np.int64)
        next_stratum = np.full((batch, positions, strata, classes), -1, np.int64)
        needed = fill_levels(array, on_cpu, sizes, values, cost_class, next_stratum)
        if needed == 0:
            break
        if needed > _MOST_VALUES:
            raise ValueError(
                f"loss: its costs sum to more than {_MOST_VALUES} different values over {positions} positions, too "
                "many to search one by one; wanted costs that are multiples of one number (rounded costs, for instance)"
            )
        strata, classes = max(strata, 2 * needed), labels
    most = int(sizes[:, 0].max()) if batch else 1
    tensors = (values[:, :most], next_stratum[:, :, :most], cost_class, sizes)
    return Levels(*(torch.from_numpy(np.ascontiguousarray(x)).to(costs.device) for x in tensors))
