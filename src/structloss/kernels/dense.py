"""Sums over the outputs of a chain times a machine: the partition function, marginals, samples.

One backward pass gives beta(t, h, s), the sum over all ways to finish from history h and machine state s at level t:

    beta(t, h, s) = sum over y of exp(score(t, h, y) + weight(s, y)) * beta(t + 1, (h * K + y) mod H, next(s, y)),

log Z = log beta(0, 0, 0). It makes the product a Markov chain, P(y | h, s, t) = exp(score + weight) * beta' / beta, and
everything else is read off a forward pass through that: occupancies mu(t, h, s), marginals mu * P, samples. On complex
scores all of it gives expectations too: see `arithmetic`.

The passes run in *scaled* linear arithmetic: a level's weights are divided by their maximum, its beta by their sum.
That is exact as long as nothing that is positive rounds to zero, so an example whose scores span more than RANGE at
some level, or whose positive beta falls below TINY of its level's sum, is UNSAFE, and left to `dense_log`. With weights
above exp(-RANGE) = 1e-87 and beta above TINY = 1e-170 no product, nor STEP = 1e-30 of it, comes near the smallest
double, 1e-308.

A level's states are a table (H, S), so that every step is one of vectors over the machine's states; where these are
few, at most FEW, it is (S, H), and the vectors are over labels. With a(h', s) = exp(unary + weight) * beta(t + 1, ...)
and E = exp(table - max), a level is S products of E with a vector in each direction, and with c = mu / (norm * beta)
the table's marginals are E times the sum over s of c(h, s) * a(h', s).

Each layout is compiled for itself, when examples of its kind come: `few` is True or None, types of their own, and numba
leaves out the branches of the other. Few are one state without weights where the order is not 2.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels import levels, steps
from structloss.kernels.arithmetic import exponential, extremes, inverse
from structloss.kernels.compile import helper, kernel
from structloss.kernels.levels import Machines, Potentials
from structloss.kernels.types import OK, UNSAFE, Array, Ints

RANGE = 200.0
FEW = 4  # states of a machine: ChunkErrors has three


class Room(NamedTuple):
    """What a worker computes in. Level t of (H, S) states begins at H * begin[t] of a buffer that is read as flat.

    Where states are few, that is rows begin[t], ... of the same buffer as a table with H columns: what ends in _rows.
    """

    begin: Ints  # (T + 1,)
    beta: Array  # (N, H), all levels; the forward pass leaves c there
    reached: Ints  # (N, K), whether a label leads to the row's state; of size 0 where every one does, as the next
    targets: Ints  # (N, K), the row that a label leads to
    ahead: Array  # (N, H // K, K), a of all levels, (H', S) each; of one level only for order 1
    unary: Array  # (T, K), exp(unary scores - max over y)
    norm: Array  # (T,), what beta was divided by
    arcs: Array  # flat, exp(weight - max) of a level's arcs, (C, S); of size 0 where all are 1
    shared: Array  # (H, K), exp(table - max) of a shared table
    across: Array  # (K, H), the same transposed, for order 2; else of size 0
    level: Array  # (H, K), of one level
    mu: Array  # (S, H // K, K), a level's
    flow: Array  # (S, H // K, K), a level's mu by the label that leads on


@helper
def room_for(p: Potentials, m: Machines, few: bool | None, value: Array) -> Room:
    """Room for the largest example, of the type of `value`."""
    T, H, K = levels.shape_of(p)
    states, widest, arcs = levels.largest_machine(m, p.lengths)
    kind, blocks = value.dtype, max(1, H // K)
    known = states if few is not None and p.order == 2 and m.next_state.size + m.weight.size > 1 else 0
    return Room(
        np.empty(T + 1, np.int64),
        np.empty((states, H), kind),
        np.empty((known, K), np.bool_),
        np.empty((known, K), np.int64),
        np.empty((states if p.order > 1 else widest, blocks, K), kind),
        np.empty((T, K), kind),
        np.empty(T),
        np.empty(arcs if m.weight.size else 0, kind),
        np.empty((H, K), kind),
        np.empty((K, H) if few is not None and p.order == 2 and p.shared else (0, 0), kind),
        np.empty((H, K), kind),
        np.empty((widest, blocks, K), kind),
        np.empty((widest, blocks, K), kind),
    )


@helper
def exp_unaries(p: Potentials, b: int, length: int, out: Array, spans: Array) -> float:
    """out[t, y] = exp(unary score - max over y), spans[t] = the span of the finite ones. Returns the maxima's sum."""
    levels.fill_unaries(p, b, length, out)
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
        flat[i] = exponential(flat[i])
    return total


