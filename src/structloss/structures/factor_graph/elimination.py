"""In which order to eliminate the variables of a graph, and what that costs."""

import functools
import heapq
import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from structloss.kernels.elimination import Plan


@dataclass(frozen=True)
class Order:
    """The variables in the order of elimination, and how many cells are visited in all: a measure of time and memory.

    Where `order` is None the search was given up: more than `cells` are needed.
    """

    order: tuple[int, ...] | None
    cells: float
    width: int  # the most variables in a separator
    plan: Plan | None = None  # its buckets


def find_order(sizes: Sequence[int], scopes: Sequence[Sequence[int]], most: float) -> Order:
    """Eliminate the variable whose bucket has the fewest cells, again and again; give up beyond `most` cells."""
    neighbours: list[set[int]] = [set() for _ in sizes]
    for scope in scopes:
        for v in scope:
            neighbours[v].update(u for u in scope if u != v)

    def cost(v: int) -> int:
        return sizes[v] * math.prod(sizes[u] for u in neighbours[v])

    costs = [cost(v) for v in range(len(sizes))]
    queue = [(c, v) for v, c in enumerate(costs)]
    heapq.heapify(queue)
    order: list[int] = []
    total, width = 0.0, 0
    while queue:
        c, v = heapq.heappop(queue)
        if c != costs[v]:  # it has changed since, or v is gone
            continue
        total, width = total + c, max(width, len(neighbours[v]))
        if total > most:
            return Order(None, total, width)
        order.append(v)
        costs[v] = 0
        for u in neighbours[v]:
            neighbours[u].update(neighbours[v])
            neighbours[u].difference_update((u, v))
        for u in neighbours[v]:
            costs[u] = cost(u)
            heapq.heappush(queue, (costs[u], u))
    return Order(tuple(order), total, width)


def plan_of(sizes: Sequence[int], scopes: Sequence[Sequence[int]], order: Sequence[int]) -> Plan:
    """The buckets of an order."""
    place = {v: i for i, v in enumerate(order)}
    waiting: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in order]  # items of each bucket: number, scope
    for f, scope in enumerate(scopes):
        waiting[min(place[v] for v in scope)].append((f, tuple(scope)))
    n = len(order)
    strides: list[int] = []
    dims, separator, items, item, strides_at, messages, parent = [0], [], [0], [], [], [0], []
    for i, v in enumerate(order):
        others = sorted({u for _, scope in waiting[i] for u in scope if u != v})
        for number, scope in waiting[i]:
            item.append(number)
            strides_at.append(len(strides))
            apart = itertools.accumulate((sizes[u] for u in scope[::-1]), operator.mul, initial=1)  # last fastest
            own = dict(zip(scope[::-1], apart, strict=False))
            strides += [own.get(u, 0) for u in (*others, v)]
        separator += others
        dims.append(len(separator))
        items.append(len(item))
        messages.append(messages[-1] + math.prod(sizes[u] for u in others))
        if others:
            after = min(place[u] for u in others)
            waiting[after].append((-1 - i, tuple(others)))
        parent.append(after if others else n)
    return Plan(*(np.array(x, np.int64) for x in (
        order, [sizes[v] for v in order], dims, separator, [sizes[u] for u in separator], items, item, strides_at,
        strides, messages, parent,
    )))  # fmt: skip


@functools.lru_cache(512)
def remembered_order(sizes: bytes, slots: bytes, scope: bytes, most: float) -> Order:
    """The order of a graph whose factor f is over the variables scope[slots[f] : slots[f + 1]], found once."""
    counts, begin, flat = (np.frombuffer(x, np.int64).tolist() for x in (sizes, slots, scope))
    scopes = [flat[a:b] for a, b in itertools.pairwise(begin)]
    found = find_order(counts, scopes, most)
    return found if found.order is None else replace(found, plan=plan_of(counts, scopes, found.order))
