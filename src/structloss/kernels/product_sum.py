"""Sums over the outputs of a chain times a loss machine: the recursions of `chain_sum` with one more axis.

    beta(t, s, h) = sum over y of exp(score(t, h, y) + weight(s, y)) * beta(t + 1, next(s, y), (h * K + y) mod H)

Scaled arithmetic, and logarithms where that is not safe, as there. With S machine states, a level is S products of the
table (H, K) with a vector in each direction, and the table's marginals are one more.
"""

import numpy as np

from structloss.kernels.chain_sum import RANGE, TINY, exp_level, exp_unary, shared_weights, softmax
from structloss.kernels.compile import kernel
from structloss.kernels.levels import (
    Potentials,
    fill_scores,
    has_table,
    num_histories,
    num_labels,
    num_positions,
    num_rows,
)
from structloss.kernels.product import Machines, state_offsets, weight_at
from structloss.kernels.types import EMPTY, OK, Array, Ints


@kernel
def exp_arcs(weight: Array, begin: int, count: int, out: Array) -> tuple[float, float]:
    """out[i] = exp(weight - max) of `count` arcs from `begin` on. Returns the maximum and the span."""
    if weight.size == 0:
        for i in range(count):
            out[i] = 1.0
        return 0.0, 0.0
    top, bottom = -np.inf, np.inf
    for i in range(begin, begin + count):
        top, bottom = max(top, weight[i]), min(bottom, weight[i])
    for i in range(count):
        out[i] = np.exp(weight[begin + i] - top)
    return top, top - bottom


@kernel
def table_of(buffer: Array, begin: int, rows: int, columns: int) -> Array:
    """Numbers of a flat buffer as a (rows, columns) table: a level's (H, S) states or (C, S) arcs."""
    return buffer[begin : begin + rows * columns].reshape(rows, columns)


@kernel
def look_ahead(
    classes: Ints, targets: Ints, arcs: Array, unary: Array, t: int, there: Array, blocks: int, out: Array
) -> None:
    """out[r * K + y, s] = unary[t, y] * exp(weight(s, y)) * there[(r, y), next(s, y)]; `there` is the next level."""
    K, S = unary.shape[1], targets.shape[1]
    for r in range(blocks):
        for y in range(K):
            c, factor, row = classes[y], unary[t, y], r * K + y if there.shape[0] > 1 else 0
            for s in range(S):
                out[r * K + y, s] = factor * arcs[c, s] * there[row, targets[c, s]]


@kernel
def pull_states(weights: Array, ahead: Array, rows: int, blocks: int, out: Array) -> None:
    """out[h, s] = sum over y of weights[h, y] * ahead[(h mod blocks) * K + y, s], four y at a time."""
    K, S = weights.shape[1], out.shape[1]
    for first in range(0, rows, blocks):
        for r in range(blocks):
            h = first + r
            for s in range(S):
                out[h, s] = 0.0
            for y in range(0, K - K % 4, 4):
                e0, e1, e2, e3 = weights[h, y], weights[h, y + 1], weights[h, y + 2], weights[h, y + 3]
                a = r * K + y
                for s in range(S):
                    out[h, s] += (e0 * ahead[a, s] + e1 * ahead[a + 1, s]) + (
                        e2 * ahead[a + 2, s] + e3 * ahead[a + 3, s]
                    )
            for y in range(K - K % 4, K):
                e = weights[h, y]
                for s in range(S):
                    out[h, s] += e * ahead[r * K + y, s]


@kernel
def push_states(weights: Array, coefficients: Array, rows: int, blocks: int, out: Array) -> None:
    """out[r * K + y, s] = sum over h = r mod blocks of weights[h, y] * coefficients[h, s]."""
    K, S = weights.shape[1], out.shape[1]
    whole = rows - rows % 4 if blocks == 1 else 0
    for r in range(blocks):
        for y in range(K):
            a = r * K + y
            for s in range(S):
                out[a, s] = 0.0
            for h in range(0, whole, 4):
                e0, e1, e2, e3 = weights[h, y], weights[h + 1, y], weights[h + 2, y], weights[h + 3, y]
                for s in range(S):
                    out[a, s] += (e0 * coefficients[h, s] + e1 * coefficients[h + 1, s]) + (
                        e2 * coefficients[h + 2, s] + e3 * coefficients[h + 3, s]
                    )
            for h in range(whole + r, rows, blocks):
                e = weights[h, y]
                for s in range(S):
                    out[a, s] += e * coefficients[h, s]


