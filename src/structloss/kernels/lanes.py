"""The partition function of the usual CRF, thirty-two examples at a time.

A chain of order 2 with a shared table (K, K) spends its time in products of that table with a vector of K numbers. With
the examples of a batch side by side, in the last axis of every array, each step of such a product is one operation on
LANES numbers, whatever K is; for K = 10 it was 2.8 times as fast as one example after the other.

The recursions are those of `dense`, in scaled arithmetic only: an example for which that is not safe is left to
`dense.log_partition`, which does all whose status is not DONE.
"""

import numpy as np

from structloss.kernels.arithmetic import exp_nonpositive
from structloss.kernels.compile import helper, kernel
from structloss.kernels.dense import RANGE, shared_weights
from structloss.kernels.levels import Potentials, fill_unaries
from structloss.kernels.steps import TINY
from structloss.kernels.types import DONE, Array, Ints

LANES = 32
CALM = 30.0


@helper
def exp_lanes(scores: Array, longest: int, tops: Array, spans: Array) -> None:
    """scores[t, y, w] = exp(scores - max over y), in place; tops[w] the sum of the maxima, spans[w] the largest span.

    A label that is forbidden, -inf, is an exact 0 and no part of the span; a NaN makes everything NaN.
    """
    K = scores.shape[1]
    top, bottom = np.empty(LANES), np.empty(LANES)
    for w in range(LANES):
        tops[w], spans[w] = 0.0, 0.0
    for t in range(longest):
        for w in range(LANES):
            top[w], bottom[w] = scores[t, 0, w], np.inf
        for y in range(K):
            for w in range(LANES):
                value = scores[t, y, w]
                top[w] = value if value > top[w] else top[w]
                bottom[w] = value if (value < bottom[w]) & (value > -np.inf) else bottom[w]
        for w in range(LANES):
            span = top[w] - bottom[w]
            spans[w] = spans[w] if span <= spans[w] or spans[w] != spans[w] else span  # once NaN, for good
            tops[w] += top[w]
        for y in range(K):
            for w in range(LANES):
                scores[t, y, w] -= top[w]
    flat = scores.reshape(-1)
    for i in range(longest * K * LANES):
        flat[i] = exp_nonpositive(flat[i])


@helper
def product(weights: Array, vectors: Array, t: int, out: Array, at: int) -> None:
    """out[at, h, w] = sum over y of weights[h, y] * vectors[t, y, w].

    Two h and eight y at a time: the vectors are read half as often, out an eighth.
    """
    K = weights.shape[0]
    for h in range(K):
        for w in range(LANES):
            out[at, h, w] = 0.0
    for h in range(0, K, 2):
        g = h + 1 if h + 1 < K else h
        for y in range(0, K - K % 8, 8):
            e0, e1, e2, e3 = weights[h, y], weights[h, y + 1], weights[h, y + 2], weights[h, y + 3]
            e4, e5, e6, e7 = weights[h, y + 4], weights[h, y + 5], weights[h, y + 6], weights[h, y + 7]
            f0, f1, f2, f3 = weights[g, y], weights[g, y + 1], weights[g, y + 2], weights[g, y + 3]
            f4, f5, f6, f7 = weights[g, y + 4], weights[g, y + 5], weights[g, y + 6], weights[g, y + 7]
            for w in range(LANES):
                v0, v1, v2, v3 = vectors[t, y, w], vectors[t, y + 1, w], vectors[t, y + 2, w], vectors[t, y + 3, w]
                v4, v5, v6, v7 = vectors[t, y + 4, w], vectors[t, y + 5, w], vectors[t, y + 6, w], vectors[t, y + 7, w]
                first = (
                    out[at, h, w]
                    + ((e0 * v0 + e1 * v1) + (e2 * v2 + e3 * v3))
                    + ((e4 * v4 + e5 * v5) + (e6 * v6 + e7 * v7))
                )
                second = (
                    out[at, g, w]
                    + ((f0 * v0 + f1 * v1) + (f2 * v2 + f3 * v3))
                    + ((f4 * v4 + f5 * v5) + (f6 * v6 + f7 * v7))
                )
                out[at, h, w] = first
                out[at, g, w] = second
        for y in range(K - K % 8, K):
            e, f = weights[h, y], weights[g, y]
            for w in range(LANES):
                first, second = out[at, h, w] + e * vectors[t, y, w], out[at, g, w] + f * vectors[t, y, w]
                out[at, h, w] = first
                out[at, g, w] = second


@helper
def normalise_lanes(beta: Array, t: int, norm: Array, safe: Array) -> None:
    """Divide beta[t, :, w] by its sum norm[t, w]. safe[w] is the least share so far that is not 0."""
    K = beta.shape[1]
    scale = np.empty(LANES)
    for w in range(LANES):
        norm[t, w] = 0.0
    for h in range(K):
        for w in range(LANES):
            norm[t, w] += beta[t, h, w]
    for w in range(LANES):
        scale[w] = 1.0 / norm[t, w]
    for h in range(K):
        for w in range(LANES):
            beta[t, h, w] *= scale[w]
            # A NaN, too, is not safe; a 0 is exact, where all that follows is forbidden.
            safe[w] = beta[t, h, w] if (not beta[t, h, w] >= safe[w]) & (beta[t, h, w] != 0.0) else safe[w]


