"""Maxima over the outputs of a chain: the best output, the k best, the best at each value of a loss; and one's score.

All of them fill, from the last level to the first, the best way to finish,

    best(t, h) = max over y of score(t, h, y) + best(t + 1, (h * K + y) mod H),

and then read the output off from the front, taking the smallest label that attains the maximum: of several best outputs
the lexicographically smallest.
"""

import numpy as np

from structloss.kernels.compile import kernel, kernel_without_nan
from structloss.kernels.levels import (
    Potentials,
    fill_row,
    fill_scores,
    num_histories,
    num_labels,
    num_positions,
    num_rows,
)
from structloss.kernels.types import EMPTY, NOT_A_NUMBER, OK, Array, Ints


@kernel
def score(p: Potentials, y: Ints, value: Array, status: Ints) -> None:
    """value (n, B) = the score of each output y (n, B, T). Cost L an output."""
    K, H = num_labels(p), num_histories(p)
    has_unary, pinned, dense = p.unary.size > 0, p.pinned.size > 0, p.table.size > 0 and not p.shared
    first_shared = p.order - 1 if p.table.size and p.shared else num_positions(p)
    for n in range(y.shape[0]):
        for b in range(y.shape[1]):
            total, h, length = 0.0, 0, p.lengths[b]
            if length and p.start.size:
                total += p.start[y[n, b, 0]]
            if length and p.end.size:
                total += p.end[y[n, b, length - 1]]
            for t in range(length):
                label = y[n, b, t]
                if has_unary:
                    total += p.unary[b, t, label]
                if dense:
                    total += p.table[b, t, h, label]
                elif t >= first_shared:
                    total += p.table[0, 0, h, label]
                if pinned and 0 <= p.pinned[b, t] != label:
                    total = -np.inf
                h = label if H == K else (h * K + label) % H
            value[n, b] = total
            if total != total:
                status[b] = NOT_A_NUMBER


@kernel
def score_gradient(
    p: Potentials, y: Ints, g: Array,
    g_unary: Array, g_table: Array, g_levels: Array, g_start: Array, g_end: Array,
) -> None:  # fmt: skip
    """Add g (n, B) to the gradient of every potential that y (n, B, T) uses, into each array that is there."""
    K, H = num_labels(p), num_histories(p)
    has_unary, has_levels = g_unary.size > 0, g_levels.size > 0
    first_shared = p.order - 1 if g_table.size else num_positions(p)
    for n in range(y.shape[0]):
        for b in range(y.shape[1]):
            weight, h, length = g[n, b], 0, p.lengths[b]
            if length and g_start.size:
                g_start[y[n, b, 0]] += weight
            if length and g_end.size:
                g_end[y[n, b, length - 1]] += weight
            for t in range(length):
                label = y[n, b, t]
                if has_unary:
                    g_unary[b, t, label] += weight
                if has_levels:
                    g_levels[b, t, h, label] += weight
                elif t >= first_shared:
                    g_table[h, label] += weight
                h = label if H == K else (h * K + label) % H


@kernel_without_nan
def best_rows(scores: Array, ahead: Array, rows: int, out: Array) -> None:
    """out[h] = max over y of scores[h, y] + ahead[h mod len(ahead), y], for h < rows."""
    K, blocks = scores.shape[1], ahead.shape[0]
    for h in range(rows):
        r = h % blocks
        top = -np.inf
        for y in range(K):
            value = scores[h, y] + ahead[r, y]
            top = value if value > top else top
        out[h] = top


