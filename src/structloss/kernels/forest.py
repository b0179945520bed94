"""Sums and maxima over the trees of a batch of packed forests: Huang and Chiang (2005) for the k best.

An arc has a head, one item, and up to two tails; a tree is an arc of the root, and a tree of each tail. The items of
the whole batch stand in one row, sorted by height (tails are lower than heads), within a height by example. The arcs of
an item stand together, sorted by their number. Item N is no item, for a tail that is not there. Every recursion is

    beta(n) = the (+)-sum over the arcs a of n of scores[number(a)] (*) beta(first tail) (*) beta(second tail)

with (+) log of the sum of exponentials, or the maximum, and beta(N) = 0. A tree is written as its arcs' numbers, an arc
before the trees of its tails; trees are ordered as these are. Sums take real or complex numbers: `kernels.arithmetic`.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.arithmetic import exponential, inverse
from structloss.kernels.compile import exact_helper, exact_kernel, helper, kernel
from structloss.kernels.types import Array, Ints


class Packed(NamedTuple):
    """The forests of a batch: N items of D heights, and A arcs."""

    cell_begin: Ints  # (D * B + 1,): the items of example b of height d begin at cell_begin[d * B + b]
    root: Ints  # (B,)
    arc_begin: Ints  # (N + 1,): the arcs of each item
    tails: Ints  # (A, 2), N where there is none
    number: Ints  # (A,): which score it has
    mark: Ints  # (A,): what trees are compared by; the numbers, but where items are told apart by the values of a loss


@helper
def fill_shares(f: Packed, scores: Array, b: int, batch: int, beta: Array, share: Array) -> None:
    """Of example b's items and arcs: beta (N + 1,), and share[a] = P(a | its head) (A,)."""
    cell_begin, _, arc_begin, tails, number, _ = f
    beta[beta.shape[0] - 1] = 0.0
    for cell in range(b, cell_begin.shape[0] - 1, batch):
        for n in range(cell_begin[cell], cell_begin[cell + 1]):
            first, last, top = arc_begin[n], arc_begin[n + 1], -np.inf
            for a in range(first, last):
                share[a] = scores[number[a]] + beta[tails[a, 0]] + beta[tails[a, 1]]
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
    worker: int, workers: int, f: Packed, scores: Array, beta: Array, share: Array, value: Array, gradient: Array
) -> None:
    """value (B,) = log Z; gradient (sum n_b,) = how often each arc is used in the mean, unless (0,). Cost A.

    beta (N + 1,) and share (A,) are room to work in; then beta is how often each item is used.
    """
    batch = value.shape[0]
    cell_begin, root, arc_begin, tails, number, _ = f
    for b in range(worker, batch, workers):
        fill_shares(f, scores, b, batch, beta, share)
        value[b] = beta[root[b]]
        if gradient.shape[0] == 0 or value[b].real == -np.inf:
            continue
        first_cell = cell_begin.shape[0] - 1 - batch + b
        for cell in range(b, first_cell + 1, batch):
            for n in range(cell_begin[cell], cell_begin[cell + 1]):
                beta[n] = 0.0
        beta[root[b]] = 1.0
        none = beta.shape[0] - 1
        for cell in range(first_cell, -1, -batch):
            for n in range(cell_begin[cell], cell_begin[cell + 1]):
                if beta[n].real > 0.0:
                    for a in range(arc_begin[n], arc_begin[n + 1]):
                        flow = beta[n] * share[a]
                        gradient[number[a]] = flow
                        for i in range(2):
                            if tails[a, i] != none:
                                beta[tails[a, i]] += flow


class Ways(NamedTuple):
    """The k best trees of each item, best first: an arc, and which of the trees of its tails."""

    score: Array  # (N + 1, k), -inf where there are fewer
    via: Ints  # (N + 1, k)
    rank: Ints  # (N + 1, k, 2)


@exact_helper
def is_smaller(f: Packed, w: Ways, a: int, x: Ints, c: int, y: Ints) -> bool:
    """Whether arc a with trees x (2,) of its tails makes a smaller tree than arc c with trees y, which is another one.

    Trees of different items, or of different rank, differ: so the first tail of which that holds decides.
    """
    r, s, q, p = x[0], x[1], y[0], y[1]
    while f.mark[a] == f.mark[c]:
        t = 0 if f.tails[a, 0] != f.tails[c, 0] or r != q else 1
        n, m, i, j = f.tails[a, t], f.tails[c, t], s if t else r, p if t else q
        a, r, s = w.via[n, i], w.rank[n, i, 0], w.rank[n, i, 1]
        c, q, p = w.via[m, j], w.rank[m, j, 0], w.rank[m, j, 1]
    return f.mark[a] < f.mark[c]  # type: ignore[no-any-return]


