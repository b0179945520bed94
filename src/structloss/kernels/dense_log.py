"""The sums of `dense` in logarithms, for the examples that were UNSAFE there: slower, and never out of range."""

import numpy as np

from structloss.kernels import levels
from structloss.kernels.arithmetic import exponential
from structloss.kernels.compile import helper, kernel
from structloss.kernels.dense import fill_before, pick
from structloss.kernels.levels import Machines, Potentials
from structloss.kernels.steps import table_of
from structloss.kernels.types import OK, UNSAFE, Array, Ints


@helper
def fill_arcs(
    p: Potentials, m: Machines, b: int, t: int, h: int, s: int, level: Array, there: Array, out: Array
) -> float:
    """out[y] = score + weight + log beta of what follows, for one state. Returns the largest (real part)."""
    (_, H, K), i, top = levels.shape_of(p), levels.machine_of(m, b), -np.inf
    for y in range(K):
        arc = levels.arc_of(m, i, t, s, y)
        out[y] = level[h, y] + levels.weight_at(m.weight, arc) + there[(h * K + y) % H, m.next_state[arc]]
        top = max(top, out[y].real)
    return top


@helper
def backward(
    p: Potentials, m: Machines, b: int, begin: Ints, beta: Array, unary: Array, level: Array, row: Array, value: Array
) -> int:
    """Fill beta (H, S) of each level with logarithms, and value[b] = log Z. Returns a status."""
    (_, H, K), i, length = levels.shape_of(p), levels.machine_of(m, b), p.lengths[b]
    levels.fill_begins(m, i, length, begin)
    levels.fill_unaries(p, b, length, unary)
    there = table_of(beta, H * begin[length], H, m.sizes[i, length])
    for h in range(H):
        for s in range(m.sizes[i, length]):
            there[h, s] = m.final[i, s]
    for t in range(length - 1, -1, -1):
        rows, S = levels.num_rows(p, t), m.sizes[i, t]
        status = levels.fill_scores(p, b, t, rows, unary, level)
        if status != OK:
            return status
        here = table_of(beta, H * begin[t], H, S)
        for h in range(rows):
            for s in range(S):
                top = fill_arcs(p, m, b, t, h, s, level, there, row)
                here[h, s] = -np.inf
                if top > -np.inf:
                    total = 0.0
                    for y in range(K):
                        total += exponential(row[y] - top)
                    here[h, s] = top + np.log(total)
        there = here
    value[b] = beta[0]
    return OK


@helper
def forward(
    p: Potentials, m: Machines, b: int, begin: Ints, beta: Array, unary: Array, level: Array, row: Array,
    mu: Array, mu_next: Array, g_unary: Array, g_table: Array, g_levels: Array, g_final: Array,
) -> None:  # fmt: skip
    """The marginals of every arc, mu(t, h, s) * P(y | h, s), into each gradient that is there."""
    (_, H, K), i, length = levels.shape_of(p), levels.machine_of(m, b), p.lengths[b]
    mu[0, 0] = 1.0
    for t in range(length):
        S, S_next, rows = m.sizes[i, t], m.sizes[i, t + 1], levels.num_rows(p, t)
        here, there = table_of(beta, H * begin[t], H, S), table_of(beta, H * begin[t + 1], H, S_next)
        levels.fill_scores(p, b, t, rows, unary, level)
        for h in range(H):
            for s in range(S_next):
                mu_next[h, s] = 0.0
        for h in range(rows):
            for s in range(S):
                if not here[h, s].real > -np.inf:
                    continue
                fill_arcs(p, m, b, t, h, s, level, there, row)
                for y in range(K):
                    share = mu[h, s] * exponential(row[y] - here[h, s])
                    mu_next[(h * K + y) % H, m.next_state[levels.arc_of(m, i, t, s, y)]] += share
                    if g_unary.size:
                        g_unary[b, t, y] += share
                    if g_table.size and levels.has_table(p, t):
                        g_table[b, h, y] += share
                    if g_levels.size:
                        g_levels[b, t, h, y] += share
        mu, mu_next = mu_next, mu
    for s in range(m.sizes[i, length] if g_final.size else 0):
        for h in range(levels.num_rows(p, length)):
            g_final[b, s] += mu[h, s]


@kernel
def log_partition(
    worker: int, workers: int, p: Potentials, m: Machines, gradient: bool,
    value: Array, g_unary: Array, g_table: Array, g_levels: Array, g_final: Array, status: Ints,
) -> None:  # fmt: skip
    """As `dense.log_partition`, of the examples that are UNSAFE. Time S * L * K**q exponentials an example."""
    T, H, K = levels.shape_of(p)
    states, widest, _ = levels.largest_machine(m, p.lengths)
    kind = value.dtype
    begin, beta, unary = np.empty(T + 1, np.int64), np.empty(states * H, kind), np.empty((T, K), kind)
    level, row = np.empty((H, K), kind), np.empty(K, kind)
    mu, mu_next = np.empty((H, widest), kind), np.empty((H, widest), kind)
    for b in range(worker, p.lengths.shape[0], workers):
        if status[b] != UNSAFE:
            continue
        status[b] = backward(p, m, b, begin, beta, unary, level, row, value)
        if gradient and status[b] == OK and value[b].real > -np.inf:
            forward(
                p, m, b, begin, beta, unary, level, row, mu, mu_next, g_unary, g_table, g_levels, g_final
            )  # fmt: skip


@kernel
def sample(
    worker: int, workers: int, p: Potentials, m: Machines, value: Array, uniforms: Array, labels: Ints, status: Ints
) -> None:
    """As `dense.sample`, of the examples that are UNSAFE."""
    T, H, K = levels.shape_of(p)
    states, _, _ = levels.largest_machine(m, p.lengths)
    begin, beta, unary = np.empty(T + 1, np.int64), np.empty(states * H), np.empty((T, K))
    level, row, before, ones = np.empty((H, K)), np.empty(K), np.empty((1, K)), np.ones((1, K))
    for b in range(worker, p.lengths.shape[0], workers):
        if status[b] != UNSAFE:
            continue
        status[b] = backward(p, m, b, begin, beta, unary, level, row, value)
        if status[b] != OK or value[b] == -np.inf:
            continue
        i = levels.machine_of(m, b)
        for n in range(labels.shape[0]):
            h, s = 0, 0
            for t in range(p.lengths[b]):
                S, there = m.sizes[i, t], table_of(beta, H * begin[t + 1], H, m.sizes[i, t + 1])
                levels.fill_scores(p, b, t, levels.num_rows(p, t), unary, level)
                fill_arcs(p, m, b, t, h, s, level, there, row)
                for y in range(K):
                    row[y] = exponential(row[y] - beta[H * begin[t] + h * S + s])
                fill_before(ones, 0, row, 0, 1, before, 0)
                label = pick(before, 0, uniforms[n, b, t])
                labels[n, b, t] = label
                s = m.next_state[levels.arc_of(m, i, t, s, label)]
                h = (h * K + label) % H
