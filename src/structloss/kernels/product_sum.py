"""Sums over the outputs of a chain times a loss machine: the recursions of `chain_sum` with one more axis.

    beta(t, s, h) = sum over y of exp(score(t, h, y) + weight(s, y)) * beta(t + 1, next(s, y), (h * K + y) mod H)

Scaled arithmetic, and logarithms where that is not safe, as there. With S machine states, a level is S products of the
table (H, K) with a vector in each direction, and the table's marginals are one more.
"""

import numpy as np

from structloss.kernels.chain_sum import (
    RANGE,
    TINY,
    add_arcs,
    add_outer_products,
    exp_level,
    exp_unary,
    push,
    shared_weights,
    softmax,
)
from structloss.kernels.compile import kernel
from structloss.kernels.levels import (
    EMPTY,
    OK,
    Array,
    Labels,
    Potentials,
    fill_scores,
    has_table,
    num_histories,
    num_labels,
    num_positions,
    num_rows,
)
from structloss.kernels.product import Machines, state_offsets, weight_at


@kernel
def exp_arcs(m: Machines, b: int, t: int, out: Array) -> tuple[float, float]:
    """out[i] = exp(weight - max) of the arcs of level t. Returns the maximum and the span."""
    begin, count = m.arc_begin[b, t], m.sizes[b, t] * m.num_classes[b]
    if m.weight.size == 0:
        for i in range(count):
            out[i] = 1.0
        return 0.0, 0.0
    top, bottom = -np.inf, np.inf
    for i in range(begin, begin + count):
        top, bottom = max(top, m.weight[i]), min(bottom, m.weight[i])
    for i in range(count):
        out[i] = np.exp(m.weight[begin + i] - top) if m.weight[begin + i] != top else 1.0
    return top, top - bottom


@kernel
def look_ahead(
    m: Machines, b: int, t: int, s: int, arcs: Array, unary: Array, beta: Array, first: int, blocks: int, out: Array
) -> None:
    """out[r, y] = unary[t, y] * exp(weight(s, y)) * beta(t + 1, next(s, y), (r, y)); beta's level begins at `first`."""
    K, classes = unary.shape[1], m.num_classes[b]
    for y in range(K):
        c = s * classes + m.class_of[b, y]
        state, factor = first + m.next_state[m.arc_begin[b, t] + c], unary[t, y] * arcs[c]
        for r in range(blocks):
            out[r, y] = factor * beta[state, r * K + y if beta.shape[1] > 1 else 0]


