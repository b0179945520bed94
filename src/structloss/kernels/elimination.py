"""Exact inference in factor graphs by eliminating one variable after the other.

`Plan` is an order of elimination: bucket i takes out its variable v, together with the factors and earlier messages
that know it, its *items*:

    value(i, s, k) = theta_v(k) + sum over items of item(s, k),    message(i, s) = log of the sum over k of exp(value)

for every assignment s of the *separator*, the other variables of those items. A message over no variables adds to
log Z. Going back through the buckets, P(s, k) = P(s) exp(value(i, s, k) - message(i, s)) gives every item its share of
probability, which is the gradient of log Z in every table. The maximum takes the place of the sum for `argmax`.
"""

from typing import Any, NamedTuple

import numpy as np

from structloss.kernels.arithmetic import exponential, inverse
from structloss.kernels.compile import exact_helper, exact_kernel
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
    strides_at: Ints  # where an item's strides begin: one for each variable of the separator, and one for v
    strides: Ints
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


@exact_helper
def next_assignment(p: Plan, i: int, r: Room) -> None:
    """Point at the next assignment of the separator, its last variable fastest."""
    first, dims = p.dims[i], p.dims[i + 1] - p.dims[i]
    for d in range(dims - 1, -1, -1):
        r.counter[d] += 1
        whole = r.counter[d] == p.extents[first + d]
        back = r.counter[d] - 1 if whole else -1
        for j in range(p.items[i + 1] - p.items[i]):
            r.base[j] -= p.strides[p.strides_at[p.items[i] + j] + d] * back  # one on, or back to 0
        if not whole:
            return
        r.counter[d] = 0


@exact_helper
def fill_values(g: Graph, p: Plan, b: int, i: int, scores: Array, r: Room) -> None:
    """r.values[k] = value(i, s, k) at the assignment that is pointed at."""
    first, dims = g.labels[g.variables[b] + p.order[i]], p.dims[i + 1] - p.dims[i]
    for k in range(p.sizes[i]):
        r.values[k] = scores[first + k]
    for j in range(p.items[i + 1] - p.items[i]):
        at = p.items[i] + j
        stride = p.strides[p.strides_at[at] + dims]
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
        stride = p.strides[p.strides_at[at] + dims]
        into = share if p.item[at] >= 0 else mass
        for k in range(p.sizes[i]):
            into[r.base[j] + k * stride] += r.values[k]


@exact_helper
def exponentials(values: Array, size: int) -> tuple[float, Any]:
    """values[:size] = their exp, over that of the largest, which is returned, and the sum.

    Over the sum they are probabilities, exact however large the values are, which exp(value - log of the sum) is not.
    """
    top, total = -np.inf, 0.0
    for k in range(size):
        top = max(top, values[k].real)
    for k in range(size):
        values[k] = exponential(values[k] - top) if top > -np.inf else 0.0
        total += values[k]
    return top, total


@exact_helper
def collect(g: Graph, p: Plan, b: int, scores: Array, r: Room) -> Any:
    """Fill the messages. Returns log Z."""
    total = 0.0
    for i in range(p.order.shape[0]):
        begin_bucket(g, p, b, i, r)
        for s in range(p.messages[i], p.messages[i + 1]):
            fill_values(g, p, b, i, scores, r)
            top, mass = exponentials(r.values, p.sizes[i])
            r.messages[s] = top + np.log(mass) if top > -np.inf else -np.inf
            next_assignment(p, i, r)
        if p.parent[i] == p.order.shape[0]:
            total += r.messages[p.messages[i]]
    return total


@exact_kernel
def log_partition(
    worker: int, workers: int, g: Graph, p: Plan, examples: Ints, scores: Array, value: Array, share: Array
) -> None:
    """value[b] = log Z of each of the examples; its gradient too, unless its array has size 0. Real or complex."""
    n, r = p.order.shape[0], make_room(p, value)
    mass = np.empty(p.messages[n], value.dtype)
    for b in examples[worker::workers]:
        value[b] = collect(g, p, b, scores, r)
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
                    _, total = exponentials(r.values, p.sizes[i])
                    part = mass[s] * inverse(total)
                    for k in range(p.sizes[i]):
                        r.values[k] *= part
                    hand_down(g, p, b, i, r, share, mass)
                next_assignment(p, i, r)


