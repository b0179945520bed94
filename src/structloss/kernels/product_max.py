"""Maxima over the outputs of a chain times a loss machine: the recursions of `chain_max` with one more axis.

best(t, s, h) = max over y of score(t, h, y) + weight(s, y) + best(t + 1, next(s, y), (h * K + y) mod H)
"""

import numpy as np

from structloss.kernels.compile import kernel
from structloss.kernels.levels import (
    Potentials,
    fill_row,
    fill_scores,
    num_histories,
    num_labels,
    num_positions,
    num_rows,
)
from structloss.kernels.product import Machines, state_offsets, weight_at
from structloss.kernels.product_sum import longest_machine
from structloss.kernels.types import EMPTY, OK, Array, Ints


@kernel
def argmax(worker: int, workers: int, p: Potentials, m: Machines, labels: Ints, status: Ints) -> None:
    """As `chain_max.argmax`, of the product. Time S * L * K**q an example, memory S * L * H a worker."""
    K, H, T = num_labels(p), num_histories(p), num_positions(p)
    states, _, _ = longest_machine(m, p.lengths)
    best, unary, level = np.empty((states, H)), np.empty(K), np.empty((H, K))
    offsets, ahead, blocks = np.empty(T + 1, np.int64), np.empty((max(1, H // K), K)), max(1, H // K)
    for b in range(worker, p.lengths.shape[0], workers):
        length = p.lengths[b]
        state_offsets(m, b, length, offsets)
        for s in range(m.sizes[b, length]):
            best[offsets[length] + s, :] = m.final[m.final_begin[b] + s]
        for t in range(length - 1, -1, -1):
            rows = num_rows(p, t)
            status[b] = max(status[b], fill_scores(p, b, t, length, rows, unary, level))
            if status[b] != OK:
                break
            here = blocks if rows >= blocks else rows
            for s in range(m.sizes[b, t]):
                for y in range(K):
                    arc = m.arc_begin[b, t] + m.class_of[b, y] * m.sizes[b, t] + s
                    state = offsets[t + 1] + m.next_state[arc]
                    for r in range(here):
                        ahead[r, y] = weight_at(m.weight, arc) + best[state, r * K + y if H > 1 else 0]
                for h in range(rows):
                    top = -np.inf
                    for y in range(K):
                        value = level[h, y] + ahead[h % here, y]
                        top = value if value > top else top
                    best[offsets[t] + s, h] = top
        if status[b] != OK:
            continue
        if best[0, 0] == -np.inf:
            status[b] = EMPTY
            continue
        h, s = 0, 0
        for t in range(length):
            fill_row(p, b, t, length, h, unary)
            first, top, label = (h * K) % H, -np.inf, 0
            for y in range(K):
                arc = m.arc_begin[b, t] + m.class_of[b, y] * m.sizes[b, t] + s
                following = best[offsets[t + 1] + m.next_state[arc], first + y if H > 1 else 0]
                value = unary[y] + (weight_at(m.weight, arc) + following)
                if value > top:
                    top, label = value, y
            labels[b, t] = label
            s = m.next_state[m.arc_begin[b, t] + m.class_of[b, label] * m.sizes[b, t] + s]
            h = (h * K + label) % H


@kernel
def topk(worker: int, workers: int, p: Potentials, m: Machines, labels: Ints, status: Ints) -> None:
    """As `chain_max.topk`, of the product. Time k * S * L * K**q an example, memory k * S * L * H a worker."""
    K, H, T, k = num_labels(p), num_histories(p), num_positions(p), labels.shape[1]
    states, _, _ = longest_machine(m, p.lengths)
    best, unary, level = np.empty((states, H, k)), np.empty(K), np.empty((H, K))
    via = np.empty((states, H, k, 2), np.int32)  # label, and rank among the ways to finish after it
    head, offsets, target = np.empty(K, np.int64), np.empty(T + 1, np.int64), np.empty(K, np.int64)
    weight: Array = np.empty(K)
    for b in range(worker, p.lengths.shape[0], workers):
        length = p.lengths[b]
        state_offsets(m, b, length, offsets)
        for s in range(m.sizes[b, length]):
            best[offsets[length] + s, :, :] = -np.inf
            best[offsets[length] + s, :, 0] = m.final[m.final_begin[b] + s]
        for t in range(length - 1, -1, -1):
            rows = num_rows(p, t)
            status[b] = max(status[b], fill_scores(p, b, t, length, rows, unary, level))
            if status[b] != OK:
                break
            for s in range(m.sizes[b, t]):
                for y in range(K):
                    arc = m.arc_begin[b, t] + m.class_of[b, y] * m.sizes[b, t] + s
                    target[y], weight[y] = offsets[t + 1] + m.next_state[arc], weight_at(m.weight, arc)
                for h in range(rows):
                    first = (h * K) % H
                    head[:] = 0
                    for rank in range(k):
                        top, label = -np.inf, -1
                        for y in range(K):
                            if head[y] < k:
                                following = best[target[y], first + y if H > 1 else 0, head[y]]
                                value = level[h, y] + (weight[y] + following)
                                if value > top:
                                    top, label = value, y
                        best[offsets[t] + s, h, rank] = top
                        via[offsets[t] + s, h, rank, 0] = label
                        if label >= 0:
                            via[offsets[t] + s, h, rank, 1] = head[label]
                            head[label] += 1
        if status[b] != OK:
            continue
        for i in range(k):
            if best[0, 0, i] == -np.inf:
                continue
            h, s, rank = 0, 0, i
            for t in range(length):
                label = via[offsets[t] + s, h, rank, 0]
                rank = via[offsets[t] + s, h, rank, 1]
                labels[b, i, t] = label
                s = m.next_state[m.arc_begin[b, t] + m.class_of[b, label] * m.sizes[b, t] + s]
                h = (h * K + label) % H
