"""The best strings of a lattice: best-first search over sets of nodes, one set for each string that has been begun."""

import heapq
import math
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from structloss.structures.graph.packing import Weighted
from structloss.structures.graph.topology import END, Topology
from structloss.structures.rows import Floats

Link: TypeAlias = "tuple[int, Link] | None"  # the arcs of a path, the last one first
Reached: TypeAlias = dict[int, tuple[float, Link]]  # the best way to each node


def best_strings(w: Weighted[Topology], k: int) -> list[list[tuple[tuple[int, ...], list[int]]]]:
    """Of each example the k best strings, and the scores that the best path of each uses, best first.

    A string is worth its best path; of equals the lexicographically smaller is first. What is begun is judged by its
    best way to end, its true worth: only beginnings of the k strings (and of their equals) are ever continued.
    Cost: the arcs, and at most k * L sets of nodes with theirs.
    """
    t, p = w.packing, w.packing.packed
    arcs, best = w.of_arcs, np.append(np.full(t.num_items, -np.inf), 0.0)
    for first, last in pairwise(p.arc_begin[p.cell_begin[:: max(1, t.batch)]][::-1].tolist()):
        np.maximum.at(best, t.heads[last:first], arcs[last:first] + best[p.tails[0, last:first]])
    return [_of_example(t, b, arcs, best, k) for b in range(t.batch)]


def _of_example(t: Topology, b: int, arcs: Floats, best: Floats, k: int) -> list[tuple[tuple[int, ...], list[int]]]:
    """Those of example b; arcs (A,) are the scores, best (N + 1,) that of the best way to end."""
    waiting: list[tuple[float, tuple[int, ...], bool, Reached | Link]] = []
    if best[b] > -math.inf:
        waiting.append((-float(best[b]), (), True, {b: (0.0, None)}))
    found: list[tuple[tuple[int, ...], list[int]]] = []
    while waiting and len(found) < k:
        _, string, _, what = heapq.heappop(waiting)  # a string that ends comes before those that go on
        if not isinstance(what, dict):
            path: list[int] = []
            while what is not None:
                arc, what = what
                path.append(int(t.packed.number[arc]))
            found.append((string, path[::-1]))
            continue
        worth, end, following = _continued(t, what, arcs, best)
        if worth > -math.inf:
            heapq.heappush(waiting, (-worth, string, False, end))
        for label, reached in following.items():
            worth = max(value + float(best[n]) for n, (value, _) in reached.items())
            heapq.heappush(waiting, (-worth, (*string, label), True, reached))
    return found


def _continued(t: Topology, reached: Reached, arcs: Floats, best: Floats) -> tuple[float, Link, dict[int, Reached]]:
    """The best way to end in these nodes or in those that epsilon leads to; and the nodes that each label leads to."""
    p, nodes = t.packed, list(reached)
    heapq.heapify(nodes)
    worth, end = -math.inf, None
    following: dict[int, Reached] = {}
    while nodes:  # in their order, so that the best way to a node is known when its turn comes
        n = heapq.heappop(nodes)
        value, link = reached[n]
        first, last = p.arc_begin[n : n + 2].tolist()
        leaving = zip(
            t.label[first:last].tolist(), p.tails[0, first:last].tolist(), arcs[first:last].tolist(), strict=True
        )
        for a, (label, target, score) in enumerate(leaving, first):
            total = value + score
            if label == END and total > worth:
                worth, end = total, (a, link)
            if label == END or total + best[target] == -math.inf:
                continue
            into = reached if label < 0 else following.setdefault(label, {})
            if label < 0 and target not in into:
                heapq.heappush(nodes, target)
            if target not in into or total > into[target][0]:
                into[target] = (total, (a, link))
    return worth, end, following
