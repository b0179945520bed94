"""The paired bootstrap over test sentences: how much of a difference in F1 is chance."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.reproduce.f1.counts import f1

Counts = NDArray[np.int64]  # (seeds, n, 5)


class Interval(NamedTuple):
    """A value, and the central 95 % of what resampled sentences give."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def resampled(tables: Sequence[Counts], generator: np.random.Generator, times: int) -> NDArray[np.float64]:
    """100 * F1, the mean over seeds, of each table on the same resampled sentences: (times, tables)."""
    n = tables[0].shape[1]
    flat = np.concatenate([table[..., :3].transpose(1, 0, 2).reshape(n, -1) for table in tables], 1).astype(np.float32)
    found = []
    for begin in range(0, times, 500):
        size = min(500, times - begin)
        weights = generator.multinomial(n, np.full(n, 1 / n), size).astype(np.float32)
        sums = np.split(weights @ flat, np.cumsum([3 * len(table) for table in tables])[:-1], 1)
        found.append(np.stack([f1(s.reshape(size, -1, 3)).mean(1) for s in sums], 1))
    return 100 * np.concatenate(found)


def mean_f1(table: Counts) -> float:
    """100 * F1, the mean over seeds."""
    return float(100 * f1(table.sum(1)).mean())


def interval(value: float, samples: NDArray[np.float64]) -> Interval:
    """With the samples (times,) that say how sure it is."""
    low, high = np.quantile(samples, [0.025, 0.975])
    return Interval(value, float(low), float(high))
