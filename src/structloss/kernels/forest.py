"""Sums and maxima over the trees of a batch of packed forests: Huang and Chiang (2005) for the k best.

An arc has a head, one item, and up to two tails; a tree is an arc of the root, and a tree of each tail. A path of an
acyclic graph is a tree too: its arcs have one tail, the node that they lead to, but the last, which ends it and has
none. The items of the whole batch stand in one row, sorted by level (tails come after heads), within a level by
example; the row backwards is an order in which all that an item needs is known before it. The arcs of an item stand
together, sorted by their number. Item N is no item, for a tail that is not there. Every recursion is

    beta(n) = the (+)-sum over the arcs a of n of score(a) (*) beta(first tail) (*) beta(second tail),

with (+) log of the sum of exponentials, or the maximum, and beta(N) = 0. A tree is written as its arcs' numbers, an arc
before the trees of its tails; trees are ordered as these are. Maxima are compiled exactly, so that what is a tie for
one of them is a tie for all. Sums take real or complex numbers: see `kernels.arithmetic`.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.arithmetic import exponential, inverse
from structloss.kernels.compile import exact_helper, exact_kernel, helper, kernel
from structloss.kernels.types import Array, Ints


class Packed(NamedTuple):
    """The forests of a batch: N items on D levels, and A arcs."""

    cell_begin: Ints  # (D * B + 1,): the items of example b on level d begin at cell_begin[d * B + b]
    root: Ints  # (B,)
    arc_begin: Ints  # (N + 1,): the arcs of each item
    tails: Ints  # (2, A), or (1, A) of paths; N where there is none
    number: Ints  # (A,): which score it has
    mark: Ints  # (A,): what trees are compared by where that is not the number, as for values of a loss; else (0,)


class Weights(NamedTuple):
    """What arcs score: scores[number[a]] + constant[a]."""

    scores: Array  # of each number
    constant: Array  # (A,), or (0,) where there are none


@helper
def fill_shares(f: Packed, w: Weights, b: int, batch: int, beta: Array, share: Array) -> None:
    """Of example b's items and arcs: beta (N + 1,), and share[a] = P(a | its head) (A,)."""
    cell_begin, _, arc_begin, tails, number, _ = f
    scores, constant = w
    two, added = tails.shape[0] > 1, constant.size > 0
    beta[beta.shape[0] - 1] = 0.0
    for cell in range(cell_begin.shape[0] - 1 - batch + b, -1, -batch):
        for n in range(cell_begin[cell], cell_begin[cell + 1]):
            first, last, top = arc_begin[n], arc_begin[n + 1], -np.inf
            for a in range(first, last):
                value = beta[tails[0, a]] + scores[number[a]]
                if two:
                    value += beta[tails[1, a]]
                if added:
                    value += constant[a]
                share[a] = value
                top = max(top, share[a].real)
            beta[n] = top
            if top == -np.inf:
                for a in range(first, last):
                    share[a] = 0.0
                continue
            total = exponential(share[first] - top)
            share[first] = total
            for a in range(first + 1, last):
                share[a] = exponential(share[a] - top)
                total += share[a]
            beta[n] += np.log(total)
            part = inverse(total)
            for a in range(first, last):
                share[a] *= part


@kernel
def log_partition(
    worker: int, workers: int, f: Packed, w: Weights, beta: Array, share: Array,
    value: Array, g_scores: Array, g_constant: Array,
) -> None:  # fmt: skip
    """value (B,) = log Z; g_scores, g_constant (A,) = how often each arc is used in the mean, unless (0,). Cost A.

    beta (N + 1,) and share (A,) are room to work in; then beta is how often each item is used.
    """
    batch, none = value.shape[0], beta.shape[0] - 1
    cell_begin, root, arc_begin, tails, number, _ = f
    cells, two = cell_begin.shape[0] - 1, tails.shape[0] > 1
    for b in range(worker, batch, workers):
        fill_shares(f, w, b, batch, beta, share)
        value[b] = beta[root[b]]
        if g_scores.size + g_constant.size == 0 or value[b].real == -np.inf:
            continue
        for cell in range(b, cells, batch):
            for n in range(cell_begin[cell], cell_begin[cell + 1]):
                beta[n] = 0.0
        beta[root[b]] = 1.0
        for cell in range(b, cells, batch):
            for n in range(cell_begin[cell], cell_begin[cell + 1]):
                if beta[n].real > 0.0:
                    for a in range(arc_begin[n], arc_begin[n + 1]):
                        flow = beta[n] * share[a]
                        if g_scores.size:
                            g_scores[number[a]] += flow
                        if g_constant.size:
                            g_constant[a] = flow
                        if tails[0, a] != none:
                            beta[tails[0, a]] += flow
                        if two and tails[1, a] != none:
                            beta[tails[1, a]] += flow


