r"""Projective dependency trees: sums and maxima by Eisner's algorithm (1996), cost T**3.

Node 0 is the root, node i word i. A complete span holds a node and all that hangs from it on one side, up to its end;
an incomplete one ends where an arc does. With (+) the log of a sum of exponentials, or the maximum,

    meet(i, j)  = (+) over i <= k < j  of right(i, k) + left(k + 1, j)
    onto(i, j)  = meet(i, j) + arc(i -> j),      back(i, j) = meet(i, j) + arc(j -> i)
    right(i, j) = (+) over i < k <= j  of onto(i, k) + right(k, j)
    left(i, j)  = (+) over i <= k < j  of left(i, k) + back(k, j)

and log Z = right(0, n). Where the root has one word only, meet(0, j) has no term but k = 0. Each tree is made in one
way. scores[b, d, h, r] is that of word d + 1 hanging on node h with label r.
"""

import numpy as np

from structloss.kernels.arithmetic import inverse
from structloss.kernels.compile import exact_helper, exact_kernel, kernel
from structloss.kernels.spans import SMALLEST, meet_sums, scaled_rows, share_labels, share_out, sum_labels
from structloss.kernels.types import UNSAFE, Array, Ints


@kernel
def log_partition(
    worker: int, workers: int, scores: Array, lengths: Ints, single_root: bool, logs: bool, status: Ints, value: Array,
    gradient: Array,
) -> None:  # fmt: skip
    """value (B,) = log Z; gradient (B, T, T + 1, R), which comes zero, = the probability of each arc, unless B is 0.

    In linear arithmetic the weights of a word's arcs sum up to 1, so that nothing is above 1; status (B,) becomes
    UNSAFE where that loses too much, and these are treated by `logs`. right[w, i] is right(i, i + w), and so are the
    others; `to_...` is what flows back into each.
    """
    size = scores.shape[2]
    tables, flows = np.zeros((7, size, size), value.dtype), np.empty((4, size, size), value.dtype)
    arcs, w, meet, right, left, onto, back = (
        tables[0], tables[1], tables[2], tables[3], tables[4], tables[5], tables[6],
    )  # fmt: skip
    to_right, to_left, to_onto, to_back = flows[0], flows[1], flows[2], flows[3]
    room, flow = np.empty((2, size), value.dtype), np.empty(size, value.dtype)
    zero, one = -np.inf if logs else 0.0, 0.0 if logs else 1.0
    for b in range(worker, lengths.shape[0], workers):
        if logs and status[b] != UNSAFE:
            continue
        n = lengths[b]
        sum_labels(scores, b, n, n + 1, arcs)
        for d in range(n):
            arcs[d, d + 1] = -np.inf
        value[b] = 0.0
        if not logs:
            value[b] = scaled_rows(arcs, n, w)
            if value[b].real == -np.inf:
                continue
        weights = arcs if logs else w
        for i in range(n + 1):
            right[0, i], left[0, i] = one, one
        for width in range(1, n + 1):
            spans = n + 1 - width
            meet_sums(right, 0, left, 1, width, spans, single_root, logs, room, meet)
            for i in range(spans):
                j = i + width
                onto[width, i] = meet[width, i] + arcs[j - 1, i] if logs else meet[width, i] * w[j - 1, i]
                if i > 0:
                    back[width, i] = meet[width, i] + arcs[i - 1, j] if logs else meet[width, i] * w[i - 1, j]
                else:
                    back[width, i] = zero
            meet_sums(onto, 1, right, 0, width, spans, False, logs, room, right)
            meet_sums(left, 0, back, 0, width, spans, False, logs, room, left)
        product = right[n, 0] if logs else np.log(right[n, 0])
        if not (logs or product.real > SMALLEST):
            status[b] = UNSAFE
            continue
        value[b] += product
        if gradient.shape[0] == 0 or value[b].real == -np.inf:
            continue
        flows[:] = 0.0
        to_right[n, 0] = 1.0
        if not logs:
            to_right[n, 0] = inverse(right[n, 0])
        for width in range(n, 0, -1):
            spans = n + 1 - width
            for i in range(spans):
                flow[i] = to_right[width, i]
            share_out(flow, right, onto, 1, right, 0, width, spans, False, logs, to_onto, to_right)
            for i in range(spans):
                flow[i] = to_left[width, i]
            share_out(flow, left, left, 0, back, 0, width, spans, False, logs, to_left, to_back)
            for i in range(spans):
                j = i + width
                flow[i] = to_onto[width, i] if logs else to_onto[width, i] * weights[j - 1, i]
                if i > 0:
                    flow[i] += to_back[width, i] if logs else to_back[width, i] * weights[i - 1, j]
            share_out(flow, meet, right, 0, left, 1, width, spans, single_root, logs, to_right, to_left)
        for d in range(1, n + 1):
            for h in range(n + 1):  # the weights' room, for what flows into arcs
                if h < d:
                    part = to_onto[d - h, h] if logs else to_onto[d - h, h] * onto[d - h, h]
                else:
                    part = to_back[h - d, d] if logs else to_back[h - d, d] * back[h - d, d]
                w[d - 1, h] = part
            w[d - 1, d] = 0.0
        share_labels(scores, b, n, n + 1, arcs, w, gradient)


