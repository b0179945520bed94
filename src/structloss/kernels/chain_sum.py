"""Sums over the outputs of a chain: the partition function, marginals, expectations, samples.

One backward pass gives beta(t, h), the sum over all ways to finish from history h at level t:

    beta(t, h) = sum over y of exp(score(t, h, y)) * beta(t + 1, (h * K + y) mod H),     log Z = log beta(0, 0).

It makes the chain a Markov chain with P(y | h, t) = exp(score(t, h, y)) * beta(t + 1, h') / beta(t, h), and everything
else is read off a forward pass through that: occupancies mu(t, h), marginals mu(t, h) * P(y | h, t), samples, means.

The backward pass runs in *scaled* linear arithmetic: a level's weights are divided by their maximum, its beta by its
largest entry. That is exact as long as nothing that is positive rounds to zero, so an example whose scores span more
than RANGE at some level, or whose positive beta falls below TINY of its level's largest, is done again in logarithms.
With weights above exp(-RANGE) = 1e-87 and beta above TINY = 1e-200 no product comes near the smallest double, 1e-308.
"""

import numpy as np

from structloss.kernels.arithmetic import exp_nonpositive, extremes
from structloss.kernels.compile import kernel
from structloss.kernels.levels import (
    Potentials,
    fill_scores,
    fill_unaries,
    has_table,
    num_histories,
    num_labels,
    num_positions,
    num_rows,
)
from structloss.kernels.types import DONE, EMPTY, OK, Array, Ints

RANGE = 200.0
TINY = 1e-200


@kernel
def exp_level(scores: Array, rows: int, out: Array) -> tuple[float, float]:
    """out[h, y] = exp(scores[h, y] - max). Returns the maximum and the span of the finite scores.

    One long loop rather than rows of K: what does not fill a vector register is done one by one.
    """
    flat, flat_out, count = scores.reshape(-1), out.reshape(-1), rows * scores.shape[1]
    top, bottom = extremes(flat, 0, count)
    if top == -np.inf:
        top, bottom = 0.0, 0.0
    for i in range(count):
        flat_out[i] = exp_nonpositive(np.float64(flat[i]) - top)
    return top, top - bottom


@kernel
def exp_unary(p: Potentials, b: int, length: int, out: Array, spans: Array) -> float:
    """out[t, y] = exp(unary score - max over y), spans[t] = the span of the finite ones. Returns the maxima's sum."""
    fill_unaries(p, b, length, out)
    K, total, flat = out.shape[1], 0.0, out.reshape(-1)
    for t in range(length):
        top, bottom = extremes(flat, t * K, (t + 1) * K)
        if top == -np.inf:
            top, bottom = 0.0, 0.0
        spans[t] = top - bottom
        total += top
        for y in range(K):
            out[t, y] -= top
    for i in range(length * K):
        flat[i] = exp_nonpositive(flat[i])
    return total


@kernel
def pull(weights: Array, unary: Array, beta: Array, t: int, rows: int, blocks: int, ahead: Array) -> None:
    """beta[t, h] = sum over y of weights[h, y] * ahead[h mod blocks, y], ahead = unary[t, y] * beta[t + 1, h']."""
    K = unary.shape[1]
    for r in range(blocks):
        for y in range(K):
            ahead[r, y] = unary[t, y] * beta[t + 1, r * K + y]
    for first in range(0, rows, blocks):
        for r in range(blocks):
            total = 0.0
            for y in range(K):
                total += weights[first + r, y] * ahead[r, y]
            beta[t, first + r] = total


