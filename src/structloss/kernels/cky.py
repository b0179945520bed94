r"""Binary trees over a sentence: sums and maxima by the algorithm of Cocke, Kasami and Younger, cost T**3 + T**2 * K.

A tree has a span (i, j), both ends included, for each word (i, i), and for each pair of neighbouring spans that meet:

    meet(i, j) = (+) over i <= k < j of span(i, k) + span(k + 1, j),
    span(i, j) = meet(i, j) + (+) over labels r of scores[i, j, r],

with (+) the log of a sum of exponentials, or the maximum; the result is span(0, n - 1), or 0 where there is no word.
"""

import numpy as np

from structloss.kernels.arithmetic import exponential, inverse
from structloss.kernels.compile import exact_kernel, kernel
from structloss.kernels.spans import SMALLEST, meet_sums, share_labels, share_out, sum_labels
from structloss.kernels.types import UNSAFE, Array, Ints


@kernel
def log_partition(
    worker: int, workers: int, scores: Array, lengths: Ints, logs: bool, status: Ints, value: Array, gradient: Array
) -> None:
    """value (B,) = log Z; gradient (B, T, T, K), which comes zero, = the probability of each span, unless B is 0.

    In linear arithmetic weights of words are 1, and those of longer spans, of which every tree has n - 1, at most 1;
    status (B,) becomes UNSAFE where that loses too much, and these are treated by `logs`. span[w, i] is span(i, i + w),
    and so is meet; `to_span` is what flows back.
    """
    size = scores.shape[1]
    tables, room = np.zeros((5, size, size), value.dtype), np.empty((2, size), value.dtype)
    totals, w, meet, span, to_span = tables[0], tables[1], tables[2], tables[3], tables[4]
    flow = np.empty(size, value.dtype)
    for b in range(worker, lengths.shape[0], workers):
        if logs and status[b] != UNSAFE:
            continue
        n, top = lengths[b], -np.inf
        value[b] = 0.0
        if n == 0:
            continue
        sum_labels(scores, b, n, n, totals)
        for i in range(n):
            for j in range(n):
                if i > j:
                    totals[i, j] = -np.inf
                elif i < j:
                    top = max(top, totals[i, j].real)
        if not logs:
            top = top if top > -np.inf else 0.0
            for i in range(n):
                for j in range(i + 1, n):
                    w[i, j] = exponential(totals[i, j] - top)
                w[i, i] = exponential(totals[i, i] - totals[i, i].real)
                value[b] += totals[i, i].real
            value[b] += top * (n - 1)
            if value[b].real == -np.inf:
                continue
        for i in range(n):
            span[0, i] = totals[i, i] if logs else w[i, i]
        for width in range(1, n):
            meet_sums(span, 0, span, 1, width, n - width, False, logs, room, meet)
            for i in range(n - width):
                if logs:
                    span[width, i] = meet[width, i] + totals[i, i + width]
                else:
                    span[width, i] = meet[width, i] * w[i, i + width]
        product = span[n - 1, 0] if logs else np.log(span[n - 1, 0])
        if not (logs or product.real > SMALLEST):
            status[b] = UNSAFE
            continue
        value[b] += product
        if gradient.shape[0] == 0 or value[b].real == -np.inf:
            continue
        to_span[:] = 0.0
        to_span[n - 1, 0] = 1.0
        if not logs:
            to_span[n - 1, 0] = inverse(span[n - 1, 0])
        for width in range(n - 1, 0, -1):
            for i in range(n - width):
                flow[i] = to_span[width, i] if logs else to_span[width, i] * w[i, i + width]
            share_out(flow, meet, span, 0, span, 1, width, n - width, False, logs, to_span, to_span)
        for i in range(n):  # the weights' room, for what flows into labels
            for j in range(i, n):
                w[i, j] = to_span[j - i, i] if logs else to_span[j - i, i] * span[j - i, i]
            for j in range(i):
                w[i, j] = 0.0
        share_labels(scores, b, n, n, totals, w, gradient)


@exact_kernel
def best(worker: int, workers: int, scores: Array, lengths: Ints, trees: Ints, exists: Ints) -> None:
    """trees (B, 2T - 1) = the spans of the best tree, (i * T + j) * K + r, each before those inside it, from the left.

    exists (B,): whether there is one. Of several the lexicographically smallest: the smallest label, then the earliest
    place where two spans meet.
    """
    size, labels = scores.shape[1], scores.shape[3]
    worth, label, split = np.empty((size, size)), np.zeros((size, size), np.int64), np.zeros((size, size), np.int64)
    stack = np.empty((size + 1, 2), np.int64)
    for b in range(worker, lengths.shape[0], workers):
        n = lengths[b]
        exists[b] = 1
        if n == 0:
            continue
        for width in range(n):
            for i in range(n - width):
                j, top, value = i + width, -np.inf, 0.0 if width == 0 else -np.inf
                for r in range(labels):
                    if scores[b, i, j, r] > top:
                        top, label[i, j] = scores[b, i, j, r], r
                for k in range(i, j):
                    if worth[i, k] + worth[k + 1, j] > value:
                        value, split[i, j] = worth[i, k] + worth[k + 1, j], k
                worth[i, j] = value + top
        exists[b] = worth[0, n - 1] > -np.inf
        if exists[b]:
            stack[0, 0], stack[0, 1], count, t = 0, n - 1, 1, 0
            while count > 0:
                count -= 1
                i, j = stack[count, 0], stack[count, 1]
                trees[b, t] = (i * size + j) * labels + label[i, j]
                t += 1
                if i < j:
                    stack[count, 0], stack[count, 1] = split[i, j] + 1, j
                    stack[count + 1, 0], stack[count + 1, 1] = i, split[i, j]
                    count += 2
