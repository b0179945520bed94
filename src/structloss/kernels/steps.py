"""The steps of `dense`: a level's exponentials, and its products with vectors over machine states or labels.

A level's states are a table (H, S) in a flat buffer from some place on, its arcs (C, S). Where there are few machine
states, they are rows of a table (S, H) instead, and the vectors are over labels or histories: what ends in _row.
"""

import numpy as np

from structloss.kernels.arithmetic import exponential, extremes
from structloss.kernels.compile import helper, inlined_helper
from structloss.kernels.types import Array, Ints

TINY = 1e-170
TOGETHER = 64  # rows whose outer products are summed in one go: what they read stays near


@helper
def table_of(buffer: Array, begin: int, rows: int, columns: int) -> Array:
    """Numbers of a flat buffer as a (rows, columns) table: a level's (H, S) states or (C, S) arcs."""
    return buffer[begin : begin + rows * columns].reshape(rows, columns)


@helper
def exp_table(scores: Array, rows: int, out: Array) -> tuple[float, float]:
    """out[h, y] = exp(scores[h, y] - max). Returns the maximum and the span of the finite scores.

    One long loop rather than rows of K: what does not fill a vector register is done one by one.
    """
    flat, flat_out, count = scores.reshape(-1), out.reshape(-1), rows * scores.shape[1]
    top, bottom = extremes(flat, 0, count)
    if top == -np.inf:
        top, bottom = 0.0, 0.0
    for i in range(count):
        flat_out[i] = exponential(flat[i] - top)
    return top, top - bottom


@helper
def exp_arcs(weight: Array, begin: int, count: int, out: Array) -> tuple[float, float]:
    """out[i] = exp(weight - max) of `count` arcs from `begin` on. Returns the maximum and the span."""
    if weight.size == 0:
        return 0.0, 0.0
    top, bottom = extremes(weight, begin, begin + count)
    for i in range(count):
        out[i] = exponential(weight[begin + i] - top)
    return top, top - bottom


@helper
def rescale(states: Array) -> tuple[float, bool]:
    """Divide by the sum of the real parts, which is returned; and whether every positive one is then above TINY."""
    total, tiny = 0.0, 0
    for i in range(states.shape[0]):
        total += states[i].real
    if not 0.0 < total < np.inf:
        return total, True
    scale = 1.0 / total
    for i in range(states.shape[0]):
        states[i] *= scale
        tiny |= (states[i].real > 0.0) & (states[i].real < TINY)
    return total, tiny == 0


@helper
def look_ahead(
    unary: Array, t: int, classes: Ints, next_state: Ints, arc: int, arcs: Array, C: int, S: int,
    beta: Array, there: int, H: int, S_next: int, blocks: int, out: Array, begin: int,
) -> None:  # fmt: skip
    """out[r * K + y, s] = unary[t, y] * exp(weight(s, y)) * beta(t + 1, (r, y), next(s, y)), from `begin` on."""
    K = unary.shape[1]
    targets, states, ahead = (
        table_of(next_state, arc, C, S),
        table_of(beta, there, H, S_next),
        table_of(out, begin, blocks * K, S),
    )
    for r in range(blocks):
        for y in range(K):
            c, factor, row = classes[y], unary[t, y], r * K + y if H > 1 else 0
            if arcs.size:
                for s in range(S):
                    ahead[r * K + y, s] = factor * arcs[c * S + s] * states[row, targets[c, s]]
            else:
                for s in range(S):
                    ahead[r * K + y, s] = factor * states[row, targets[c, s]]


@helper
def look_ahead_one(unary: Array, t: int, beta: Array, there: int, blocks: int, out: Array, at: int) -> None:
    """`look_ahead` from one machine state to one, without weights."""
    K, H = unary.shape[1], beta.shape[1]
    for r in range(blocks):
        for y in range(K):
            out[at, r, y] = unary[t, y] * beta[there, r * K + y if H > 1 else 0]


@helper
def look_ahead_row(
    unary: Array, t: int, classes: Ints, arcs: Array, S: int, s: int,
    beta: Array, targets: Ints, here: int, out: Array, at: int,
) -> None:  # fmt: skip
    """`look_ahead` of state s, for order 2, from rows of beta into row `at`."""
    for y in range(unary.shape[1]):
        out[at, 0, y] = unary[t, y] * beta[targets[here, y], y]
        if arcs.size:
            out[at, 0, y] *= arcs[classes[y] * S + s]


