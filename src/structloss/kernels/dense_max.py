"""Maxima over the outputs of a chain times a machine: the best output, the k best; and the score of one.

Both searches fill, from the last level to the first, the best way to finish,

    best(t, s, h) = max over y of score(t, h, y) + weight(s, y) + best(t + 1, next(s, y), (h * K + y) mod H),

and then read the output off from the front, taking the smallest label that attains the maximum: of several best outputs
the lexicographically smallest.

As in `dense`, a level's states are a table (H, S); of the usual CRF, order 2 and a shared table, and a machine of few
states it is (S, H), and the vectors are over labels.
"""

import numpy as np

from structloss.kernels import levels
from structloss.kernels.compile import helper_without_nan, kernel
from structloss.kernels.dense import FEW
from structloss.kernels.levels import Machines, Potentials
from structloss.kernels.steps import table_of
from structloss.kernels.types import NOT_A_NUMBER, OK, Array, Ints


@kernel
def score(p: Potentials, y: Ints, value: Array, status: Ints) -> None:
    """value (n, B) = the score of each output y (n, B, T), -inf of a row of -1, which is none. Cost L an output."""
    T, H, K = levels.shape_of(p)
    has_unary, pinned, dense = p.unary.size > 0, p.pinned.size > 0, p.table.size > 0 and not p.shared
    first_shared = p.order - 1 if p.table.size and p.shared else T
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
    T, H, K = levels.shape_of(p)
    has_unary, has_levels = g_unary.size > 0, g_levels.size > 0
    first_shared = p.order - 1 if g_table.size else T
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


@helper_without_nan
def best_rows(table: Array, ahead: Array, rows: int, blocks: int, S: int, best: Array, at: int) -> None:
    """best[at + h * S + s] = max over y of table[h, y] + ahead[((h mod blocks) * K + y) * S + s], for h < rows.

    Two h and four y at a time, as in `steps.combine`; of one state, one h and all y.
    """
    K = table.shape[1]
    if S == 1:
        for h in range(rows):
            first, top = h % blocks * K, -np.inf
            for y in range(K):
                value = table[h, y] + ahead[first + y]
                top = value if value > top else top
            best[at + h] = top
        return
    vectors, out = table_of(ahead, 0, blocks * K, S), table_of(best, at, rows, S)
    for r in range(blocks):
        for h in range(r, rows, 2 * blocks):
            g, first = h + blocks if h + blocks < rows else h, r * K
            for s in range(S):
                out[h, s] = -np.inf
                out[g, s] = -np.inf
            for y in range(0, K - K % 4, 4):
                e0, e1, e2, e3 = table[h, y], table[h, y + 1], table[h, y + 2], table[h, y + 3]
                f0, f1, f2, f3 = table[g, y], table[g, y + 1], table[g, y + 2], table[g, y + 3]
                a0, a1, a2, a3 = first + y, first + y + 1, first + y + 2, first + y + 3
                for s in range(S):
                    v0, v1, v2, v3 = vectors[a0, s], vectors[a1, s], vectors[a2, s], vectors[a3, s]
                    one = max(max(max(e0 + v0, e1 + v1), max(e2 + v2, e3 + v3)), out[h, s])
                    two = max(max(max(f0 + v0, f1 + v1), max(f2 + v2, f3 + v3)), out[g, s])
                    out[h, s] = one
                    out[g, s] = two
            for y in range(K - K % 4, K):
                e, f = table[h, y], table[g, y]
                for s in range(S):
                    one = max(out[h, s], e + vectors[first + y, s])
                    two = max(out[g, s], f + vectors[first + y, s])
                    out[h, s] = one
                    out[g, s] = two


