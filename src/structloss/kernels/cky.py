r"""Binary trees over a sentence: sums and maxima by the algorithm of Cocke, Kasami and Younger, cost T**3 + T**2 * K.

A tree has a span (i, j), both ends included, for each word (i, i), and for each pair of neighbouring spans that meet:

    meet(i, j) = (+) over i <= k < j of span(i, k) + span(k + 1, j),
    span(i, j) = meet(i, j) + (+) over labels r of scores[i, j, r],

with (+) the log of a sum of exponentials, or the maximum; the result is span(0, n - 1), or 0 where there is no word.
"""

import numpy as np

from structloss.kernels.arithmetic import exponential, inverse
from structloss.kernels.compile import exact_kernel, kernel
from structloss.kernels.spans import SMALLEST, meet_sum, share_labels, share_out, sum_labels, times
from structloss.kernels.types import UNSAFE, Array, Ints


@kernel
def log_partition(
    worker: int, workers: int, scores: Array, lengths: Ints, logs: bool, status: Ints, value: Array, gradient: Array
) -> None:
    """value (B,) = log Z; gradient (B, T, T, K), which comes zero, = the probability of each span, unless B is 0.

    In linear arithmetic weights of words are 1, and those of longer spans, of which every tree has n - 1, at most 1;
    status (B,) becomes UNSAFE where that loses too much, and these are treated by `logs`. Tables `..._t` are
    transposed, `to_...` is what flows back into each.
    """
    size = scores.shape[1]
    tables = np.zeros((7, size, size), value.dtype)
    totals, w, meet, span = tables[0], tables[1], tables[2], tables[3]
    span_t, to_span, to_span_t, room = tables[4], tables[5], tables[6], np.empty(size, value.dtype)
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
                for j in range(i, n):
                    w[i, j] = exponential(totals[i, j] - (totals[i, i].real if i == j else top))
                value[b] += totals[i, i].real
            value[b] += top * (n - 1)
            if value[b].real == -np.inf:
                continue
        weights = totals if logs else w
        for i in range(n):
            span[i, i], span_t[i, i] = weights[i, i], weights[i, i]
        for width in range(1, n):
            for i in range(n - width):
                j = i + width
                meet[i, j] = meet_sum(span, i, i, span_t, j, i + 1, width, logs, room)
                span[i, j] = times(meet[i, j], weights[i, j], logs)
                span_t[j, i] = span[i, j]
        product = span[0, n - 1] if logs else np.log(span[0, n - 1])
        if not (logs or product.real > SMALLEST):
            status[b] = UNSAFE
            continue
        value[b] += product
        if gradient.shape[0] == 0 or value[b].real == -np.inf:
            continue
        to_span[:] = 0.0
        to_span_t[:] = 0.0
        to_span[0, n - 1] = 1.0
        if not logs:
            to_span[0, n - 1] = inverse(span[0, n - 1])
        for width in range(n - 1, -1, -1):
            for i in range(n - width):
                j = i + width
                flow = to_span[i, j] + to_span_t[j, i]
                to_span[i, j] = flow if logs else flow * span[i, j]
                if width > 0 and flow.real > 0.0:
                    flow = flow if logs else flow * w[i, j]
                    share_out(flow, meet[i, j], span, i, i, span_t, j, i + 1, width, logs, to_span, to_span_t)
        share_labels(scores, b, n, n, totals, to_span, gradient)


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