@exact_helper
def fill_best(f: Packed, scores: Array, b: int, batch: int, w: Ways, arcs: Ints, ranks: Ints, worth: Array) -> None:
    """The k best trees of each item of example b. arcs, ranks (n, 2) and worth are room for candidates."""
    k = w.score.shape[1]
    for cell in range(b, f.cell_begin.shape[0] - 1, batch):
        for n in range(f.cell_begin[cell], f.cell_begin[cell + 1]):
            count = 0
            for a in range(f.arc_begin[n], f.arc_begin[n + 1]):
                arcs[count], ranks[count, 0], ranks[count, 1] = a, 0, 0
                worth[count] = scores[f.number[a]] + w.score[f.tails[a, 0], 0] + w.score[f.tails[a, 1], 0]
                count += 1
            for i in range(k):
                best, value = -1, -np.inf
                for c in range(count):
                    if worth[c] > value or (
                        worth[c] == value and best >= 0 and is_smaller(f, w, arcs[c], ranks[c], arcs[best], ranks[best])
                    ):
                        best, value = c, worth[c]
                w.score[n, i], w.via[n, i] = value, -1
                if best < 0:
                    continue
                a, r, s = arcs[best], ranks[best, 0], ranks[best, 1]
                w.via[n, i], w.rank[n, i, 0], w.rank[n, i, 1] = a, r, s
                worth[best] = -np.inf
                # What comes next is worse in one tail; each pair of ranks is reached in one way.
                for t in range(2 if r == 0 else 1):
                    if (s if t else r) + 1 < k:
                        c = best if worth[best] == -np.inf else count
                        count += c == count
                        arcs[c], ranks[c, 0], ranks[c, 1] = a, r + (t == 0), s + (t == 1)
                        worth[c] = (
                            scores[f.number[a]]
                            + w.score[f.tails[a, 0], ranks[c, 0]]
                            + w.score[f.tails[a, 1], ranks[c, 1]]
                        )


@exact_kernel
def best(worker: int, workers: int, f: Packed, scores: Array, roots: Ints, w: Ways, trees: Ints, exists: Ints) -> None:
    """trees (V, k, B, L) = the arcs of the k best trees from roots (V, B), -1 after the end; exists (V, k, B)."""
    _, k, batch, longest = trees.shape
    widest = 0
    for n in range(f.arc_begin.shape[0] - 1):
        widest = max(widest, f.arc_begin[n + 1] - f.arc_begin[n])
    arcs, ranks, worth = np.empty(widest + k, np.int64), np.empty((widest + k, 2), np.int64), np.empty(widest + k)
    stack, none = np.empty((longest + 2, 2), np.int64), w.score.shape[0] - 1
    for b in range(worker, batch, workers):
        fill_best(f, scores, b, batch, w, arcs, ranks, worth)
        for v in range(trees.shape[0]):
            for i in range(k):
                exists[v, i, b] = roots[v, b] >= 0 and w.score[roots[v, b], i] > -np.inf
                if not exists[v, i, b]:
                    continue
                stack[0, 0], stack[0, 1], top, t = roots[v, b], i, 1, 0
                while top > 0:
                    top -= 1
                    n, r = stack[top, 0], stack[top, 1]
                    a = w.via[n, r]
                    trees[v, i, b, t] = f.number[a]
                    t += 1
                    for j in range(1, -1, -1):
                        if f.tails[a, j] != none:
                            stack[top, 0], stack[top, 1] = f.tails[a, j], w.rank[n, r, j]
                            top += 1


@kernel
def sample(
    worker: int, workers: int, f: Packed, scores: Array, beta: Array, share: Array, uniforms: Array, trees: Ints,
    exists: Ints,
) -> None:  # fmt: skip
    """trees (n, B, L) by inverting, at uniforms (n, B, L), the probabilities of each arc; exists (B,)."""
    batch, none = exists.shape[0], beta.shape[0] - 1
    stack = np.empty(uniforms.shape[2] + 2, np.int64)
    for b in range(worker, batch, workers):
        fill_shares(f, scores, b, batch, beta, share)
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
                for j in range(1, -1, -1):
                    if f.tails[chosen, j] != none:
                        stack[top] = f.tails[chosen, j]
                        top += 1


@exact_kernel
def first_stray(f: Packed, none: int, trees: Ints) -> tuple[int, int]:
    """The row of trees (n, B, L) that is no tree, and from which position on; (-1, -1). Rows of -1 are let pass."""
    batch, longest = trees.shape[1:]
    stack = np.empty(longest + 2, np.int64)
    for i in range(trees.shape[0]):
        for b in range(batch):
            if longest == 0 or trees[i, b, 0] == -1:
                continue
            stack[0], top = f.root[b], 1
            for t in range(longest):
                a = -1
                if top > 0:
                    n = stack[top - 1]
                    first, last = f.arc_begin[n], f.arc_begin[n + 1]
                    a = first + np.searchsorted(f.number[first:last], trees[i, b, t])
                    if a == last or f.number[a] != trees[i, b, t]:
                        return i * batch + b, t
                    top -= 1
                    for j in range(1, -1, -1):
                        if f.tails[a, j] != none:
                            if top == longest:
                                return i * batch + b, t
                            stack[top] = f.tails[a, j]
                            top += 1
                elif trees[i, b, t] != -1:
                    return i * batch + b, t
            if top > 0:
                return i * batch + b, longest
    return -1, -1


@exact_kernel
def largest(f: Packed, none: int, most: int) -> int:
    """How many arcs the largest tree of the batch has; more than `most` is `most` + 1."""
    size, found = np.zeros(none + 1, np.int64), 0
    for n in range(none):
        for a in range(f.arc_begin[n], f.arc_begin[n + 1]):
            size[n] = max(size[n], min(most + 1, 1 + size[f.tails[a, 0]] + size[f.tails[a, 1]]))
    for b in range(f.root.shape[0]):
        found = max(found, size[f.root[b]])
    return found
