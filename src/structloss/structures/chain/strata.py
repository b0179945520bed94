"""The strata of a loss: which values it can take, and the best output at each."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.product import Machines
from structloss.kernels.strata import fill_levels
from structloss.structures.chain.machines import Augmentation, MachineBatch, joint
from structloss.structures.chain.parts import Parts

_MOST_VALUES = 1 << 14


class Levels(NamedTuple):
    """What `kernels.chain_max.strata` runs on; values (B, V) are the loss of each stratum of level 0."""

    values: Tensor
    next_stratum: Tensor  # (B, T, V, C)
    cost_class: Tensor  # (B, T, K)
    sizes: Tensor  # (B, T + 1)


def strata_levels(costs: Tensor, lengths: Tensor) -> Levels:
    """The levels of a loss that is a sum over positions of costs (B, T, K), on the device of the costs.

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
    both = joint(p.machine, Augmentation(batch, 1.0))
    final, begin = both.second_final, both.first.final_begin
    ends = [*begin.tolist(), len(final)][1:]
    values = [distinct(final[i:j]) for i, j in zip(begin, ends, strict=True)]
    most = max([len(v) for v in values], default=1) or 1
    losses = torch.zeros(most, len(values), dtype=torch.float64)
    choices, exists = torch.zeros(*losses.shape, p.num_positions, dtype=torch.int64), torch.zeros(losses.shape).bool()
    for k in range(most):
        wanted = np.full(len(final), -np.inf)
        for b, (i, j) in enumerate(zip(begin, ends, strict=True)):
            if k < len(values[b]):
                losses[k, b] = values[b][k]
                wanted[i:j][np.abs(final[i:j] - values[b][k]) < 1e-8] = 0.0
        labels, found = search(p, both.first._replace(final=both.first.final + wanted))
        choices[k] = labels.cpu()
        exists[k] = found.cpu() & torch.tensor([k < len(v) for v in values], dtype=torch.bool)
    like = p.any_potential
    return losses.to(like), choices.to(like.device), exists.to(like.device)