@kernel
def argmax(worker: int, workers: int, p: Potentials, m: Machines, value: Array, labels: Ints, status: Ints) -> None:
    """labels (B, V, T) = the best output from each start, and value (B, V) its score, -inf where there is none.

    A loss machine starts in one state; v < V are the states of the first level of one that starts in any of them.
    Time S * L * K**q an example, memory S * L * H a worker. Level t of best, (H, S), begins at H * begin[t].
    """
    T, H, K = levels.shape_of(p)
    states, widest, _ = levels.largest_machine(m, p.lengths)
    best, ahead, unary = np.empty(states * H), np.empty(widest * max(H, K)), np.empty((T, K))
    shared, level, begin = np.empty((H, K)), np.empty((H, K)), np.empty(T + 1, np.int64)
    none = np.zeros((max(T, p.order), K))  # in place of unaries, which go with what is ahead
    of_shared = levels.fill_scores(p, 0, p.order - 1, H, none, shared) if p.shared else OK
    usual = p.shared and p.order == 2
    across = np.zeros((2, K, H if usual else 0))  # of the first level, which has no table, and of the others
    for y in range(K if usual else 0):
        for h in range(H):
            across[1, y, h] = shared[h, y]
    for b in range(worker, p.lengths.shape[0], workers):
        length, i = p.lengths[b], levels.machine_of(m, b)
        few = levels.fill_begins(m, i, length, begin) <= FEW and usual
        levels.fill_unaries(p, b, length, unary)
        S_next = m.sizes[i, length]
        for h in range(H):
            for s in range(S_next):
                best[H * begin[length] + (s * H + h if few else h * S_next + s)] = m.final[i, s]
        for t in range(length - 1, -1, -1):
            rows, S, classes, arcs = levels.num_rows(p, t), m.sizes[i, t], levels.classes_at(m, i, t), m.arc_begin[i, t]
            blocks, following, table = min(rows, max(1, H // K)), H * begin[t + 1], shared
            status[b] = max(status[b], of_shared)
            if not p.shared or t < p.order - 1:
                status[b], table = max(status[b], levels.fill_scores(p, b, t, rows, none, level)), level
            for y in range(K):
                status[b] = max(status[b], levels.status_of(unary[t, y]))
            if status[b] != OK:
                break
            for r in range(blocks):
                for y in range(K):
                    first, h = arcs + classes[y] * S, r * K + y if H > 1 else 0
                    for s in range(S):
                        arc = first + s
                        after = m.next_state[arc]
                        way = (
                            levels.weight_at(m.weight, arc)
                            + best[following + (after * H + h if few else h * S_next + after)]
                        )
                        ahead[s * K + y if few else (r * K + y) * S + s] = unary[t, y] + way
            if few:
                best_rows(table_of(ahead, 0, S, K), across[min(t, 1)].reshape(-1), S, 1, H, best, H * begin[t])
            else:
                best_rows(table, ahead, rows, blocks, S, best, H * begin[t])
            S_next = S
        for v in range(m.sizes[i, 0] if status[b] == OK else 0):
            value[b, v] = best[v * H if few else v]
            if value[b, v] == -np.inf:
                continue
            h, s = 0, v
            for t in range(length):
                top, label, tabled, table = -np.inf, 0, levels.has_table(p, t), levels.table_at(p, b, t)
                classes, S, S_next = levels.classes_at(m, i, t), m.sizes[i, t], m.sizes[i, t + 1]
                first, arcs, following = h * K % H, m.arc_begin[i, t] + s, H * begin[t + 1]
                for y in range(K):
                    arc, g = arcs + classes[y] * S, first + y if H > 1 else 0
                    after = m.next_state[arc]
                    after = after * H + g if few else g * S_next + after
                    way = levels.weight_at(m.weight, arc) + best[following + after]
                    score = (table[h, y] if tabled else 0.0) + (unary[t, y] + way)
                    if score > top:
                        top, label = score, y
                labels[b, v, t] = label
                s = m.next_state[arcs + classes[label] * S]
                h = first + label if H > 1 else 0


@kernel
def topk(worker: int, workers: int, p: Potentials, m: Machines, labels: Ints, status: Ints) -> None:
    """labels (B, k, T) = the k best outputs, best first, ties in lexicographic order; -1 where there are fewer.

    Each state keeps its k best ways to finish; those of its K successors are sorted, so the next best is always at the
    head of one of them, `way`. Time k * S * L * K**q an example, memory k * S * L * H a worker.
    """
    (T, H, K), k = levels.shape_of(p), labels.shape[1]
    states, _, _ = levels.largest_machine(m, p.lengths)
    best, unary, level = np.empty((states, H, k)), np.empty((T, K)), np.empty((H, K))
    via = np.empty((states, H, k, 2), np.int32)  # label, and rank among the ways to finish after it
    head, begin, target = np.empty(K, np.int64), np.empty(T + 1, np.int64), np.empty(K, np.int64)
    weight, way = np.empty(K), np.empty(K)
    for b in range(worker, p.lengths.shape[0], workers):
        length, i = p.lengths[b], levels.machine_of(m, b)
        levels.fill_begins(m, i, length, begin)
        levels.fill_unaries(p, b, length, unary)
        for s in range(m.sizes[i, length]):
            best[begin[length] + s] = -np.inf
            best[begin[length] + s, :, 0] = m.final[i, s]
        for t in range(length - 1, -1, -1):
            rows = levels.num_rows(p, t)
            status[b] = max(status[b], levels.fill_scores(p, b, t, rows, unary, level))
            if status[b] != OK:
                break
            for s in range(m.sizes[i, t]):
                for y in range(K):
                    arc = levels.arc_of(m, i, t, s, y)
                    target[y], weight[y] = begin[t + 1] + m.next_state[arc], levels.weight_at(m.weight, arc)
                for h in range(rows):
                    first = h * K % H
                    for y in range(K):
                        head[y] = 0
                        way[y] = level[h, y] + (weight[y] + best[target[y], first + y if H > 1 else 0, 0])
                    for rank in range(k):
                        top, label = -np.inf, -1
                        for y in range(K):
                            if way[y] > top:
                                top, label = way[y], y
                        best[begin[t] + s, h, rank] = top
                        via[begin[t] + s, h, rank, 0] = label
                        if label >= 0:
                            via[begin[t] + s, h, rank, 1] = head[label]
                            head[label] += 1
                            following = -np.inf
                            if head[label] < k:
                                following = best[target[label], first + label if H > 1 else 0, head[label]]
                            way[label] = level[h, label] + (weight[label] + following)
        for n in range(k if status[b] == OK else 0):
            if best[0, 0, n] == -np.inf:
                continue
            h, s, rank = 0, 0, n
            for t in range(length):
                label = via[begin[t] + s, h, rank, 0]
                rank = via[begin[t] + s, h, rank, 1]
                labels[b, n, t] = label
                s = m.next_state[levels.arc_of(m, i, t, s, label)]
                h = (h * K + label) % H
