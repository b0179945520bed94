"""Exact inference in factor graphs by eliminating one variable after the other.

`Plan` is an order of elimination: bucket i takes out its variable v, together with the factors and earlier messages
that know it, its *items*:

    value(i, s, k) = theta_v(k) + sum over items of item(s, k),    message(i, s) = log of the sum over k of exp(value)

for every assignment s of the *separator*, the other variables of those items. A message over no variables adds to
log Z. Going back through the buckets, P(s, k) = P(s) exp(value(i, s, k) - message(i, s)) gives every item its share of
probability, which is the gradient of log Z in every table. Or a label is drawn in each bucket by P(k | s).

Where only the *best* are wanted the maximum takes the place of the sum, and what is best in its bucket, each of them
alike, that of the rest: a draw is a best assignment, and what has a share is in one.
"""

from typing import Any, NamedTuple

import numpy as np

from structloss.kernels.arithmetic import exponential, inverse
from structloss.kernels.compile import exact_helper, exact_inlined_helper, exact_kernel
from structloss.kernels.factors import Graph
from structloss.kernels.types import Array, Ints


class Plan(NamedTuple):
    """An order of elimination, for all examples with the same graph. Variables and factors count from the example's
    first."""

    order: Ints  # (n,): the variable of each bucket
    sizes: Ints  # (n,): how many labels it has
    dims: Ints  # (n + 1,): where each bucket's separator begins in the next two
    separator: Ints  # the variables that a message is about
    extents: Ints  # and how many labels they have
    items: Ints  # (n + 1,): where each bucket's items begin in the next two
    item: Ints  # a factor, or -1 - j for the message of bucket j
    strides: Ints  # (items, most): one for each variable of the separator, and one for v; 0 for what it does not know
    messages: Ints  # (n + 1,): where each message begins
    parent: Ints  # (n,): the bucket that takes the message in; n for none


class Room(NamedTuple):
    """What a worker computes in."""

    messages: Array
    values: Array  # of the labels of a variable
    base: Ints  # where each item's cells for the current s begin
    counter: Ints  # the label of each variable of the separator


@exact_helper
def make_room(p: Plan, like: Array) -> Room:
    """Room for one example, of the type of an array; as much as all buckets need together."""
    messages, values = np.empty(p.messages[-1], like.dtype), np.empty(p.sizes.sum(), like.dtype)
    return Room(messages, values, np.empty(p.item.shape[0], np.int64), np.empty(p.separator.shape[0], np.int64))


@exact_helper
def begin_bucket(g: Graph, p: Plan, b: int, i: int, r: Room) -> None:
    """Point at the first assignment of the separator."""
    for j in range(p.items[i + 1] - p.items[i]):
        item = p.item[p.items[i] + j]
        r.base[j] = g.cells[g.factors[b] + item] if item >= 0 else p.messages[-1 - item]
    r.counter[: p.dims[i + 1] - p.dims[i]] = 0


@exact_inlined_helper
def next_assignment(p: Plan, i: int, r: Room) -> None:
    """Point at the next assignment of the separator, its last variable fastest."""
    first, dims = p.dims[i], p.dims[i + 1] - p.dims[i]
    for d in range(dims - 1, -1, -1):
        r.counter[d] += 1
        whole = r.counter[d] == p.extents[first + d]
        back = r.counter[d] - 1 if whole else -1
        for j in range(p.items[i + 1] - p.items[i]):
            r.base[j] -= p.strides[p.items[i] + j, d] * back  # one on, or back to 0
        if not whole:
            return
        r.counter[d] = 0


@exact_inlined_helper
def fill_values(g: Graph, p: Plan, b: int, i: int, scores: Array, r: Room) -> None:
    """r.values[k] = value(i, s, k) at the assignment that is pointed at."""
    first, dims = g.labels[g.variables[b] + p.order[i]], p.dims[i + 1] - p.dims[i]
    for k in range(p.sizes[i]):
        r.values[k] = scores[first + k]
    for j in range(p.items[i + 1] - p.items[i]):
        at = p.items[i] + j
        stride = p.strides[at, dims]
        if p.item[at] >= 0:
            for k in range(p.sizes[i]):
                r.values[k] += scores[r.base[j] + k * stride]
        else:
            for k in range(p.sizes[i]):
                r.values[k] += r.messages[r.base[j] + k * stride]


@exact_helper
def hand_down(g: Graph, p: Plan, b: int, i: int, r: Room, share: Array, mass: Array) -> None:
    """Add r.values[k] to the share of what value(i, s, k) was summed from: of scores, and the mass of messages."""
    first, dims = g.labels[g.variables[b] + p.order[i]], p.dims[i + 1] - p.dims[i]
    for k in range(p.sizes[i]):
        share[first + k] += r.values[k]
    for j in range(p.items[i + 1] - p.items[i]):
        at = p.items[i] + j
        stride = p.strides[at, dims]
        into = share if p.item[at] >= 0 else mass
        for k in range(p.sizes[i]):
            into[r.base[j] + k * stride] += r.values[k]


