"""Maxima over the ways to cut frames into segments: the best way, and the best at each value of a loss.

The recursion of `kernels.segmentation_sum` with the maximum for the sum, compiled exactly, so that what is a tie for
one of these is a tie for all. Of several best ways, states are taken in their order, and the shorter segment first, or
the longer first where outputs mark the frames at which a segment starts: -1, for none, comes before any label.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_kernel, kernel_without_nan
from structloss.kernels.segmentation import (
    Segments,
    add,
    count_durations,
    fill_segments,
    fill_ways,
    nodes_at,
    room_for_nodes,
    span,
)
from structloss.kernels.strata import nearest
from structloss.kernels.types import EMPTY, Array, Ints


class Room(NamedTuple):
    """What a worker computes in."""

    segments: Array  # (D, K): the score of each segment of a frame
    ways: Array  # (D, K): and of the best that follows it
    starts: Array  # (K,): without rates, the best of each state, and then its opening too
    sums: Array  # (K,)
    column: Array  # (D,): the ways of one state


@exact_kernel
def make_room(s: Segments) -> Room:
    """Room for any example of a batch."""
    _, D, K = s.durations.shape
    return Room(np.empty((D, K)), np.empty((D, K)), np.empty(K), np.empty(K), np.empty(D))


@kernel_without_nan
def largest_sum(scores: Array, values: Array, count: int) -> float:
    """The largest of scores[i] + values[i], i < count."""
    top = -np.inf
    for i in range(count):
        value = scores[i] + values[i]
        top = value if value > top else top
    return top


@exact_kernel
def best_at(s: Segments, b: int, t: int, first: int, last: int, count: int, r: Room, best: Array) -> None:
    """best[p, j] = the best way to go on from each node at t, from the ways of that frame and the best of them."""
    K, starts = s.opening.shape[2], r.starts
    add(starts[first:last], s.opening[b, t, first:last])
    if s.transitions.size:
        begin, end = nodes_at(s, t)
        for j in range(begin, end):
            best[0, j] = largest_sum(s.transitions[j], starts, K)
        return
    for k in range(first, last):
        if s.rates.size and k > 0:
            for d in range(count):
                r.column[d] = r.ways[d, k]
            for p in range(min(t, best.shape[0])):
                best[p, k] = s.opening[b, t, k] + largest_sum(s.rates[b, k, p], r.column, count)
        else:
            best[0, k] = starts[k]


@exact_kernel
def choose(s: Segments, b: int, p: int, j: int, count: int, longest_first: bool, r: Room) -> tuple[int, int]:
    """The state and the duration that the best way takes from node (p, j) on, from the ways and starts of its frame."""
    k, top = j, -np.inf
    if s.transitions.size:
        for i in range(r.starts.shape[0]):
            value = s.transitions[j, i] + r.starts[i]
            if value > top:
                top, k = value, i
    top, chosen = -np.inf, 0
    for i in range(count):
        d = count - 1 - i if longest_first else i
        value = s.rates[b, k, p, d] + r.ways[d, k] if s.rates.size and k > 0 else r.ways[d, k]
        if value > top:
            top, chosen = value, d
    return k, chosen


@exact_kernel
def look_ahead(s: Segments, b: int, t: int, first: int, last: int, r: Room, best: Array) -> int:
    """Fill the ways and starts of frame t from the best of the frames after it; returns how many durations."""
    return fill_ways(s, b, t, first, last, best, r.sums, r.starts, r.ways)


@exact_kernel
def fill_best(s: Segments, b: int, r: Room, best: Array) -> None:
    """best (T + 1, P, K + 1) = the best score of a way to finish from each node of example b, -inf where there is none.

    Time T * K * D, and T * K * D**2 with rates, T * K**2 with transitions.
    """
    length = s.lengths[b]
    best[:] = -np.inf
    for p in range(best.shape[1]):
        best[length, p] = s.final[b]
    for t in range(length - 1, -1, -1):
        first, last = span(s, b, t)
        if first < last:
            count = look_ahead(s, b, t, first, last, r, best)
            best_at(s, b, t, first, last, count, r, best[t])


@exact_kernel
def completions(worker: int, workers: int, s: Segments, best: Array) -> None:
    """best (B, T + 1, P, K + 1) = the best score of a way to finish from each node."""
    r = make_room(s)
    for b in range(worker, best.shape[0], workers):
        fill_best(s, b, r, best[b])


@exact_kernel
def argmax(worker: int, workers: int, s: Segments, longest_first: bool, labels: Ints, status: Ints) -> None:
    """labels (B, T) = the state of the segment that starts at each frame of the best way, -1 where none does.

    status is EMPTY where there is no way.
    """
    r, best, spare = make_room(s), room_for_nodes(s, -np.inf), room_for_nodes(s, -np.inf)[0]
    for b in range(worker, status.shape[0], workers):
        fill_best(s, b, r, best)
        if best[0, 0, 0] == -np.inf:
            status[b] = EMPTY
            continue
        t, p, j = 0, 0, 0
        while t < s.lengths[b]:
            first, last = span(s, b, t)
            count = look_ahead(s, b, t, first, last, r, best)
            if s.transitions.size:
                best_at(s, b, t, first, last, count, r, spare)
            k, d = choose(s, b, p, j, count, longest_first, r)
            labels[b, t] = k
            t, p, j = t + d + 1, d if s.rates.size else 0, k + 1


class Levels(NamedTuple):
    """What a loss can still come to: a sum of one cost for each frame, or of one for each segment."""

    costs: Array  # (B, T, K): of a frame in state k, or of a segment of state k that starts there
    values: Array  # (B, L + 1, V): what the costs from frame (or segment) l on can sum to, ascending
    sizes: Ints  # (B, L + 1): how many values there are
    by_frame: bool


@exact_kernel
def stratum_of(levels: Levels, b: int, level: int, value: float) -> int:
    """Which of the level's values it is, up to rounding, or -1."""
    values, count = levels.values[b, level], levels.sizes[b, level]
    i = nearest(values, count, value)
    return i if abs(values[i] - value) <= 1e-8 * max(1.0, abs(value)) else -1


