"""The best strings of a lattice: best-first search over sets of nodes, one set for each string that has been begun."""

import heapq
import math
from typing import TypeAlias

import numpy as np

from structloss.structures.graph.topology import Floats, Ints, Topology

Link: TypeAlias = "tuple[int, Link] | None"  # the arcs of a path, the last one first
Reached: TypeAlias = dict[int, tuple[float, Link]]  # the best way to each node


def best_strings(
    t: Topology, b: int, arcs: Floats, final: Floats, best: Floats, k: int
) -> list[tuple[tuple[int, ...], list[int]]]:
    """The k best strings of example b and the scores that the best path of each uses, best first.

    A string is worth its best path; of equals the lexicographically smaller is first. arcs (A,) and final (N,) are the
    scores, best (N,) that of the best way to end, so that what is begun is judged by its true worth: only beginnings
    of the k strings (and of their equals) are ever continued. Cost: at most k * L sets of nodes and their arcs.
    """
    waiting: list[tuple[float, tuple[int, ...], bool, Reached | Link]] = []
    if best[b] > -math.inf:
        waiting.append((-float(best[b]), (), True, {b: (0.0, None)}))
    found: list[tuple[tuple[int, ...], list[int]]] = []
    while waiting and len(found) < k:
        _, string, begun, what = heapq.heappop(waiting)  # a string that ends comes before those that go on
        if not begun:
            assert not isinstance(what, dict)
            found.append((string, _path(what, t.graph.base)))
            continue
        assert isinstance(what, dict)
        worth, end, following = _continued(t, what, arcs, final, best)
        if worth > -math.inf:
            heapq.heappush(waiting, (-worth, string, False, end))
        for label, reached in following.items():
            worth = max(value + float(best[n]) for n, (value, _) in reached.items())
            heapq.heappush(waiting, (-worth, (*string, label), True, reached))
    return found


def _continued(
    t: Topology, reached: Reached, arcs: Floats, final: Floats, best: Floats
) -> tuple[float, Link, dict[int, Reached]]:
    """The best way to end in these nodes or in those that epsilon leads to; and the nodes that each label leads to."""
    nodes = list(reached)
    heapq.heapify(nodes)
    worth, end = -math.inf, None
    following: dict[int, Reached] = {}
    while nodes:  # in their order, so that the best way to a node is known when its turn comes
        n = heapq.heappop(nodes)
        value, link = reached[n]
        if value + final[n] > worth:
            worth, end = float(value + final[n]), link
        first, last = t.graph.arc_begin[n : n + 2].tolist()
        leaving = zip(
            t.label[first:last].tolist(), t.graph.tail[first:last].tolist(), arcs[first:last].tolist(), strict=True
        )
        for a, (label, target, score) in enumerate(leaving, first):
            total = value + score
            if total + best[target] == -math.inf:
                continue
            into = reached if label < 0 else following.setdefault(label, {})
            if label < 0 and target not in into:
                heapq.heappush(nodes, target)
            if target not in into or total > into[target][0]:
                into[target] = (total, (a, link))
    return worth, end, following


def _path(link: Link, base: Ints) -> list[int]:
    arcs = []
    while link is not None:
        arc, link = link
        arcs.append(arc)
    path: list[int] = base[np.array(arcs[::-1], np.int64)].tolist()
    return path
