"""The order of an acyclic graph: its levels, without what no path uses, or an arc of a loop."""

import numpy as np

from structloss.kernels.compile import helper, kernel
from structloss.kernels.types import Ints


@kernel
def arrange(source: Ints, target: Ints, start: Ints, final: Ints, depth: Ints) -> int:
    """depth[n] = the most arcs from a start to n by useful nodes, -1 where n is useless; an arc of a loop, or -1.

    Useful is what some start reaches and what reaches some final node; starts always are. Cost: nodes and arcs.
    """
    nodes, arcs = depth.shape[0], source.shape[0]
    begin, waiting = np.zeros(nodes + 2, np.int64), np.zeros(nodes, np.int64)
    for a in range(arcs):
        begin[source[a] + 2] += 1
        waiting[target[a]] += 1
    for n in range(nodes):
        begin[n + 2] += begin[n + 1]
    following = np.empty(arcs, np.int64)
    for a in range(arcs):  # after this the arcs of n stand from begin[n] to begin[n + 1]
        following[begin[source[a] + 1]] = target[a]
        begin[source[a] + 1] += 1
    order, known, done = np.empty(nodes, np.int64), 0, 0
    for n in range(nodes):
        if waiting[n] == 0:
            order[known] = n
            known += 1
    while done < known:
        n = order[done]
        done += 1
        for i in range(begin[n], begin[n + 1]):
            waiting[following[i]] -= 1
            if waiting[following[i]] == 0:
                order[known] = following[i]
                known += 1
    if known < nodes:
        return arc_of_loop(source, target, waiting)
    useful = final.copy()
    for i in range(nodes - 1, -1, -1):
        n = order[i]
        for j in range(begin[n], begin[n + 1]):
            useful[n] = useful[n] or useful[following[j]]
    depth[:] = -1
    for b in range(start.shape[0]):
        depth[start[b]] = 0
    for i in range(nodes):
        n = order[i]
        if depth[n] >= 0:
            for j in range(begin[n], begin[n + 1]):
                if useful[following[j]]:
                    depth[following[j]] = max(depth[following[j]], depth[n] + 1)
    return -1


@helper
def arc_of_loop(source: Ints, target: Ints, waiting: Ints) -> int:
    """An arc of a loop, where waiting[n] > 0 marks nodes that each have an arc from another such node."""
    entered = np.full(waiting.shape[0], -1, np.int64)
    last = -1
    for a in range(source.shape[0]):
        if waiting[source[a]] > 0 and waiting[target[a]] > 0:
            entered[target[a]] = a
            last = a
    for _ in range(waiting.shape[0]):  # so many steps back end in a loop wherever they begin
        last = entered[source[last]]
    return int(last)
