"""The values that a sum of costs can take: the machines that `dense_max.argmax` runs on for strata."""

import numpy as np

from structloss.kernels.compile import kernel
from structloss.kernels.types import Array, Ints


@kernel
def merge_equal(values: Array, count: int) -> int:
    """Sort values[:count] and keep one of each run that differs by rounding only. Returns how many are left."""
    values[:count].sort()
    kept = 0
    for i in range(count):
        if kept == 0 or values[i] - values[kept - 1] > 1e-9 * max(1.0, abs(values[i])):
            values[kept] = values[i]
            kept += 1
    return kept


@kernel
def nearest(values: Array, count: int, value: float) -> int:
    """The index of the entry of the sorted values[:count] that equals `value` up to rounding."""
    i = int(np.searchsorted(values[:count], value))
    if i > 0 and (i == count or value - values[i - 1] < values[i] - value):
        i -= 1
    return i


@kernel
def fill_levels(
    costs: Array, lengths: Ints, num_classes: int, sizes: Ints, values: Array, cost_class: Ints, next_state: Ints
) -> int:
    """From costs (B, T, K), fill for each level t the sums that the costs of positions t, t + 1, ... can take.

    sizes (B, T+1): how many; values (B, V): those of level 0, ascending; cost_class (B, T, K): costs of a position that
    are equal share a class; next_state (B, T, C * V), entry c * size + v: which value of level t + 1 is left of value v
    after a label of class c, or -1. Returns 0, or, where V or C is too small, the size that was needed, at least.
    """
    B, _, K = costs.shape
    V = values.shape[1]
    distinct, after, sums = np.empty(K), np.empty(V), np.empty(V * K)
    for b in range(B):
        after[0] = 0.0
        sizes[b, lengths[b]] = 1
        for t in range(lengths[b] - 1, -1, -1):
            for y in range(K):
                distinct[y] = costs[b, t, y]
            classes = merge_equal(distinct, K)
            if classes > num_classes:
                return classes
            following, count = sizes[b, t + 1], 0
            for c in range(classes):
                for v in range(following):
                    sums[count] = distinct[c] + after[v]
                    count += 1
            size = merge_equal(sums, count)
            if size > V:
                return size
            sizes[b, t] = size
            for c in range(classes):
                for v in range(following):
                    next_state[b, t, c * size + nearest(sums, size, distinct[c] + after[v])] = v
            for y in range(K):
                cost_class[b, t, y] = nearest(distinct, classes, costs[b, t, y])
            for v in range(size):
                after[v] = sums[v]
        for v in range(sizes[b, 0]):
            values[b, v] = after[v]
    return 0
