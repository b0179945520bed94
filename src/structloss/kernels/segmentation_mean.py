"""Expectations over the ways to cut frames into segments, and their gradients.

The mean of another score f over what follows a node, mean(t, p, j), comes by the backward recursion under the
probabilities that `kernels.segmentation_sum` gives. A forward pass carries, with the mass of each node, that mass times
the mean of f over what leads there. The derivative of E[f] in a score of the first structure is then the sum, over the
segments that use it, of P(segment) * (the mean of f before it + f of the segment + the mean after it - E[f]).
"""

import numpy as np

from structloss.kernels.compile import kernel
from structloss.kernels.segmentation import (
    Gradients,
    Segments,
    add,
    add_following,
    advance,
    fill_segments,
    gradients_of,
    nodes_at,
    room_for_nodes,
    span,
    spread,
)
from structloss.kernels.segmentation_sum import (
    Room,
    add_ends,
    backward,
    look_ahead,
    make_room,
    normalise,
    share_logs,
    share_pair,
    take_state,
)
from structloss.kernels.types import Array


@kernel
def look_at_other(
    f: Segments, b: int, t: int, count: int, first: int, last: int, mean: Array, sums: Array,
    local: Array, onward: Array,
) -> None:  # fmt: skip
    """local[d, k] = f of each segment from t on, without transition and rate; onward[d, k] = and the mean after it."""
    fill_segments(f, b, t, count, first, last, sums, local)
    for d in range(count):
        add(local[d, first:last], f.opening[b, t, first:last])
        onward[d, first:last] = local[d, first:last]
    add_following(mean, t, count, first, last, onward)


@kernel
def weighted(shares: Array, values: Array, others: Array, count: int, total: float) -> float:
    """The mean of values + others under shares / total; what has no share adds nothing."""
    mean = 0.0
    for i in range(count):
        if shares[i] > 0.0:
            mean += shares[i] * (values[i] + others[i])
    return mean / total


@kernel
def mean_pairs(
    rates: Array, weights: Array, ways: Array, shares: Array, count: int, row: Array, beta: Array,
    f_rates: Array, onward: Array, out: Array,
) -> None:  # fmt: skip
    """out[p] = the mean of f_rates[p, d] + onward[d] under the probability of d after p, 0 where beta[p] is -inf."""
    for p in range(out.shape[0]):
        out[p] = 0.0
        if beta[p] > -np.inf:
            total = share_pair(weights[p], shares, rates[p], ways, count, row)
            out[p] = weighted(row, onward, f_rates[p], count, total)


@kernel
def push_means(
    rates: Array, weights: Array, ways: Array, shares: Array, count: int, row: Array, mass: Array, before: Array,
    f_rates: Array, onward: Array, value: float, flow: Array, until: Array, g: Array, g_other: Array,
) -> None:  # fmt: skip
    """flow[d] = P(d), until[d] = that times the mean of f of what leads there; derivatives go to g, g_other."""
    flow[:count], until[:count] = 0.0, 0.0
    for p in range(mass.shape[0]):
        if mass[p] > 0.0:
            scale = mass[p] / share_pair(weights[p], shares, rates[p], ways, count, row)
            earlier, theirs = before[p] / mass[p], f_rates[p]
            for d in range(count):
                row[d] *= scale
            for d in range(count):
                flow[d] += row[d]
                until[d] += row[d] * (earlier + theirs[d]) if row[d] > 0.0 else 0.0
            if g_other.size:
                add(g_other[p, :count], row)
            if g.size:
                own = g[p]
                for d in range(count):
                    own[d] += row[d] * (earlier + theirs[d] + onward[d] - value) if row[d] > 0.0 else 0.0


@kernel
def fill_means(s: Segments, f: Segments, b: int, r: Room, mean: Array, local: Array, onward: Array) -> float:
    """mean[t, p, j] = E[f of what follows the node], 0 where nothing does; returns that of the first, E[f]."""
    length, (_, K) = s.lengths[b], local.shape
    mean[:length] = 0.0
    for p in range(mean.shape[1]):
        for j in range(K + 1):
            mean[length, p, j] = f.final[b, j] if s.final[b, j] > -np.inf else 0.0
    column, starting = np.empty(local.shape[0]), np.empty(K)
    for t in range(length - 1, -1, -1):
        first, last = span(s, b, t)
        if first >= last:
            continue
        count = look_ahead(s, b, t, first, last, r)
        if not s.rates.size:
            normalise(r, count, first, last)
        look_at_other(f, b, t, count, first, last, mean, r.sums, local, onward)
        for k in range(first, last):
            if s.rates.size:
                take_state(r, k, count)
                r.masses[:] = r.beta[t, :, k]
                column[:count] = onward[:count, k]
                mean_pairs(
                    s.rates[b, k], r.weights[k], r.state_ways, r.state_shares, count, r.row, r.masses, f.rates[b, k],
                    column, r.flow,
                )  # fmt: skip
                mean[t, :, k] = r.flow
            else:
                total = 0.0
                for d in range(count):
                    if r.shares[d, k] > 0.0:
                        total += r.shares[d, k] * onward[d, k]
                starting[k] = total
                if not s.transitions.size:
                    mean[t, 0, k] = total
        if s.transitions.size:
            begin, end = nodes_at(s, t)
            for j in range(begin, end):
                if r.beta[t, 0, j] > -np.inf:
                    _, total = share_logs(s.transitions[j], r.starts, K, r.row)
                    mean[t, 0, j] = weighted(r.row, starting, f.transitions[j], K, total)
    return float(mean[0, 0, 0])


