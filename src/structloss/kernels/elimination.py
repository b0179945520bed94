"""Exact inference in factor graphs by eliminating one variable after the other.

An example's graph has variables v with scores unary(v, k) and factors with tables. `Plan` is an order of elimination:
bucket i takes out its variable v, together with the factors and earlier messages that know it, its *items*:

    value(i, s, k) = unary(v, k) + sum over items of item(s, k),    message(i, s) = log of the sum over k of exp(value)

for every assignment s of the *separator*, the other variables of those items. A message over no variables adds to
log Z. Going back through the buckets, P(s, k) = P(s) exp(value(i, s, k) - message(i, s)) gives every item its share of
probability, which is the gradient of log Z in every table. The maximum takes the place of the sum for `argmax`.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.arithmetic import exp_nonpositive
from structloss.kernels.compile import exact_kernel
from structloss.kernels.types import Array, Ints


class Graph(NamedTuple):
    """The graphs of a batch, one after the other."""

    variables: Ints  # (B + 1,): the first variable of each example
    factors: Ints  # (B + 1,): its first factor
    labels: Ints  # (V + 1,): where the scores of each variable begin
    cells: Ints  # (F + 1,): where the table of each factor begins, the last variable of its scope fastest
    slots: Ints  # (F + 1,): where the scope of each factor begins
    scope: Ints  # (S,): the variables of the scopes


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
    values: Array  # (most labels,)
    base: Ints  # (most items,): where each item's cells for the current s begin
    counter: Ints  # (most variables in a separator,)


@exact_kernel
def make_room(p: Plan) -> Room:
    """Room for one example."""
    n = p.order.shape[0]
    most_labels = most_items = most_dims = 1
    for i in range(n):
        most_labels = max(most_labels, p.sizes[i])
        most_items = max(most_items, p.items[i + 1] - p.items[i])
        most_dims = max(most_dims, p.dims[i + 1] - p.dims[i])
    return Room(
        np.empty(p.messages[n]), np.empty(most_labels), np.empty(most_items, np.int64), np.empty(most_dims, np.int64)
    )


@exact_kernel
def begin_bucket(g: Graph, p: Plan, b: int, i: int, base: Ints, counter: Ints) -> None:
    """Point at the first assignment of the separator."""
    for j in range(p.items[i + 1] - p.items[i]):
        item = p.item[p.items[i] + j]
        base[j] = g.cells[g.factors[b] + item] if item >= 0 else p.messages[-1 - item]
    counter[: p.dims[i + 1] - p.dims[i]] = 0


@exact_kernel
def next_assignment(p: Plan, i: int, base: Ints, counter: Ints) -> None:
    """Point at the next assignment of the separator, its last variable fastest."""
    first, dims = p.dims[i], p.dims[i + 1] - p.dims[i]
    for d in range(dims - 1, -1, -1):
        counter[d] += 1
        whole = counter[d] == p.extents[first + d]
        back = counter[d] - 1 if whole else -1
        for j in range(p.items[i + 1] - p.items[i]):
            stride = p.strides[p.strides_at[p.items[i] + j] + d]
            base[j] -= stride * back  # one on, or back to 0
        if not whole:
            return
        counter[d] = 0


@exact_kernel
def fill_values(
    g: Graph, p: Plan, b: int, i: int, unary: Array, tables: Array, messages: Array, base: Ints, values: Array
) -> None:
    """values[k] = value(i, s, k) at the assignment that is pointed at."""
    first, dims = g.labels[g.variables[b] + p.order[i]], p.dims[i + 1] - p.dims[i]
    for k in range(p.sizes[i]):
        values[k] = unary[first + k]
    for j in range(p.items[i + 1] - p.items[i]):
        at = p.items[i] + j
        stride = p.strides[p.strides_at[at] + dims]
        if p.item[at] >= 0:
            for k in range(p.sizes[i]):
                values[k] += tables[base[j] + k * stride]
        else:
            for k in range(p.sizes[i]):
                values[k] += messages[base[j] + k * stride]


@exact_kernel
def hand_down(
    g: Graph, p: Plan, b: int, i: int, base: Ints, shares: Array, unary: Array, tables: Array, messages: Array
) -> None:
    """Add shares[k] to what value(i, s, k) was summed from, at the assignment that is pointed at."""
    first, dims = g.labels[g.variables[b] + p.order[i]], p.dims[i + 1] - p.dims[i]
    for k in range(p.sizes[i]):
        unary[first + k] += shares[k]
    for j in range(p.items[i + 1] - p.items[i]):
        at = p.items[i] + j
        stride = p.strides[p.strides_at[at] + dims]
        into = tables if p.item[at] >= 0 else messages
        for k in range(p.sizes[i]):
            into[base[j] + k * stride] += shares[k]


@exact_kernel
def log_sum(values: Array, count: int) -> float:
    """The log of the sum of exp."""
    top = -np.inf
    for k in range(count):
        top = max(top, values[k])
    if top == -np.inf:
        return top
    total = 0.0
    for k in range(count):
        total += exp_nonpositive(values[k] - top)
    return float(top + np.log(total))


@exact_kernel
def collect(g: Graph, p: Plan, b: int, unary: Array, tables: Array, r: Room) -> float:
    """Fill the messages. Returns log Z."""
    total = 0.0
    for i in range(p.order.shape[0]):
        begin_bucket(g, p, b, i, r.base, r.counter)
        for s in range(p.messages[i], p.messages[i + 1]):
            fill_values(g, p, b, i, unary, tables, r.messages, r.base, r.values)
            r.messages[s] = log_sum(r.values, p.sizes[i])
            next_assignment(p, i, r.base, r.counter)
        if p.parent[i] == p.order.shape[0]:
            total += r.messages[p.messages[i]]
    return total


@exact_kernel
def normalise(values: Array, size: int) -> None:
    """values[:size] = their softmax: exact however large they are, which exp(value - log of the sum) is not."""
    top, total = -np.inf, 0.0
    for k in range(size):
        top = max(top, values[k])
    for k in range(size):
        values[k] = exp_nonpositive(values[k] - top)
        total += values[k]
    for k in range(size):
        values[k] /= total


@exact_kernel
def log_partition(
    worker: int, workers: int, g: Graph, p: Plan, examples: Ints, unary: Array, tables: Array, value: Array,
    unary_share: Array, table_share: Array,
) -> None:  # fmt: skip
    """value[b] = log Z of each of the examples; its gradients too, unless their arrays have size 0."""
    n, r = p.order.shape[0], make_room(p)
    mass = np.empty(p.messages[n])
    for b in examples[worker::workers]:
        value[b] = collect(g, p, b, unary, tables, r)
        if value[b] == -np.inf or not unary_share.size:
            continue
        mass[:] = 0.0
        for i in range(n - 1, -1, -1):
            if p.parent[i] == n:
                mass[p.messages[i]] = 1.0
            begin_bucket(g, p, b, i, r.base, r.counter)
            for s in range(p.messages[i], p.messages[i + 1]):
                if mass[s] > 0:
                    fill_values(g, p, b, i, unary, tables, r.messages, r.base, r.values)
                    normalise(r.values, p.sizes[i])
                    for k in range(p.sizes[i]):
                        r.values[k] *= mass[s]
                    hand_down(g, p, b, i, r.base, r.values, unary_share, table_share, mass)
                next_assignment(p, i, r.base, r.counter)


@exact_kernel
def expectation(
    worker: int, workers: int, g: Graph, p: Plan, examples: Ints, unary: Array, tables: Array, f_unary: Array,
    f_tables: Array, value: Array, unary_share: Array, table_share: Array, unary_change: Array, table_change: Array,
) -> None:  # fmt: skip
    """value[b] = E[score under f], and its gradients: the shares in f, the changes of the shares along f in the scores.

    Every quantity x is followed by its change, the derivative of x along f: messages and probabilities alike.
    """
    n, r = p.order.shape[0], make_room(p)
    f = make_room(p)
    mass, mass_change = np.empty(p.messages[n]), np.empty(p.messages[n])
    for b in examples[worker::workers]:
        total = 0.0
        if collect(g, p, b, unary, tables, r) == -np.inf:
            value[b] = 0.0
            continue
        for i in range(n):
            begin_bucket(g, p, b, i, r.base, r.counter)
            for s in range(p.messages[i], p.messages[i + 1]):
                f.messages[s] = 0.0
                if r.messages[s] > -np.inf:
                    fill_values(g, p, b, i, unary, tables, r.messages, r.base, r.values)
                    fill_values(g, p, b, i, f_unary, f_tables, f.messages, r.base, f.values)
                    normalise(r.values, p.sizes[i])
                    for k in range(p.sizes[i]):
                        q = r.values[k]
                        if q > 0:
                            f.messages[s] += q * f.values[k]
                next_assignment(p, i, r.base, r.counter)
            if p.parent[i] == n:
                total += f.messages[p.messages[i]]
        value[b] = total
        if not unary_share.size or total == -np.inf:
            continue
        mass[:], mass_change[:] = 0.0, 0.0
        for i in range(n - 1, -1, -1):
            if p.parent[i] == n:
                mass[p.messages[i]] = 1.0
            begin_bucket(g, p, b, i, r.base, r.counter)
            for s in range(p.messages[i], p.messages[i + 1]):
                if mass[s] > 0:
                    fill_values(g, p, b, i, unary, tables, r.messages, r.base, r.values)
                    fill_values(g, p, b, i, f_unary, f_tables, f.messages, r.base, f.values)
                    normalise(r.values, p.sizes[i])
                    for k in range(p.sizes[i]):
                        q = r.values[k]
                        r.values[k] = mass[s] * q
                        if q > 0:
                            f.values[k] = mass_change[s] * q + mass[s] * q * (f.values[k] - f.messages[s])
                        else:
                            f.values[k] = 0.0
                    hand_down(g, p, b, i, r.base, r.values, unary_share, table_share, mass)
                    hand_down(g, p, b, i, r.base, f.values, unary_change, table_change, mass_change)
                next_assignment(p, i, r.base, r.counter)


@exact_kernel
def place(p: Plan, i: int, y: Ints) -> int:
    """Which cell of the message of bucket i the assignment y is."""
    at = 0
    for d in range(p.dims[i], p.dims[i + 1]):
        at = at * p.extents[d] + y[p.separator[d]]
    return int(p.messages[i] + at)


@exact_kernel
def trace(p: Plan, i: int, choice: Ints, below: Ints, y: Ints) -> None:
    """Fill in the best choices of all that was eliminated into bucket i, whose variable and separator y has."""
    below[i] = 1
    for j in range(i - 1, -1, -1):
        parent = p.parent[j]
        below[j] = below[parent] if parent <= i else 0
        if below[j]:
            y[p.order[j]] = choice[place(p, j, y)]


@exact_kernel
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
    worker: int, workers: int, g: Graph, p: Plan, examples: Ints, unary: Array, tables: Array, visible: int,
    labels: Ints, exists: Ints,
) -> None:  # fmt: skip
    """labels[v] of the best assignment, the lexicographically first over the `visible` variables; -1 where none is."""
    n, r = p.order.shape[0], make_room(p)
    choice = np.empty(p.messages[n], np.int64)
    y, other, below = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n + 1, np.int64)
    for b in examples[worker::workers]:
        exists[b] = 1
        for i in range(n):
            begin_bucket(g, p, b, i, r.base, r.counter)
            for s in range(p.messages[i], p.messages[i + 1]):
                fill_values(g, p, b, i, unary, tables, r.messages, r.base, r.values)
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
                        if comes_first(p, i, visible, below, y, other):
                            best = k
                choice[s], r.messages[s] = best, r.values[best]
                next_assignment(p, i, r.base, r.counter)
            if p.parent[i] == n and r.messages[p.messages[i]] == -np.inf:
                exists[b] = 0
        for i in range(n - 1, -1, -1):
            y[p.order[i]] = choice[place(p, i, y)]
        for v in range(n):
            labels[g.variables[b] + v] = y[v] if exists[b] else -1


@exact_kernel
def sample(
    worker: int, workers: int, g: Graph, p: Plan, examples: Ints, unary: Array, tables: Array, uniforms: Array,
    labels: Ints, exists: Ints,
) -> None:  # fmt: skip
    """labels (n, V): assignments drawn with probability exp(score) / Z, by inverting P(k | s) at uniforms (n, V)."""
    n, r = p.order.shape[0], make_room(p)
    y = np.empty(n, np.int64)
    for b in examples[worker::workers]:
        exists[b] = collect(g, p, b, unary, tables, r) > -np.inf
        if not exists[b]:
            continue
        for draw in range(uniforms.shape[0]):
            for i in range(n - 1, -1, -1):
                begin_bucket(g, p, b, i, r.base, r.counter)
                dims = p.dims[i + 1] - p.dims[i]
                for j in range(p.items[i + 1] - p.items[i]):
                    for d in range(dims):
                        stride = p.strides[p.strides_at[p.items[i] + j] + d]
                        r.base[j] += stride * y[p.separator[p.dims[i] + d]]
                fill_values(g, p, b, i, unary, tables, r.messages, r.base, r.values)
                norm = r.messages[place(p, i, y)]
                left, last = uniforms[draw, g.variables[b] + p.order[i]], 0
                for k in range(p.sizes[i]):
                    if r.values[k] > -np.inf:
                        last = k
                        left -= np.exp(r.values[k] - norm)
                        if left < 0:
                            break
                y[p.order[i]] = last
            for v in range(n):
                labels[draw, g.variables[b] + v] = y[v]
