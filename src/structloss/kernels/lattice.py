"""Sums and maxima over the paths of a batch of acyclic graphs.

The nodes of the whole batch stand in one row, sorted by level (how many arcs the longest way from the start takes),
within a level by example. Arcs lead to higher levels, so that the row backwards is an order in which everything that
follows a node is known before it; node b is the start of example b. The arcs of a node stand together, sorted by their
number. Every recursion is

    beta(n) = final(n) (+) the (+)-sum over the arcs a of n of score(a) (*) beta(target(a)),

with (+) log of the sum of exponentials, or the maximum. A path that ends comes before one that goes on, then paths come
in the order of their arcs: -1 pads, so that this is the lexicographic order. Maxima are compiled exactly, so that what
is a tie for one of them is a tie for all.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_kernel, kernel
from structloss.kernels.types import EMPTY, Array, Ints


class Graph(NamedTuple):
    """The graphs of a batch: N nodes on D levels, and A arcs."""

    cell_begin: Ints  # (D * B + 1,): the nodes of example b on level d begin at cell_begin[d * B + b]
    arc_begin: Ints  # (N + 1,): the arcs of each node
    target: Ints  # (A,), the node it leads to
    base: Ints  # (A,): which score it has


class Weights(NamedTuple):
    """What the arcs and the ends of a graph score: arc a has scores[base[a]] + constant[a]."""

    scores: Array  # (sum n_b,)
    constant: Array  # (A,), or (0,) where it is 0 everywhere
    final: Array  # (N,), -inf where no path ends


@kernel
def arrange(source: Ints, target: Ints, start: Ints, final: Ints, depth: Ints) -> int:
    """depth[n] = the most arcs from a start to n by useful nodes, -1 where n is useless; an arc of a loop, or -1.

    Useful is what some start reaches and what reaches some final node; starts always are. Cost: nodes and arcs.
    """
    nodes, arcs = depth.shape[0], source.shape[0]
    begin, waiting = np.zeros(nodes + 1, np.int64), np.zeros(nodes, np.int64)
    for a in range(arcs):
        begin[source[a] + 1] += 1
        waiting[target[a]] += 1
    for n in range(nodes):
        begin[n + 1] += begin[n]
    place, following = begin[:-1].copy(), np.empty(arcs, np.int64)
    for a in range(arcs):
        following[place[source[a]]] = target[a]
        place[source[a]] += 1
    order, known = np.empty(nodes, np.int64), 0
    for n in range(nodes):
        if waiting[n] == 0:
            order[known] = n
            known += 1
    done = 0
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
    reached, useful = np.zeros(nodes, np.bool_), final.copy()
    for b in range(start.shape[0]):
        reached[start[b]] = True
    for i in range(nodes):
        n = order[i]
        if reached[n]:
            for j in range(begin[n], begin[n + 1]):
                reached[following[j]] = True
    for i in range(nodes - 1, -1, -1):
        n = order[i]
        for j in range(begin[n], begin[n + 1]):
            useful[n] = useful[n] or useful[following[j]]
    depth[:] = -1
    for b in range(start.shape[0]):
        depth[start[b]] = 0
    for i in range(nodes):
        n = order[i]
        if depth[n] >= 0 and reached[n] and useful[n]:
            for j in range(begin[n], begin[n + 1]):
                if useful[following[j]]:
                    depth[following[j]] = max(depth[following[j]], depth[n] + 1)
    return -1


@kernel
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


@kernel
def mark_useful(arc_begin: Ints, target: Ints, useful: Ints) -> None:
    """Mark, besides the final nodes that are marked, every node that reaches one."""
    for n in range(useful.shape[0] - 1, -1, -1):
        for a in range(arc_begin[n], arc_begin[n + 1]):
            if useful[target[a]]:
                useful[n] = True
                break


@kernel
def fill_shares(g: Graph, w: Weights, b: int, batch: int, beta: Array, share: Array, ending: Array) -> None:
    """Of example b's nodes n and arcs a: beta (N,), share[a] = P(a | n) (A,) and ending[n] = P(end | n) (N,)."""
    scores, constant, final, weighted = w.scores, w.constant, w.final, w.constant.size > 0
    cell_begin, arc_begin, target, base = g.cell_begin, g.arc_begin, g.target, g.base
    for cell in range(cell_begin.shape[0] - 1 - batch + b, -1, -batch):
        for n in range(cell_begin[cell], cell_begin[cell + 1]):
            top = final[n]
            for a in range(arc_begin[n], arc_begin[n + 1]):
                value = beta[target[a]] + scores[base[a]]
                if weighted:
                    value += constant[a]
                share[a] = value
                top = max(top, value)
            if top == -np.inf:
                beta[n], ending[n] = top, 0.0
                for a in range(arc_begin[n], arc_begin[n + 1]):
                    share[a] = 0.0
                continue
            ending[n] = np.exp(final[n] - top)
            total = ending[n]
            for a in range(arc_begin[n], arc_begin[n + 1]):
                share[a] = np.exp(share[a] - top)
                total += share[a]
            beta[n] = top + np.log(total)
            ending[n] /= total
            for a in range(arc_begin[n], arc_begin[n + 1]):
                share[a] /= total