class Ways(NamedTuple):
    """The k best trees of each item, best first: an arc, and which of the trees of its tails."""

    score: Array  # (N + 1, k), -inf where there are fewer
    via: Ints  # (N + 1, k)
    rank: Ints  # (N + 1, k, 2)


@exact_helper
def is_smaller(f: Packed, ways: Ways, a: int, x: Ints, c: int, y: Ints) -> bool:
    """Whether arc a with trees x (2,) of its tails makes a smaller tree than arc c with trees y, which is another one.

    Trees of different items, or of different rank, differ: so the first tail of which that holds decides.
    """
    r, s, q, p = x[0], x[1], y[0], y[1]
    mark = f.mark if f.mark.size else f.number
    while mark[a] == mark[c]:
        t = 0 if f.tails[0, a] != f.tails[0, c] or r != q else 1
        n, m, i, j = f.tails[t, a], f.tails[t, c], s if t else r, p if t else q
        a, r, s = ways.via[n, i], ways.rank[n, i, 0], ways.rank[n, i, 1]
        c, q, p = ways.via[m, j], ways.rank[m, j, 0], ways.rank[m, j, 1]
    return mark[a] < mark[c]  # type: ignore[no-any-return]


@exact_helper
def fill_best(f: Packed, w: Weights, b: int, batch: int, ways: Ways, arcs: Ints, ranks: Ints, worths: Array) -> None:
    """The k best trees of each item of example b. arcs, ranks (n, 2) and worths are room for candidates."""
    cell_begin, _, arc_begin, tails, number, _ = f
    (scores, constant), (score, via, rank), k = w, ways, ways.score.shape[1]
    two, added, several = tails.shape[0] > 1, constant.size > 0, k > 1 or f.mark.size > 0
    first = np.zeros(2, np.int64)
    for cell in range(cell_begin.shape[0] - 1 - batch + b, -1, -batch):
        for n in range(cell_begin[cell], cell_begin[cell + 1]):
            begin, best, value = arc_begin[n], -1, -np.inf
            count = arc_begin[n + 1] - begin
            for c in range(count):
                a = begin + c
                x = score[tails[0, a], 0] + scores[number[a]]
                if two:
                    x += score[tails[1, a], 0]
                if added:
                    x += constant[a]
                if several:
                    arcs[c], ranks[c, 0], ranks[c, 1], worths[c] = a, 0, 0, x
                if x > value:
                    best, value = c, x
            for c in range(best + 1, count if f.mark.size and value > -np.inf else 0):
                if worths[c] == value and is_smaller(f, ways, begin + c, first, begin + best, first):
                    best = c
            score[n, 0], via[n, 0], rank[n, 0, 0], rank[n, 0, 1] = value, begin + best if best >= 0 else -1, 0, 0
            for i in range(k if k > 1 else 0):
                if i > 0:
                    best, value = -1, -np.inf
                for c in range(count if i > 0 else 0):
                    if worths[c] > value or (
                        worths[c] == value
                        and best >= 0
                        and is_smaller(f, ways, arcs[c], ranks[c], arcs[best], ranks[best])
                    ):
                        best, value = c, worths[c]
                score[n, i], via[n, i] = value, -1
                if best < 0:
                    continue
                a, r, s = arcs[best], ranks[best, 0], ranks[best, 1]
                via[n, i], rank[n, i, 0], rank[n, i, 1] = a, r, s
                worths[best] = -np.inf
                # What comes next is worse in one tail; each pair of ranks is reached in one way.
                for t in range(2 if r == 0 and two else 1):
                    if (s if t else r) + 1 < k:
                        c = best if worths[best] == -np.inf else count
                        count += c == count
                        arcs[c], ranks[c, 0], ranks[c, 1] = a, r + (t == 0), s + (t == 1)
                        x = score[tails[0, a], ranks[c, 0]] + scores[number[a]]
                        if two:
                            x += score[tails[1, a], ranks[c, 1]]
                        worths[c] = x + constant[a] if added else x


