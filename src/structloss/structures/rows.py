"""Things of several examples one after the other: where each begins, and taking some of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def begins(counts: NDArray[Any]) -> Ints:
    """Where each of so many things begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def ranges(begin: Ints, counts: Ints) -> Ints:
    """begin[i], begin[i] + 1, ... of so many each, in a row."""
    return np.repeat(begin - begins(counts)[:-1], counts) + np.arange(int(counts.sum()))


def pieces(sizes: Ints, order: Ints) -> Ints:
    """The indices of pieces of these sizes, taken in another order."""
    return ranges(begins(sizes)[:-1][order], sizes[order])
