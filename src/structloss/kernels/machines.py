"""Levelled machines: of two at once, and of what costs can still sum up to."""

import numpy as np

from structloss.kernels.compile import exact_kernel, helper, kernel
from structloss.kernels.tables import doubled
from structloss.kernels.types import Array, Ints


@helper
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


@exact_kernel
def compose(
    next_a: Ints, begin_a: Ints, class_a: Ints, next_b: Ints, begin_b: Ints, class_b: Ints, widest: tuple[int, int],
    max_states: int,
) -> tuple[Ints, Ints, Ints, Ints, int]:  # fmt: skip
    """Two machines at once for strings of one length: the pairs of states that some string reaches, level by level.

    next_a, next_b (states, classes): where a class leads, counted from begin[t + 1], where the states of the level
    begin: (length + 1,), zeros where every state may be at every level. class_a (C,): the class in a of every class of
    the pair; class_b (1, C), or (states of a, C) where it depends on the state that a is in. widest: the most states of
    a level of each. Returns next (N, C), the state of each machine (N,), offsets, and -1, or the level where there came
    to be more than max_states.
    """
    length, C, last = begin_a.shape[0] - 1, class_a.shape[0], class_b.shape[0] - 1
    seen, room = np.full(widest, -1, np.int32), 256
    next_state, in_a, in_b = np.zeros(room * C, np.int32), np.zeros(room, np.int64), np.zeros(room, np.int64)
    offsets, count = np.zeros(length + 2, np.int64), 1
    offsets[1] = 1
    for t in range(length):
        first = count
        for state in range(offsets[t], offsets[t + 1]):
            for c in range(C):
                a, b = in_a[state], in_b[state]
                u, v = next_a[a, class_a[c]], next_b[b, class_b[min(a, last), c]]
                if seen[u, v] < first:
                    if count >= max_states:
                        return next_state[:C].reshape(1, C), in_a[:1], in_b[:1], offsets, t + 1
                    if count == in_a.shape[0]:
                        next_state, in_a, in_b = doubled(next_state), doubled(in_a), doubled(in_b)
                    seen[u, v] = count
                    in_a[count], in_b[count] = begin_a[t + 1] + u, begin_b[t + 1] + v
                    count += 1
                next_state[state * C + c] = seen[u, v] - first
        offsets[t + 2] = count
    return next_state[: count * C].reshape(count, C), in_a[:count], in_b[:count], offsets, -1


@exact_kernel
def turned(next_state: Ints, sizes: Ints, classes: int, before: Ints, before_begin: Ints, degrees: Ints) -> None:
    """The arcs of a machine by where they lead: before[before_begin[p]: before_begin[p + 1]], the states they leave.

    next_state: of state s and class c of level t, entry begin(t) + c * sizes[t] + s. The place p of class c and state
    s' of level t + 1 is (places of the levels before) + c * sizes[t + 1] + s'; degrees[t] is the most arcs of a place.
    """
    arc, place, filled = 0, 0, np.zeros(classes * sizes.max(), np.int64)
    for t in range(sizes.shape[0] - 1):
        own, there = sizes[t], sizes[t + 1]
        for c in range(classes):
            for s in range(own):
                before_begin[place + c * there + next_state[arc + c * own + s] + 1] += 1
        for p in range(classes * there):
            filled[p] = 0
            degrees[t] = max(degrees[t], before_begin[place + p + 1])
            before_begin[place + p + 1] += before_begin[place + p]
        for c in range(classes):
            for s in range(own):
                p = c * there + next_state[arc + c * own + s]
                before[before_begin[place + p] + filled[p]] = s
                filled[p] += 1
        arc, place = arc + classes * own, place + classes * there