@kernel
def add_dots(coefficients: Array, ahead: Array, rows: int, blocks: int, out: Array) -> None:
    """out[h, y] = sum over s of coefficients[h, s] * ahead[(h mod blocks) * K + y, s]."""
    K, S = out.shape[1], coefficients.shape[1]
    for h in range(rows):
        r = h % blocks
        for y in range(K):
            total = 0.0
            for s in range(S):
                total += coefficients[h, s] * ahead[r * K + y, s]
            out[h, y] = total


@kernel
def scale_states(states: Array, rows: int, factor: float) -> bool:
    """Multiply states[:rows] by factor; whether every positive one is then above TINY."""
    tiny = 0
    for h in range(rows):
        for s in range(states.shape[1]):
            states[h, s] *= factor
            tiny |= (states[h, s] > 0.0) & (states[h, s] < TINY)
    return tiny == 0


@kernel
def backward_scaled(
    p: Potentials, m: Machines, b: int, length: int, shared: Array, shared_top: float, shared_span: float,
    offsets: Ints, beta: Array, unary: Array, norm: Array, arcs: Array, ahead: Array, level: Array,
) -> tuple[bool, float]:  # fmt: skip
    """Fill beta, unary and norm as `chain_sum.backward_scaled` does. Returns whether that was safe, and log Z.

    beta holds all levels, (H, S) each: the machine's states stand side by side, so that every step is a vector's.
    """
    K, H, order, C, all_shared = num_labels(p), num_histories(p), p.order, m.num_classes[b], p.shared
    dense = p.table.size > 0 and not all_shared
    log_scale = exp_unary(p, b, length, unary, norm)
    final = m.final[m.final_begin[b] : m.final_begin[b] + m.sizes[b, length]]
    there = table_of(beta, H * offsets[length], H, m.sizes[b, length])
    top, bottom = -np.inf, np.inf
    for s in range(final.shape[0]):
        top = max(top, final[s])
        bottom = min(bottom, final[s] if final[s] > -np.inf else np.inf)
    if top == -np.inf:
        return True, -np.inf
    for s in range(final.shape[0]):
        value = np.exp(final[s] - top)
        for h in range(H):
            there[h, s] = value
    log_scale += top
    if top - bottom > RANGE:
        return False, 0.0
    classes = m.class_of[b]
    for t in range(length - 1, -1, -1):
        rows = H if t >= order - 1 else K**t
        blocks = max(1, H // K) if t >= order - 1 else rows
        span, tabled, S = norm[t], dense or (all_shared and t >= order - 1), m.sizes[b, t]
        arc_top, arc_span = exp_arcs(m.weight, m.arc_begin[b, t], C * S, arcs)
        targets, here = (
            table_of(m.next_state, m.arc_begin[b, t], C, S),
            table_of(beta, H * offsets[t], H, m.sizes[b, t]),
        )
        forward = table_of(ahead, 0, blocks * K, S)
        look_ahead(classes, targets, table_of(arcs, 0, C, S), unary, t, there, blocks, forward)
        span += arc_span
        log_scale += arc_top
        if tabled and all_shared:
            span += shared_span
            log_scale += shared_top
            pull_states(shared, forward, rows, blocks, here)
        elif tabled:
            table_top, table_span = exp_level(p.table[b, t], rows, level)
            span += table_span
            log_scale += table_top
            pull_states(level, forward, rows, blocks, here)
        else:
            for h in range(rows):
                for s in range(S):
                    here[h, s] = 0.0
                for y in range(K):
                    for s in range(S):
                        here[h, s] += forward[h * K + y, s]
        total = 0.0
        for h in range(rows):
            for s in range(S):
                total += here[h, s]
        if not span <= RANGE or not total < np.inf:
            return False, 0.0
        if total == 0.0:
            return True, -np.inf
        if not scale_states(here, rows, 1.0 / total):
            return False, 0.0
        norm[t] = total
        log_scale += np.log(total)
        there = here
    return True, log_scale + (np.log(there[0, 0]) if there[0, 0] > 0.0 else -np.inf)


@kernel
def backward_log(
    p: Potentials, m: Machines, b: int, length: int, offsets: Ints, beta: Array, unary: Array, level: Array
) -> tuple[float, int]:
    """Fill beta with logarithms. Returns log Z and a status."""
    K, H = num_labels(p), num_histories(p)
    there = table_of(beta, H * offsets[length], H, m.sizes[b, length])
    for s in range(m.sizes[b, length]):
        there[:, s] = m.final[m.final_begin[b] + s]
    scores = np.empty(K)
    for t in range(length - 1, -1, -1):
        rows, here = num_rows(p, t), table_of(beta, H * offsets[t], H, m.sizes[b, t])
        status = fill_scores(p, b, t, length, rows, unary[t], level)
        if status != OK:
            return 0.0, status
        for s in range(m.sizes[b, t]):
            for h in range(rows):
                first, top = (h * K) % H, -np.inf
                for y in range(K):
                    arc = m.arc_begin[b, t] + m.class_of[b, y] * m.sizes[b, t] + s
                    following = there[first + y if H > 1 else 0, m.next_state[arc]]
                    scores[y] = level[h, y] + weight_at(m.weight, arc) + following
                    top = max(top, scores[y])
                here[h, s] = top
                if top > -np.inf:
                    total = 0.0
                    for y in range(K):
                        total += np.exp(scores[y] - top)
                    here[h, s] += np.log(total)
        there = here
    return there[0, 0], OK


@kernel
def fill_conditionals(
    p: Potentials, m: Machines, b: int, t: int, s: int, scaled: bool, weights: Array, arcs: Array,
    offsets: Ints, beta: Array, unary: Array, norm: Array, out: Array,
) -> None:  # fmt: skip
    """out[h, y] = P(y | s, h, t) for the rows of level t; `weights` (H, K) are what `fill_weights` gives."""
    K, H = num_labels(p), num_histories(p)
    here, there = (
        table_of(beta, H * offsets[t], H, m.sizes[b, t]),
        table_of(beta, H * offsets[t + 1], H, m.sizes[b, t + 1]),
    )
    for h in range(num_rows(p, t)):
        first = (h * K) % H
        for y in range(K):
            c = m.class_of[b, y] * m.sizes[b, t] + s
            following = there[first + y if H > 1 else 0, m.next_state[m.arc_begin[b, t] + c]]
            if not scaled:
                out[h, y] = weights[h, y] + weight_at(m.weight, m.arc_begin[b, t] + c) + following
            elif here[h, s] > 0.0:
                out[h, y] = weights[h, y] * unary[t, y] * arcs[c] * following / (norm[t] * here[h, s])
            else:
                out[h, y] = 0.0
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
    exp_arcs(m.weight, m.arc_begin[b, t], m.sizes[b, t] * m.num_classes[b], arcs)
    if not has_table(p, t):
        out[:rows] = 1.0
    elif p.shared:
        out[:rows] = shared[:rows]
    else:
        exp_level(p.table[b, t], rows, out)


@kernel
def longest_machine(m: Machines, lengths: Ints) -> tuple[int, int, int]:
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
    p: Potentials, m: Machines, b: int, length: int, shared: Array, offsets: Ints, beta: Array, unary: Array,
    norm: Array, arcs: Array, mu: Array, mu_next: Array, coefficients: Array, ahead: Array, pushed: Array,
    level: Array, total: Array, g_unary: Array, g_table: Array, g_levels: Array,
) -> None:  # fmt: skip
    """The marginals of a scaled example, with c(h, s) = mu(t, h, s) / (norm[t] * beta(t, h, s)) as in `chain_sum`."""
    K, H, order, C, all_shared = num_labels(p), num_histories(p), p.order, m.num_classes[b], p.shared
    dense = p.table.size > 0 and not all_shared
    want_unary, want_levels, want_table = g_unary.size > 0, g_levels.size > 0, g_table.size > 0
    classes = m.class_of[b]
    mu[:H] = 0.0
    mu[0] = 1.0
    for t in range(length):
        rows = H if t >= order - 1 else K**t
        blocks = max(1, H // K) if t >= order - 1 else rows
        tabled, S, S_next = dense or (all_shared and t >= order - 1), m.sizes[b, t], m.sizes[b, t + 1]
        exp_arcs(m.weight, m.arc_begin[b, t], C * S, arcs)
        targets, here = (
            table_of(m.next_state, m.arc_begin[b, t], C, S),
            table_of(beta, H * offsets[t], H, m.sizes[b, t]),
        )
        there = table_of(beta, H * offsets[t + 1], H, m.sizes[b, t + 1])
        now, then = table_of(mu, 0, H, S), table_of(mu_next, 0, H, S_next)
        c, a = table_of(coefficients, 0, H, S), table_of(ahead, 0, blocks * K, S)
        flow = table_of(pushed, 0, blocks * K, S)
        look_ahead(classes, targets, table_of(arcs, 0, C, S), unary, t, there, blocks, a)
        for h in range(rows):
            for s in range(S):
                c[h, s] = now[h, s] / (norm[t] * here[h, s]) if here[h, s] > 0.0 else 0.0
        if dense:
            exp_level(p.table[b, t], rows, level)
        if not tabled:
            for r in range(blocks):
                for y in range(K):
                    for s in range(S):
                        flow[r * K + y, s] = c[r, s]
        elif all_shared:
            push_states(shared, c, rows, blocks, flow)
        else:
            push_states(level, c, rows, blocks, flow)
        for h in range(H):
            for s in range(S_next):
                then[h, s] = 0.0
        for r in range(blocks):
            for y in range(K):
                row, symbol_class, label = r * K + y if H > 1 else 0, classes[y], 0.0
                for s in range(S):
                    flow[r * K + y, s] *= a[r * K + y, s]
                    label += flow[r * K + y, s]
                for s in range(S):
                    then[row, targets[symbol_class, s]] += flow[r * K + y, s]
                if want_unary:
                    g_unary[b, t, y] += label
        if (want_table and tabled) or want_levels:
            add_dots(c, a, rows, blocks, total)
            for h in range(rows):
                for y in range(K):
                    value = total[h, y]
                    if tabled:
                        value *= shared[h, y] if all_shared else level[h, y]
                    if want_levels:
                        g_levels[b, t, h, y] = value
                    if want_table and tabled:
                        g_table[b, h, y] += value
        mu, mu_next = mu_next, mu


@kernel
def forward_log(
    p: Potentials, m: Machines, b: int, length: int, shared: Array, offsets: Ints, beta: Array, unary: Array,
    norm: Array, arcs: Array, mu: Array, mu_next: Array, level: Array, conditional: Array,
    g_unary: Array, g_table: Array, g_levels: Array,
) -> None:  # fmt: skip
    """The marginals of an example in logarithms."""
    K, H = num_labels(p), num_histories(p)
    mu[:H] = 0.0
    mu[0] = 1.0
    for t in range(length):
        fill_weights(p, m, b, t, length, False, shared, unary, arcs, level)
        S, S_next = m.sizes[b, t], m.sizes[b, t + 1]
        now, then = table_of(mu, 0, H, S), table_of(mu_next, 0, H, S_next)
        then[:] = 0.0
        for s in range(m.sizes[b, t]):
            fill_conditionals(p, m, b, t, s, False, level, arcs, offsets, beta, unary, norm, conditional)
            for h in range(num_rows(p, t)):
                first = (h * K) % H
                for y in range(K):
                    arc = now[h, s] * conditional[h, y]
                    state = m.next_state[m.arc_begin[b, t] + m.class_of[b, y] * m.sizes[b, t] + s]
                    then[first + y if H > 1 else 0, state] += arc
                    if g_unary.size:
                        g_unary[b, t, y] += arc
                    if g_table.size and has_table(p, t):
                        g_table[b, h, y] += arc
                    if g_levels.size:
                        g_levels[b, t, h, y] += arc
        mu, mu_next = mu_next, mu


@kernel
def log_partition(
    worker: int, workers: int, p: Potentials, m: Machines, gradient: bool,
    value: Array, g_unary: Array, g_table: Array, g_levels: Array, status: Ints,
) -> None:  # fmt: skip
    """As `chain_sum.log_partition`, of the product. Time S * L * K**q an example, memory S * L * H a worker."""
    K, H, T = num_labels(p), num_histories(p), num_positions(p)
    states, widest, most_arcs = longest_machine(m, p.lengths)
    beta, unary, norm = np.empty(states * H), np.empty((T, K)), np.empty(T)
    arcs, offsets = np.empty(most_arcs), np.empty(T + 1, np.int64)
    size = widest * max(H, K)
    mu, mu_next, coefficients = np.empty(size), np.empty(size), np.empty(size)
    ahead, pushed = np.empty(size), np.empty(size)
    level, total, shared = np.empty((H, K)), np.empty((H, K)), np.empty((H, K))
    shared_top, shared_span = shared_weights(p, shared)
    for b in range(worker, p.lengths.shape[0], workers):
        length = p.lengths[b]
        state_offsets(m, b, length, offsets)
        scaled, value[b] = backward_scaled(
            p, m, b, length, shared, shared_top, shared_span, offsets, beta, unary, norm, arcs, ahead, level
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
def sample(worker: int, workers: int, p: Potentials, m: Machines, uniforms: Array, labels: Ints, status: Ints) -> None:
    """As `chain_sum.sample`, of the product."""
    K, H, T = num_labels(p), num_histories(p), num_positions(p)
    states, widest, most_arcs = longest_machine(m, p.lengths)
    beta, unary, norm = np.empty(states * H), np.empty((T, K)), np.empty(T)
    arcs, offsets, pushed = np.empty(most_arcs), np.empty(T + 1, np.int64), np.empty(widest * max(H, K))
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
                        -1 - m.next_state[m.arc_begin[b, t] + m.class_of[b, label] * m.sizes[b, t] + s]
                    )  # negative until the level is done
            for n in range(draws):
                machine[n] = -1 - machine[n]