@kernel
def log_partition(
    worker: int, workers: int, g: Graph, w: Weights, gradient: bool, beta: Array, share: Array, ending: Array,
    value: Array, g_scores: Array,
) -> None:  # fmt: skip
    """value (B,) = log Z; with `gradient`, g_scores (sum n_b,) = the probability of each arc. Cost A.

    beta (N,), share (A,) and ending (N,) are room to work in.
    """
    batch = value.shape[0]
    for b in range(worker, batch, workers):
        fill_shares(g, w, b, batch, beta, share, ending)
        value[b] = beta[b]
        if gradient and value[b] > -np.inf:
            add_flow(g, b, batch, share, beta, g_scores)


@kernel
def add_flow(g: Graph, b: int, batch: int, share: Array, mu: Array, g_scores: Array) -> None:
    """Add the probability of each arc of example b to its score's; mu (N,) = that of each node."""
    cell_begin, arc_begin, target, base = g.cell_begin, g.arc_begin, g.target, g.base
    cells = cell_begin.shape[0] - 1
    for cell in range(b, cells, batch):
        for n in range(cell_begin[cell], cell_begin[cell + 1]):
            mu[n] = 0.0
    mu[b] = 1.0
    for cell in range(b, cells, batch):
        for n in range(cell_begin[cell], cell_begin[cell + 1]):
            if mu[n] > 0.0:
                for a in range(arc_begin[n], arc_begin[n + 1]):
                    flow = mu[n] * share[a]
                    mu[target[a]] += flow
                    g_scores[base[a]] += flow


@kernel
def expectation(
    worker: int, workers: int, g: Graph, w: Weights, f: Weights, gradient: bool,
    beta: Array, share: Array, ending: Array, mean: Array, value: Array, g_scores: Array, g_other: Array,
) -> None:  # fmt: skip
    """value (B,) = E[score under f] of a path drawn under w; 0 where there is none. Cost A.

    With `gradient`, g_scores and g_other (sum n_b,) = the derivatives in the scores of w and of f; 0 where the value is
    infinite: of arc a, P(a) * (E[score under f | a] - value) and P(a). mean(n) = E[score under f of what follows n];
    what has probability 0 adds nothing.
    """
    batch, cells = value.shape[0], g.cell_begin.shape[0] - 1
    cell_begin, arc_begin, target, base = g.cell_begin, g.arc_begin, g.target, g.base
    weighted = f.constant.size > 0
    for b in range(worker, batch, workers):
        fill_shares(g, w, b, batch, beta, share, ending)
        if beta[b] == -np.inf:
            continue
        for cell in range(cells - batch + b, -1, -batch):
            for n in range(cell_begin[cell], cell_begin[cell + 1]):
                total = ending[n] * f.final[n] if ending[n] > 0.0 else 0.0
                for a in range(arc_begin[n], arc_begin[n + 1]):
                    if share[a] > 0.0:
                        total += share[a] * value_of(f, weighted, base[a], a, mean[target[a]])
                mean[n] = total
        value[b] = mean[b]
        if not gradient or value[b] == -np.inf:
            continue
        mu, before = beta, ending  # of each node, its probability, and that times E[score under f of what leads to it]
        for cell in range(b, cells, batch):
            for n in range(cell_begin[cell], cell_begin[cell + 1]):
                mu[n], before[n] = 0.0, 0.0
        mu[b] = 1.0
        for cell in range(b, cells, batch):
            for n in range(cell_begin[cell], cell_begin[cell + 1]):
                for a in range(arc_begin[n], arc_begin[n + 1]):
                    flow = mu[n] * share[a]
                    if flow > 0.0:
                        until = before[n] / mu[n] + value_of(f, weighted, base[a], a, 0.0)
                        mu[target[a]] += flow
                        before[target[a]] += flow * until
                        g_other[base[a]] += flow
                        g_scores[base[a]] += flow * (until + mean[target[a]] - value[b])


