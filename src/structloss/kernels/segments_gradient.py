"""The partition function of the ways to cut frames into segments, and its gradient: the probability of every segment.

What `kernels.segments.backward` gives for every node makes the ways a Markov chain; a pass through it, from the first
frame to the last, gives the probability of every node, and so of all that scores a segment.
"""

from typing import Any

import numpy as np

from structloss.kernels import segments
from structloss.kernels.arithmetic import inverse
from structloss.kernels.compile import helper, kernel
from structloss.kernels.segments import Room, Scaled, Segments
from structloss.kernels.types import Array


@helper
def share(scores: Array, weights: Array, values: Array, exps: Array, count: int, row: Array) -> Any:
    """As share_logs, up to a factor, from exp(scores), weights, and exp(values), exps, both scaled. Returns the sum."""
    total = 0.0
    for i in range(count):
        row[i] = weights[i] * exps[i]
    for i in range(count):
        total += row[i]
    return total if total.real > segments.TINY else segments.share_logs(scores, values, count, row)[1]


@helper
def push(
    matrix: Array, weights: Array, values: Array, exps: Array, count: int, row: Array, masses: Array, flow: Array,
    g: Array,
) -> None:  # fmt: skip
    """flow[i] = the sum over p of masses[p] * P(i | p), which is in proportion to exp(matrix[p, i] + values[i]).

    g[p, i] += each of these terms.
    """
    flow[:count] = 0.0
    for p in range(weights.shape[0]):
        if masses[p].real > 0.0:
            total = share(matrix[p], weights[p], values, exps, count, row)
            scale = masses[p] * inverse(total)
            for i in range(count):
                row[i] *= scale
            segments.add(flow[:count], row)
            if g.size:
                segments.add(g[p, :count], row)


@helper
def fill_flow(
    s: Segments, b: int, t: int, first: int, last: int, count: int, scaled: Scaled, r: Room, mass: Array, g: Segments
) -> None:
    """shares[d, k] = the probability of each segment from t on, where mass (T + 1, P, K + 1) is that of each node.

    The probability of each transition, and of each pair of durations, is added to g.
    """
    matrices = segments.matrices_of(s, b)
    if s.rates.size:
        for k in range(first, last):
            segments.take_column(r.ways, k, count, r.column)
            segments.take_column(r.shares, k, count, r.column_exps)
            segments.take_column(mass[t], k, mass.shape[1], r.before)
            own = g.rates[b, k]
            push(matrices[k], scaled.weights[k], r.column, r.column_exps, count, r.row, r.before, r.flow, own)
            for d in range(count):
                r.shares[d, k] = r.flow[d]
        return
    if s.transitions.size:
        segments.scaled_exp(r.starts, last, r.start_exps)
        own = g.transitions[b]
        push(matrices[0], scaled.weights[0], r.starts, r.start_exps, last, r.row, mass[t, 0], r.flow, own)
    else:
        for k in range(first, last):
            r.flow[k] = mass[t, 0, k]
    flow, sums = r.flow[first:last], r.sums[first:last]
    for k in range(flow.shape[0]):
        flow[k] = flow[k] * inverse(sums[k]) if sums[k].real > 0.0 else 0.0 * flow[k]
    for d in range(count):
        shares = r.shares[d, first:last]
        for k in range(flow.shape[0]):
            shares[k] *= flow[k]


@helper
def spread(
    nodes: Array, g: Segments, b: int, t: int, count: int, first: int, last: int, weights: Array, sums: Array
) -> None:
    """Add weights[d, k], what the segments from t on weigh, to the nodes that they lead to and to what scores them.

    A frame is in all segments that do not end before it: its weights are summed from the longest on. Cost D * K.
    """
    tails, paired = sums[first:last], nodes.shape[1] > 1
    tails[:] = 0.0
    for d in range(count - 1, -1, -1):
        row = weights[d, first:last]
        segments.add(tails, row)
        segments.add(nodes[t + d + 1, d if paired else 0, first + 1 : last + 1], row)
        if g.frames.size:
            segments.add(g.frames[b, t + d, first:last], tails)
        if g.durations.size:
            segments.add(g.durations[b, d, first:last], row)
    if g.opening.size:
        segments.add(g.opening[b, t, first:last], tails)


@kernel
def log_partition(worker: int, workers: int, s: Segments, wanted: bool, value: Array, g: Segments) -> None:
    """value (B,) = log Z, and where `wanted` its gradients g: a pass through the Markov chain that `backward` makes.

    Time as `backward`, memory T * K, with rates T * K * D.
    """
    r, nodes, mass = segments.make_room(s, value), segments.make_nodes(s, 1, value), segments.make_nodes(s, 1, value)[0]
    for b in range(worker, value.shape[0], workers):
        scaled = segments.scaled_matrices(s, b, value)
        segments.backward(s, None, b, nodes, scaled, r)
        value[b] = nodes[0, 0, 0, 0]
        if not wanted or value[b].real == -np.inf:
            continue
        length = s.lengths[b]
        mass[: length + 1] = 0.0
        mass[0, 0, 0] = 1.0
        for t in range(length):
            first, last = segments.span(s, b, t)
            if first < last:
                count = segments.look_ahead(s, None, b, t, 0, first, last, nodes, scaled, r)
                fill_flow(s, b, t, first, last, count, scaled, r, mass, g)
                spread(mass, g, b, t, count, first, last, r.shares, r.sums)
        for p in range(mass.shape[1] if g.final.size else 0):
            segments.add(g.final[b], mass[length, p])