@kernel
def backward_scaled(
    p: Potentials, m: Machines, b: int, length: int, shared: Array, shared_top: float, shared_span: float,
    offsets: Labels, beta: Array, unary: Array, norm: Array, arcs: Array, ahead: Array, level: Array,
) -> tuple[bool, float]:  # fmt: skip
    """Fill beta (states, H), unary and norm as `chain_sum.backward_scaled`: returns whether it is safe, and log Z."""
    K, H, order = num_labels(p), num_histories(p), p.order
    log_scale = exp_unary(p, b, length, unary, norm)
    final = m.final[m.final_begin[b] : m.final_begin[b] + m.sizes[b, length]]
    top, bottom = -np.inf, np.inf
    for s in range(final.shape[0]):
        top = max(top, final[s])
        bottom = min(bottom, final[s] if final[s] > -np.inf else np.inf)
    if top == -np.inf:
        return True, -np.inf
    for s in range(final.shape[0]):
        value = np.exp(final[s] - top)
        for h in range(H):
            beta[offsets[length] + s, h] = value
    log_scale += top
    if top - bottom > RANGE:
        return False, 0.0
    for t in range(length - 1, -1, -1):
        rows = H if t >= order - 1 else K**t
        blocks = max(1, H // K) if t >= order - 1 else rows
        span, tabled = norm[t], has_table(p, t)
        arc_top, arc_span = exp_arcs(m, b, t, arcs)
        span += arc_span
        log_scale += arc_top
        if tabled and p.shared:
            span += shared_span
            log_scale += shared_top
        elif tabled:
            table_top, table_span = exp_level(p.table[b, t], rows, level)
            span += table_span
            log_scale += table_top
        total, tiny = 0.0, 0
        for s in range(m.sizes[b, t]):
            state = offsets[t] + s
            look_ahead(m, b, t, s, arcs, unary, beta, offsets[t + 1], blocks, ahead)
            if not tabled:
                for h in range(rows):
                    sum_ahead = 0.0
                    for y in range(K):
                        sum_ahead += ahead[h, y]
                    beta[state, h] = sum_ahead
            elif p.shared:
                pull_state(shared, ahead, rows, blocks, beta, state)
            else:
                pull_state(level, ahead, rows, blocks, beta, state)
            for h in range(rows):
                total += beta[state, h]
        if not span <= RANGE or not total < np.inf:
            return False, 0.0
        if total == 0.0:
            return True, -np.inf
        scale = 1.0 / total
        for state in range(offsets[t], offsets[t] + m.sizes[b, t]):
            for h in range(rows):
                beta[state, h] *= scale
                tiny |= (beta[state, h] > 0.0) & (beta[state, h] < TINY)
        if tiny:
            return False, 0.0
        norm[t] = total
        log_scale += np.log(total)
    return True, log_scale + (np.log(beta[0, 0]) if beta[0, 0] > 0.0 else -np.inf)


@kernel
def pull_state(weights: Array, ahead: Array, rows: int, blocks: int, beta: Array, state: int) -> None:
    """beta[state, h] = sum over y of weights[h, y] * ahead[h mod blocks, y]."""
    for first in range(0, rows, blocks):
        for r in range(blocks):
            total = 0.0
            for y in range(weights.shape[1]):
                total += weights[first + r, y] * ahead[r, y]
            beta[state, first + r] = total


@kernel
def backward_log(
    p: Potentials, m: Machines, b: int, length: int, offsets: Labels, beta: Array, unary: Array, level: Array
) -> tuple[float, int]:
    """Fill beta (states, H) with logarithms. Returns log Z and a status."""
    K, H, classes = num_labels(p), num_histories(p), m.num_classes[b]
    for s in range(m.sizes[b, length]):
        beta[offsets[length] + s, :] = m.final[m.final_begin[b] + s]
    scores = np.empty(K)
    for t in range(length - 1, -1, -1):
        rows = num_rows(p, t)
        status = fill_scores(p, b, t, length, rows, unary[t], level)
        if status != OK:
            return 0.0, status
        for s in range(m.sizes[b, t]):
            for h in range(rows):
                first, top = (h * K) % H, -np.inf
                for y in range(K):
                    arc = m.arc_begin[b, t] + s * classes + m.class_of[b, y]
                    state = offsets[t + 1] + m.next_state[arc]
                    scores[y] = level[h, y] + weight_at(m.weight, arc) + beta[state, first + y if H > 1 else 0]
                    top = max(top, scores[y])
                beta[offsets[t] + s, h] = top
                if top > -np.inf:
                    total = 0.0
                    for y in range(K):
                        total += np.exp(scores[y] - top)
                    beta[offsets[t] + s, h] += np.log(total)
    return beta[0, 0], OK


@kernel
def fill_conditionals(
    p: Potentials, m: Machines, b: int, t: int, s: int, scaled: bool, weights: Array, arcs: Array,
    offsets: Labels, beta: Array, unary: Array, norm: Array, out: Array,
) -> None:  # fmt: skip
    """out[h, y] = P(y | s, h, t) for the rows of level t; `weights` (H, K) are what `fill_weights` gives."""
    K, H, classes = num_labels(p), num_histories(p), m.num_classes[b]
    state = offsets[t] + s
    for h in range(num_rows(p, t)):
        first, here = (h * K) % H, beta[state, h]
        for y in range(K):
            c = s * classes + m.class_of[b, y]
            following = beta[offsets[t + 1] + m.next_state[m.arc_begin[b, t] + c], first + y if H > 1 else 0]
            if scaled:
                out[h, y] = weights[h, y] * unary[t, y] * arcs[c] * following / (norm[t] * here) if here > 0.0 else 0.0
            else:
                out[h, y] = weights[h, y] + weight_at(m.weight, m.arc_begin[b, t] + c) + following
        if not scaled:
            softmax(out, h)


@kernel
def fill_weights(
    p: Potentials, m: Machines, b: int, t: int, length: int, scaled: bool, shared: Array, unary: Array, arcs: Array,
    out: Array,
) -> None:  # fmt: skip
    """What `fill_conditionals` reads at level t: out (H, K), and in scaled arithmetic also arcs."""
    rows = num_rows(p, t)
    if not scaled:
        fill_scores(p, b, t, length, rows, unary[t], out)
        return
    exp_arcs(m, b, t, arcs)
    if not has_table(p, t):
        out[:rows] = 1.0
    elif p.shared:
        out[:rows] = shared[:rows]
    else:
        exp_level(p.table[b, t], rows, out)


@kernel
def longest_machine(m: Machines, lengths: Labels) -> tuple[int, int, int]:
    """The most states of any machine, the most of any level, and the most arcs of any level."""
    states, level, arcs = 1, 1, 1
    for b in range(lengths.shape[0]):
        total = 0
        for t in range(lengths[b] + 1):
            total += m.sizes[b, t]
            level = max(level, m.sizes[b, t])
            arcs = max(arcs, m.sizes[b, t] * m.num_classes[b])
        states = max(states, total)
    return states, level, arcs


@kernel
def forward_scaled(
    p: Potentials, m: Machines, b: int, length: int, shared: Array, offsets: Labels, beta: Array, unary: Array,
    norm: Array, arcs: Array, mu: Array, mu_next: Array, coefficients: Array, ahead: Array, pushed: Array,
    level: Array, total: Array, g_unary: Array, g_table: Array, g_levels: Array,
) -> None:  # fmt: skip
    """The marginals of a scaled example. As in `chain_sum.forward_shared`, with the machine's states for positions."""
    K, H, order, classes = num_labels(p), num_histories(p), p.order, m.num_classes[b]
    want_levels, want_table = g_levels.size > 0, g_table.size > 0
    mu[0, :] = 0.0
    mu[0, 0] = 1.0
    for t in range(length):
        rows = H if t >= order - 1 else K**t
        blocks = max(1, H // K) if t >= order - 1 else rows
        tabled, S = has_table(p, t), m.sizes[b, t]
        exp_arcs(m, b, t, arcs)
        if tabled and not p.shared:
            exp_level(p.table[b, t], rows, level)
        for s in range(m.sizes[b, t + 1]):
            for h in range(H):
                mu_next[s, h] = 0.0
        for s in range(S):
            look_ahead(m, b, t, s, arcs, unary, beta, offsets[t + 1], blocks, ahead[s])
            for h in range(rows):
                here = norm[t] * beta[offsets[t] + s, h]
                coefficients[s, h] = mu[s, h] / here if here > 0.0 else 0.0
            if not tabled:
                for r in range(blocks):
                    for y in range(K):
                        pushed[r, y] = coefficients[s, r]
            elif p.shared:
                push(shared, coefficients, s, rows, blocks, pushed)
            else:
                push(level, coefficients, s, rows, blocks, pushed)
            for y in range(K):
                state, label = m.next_state[m.arc_begin[b, t] + s * classes + m.class_of[b, y]], 0.0
                for r in range(blocks):
                    arc = pushed[r, y] * ahead[s, r, y]
                    label += arc
                    mu_next[state, r * K + y if H > 1 else 0] += arc
                if g_unary.size:
                    g_unary[b, t, y] += label
        if (want_table and tabled) or want_levels:
            total[:rows] = 0.0
            add_outer_products(coefficients, ahead, S, blocks, total[:rows])
            for h in range(rows):
                for y in range(K):
                    value = total[h, y]
                    if tabled:
                        value *= shared[h, y] if p.shared else level[h, y]
                    if want_levels:
                        g_levels[b, t, h, y] = value
                    if want_table and tabled:
                        g_table[b, h, y] += value
        for s in range(m.sizes[b, t + 1]):
            for h in range(H):
                mu[s, h] = mu_next[s, h]


@kernel
def forward_log(
    p: Potentials, m: Machines, b: int, length: int, shared: Array, offsets: Labels, beta: Array, unary: Array,
    norm: Array, arcs: Array, mu: Array, mu_next: Array, level: Array, conditional: Array,
    g_unary: Array, g_table: Array, g_levels: Array,
) -> None:  # fmt: skip
    """The marginals of an example in logarithms."""
    K, H, classes = num_labels(p), num_histories(p), m.num_classes[b]
    mu[0, :] = 0.0
    mu[0, 0] = 1.0
    for t in range(length):
        fill_weights(p, m, b, t, length, False, shared, unary, arcs, level)
        mu_next[: m.sizes[b, t + 1]] = 0.0
        for s in range(m.sizes[b, t]):
            fill_conditionals(p, m, b, t, s, False, level, arcs, offsets, beta, unary, norm, conditional)
            for h in range(num_rows(p, t)):
                first = (h * K) % H
                for y in range(K):
                    arc = mu[s, h] * conditional[h, y]
                    state = m.next_state[m.arc_begin[b, t] + s * classes + m.class_of[b, y]]
                    mu_next[state, first + y if H > 1 else 0] += arc
                    if g_unary.size:
                        g_unary[b, t, y] += arc
                    if g_table.size and has_table(p, t):
                        g_table[b, h, y] += arc
                    if g_levels.size:
                        g_levels[b, t, h, y] += arc
        mu[: m.sizes[b, t + 1]] = mu_next[: m.sizes[b, t + 1]]


@kernel
def log_partition(
    worker: int, workers: int, p: Potentials, m: Machines, gradient: bool,
    value: Array, g_unary: Array, g_table: Array, g_levels: Array, status: Labels,
) -> None:  # fmt: skip
    """As `chain_sum.log_partition`, of the product. Time S * L * K**q an example, memory S * L * H a worker."""
    K, H, T = num_labels(p), num_histories(p), num_positions(p)
    states, widest, most_arcs = longest_machine(m, p.lengths)
    beta, unary, norm = np.empty((states, H)), np.empty((T, K)), np.empty(T)
    arcs, offsets = np.empty(most_arcs), np.empty(T + 1, np.int64)
    blocks = max(1, H // K)
    mu, mu_next = np.empty((widest, H)), np.empty((widest, H))
    coefficients, ahead = np.empty((widest, H)), np.empty((widest, blocks, K))
    pushed, level, total, shared = np.empty((blocks, K)), np.empty((H, K)), np.empty((H, K)), np.empty((H, K))
    shared_top, shared_span = shared_weights(p, shared)
    for b in range(worker, p.lengths.shape[0], workers):
        length = p.lengths[b]
        state_offsets(m, b, length, offsets)
        scaled, value[b] = backward_scaled(
            p, m, b, length, shared, shared_top, shared_span, offsets, beta, unary, norm, arcs, pushed, level
        )
        if not scaled:
            value[b], status[b] = backward_log(p, m, b, length, offsets, beta, unary, level)
        if not gradient or status[b] != OK or value[b] == -np.inf:
            continue
        if scaled:
            forward_scaled(
                p, m, b, length, shared, offsets, beta, unary, norm, arcs, mu, mu_next, coefficients, ahead, pushed,
                level, total, g_unary, g_table, g_levels,
            )  # fmt: skip
        else:
            forward_log(
                p, m, b, length, shared, offsets, beta, unary, norm, arcs, mu, mu_next, level, total,
                g_unary, g_table, g_levels,
            )  # fmt: skip


@kernel
def sample(
    worker: int, workers: int, p: Potentials, m: Machines, uniforms: Array, labels: Labels, status: Labels
) -> None:
    """As `chain_sum.sample`, of the product."""
    K, H, T = num_labels(p), num_histories(p), num_positions(p)
    states, _, most_arcs = longest_machine(m, p.lengths)
    beta, unary, norm = np.empty((states, H)), np.empty((T, K)), np.empty(T)
    arcs, offsets, pushed = np.empty(most_arcs), np.empty(T + 1, np.int64), np.empty((max(1, H // K), K))
    level, conditional, shared = np.empty((H, K)), np.empty((H, K)), np.empty((H, K))
    draws = labels.shape[0]
    history, machine = np.empty(draws, np.int64), np.empty(draws, np.int64)
    shared_top, shared_span = shared_weights(p, shared)
    for b in range(worker, p.lengths.shape[0], workers):
        length = p.lengths[b]
        state_offsets(m, b, length, offsets)
        scaled, log_z = backward_scaled(
            p, m, b, length, shared, shared_top, shared_span, offsets, beta, unary, norm, arcs, pushed, level
        )
        if not scaled:
            log_z, status[b] = backward_log(p, m, b, length, offsets, beta, unary, level)
        if status[b] == OK and log_z == -np.inf:
            status[b] = EMPTY
        if status[b] != OK:
            continue
        history[:], machine[:] = 0, 0
        for t in range(length):
            fill_weights(p, m, b, t, length, scaled, shared, unary, arcs, level)
            for s in range(m.sizes[b, t]):
                filled = False
                for n in range(draws):
                    if machine[n] != s:
                        continue
                    if not filled:
                        fill_conditionals(p, m, b, t, s, scaled, level, arcs, offsets, beta, unary, norm, conditional)
                        filled = True
                    row, remaining, label = conditional[history[n]], uniforms[n, b, t], -1
                    for y in range(K):
                        if row[y] > 0.0 and (label < 0 or remaining >= 0.0):
                            label = y
                        remaining -= row[y]
                    labels[n, b, t] = label
                    history[n] = (history[n] * K + label) % H
                    machine[n] = (
                        -1 - m.next_state[m.arc_begin[b, t] + s * m.num_classes[b] + m.class_of[b, label]]
                    )  # negative until the level is done
            for n in range(draws):
                machine[n] = -1 - machine[n]


@kernel
def expectation(
    worker: int, workers: int, p: Potentials, m: Machines, f: Potentials, f_weight: Array, f_final: Array,
    gradient: bool, value: Array,
    gp_unary: Array, gp_table: Array, gp_levels: Array, gf_unary: Array, gf_table: Array, gf_levels: Array,
    status: Labels,
) -> None:  # fmt: skip
    """As `chain_sum.expectation`, of the product: f gives an arc its own score and f_weight, and f_final at the end."""
    K, H, T = num_labels(p), num_histories(p), num_positions(p)
    states, widest, most_arcs = longest_machine(m, p.lengths)
    beta, unary, norm, after = np.empty((states, H)), np.empty((T, K)), np.empty(T), np.empty((states, H))
    arcs, offsets, pushed = np.empty(most_arcs), np.empty(T + 1, np.int64), np.empty((max(1, H // K), K))
    level, conditional, shared = np.empty((H, K)), np.empty((H, K)), np.empty((H, K))
    scores, f_unary, in_p, in_f = np.empty((H, K)), np.empty(K), np.empty((H, K)), np.empty((H, K))
    mu, mu_next = np.empty((widest, H)), np.empty((widest, H))
    before, before_next = np.empty((widest, H)), np.empty((widest, H))
    shared_top, shared_span = shared_weights(p, shared)
    for b in range(worker, p.lengths.shape[0], workers):
        length, classes = p.lengths[b], m.num_classes[b]
        state_offsets(m, b, length, offsets)
        scaled, log_z = backward_scaled(
            p, m, b, length, shared, shared_top, shared_span, offsets, beta, unary, norm, arcs, pushed, level
        )
        if not scaled:
            log_z, status[b] = backward_log(p, m, b, length, offsets, beta, unary, level)
        if status[b] != OK or log_z == -np.inf:
            continue
        for s in range(m.sizes[b, length]):
            after[offsets[length] + s, :] = f_final[m.final_begin[b] + s]
        for t in range(length - 1, -1, -1):
            rows = num_rows(p, t)
            fill_weights(p, m, b, t, length, scaled, shared, unary, arcs, level)
            status[b] = max(status[b], fill_scores(f, b, t, length, rows, f_unary, scores))
            for s in range(m.sizes[b, t]):
                fill_conditionals(p, m, b, t, s, scaled, level, arcs, offsets, beta, unary, norm, conditional)
                for h in range(rows):
                    first, total = (h * K) % H, 0.0
                    for y in range(K):
                        if conditional[h, y] > 0.0:
                            arc = m.arc_begin[b, t] + s * classes + m.class_of[b, y]
                            state = offsets[t + 1] + m.next_state[arc]
                            rest = after[state, first + y if H > 1 else 0]
                            total += conditional[h, y] * (scores[h, y] + weight_at(f_weight, arc) + rest)
                    after[offsets[t] + s, h] = total
        value[b] = after[0, 0]
        if not gradient or status[b] != OK or value[b] == -np.inf:
            continue
        mu[0, :], before[0, :] = 0.0, 0.0
        mu[0, 0] = 1.0
        for t in range(length):
            rows = num_rows(p, t)
            fill_weights(p, m, b, t, length, scaled, shared, unary, arcs, level)
            fill_scores(f, b, t, length, rows, f_unary, scores)
            mu_next[: m.sizes[b, t + 1]], before_next[: m.sizes[b, t + 1]] = 0.0, 0.0
            in_p[:rows], in_f[:rows] = 0.0, 0.0
            for s in range(m.sizes[b, t]):
                fill_conditionals(p, m, b, t, s, scaled, level, arcs, offsets, beta, unary, norm, conditional)
                for h in range(rows):
                    first = (h * K) % H
                    for y in range(K):
                        share = mu[s, h] * conditional[h, y]
                        if share > 0.0:
                            arc = m.arc_begin[b, t] + s * classes + m.class_of[b, y]
                            state, column = m.next_state[arc], first + y if H > 1 else 0
                            so_far = before[s, h] + scores[h, y] + weight_at(f_weight, arc)
                            mu_next[state, column] += share
                            before_next[state, column] += share * so_far
                            in_f[h, y] += share
                            in_p[h, y] += share * (so_far + after[offsets[t + 1] + state, column] - value[b])
            add_arcs(f, b, t, in_f, gf_unary, gf_table, gf_levels)
            add_arcs(p, b, t, in_p, gp_unary, gp_table, gp_levels)
            for s in range(m.sizes[b, t + 1]):
                for h in range(H):
                    mu[s, h] = mu_next[s, h]
                    before[s, h] = before_next[s, h] / mu_next[s, h] if mu_next[s, h] > 0.0 else 0.0
