"""The values that a loss over segments or over frames can take."""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.segments import Levels
from structloss.structures.segments.parts import Parts

Floats = NDArray[np.float64]

_MOST_VALUES = 1 << 12  # which the numbers of strata in Levels have room for
_MOST_NUMBERS = 1 << 26  # that a search may keep, 512 MiB


def levels_of(costs: Tensor, p: Parts) -> tuple[Floats, Levels]:
    """The values of a loss (V, B), ascending, and what a search for the best way at each of them runs on.

    Args:
        costs: float64 (B, T, K), of a frame in state k, or where states stand in a row of a segment that starts there.
        p: what is searched.
    """
    by_frame = p.transitions is not None
    choices = (costs if by_frame else _reached(costs, p)).cpu().numpy()  # (B, L, C)
    nodes, pairs, states = p.num_nodes
    most = max(2, min(_MOST_VALUES, _MOST_NUMBERS // (nodes * pairs * states)))
    sums = [_sums(own, most, "frames" if by_frame else "segments") for own in choices]
    widest = max((len(values) for own in sums for values in own), default=1)
    losses, batch, (deepest, width) = np.zeros((widest, len(sums))), choices.shape[0], choices.shape[1:]
    following = np.full((batch, deepest, widest, width), -1, np.int16)
    for b, own in enumerate(sums):
        losses[: len(own[0]), b] = own[0]
        for level, (values, after) in enumerate(pairwise(own)):
            following[b, level, : len(values)] = _places(after, values[:, None] - choices[b, level])
    return losses, Levels(following, by_frame)


def _reached(costs: Tensor, p: Parts) -> Tensor:
    """The costs (B, N, T) of segments, those that the frames before and after leave no room for as of the nearest."""
    T, N = costs.shape[1:]
    n, t = torch.arange(N, device=costs.device), torch.arange(T, device=costs.device)
    first, last = n * p.shortest, p.lengths[:, None] - (p.counts[:, None] - n) * p.shortest  # (N,), (B, N)
    last = torch.where(n > 0, last, 0).clamp(0, max(0, T - 1))
    nearest = torch.minimum(torch.maximum(t, first[:, None]), last[:, :, None])
    return costs.transpose(1, 2).gather(2, nearest)


def _sums(choices: Floats, most: int, what: str) -> list[Floats]:
    """What the costs (L, C) from each level on can sum to, ascending; those that differ by rounding only are one."""
    result = [np.zeros(1)]
    for costs in choices[::-1]:
        own = _distinct(costs)
        few = len(own) + len(result[-1]) - 1 <= most  # so many sums there are at least
        found = _distinct(np.add.outer(own, result[-1]).ravel()) if few else own
        if not few or len(found) > most:
            raise ValueError(
                f"loss: its costs sum to more than {most} different values over {len(choices)} {what}, too many to "
                "search one by one; wanted costs that are multiples of one number, and fewer or shorter examples"
            )
        result.append(found)
    return result[::-1]


def _distinct(values: Floats) -> Floats:
    ordered = np.sort(values)
    return ordered[np.diff(ordered, prepend=-np.inf) > 1e-9 * np.maximum(1.0, np.abs(ordered))]


def _places(values: Floats, wanted: Floats) -> NDArray[np.int64]:
    """Where in the ascending values those that are wanted stand, up to rounding, or -1."""
    above = np.searchsorted(values, wanted).clip(max=len(values) - 1)
    below = (above - 1).clip(min=0)
    nearest = np.where(wanted - values[below] < values[above] - wanted, below, above)
    return np.where(np.abs(values[nearest] - wanted) <= 1e-8 * np.maximum(1.0, np.abs(wanted)), nearest, -1)
