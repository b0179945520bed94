"""Sums and maxima over the ways to cut T frames into segments that cover them, each segment in one of K states.

A way goes through nodes (t, p, j): so far t frames are covered, the last segment was in state j - 1 (j = 0: none yet)
and had p + 1 frames. Only rates ask for p; without them it is always 0. From there a segment in state k that has d + 1
frames leads to (t + d + 1, d, k + 1) and scores

    transitions[j, k] + opening[t, k] + the sum of frames[t : t + d + 1, k] + durations[d, k] + rates[k, p, d].

Where the states stand in a row (there are no transitions), only state j follows node j: the N segments of an example
have names. A sum over frames is carried on from one duration to the next rather than taken as a difference of sums from
the start, so that -inf stays -inf and nothing is lost to scores of other frames.

One recursion from the last frame to the first gives, for every node, the log of the sum (or the maximum) over all ways
to finish from there,

    beta(t, p, j) = log of the sum over k, d of exp(score of the segment + beta(t + d + 1, d, k + 1)).

Without rates the sum over d does not depend on p, nor that over k on d. What is left, transitions or rates, is a matrix
times a vector. A maximum is computed exactly in the order that is written, so that what is a tie for one walk is a tie
for all. In a sum, matrix and vector are exponentials, both scaled to at most 1; what comes out below TINY may have lost
terms that round to zero, and is done again in logarithms. Sums take complex numbers too (see `kernels.arithmetic`).
"""

from typing import Any, NamedTuple

import numpy as np

from structloss.kernels.arithmetic import exponential
from structloss.kernels.compile import exact_helper, exact_kernel, helper, helper_without_nan
from structloss.kernels.types import Array, Ints

TINY = 1e-150


class Segments(NamedTuple):
    """The scores of a batch, or its gradients in them. An absent array has size 0."""

    opening: Array  # (B, T, K)
    frames: Array  # (B, T, K)
    durations: Array  # (B, D, K)
    rates: Array  # (B, K, D, D); 0 for state 0, which has none before it
    transitions: Array  # (B, K + 1, K), absent where states stand in a row
    final: Array  # (B, K + 1), of ending in node j
    lengths: Ints  # (B,)
    limits: Ints  # (B, T), the most frames that a segment can have which starts there
    counts: Ints  # (B,), the number of segments; where there are transitions it is not read
    shortest: int  # the fewest frames of a segment
    longest_first: bool  # which of two ways comes first, where they differ by a duration


class Levels(NamedTuple):
    """How a loss adds up: a cost for each frame, of its state, or for each segment, of the frame where it starts.

    What is left to add up from frame (or segment) l on can come to some values, the strata of level l.
    """

    following: Ints  # (B, L, V, K), of segments (B, L, V, T): the stratum of level l + 1 that one leads to, or -1
    by_frame: bool


class Room(NamedTuple):
    """What a worker computes in."""

    segments: Array  # (K, D): at one frame, of each segment alone; only where there are levels
    ways: Array  # (D, K): of each segment and what follows it
    shares: Array  # (D, K): exp(ways - tops), and then the probability of each segment
    tops: Array  # (K,): the largest of the ways of each state
    sums: Array  # (K,)
    starts: Array  # (K,): of going on with each state, its opening and all its durations
    start_exps: Array  # (K,): exp(starts - their largest)
    column: Array  # (D,): the ways of one state
    column_exps: Array  # (D,): and its shares
    row: Array  # (max of D and K,): what one node is followed by
    flow: Array  # the same, the probability of each of its entries
    before: Array  # the same and one more: of the nodes that are followed, their log sums or their masses
    zeros: Array  # (D,): rates, where there are none


class Scaled(NamedTuple):
    """The exponentials of a matrix, each row scaled by its largest entry; rates have K matrices, transitions one."""

    weights: Array  # (K, D, D) or (1, K + 1, K)
    largest: Array  # (K, D) or (1, K + 1)


@helper
def make_nodes(s: Segments, strata: int, like: Array) -> Array:
    """A number for each node, (V, T + 1, P, K + 1)."""
    _, T, K = s.opening.shape
    return np.empty((strata, T + 1, s.durations.shape[1] if s.rates.size else 1, K + 1), like.dtype)


@helper
def make_room(s: Segments, like: Array) -> Room:
    """Room for any example of a batch, numbers being of the type of `like`."""
    K, D, kind = s.opening.shape[2], s.durations.shape[1], like.dtype
    size = max(D, K)
    return Room(
        np.empty((K, D), kind), np.empty((D, K), kind), np.empty((D, K), kind), np.empty(K), np.empty(K, kind),
        np.empty(K, kind), np.empty(K, kind), np.empty(D, kind), np.empty(D, kind), np.empty(size, kind),
        np.empty(size, kind), np.empty(size + 1, kind), np.zeros(D, kind),
    )  # fmt: skip