@kernel
def push(weights: Array, coefficients: Array, t: int, rows: int, blocks: int, out: Array) -> None:
    """out[r, y] = sum over h = r mod blocks of coefficients[t, h] * weights[h, y]."""
    K = weights.shape[1]
    for r in range(blocks):
        for y in range(K):
            out[r, y] = 0.0
    if blocks == 1:  # four rows at a time: a quarter of the loads and stores of `out`
        for h in range(0, rows - rows % 4, 4):
            c0, c1 = coefficients[t, h], coefficients[t, h + 1]
            c2, c3 = coefficients[t, h + 2], coefficients[t, h + 3]
            for y in range(K):
                out[0, y] += (c0 * weights[h, y] + c1 * weights[h + 1, y]) + (
                    c2 * weights[h + 2, y] + c3 * weights[h + 3, y]
                )
    for first in range(rows - rows % 4 if blocks == 1 else 0, rows, blocks):
        for r in range(blocks):
            c = coefficients[t, first + r]
            for y in range(K):
                out[r, y] += c * weights[first + r, y]


@kernel
def add_outer_products(coefficients: Array, ahead: Array, count: int, blocks: int, out: Array) -> None:
    """out[h, y] += sum over t < count of coefficients[t, h] * ahead[t, h mod blocks, y], four t at a time."""
    H, K = out.shape
    whole = count // 4 * 4
    for h in range(H):
        r = h % blocks
        for t in range(0, whole, 4):
            c0, c1, c2, c3 = coefficients[t, h], coefficients[t + 1, h], coefficients[t + 2, h], coefficients[t + 3, h]
            for y in range(K):
                out[h, y] += (c0 * ahead[t, r, y] + c1 * ahead[t + 1, r, y]) + (
                    c2 * ahead[t + 2, r, y] + c3 * ahead[t + 3, r, y]
                )
        for t in range(whole, count):
            c = coefficients[t, h]
            for y in range(K):
                out[h, y] += c * ahead[t, r, y]


@kernel
def normalise(beta: Array, t: int, rows: int) -> tuple[float, bool]:
    """Divide beta[t, :rows] by its sum. Returns the sum, and whether every positive entry is above TINY."""
    total, tiny = 0.0, 0
    for h in range(rows):
        total += beta[t, h]
    scale = 1.0 / total if total > 0.0 else 0.0
    for h in range(rows):
        beta[t, h] *= scale
        tiny |= (beta[t, h] > 0.0) & (beta[t, h] < TINY)
    return total, tiny == 0


@kernel
def backward_scaled(
    p: Potentials, b: int, length: int, shared: Array, shared_top: float, shared_span: float,
    beta: Array, unary: Array, norm: Array, ahead: Array, level: Array,
) -> tuple[bool, float]:  # fmt: skip
    """Fill beta (L+1, H), unary (L, K) = exp(unary scores - max) and norm (L,), so that with E = exp(table - max)

        norm[t] * beta[t, h] = sum over y of E[h, y] * unary[t, y] * beta[t + 1, h'],    sum over h of beta[t, h] = 1.

    Returns whether that was safe, and log Z. A NaN or +inf makes some norm NaN, which is not. Cost L * K**q.
    """
    K, H, order = num_labels(p), num_histories(p), p.order
    dense = p.table.size > 0 and not p.shared
    beta[length, :] = 1.0
    log_scale = exp_unary(p, b, length, unary, norm)
    rows, blocks = H, H // K
    for t in range(length - 1, -1, -1):
        span = norm[t]
        if t < order - 1:
            rows = K**t
            blocks = rows
        if order == 1:
            total = 0.0
            for y in range(K):
                total += unary[t, y]
            beta[t, 0] = total
        elif dense:
            table_top, table_span = exp_level(p.table[b, t], rows, level)
            log_scale += table_top
            span += table_span
            pull(level, unary, beta, t, rows, blocks, ahead)
        elif t >= order - 1:
            log_scale += shared_top
            span += shared_span
            pull(shared, unary, beta, t, rows, blocks, ahead)
        else:
            for h in range(rows):
                total = 0.0
                for y in range(K):
                    total += unary[t, y] * beta[t + 1, h * K + y]
                beta[t, h] = total
        norm[t], safe = normalise(beta, t, rows)
        if not safe or not span <= RANGE or norm[t] != norm[t]:
            return False, 0.0
        if norm[t] == 0.0:
            return True, -np.inf  # nothing finishes from here: there is no output, and no forward pass
        log_scale += np.log(norm[t])
    return True, log_scale + (np.log(beta[0, 0]) if beta[0, 0] > 0.0 else -np.inf)


