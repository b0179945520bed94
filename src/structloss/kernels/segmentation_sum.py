"""Sums over the ways to cut frames into segments: the partition function, marginals, samples.

With the nodes of `kernels.segmentation`, a backward pass gives the log of the sum over all ways to finish,

    beta(t, p, j) = log of the sum over k, d of exp(score of the segment + beta(t + d + 1, d, k + 1))

and a forward pass through the Markov chain that it makes gives the probability of every segment. Without rates the sum
over d does not depend on p, nor that over k on d. With them it is a product of the matrix exp(rates[k]) and the vector
of ways to go on from (t, k), both scaled to at most 1; a sum that comes out below TINY may have lost terms that round
to zero, and is done again in logarithms.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.arithmetic import exp_nonpositive
from structloss.kernels.compile import kernel
from structloss.kernels.segmentation import (
    Gradients,
    Segments,
    add,
    advance,
    fill_ways,
    gradients_of,
    nodes_at,
    room_for_nodes,
    span,
    spread,
)
from structloss.kernels.types import EMPTY, Array, Ints

TINY = 1e-150


class Room(NamedTuple):
    """What a worker computes in."""

    beta: Array  # (T + 1, P, K + 1)
    ways: Array  # (D, K): log of the ways to go on with each segment
    shares: Array  # (D, K): exp(ways - tops), and then P(d | k), or P(segment)
    starts: Array  # (K,): without rates, log of the ways to go on with state k
    tops: Array  # (K,): the largest of the ways of each state
    sums: Array  # (K,)
    row: Array  # (max of D and K,): what one node is followed by
    state_ways: Array  # (D,): ways and shares of one state
    state_shares: Array  # (D,)
    masses: Array  # (D,): the mass of its nodes
    flow: Array  # (D,): the probability of each of its segments
    weights: Array  # (K, D, D): exp(rates), each row scaled by its largest; 1 for state 0, which has none before it
    largest: Array  # (K, D)


@kernel
def make_room(s: Segments) -> Room:
    """Room for any example of a batch."""
    K, D = s.opening.shape[2], s.durations.shape[1]
    paired = D if s.rates.size else 0
    return Room(
        room_for_nodes(s, -np.inf), np.empty((D, K)), np.empty((D, K)), np.empty(K), np.empty(K), np.empty(K),
        np.empty(max(D, K)), np.empty(D), np.empty(D), np.empty(D), np.empty(D),
        np.empty((K, paired, paired)), np.empty((K, paired)),
    )  # fmt: skip


@kernel
def exp_rates(s: Segments, b: int, r: Room) -> None:
    """Fill weights and largest of example b."""
    r.weights[0], r.largest[0] = 1.0, 0.0
    for k in range(1, r.weights.shape[0]):
        for p in range(r.weights.shape[1]):
            rates, top = s.rates[b, k, p], -np.inf
            for d in range(rates.shape[0]):
                top = max(top, rates[d])
            r.largest[k, p] = top if top > -np.inf else 0.0
            for d in range(rates.shape[0]):
                r.weights[k, p, d] = exp_nonpositive(rates[d] - r.largest[k, p])


@kernel
def share_logs(scores: Array, values: Array, count: int, row: Array) -> tuple[float, float]:
    """row[i] = exp(scores[i] + values[i] - the largest of these), i < count. Returns that, and the sum of the row."""
    top, total = -np.inf, 0.0
    for i in range(count):
        top = max(top, scores[i] + values[i])
    if top == -np.inf:
        row[:count] = 0.0
        return 0.0, 0.0
    for i in range(count):
        row[i] = exp_nonpositive(scores[i] + values[i] - top)
        total += row[i]
    return top, total


@kernel
def share_pair(weights: Array, shares: Array, rates: Array, ways: Array, count: int, row: Array) -> float:
    """row[d] = exp(rates[d] + ways[d]), up to a factor, from exp(rates), weights, and exp(ways), shares, both scaled.

    Returns the sum of the row.
    """
    total = 0.0
    for d in range(count):
        row[d] = weights[d] * shares[d]
    for d in range(count):
        total += row[d]
    if total > TINY:
        return total
    return share_logs(rates, ways, count, row)[1]


@kernel
def pull_pairs(
    rates: Array, weights: Array, largest: Array, ways: Array, shares: Array, top: float, count: int, row: Array,
    out: Array,
) -> None:  # fmt: skip
    """out[p] = log of the sum over d of exp(rates[p, d] + ways[d]). Cost D an entry."""
    for p in range(out.shape[0]):
        own, total = weights[p], 0.0
        for d in range(count):
            total += own[d] * shares[d]
        if total > TINY:
            out[p] = largest[p] + top + np.log(total)
        else:
            base, total = share_logs(rates[p], ways, count, row)
            out[p] = base + np.log(total)


@kernel
def push_pairs(
    rates: Array, weights: Array, ways: Array, shares: Array, count: int, row: Array, mass: Array,
    flow: Array, g: Array,
) -> None:  # fmt: skip
    """flow[d] = the probability of each duration, mass[p] being that of the one before; g[p, d] += that of the pair."""
    flow[:count] = 0.0
    for p in range(mass.shape[0]):
        if mass[p] > 0.0:
            total = share_pair(weights[p], shares, rates[p], ways, count, row)
            scale = mass[p] / total
            for d in range(count):
                row[d] *= scale
            for d in range(count):
                flow[d] += row[d]
            if g.size:
                pair = g[p]
                for d in range(count):
                    pair[d] += row[d]


@kernel
def take_state(r: Room, k: int, count: int) -> None:
    """Put the ways and shares of state k side by side."""
    for d in range(count):
        r.state_ways[d] = r.ways[d, k]
        r.state_shares[d] = r.shares[d, k]


@kernel
def look_ahead(s: Segments, b: int, t: int, first: int, last: int, r: Room) -> int:
    """Fill ways, tops, shares, sums and starts of frame t from beta of the frames after it; how many durations."""
    count = fill_ways(s, b, t, first, last, r.beta, r.sums, r.tops, r.ways)
    tops, sums = r.tops[first:last], r.sums[first:last]
    sums[:] = 0.0
    for k in range(tops.shape[0]):
        tops[k] = tops[k] if tops[k] > -np.inf else 0.0
    for d in range(count):
        exp_row(r.ways[d, first:last], tops, r.shares[d, first:last])
        add(sums, r.shares[d, first:last])
    if s.rates.size:
        return count
    starts, opening = r.starts[first:last], s.opening[b, t, first:last]
    for k in range(starts.shape[0]):
        starts[k] = opening[k] + tops[k] + np.log(sums[k])
    return count


@kernel
def normalise(r: Room, count: int, first: int, last: int) -> None:
    """Without rates, after look_ahead: shares[d, k] = P(d | k), zeros where k cannot go on."""
    sums = r.sums[first:last]
    for k in range(sums.shape[0]):
        sums[k] = 1.0 / sums[k] if sums[k] > 0.0 else 0.0
    for d in range(count):
        multiply(r.shares[d, first:last], sums)


@kernel
def exp_row(row: Array, tops: Array, out: Array) -> None:
    """out = exp(row - tops)."""
    for k in range(out.shape[0]):
        out[k] = exp_nonpositive(row[k] - tops[k])


@kernel
def multiply(row: Array, factors: Array) -> None:
    """row *= factors."""
    for k in range(row.shape[0]):
        row[k] *= factors[k]


@kernel
def backward(s: Segments, b: int, r: Room) -> float:
    """Fill beta of example b; returns log Z. Time T * K * D, and T * K * D**2 with rates, T * K**2 with transitions."""
    beta, length, K = r.beta, s.lengths[b], s.opening.shape[2]
    beta[:length] = -np.inf
    for p in range(beta.shape[1]):
        beta[length, p] = s.final[b]
    if s.rates.size:
        exp_rates(s, b, r)
    for t in range(length - 1, -1, -1):
        first, last = span(s, b, t)
        if first >= last:
            continue
        count = look_ahead(s, b, t, first, last, r)
        if s.transitions.size:
            begin, end = nodes_at(s, t)
            for j in range(begin, end):
                base, total = share_logs(s.transitions[j], r.starts, K, r.row)
                beta[t, 0, j] = base + np.log(total)
        elif s.rates.size:
            for k in range(first, last):
                take_state(r, k, count)
                out = r.flow[: min(t, beta.shape[1]) if k > 0 else 1]
                ways, shares = r.state_ways, r.state_shares
                pull_pairs(s.rates[b, k], r.weights[k], r.largest[k], ways, shares, r.tops[k], count, r.row, out)
                for p in range(out.shape[0]):
                    beta[t, p, k] = s.opening[b, t, k] + out[p]
        else:
            for k in range(first, last):
                beta[t, 0, k] = r.starts[k]
    return float(beta[0, 0, 0])


@kernel
def fill_flow(
    s: Segments, b: int, t: int, first: int, last: int, count: int, r: Room, mass: Array, g: Gradients
) -> None:
    """shares[d, k] = the probability of each segment from t on, where mass (T + 1, P, K + 1) is that of each node.

    The probability of each transition, and of each pair of durations, is added to g.
    """
    if s.rates.size:
        for k in range(first, last):
            take_state(r, k, count)
            ways, shares, masses = r.state_ways, r.state_shares, r.masses
            masses[:] = mass[t, :, k]
            g_rates = g.rates[k] if g.rates.size and k > 0 else r.weights[0, :0]
            push_pairs(s.rates[b, k], r.weights[k], ways, shares, count, r.row, masses, r.flow, g_rates)
            for d in range(count):
                r.shares[d, k] = r.flow[d]
        return
    normalise(r, count, first, last)
    if s.transitions.size:
        r.sums[:] = 0.0
        begin, end = nodes_at(s, t)
        for j in range(begin, end):
            if mass[t, 0, j] > 0.0:
                _, total = share_logs(s.transitions[j], r.starts, last, r.row)
                scale = mass[t, 0, j] / total
                for k in range(last):
                    r.sums[k] += scale * r.row[k]
                if g.transitions.size:
                    for k in range(last):
                        g.transitions[j, k] += scale * r.row[k]
    else:
        for k in range(first, last):
            r.sums[k] = mass[t, 0, k]
    for d in range(count):
        multiply(r.shares[d, first:last], r.sums[first:last])


@kernel
def log_partition(worker: int, workers: int, s: Segments, wanted: bool, value: Array, gradients: Gradients) -> None:
    """value (B,) = log Z, and where `wanted` its gradients. Time as `backward`, memory T * K, with rates T * K * D."""
    r, mass = make_room(s), room_for_nodes(s, 0.0)
    for b in range(worker, value.shape[0], workers):
        value[b] = backward(s, b, r)
        if not wanted or value[b] == -np.inf:
            continue
        g, length = gradients_of(gradients, b), s.lengths[b]
        mass[: length + 1] = 0.0
        mass[0, 0, 0] = 1.0
        for t in range(length):
            first, last = span(s, b, t)
            if first < last:
                count = look_ahead(s, b, t, first, last, r)
                fill_flow(s, b, t, first, last, count, r, mass, g)
                advance(mass, t, count, first, last, r.shares)
                spread(g, t, count, first, last, r.shares, r.sums)
        add_ends(mass[length], g.final)


@kernel
def add_ends(mass: Array, final: Array) -> None:
    """Add the mass (P, K + 1) of the last nodes to the gradient of ending there."""
    if final.size:
        for p in range(mass.shape[0]):
            for j in range(mass.shape[1]):
                final[j] += mass[p, j]


@kernel
def drawn(row: Array, count: int, total: float, uniform: float) -> int:
    """The last i that is possible and before which no more than `uniform` of the row's total lies."""
    chosen, before = 0, 0.0
    undecided = True
    for i in range(count):
        if row[i] > 0.0 and (undecided or before <= uniform):
            chosen, undecided = i, False
        before += row[i] / total
    return chosen


