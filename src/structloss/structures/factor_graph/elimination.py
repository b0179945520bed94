"""In which order to eliminate the variables of a graph, and what that costs."""

import functools
import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from structloss.kernels.elimination import Plan

Bucket = tuple[int, Sequence[int], dict[int, Sequence[int]]]  # its variable, separator, and items with their scopes


@dataclass(frozen=True)
class Order:
    """An order of elimination, and how many cells are visited in all: a measure of time and memory.

    Where `plan` is None the search was given up: more than `cells` are needed.
    """

    cells: float
    width: int  # the most variables in a separator
    plan: Plan | None = None


def find_order(sizes: Sequence[int], scopes: Sequence[Sequence[int]], most: float) -> Order:
    """Eliminate the variable whose bucket has the fewest cells, again and again; give up beyond `most` cells."""
    items: list[dict[int, Sequence[int]]] = [{} for _ in sizes]  # the factors and messages that know each variable
    for f, scope in enumerate(scopes):
        for v in scope:
            items[v][f] = scope

    def cost(v: int) -> int:
        return math.prod(sizes[u] for u in {v}.union(*items[v].values()))

    costs = [cost(v) for v in range(len(sizes))]
    queue = [(c, v) for v, c in enumerate(costs)]
    heapq.heapify(queue)
    buckets: list[Bucket] = []
    total, width = 0.0, 0
    while queue:
        c, v = heapq.heappop(queue)
        if c != costs[v]:  # it has changed since, or v is gone
            continue
        separator = sorted(set().union(*items[v].values()) - {v})
        total, width = total + c, max(width, len(separator))
        if total > most:
            return Order(total, width)
        message = -1 - len(buckets)
        buckets.append((v, separator, items[v]))
        costs[v] = 0
        for u in separator:
            items[u] = {x: scope for x, scope in items[u].items() if x not in items[v]} | {message: separator}
            costs[u] = cost(u)
            heapq.heappush(queue, (costs[u], u))
    return Order(total, width, _plan(sizes, buckets))


def _plan(sizes: Sequence[int], buckets: Sequence[Bucket]) -> Plan:
    """The buckets as kernels read them."""
    counts = np.array([(len(separator), len(items)) for _, separator, items in buckets], np.int64).reshape(-1, 2)
    strides = np.zeros((counts[:, 1].sum(), 1 + counts[:, 0].max(initial=0)), np.int64)
    row, taker = 0, {}
    for i, (v, separator, items) in enumerate(buckets):
        column = {u: d for d, u in enumerate([*separator, v])}
        for item, scope in items.items():
            apart, taker[item] = 1, i
            for u in reversed(scope):  # the last is fastest
                strides[row, column[u]] = apart
                apart *= sizes[u]
            row += 1
    dims, at = (np.append(0, count.cumsum()) for count in counts.T)
    order, all_separators = [v for v, _, _ in buckets], [u for _, separator, _ in buckets for u in separator]
    cells = [math.prod(sizes[u] for u in separator) for _, separator, _ in buckets]
    return Plan(*(np.array(x, np.int64) for x in (
        order, [sizes[v] for v in order], dims, all_separators, [sizes[u] for u in all_separators], at,
        [item for _, _, items in buckets for item in items], strides, [0, *itertools.accumulate(cells)],
        [taker.get(-1 - i, len(buckets)) for i in range(len(buckets))],
    )))  # fmt: skip


@functools.lru_cache(512)
def remembered_order(sizes: bytes, slots: bytes, scope: bytes, most: float) -> Order:
    """The order of a graph whose factor f is over the variables scope[slots[f] : slots[f + 1]], found once."""
    counts, begin, flat = (np.frombuffer(x, np.int64).tolist() for x in (sizes, slots, scope))
    return find_order(counts, [flat[a:b] for a, b in itertools.pairwise(begin)], most)