@exact_kernel
def best(worker: int, workers: int, f: Packed, w: Weights, roots: Ints, ways: Ways, trees: Ints, exists: Ints) -> None:
    """trees (V, k, B, L) = the arcs of the k best trees from roots (V, B), -1 after the end; exists (V, k, B)."""
    _, k, batch, longest = trees.shape
    widest = 0
    for n in range(f.arc_begin.shape[0] - 1):
        widest = max(widest, f.arc_begin[n + 1] - f.arc_begin[n])
    arcs, ranks, worths = np.empty(widest + k, np.int64), np.empty((widest + k, 2), np.int64), np.empty(widest + k)
    stack, none = np.empty((longest + 2, 2), np.int64), ways.score.shape[0] - 1
    for b in range(worker, batch, workers):
        fill_best(f, w, b, batch, ways, arcs, ranks, worths)
        for v in range(trees.shape[0]):
            for i in range(k):
                exists[v, i, b] = roots[v, b] >= 0 and ways.score[roots[v, b], i] > -np.inf
                if not exists[v, i, b]:
                    continue
                stack[0, 0], stack[0, 1], top, t = roots[v, b], i, 1, 0
                while top > 0:
                    top -= 1
                    n, r = stack[top, 0], stack[top, 1]
                    a = ways.via[n, r]
                    trees[v, i, b, t] = f.number[a]
                    t += 1
                    for j in range(f.tails.shape[0] - 1, -1, -1):
                        if f.tails[j, a] != none:
                            stack[top, 0], stack[top, 1] = f.tails[j, a], ways.rank[n, r, j]
                            top += 1


@kernel
def sample(
    worker: int, workers: int, f: Packed, w: Weights, beta: Array, share: Array, uniforms: Array, trees: Ints,
    exists: Ints,
) -> None:  # fmt: skip
    """trees (n, B, L) by inverting, at uniforms (n, B, L), the probabilities of each arc; exists (B,)."""
    batch, none = exists.shape[0], beta.shape[0] - 1
    stack = np.empty(uniforms.shape[2] + 2, np.int64)
    for b in range(worker, batch, workers):
        fill_shares(f, w, b, batch, beta, share)
        exists[b] = beta[f.root[b]] > -np.inf
        for i in range(uniforms.shape[0] if exists[b] else 0):
            stack[0], top, t = f.root[b], 1, 0
            while top > 0:
                top -= 1
                n, chosen, left = stack[top], -1, uniforms[i, b, t]
                for a in range(f.arc_begin[n], f.arc_begin[n + 1]):
                    if share[a] > 0.0 and (chosen < 0 or left >= 0.0):
                        chosen = a
                    left -= share[a]
                trees[i, b, t] = f.number[chosen]
                t += 1
                for j in range(f.tails.shape[0] - 1, -1, -1):
                    if f.tails[j, chosen] != none:
                        stack[top] = f.tails[j, chosen]
                        top += 1


@kernel
def walk(worker: int, workers: int, f: Packed, ends: int, choices: Ints, arcs: Ints, whole: Ints) -> None:
    """arcs (n, B, L) = those of the tree that has the numbers `choices` (n, B, L), as far as it is one; -1 stays there.

    whole (n, B): whether it is one, to its end. Numbers below `ends` end paths, and need not be named: where a path
    stops, at -1, that of its node is taken. Cost L * log of the arcs of an item.
    """
    longest, none = choices.shape[2], f.arc_begin.shape[0] - 1
    stack = np.empty(longest + 2, np.int64)
    for b in range(worker, choices.shape[1], workers):
        for i in range(choices.shape[0]):
            stack[0], top, t = f.root[b], 1, 0
            while 0 < top <= longest - t:
                n, wanted = stack[top - 1], choices[i, b, t]
                first, last = f.arc_begin[n], f.arc_begin[n + 1]
                a = first if wanted < 0 else first + np.searchsorted(f.number[first:last], wanted)
                if a == last or (f.number[a] != wanted if wanted >= 0 else f.number[a] >= ends):
                    break
                arcs[i, b, t], top, t = a, top - 1, t + 1
                for j in range(f.tails.shape[0] - 1, -1, -1):
                    if f.tails[j, a] != none:
                        stack[top] = f.tails[j, a]
                        top += 1
            whole[i, b] = top == 0
            while t < longest and whole[i, b]:
                whole[i, b], t = choices[i, b, t] < 0, t + 1


@exact_kernel
def largest(f: Packed, most: int) -> int:
    """How many arcs the largest tree of the batch has; more than `most` is `most` + 1."""
    none, found = f.arc_begin.shape[0] - 1, 0
    size = np.zeros(none + 1, np.int64)
    for n in range(none - 1, -1, -1):
        for a in range(f.arc_begin[n], f.arc_begin[n + 1]):
            size[n] = max(size[n], min(most + 1, 1 + size[f.tails[0, a]] + size[f.tails[1, a]]))
    for b in range(f.root.shape[0]):
        found = max(found, size[f.root[b]])
    return found