@kernel
def enter_states(
    s: Segments, f: Segments, b: int, t: int, first: int, last: int, count: int, value: float, r: Room,
    mass: Array, before: Array, onward: Array, flows: Array, untils: Array, g: Gradients, g_other: Gradients,
) -> None:  # fmt: skip
    """Without rates: flows[d, k] = P(segment), untils[d, k] = that times the mean of f of what leads to it."""
    entering, earlier = r.sums, r.tops  # of each state, its probability, and that times the mean of f until there
    if s.transitions.size:
        entering[:], earlier[:] = 0.0, 0.0
        begin, end = nodes_at(s, t)
        for j in range(begin, end):
            if mass[t, 0, j] > 0.0:
                _, total = share_logs(s.transitions[j], r.starts, last, r.row)
                for k in range(last):
                    flow = mass[t, 0, j] * r.row[k] / total
                    if flow > 0.0:
                        until = before[t, 0, j] / mass[t, 0, j] + f.transitions[j, k]
                        entering[k] += flow
                        earlier[k] += flow * until
                        if g_other.transitions.size:
                            g_other.transitions[j, k] += flow
                        if g.transitions.size:
                            after = 0.0
                            for d in range(count):
                                if r.shares[d, k] > 0.0:
                                    after += r.shares[d, k] * onward[d, k]
                            g.transitions[j, k] += flow * (until + after - value)
    else:
        for k in range(first, last):
            entering[k], earlier[k] = mass[t, 0, k], before[t, 0, k]
    for d in range(count):
        for k in range(first, last):
            flows[d, k] = entering[k] * r.shares[d, k]
            untils[d, k] = earlier[k] * r.shares[d, k]


@kernel
def enter_pairs(
    s: Segments, f: Segments, b: int, t: int, first: int, last: int, count: int, value: float, r: Room,
    mass: Array, before: Array, onward: Array, flows: Array, untils: Array, g: Gradients, g_other: Gradients,
) -> None:  # fmt: skip
    """With rates: as enter_states."""
    column, befores, until = np.empty(count), np.empty(mass.shape[1]), np.empty(count)
    for k in range(first, last):
        take_state(r, k, count)
        r.masses[:], befores[:], column[:] = mass[t, :, k], before[t, :, k], onward[:count, k]
        own = g.rates[k] if g.rates.size and k > 0 else r.weights[0, :0]
        other = g_other.rates[k] if g_other.rates.size and k > 0 else r.weights[0, :0]
        push_means(
            s.rates[b, k], r.weights[k], r.state_ways, r.state_shares, count, r.row, r.masses, befores, f.rates[b, k],
            column, value, r.flow, until, own, other,
        )  # fmt: skip
        flows[:count, k], untils[:count, k] = r.flow[:count], until


@kernel
def expectation(
    worker: int, workers: int, s: Segments, f: Segments, wanted: bool, value: Array, gradients: Gradients,
    others: Gradients,
) -> None:  # fmt: skip
    """value (B,) = E[score under f], of what is drawn under s; 0 where there is nothing.

    Time and memory as log_partition. Where `wanted`, its gradients in the scores of s, and in those of f, which are the
    probabilities of what uses them; 0 where the value is infinite.
    """
    r, mass, before, mean = make_room(s), room_for_nodes(s, 0.0), room_for_nodes(s, 0.0), room_for_nodes(s, 0.0)
    size = r.shares.shape
    local, onward, flows, untils = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    for b in range(worker, value.shape[0], workers):
        if backward(s, b, r) == -np.inf:
            continue
        value[b] = fill_means(s, f, b, r, mean, local, onward)
        if not wanted or value[b] == -np.inf:
            continue
        g, g_other, length = gradients_of(gradients, b), gradients_of(others, b), s.lengths[b]
        mass[: length + 1], before[: length + 1] = 0.0, 0.0
        mass[0, 0, 0] = 1.0
        for t in range(length):
            first, last = span(s, b, t)
            if first >= last:
                continue
            count = look_ahead(s, b, t, first, last, r)
            if not s.rates.size:
                normalise(r, count, first, last)
            look_at_other(f, b, t, count, first, last, mean, r.sums, local, onward)
            if s.rates.size:
                enter_pairs(
                    s, f, b, t, first, last, count, value[b], r, mass, before, onward, flows, untils, g, g_other
                )
            else:
                enter_states(
                    s, f, b, t, first, last, count, value[b], r, mass, before, onward, flows, untils, g, g_other
                )
            advance(mass, t, count, first, last, flows)
            spread(g_other, t, count, first, last, flows, r.sums)
            for d in range(count):
                for k in range(first, last):
                    flow = flows[d, k]
                    onward[d, k] = untils[d, k] + flow * (onward[d, k] - value[b]) if flow > 0.0 else 0.0
                    untils[d, k] = untils[d, k] + flow * local[d, k] if flow > 0.0 else 0.0
            spread(g, t, count, first, last, onward, r.sums)
            advance(before, t, count, first, last, untils)
        add_ends(mass[length], g_other.final)
        for p in range(mass.shape[1]):
            for j in range(mass.shape[2]):
                if g.final.size and mass[length, p, j] > 0.0:
                    g.final[j] += before[length, p, j] + mass[length, p, j] * (f.final[b, j] - value[b])
