"""Maxima over the outputs of a chain times a machine: the best output, the k best; and the score of one.

Both searches fill, from the last level to the first, the best way to finish,

    best(t, s, h) = max over y of score(t, h, y) + weight(s, y) + best(t + 1, next(s, y), (h * K + y) mod H),

and then read the output off from the front, taking the smallest label that attains the maximum: of several best outputs
the lexicographically smallest.
"""

import numpy as np

from structloss.kernels.compile import kernel, kernel_without_nan
from structloss.kernels.levels import (
    Machines,
    Potentials,
    arc_of,
    fill_begins,
    fill_row,
    fill_scores,
    fill_unaries,
    largest_machine,
    machine_of,
    num_histories,
    num_labels,
    num_positions,
    num_rows,
    weight_at,
)
from structloss.kernels.types import NOT_A_NUMBER, OK, Array, Ints


@kernel
def score(p: Potentials, y: Ints, value: Array, status: Ints) -> None:
    """value (n, B) = the score of each output y (n, B, T), -inf of a row of -1, which is none. Cost L an output."""
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
                if label < 0:
                    total = -np.inf
                    break
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
def argmax(worker: int, workers: int, p: Potentials, m: Machines, value: Array, labels: Ints, status: Ints) -> None:
    """labels (B, V, T) = the best output from each start, and value (B, V) its score, -inf where there is none.

    A loss machine starts in one state; v < V are the states of the first level of one that starts in any of them.
    Time S * L * K**q an example, memory S * L * H a worker.
    """
    K, H, T = num_labels(p), num_histories(p), num_positions(p)
    states, _, _ = largest_machine(m, p.lengths)
    best, unary, level = np.empty((states, H)), np.empty((T, K)), np.empty((H, K))
    begin, row, ahead = np.empty(T + 1, np.int64), np.empty(K), np.empty((max(1, H // K), K))
    for b in range(worker, p.lengths.shape[0], workers):
        length, i = p.lengths[b], machine_of(m, b)
        fill_begins(m, i, length, begin)
        fill_unaries(p, b, length, unary)
        for s in range(m.sizes[i, length]):
            for h in range(H):
                best[begin[length] + s, h] = m.final[i, s]
        for t in range(length - 1, -1, -1):
            rows = num_rows(p, t)
            status[b] = max(status[b], fill_scores(p, b, t, rows, unary, level))
            if status[b] != OK:
                break
            blocks = min(rows, ahead.shape[0])
            for s in range(m.sizes[i, t]):
                for y in range(K):
                    arc = arc_of(m, i, t, s, y)
                    weight, state = weight_at(m.weight, arc), begin[t + 1] + m.next_state[arc]
                    for r in range(blocks):
                        ahead[r, y] = weight + best[state, r * K + y if H > 1 else 0]
                best_rows(level, ahead, rows, best[begin[t] + s])
        for v in range(m.sizes[i, 0] if status[b] == OK else 0):
            value[b, v] = best[v, 0]
            if best[v, 0] == -np.inf:
                continue
            h, s = 0, v
            for t in range(length):
                fill_row(p, b, t, h, unary, row)
                top, label = -np.inf, 0
                for y in range(K):
                    arc = arc_of(m, i, t, s, y)
                    following = best[begin[t + 1] + m.next_state[arc], (h * K + y) % H]
                    score = row[y] + (weight_at(m.weight, arc) + following)
                    if score > top:
                        top, label = score, y
                labels[b, v, t] = label
                s = m.next_state[arc_of(m, i, t, s, label)]
                h = (h * K + label) % H


@kernel
def topk(worker: int, workers: int, p: Potentials, m: Machines, labels: Ints, status: Ints) -> None:
    """labels (B, k, T) = the k best outputs, best first, ties in lexicographic order; -1 where there are fewer.

    Each state keeps its k best ways to finish; those of its K successors are sorted, so the next best is always at the
    head of one of them. Time k * S * L * K**q an example, memory k * S * L * H a worker.
    """
    K, H, T, k = num_labels(p), num_histories(p), num_positions(p), labels.shape[1]
    states, _, _ = largest_machine(m, p.lengths)
    best, unary, level = np.empty((states, H, k)), np.empty((T, K)), np.empty((H, K))
    via = np.empty((states, H, k, 2), np.int32)  # label, and rank among the ways to finish after it
    head, begin, target = np.empty(K, np.int64), np.empty(T + 1, np.int64), np.empty(K, np.int64)
    weight: Array = np.empty(K)
    for b in range(worker, p.lengths.shape[0], workers):
        length, i = p.lengths[b], machine_of(m, b)
        fill_begins(m, i, length, begin)
        fill_unaries(p, b, length, unary)
        for s in range(m.sizes[i, length]):
            best[begin[length] + s] = -np.inf
            best[begin[length] + s, :, 0] = m.final[i, s]
        for t in range(length - 1, -1, -1):
            rows = num_rows(p, t)
            status[b] = max(status[b], fill_scores(p, b, t, rows, unary, level))
            if status[b] != OK:
                break
            for s in range(m.sizes[i, t]):
                for y in range(K):
                    arc = arc_of(m, i, t, s, y)
                    target[y], weight[y] = begin[t + 1] + m.next_state[arc], weight_at(m.weight, arc)
                for h in range(rows):
                    head[:] = 0
                    for rank in range(k):
                        top, label = -np.inf, -1
                        for y in range(K):
                            if head[y] < k:
                                following = best[target[y], (h * K + y) % H, head[y]]
                                score = level[h, y] + (weight[y] + following)
                                if score > top:
                                    top, label = score, y
                        best[begin[t] + s, h, rank] = top
                        via[begin[t] + s, h, rank, 0] = label
                        if label >= 0:
                            via[begin[t] + s, h, rank, 1] = head[label]
                            head[label] += 1
        for n in range(k if status[b] == OK else 0):
            if best[0, 0, n] == -np.inf:
                continue
            h, s, rank = 0, 0, n
            for t in range(length):
                label = via[begin[t] + s, h, rank, 0]
                rank = via[begin[t] + s, h, rank, 1]
                labels[b, n, t] = label
                s = m.next_state[arc_of(m, i, t, s, label)]
                h = (h * K + label) % H
