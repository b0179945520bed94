"""Expectations over the outputs of a chain times a loss machine: the recursions of `chain_sum.expectation`.

With W = exp(table - max) and F the scores of f, a(h', s) what `look_ahead` gives and c(h, s) = mu / (norm * beta), the
sums over labels and histories are products of W and of W * F with vectors over the machine's states:

    norm * beta * after(h, s) = sum over y of W[h, y] * a * (f_weight + after') + (W * F)[h, y] * a
    dE / df(h, y) = W[h, y] * sum over s of c * a
    dE / dp(h, y) = W[h, y] * sum over s of (c * before * a + c * a * (f_weight + after')) + (F - E) * dE / df
"""

import numpy as np

from structloss.kernels.chain_sum import add_arcs, shared_weights
from structloss.kernels.compile import kernel
from structloss.kernels.levels import Potentials, fill_scores, num_histories, num_labels, num_positions, num_rows
from structloss.kernels.product import Machines, state_offsets, weight_at
from structloss.kernels.product_sum import (
    add_dots,
    backward_log,
    backward_scaled,
    fill_conditionals,
    fill_weights,
    longest_machine,
    look_ahead,
    pull_states,
    push_states,
    table_of,
)
from structloss.kernels.types import OK, Array, Ints


@kernel
def look_further(
    classes: Ints, targets: Ints, f_weight: Array, begin: int, ahead: Array, after: Array, blocks: int, out: Array
) -> None:
    """out = ahead * (f_weight + after'), `after` the next level's (H, S')."""
    K, S = classes.shape[0], targets.shape[1]
    for r in range(blocks):
        for y in range(K):
            c, row = classes[y], r * K + y if after.shape[0] > 1 else 0
            for s in range(S):
                rest = after[row, targets[c, s]] + weight_at(f_weight, begin + c * S + s)
                out[r * K + y, s] = ahead[r * K + y, s] * rest if ahead[r * K + y, s] > 0.0 else 0.0


@kernel
def weighted_scores(weights: Array, scores: Array, rows: int, out: Array) -> bool:
    """out = weights * scores, 0 where the weight is; whether all of it is finite."""
    finite = True
    for h in range(rows):
        for y in range(weights.shape[1]):
            out[h, y] = weights[h, y] * scores[h, y] if weights[h, y] > 0.0 else 0.0
            finite = finite and out[h, y] > -np.inf
    return finite


