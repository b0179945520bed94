"""The k best ways to cut frames into segments, by best-first search."""

import heapq

import numpy as np
from numpy.typing import NDArray

from structloss.kernels.segments import Segments
from structloss.structures.base import Found
from structloss.structures.segments.parts import Parts


def ranked(p: Parts, best: NDArray[np.float64], k: int) -> Found:
    """The k best ways (k, B, T) of every example, from the best scores (B, T + 1, P, K + 1) of ways to finish."""
    batch, frames, _ = p.opening.shape

    def marks(way: tuple[int, ...]) -> list[int]:
        rows = ([state, *[-1] * (abs(duration) - 1)] for state, duration in zip(way[::2], way[1::2], strict=True))
        return [mark for row in rows for mark in row]

    ways = [[marks(way) for way in best_ways(p.arrays, b, best[b], k)] for b in range(batch)]
    return Found.of(ways, k, frames, p.opening.device)


def best_ways(s: Segments, b: int, best: NDArray[np.float64], k: int) -> list[tuple[int, ...]]:
    """The k best of example b, best first: state, duration, state, ..., durations negative where the longest are first.

    Of equals, that which comes first in the order of these numbers. best (T + 1, P, K + 1) is the score of the best way
    to finish from each node, so that what is taken off the heap is always the beginning of one of the k: at most k
    times the segments of a way are looked at, each for D durations.
    """
    sign = -1 if s.longest_first else 1
    heap: list[tuple[float, tuple[int, ...], float, tuple[int, int, int]]] = [
        (-float(best[0, 0, 0]), (), 0.0, (0, 0, 0))
    ]
    found: list[tuple[int, ...]] = []
    while heap and len(found) < k:
        bound, way, score, (t, p, j) = heapq.heappop(heap)
        if bound == np.inf:
            break
        if t == s.lengths[b]:
            found.append(way)
            continue
        states = slice(0, s.opening.shape[2]) if s.transitions.size else slice(j, j + 1)  # that can follow
        durations = np.arange(1, min(s.durations.shape[1], s.limits[b, t]) + 1)[::sign]
        scores = s.frames[b, t : t + len(durations), states].cumsum(0) + s.durations[b, : len(durations), states]
        scores = scores + s.opening[b, t, states] + (s.transitions[b, j] if s.transitions.size else 0.0)
        if s.rates.size and j > 0:
            scores = scores + s.rates[b, j, p, : len(durations), None]
        scores[: s.shortest - 1] = -np.inf
        scores, pairs = scores[::sign].T, durations - 1 if s.rates.size else np.zeros_like(durations)
        # In the order of outputs: by state, then by duration.
        totals = score + scores + best[t + durations, pairs, 1:][:, states].T
        for i in np.argsort(-totals, axis=None, kind="stable")[:k].tolist():
            which, d = divmod(i, len(durations))
            if totals[which, d] == -np.inf:
                break
            state, duration = states.start + which, int(durations[d])
            node = (t + duration, int(pairs[d]), state + 1)
            entry = (-float(totals[which, d]), (*way, state, sign * duration), score + float(scores[which, d]), node)
            heapq.heappush(heap, entry)
    return found
