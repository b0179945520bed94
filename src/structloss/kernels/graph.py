"""Sums and maxima over the paths of a batch of acyclic graphs.

The nodes of the whole batch stand in one row, sorted by level (how many arcs the longest way from the start takes),
within a level by example. Arcs lead to higher levels, so that the row backwards is an order in which everything that
follows a node is known before it; node b is the start of example b. The arcs of a node, which is their *head*, stand
together, sorted by their number; the node that an arc leads to is its *tail* (the words of Huang and Chiang 2005).
Every recursion is

    beta(n) = final(n) (+) the (+)-sum over the arcs a of n of score(a) (*) beta(tail(a)),

with (+) log of the sum of exponentials, or the maximum; `ahead` is the one place that says what an arc is worth. A path
that ends comes before one that goes on, then paths come in the order of their arcs: -1 pads, so that this is the
lexicographic order. Maxima are compiled exactly, so that what is a tie for one of them is a tie for all. Sums take real
or complex numbers: see `kernels.arithmetic`.
"""

from typing import Any, NamedTuple

import numpy as np

from structloss.kernels.arithmetic import exponential, inverse
from structloss.kernels.compile import exact_helper, exact_kernel, helper, kernel
from structloss.kernels.types import Array, Ints


class Graph(NamedTuple):
    """The graphs of a batch: N nodes on D levels, and A arcs."""

    cell_begin: Ints  # (D * B + 1,): the nodes of example b on level d begin at cell_begin[d * B + b]
    arc_begin: Ints  # (N + 1,): the arcs of each node
    tail: Ints  # (A,), the node it leads to
    base: Ints  # (A,): which score it has


class Weights(NamedTuple):
    """What the arcs and the ends of a graph score: arc a has scores[base[a]] + constant[a]."""

    scores: Array  # (sum n_b,)
    constant: Array  # (A,)
    final: Array  # (N,), -inf where no path ends


@exact_helper
def ahead(g: Graph, w: Weights, following: Any, a: int) -> Any:
    """What arc a is worth where what follows it, from its tail on, is worth `following`."""
    return following + w.scores[g.base[a]] + w.constant[a]


@helper
def fill_shares(g: Graph, w: Weights, b: int, batch: int, beta: Array, share: Array, ending: Array) -> None:
    """Of example b's nodes n and arcs a: beta (N,), share[a] = P(a | n) (A,) and ending[n] = P(end | n) (N,)."""
    for cell in range(g.cell_begin.shape[0] - 1 - batch + b, -1, -batch):
        for n in range(g.cell_begin[cell], g.cell_begin[cell + 1]):
            first, last = g.arc_begin[n], g.arc_begin[n + 1]
            top = w.final[n].real
            for a in range(first, last):
                share[a] = ahead(g, w, beta[g.tail[a]], a)
                top = max(top, share[a].real)
            if top == -np.inf:
                beta[n], ending[n] = top, 0.0
                for a in range(first, last):
                    share[a] = 0.0
                continue
            ending[n] = exponential(w.final[n] - top)
            total = ending[n]
            for a in range(first, last):
                share[a] = exponential(share[a] - top)
                total += share[a]
            beta[n] = top + np.log(total)
            part = inverse(total)
            ending[n] *= part
            for a in range(first, last):
                share[a] *= part


@kernel
def log_partition(
    worker: int, workers: int, g: Graph, w: Weights, beta: Array, share: Array, ending: Array,
    value: Array, g_scores: Array, g_final: Array,
) -> None:  # fmt: skip
    """value (B,) = log Z; g_scores (sum n_b,), g_final (N,) = the probability of each arc and end, unless (0,). Cost A.

    beta (N,), share (A,) and ending (N,) are room to work in; then beta is the probability of each node.
    """
    batch, cells = value.shape[0], g.cell_begin.shape[0] - 1
    for b in range(worker, batch, workers):
        fill_shares(g, w, b, batch, beta, share, ending)
        value[b] = beta[b]
        if g_scores.size + g_final.size == 0 or value[b].real == -np.inf:
            continue
        for cell in range(b, cells, batch):
            for n in range(g.cell_begin[cell], g.cell_begin[cell + 1]):
                beta[n] = 0.0
        beta[b] = 1.0
        for cell in range(b, cells, batch):
            for n in range(g.cell_begin[cell], g.cell_begin[cell + 1]):
                if beta[n].real > 0.0:
                    if g_final.size:
                        g_final[n] = beta[n] * ending[n]
                    for a in range(g.arc_begin[n], g.arc_begin[n + 1]):
                        flow = beta[n] * share[a]
                        beta[g.tail[a]] += flow
                        g_scores[g.base[a]] += flow