@kernel
def backward_log(p: Potentials, b: int, length: int, beta: Array, unary: Array, level: Array) -> tuple[float, int]:
    """Fill beta (L+1, H) with logarithms. Returns log Z and a status. Cost L * K**q exponentials."""
    K, H = num_labels(p), num_histories(p)
    beta[length, :] = 0.0
    for t in range(length - 1, -1, -1):
        rows = num_rows(p, t)
        status = fill_scores(p, b, t, length, rows, unary[t], level)
        if status != OK:
            return 0.0, status
        for h in range(rows):
            first = (h * K) % H
            top = -np.inf
            for y in range(K):
                level[h, y] += beta[t + 1, first + y if H > 1 else 0]
                top = max(top, level[h, y])
            beta[t, h] = top
            if top > -np.inf:
                total = 0.0
                for y in range(K):
                    total += np.exp(level[h, y] - top)
                beta[t, h] += np.log(total)
    return beta[0, 0], OK


@kernel
def backward(
    p: Potentials, b: int, length: int, shared: Array, shared_top: float, shared_span: float,
    beta: Array, unary: Array, norm: Array, ahead: Array, level: Array,
) -> tuple[bool, float, int]:  # fmt: skip
    """Scaled where that is safe, logarithms where it is not. Returns whether it was, log Z, and a status."""
    scaled, value = backward_scaled(p, b, length, shared, shared_top, shared_span, beta, unary, norm, ahead, level)
    if scaled:
        return True, value, OK
    value, status = backward_log(p, b, length, beta, unary, level)
    return False, value, status


@kernel
def shared_weights(p: Potentials, out: Array) -> tuple[float, float]:
    """out = exp(table - max) for a shared table, once for the whole batch. Returns the maximum and the span."""
    if p.table.size and p.shared:
        return exp_level(p.table[0, 0], out.shape[0], out)
    return 0.0, 0.0


@kernel
def softmax(scores: Array, h: int) -> None:
    """scores[h] = exp(scores[h]) over its sum, in place; zeros where all are -inf."""
    top, total = -np.inf, 0.0
    for y in range(scores.shape[1]):
        top = max(top, scores[h, y])
    for y in range(scores.shape[1]):
        scores[h, y] = np.exp(scores[h, y] - top) if top > -np.inf else 0.0
        total += scores[h, y]
    for y in range(scores.shape[1]):
        scores[h, y] = scores[h, y] / total if total > 0.0 else 0.0


@kernel
def fill_conditionals(
    p: Potentials, b: int, t: int, length: int, scaled: bool, shared: Array,
    beta: Array, unary: Array, norm: Array, out: Array,
) -> None:  # fmt: skip
    """out[h, y] = P(y | h, t) for the rows of level t, zeros where history h cannot be finished."""
    K, H, rows = num_labels(p), num_histories(p), num_rows(p, t)
    if not scaled:
        fill_scores(p, b, t, length, rows, unary[t], out)
    elif has_table(p, t) and p.shared:
        out[:rows] = shared[:rows]
    elif has_table(p, t):
        exp_level(p.table[b, t], rows, out)
    else:
        out[:rows] = 1.0
    for h in range(rows):
        first = (h * K) % H
        if scaled:
            inverse = 1.0 / (norm[t] * beta[t, h]) if beta[t, h] > 0.0 else 0.0
            for y in range(K):
                out[h, y] *= unary[t, y] * beta[t + 1, first + y if H > 1 else 0] * inverse
        else:
            for y in range(K):
                out[h, y] += beta[t + 1, first + y if H > 1 else 0]
            softmax(out, h)


