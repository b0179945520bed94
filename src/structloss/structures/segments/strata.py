"""The values that a loss over segments or over frames can take."""

import numpy as np
from numpy.typing import NDArray

from structloss.kernels.segmentation_max import Levels
from structloss.structures.segments.parts import Parts

Floats = NDArray[np.float64]

_MOST_VALUES = 1 << 12
_MOST_NUMBERS = 1 << 26  # that a search may keep, 512 MiB


def levels_of(costs: Floats, steps: list[list[Floats]], p: Parts, by_frame: bool) -> Levels:
    """What kernels.segmentation_max.strata runs on.

    Args:
        costs: (B, T, K), of a frame in state k, or of a segment of state k that starts there.
        steps: of each example, for each of its frames (or segments) the costs that it can have.
        p: what is searched.
        by_frame: whether costs are those of frames.
    """
    nodes, pairs, states = p.num_nodes
    most = max(2, min(_MOST_VALUES, _MOST_NUMBERS // (nodes * pairs * states)))
    sums = [_sums(own, most, "frames" if by_frame else "segments") for own in steps]
    deepest = max((len(own) for own in sums), default=1)
    widest = max((len(values) for own in sums for values in own), default=1)
    table, sizes = np.zeros((len(sums), deepest, widest)), np.zeros((len(sums), deepest), np.int64)
    for b, own in enumerate(sums):
        for level, values in enumerate(own):
            table[b, level, : len(values)] = values
            sizes[b, level] = len(values)
    return Levels(costs, table, sizes, by_frame)


def _sums(steps: list[Floats], most: int, what: str) -> list[Floats]:
    """What the costs from each step on can sum to, ascending; those that differ by rounding only are one."""
    result = [np.zeros(1)]
    for costs in reversed(steps):
        own = _distinct(costs)
        few = len(own) + len(result[-1]) - 1 <= most  # so many sums there are at least
        found = _distinct(np.add.outer(own, result[-1]).ravel()) if few else own
        if not few or len(found) > most:
            raise ValueError(
                f"loss: its costs sum to more than {most} different values over {len(steps)} {what}, too many to "
                "search one by one; wanted costs that are multiples of one number, and fewer or shorter examples"
            )
        result.append(found)
    return result[::-1]


def _distinct(values: Floats) -> Floats:
    ordered = np.sort(values)
    apart = np.diff(ordered, prepend=-np.inf) > 1e-9 * np.maximum(1.0, np.abs(ordered))
    return ordered[apart]
