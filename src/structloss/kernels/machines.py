"""Levelled machines of running totals, n-gram counts and sums of costs, and of two machines at once."""

import numpy as np

from structloss.kernels.compile import exact_kernel, helper, kernel
from structloss.kernels.tables import doubled
from structloss.kernels.types import Array, Ints


@exact_kernel
def count_machine(next_node: Ints, gain: Ints, length: int, max_states: int) -> tuple[Ints, Ints, Ints, int]:
    """The machine whose states are a node and a running total, for strings of one length.

    next_node, gain (nodes, C): where a class leads, and what it adds. Returns next (N, C), the total (N,) of each
    state, offsets (length + 2,), and -1, or the level where there came to be more than max_states.
    """
    nodes, C = next_node.shape
    most = 0
    for u in range(nodes):
        for c in range(C):
            most = max(most, gain[u, c])
    seen = np.full((nodes, length * most + 1), -1, np.int32)
    room = 1024
    next_state, node, total = np.zeros(room * C, np.int32), np.zeros(room, np.int64), np.zeros(room, np.int64)
    offsets = np.zeros(length + 2, np.int64)
    count = 1
    offsets[1] = 1
    for t in range(length):
        first = count
        for state in range(offsets[t], offsets[t + 1]):
            for c in range(C):
                u, n = next_node[node[state], c], total[state] + gain[node[state], c]
                if seen[u, n] < first:
                    if count >= max_states:
                        return next_state[:C].reshape(1, C), total[:1], offsets, t + 1
                    if count == node.shape[0]:
                        next_state, node, total = doubled(next_state), doubled(node), doubled(total)
                    seen[u, n] = count
                    node[count], total[count] = u, n
                    count += 1
                next_state[state * C + c] = seen[u, n] - first
        offsets[t + 2] = count
    return next_state[: count * C].reshape(count, C), total[:count], offsets, -1


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


@exact_kernel
def sum_machine(costs: Array, max_states: int) -> tuple[Ints, Array, Ints, int]:
    """The machine whose states are what the costs (length, C) of a string's symbols have summed up to.

    Sums that differ by rounding only are one. Returns next (N, C), the sum (N,) of each state, offsets, and -1, or the
    level where there came to be more than max_states.
    """
    length, C = costs.shape
    offsets = np.zeros(length + 2, np.int64)
    offsets[1] = 1
    sums, next_state = np.zeros(1), np.zeros((1, C), np.int32)
    for t in range(length):
        here = sums[offsets[t] : offsets[t + 1]]
        candidates = np.empty(here.shape[0] * C)
        for i in range(here.shape[0]):
            for c in range(C):
                candidates[i * C + c] = here[i] + costs[t, c]
        kept = merge_equal(candidates, candidates.shape[0])
        if offsets[t + 1] + kept > max_states:
            return next_state[:1], sums[:1], offsets, t + 1
        for i in range(here.shape[0]):
            for c in range(C):
                next_state[offsets[t] + i, c] = nearest(candidates, kept, here[i] + costs[t, c])
        sums = np.concatenate((sums, candidates[:kept]))
        next_state = np.concatenate((next_state, np.zeros((kept, C), np.int32)))
        offsets[t + 2] = offsets[t + 1] + kept
    return next_state, sums, offsets, -1


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
def pair_machines(
    next_a: Ints, offsets_a: Ints, class_a: Ints, next_b: Ints, offsets_b: Ints, class_b: Ints,
    max_states: int,
) -> tuple[Ints, Ints, Ints, Ints, int]:  # fmt: skip
    """Two machines for strings of one length, at once: the pairs of states that some string reaches.

    class_a, class_b (C,): the class in each machine of every class of the pair. Returns next (N, C), the state of each
    machine (N,), offsets, and -1, or the level where there came to be more than max_states.
    """
    length, C = offsets_a.shape[0] - 2, class_a.shape[0]
    room = 256
    next_state, in_a, in_b = np.zeros(room * C, np.int32), np.zeros(room, np.int64), np.zeros(room, np.int64)
    offsets = np.zeros(length + 2, np.int64)
    count = 1
    offsets[1] = 1
    for t in range(length):
        first = count
        width_a, width_b = offsets_a[t + 2] - offsets_a[t + 1], offsets_b[t + 2] - offsets_b[t + 1]
        seen = np.full((width_a, width_b), -1, np.int32)
        for state in range(offsets[t], offsets[t + 1]):
            for c in range(C):
                u, v = next_a[in_a[state], class_a[c]], next_b[in_b[state], class_b[c]]
                if seen[u, v] < 0:
                    if count >= max_states:
                        return next_state[:C].reshape(1, C), in_a[:1], in_b[:1], offsets, t + 1
                    if count == in_a.shape[0]:
                        next_state, in_a, in_b = doubled(next_state), doubled(in_a), doubled(in_b)
                    seen[u, v] = count - first
                    in_a[count], in_b[count] = offsets_a[t + 1] + u, offsets_b[t + 1] + v
                    count += 1
                next_state[state * C + c] = seen[u, v]
        offsets[t + 2] = count
    return next_state[: count * C].reshape(count, C), in_a[:count], in_b[:count], offsets, -1