@exact_inlined_helper
def largest(values: Array, size: int) -> float:
    """The largest of values[:size]."""
    top: float = values[0].real
    for k in range(1, size):
        if values[k].real > top:
            top = values[k].real
    return top


@exact_inlined_helper
def weights(values: Array, size: int, top: float, best: bool) -> Any:
    """values[:size] = their exp, over that of the largest, `top`; of the best, 1 and 0. Returns the sum.

    Over the sum they are probabilities, exact however large the values are, which exp(value - log of the sum) is not.
    """
    total = 0.0
    if best:
        for k in range(size):
            values[k] = 1.0 if values[k].real == top else 0.0
    else:
        for k in range(size):  # a loop of its own is vectorised
            values[k] = exponential(values[k] - top)
    for k in range(size):
        total += values[k]
    return total


@exact_helper
def collect(g: Graph, p: Plan, b: int, scores: Array, best: bool, r: Room) -> Any:
    """Fill the messages. Returns log Z, or the maximum."""
    total = 0.0
    for i in range(p.order.shape[0]):
        begin_bucket(g, p, b, i, r)
        for s in range(p.messages[i], p.messages[i + 1]):
            fill_values(g, p, b, i, scores, r)
            top = largest(r.values, p.sizes[i])
            r.messages[s] = top
            if top > -np.inf and not best:
                r.messages[s] += np.log(weights(r.values, p.sizes[i], top, best))
            next_assignment(p, i, r)
        if p.parent[i] == p.order.shape[0]:
            total += r.messages[p.messages[i]]
    return total


@exact_kernel
def log_partition(
    worker: int, workers: int, g: Graph, p: Plan, examples: Ints, best: bool, scores: Array, value: Array, share: Array
) -> None:
    """value[b] = log Z of each of the examples; its gradient too, unless its array has size 0. Real or complex.

    Of the best, the maximum; share is then positive for what some best assignment uses, and else 0.
    """
    n, r = p.order.shape[0], make_room(p, value)
    mass = np.empty(p.messages[n], value.dtype)
    for b in examples[worker::workers]:
        value[b] = collect(g, p, b, scores, best, r)
        if value[b].real == -np.inf or not share.size:
            continue
        mass[:] = 0.0
        for i in range(n - 1, -1, -1):
            if p.parent[i] == n:
                mass[p.messages[i]] = 1.0
            begin_bucket(g, p, b, i, r)
            for s in range(p.messages[i], p.messages[i + 1]):
                if mass[s].real > 0:
                    fill_values(g, p, b, i, scores, r)
                    total = weights(r.values, p.sizes[i], largest(r.values, p.sizes[i]), best)
                    part = (1.0 if best else mass[s]) * inverse(total)
                    for k in range(p.sizes[i]):
                        r.values[k] *= part
                    hand_down(g, p, b, i, r, share, mass)
                next_assignment(p, i, r)


@exact_kernel
def draw(
    worker: int, workers: int, g: Graph, p: Plan, examples: Ints, best: bool, scores: Array, uniforms: Array,
    labels: Ints, ways: Array,
) -> None:  # fmt: skip
    """labels (n, V): assignments drawn with probability exp(score) / Z, by inverting P(k | s) at uniforms (n, V).

    ways[b] is 0 where there is none. Of the best, the one that is drawn at 0 has the first of the best labels in each
    bucket, and ways[b] is 1 only if it is alone.
    """
    n, r = p.order.shape[0], make_room(p, scores)
    y = np.empty(n, np.int64)
    for b in examples[worker::workers]:
        ways[b] = collect(g, p, b, scores, best, r) > -np.inf
        if not ways[b]:
            continue
        for turn in range(uniforms.shape[0]):
            for i in range(n - 1, -1, -1):
                begin_bucket(g, p, b, i, r)
                for j in range(p.items[i + 1] - p.items[i]):
                    for d in range(p.dims[i + 1] - p.dims[i]):
                        r.base[j] += p.strides[p.items[i] + j, d] * y[p.separator[p.dims[i] + d]]
                fill_values(g, p, b, i, scores, r)
                total = weights(r.values, p.sizes[i], largest(r.values, p.sizes[i]), best)
                ways[b] = max(ways[b], total)
                left, last = uniforms[turn, g.variables[b] + p.order[i]] * total, 0
                for k in range(p.sizes[i]):
                    if r.values[k] > 0:
                        last = k
                        left -= r.values[k]
                        if left < 0:
                            break
                y[p.order[i]] = last
            for v in range(n):
                labels[turn, g.variables[b] + v] = y[v]