@kernel
def add_arcs(p: Potentials, b: int, t: int, arcs: Array, g_unary: Array, g_table: Array, g_levels: Array) -> None:
    """Add what level t's arcs (H, K) contribute to each gradient that is wanted (size 0: not wanted)."""
    K = num_labels(p)
    for h in range(num_rows(p, t)):
        if g_unary.size:
            for y in range(K):
                g_unary[b, t, y] += arcs[h, y]
        if g_table.size and has_table(p, t):
            for y in range(K):
                g_table[b, h, y] += arcs[h, y]
        if g_levels.size:
            for y in range(K):
                g_levels[b, t, h, y] = arcs[h, y]


@kernel
def forward(
    p: Potentials, b: int, length: int, scaled: bool, shared: Array, beta: Array, unary: Array, norm: Array,
    mu: Array, mu_next: Array, level: Array, g_unary: Array, g_table: Array, g_levels: Array,
) -> None:  # fmt: skip
    """The marginals of every arc: mu(t, h) * P(y | h, t)."""
    K, H = num_labels(p), num_histories(p)
    mu[0] = 1.0
    for t in range(length):
        fill_conditionals(p, b, t, length, scaled, shared, beta, unary, norm, level)
        mu_next[:] = 0.0
        for h in range(num_rows(p, t)):
            first, weight = (h * K) % H, mu[h]
            for y in range(K):
                level[h, y] *= weight
                mu_next[first + y if H > 1 else 0] += level[h, y]
        add_arcs(p, b, t, level, g_unary, g_table, g_levels)
        mu[:] = mu_next