@helper
def shared_weights(p: Potentials, out: Array, across: Array) -> tuple[float, float]:
    """out = exp(table - max) for a shared table, once for the whole batch. Returns the maximum and the span."""
    if not (p.table.size and p.shared):
        return 0.0, 0.0
    top, span = steps.exp_table(p.table[0, 0], out.shape[0], out)
    for y in range(across.shape[0]):
        for h in range(across.shape[1]):
            across[y, h] = out[h, y]
    return top, span


@helper
def fill_level(table: Array, b: int, t: int, tabled: bool, rows: int, out: Array) -> tuple[float, float]:
    """out = exp(table - max) of a level with a table of its own, 1 of one that has none. Returns maximum and span."""
    if tabled:
        return steps.exp_table(table[b, t], rows, out)
    for h in range(rows):
        for y in range(out.shape[1]):
            out[h, y] = 1.0
    return 0.0, 0.0


@helper
def fill_rows(m: Machines, i: int, length: int, begin: Ints, targets: Ints, reached: Ints) -> None:
    """targets[row, y] = the row that label y leads to; reached[row, y] = whether label y leads to this one."""
    K = reached.shape[1]
    for row in range(begin[length] + m.sizes[i, length]):
        for y in range(K):
            reached[row, y] = False
    for t in range(length):
        classes, S, arc = levels.classes_at(m, i, t), m.sizes[i, t], m.arc_begin[i, t]
        for s in range(S):
            for y in range(K):
                row = begin[t + 1] + m.next_state[arc + classes[y] * S + s]
                targets[begin[t] + s, y] = row
                reached[row, y] = True


@helper
def fill_last(final: Array, i: int, S: int, H: int, few: bool | None, beta: Array, begin: int) -> tuple[float, float]:
    """beta of the last level, exp(final - max) for every history. Returns the maximum and the span."""
    top, bottom = extremes(final[i], 0, S)
    if top > -np.inf:
        for s in range(S):
            value = exponential(final[i, s] - top)
            for h in range(H):
                beta[begin + (h * S + s if few is None else s * H + h)] = value
    return top, top - bottom


