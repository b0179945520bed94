"""What every kernel over segments reads: T frames that segments tile, each segment in one of K states.

A way to cut the frames goes through nodes (t, p, j): so far t frames are covered, the last segment was in state j - 1
(j = 0: none yet) and had p + 1 frames. Only rates ask for p; without them it is always 0. From there a segment in state
k that has d + 1 frames leads to (t + d + 1, d, k + 1) and scores

    transitions[j, k] + opening[t, k] + the sum of frames[t : t + d + 1, k] + durations[d, k] + rates[k, p, d].

Where the states stand in a row (there are no transitions), only state j follows node j: the N segments of an example
have names. A sum over frames is carried on from one duration to the next rather than taken as a difference of sums from
the start, so that -inf stays -inf and nothing is lost to scores of other frames.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_kernel, kernel
from structloss.kernels.types import Array, Ints


class Segments(NamedTuple):
    """The scores of a batch, in float64. An absent array has size 0."""

    opening: Array  # (B, T, K)
    frames: Array  # (B, T, K)
    durations: Array  # (B, D, K)
    rates: Array  # (B, K, D, D); 0 for state 0, which has none before it
    transitions: Array  # (K + 1, K), absent where states stand in a row
    final: Array  # (B, K + 1), of ending in node j
    lengths: Ints  # (B,)
    limits: Ints  # (B, T), the most frames that a segment can have which starts there
    counts: Ints  # (B,), the number of segments; where there are transitions it is not read
    shortest: int  # the fewest frames of a segment


class Gradients(NamedTuple):
    """The derivatives of each example's own value, of a batch or of one example; size 0 where one is not wanted."""

    opening: Array  # (B, T, K)
    frames: Array  # (B, T, K)
    durations: Array  # (B, D, K)
    rates: Array  # (B, K, D, D)
    transitions: Array  # (B, K + 1, K)
    final: Array  # (B, K + 1)


@kernel
def gradients_of(g: Gradients, b: int) -> Gradients:
    """Those of example b."""
    return Gradients(g.opening[b], g.frames[b], g.durations[b], g.rates[b], g.transitions[b], g.final[b])


@kernel
def room_for_nodes(s: Segments, fill: float) -> Array:
    """A number for each node, (T + 1, P, K + 1)."""
    _, T, K = s.opening.shape
    return np.full((T + 1, s.durations.shape[1] if s.rates.size else 1, K + 1), fill)


@kernel
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


@kernel
def nodes_at(s: Segments, t: int) -> tuple[int, int]:
    """Where there are transitions, the first node at frame t, and the one after the last: before all frames, node 0."""
    return (0, 1) if t == 0 else (1, s.transitions.shape[0])


@kernel
def count_durations(s: Segments, b: int, t: int) -> int:
    """How many durations a segment from t on can have, the shortest being 1."""
    return int(min(s.durations.shape[1], s.limits[b, t]))


@exact_kernel
def fill_segments(s: Segments, b: int, t: int, count: int, first: int, last: int, sums: Array, out: Array) -> None:
    """out[d, k] = the frames and the duration of a segment of d + 1 <= count frames from t on, -inf where none is.

    sums (K,) is room to work in. Cost D * K. Here and below loops over states run over rows that were cut to the span,
    from 0 on: a loop that starts elsewhere is not vectorised.
    """
    total = sums[first:last]
    total[:] = 0.0
    for d in range(count):
        row, frames, durations = out[d, first:last], s.frames[b, t + d, first:last], s.durations[b, d, first:last]
        for k in range(total.shape[0]):
            total[k] += frames[k]
        if d + 1 < s.shortest or d >= s.limits[b, t]:
            row[:] = -np.inf
        else:
            for k in range(total.shape[0]):
                row[k] = total[k] + durations[k]


@exact_kernel
def add_following(nodes: Array, t: int, count: int, first: int, last: int, out: Array) -> None:
    """out[d, k] += what follows a segment of d + 1 frames from t on in state k."""
    paired = nodes.shape[1] > 1
    for d in range(count):
        row, following = out[d, first:last], nodes[t + d + 1, d if paired else 0, first + 1 : last + 1]
        for k in range(row.shape[0]):
            row[k] += following[k]


@exact_kernel
def fill_ways(
    s: Segments, b: int, t: int, first: int, last: int, nodes: Array, sums: Array, tops: Array, out: Array
) -> int:
    """out[d, k] = what fill_segments gives, and what follows; tops[k] = the largest of them.

    Returns how many durations there are. In one pass: much of the time goes here.
    """
    count = count_durations(s, b, t)
    total, top, paired = sums[first:last], tops[first:last], nodes.shape[1] > 1
    total[:], top[:] = 0.0, -np.inf
    for d in range(count):
        row, frames, durations = out[d, first:last], s.frames[b, t + d, first:last], s.durations[b, d, first:last]
        following = nodes[t + d + 1, d if paired else 0, first + 1 : last + 1]
        if d + 1 < s.shortest:
            row[:] = -np.inf
            add(total, frames)
            continue
        for k in range(total.shape[0]):
            total[k] += frames[k]
            value = (total[k] + durations[k]) + following[k]
            row[k] = value
            top[k] = value if value > top[k] else top[k]
    return count


@kernel
def spread(g: Gradients, t: int, count: int, first: int, last: int, weights: Array, sums: Array) -> None:
    """Add weights[d, k], what the segments from t on weigh, to all that scores them but rates and transitions.

    A frame is in all segments that do not end before it: its weights are summed from the longest on. Cost D * K.
    """
    tails = sums[first:last]
    tails[:] = 0.0
    for d in range(count - 1, -1, -1):
        row = weights[d, first:last]
        for k in range(tails.shape[0]):
            tails[k] += row[k]
        if g.frames.size:
            add(g.frames[t + d, first:last], tails)
        if g.durations.size:
            add(g.durations[d, first:last], row)
    if g.opening.size:
        add(g.opening[t, first:last], tails)


@kernel
def add(total: Array, row: Array) -> None:
    """total += row."""
    for k in range(total.shape[0]):
        total[k] += row[k]


@kernel
def advance(nodes: Array, t: int, count: int, first: int, last: int, weights: Array) -> None:
    """Carry weights[d, k] of segments from t on to the nodes that they lead to."""
    paired = nodes.shape[1] > 1
    for d in range(count):
        add(nodes[t + d + 1, d if paired else 0, first + 1 : last + 1], weights[d, first:last])