@kernel
def scaled_example(
    p: Potentials, m: Machines, f: Potentials, f_weight: Array, f_final: Array, b: int, length: int, gradient: bool,
    shared: Array, offsets: Ints, beta: Array, after: Array, unary: Array, norm: Array, arcs: Array,
    rooms: Array, tables: Array, f_unary: Array,
    gp_unary: Array, gp_table: Array, gp_levels: Array, gf_unary: Array, gf_table: Array, gf_levels: Array,
) -> tuple[bool, float, int]:  # fmt: skip
    """The expectation of one scaled example. Returns whether f was finite wherever p is positive, E, and a status."""
    K, H, C = num_labels(p), num_histories(p), m.num_classes[b]
    weights, scores, product, in_p, in_f = tables[0], tables[1], tables[2], tables[3], tables[4]
    classes = m.class_of[b]
    then = table_of(after, H * offsets[length], H, m.sizes[b, length])
    for s in range(m.sizes[b, length]):
        then[:, s] = f_final[m.final_begin[b] + s]
        if f_final[m.final_begin[b] + s] == -np.inf:
            return False, 0.0, OK
    for t in range(length - 1, -1, -1):
        rows, S = num_rows(p, t), m.sizes[b, t]
        blocks = max(1, H // K) if t >= p.order - 1 else rows
        fill_weights(p, m, b, t, length, True, shared, unary, arcs, weights)
        status = fill_scores(f, b, t, length, rows, f_unary, scores)
        if status != OK:
            return True, 0.0, status
        if not weighted_scores(weights, scores, rows, product):
            return False, 0.0, OK
        targets, here = table_of(m.next_state, m.arc_begin[b, t], C, S), table_of(beta, H * offsets[t], H, S)
        there = table_of(beta, H * offsets[t + 1], H, m.sizes[b, t + 1])
        ahead, further = table_of(rooms[0], 0, blocks * K, S), table_of(rooms[1], 0, blocks * K, S)
        mean, extra = table_of(after, H * offsets[t], H, S), table_of(rooms[2], 0, H, S)
        look_ahead(classes, targets, table_of(arcs, 0, C, S), unary, t, there, blocks, ahead)
        look_further(classes, targets, f_weight, m.arc_begin[b, t], ahead, then, blocks, further)
        pull_states(weights, further, rows, blocks, mean)
        pull_states(product, ahead, rows, blocks, extra)
        for h in range(rows):
            for s in range(S):
                total = norm[t] * here[h, s]
                mean[h, s] = (mean[h, s] + extra[h, s]) / total if total > 0.0 else 0.0
        then = mean
    value = then[0, 0]
    if not gradient:
        return True, value, OK
    mu, summed, mu_next, summed_next = rooms[3], rooms[4], rooms[5], rooms[6]
    mu[:H], summed[:H] = 0.0, 0.0
    mu[0] = 1.0
    for t in range(length):
        rows, S, S_next = num_rows(p, t), m.sizes[b, t], m.sizes[b, t + 1]
        blocks = max(1, H // K) if t >= p.order - 1 else rows
        fill_weights(p, m, b, t, length, True, shared, unary, arcs, weights)
        fill_scores(f, b, t, length, rows, f_unary, scores)
        weighted_scores(weights, scores, rows, product)
        targets, here = table_of(m.next_state, m.arc_begin[b, t], C, S), table_of(beta, H * offsets[t], H, S)
        there = table_of(beta, H * offsets[t + 1], H, S_next)
        ahead, further = table_of(rooms[0], 0, blocks * K, S), table_of(rooms[1], 0, blocks * K, S)
        look_ahead(classes, targets, table_of(arcs, 0, C, S), unary, t, there, blocks, ahead)
        mean_next = table_of(after, H * offsets[t + 1], H, S_next)
        look_further(classes, targets, f_weight, m.arc_begin[b, t], ahead, mean_next, blocks, further)
        now, so_far = table_of(mu, 0, H, S), table_of(summed, 0, H, S)
        for h in range(rows):  # from here on c and c * before
            for s in range(S):
                total = norm[t] * here[h, s]
                now[h, s] = now[h, s] / total if total > 0.0 else 0.0
                so_far[h, s] = so_far[h, s] / total if total > 0.0 else 0.0
        flow, flow_f = table_of(rooms[2], 0, blocks * K, S), table_of(rooms[7], 0, blocks * K, S)
        flow_before = table_of(rooms[8], 0, blocks * K, S)
        push_states(weights, now, rows, blocks, flow)
        push_states(product, now, rows, blocks, flow_f)
        push_states(weights, so_far, rows, blocks, flow_before)
        mu_then, summed_then = table_of(mu_next, 0, H, S_next), table_of(summed_next, 0, H, S_next)
        mu_then[:], summed_then[:] = 0.0, 0.0
        for r in range(blocks):
            for y in range(K):
                c, row, i = classes[y], r * K + y if H > 1 else 0, r * K + y
                for s in range(S):
                    share = flow[i, s] * ahead[i, s]
                    gained = weight_at(f_weight, m.arc_begin[b, t] + c * S + s)
                    mu_then[row, targets[c, s]] += share
                    summed_then[row, targets[c, s]] += (flow_f[i, s] + flow_before[i, s]) * ahead[i, s] + share * gained
        add_dots(now, ahead, rows, blocks, in_f)
        add_dots(so_far, ahead, rows, blocks, in_p)
        add_dots(now, further, rows, blocks, product)
        for h in range(rows):
            for y in range(K):
                score = scores[h, y] if weights[h, y] > 0.0 else 0.0
                in_p[h, y] = weights[h, y] * (in_p[h, y] + product[h, y] + (score - value) * in_f[h, y])
                in_f[h, y] *= weights[h, y]
        add_arcs(f, b, t, in_f, gf_unary, gf_table, gf_levels)
        add_arcs(p, b, t, in_p, gp_unary, gp_table, gp_levels)
        mu, mu_next, summed, summed_next = mu_next, mu, summed_next, summed
    return True, value, OK


@kernel
def any_example(
    p: Potentials, m: Machines, f: Potentials, f_weight: Array, f_final: Array, b: int, length: int, gradient: bool,
    scaled: bool, shared: Array, offsets: Ints, beta: Array, states: int, widest: int, unary: Array, norm: Array,
    arcs: Array, f_unary: Array,
    gp_unary: Array, gp_table: Array, gp_levels: Array, gf_unary: Array, gf_table: Array, gf_levels: Array,
) -> tuple[float, int]:  # fmt: skip
    """The expectation of one example, arc by arc: in logarithms, and with f -inf anywhere. Returns E and a status."""
    K, H, status = num_labels(p), num_histories(p), OK
    after, level, conditional = np.empty((states, H)), np.empty((H, K)), np.empty((H, K))
    scores, in_p, in_f = np.empty((H, K)), np.empty((H, K)), np.empty((H, K))
    mu, mu_next = np.empty((widest, H)), np.empty((widest, H))
    before, before_next = np.empty((widest, H)), np.empty((widest, H))
    for s in range(m.sizes[b, length]):
        after[offsets[length] + s, :] = f_final[m.final_begin[b] + s]
    for t in range(length - 1, -1, -1):
        rows = num_rows(p, t)
        fill_weights(p, m, b, t, length, scaled, shared, unary, arcs, level)
        status = max(status, fill_scores(f, b, t, length, rows, f_unary, scores))
        for s in range(m.sizes[b, t]):
            fill_conditionals(p, m, b, t, s, scaled, level, arcs, offsets, beta, unary, norm, conditional)
            for h in range(rows):
                first, total = (h * K) % H, 0.0
                for y in range(K):
                    if conditional[h, y] > 0.0:
                        arc = m.arc_begin[b, t] + m.class_of[b, y] * m.sizes[b, t] + s
                        state = offsets[t + 1] + m.next_state[arc]
                        rest = after[state, first + y if H > 1 else 0]
                        total += conditional[h, y] * (scores[h, y] + weight_at(f_weight, arc) + rest)
                after[offsets[t] + s, h] = total
    value = after[0, 0]
    if not gradient or status != OK or value == -np.inf:
        return value, status
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
                        arc = m.arc_begin[b, t] + m.class_of[b, y] * m.sizes[b, t] + s
                        state, column = m.next_state[arc], first + y if H > 1 else 0
                        so_far = before[s, h] + scores[h, y] + weight_at(f_weight, arc)
                        mu_next[state, column] += share
                        before_next[state, column] += share * so_far
                        in_f[h, y] += share
                        in_p[h, y] += share * (so_far + after[offsets[t + 1] + state, column] - value)
        add_arcs(f, b, t, in_f, gf_unary, gf_table, gf_levels)
        add_arcs(p, b, t, in_p, gp_unary, gp_table, gp_levels)
        for s in range(m.sizes[b, t + 1]):
            for h in range(H):
                mu[s, h] = mu_next[s, h]
                before[s, h] = before_next[s, h] / mu_next[s, h] if mu_next[s, h] > 0.0 else 0.0
    return value, status


@kernel
def expectation(
    worker: int, workers: int, p: Potentials, m: Machines, f: Potentials, f_weight: Array, f_final: Array,
    gradient: bool, value: Array,
    gp_unary: Array, gp_table: Array, gp_levels: Array, gf_unary: Array, gf_table: Array, gf_levels: Array,
    status: Ints,
) -> None:  # fmt: skip
    """As `chain_sum.expectation`, of the product: f gives an arc its own score and f_weight, and f_final at the end.

    Time 6 * S * L * K**q an example, memory 2 * S * L * H a worker.
    """
    K, H, T = num_labels(p), num_histories(p), num_positions(p)
    states, widest, most_arcs = longest_machine(m, p.lengths)
    beta, after, unary, norm = np.empty(states * H), np.empty(states * H), np.empty((T, K)), np.empty(T)
    arcs, offsets, rooms = np.empty(most_arcs), np.empty(T + 1, np.int64), np.empty((9, widest * max(H, K)))
    tables, shared, f_unary = np.empty((5, H, K)), np.empty((H, K)), np.empty(K)
    shared_top, shared_span = shared_weights(p, shared)
    for b in range(worker, p.lengths.shape[0], workers):
        length = p.lengths[b]
        state_offsets(m, b, length, offsets)
        scaled, log_z = backward_scaled(
            p, m, b, length, shared, shared_top, shared_span, offsets, beta, unary, norm, arcs, rooms[0], tables[0]
        )
        if not scaled:
            log_z, status[b] = backward_log(p, m, b, length, offsets, beta, unary, tables[0])
        if status[b] != OK or log_z == -np.inf:
            continue
        done = False
        if scaled:
            done, value[b], status[b] = scaled_example(
                p, m, f, f_weight, f_final, b, length, gradient, shared, offsets, beta, after, unary, norm, arcs,
                rooms, tables, f_unary, gp_unary, gp_table, gp_levels, gf_unary, gf_table, gf_levels,
            )  # fmt: skip
        if not done:
            value[b], status[b] = any_example(
                p, m, f, f_weight, f_final, b, length, gradient, scaled, shared, offsets, beta, states, widest, unary,
                norm, arcs, f_unary, gp_unary, gp_table, gp_levels, gf_unary, gf_table, gf_levels,
            )  # fmt: skip