@exact_helper
def place(p: Plan, i: int, y: Ints) -> int:
    """Which cell of the message of bucket i the assignment y is."""
    at = 0
    for d in range(p.dims[i], p.dims[i + 1]):
        at = at * p.extents[d] + y[p.separator[d]]
    return int(p.messages[i] + at)


@exact_helper
def trace(p: Plan, i: int, choice: Ints, below: Ints, y: Ints) -> None:
    """Fill in the best choices of all that was eliminated into bucket i, whose variable and separator y has."""
    below[i] = 1
    for j in range(i - 1, -1, -1):
        parent = p.parent[j]
        below[j] = below[parent] if parent <= i else 0
        if below[j]:
            y[p.order[j]] = choice[place(p, j, y)]


@exact_helper
def comes_first(p: Plan, i: int, visible: int, below: Ints, y: Ints, other: Ints) -> bool:
    """Whether y comes before the other in lexicographic order, over what was eliminated into bucket i."""
    best = visible
    for j in range(i + 1):
        v = p.order[j]
        if below[j] and v < best and y[v] != other[v]:
            best = v
    return bool(best < visible and y[best] < other[best])


@exact_kernel
def argmax(
    worker: int, workers: int, g: Graph, p: Plan, examples: Ints, scores: Array, visible: Ints, labels: Ints,
    exists: Ints,
) -> None:  # fmt: skip
    """labels[v] of the best assignment, the lexicographically first over the visible[b] variables; -1 where none is."""
    n, r = p.order.shape[0], make_room(p, scores)
    choice = np.empty(p.messages[n], np.int64)
    y, other, below = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n + 1, np.int64)
    for b in examples[worker::workers]:
        exists[b] = 1
        for i in range(n):
            begin_bucket(g, p, b, i, r)
            for s in range(p.messages[i], p.messages[i + 1]):
                fill_values(g, p, b, i, scores, r)
                best = 0
                for k in range(1, p.sizes[i]):
                    if r.values[k] > r.values[best]:
                        best = k
                for k in range(best + 1, p.sizes[i]):
                    if r.values[k] == r.values[best] and r.values[k] > -np.inf:
                        for d in range(p.dims[i + 1] - p.dims[i]):
                            v = p.separator[p.dims[i] + d]
                            y[v], other[v] = r.counter[d], r.counter[d]
                        y[p.order[i]], other[p.order[i]] = k, best
                        trace(p, i, choice, below, y)
                        trace(p, i, choice, below, other)
                        if comes_first(p, i, visible[b], below, y, other):
                            best = k
                choice[s], r.messages[s] = best, r.values[best]
                next_assignment(p, i, r)
            if p.parent[i] == n and r.messages[p.messages[i]] == -np.inf:
                exists[b] = 0
        for i in range(n - 1, -1, -1):
            y[p.order[i]] = choice[place(p, i, y)]
        for v in range(n):
            labels[g.variables[b] + v] = y[v] if exists[b] else -1


@exact_kernel
def sample(
    worker: int, workers: int, g: Graph, p: Plan, examples: Ints, scores: Array, uniforms: Array, labels: Ints,
    exists: Ints,
) -> None:  # fmt: skip
    """labels (n, V): assignments drawn with probability exp(score) / Z, by inverting P(k | s) at uniforms (n, V)."""
    n, r = p.order.shape[0], make_room(p, scores)
    y = np.empty(n, np.int64)
    for b in examples[worker::workers]:
        exists[b] = collect(g, p, b, scores, r) > -np.inf
        if not exists[b]:
            continue
        for draw in range(uniforms.shape[0]):
            for i in range(n - 1, -1, -1):
                begin_bucket(g, p, b, i, r)
                for j in range(p.items[i + 1] - p.items[i]):
                    for d in range(p.dims[i + 1] - p.dims[i]):
                        stride = p.strides[p.strides_at[p.items[i] + j] + d]
                        r.base[j] += stride * y[p.separator[p.dims[i] + d]]
                fill_values(g, p, b, i, scores, r)
                _, total = exponentials(r.values, p.sizes[i])
                left, last = uniforms[draw, g.variables[b] + p.order[i]] * total, 0
                for k in range(p.sizes[i]):
                    if r.values[k] > 0:
                        last = k
                        left -= r.values[k]
                        if left < 0:
                            break
                y[p.order[i]] = last
            for v in range(n):
                labels[draw, g.variables[b] + v] = y[v]