@kernel
def value_of(w: Weights, weighted: bool, score: int, arc: int, following: float) -> float:
    """The score of an arc and of what follows it."""
    value: float = w.scores[score] + following
    return value + w.constant[arc] if weighted else value


@exact_kernel
def fill_best(g: Graph, w: Weights, b: int, batch: int, best: Array) -> None:
    """best[n] = the best score of a way to end from each node n of example b."""
    scores, constant, final, weighted = w.scores, w.constant, w.final, w.constant.size > 0
    cell_begin, arc_begin, target, base = g.cell_begin, g.arc_begin, g.target, g.base
    for cell in range(cell_begin.shape[0] - 1 - batch + b, -1, -batch):
        for n in range(cell_begin[cell], cell_begin[cell + 1]):
            top = final[n]
            for a in range(arc_begin[n], arc_begin[n + 1]):
                value = best[target[a]] + scores[base[a]]
                if weighted:
                    value += constant[a]
                top = max(top, value)
            best[n] = top


@kernel
def completions(worker: int, workers: int, g: Graph, w: Weights, batch: int, best: Array) -> None:
    """best (N,) = the best score of a way to end from each node. Cost A."""
    for b in range(worker, batch, workers):
        fill_best(g, w, b, batch, best)


@exact_kernel
def argmax(worker: int, workers: int, g: Graph, w: Weights, best: Array, paths: Ints, status: Ints) -> None:
    """paths (B, L) = the scores that the best path uses, -1 after its end; status EMPTY where there is none. Cost A.

    best (N,) is room to work in.
    """
    batch, weighted = status.shape[0], w.constant.size > 0
    for b in range(worker, batch, workers):
        fill_best(g, w, b, batch, best)
        if best[b] == -np.inf:
            status[b] = EMPTY
            continue
        n = b
        for t in range(paths.shape[1]):
            top, chosen = w.final[n], -1
            for a in range(g.arc_begin[n], g.arc_begin[n + 1]):
                value = best[g.target[a]] + w.scores[g.base[a]]
                if weighted:
                    value += w.constant[a]
                if value > top:
                    top, chosen = value, a
            if chosen < 0:
                break
            paths[b, t] = g.base[chosen]
            n = g.target[chosen]