@kernel
def argmax(worker: int, workers: int, p: Potentials, labels: Ints, status: Ints) -> None:
    """labels (B, T) = the best output; status is EMPTY, and labels are 0, where there is none.

    Time L * K**q an example, memory L * H a worker.
    """
    K, H, T = num_labels(p), num_histories(p), num_positions(p)
    best, unary, level = np.empty((T + 1, H)), np.empty(K), np.empty((H, K))
    following = best.reshape(T + 1, max(1, H // K), -1)
    ahead = np.zeros((max(1, H // K), K))
    for b in range(worker, p.lengths.shape[0], workers):
        length = p.lengths[b]
        best[length, :] = 0.0
        for t in range(length - 1, -1, -1):
            rows = num_rows(p, t)
            status[b] = max(status[b], fill_scores(p, b, t, length, rows, unary, level))
            if status[b] != OK:
                break
            for r in range(ahead.shape[0]):
                for y in range(K):
                    ahead[r, y] = following[t + 1, r, y if H > 1 else 0]
            best_rows(level, ahead, rows, best[t])
        if status[b] != OK:
            continue
        if length > 0 and best[0, 0] == -np.inf:
            status[b] = EMPTY
            continue
        h = 0
        for t in range(length):
            fill_row(p, b, t, length, h, unary)
            first, top, label = (h * K) % H, -np.inf, 0
            for y in range(K):
                value = unary[y] + best[t + 1, first + y if H > 1 else 0]
                if value > top:
                    top, label = value, y
            labels[b, t] = label
            h = (h * K + label) % H


@kernel
def topk(worker: int, workers: int, p: Potentials, labels: Ints, status: Ints) -> None:
    """labels (B, k, T) = the k best outputs, best first, ties in lexicographic order; -1 where there are fewer.

    Each state keeps its k best ways to finish; those of its K successors are sorted, so the next best is always at the
    head of one of them. Time k * L * K**q an example, memory k * L * H a worker.
    """
    K, H, T, k = num_labels(p), num_histories(p), num_positions(p), labels.shape[1]
    best, unary, level = np.empty((T + 1, H, k)), np.empty(K), np.empty((H, K))
    via = np.empty((T, H, k, 2), np.int32)  # label, and rank among the ways to finish after it
    head = np.empty(K, np.int64)
    for b in range(worker, p.lengths.shape[0], workers):
        length = p.lengths[b]
        best[length, :, :] = -np.inf
        best[length, :, 0] = 0.0
        for t in range(length - 1, -1, -1):
            rows = num_rows(p, t)
            status[b] = max(status[b], fill_scores(p, b, t, length, rows, unary, level))
            if status[b] != OK:
                break
            for h in range(rows):
                first = (h * K) % H
                head[:] = 0
                for rank in range(k):
                    top, label = -np.inf, -1
                    for y in range(K):
                        if head[y] < k:
                            value = level[h, y] + best[t + 1, first + y if H > 1 else 0, head[y]]
                            if value > top:
                                top, label = value, y
                    best[t, h, rank] = top
                    via[t, h, rank, 0] = label
                    if label >= 0:
                        via[t, h, rank, 1] = head[label]
                        head[label] += 1
        if status[b] != OK:
            continue
        for i in range(k):
            if best[0, 0, i] == -np.inf:
                continue
            h, rank = 0, i
            for t in range(length):
                label = via[t, h, rank, 0]
                rank = via[t, h, rank, 1]
                labels[b, i, t] = label
                h = (h * K + label) % H


@kernel
def strata(
    worker: int, workers: int, p: Potentials, next_stratum: Ints, cost_class: Ints, sizes: Ints,
    best_scores: Array, labels: Ints, status: Ints,
) -> None:  # fmt: skip
    """The best output at each value of a loss that is a sum of costs, one for each position.

    Stratum v of level t is one value that the costs from t on can sum to, v < sizes[b, t]; with label y of cost class c
    it is followed by stratum next_stratum[b, t, v, c] (-1: none) of level t + 1. Then

        best(t, v, h) = max over y of score(t, h, y) + best(t + 1, next(v, y), h'),

    best_scores (B, V) are those of level 0, and labels (B, V, T) their outputs. Time L * V * K**q, memory L * V * H.
    """
    K, H, T, V = num_labels(p), num_histories(p), num_positions(p), labels.shape[1]
    best, unary, level = np.empty((T + 1, V, H)), np.empty(K), np.empty((H, K))
    for b in range(worker, p.lengths.shape[0], workers):
        length = p.lengths[b]
        best[length, :, :] = 0.0
        for t in range(length - 1, -1, -1):
            rows = num_rows(p, t)
            status[b] = max(status[b], fill_scores(p, b, t, length, rows, unary, level))
            if status[b] != OK:
                break
            for v in range(sizes[b, t]):
                for h in range(rows):
                    first, top = (h * K) % H, -np.inf
                    for y in range(K):
                        following = next_stratum[b, t, v, cost_class[b, t, y]]
                        if following >= 0:
                            top = max(top, level[h, y] + best[t + 1, following, first + y if H > 1 else 0])
                    best[t, v, h] = top
        if status[b] != OK:
            continue
        for v in range(sizes[b, 0] if length > 0 else 1):
            best_scores[b, v] = best[0, v, 0]
            if best[0, v, 0] == -np.inf:
                continue
            stratum, h = v, 0
            for t in range(length):
                fill_row(p, b, t, length, h, unary)
                first, top, label = (h * K) % H, -np.inf, 0
                for y in range(K):
                    following = next_stratum[b, t, stratum, cost_class[b, t, y]]
                    if following >= 0:
                        value = unary[y] + best[t + 1, following, first + y if H > 1 else 0]
                        if value > top:
                            top, label = value, y
                labels[b, v, t] = label
                stratum = next_stratum[b, t, stratum, cost_class[b, t, label]]
                h = (h * K + label) % H