@helper
def span(s: Segments, b: int, t: int) -> tuple[int, int]:
    """The first state that a segment from frame t on can be in, so that all can be covered, and the one after the last.

    Of N states in a row, state k can start at t where k segments fit into the t frames before, and N - k into the rest.
    """
    K, longest, rest = s.opening.shape[2], s.durations.shape[1], s.lengths[b] - t
    if s.transitions.size:
        fits = rest >= s.shortest and (t == 0 or t >= s.shortest)
        return 0, K if fits else 0
    N = s.counts[b]
    first = max(0, -(-t // longest), N - rest // s.shortest)
    last = min(N - 1, t // s.shortest, N + (-rest) // longest)
    return first, max(first, last + 1)


@helper
def add(total: Array, row: Array) -> None:
    """total += row."""
    for k in range(total.shape[0]):
        total[k] += row[k]


@exact_helper
def stratum_after(levels: Levels, b: int, t: int, v: int, k: int, d: int) -> int:
    """The stratum that frame t + d leads to from v, in a segment of state k from t on; segments cost at their start."""
    if v < 0 or (d > 0 and not levels.by_frame):
        return v
    return int(levels.following[b, t + d, v, k] if levels.by_frame else levels.following[b, k, v, t])


@exact_helper
def fill_segments(s: Segments, b: int, t: int, first: int, last: int, r: Room) -> None:
    """segments[k, d] = a segment of d + 1 frames from t on, without its opening. Cost D * K."""
    for k in range(first, last):
        total = 0.0
        for d in range(min(s.durations.shape[1], s.limits[b, t])):
            total += s.frames[b, t + d, k]
            r.segments[k, d] = total + s.durations[b, d, k] if d + 1 >= s.shortest else -np.inf


@exact_helper
def fill_ways_of(
    levels: Levels, b: int, t: int, v: int, first: int, last: int, count: int, nodes: Array, r: Room
) -> None:
    """The ways and tops of stratum v; a state at a time, which reads the nodes of one stratum one after the other."""
    paired = nodes.shape[2] > 1
    for k in range(first, last):
        segments, top, after = r.segments[k], -np.inf, v
        for d in range(count):
            after = stratum_after(levels, b, t, after, k, d)
            value = segments[d] + nodes[after, t + d + 1, d if paired else 0, k + 1] if after >= 0 else -np.inf
            r.ways[d, k] = value
            top = max(top, value)
        r.tops[k] = top


@helper_without_nan
def largest_sums(matrix: Array, values: Array, count: int, begin: int, end: int, out: Array) -> None:
    """out[p] = the largest of matrix[p, i] + values[i], i < count."""
    for p in range(begin, end):
        row, top = matrix[p], -np.inf
        for i in range(count):
            value = row[i].real + values[i].real
            top = value if value > top else top
        out[p] = top


@helper
def scaled_exp(values: Array, count: int, out: Array) -> float:
    """out[i] = exp(values[i] - the largest of these), i < count; returns the largest, 0 where all are -inf."""
    top = -np.inf
    for i in range(count):
        top = max(top, values[i].real)
    top = top if top > -np.inf else 0.0
    for i in range(count):
        out[i] = exponential(values[i] - top)
    return top


@helper
def share_logs(scores: Array, values: Array, count: int, row: Array) -> tuple[float, Any]:
    """row[i] = exp(scores[i] + values[i] - the largest of these), i < count. Returns that, and the sum of the row."""
    for i in range(count):
        row[i] = scores[i] + values[i]
    top, total = scaled_exp(row, count, row), 0.0
    for i in range(count):
        total += row[i]
    return top, total


@helper
def matrices_of(s: Segments, b: int) -> Array:
    """The rates of each state of example b, or its transitions."""
    return s.rates[b] if s.rates.size else s.transitions[b : b + 1]


@helper
def scaled_matrices(s: Segments, b: int, like: Array) -> Scaled:
    """Those of example b, of the type of `like`. Cost K * D**2 with rates, K**2 with transitions."""
    matrices = matrices_of(s, b)
    M, P, C = matrices.shape
    scaled = Scaled(np.empty((M, P, C), like.dtype), np.empty((M, P)))
    for k in range(M):
        for p in range(P):
            scaled.largest[k, p] = scaled_exp(matrices[k, p], C, scaled.weights[k, p])
    return scaled


@helper
def share_ways(count: int, first: int, last: int, r: Room) -> None:
    """shares[d, k] = exp(ways[d, k] - tops[k]), sums[k] = their sum; tops of -inf become 0. Cost D * K."""
    tops, sums = r.tops[first:last], r.sums[first:last]
    sums[:] = 0.0
    for k in range(tops.shape[0]):
        tops[k] = tops[k] if tops[k] > -np.inf else 0.0
    for d in range(count):
        row, shares = r.ways[d, first:last], r.shares[d, first:last]
        for k in range(shares.shape[0]):
            shares[k] = exponential(row[k] - tops[k])
        add(sums, shares)


@exact_helper
def look_ahead(
    s: Segments, levels: Levels | None, b: int, t: int, v: int, first: int, last: int, nodes: Array,
    scaled: Scaled | None, r: Room,
) -> int:  # fmt: skip
    """Fill ways, tops, starts and, for sums, shares and sums of frame t from the nodes after it. Cost D * K.

    With levels, from what fill_segments gave, where what is left of the loss comes to stratum v. Returns how many
    durations there are. Much of the time goes here. Here and below loops over states run over rows that were cut to the
    span, from 0 on: a loop that starts elsewhere is not vectorised.
    """
    count, paired = int(min(s.durations.shape[1], s.limits[b, t])), nodes.shape[2] > 1
    total, tops = r.sums[first:last], r.tops[first:last]
    total[:] = 0.0
    tops[:] = -np.inf
    if levels is not None:
        fill_ways_of(levels, b, t, v, first, last, count, nodes, r)
    for d in range(count if levels is None else 0):
        row, frames, durations = r.ways[d, first:last], s.frames[b, t + d, first:last], s.durations[b, d, first:last]
        following = nodes[0, t + d + 1, d if paired else 0, first + 1 : last + 1]
        if d + 1 < s.shortest:
            row[:] = -np.inf
            add(total, frames)
            continue
        for k in range(total.shape[0]):
            total[k] += frames[k]
            value = (total[k] + durations[k]) + following[k]
            row[k] = value
            tops[k] = value.real if value.real > tops[k] else tops[k]
    starts, opening, sums = r.starts[first:last], s.opening[b, t, first:last], r.sums[first:last]
    if scaled is not None:
        share_ways(count, first, last, r)
    for k in range(starts.shape[0]):
        starts[k] = opening[k] + tops[k] + (0.0 if scaled is None else np.log(sums[k]))
    return count


@helper
def take_column(table: Array, k: int, count: int, out: Array) -> None:
    """Put what state k has in a table (D, K) side by side."""
    for d in range(count):
        out[d] = table[d, k]


@helper
def pull(
    matrix: Array, scaled: Scaled | None, m: int, values: Array, exps: Array, top: float, count: int, row: Array,
    begin: int, end: int, out: Array,
) -> None:  # fmt: skip
    """out[p] = log of the sum over i < count of exp(matrix[p, i] + values[i]); without `scaled` the largest of these.

    The matrix is the m-th of those that are scaled, and exps = exp(values - top).
    """
    if scaled is None:
        largest_sums(matrix, values, count, begin, end, out)
    else:
        weights, largest = scaled.weights[m], scaled.largest[m]
        for p in range(begin, end):
            own, total = weights[p], 0.0
            for i in range(count):
                total += own[i] * exps[i]
            if total.real > TINY:
                out[p] = largest[p] + top + np.log(total)
            else:
                base, total = share_logs(matrix[p], values, count, row)
                out[p] = base + np.log(total)


@exact_helper
def backward(s: Segments, levels: Levels | None, b: int, nodes: Array, scaled: Scaled | None, r: Room) -> None:
    """nodes (V, T + 1, P, K + 1) = log of the sum over the ways to finish from each; without `scaled` the maximum.

    With levels, over the ways whose loss comes to that of stratum v. -inf where there is none. Time T * K * D, and
    T * K * D**2 with rates, T * K**2 with transitions, times V.
    """
    length, (V, _, P, J), K = s.lengths[b], nodes.shape, s.opening.shape[2]
    nodes[:] = -np.inf
    for p in range(P):
        for j in range(J):
            nodes[0, length, p, j] = s.final[b, j]
    matrices = matrices_of(s, b)
    for t in range(length - 1, -1, -1):
        first, last = span(s, b, t)
        if levels is not None:
            fill_segments(s, b, t, first, last, r)
        for v in range(V if first < last else 0):
            count, out = look_ahead(s, levels, b, t, v, first, last, nodes, scaled, r), nodes[v, t]
            if s.transitions.size:
                begin, end = (1, J) if t else (0, 1)  # before all frames there is node 0 only
                top = 0.0 if scaled is None else scaled_exp(r.starts, K, r.start_exps)
                pull(matrices[0], scaled, 0, r.starts, r.start_exps, top, K, r.row, begin, end, out[0])
            elif s.rates.size:
                end = max(1, min(t, P))
                for k in range(first, last):
                    take_column(r.ways, k, count, r.column)
                    if scaled is not None:
                        take_column(r.shares, k, count, r.column_exps)
                    pull(matrices[k], scaled, k, r.column, r.column_exps, r.tops[k], count, r.row, 0, end, r.before)
                    for p in range(end):
                        out[p, k] = s.opening[b, t, k] + r.before[p]
            else:
                for k in range(first, last):
                    out[0, k] = r.starts[k]


# --- Walks: the best, the best at each value of a loss, and samples --------------------------------------------------


@exact_helper
def pick(scores: Array, values: Array, count: int, backwards: bool, uniform: float | None, row: Array) -> int:
    """The first i < count with the largest of scores[i] + values[i], or the last where `backwards`.

    Or, by a uniform number, one drawn in proportion to the exponentials of these: the last that is possible and before
    which no more than so much of the whole lies.
    """
    chosen, before, top = 0, 0.0, -np.inf
    if uniform is None:
        for n in range(count):
            i = count - 1 - n if backwards else n
            value = scores[i] + values[i]
            if value > top:
                chosen, top = i, value
    else:
        rest = uniform * share_logs(scores, values, count, row)[1]
        for i in range(count):
            if row[i] > 0.0 and before <= rest:
                chosen = i
            before += row[i]
    return chosen


@exact_kernel
def walks(
    worker: int, workers: int, s: Segments, levels: Levels | None, uniforms: Array | None, value: Array, labels: Ints
) -> None:
    """labels (n, B, T) = the state of the segment that starts at each frame of n ways, all others stay as they are.

    The best, or with levels the best from each stratum on; value (V, B) = their scores, -inf where there is none. Of
    several, states are taken in their order, and the shorter segment first, or the longer. Or they are drawn, with
    uniforms (n, B, T, 2), first each state, then its duration, and value (1, B) = log Z. Time as `backward`, and K + D
    for each segment of a way, with levels as a frame of `backward`; memory V * T * K, with rates V * T * K * D.
    """
    n, K, r, nodes = labels.shape[0], s.opening.shape[2], make_room(s, value), make_nodes(s, value.shape[0], value)
    places = np.empty((4, n), np.int64)
    due, node, pair, stratum = places[0], places[1], places[2], places[3]
    for b in range(worker, value.shape[1], workers):
        scaled = None if uniforms is None else scaled_matrices(s, b, value)
        backward(s, levels, b, nodes, scaled, r)
        for v in range(value.shape[0]):
            value[v, b] = nodes[v, 0, 0, 0]
        for i in range(n):
            due[i], node[i], pair[i], stratum[i] = 0, 0, 0, i if uniforms is None else 0
        for t in range(s.lengths[b]):
            (first, last), count = span(s, b, t), 0
            for i in range(n):
                v, k, p = stratum[i], node[i], pair[i]
                if due[i] != t or nodes[v, t, p, k] == -np.inf:
                    continue
                if count == 0 and levels is not None:
                    fill_segments(s, b, t, first, last, r)
                if count == 0 or levels is not None:
                    count = look_ahead(s, levels, b, t, v, first, last, nodes, scaled, r)
                if s.transitions.size:
                    u = None if uniforms is None else uniforms[i, b, t, 0]
                    k = pick(s.transitions[b, k], r.starts, K, False, u, r.row)
                take_column(r.ways, k, count, r.column)
                w = None if uniforms is None else uniforms[i, b, t, 1]
                d = pick(s.rates[b, k, p] if s.rates.size else r.zeros, r.column, count, s.longest_first, w, r.row)
                labels[i, b, t] = k
                if levels is not None:
                    for e in range(d + 1):
                        stratum[i] = stratum_after(levels, b, t, stratum[i], k, e)
                due[i], node[i], pair[i] = t + d + 1, k + 1, d if s.rates.size else 0


@exact_kernel
def completions(worker: int, workers: int, s: Segments, best: Array) -> None:
    """best (B, T + 1, P, K + 1) = the best score of a way to finish from each node."""
    r = make_room(s, best)
    for b in range(worker, best.shape[0], workers):
        backward(s, None, b, best[b : b + 1], None, r)