@helper
def fill_beyond(beta: Array, t: int, lengths: Ints, norm: Array) -> None:
    """Beyond a length beta is 1, and so is its norm."""
    for w in range(LANES):
        if lengths[w] <= t:
            norm[t, w] = 1.0
            for h in range(beta.shape[1]):
                beta[t, h, w] = 1.0


@helper
def outer_lanes(c: Array, a: Array, longest: int, out: Array) -> None:
    """out[h, y, w] = sum over t >= 1 of c[t, h, w] * a[t, y, w], four t at a time."""
    K, whole = out.shape[0], 1 + max(0, longest - 1) // 4 * 4
    out[:] = 0.0
    for t in range(1, whole, 4):
        for h in range(K):
            for y in range(K):
                for w in range(LANES):
                    out[h, y, w] += (c[t, h, w] * a[t, y, w] + c[t + 1, h, w] * a[t + 1, y, w]) + (
                        c[t + 2, h, w] * a[t + 2, y, w] + c[t + 3, h, w] * a[t + 3, y, w]
                    )
    for t in range(whole, longest):
        for h in range(K):
            for y in range(K):
                for w in range(LANES):
                    out[h, y, w] += c[t, h, w] * a[t, y, w]


@kernel
def log_partition(
    worker: int, workers: int, p: Potentials, order: Ints, gradient: bool,
    value: Array, g_unary: Array, g_table: Array, status: Ints,
) -> None:  # fmt: skip
    """As `dense.log_partition`, for order 2, a shared table, no pins and no single arcs; status DONE where it was.

    `order` (n,) has the examples to do, by their lengths, so that those side by side have much the same. Where no level
    spans more than CALM, numbers change by less than a factor of 1e14 a level, and every eighth is normalised.
    Time L * K**2 / LANES vector operations an example, memory 2 * L * K * LANES a worker.
    """
    B, (T, K) = order.shape[0], p.unary.shape[1:]
    ahead, beta, norm = np.empty((T, K, LANES)), np.empty((T + 1, K, LANES)), np.empty((T, LANES))
    mu, table = np.empty((1, K, LANES)), np.empty((K if gradient else 0, K, LANES))
    weights, transposed = np.empty((K, K)), np.empty((K, K))
    examples, lengths = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
    tops, spans, first, safe = np.empty(LANES), np.empty(LANES), np.empty(LANES), np.empty(LANES)
    table_top, table_span = shared_weights(p, weights, transposed)
    for group in range(worker * LANES, B, workers * LANES):
        longest, shortest = 0, T
        for w in range(LANES):
            examples[w] = order[min(group + w, B - 1)]
            lengths[w] = p.lengths[examples[w]] if group + w < B else 0
            longest, shortest = max(longest, lengths[w]), min(shortest, lengths[w])
            first[w], safe[w] = 0.0, 1.0
        for w in range(LANES):  # beyond a length, 0
            fill_unaries(p, examples[w], lengths[w], ahead[:, :, w])
            for t in range(lengths[w], longest):
                for y in range(K):
                    ahead[t, y, w] = 0.0
        exp_lanes(ahead, longest, tops, spans)
        calm = True
        for w in range(LANES):
            calm = calm and spans[w] + table_span <= CALM
        beta[longest] = 1.0
        for t in range(longest - 1, -1, -1):
            for y in range(K):
                for w in range(LANES):
                    ahead[t, y, w] *= beta[t + 1, y, w]
            if t > 0:
                product(weights, ahead, t, beta, t)
                if not calm or t % 8 == 0:
                    normalise_lanes(beta, t, norm, safe)
                else:
                    norm[t] = 1.0
                if t >= shortest:
                    fill_beyond(beta, t, lengths, norm)
        for y in range(K if longest else 0):
            for w in range(LANES):
                first[w] += ahead[0, y, w]
        for w in range(LANES):
            b = examples[w]
            if group + w >= B or not safe[w] >= TINY or not spans[w] + table_span <= RANGE:
                continue
            if lengths[w] and not first[w] > 0.0:  # a NaN, or no output
                continue
            status[b] = DONE
            if lengths[w]:
                total, rest = tops[w] + table_top * (lengths[w] - 1), first[w]
                for t in range(1, lengths[w]):  # one logarithm for as many norms as a double can hold the product of
                    rest *= norm[t, w]
                    if not 1e-200 < rest < 1e200:
                        total += np.log(rest)
                        rest = 1.0
                value[b] = total + np.log(rest)
        if not gradient:
            continue
        for t in range(longest):
            if t == 0:
                for y in range(K):
                    for w in range(LANES):
                        mu[0, y, w] = ahead[0, y, w] / first[w]
            else:
                for h in range(K):
                    for w in range(LANES):  # from here on beta[t] holds c(t, h), 0 beyond a length
                        there = (t < lengths[w]) & (beta[t, h, w] > 0.0)
                        beta[t, h, w] = mu[0, h, w] / (norm[t, w] * beta[t, h, w]) if there else 0.0
                product(transposed, beta, t, mu, 0)
                for y in range(K):
                    for w in range(LANES):
                        mu[0, y, w] *= ahead[t, y, w]
            if g_unary.size:
                for w in range(LANES):
                    if t < lengths[w] and status[examples[w]] == DONE:
                        for y in range(K):
                            g_unary[examples[w], t, y] = mu[0, y, w]
        if g_table.size:
            outer_lanes(beta, ahead, longest, table)
            for w in range(LANES):
                if lengths[w] and status[examples[w]] == DONE:
                    for h in range(K):
                        for y in range(K):
                            g_table[examples[w], h, y] = table[h, y, w] * weights[h, y]