RIGHT, LEFT, ONTO, BACK = 0, 1, 2, 3


@exact_helper
def write(kind: int, i: int, j: int, splits: Ints, arcs: Ints, stack: Ints, heads: Ints) -> None:
    """Into heads[d] the arcs of the words d of a span of this kind; splits[kind, i, j] is where its parts meet."""
    stack[0, 0], stack[0, 1], stack[0, 2], top = kind, i, j, 1
    while top > 0:
        top -= 1
        kind, i, j = stack[top, 0], stack[top, 1], stack[top, 2]
        if i == j:
            continue
        k = splits[kind, i, j]
        if kind == RIGHT:
            first, second, end = ONTO, RIGHT, k
        elif kind == LEFT:
            first, second, end = LEFT, BACK, k
        else:
            first, second, end = RIGHT, LEFT, k + 1
            if kind == ONTO:
                heads[j] = arcs[j, i]
            else:
                heads[i] = arcs[i, j]
        stack[top, 0], stack[top, 1], stack[top, 2] = first, i, k
        stack[top + 1, 0], stack[top + 1, 1], stack[top + 1, 2] = second, end, j
        top += 2


@exact_helper
def take(
    kind: int, i: int, j: int, k: int, total: float, value: Array, splits: Ints, arcs: Ints, stack: Ints, heads: Ints
) -> None:
    """Let the parts of a span meet at k if that is better, or as good and lexicographically smaller."""
    if total > value[kind, i, j]:
        value[kind, i, j], splits[kind, i, j] = total, k
    elif total == value[kind, i, j] and total > -np.inf:
        before = splits[kind, i, j]
        for d in range(i, j + 1):
            heads[0, d], heads[1, d] = 0, 0
        write(kind, i, j, splits, arcs, stack, heads[0])
        splits[kind, i, j] = k
        write(kind, i, j, splits, arcs, stack, heads[1])
        d = i
        while d < j and heads[0, d] == heads[1, d]:
            d += 1
        if heads[0, d] < heads[1, d]:
            splits[kind, i, j] = before


@exact_kernel
def best(worker: int, workers: int, scores: Array, lengths: Ints, single_root: bool, trees: Ints, exists: Ints) -> None:
    """trees (B, T) = the arcs, h * R + r of each word, of the best tree; of several the lexicographically smallest.

    exists (B,): whether there is one. All trees of a span have the same words, so that the smaller of two of them is
    part of the smaller tree; they are only compared, word by word, where their scores are equal.
    """
    size, labels = scores.shape[2], scores.shape[3]
    value, splits = np.empty((4, size, size)), np.zeros((4, size, size), np.int64)
    arcs, worth = np.zeros((size, size), np.int64), np.empty((size, size))
    stack, heads = np.empty((4 * size + 4, 3), np.int64), np.zeros((2, size), np.int64)
    for b in range(worker, lengths.shape[0], workers):
        n = lengths[b]
        for d in range(1, n + 1):
            for h in range(n + 1):
                worth[d, h], arcs[d, h] = -np.inf, h * labels
                for r in range(labels):
                    if scores[b, d - 1, h, r] > worth[d, h]:
                        worth[d, h], arcs[d, h] = scores[b, d - 1, h, r], h * labels + r
        for i in range(n + 1):
            value[RIGHT, i, i], value[LEFT, i, i] = 0.0, 0.0
        for width in range(1, n + 1):
            for i in range(n + 1 - width):
                j = i + width
                for kind in range(4):
                    value[kind, i, j], splits[kind, i, j] = -np.inf, i
                for k in range(i, i + 1 if single_root and i == 0 else j):
                    take(ONTO, i, j, k, value[RIGHT, i, k] + value[LEFT, k + 1, j], value, splits, arcs, stack, heads)
                splits[BACK, i, j] = splits[ONTO, i, j]
                value[BACK, i, j] = value[ONTO, i, j] + worth[i, j] if i > 0 else -np.inf
                value[ONTO, i, j] += worth[j, i]
                for k in range(i + 1, j + 1):
                    take(RIGHT, i, j, k, value[ONTO, i, k] + value[RIGHT, k, j], value, splits, arcs, stack, heads)
                for k in range(i, j if i > 0 else i):
                    take(LEFT, i, j, k, value[LEFT, i, k] + value[BACK, k, j], value, splits, arcs, stack, heads)
        exists[b] = value[RIGHT, 0, n] > -np.inf
        if exists[b]:
            write(RIGHT, 0, n, splits, arcs, stack, heads[0])
            for d in range(n):
                trees[b, d] = heads[0, d + 1]
