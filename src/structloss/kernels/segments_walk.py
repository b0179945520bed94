"""Walks through the ways to cut frames into segments: the best, the best at each value of a loss, and samples."""

import numpy as np

from structloss.kernels.compile import exact_kernel, kernel
from structloss.kernels.segments import (
    Levels,
    Room,
    Scaled,
    Segments,
    backward,
    fill_segments,
    look_ahead,
    make_nodes,
    make_room,
    matrices_of,
    scaled_exp,
    scaled_matrices,
    share,
    span,
    stratum_after,
    take_column,
)
from structloss.kernels.types import Array, Ints


@kernel
def drawn(row: Array, count: int, total: float, uniform: float) -> int:
    """The last i that is possible and before which no more than `uniform` of the row's total lies."""
    chosen, before = -1, 0.0
    for i in range(count):
        if row[i] > 0.0:
            if chosen >= 0 and before > uniform * total:
                break
            chosen = i
        before += row[i]
    return chosen


@exact_kernel
def choose(scores: Array, values: Array, count: int, backwards: bool) -> int:
    """The first i < count with the largest of scores[i] + values[i], or the last where `backwards`."""
    chosen, top = 0, -np.inf
    for n in range(count):
        i = count - 1 - n if backwards else n
        value = scores[i] + values[i]
        if value > top:
            chosen, top = i, value
    return chosen


@exact_kernel
def walk(
    s: Segments, levels: Levels | None, b: int, longest_first: bool, nodes: Array, scaled: Scaled | None,
    uniforms: Array | None, r: Room, labels: Ints,
) -> None:  # fmt: skip
    """labels (n, B, T) = the state of the segment that starts at each frame of n ways, all others stay as they are.

    The best, or with levels the best from each stratum on. Of several, states are taken in their order, and the shorter
    segment first, or the longer. Or with uniforms (n, B, T, 2) they are drawn, first each state, then its duration.
    A segment costs K + D, and with levels as much as a frame of `backward`.
    """
    n, K, matrices = labels.shape[0], s.opening.shape[2], matrices_of(s, b)
    due, node, pair, stratum = np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64), np.arange(n)
    for t in range(s.lengths[b]):
        (first, last), count = span(s, b, t), 0
        for i in range(n):
            v = 0 if levels is None else stratum[i]
            if due[i] != t or nodes[v, t, pair[i], node[i]] == -np.inf:
                continue
            if count == 0 or levels is not None:
                if levels is not None:
                    fill_segments(s, b, t, first, last, r)
                count = look_ahead(s, levels, b, t, v, first, last, nodes, scaled, r)
                if scaled is not None:
                    scaled_exp(r.starts, K, r.start_exps)
            k, p = node[i], pair[i]
            if s.transitions.size:
                if scaled is None or uniforms is None:
                    k = choose(matrices[0, k], r.starts, K, False)
                else:
                    total = share(matrices[0, k], scaled.weights[0, k], r.starts, r.start_exps, K, r.row)
                    k = drawn(r.row, K, total, uniforms[i, b, t, 0])
            if scaled is None or uniforms is None:
                take_column(r.ways, k, count, r.column)
                d = choose(s.rates[b, k, p] if s.rates.size else r.zeros, r.column, count, longest_first)
            elif s.rates.size:
                take_column(r.ways, k, count, r.column)
                take_column(r.shares, k, count, r.column_exps)
                total = share(matrices[k, p], scaled.weights[k, p], r.column, r.column_exps, count, r.row)
                d = drawn(r.row, count, total, uniforms[i, b, t, 1])
            else:
                take_column(r.shares, k, count, r.row)
                d = drawn(r.row, count, r.sums[k], uniforms[i, b, t, 1])
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


@exact_kernel
def argmax(
    worker: int, workers: int, s: Segments, levels: Levels | None, longest_first: bool, value: Array, labels: Ints
) -> None:
    """value (V, B) = the score of the best way at each value of a loss, -inf: none; labels (V, B, T) as walk has them.

    Without levels V is 1. Time V times that of `backward`, memory V * T * K, with rates V * T * K * D.
    """
    r, nodes = make_room(s, value), make_nodes(s, value.shape[0], value)
    for b in range(worker, value.shape[1], workers):
        backward(s, levels, b, nodes, None, r)
        for v in range(value.shape[0]):
            value[v, b] = nodes[v, 0, 0, 0]
        walk(s, levels, b, longest_first, nodes, None, None, r, labels)


@kernel
def sample(worker: int, workers: int, s: Segments, uniforms: Array, value: Array, labels: Ints) -> None:
    """labels (n, B, T) as walk has them, drawn at uniforms (n, B, T, 2); value (B,) = log Z, -inf: nothing to draw.

    Time as `backward`, and for each draw K + D a segment.
    """
    r, nodes = make_room(s, value), make_nodes(s, 1, value)
    for b in range(worker, value.shape[0], workers):
        scaled = scaled_matrices(s, b, value)
        backward(s, None, b, nodes, scaled, r)
        value[b] = nodes[0, 0, 0, 0]
        walk(s, None, b, False, nodes, scaled, uniforms, r, labels)