@helper
def combine(
    weights: Array, begin: int, across: int, down: int, n: int, k: int,
    vectors: Array, first: int, step: int, out: Array, out_first: int, out_step: int,
) -> None:  # fmt: skip
    """Row i < n of out = the sum over j < k of weights[begin + i * across + j * down] times row j of the vectors.

    Row i stands at out_first + i * out_step, row j at first + j * step. Two i and four j at a time: the vectors are
    read half as often, out a quarter.
    """
    for i in range(0, n, 2):
        one, two = out_first + i * out_step, out_first + min(i + 1, n - 1) * out_step
        e, f = begin + i * across, begin + min(i + 1, n - 1) * across
        for s in range(out.shape[1]):
            out[one, s] = 0.0
            out[two, s] = 0.0
        for j in range(0, k - k % 4, 4):
            e0, e1, e2, e3 = (
                weights[e + j * down], weights[e + (j + 1) * down], weights[e + (j + 2) * down],
                weights[e + (j + 3) * down],
            )  # fmt: skip
            f0, f1, f2, f3 = (
                weights[f + j * down], weights[f + (j + 1) * down], weights[f + (j + 2) * down],
                weights[f + (j + 3) * down],
            )  # fmt: skip
            a0 = first + j * step
            a1, a2, a3 = a0 + step, a0 + 2 * step, a0 + 3 * step
            for s in range(out.shape[1]):
                v0, v1, v2, v3 = vectors[a0, s], vectors[a1, s], vectors[a2, s], vectors[a3, s]
                x = out[one, s] + ((e0 * v0 + e1 * v1) + (e2 * v2 + e3 * v3))
                y = out[two, s] + ((f0 * v0 + f1 * v1) + (f2 * v2 + f3 * v3))
                out[one, s] = x
                out[two, s] = y
        for j in range(k - k % 4, k):
            e0, f0, a0 = weights[e + j * down], weights[f + j * down], first + j * step
            for s in range(out.shape[1]):
                x, y = out[one, s] + e0 * vectors[a0, s], out[two, s] + f0 * vectors[a0, s]
                out[one, s] = x
                out[two, s] = y