@exact_helper
def fill_best(g: Graph, w: Weights, b: int, batch: int, score: Array, via: Ints, rank: Ints, taken: Ints) -> None:
    """The k best ways to end from each node of example b, (N, k): see `best`. The first needs no bookkeeping."""
    for cell in range(g.cell_begin.shape[0] - 1 - batch + b, -1, -batch):
        for n in range(g.cell_begin[cell], g.cell_begin[cell + 1]):
            first, last = g.arc_begin[n], g.arc_begin[n + 1]
            top, chosen = w.final[n], -1
            for a in range(first, last):
                value = ahead(g, w, score[g.tail[a], 0], a)
                if value > top:
                    top, chosen = value, a
            score[n, 0], via[n, 0], rank[n, 0] = top, chosen, 0
            for a in range(first, last if score.shape[1] > 1 else first):
                taken[a - first] = a == chosen
            may_end = chosen >= 0
            for i in range(1, score.shape[1]):
                top, chosen = (w.final[n] if may_end else -np.inf), -1
                for a in range(first, last):
                    if taken[a - first] < score.shape[1]:
                        value = ahead(g, w, score[g.tail[a], taken[a - first]], a)
                        if value > top:
                            top, chosen = value, a
                score[n, i], via[n, i], rank[n, i], may_end = top, chosen, 0, may_end and chosen >= 0
                if chosen >= 0:
                    rank[n, i] = taken[chosen - first]
                    taken[chosen - first] += 1


@exact_kernel
def best(
    worker: int, workers: int, g: Graph, w: Weights, score: Array, via: Ints, rank: Ints, paths: Ints, exists: Ints
) -> None:
    """paths (k, B, L) = the scores that the k best paths use, best first, -1 after an end; exists (k, B). Cost k * A.

    Each node keeps its k best ways to end, score (N, k): by which arc (via, -1 where it ends here) and which of the
    tail's ways (rank). Those of a tail are sorted, so that the next best is always the first of those that are left.
    """
    (k, batch), widest = exists.shape, 0
    for n in range(g.arc_begin.shape[0] - 1):
        widest = max(widest, g.arc_begin[n + 1] - g.arc_begin[n])
    taken = np.empty(widest, np.int64)  # of each arc of a node, how many of its tail's ways
    for b in range(worker, batch, workers):
        fill_best(g, w, b, batch, score, via, rank, taken)
        for i in range(k):
            exists[i, b] = score[b, i] > -np.inf
            if exists[i, b]:
                n, r, t = b, i, 0
                while via[n, r] >= 0:
                    a = via[n, r]
                    paths[i, b, t] = g.base[a]
                    n, r, t = g.tail[a], rank[n, r], t + 1


@kernel
def sample(
    worker: int, workers: int, g: Graph, w: Weights, beta: Array, share: Array, ending: Array,
    uniforms: Array, paths: Ints, exists: Ints,
) -> None:  # fmt: skip
    """paths (n, B, L) by inverting, at uniforms (n, B, L), the probabilities of ending and of each arc, in this order.

    exists (B,): whether an example has a path. Cost A, and for each path its length times the arcs of a node.
    """
    batch = exists.shape[0]
    for b in range(worker, batch, workers):
        fill_shares(g, w, b, batch, beta, share, ending)
        exists[b] = beta[b] > -np.inf
        for i in range(uniforms.shape[0] if exists[b] else 0):
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
                n = g.tail[chosen]


@kernel
def walk(worker: int, workers: int, g: Graph, choices: Ints, arcs: Ints, ends: Ints) -> None:
    """arcs (n, B, L) = those of the path that has the scores `choices` (n, B, L), -1 after its end; -1 stays there.

    ends (n, B) = the node where it ends, -1 where there is no such path. Cost L * log of the arcs of a node.
    """
    for b in range(worker, choices.shape[1], workers):
        for i in range(choices.shape[0]):
            ends[i, b] = b
            for t in range(choices.shape[2]):
                n, wanted = ends[i, b], choices[i, b, t]
                if n >= 0 and wanted >= 0:
                    first, last = g.arc_begin[n], g.arc_begin[n + 1]
                    a = first + np.searchsorted(g.base[first:last], wanted)
                    found = a < last and g.base[a] == wanted and (t == 0 or choices[i, b, t - 1] >= 0)
                    arcs[i, b, t], ends[i, b] = (a, g.tail[a]) if found else (-1, -1)
