"""The k best ways to cut frames into segments, by best-first search."""

import heapq

import numpy as np
import torch
from numpy.typing import NDArray

from structloss.kernels.segments import Segments
from structloss.structures.base import Found
from structloss.structures.segments.parts import Parts

Path = tuple[tuple[int, int], ...]  # the frame where each segment starts, and its state


def ranked(p: Parts, best: NDArray[np.float64], k: int) -> Found:
    """The k best ways (k, B, T) of every example, from the best scores (B, T + 1, P, K + 1) of ways to finish."""
    marks = torch.full((k, *p.opening.shape[:2]), -1)
    exists = torch.zeros(k, p.opening.shape[0], dtype=torch.bool)
    for b in range(marks.shape[1]):
        for i, path in enumerate(best_paths(p.arrays, b, best[b], k, p.longest_first)):
            exists[i, b] = True
            for t, state in path:
                marks[i, b, t] = state
    return Found(marks.to(p.opening.device), exists.to(p.opening.device))


def best_paths(s: Segments, b: int, best: NDArray[np.float64], k: int, longest_first: bool) -> list[Path]:
    """The k best of example b, best first; of equals, that which comes first in the order of states and durations.

    best (T + 1, P, K + 1) is the score of the best way to finish from each node, so that what is taken off the heap is
    always the beginning of one of the k: at most k times the segments of a way are looked at, each for D durations.
    """
    length = int(s.lengths[b])
    heap: list[tuple[float, tuple[int, ...], float, tuple[int, int, int], Path]] = [
        (-float(best[0, 0, 0]), (), 0.0, (0, 0, 0), ())
    ]
    found: list[Path] = []
    while heap and len(found) < k:
        bound, order, score, (t, p, j), path = heapq.heappop(heap)
        if bound == np.inf:
            break
        if t == length:
            found.append(path)
            continue
        states, scores = _segments(s, b, t, p, j)  # (S,), (durations, S)
        count = len(scores)
        pairs = np.arange(count) if s.rates.size else np.zeros(count, np.int64)
        ahead = best[t + 1 + np.arange(count)[:, None], pairs[:, None], states + 1]
        # In the order of outputs: by state, then by duration.
        totals = (score + scores + ahead)[:: -1 if longest_first else 1].T.ravel()
        for i in np.argsort(-totals, kind="stable")[:k].tolist():
            if totals[i] == -np.inf:
                break
            which, d = divmod(i, count)
            d = count - 1 - d if longest_first else d
            state = int(states[which])
            further = (*order, state, -d if longest_first else d)
            node = (t + d + 1, d if s.rates.size else 0, state + 1)
            entry = (-float(totals[i]), further, score + float(scores[d, which]), node, (*path, (t, state)))
            heapq.heappush(heap, entry)
    return found


def _segments(s: Segments, b: int, t: int, p: int, j: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The states that can follow node (t, p, j), and the scores of their segments (durations, states)."""
    count = min(s.durations.shape[1], int(s.limits[b, t]))
    states = np.arange(s.opening.shape[2]) if s.transitions.size else np.array([j])
    scores = s.frames[b][t : t + count, states].cumsum(0)
    scores = scores + s.durations[b][:count, states] + s.opening[b, t, states]
    scores[: s.shortest - 1] = -np.inf
    if s.transitions.size:
        scores = scores + s.transitions[b, j]
    if s.rates.size and j > 0:
        scores = scores + s.rates[b, j, p, :count, None]
    return states, scores