@helper
def backward(
    p: Potentials, m: Machines, b: int, few: bool | None, top: float, span: float, room: Room, value: Array
) -> int:
    """Fill beta and norm, so that norm[t] * beta(t, h, s) = the sum over y, and value[b] = log Z. Returns a status.

    `top` and `span` are those of the shared table; `few` says how states are laid out, and that a history goes only
    with states that its label leads to. A NaN or +inf is UNSAFE. Cost S * L * K**q.
    """
    (_, H, K), order, length = levels.shape_of(p), p.order, p.lengths[b]
    i = levels.machine_of(m, b)
    C, begin, norm, beta, ahead = m.num_classes[i], room.begin, room.norm, room.beta.reshape(-1), room.ahead.reshape(-1)
    next_state, weight, arcs, unary, table = m.next_state, m.weight, room.arcs, room.unary, p.table
    beta_rows, ahead_rows, reached, targets = room.beta, room.ahead, room.reached, room.targets
    shared, level, all_shared, across = room.shared, room.level, p.shared, room.across
    beta_across, ahead_across = beta.reshape(-1, 1, H), ahead.reshape(-1, H)  # for order 2
    dense = table.size > 0 and not all_shared
    levels.fill_begins(m, i, length, begin)
    if few is not None and reached.size:
        fill_rows(m, i, length, begin, targets, reached)
    log_scale = exp_unaries(p, b, length, unary, norm)
    S_next = m.sizes[i, length]
    last_top, last_span = fill_last(m.final, i, S_next, H, few, beta, H * begin[length])
    value[b] = -np.inf
    if last_top == -np.inf:
        return OK
    if not last_span <= RANGE:
        return UNSAFE
    log_scale += last_top
    for t in range(length - 1, -1, -1):
        rows = H if t >= order - 1 else K**t
        blocks = max(1, H // K) if t >= order - 1 else rows
        S, arc, here = m.sizes[i, t], m.arc_begin[i, t], H * begin[t]
        at = here if order > 1 else 0
        level_top, level_span, arc_top, arc_span = top, span, 0.0, 0.0
        weights = shared
        if not all_shared or t < order - 1:
            level_top, level_span = fill_level(table, b, t, dense, rows, level)
            weights = level
        row = begin[t] if order > 1 else 0
        if few is None:
            arc_top, arc_span = steps.exp_arcs(weight, arc, C * S, arcs)
            steps.look_ahead(
                unary, t, levels.classes_at(m, i, t), next_state, arc, arcs, C, S, beta, H * begin[t + 1], H, S_next,
                blocks, ahead, at,
            )  # fmt: skip
            steps.pull(weights, ahead, at, S, rows, blocks, beta, here)
        elif S == 1 and S_next == 1 and arcs.size == 0:
            steps.look_ahead_one(unary, t, beta_rows, begin[t + 1], blocks, ahead_rows, row)
            if across.size and t > 0:
                steps.push_one(across, ahead_across, row, K, 1, beta_across, row)
            else:
                steps.pull_one(weights, ahead_rows, row, 0, rows, blocks, beta_rows, begin[t])
        else:
            arc_top, arc_span = steps.exp_arcs(weight, arc, C * S, arcs)
            for state in range(begin[t], begin[t] + S):
                steps.look_ahead_row(
                    unary, t, levels.classes_at(m, i, t), arcs, S, state - begin[t], beta_rows, targets, state,
                    ahead_rows, state,
                )  # fmt: skip
                if across.size and t > 0 and 2 * reached[state].sum() > K:
                    steps.push_one(across, ahead_across, state, K, 1, beta_across, state)
                    continue
                for h in range(rows):
                    beta_rows[state, h] = 0.0
                    if rows == 1 or reached[state, h]:
                        steps.pull_one(weights, ahead_rows, state, h, h + 1, 1, beta_rows, state)
        widest = norm[t] + arc_span + level_span
        norm[t], safe = steps.rescale(beta[here : here + rows * S])
        if not widest <= RANGE or not norm[t] < np.inf or not safe:
            return UNSAFE
        if norm[t] == 0.0:
            return OK  # nothing finishes from here: there is no output
        log_scale += arc_top + level_top + np.log(norm[t])
        S_next = S
    if beta[0].real > 0.0:
        value[b] = log_scale + np.log(beta[0])
    return OK


@helper
def forward(
    p: Potentials, m: Machines, b: int, few: bool | None, room: Room, labels: Array,
    g_unary: Array, g_table: Array, g_levels: Array, g_final: Array,
) -> None:  # fmt: skip
    """Marginals from what `backward` left, into each gradient that is there (size 0: not wanted)."""
    (_, H, K), order, length = levels.shape_of(p), p.order, p.lengths[b]
    i = levels.machine_of(m, b)
    C, begin, norm, beta, ahead = m.num_classes[i], room.begin, room.norm, room.beta.reshape(-1), room.ahead.reshape(-1)
    mu, flow, level, unary, arcs = room.mu.reshape(-1), room.flow.reshape(-1), room.level, room.unary, room.arcs
    beta_rows, ahead_rows, flow_rows, mu_rows = room.beta, room.ahead, room.flow, room.mu
    shared, table, all_shared = room.shared, p.table, p.shared
    dense = table.size > 0 and not all_shared
    want_unary, want_levels, want_table = g_unary.size > 0, g_levels.size > 0, g_table.size > 0
    mu[0] = 1.0
    for t in range(length):
        tabled = order > 1 and t >= order - 1
        rows = H if t >= order - 1 else K**t
        blocks = max(1, H // K) if t >= order - 1 else rows
        S, S_next, arc, here = m.sizes[i, t], m.sizes[i, t + 1], m.arc_begin[i, t], H * begin[t]
        at = here if order > 1 else 0
        row = begin[t] if order > 1 else 0
        if order == 1 and few is None:
            steps.exp_arcs(m.weight, arc, C * S, arcs)
            steps.look_ahead(
                unary, t, levels.classes_at(m, i, t), m.next_state, arc, arcs, C, S, beta, begin[t + 1], H, S_next,
                blocks, ahead, at,
            )  # fmt: skip
        elif order == 1:
            steps.look_ahead_one(unary, t, beta_rows, begin[t + 1], blocks, ahead_rows, row)
        for state in range(rows * S):
            c = norm[t] * beta[here + state]
            beta[here + state] = mu[state] * inverse(c) if c.real > 0.0 else 0.0 * c
        weights = shared
        if not all_shared or not tabled:
            fill_level(table, b, t, dense, rows, level)
            weights = level
        if few is None:
            steps.push(weights, beta, here, S, rows, blocks, flow)
            classes = levels.classes_at(m, i, t)
            steps.spread(classes, m.next_state, arc, C, S, H, S_next, blocks, ahead, at, flow, mu, labels)
        elif S == 1 and S_next == 1:
            steps.push_one(weights, beta_rows, begin[t], rows, blocks, flow_rows, 0)
            steps.spread_one(ahead_rows, row, blocks, H, flow_rows, mu_rows, labels)
        else:
            for s in range(S):
                steps.push_one(weights, beta_rows, begin[t] + s, rows, 1, flow_rows, s)
            steps.spread_rows(
                room.targets, begin[t], begin[t + 1], S, S_next, ahead_rows, begin[t], flow_rows, mu_rows, labels
            )
        if want_unary:
            for y in range(K):
                g_unary[b, t, y] = labels[y]
        if want_levels or (want_table and tabled and few is None):
            if few is None:
                steps.dots(weights, beta, here, ahead, at, S, rows, blocks, level)
            elif S == 1:
                steps.dots_one(weights, beta_rows, begin[t], ahead_rows, row, rows, blocks, level)
            else:
                steps.dots_rows(weights, beta_rows, begin[t], ahead_rows, begin[t], S, rows, level)
            out = g_levels[b, t] if want_levels else g_table[b]
            for h in range(rows if want_levels or tabled else 0):
                for y in range(K):
                    out[h, y] += level[h, y]
    if want_table and few is not None:
        steps.add_shared(beta_rows, ahead_rows, begin[min(order - 1, length)], begin[length], shared, level)
        for h in range(H):
            for y in range(K):
                g_table[b, h, y] = level[h, y]
    S = m.sizes[i, length]
    for s in range(S if g_final.size else 0):
        for h in range(levels.num_rows(p, length)):
            g_final[b, s] += mu[h * S + s if few is None else s * H + h]


@kernel
def log_partition(
    worker: int, workers: int, p: Potentials, m: Machines, examples: Ints, few: bool | None, gradient: bool,
    value: Array, g_unary: Array, g_table: Array, g_levels: Array, g_final: Array, status: Ints,
) -> None:  # fmt: skip
    """value (B,) = log Z; with `gradient` also the marginals, each into the array that is there (size 0: not wanted).

    g_unary (B, T, K): of labels; g_table (B, H, K): of the shared table, summed over positions; g_levels (B, T, H, K):
    of arcs; g_final (B, S): of the machine's last states. They come zeroed and stay so beyond a length. `examples` (n,)
    says which to do. Time S * L * K**q an example, memory 2 * S * L * H a worker.
    """
    room = room_for(p, m, few, value)
    labels = np.empty(levels.shape_of(p)[2], value.dtype)
    top, span = shared_weights(p, room.shared, room.across)
    for e in range(worker, examples.shape[0], workers):
        b = examples[e]
        status[b] = backward(p, m, b, few, top, span, room, value)
        if gradient and status[b] == OK and value[b].real > -np.inf:
            forward(p, m, b, few, room, labels, g_unary, g_table, g_levels, g_final)


@helper
def fill_before(weights: Array, h: int, ahead: Array, first: int, step: int, out: Array, at: int) -> None:
    """out[at, y] = the sum of weights[h, x] * ahead[first + x * step] over x < y; inf where that of y itself is 0."""
    total = 0.0
    for y in range(out.shape[1]):
        weight = weights[h, y] * ahead[first + y * step]
        out[at, y] = total if weight > 0.0 else np.inf
        total += weight


@helper
def pick(before: Array, at: int, passed: float) -> int:
    """The last label before which the weights come to no more than `passed`; never one of weight 0."""
    label = 0
    for y in range(before.shape[1]):
        label = y if before[at, y] <= passed else label
    return label


@helper
def draw(
    p: Potentials, m: Machines, b: int, few: bool | None, room: Room, places: Ints, before: Array, uniforms: Array,
    labels: Ints,
) -> None:  # fmt: skip
    """labels[:, b] by inverting P(y | h, s) at uniforms[:, b]. Cost L * K a draw.

    P(y | h, s) = E[h, y] * a(h', s) / (norm * beta(h, s)). places (n, 2) are the h and s where each draw stands. Where
    there are more draws than states, the sums to invert are made once for each state.
    """
    (_, H, K), order, i = levels.shape_of(p), p.order, levels.machine_of(m, b)
    draws, blocks, next_state = labels.shape[0], max(1, H // K), m.next_state
    beta, ahead = room.beta.reshape(-1), room.ahead.reshape(-1)
    for n in range(draws):
        places[n, 0], places[n, 1] = 0, 0
    for t in range(p.lengths[b]):
        S, S_next, arc = m.sizes[i, t], m.sizes[i, t + 1], m.arc_begin[i, t]
        at, classes = H * room.begin[t] if order > 1 else 0, levels.classes_at(m, i, t)
        shared, rows = p.shared and t >= order - 1, levels.num_rows(p, t)
        if order == 1 and few is not None:
            steps.look_ahead_one(room.unary, t, room.beta, room.begin[t + 1], 1, room.ahead, 0)
        elif order == 1:
            steps.exp_arcs(m.weight, arc, m.num_classes[i] * S, room.arcs)
            steps.look_ahead(
                room.unary, t, classes, m.next_state, arc, room.arcs, m.num_classes[i], S, beta, room.begin[t + 1], H,
                S_next, 1, ahead, at,
            )  # fmt: skip
        if not shared:
            fill_level(p.table, b, t, order > 1 and not p.shared, rows, room.level)
        weights, norm, here = room.shared if shared else room.level, room.norm[t], H * room.begin[t]
        for_all = rows * S < draws
        for state in range(rows * S if for_all else 0):
            h, s = state // S, state % S
            fill_before(weights, h, ahead, at + h % blocks * K * S + s, S, before, state)
        for n in range(draws):
            h, s = places[n, 0], places[n, 1]
            state = h * S + s
            if not for_all:
                fill_before(weights, h, ahead, at + (h % blocks * K * S if blocks > 1 else 0) + s, S, before, 0)
            passed = uniforms[n, b, t] * norm * beta[here + state]
            label = pick(before, state if for_all else 0, passed)
            labels[n, b, t] = label
            places[n, 0] = label if H == K else (h * K + label) % H
            places[n, 1] = next_state[arc + classes[label] * S + s]


@kernel
def sample(
    worker: int, workers: int, p: Potentials, m: Machines, examples: Ints, few: bool | None,
    value: Array, uniforms: Array, labels: Ints, status: Ints,
) -> None:  # fmt: skip
    """labels (n, B, T): outputs drawn with probability exp(score) / Z, at uniforms (n, B, T); value as `log_partition`.

    Few states are one here: both layouts are then the same. Time S * L * K**q an example and L * K a draw.
    """
    room = room_for(p, m, few, value)
    before, places = np.empty((labels.shape[0], levels.shape_of(p)[2])), np.empty((labels.shape[0], 2), np.int64)
    top, span = shared_weights(p, room.shared, room.across)
    for e in range(worker, examples.shape[0], workers):
        b = examples[e]
        status[b] = backward(p, m, b, few, top, span, room, value)
        if status[b] == OK and value[b] > -np.inf:
            draw(p, m, b, few, room, places, before, uniforms, labels)