@kernel
def sample(worker: int, workers: int, s: Segments, uniforms: Array, labels: Ints, status: Ints) -> None:
    """labels (n, B, T) = the state of the segment that starts at each frame, -1 where none does.

    Drawn by inverting, at uniforms (n, B, T, 2), first P(state | node), then P(duration | node, state). status is EMPTY
    where there is nothing to draw. Time as `backward`, and for each draw K + D a segment.
    """
    r, n = make_room(s), labels.shape[0]
    due, node, pair = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    for b in range(worker, labels.shape[1], workers):
        if backward(s, b, r) == -np.inf:
            status[b] = EMPTY
            continue
        due[:], node[:], pair[:] = 0, 0, 0
        for t in range(s.lengths[b]):
            first, last = span(s, b, t)
            count = look_ahead(s, b, t, first, last, r) if (due == t).any() else 0
            for i in range(n):
                if due[i] == t:
                    k = node[i]
                    if s.transitions.size:
                        _, total = share_logs(s.transitions[k], r.starts, last, r.row)
                        k = drawn(r.row, last, total, uniforms[i, b, t, 0])
                    take_state(r, k, count)
                    if s.rates.size:
                        own = r.weights[k, pair[i]]
                        total = share_pair(own, r.state_shares, s.rates[b, k, pair[i]], r.state_ways, count, r.row)
                    else:
                        r.row[:count], total = r.state_shares[:count], r.state_shares[:count].sum()
                    d = drawn(r.row, count, total, uniforms[i, b, t, 1])
                    labels[i, b, t] = k
                    due[i], node[i] = t + d + 1, k + 1
                    pair[i] = d if s.rates.size else 0