@exact_kernel
def topk(
    worker: int, workers: int, g: Graph, w: Weights, best: Array, via: Ints, rank: Ints,
    paths: Ints, exists: Ints,
) -> None:  # fmt: skip
    """paths (B, k, L) = the scores that the k best paths use, best first, -1 after an end; exists (B, k). Cost k * A.

    Each node keeps its k best ways to end, best (N, k): by which arc (via, -1 where it ends here) and which of the
    target's ways (rank). Those of a target are sorted, so that the next best is always at the head of one of them.
    """
    batch, k, weighted = exists.shape[0], exists.shape[1], w.constant.size > 0
    cells, widest = g.cell_begin.shape[0] - 1, 0
    for n in range(g.arc_begin.shape[0] - 1):
        widest = max(widest, g.arc_begin[n + 1] - g.arc_begin[n])
    head = np.empty(widest, np.int64)
    for b in range(worker, batch, workers):
        for cell in range(cells - batch + b, -1, -batch):
            for n in range(g.cell_begin[cell], g.cell_begin[cell + 1]):
                first, count, may_end = g.arc_begin[n], g.arc_begin[n + 1] - g.arc_begin[n], True
                head[:count] = 0
                for i in range(k):
                    top, chosen = (w.final[n] if may_end else -np.inf), -1
                    for j in range(count):
                        if head[j] < k:
                            a = first + j
                            value = best[g.target[a], head[j]] + w.scores[g.base[a]]
                            if weighted:
                                value += w.constant[a]
                            if value > top:
                                top, chosen = value, j
                    best[n, i] = top
                    via[n, i] = -1 if chosen < 0 else first + chosen
                    if chosen >= 0:
                        rank[n, i] = head[chosen]
                        head[chosen] += 1
                    else:
                        may_end = False
        for i in range(k):
            exists[b, i] = best[b, i] > -np.inf
            if exists[b, i]:
                n, r, t = b, i, 0
                while via[n, r] >= 0:
                    a = via[n, r]
                    paths[b, i, t] = g.base[a]
                    n, r, t = g.target[a], rank[n, r], t + 1


@kernel
def sample(
    worker: int, workers: int, g: Graph, w: Weights, beta: Array, share: Array, ending: Array,
    uniforms: Array, paths: Ints, status: Ints,
) -> None:  # fmt: skip
    """paths (n, B, L) by inverting, at uniforms (n, B, L), the probabilities of ending and of each arc, in this order.

    status is EMPTY where an example has no path. Cost A, and for each path its length times the arcs of a node.
    """
    batch = status.shape[0]
    for b in range(worker, batch, workers):
        fill_shares(g, w, b, batch, beta, share, ending)
        if beta[b] == -np.inf:
            status[b] = EMPTY
            continue
        for i in range(uniforms.shape[0]):
            n = b
            for t in range(uniforms.shape[2]):
                remaining, chosen = uniforms[i, b, t] - ending[n], -1
                undecided = ending[n] == 0.0
                for a in range(g.arc_begin[n], g.arc_begin[n + 1]):
                    if share[a] > 0.0 and (undecided or remaining >= 0.0):
                        chosen, undecided = a, False
                    remaining -= share[a]
                if chosen < 0:
                    break
                paths[i, b, t] = g.base[chosen]
                n = g.target[chosen]


@kernel
def walk(
    worker: int, workers: int, g: Graph, constant: Array, final: Array, offset: Ints, paths: Ints,
    value: Array, wrong: Ints,
) -> None:  # fmt: skip
    """value (n, B) = the constants of the arcs of paths (n, B, L), numbers within an example, and of its end.

    -inf where there is no such path; wrong (n, B) = the position of the first arc that does not go on from the one
    before it, or of an end where none may be, or -1 where all is well. Cost L * log of the arcs of a node.
    """
    for b in range(worker, paths.shape[1], workers):
        for i in range(paths.shape[0]):
            n, t, total, wrong[i, b] = b, 0, 0.0, -1
            while t < paths.shape[2] and paths[i, b, t] >= 0:
                wanted = offset[b] + paths[i, b, t]
                low, high = g.arc_begin[n], g.arc_begin[n + 1]
                while low < high:
                    middle = (low + high) // 2
                    if g.base[middle] < wanted:
                        low = middle + 1
                    else:
                        high = middle
                if low == g.arc_begin[n + 1] or g.base[low] != wanted:
                    break
                if constant.size:
                    total += constant[low]
                n, t = g.target[low], t + 1
            for s in range(paths.shape[2] - 1, t - 1, -1):
                if paths[i, b, s] >= 0:  # an arc that is none, or one that comes after an end
                    wrong[i, b] = s
            if wrong[i, b] < 0 and final[n] == -np.inf:
                wrong[i, b] = t
            value[i, b] = -np.inf if wrong[i, b] >= 0 else total + final[n]