@helper
def pull(weights: Array, ahead: Array, begin: int, S: int, rows: int, blocks: int, out: Array, out_begin: int) -> None:
    """out[h, s] = sum over y of weights[h, y] * ahead[(h mod blocks) * K + y, s]."""
    K, flat = weights.shape[1], weights.reshape(-1)
    vectors, sums = table_of(ahead, begin, blocks * K, S), table_of(out, out_begin, rows, S)
    for r in range(blocks):
        combine(flat, r * K, blocks * K, 1, rows // blocks, K, vectors, r * K, 1, sums, r, blocks)


@inlined_helper
def pull_one(weights: Array, ahead: Array, at: int, h: int, rows: int, blocks: int, out: Array, here: int) -> None:
    """`pull` for one machine state and the histories from h on: out[here, h] = sum of weights * ahead[at] over y."""
    K = weights.shape[1]
    for first in range(h, rows, blocks):
        for r in range(blocks):
            total = 0.0
            for y in range(K):
                total += weights[first + r, y] * ahead[at, r, y]
            out[here, first + r] = total


@helper
def push(weights: Array, coefficients: Array, begin: int, S: int, rows: int, blocks: int, out: Array) -> None:
    """out[r * K + y, s] = sum over h = r mod blocks of weights[h, y] * coefficients[h, s]."""
    K, flat = weights.shape[1], weights.reshape(-1)
    c, flow = table_of(coefficients, begin, rows, S), table_of(out, 0, blocks * K, S)
    for r in range(blocks):
        combine(flat, r * K, 1, blocks * K, K, rows // blocks, c, r, blocks, flow, r * K, 1)


@inlined_helper
def push_one(weights: Array, c: Array, here: int, rows: int, blocks: int, out: Array, at: int) -> None:
    """`push` for one machine state: out[at, r, y] = sum over h = r mod blocks of c[here, h] * weights[h, y]."""
    K = weights.shape[1]
    for r in range(blocks):
        for y in range(K):
            out[at, r, y] = 0.0
    whole = rows - rows % 4 if blocks == 1 else 0
    for h in range(0, whole, 4):  # four rows at a time: a quarter of the loads and stores of `out`
        c0, c1, c2, c3 = c[here, h], c[here, h + 1], c[here, h + 2], c[here, h + 3]
        if c0.real + c1.real + c2.real + c3.real == 0.0:  # none is negative
            continue
        for y in range(K):
            out[at, 0, y] += (c0 * weights[h, y] + c1 * weights[h + 1, y]) + (
                c2 * weights[h + 2, y] + c3 * weights[h + 3, y]
            )
    for first in range(whole, rows, blocks):
        for r in range(blocks):
            factor = c[here, first + r]
            for y in range(K):
                out[at, r, y] += factor * weights[first + r, y]


@helper
def spread(
    classes: Ints, next_state: Ints, arc: int, C: int, S: int, H: int, S_next: int, blocks: int,
    ahead: Array, begin: int, flow: Array, mu: Array, labels: Array,
) -> None:  # fmt: skip
    """flow *= ahead; mu(h', next(s, y)) = the sum of what flows there; labels[y] = the sum of what flows along y."""
    K = labels.shape[0]
    for y in range(K):
        labels[y] = 0.0
    for i in range(H * S_next):
        mu[i] = 0.0
    targets, a, shares = (
        table_of(next_state, arc, C, S),
        table_of(ahead, begin, blocks * K, S),
        table_of(flow, 0, blocks * K, S),
    )
    then = table_of(mu, 0, H, S_next)
    for r in range(blocks):
        for y in range(K):
            row, c, label = r * K + y if H > 1 else 0, classes[y], labels[y]
            for s in range(S):
                shares[r * K + y, s] *= a[r * K + y, s]
                label += shares[r * K + y, s]
            for s in range(S):
                then[row, targets[c, s]] += shares[r * K + y, s]
            labels[y] = label


@helper
def spread_one(ahead: Array, at: int, blocks: int, H: int, flow: Array, mu: Array, labels: Array) -> None:
    """`spread` from one machine state to one: mu is the flow itself, and its sum where there is no history."""
    K = labels.shape[0]
    for y in range(K):
        labels[y] = 0.0
    for r in range(blocks):
        for y in range(K):
            mu[0, r, y] = flow[0, r, y] * ahead[at, r, y]
            labels[y] += mu[0, r, y]
    if H == 1:
        mu[0, 0, 0] = np.sum(labels)


@helper
def spread_rows(
    targets: Ints, here: int, there: int, S: int, S_next: int, ahead: Array, at: int, flow: Array, mu: Array,
    labels: Array,
) -> None:  # fmt: skip
    """`spread` of rows, for order 2."""
    K = labels.shape[0]
    for y in range(K):
        labels[y] = 0.0
        for s in range(S_next):
            mu[s, 0, y] = 0.0
    for s in range(S):
        for y in range(K):
            share = flow[s, 0, y] * ahead[at + s, 0, y]
            labels[y] += share
            mu[targets[here + s, y] - there, 0, y] += share


@helper
def dots(
    weights: Array, c: Array, here: int, ahead: Array, begin: int, S: int, rows: int, blocks: int, out: Array
) -> None:
    """out[h, y] = weights[h, y] * sum over s of c[h, s] * ahead[(h mod blocks) * K + y, s]; out may be the weights."""
    K = out.shape[1]
    factors, vectors = table_of(c, here, rows, S), table_of(ahead, begin, blocks * K, S)
    for h in range(rows):
        r = h % blocks
        for y in range(K):
            total = 0.0
            for s in range(S):
                total += factors[h, s] * vectors[r * K + y, s]
            out[h, y] = weights[h, y] * total


@helper
def dots_one(weights: Array, c: Array, here: int, ahead: Array, at: int, rows: int, blocks: int, out: Array) -> None:
    """`dots` for one machine state."""
    for h in range(rows):
        factor, r = c[here, h], h % blocks
        for y in range(out.shape[1]):
            out[h, y] = weights[h, y] * (factor * ahead[at, r, y])


@helper
def dots_rows(weights: Array, c: Array, here: int, ahead: Array, at: int, S: int, rows: int, out: Array) -> None:
    """`dots` of rows, for order 2."""
    for h in range(rows):
        for y in range(out.shape[1]):
            total = 0.0
            for s in range(S):
                total += c[here + s, h] * ahead[at + s, 0, y]
            out[h, y] = weights[h, y] * total


@helper
def add_shared(c: Array, ahead: Array, first: int, end: int, shared: Array, out: Array) -> None:
    """out = the marginals of a shared table: those of all rows from `first` to `end` at once."""
    H, K = out.shape
    for h in range(H):
        for y in range(K):
            out[h, y] = 0.0
    for t in range(first, end, TOGETHER):
        add_outer_products(c, ahead, t, min(t + TOGETHER, end), out)
    for h in range(H):
        for y in range(K):
            out[h, y] *= shared[h, y]


@helper
def add_outer_products(c: Array, ahead: Array, begin: int, end: int, out: Array) -> None:
    """out[h, y] += sum over begin <= t < end of c[t, h] * ahead[t, h mod blocks, y], four t at a time."""
    (H, K), blocks = out.shape, ahead.shape[1]
    whole = begin + (end - begin) // 4 * 4
    for h in range(H):
        r = h % blocks
        for t in range(begin, whole, 4):
            c0, c1, c2, c3 = c[t, h], c[t + 1, h], c[t + 2, h], c[t + 3, h]
            if c0.real + c1.real + c2.real + c3.real == 0.0:
                continue
            for y in range(K):
                out[h, y] += (c0 * ahead[t, r, y] + c1 * ahead[t + 1, r, y]) + (
                    c2 * ahead[t + 2, r, y] + c3 * ahead[t + 3, r, y]
                )
        for t in range(whole, end):
            factor = c[t, h]
            for y in range(K):
                out[h, y] += factor * ahead[t, r, y]