@kernel
def forward_shared(
    p: Potentials, b: int, length: int, shared: Array, beta: Array, unary: Array, norm: Array,
    mu: Array, level: Array, coefficients: Array, ahead: Array, g_unary: Array, g_table: Array,
) -> None:  # fmt: skip
    """What `forward` gives, for a scaled chain with a shared table, by products of whole rows.

    With c(t, h) = mu(t, h) / (norm[t] * beta[t, h]) and a(t, h') = unary[t, y] * beta[t + 1, h'], a level is a product
    mu(t + 1, h') = a(t, h') * sum over h of c(t, h) * E[h, y], and the marginals of the table, summed over t, are
    E[h, y] times the sum over t of c(t, h) * a(t, h'), made for as many t at a time as `coefficients` has rows.
    """
    K, H, order, want_unary = num_labels(p), num_histories(p), p.order, g_unary.size > 0
    blocked_mu = mu.reshape(ahead.shape[1:])
    mu[0] = 1.0
    level[:] = 0.0
    filled = 0
    for t in range(length):
        rows = H if t >= order - 1 else K**t
        blocks = H // K if t >= order - 1 else rows
        for h in range(rows):
            coefficients[filled, h] = mu[h] / (norm[t] * beta[t, h]) if beta[t, h] > 0.0 else 0.0
        if t >= order - 1:
            push(shared, coefficients, filled, rows, blocks, blocked_mu)
        else:
            for h in range(rows):
                for y in range(K):
                    blocked_mu[h, y] = coefficients[filled, h]
        for r in range(blocks):
            for y in range(K):
                ahead[filled, r, y] = unary[t, y] * beta[t + 1, r * K + y]
                blocked_mu[r, y] *= ahead[filled, r, y]
        if want_unary:
            for r in range(blocks):
                for y in range(K):
                    g_unary[b, t, y] += blocked_mu[r, y]
        if t >= order - 1:
            filled += 1
        if filled == coefficients.shape[0] or t == length - 1:
            add_outer_products(coefficients, ahead, filled, H // K, level)
            filled = 0
    if g_table.size:
        for h in range(H):
            for y in range(K):
                g_table[b, h, y] = level[h, y] * shared[h, y]


@kernel
def log_partition(
    worker: int, workers: int, p: Potentials, gradient: bool,
    value: Array, g_unary: Array, g_table: Array, g_levels: Array, status: Ints,
) -> None:  # fmt: skip
    """value (B,) = log Z; with `gradient` also the marginals, each into the array that is there (size 0: not wanted).

    g_unary (B, T, K): of labels; g_table (B, H, K): of the shared table, summed over positions; g_levels (B, T, H, K):
    of arcs. They come zeroed and stay so beyond a length. Examples whose status is DONE are left alone.
    Time L * K**q an example, memory L * H a worker.
    """
    K, H, T = num_labels(p), num_histories(p), num_positions(p)
    beta, unary, norm = np.empty((T + 1, H)), np.empty((T, K)), np.empty(T)
    mu, mu_next = np.empty(H), np.empty(H)
    blocks = max(1, H // K)
    factored = gradient and p.shared and H > 1 and g_levels.size == 0
    together = min(T, 64) if factored else 1
    coefficients, ahead = np.empty((together, H)), np.empty((together, blocks, K))
    level, shared = np.empty((H, K)), np.empty((H, K))
    shared_top, shared_span = shared_weights(p, shared)
    for b in range(worker, p.lengths.shape[0], workers):
        if status[b] == DONE:
            continue
        length = p.lengths[b]
        scaled, value[b], status[b] = backward(
            p, b, length, shared, shared_top, shared_span, beta, unary, norm, ahead[0], level
        )
        if not gradient or status[b] != OK or value[b] == -np.inf:
            continue
        if scaled and factored:
            forward_shared(p, b, length, shared, beta, unary, norm, mu, level, coefficients, ahead, g_unary, g_table)
        else:
            forward(p, b, length, scaled, shared, beta, unary, norm, mu, mu_next, level, g_unary, g_table, g_levels)


@kernel
def weigh(
    g: Array, lengths: Ints, g_unary: Array, g_table: Array, unary: Array, table: Array, start: Array, end: Array
) -> None:
    """From each example's own gradients and its weight g (B,), those of the batch: unary (B, T, K), the others summed.

    `unary` may be g_unary itself. Arrays of size 0 are not wanted; table, start and end come zeroed.
    """
    B, T, K = g_unary.shape
    for b in range(B):
        for t in range(T):
            for y in range(K):
                unary[b, t, y] = g[b] * g_unary[b, t, y]
        if lengths[b]:
            for y in range(start.shape[0]):
                start[y] += unary[b, 0, y]
            for y in range(end.shape[0]):
                end[y] += unary[b, lengths[b] - 1, y]
    if table.size:
        for b in range(g_table.shape[0]):
            for h in range(table.shape[0]):
                for y in range(table.shape[1]):
                    table[h, y] += g[b] * g_table[b, h, y]


@kernel
def expectation(
    worker: int, workers: int, p: Potentials, f: Potentials, gradient: bool, value: Array,
    gp_unary: Array, gp_table: Array, gp_levels: Array, gf_unary: Array, gf_table: Array, gf_levels: Array,
    status: Ints,
) -> None:  # fmt: skip
    """value (B,) = E[score of y under f], y drawn from p; 0 where p has no output. Gradients as in `log_partition`.

    With n(t, h) the mean of what f adds from level t on, and m(t, h) the mean of what it added before, given h,

        n(t, h) = sum over y of P(y | h) * (f(t, h, y) + n(t + 1, h')),    E = n(0, 0),
        dE / df(t, h, y) = mu(t, h) * P(y | h),
        dE / dp(t, h, y) = mu(t, h) * P(y | h) * (m(t, h) + f(t, h, y) + n(t + 1, h') - E).

    Arcs of probability 0 add nothing, whatever f says of them. Time 3 * L * K**q an example, memory 2 * L * H a worker.
    """
    K, H, T = num_labels(p), num_histories(p), num_positions(p)
    beta, unary, norm, mean_after = np.empty((T + 1, H)), np.empty((T, K)), np.empty(T), np.empty((T + 1, H))
    mu, mu_next, before, before_next = np.empty(H), np.empty(H), np.empty(H), np.empty(H)
    ahead = np.empty((max(1, H // K), K))
    level, shared, scores, f_unary = np.empty((H, K)), np.empty((H, K)), np.empty((H, K)), np.empty(K)
    shared_top, shared_span = shared_weights(p, shared)
    for b in range(worker, p.lengths.shape[0], workers):
        length = p.lengths[b]
        scaled, log_z, status[b] = backward(
            p, b, length, shared, shared_top, shared_span, beta, unary, norm, ahead, level
        )
        if status[b] != OK or log_z == -np.inf:
            continue
        mean_after[length, :] = 0.0
        for t in range(length - 1, -1, -1):
            rows = num_rows(p, t)
            fill_conditionals(p, b, t, length, scaled, shared, beta, unary, norm, level)
            status[b] = max(status[b], fill_scores(f, b, t, length, rows, f_unary, scores))
            for h in range(rows):
                first, total = (h * K) % H, 0.0
                for y in range(K):
                    if level[h, y] > 0.0:
                        total += level[h, y] * (scores[h, y] + mean_after[t + 1, first + y if H > 1 else 0])
                mean_after[t, h] = total
        value[b] = mean_after[0, 0]
        if not gradient or status[b] != OK or value[b] == -np.inf:
            continue
        mu[0], before[0] = 1.0, 0.0
        for t in range(length):
            rows = num_rows(p, t)
            fill_conditionals(p, b, t, length, scaled, shared, beta, unary, norm, level)
            fill_scores(f, b, t, length, rows, f_unary, scores)
            mu_next[:], before_next[:] = 0.0, 0.0
            for h in range(rows):
                first = (h * K) % H
                for y in range(K):
                    state = first + y if H > 1 else 0
                    level[h, y] *= mu[h]
                    arc = level[h, y]
                    if arc > 0.0:
                        so_far = before[h] + scores[h, y]
                        mu_next[state] += arc
                        before_next[state] += arc * so_far
                        scores[h, y] = arc * (so_far + mean_after[t + 1, state] - value[b])
                    else:
                        scores[h, y] = 0.0
            add_arcs(f, b, t, level, gf_unary, gf_table, gf_levels)
            add_arcs(p, b, t, scores, gp_unary, gp_table, gp_levels)
            for state in range(H):
                mu[state] = mu_next[state]
                before[state] = before_next[state] / mu_next[state] if mu_next[state] > 0.0 else 0.0


@kernel
def sample(worker: int, workers: int, p: Potentials, uniforms: Array, labels: Ints, status: Ints) -> None:
    """labels (n, B, T): outputs drawn with probability exp(score) / Z, by inverting P(y | h) at uniforms (n, B, T).

    status is EMPTY where there is nothing to draw from. Time L * K**q an example and L * K a draw.
    """
    K, H, T = num_labels(p), num_histories(p), num_positions(p)
    beta, unary, norm = np.empty((T + 1, H)), np.empty((T, K)), np.empty(T)
    ahead = np.empty((max(1, H // K), K))
    level, shared = np.empty((H, K)), np.empty((H, K))
    history = np.empty(labels.shape[0], np.int64)
    shared_top, shared_span = shared_weights(p, shared)
    for b in range(worker, p.lengths.shape[0], workers):
        length = p.lengths[b]
        scaled, log_z, status[b] = backward(
            p, b, length, shared, shared_top, shared_span, beta, unary, norm, ahead, level
        )
        if status[b] == OK and log_z == -np.inf:
            status[b] = EMPTY
        if status[b] != OK:
            continue
        history[:] = 0
        for t in range(length):
            fill_conditionals(p, b, t, length, scaled, shared, beta, unary, norm, level)
            for n in range(labels.shape[0]):
                row, remaining, label = level[history[n]], uniforms[n, b, t], -1
                for y in range(K):
                    if row[y] > 0.0 and (label < 0 or remaining >= 0.0):
                        label = y
                    remaining -= row[y]
                labels[n, b, t] = label
                history[n] = (history[n] * K + label) % H
