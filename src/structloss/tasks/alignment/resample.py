"""Another sampling rate: windowed-sinc interpolation, as products of blocks of samples with matrices of filters."""

from functools import lru_cache
from math import gcd

import numpy as np
from numpy.typing import NDArray

_CROSSINGS = 48  # zero crossings of the sinc on either side
_ROLL_OFF = 0.95  # of the lower Nyquist frequency: where the filter is halfway down
_KAISER = 9.0  # stop band below -90 dB
_GROUP = 128  # outputs of one matrix
_BLOCK = 1 << 22  # numbers in a block of windows


def resample(samples: NDArray[np.float32], rate: int, target: int) -> NDArray[np.float32]:
    r"""Samples at `rate` as samples at `target`; n become ceil(n * target / rate), the first at the same time.

    .. math:: y_n = \sum_k x_k\, h(n\, \text{rate} / \text{target} - k), \quad h(t) = w(t) \operatorname{sinc}(c t)

    with w a Kaiser window and c the cutoff. With target / rate = L / M in lowest terms, the filter of output n depends
    on n mod L alone. So outputs stand in rows of a multiple of L; a group of neighbouring columns is one product of
    windows, a row's samples each, with a banded matrix of filters. Memory for a block beside the output.
    """
    if rate == target or not len(samples):
        return samples
    common = gcd(rate, target)
    up, down = target // common, rate // common
    repeat = -(-_GROUP // up)
    up, down = up * repeat, down * repeat
    cutoff = _ROLL_OFF * min(1.0, target / rate)
    reach = int(np.ceil(_CROSSINGS / cutoff))
    count = -(-len(samples) * up // down)
    rows = -(-count // up)
    padded = np.pad(samples, (reach, rows * down - len(samples) + reach + 1))
    result = np.empty((rows, up), np.float32)
    for first in range(0, min(up, count), _GROUP):
        last = min(first + _GROUP, up)
        filters = _filters(first, last, up, down, cutoff, reach)
        windows = np.lib.stride_tricks.sliding_window_view(padded, len(filters))[first * down // up + 1 :: down]
        step = max(1, _BLOCK // len(filters))
        for row in range(0, rows, step):
            here = slice(row, min(row + step, rows))
            result[here, first:last] = windows[here] @ filters
    return result.reshape(-1)[:count]


@lru_cache(maxsize=16)
def _filters(first: int, last: int, up: int, down: int, cutoff: float, reach: int) -> NDArray[np.float32]:
    """What each sample of a window, from reach - 1 before the first column's on, gives to each column."""
    columns = np.arange(first, last)
    whole, part = np.divmod(columns * down, up)
    offsets = np.arange(1 - reach, reach + 1)
    distance = part[:, None] / up - offsets  # shape: (columns, taps)
    inside = np.clip(1.0 - (distance / reach) ** 2, 0.0, None)
    taps = np.sinc(cutoff * distance) * np.i0(_KAISER * np.sqrt(inside))
    taps /= taps.sum(axis=1, keepdims=True)
    matrix = np.zeros((whole[-1] - whole[0] + 2 * reach, len(columns)), np.float32)
    for column, start in enumerate(whole - whole[0]):
        matrix[start : start + 2 * reach, column] = taps[column]
    matrix.flags.writeable = False
    return matrix