@exact_kernel
def look_ahead_in(
    s: Segments, levels: Levels, b: int, t: int, v: int, first: int, last: int, count: int, r: Room, best: Array
) -> None:
    """Fill ways and starts of frame t where the loss comes to value v of its level; best is (T + 1, V, P, K + 1)."""
    paired = best.shape[2] > 1
    for k in range(first, last):
        level = t if levels.by_frame else k
        r.starts[k] = -np.inf
        after, value = -1, 0.0
        if v < levels.sizes[b, level]:
            value = levels.values[b, level, v]
            if not levels.by_frame:
                after = stratum_of(levels, b, k + 1, value - levels.costs[b, t, k])
        else:
            value = np.nan
        for d in range(count):
            if levels.by_frame:
                value -= levels.costs[b, t + d, k]
                after = stratum_of(levels, b, t + d + 1, value) if value == value else -1
            if after >= 0:
                r.ways[d, k] = r.segments[d, k] + best[t + d + 1, after, d if paired else 0, k + 1]
            else:
                r.ways[d, k] = -np.inf
            r.starts[k] = max(r.starts[k], r.ways[d, k])


@exact_kernel
def strata(
    worker: int, workers: int, s: Segments, levels: Levels, longest_first: bool, scores: Array, labels: Ints
) -> None:
    """The best way at each value of level 0: its score, scores (B, V), and its states, labels (B, V, T) as of argmax.

    Time V times that of `completions`, memory V * T * K, and V * T * K * D with rates.
    """
    r, V, spare = make_room(s), labels.shape[1], room_for_nodes(s, -np.inf)
    best = np.empty((spare.shape[0], V, spare.shape[1], spare.shape[2]))
    for b in range(worker, labels.shape[0], workers):
        length = s.lengths[b]
        best[:] = -np.inf
        for p in range(best.shape[2]):
            best[length, 0, p] = s.final[b]
        for t in range(length - 1, -1, -1):
            first, last = span(s, b, t)
            if first < last:
                count = count_durations(s, b, t)
                fill_segments(s, b, t, count, first, last, r.sums, r.segments)
                for v in range(V):
                    look_ahead_in(s, levels, b, t, v, first, last, count, r, best)
                    best_at(s, b, t, first, last, count, r, best[t, v])
        for i in range(levels.sizes[b, 0]):
            scores[b, i] = best[0, i, 0, 0]
            if scores[b, i] == -np.inf:
                continue
            t, v, p, j = 0, i, 0, 0
            while t < length:
                first, last = span(s, b, t)
                count = count_durations(s, b, t)
                fill_segments(s, b, t, count, first, last, r.sums, r.segments)
                look_ahead_in(s, levels, b, t, v, first, last, count, r, best)
                if s.transitions.size:
                    best_at(s, b, t, first, last, count, r, spare[0])
                k, d = choose(s, b, p, j, count, longest_first, r)
                labels[b, i, t] = k
                value = levels.values[b, t if levels.by_frame else k, v]
                for e in range(d + 1 if levels.by_frame else 1):
                    value -= levels.costs[b, t + e, k]
                v = stratum_of(levels, b, t + d + 1 if levels.by_frame else k + 1, value)
                t, p, j = t + d + 1, d if s.rates.size else 0, k + 1
