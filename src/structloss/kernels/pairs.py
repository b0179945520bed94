"""Sums and maxima over the alignments of two sequences x and y with affine gaps (Gotoh 1982).

An alignment is a set of pairs (i, j) that grow in both. What lies between two pairs is unpaired: a run of places of x
scores x_open of its first and x_extend of the others, a run of y likewise. Every alignment has one path through three
states on the grid of what is left, (i, j) being the positions that come next: of two runs between two pairs that of x
comes first. With (+) log of the sum of exponentials, or the maximum,

    pair(i, j) = match[i, j] * paired(i + 1, j + 1)                     x_i and y_j are a pair
    in_y(i, j) = pair(i, j) (+) y_extend[j] * in_y(i, j + 1)            after an unpaired position of y
    turn(i, j) = pair(i, j) (+) y_open[j] * in_y(i, j + 1)              no more unpaired positions of x here
    in_x(i, j) = turn(i, j) (+) x_extend[i] * in_x(i + 1, j)            after an unpaired position of x
    paired(i, j) = turn(i, j) (+) x_open[i] * in_x(i + 1, j)            after a pair, or at the start

are the ways to finish; products are sums of scores. A global alignment starts in paired(0, 0) and ends in (n, m). A
local one begins and ends with a pair, and what lies before and after scores nothing:

    paired(i, j) (+)= 1                                                 where it may end
    before(i) = before(i + 1) (+) the (+)-sum over j of pair(i, j)      before(n) = 1: no pair at all

Alignments are ordered by the partners of x_0, x_1, ..., where none comes before the first of y: a choice that is tried
before another leads to what is lexicographically smaller. Sums take real or complex numbers: see `kernels.arithmetic`.
Time and memory are the product of the lengths, times V where outputs are told apart by V values of a loss.
"""

from typing import Any, NamedTuple

import numpy as np

from structloss.kernels.arithmetic import exponential
from structloss.kernels.compile import exact_helper, exact_kernel, helper
from structloss.kernels.types import Array, Ints

NEGLIGIBLE = 40.0  # exp(-40) is below the rounding of 1


class Scores(NamedTuple):
    """What alignments score, B pairs of sequences of up to N and M positions."""

    match: Array  # (B, N, M)
    x_open: Array  # (B, N)
    x_extend: Array  # (B, N)
    y_open: Array  # (B, M)
    y_extend: Array  # (B, M)
    constant: Array  # (B, 1), of every alignment


class Sizes(NamedTuple):
    """How long the sequences are, and which alignments there are."""

    n: Ints  # (B,)
    m: Ints  # (B,)
    first: Ints  # (B,), the first position of x that must have a partner, N where none must
    last: Ints  # (B,), the last of these, -1 where none must
    local: bool


class Ways(NamedTuple):
    """The ways to finish one example, for each of V values that are left of a loss: see above."""

    paired: Array  # (V, N + 1, M + 1)
    in_x: Array
    in_y: Array
    turn: Array
    before: Array  # (V, N + 1)
    after: Array  # (V, N + 1): all that is left of x is outside a local alignment


@helper
def make_ways(scores: Scores, strata: int, like: Array) -> Ways:
    """Room for any example, numbers being of the type of `like`."""
    _, N, M = scores.match.shape
    shape, row = (strata, N + 1, M + 1), (strata, N + 1)
    return Ways(
        np.empty(shape, like.dtype), np.empty(shape, like.dtype), np.empty(shape, like.dtype),
        np.empty(shape, like.dtype), np.empty(row, like.dtype), np.empty(row, like.dtype),
    )  # fmt: skip


@exact_helper
def plus(a: Any, b: Any, sums: bool) -> Any:
    """log(exp(a) + exp(b)), or the larger."""
    if a.real < b.real:
        a, b = b, a
    if not sums or b.real - a.real < -NEGLIGIBLE or b.real == -np.inf:
        return a
    return a + np.log(1.0 + exponential(b - a))


@exact_helper
def stratum(following: Ints | None, b: int, i: int, v: int, choice: int) -> int:
    """Of the value v of a loss that is left at x_i, what this choice leaves, or -1; the last choice is no partner."""
    return v if following is None else int(following[b, i, v, choice])


@exact_helper
def finish(scores: Scores, sizes: Sizes, b: int, following: Ints | None, sums: bool, ways: Ways) -> None:
    """Fill the ways to finish of example b."""
    match, x_open, x_extend, y_open, y_extend, constant = scores
    paired, in_x, in_y, turn, before, after = ways
    n, m, last, local = sizes.n[b], sizes.m[b], sizes.last[b], sizes.local
    V, none = paired.shape[0], match.shape[2]
    nothing = 0.0 * constant[b, 0] - np.inf  # of the type of the scores
    for i in range(n, -1, -1):
        for v in range(V):
            w = stratum(following, b, i, v, none) if i < n else -1
            begins = nothing
            after[v, i] = nothing
            if i == n and v == 0:
                after[v, i] = 0.0
            elif w >= 0:
                after[v, i] = after[w, i + 1]
            for j in range(m, -1, -1):
                pair, y_opens, y_extends = nothing, nothing, nothing
                u = stratum(following, b, i, v, j) if i < n and j < m else -1
                if u >= 0:
                    pair = match[b, i, j] + paired[u, i + 1, j + 1]
                if j < m:
                    y_opens, y_extends = y_open[b, j] + in_y[v, i, j + 1], y_extend[b, j] + in_y[v, i, j + 1]
                here = plus(pair, y_opens, sums)
                turn[v, i, j], in_y[v, i, j] = here, plus(pair, y_extends, sums)
                if w >= 0:
                    in_x[v, i, j] = plus(here, x_extend[b, i] + in_x[w, i + 1, j], sums)
                    paired[v, i, j] = plus(here, x_open[b, i] + in_x[w, i + 1, j], sums)
                else:
                    in_x[v, i, j], paired[v, i, j] = here, here
                if local:
                    begins = plus(begins, pair, sums)
                    if i > last:
                        paired[v, i, j] = plus(paired[v, i, j], after[v, i], sums)
                elif i == n and j == m and v == 0:
                    paired[v, i, j], in_x[v, i, j], in_y[v, i, j] = 0.0, 0.0, 0.0
            before[v, i] = begins
            if i == n and v == 0 and last < 0:
                before[v, i] = 0.0
            elif w >= 0 and i < sizes.first[b]:
                before[v, i] = plus(begins, before[w, i + 1], sums)


@exact_kernel
def log_partition(
    worker: int, workers: int, scores: Scores, sizes: Sizes, wanted: bool, value: Array, gradient: Scores
) -> None:
    """value (B,) = log Z, and where `wanted` its gradients: how probable it is that an alignment uses each score.

    The mass that comes into each state of a cell goes on in proportion to the ways to finish.
    """
    match, x_open, x_extend, y_open, y_extend, _ = scores
    of_pairs, of_x_open, of_x_extend, of_y_open, of_y_extend, _ = gradient
    ways = make_ways(scores, 1, value)
    width = match.shape[2] + 2
    rows = np.empty((2, 2, width), value.dtype)  # the mass that comes into paired and in_x, of this row and the next
    for b in range(worker, len(value), workers):
        finish(scores, sizes, b, None, True, ways)
        paired, in_x, in_y, turn, before = ways.paired[0], ways.in_x[0], ways.in_y[0], ways.turn[0], ways.before
        total = before[0, 0] if sizes.local else paired[0, 0]
        value[b] = total + scores.constant[b, 0]
        if not wanted or total.real == -np.inf:
            continue
        gradient.constant[b, 0] = 1.0
        n, m, local = sizes.n[b], sizes.m[b], sizes.local
        rows[:] = 0.0
        outside = 1.0 + 0.0 * total
        if not local:
            rows[0, 0, 0] = 1.0
        for i in range(n + 1):
            here, following = rows[i % 2], rows[1 - i % 2]
            following[:] = 0.0
            run = 0.0 * total  # what comes into in_y
            for j in range(m + 1):
                comes, goes_on = here[0, j], 0.0 * total
                if comes.real > 0.0:
                    whole = paired[i, j]
                    goes_on += comes * exponential(turn[i, j] - whole)
                    if i < n:
                        share = comes * exponential(x_open[b, i] + in_x[i + 1, j] - whole)
                        of_x_open[b, i] += share
                        following[1, j] += share
                comes = here[1, j]
                if comes.real > 0.0:
                    whole = in_x[i, j]
                    goes_on += comes * exponential(turn[i, j] - whole)
                    if i < n:
                        share = comes * exponential(x_extend[b, i] + in_x[i + 1, j] - whole)
                        of_x_extend[b, i] += share
                        following[1, j] += share
                if j == m:
                    break
                pair = match[b, i, j] + paired[i + 1, j + 1] if i < n else 0.0 * total - np.inf
                pairs, comes, run = 0.0 * total, run, 0.0 * total
                if comes.real > 0.0:
                    pairs += comes * exponential(pair - in_y[i, j])
                    share = comes * exponential(y_extend[b, j] + in_y[i, j + 1] - in_y[i, j])
                    of_y_extend[b, j] += share
                    run += share
                if goes_on.real > 0.0:
                    pairs += goes_on * exponential(pair - turn[i, j])
                    share = goes_on * exponential(y_open[b, j] + in_y[i, j + 1] - turn[i, j])
                    of_y_open[b, j] += share
                    run += share
                if local and outside.real > 0.0 and i < n:
                    pairs += outside * exponential(pair - before[0, i])
                if i < n:
                    of_pairs[b, i, j] = pairs
                    following[0, j + 1] += pairs
            if local and i < n and outside.real > 0.0:
                skips = i < sizes.first[b]
                outside = outside * exponential(before[0, i + 1] - before[0, i]) if skips else 0.0 * total


@exact_helper
def pick(options: Array, count: int, uniform: float) -> int:
    """The first of the largest of `count` options; with a uniform number >= 0, one drawn by their exponentials."""
    chosen, top = 0, -np.inf
    for c in range(count):
        if options[c] > top:
            chosen, top = c, options[c]
    if uniform < 0.0:
        return chosen
    whole, below = 0.0, 0.0
    for c in range(count):
        options[c] = np.exp(options[c] - top)
        whole += options[c]
    for c in range(count):
        if options[c] > 0.0 and below <= uniform * whole:
            chosen = c
        below += options[c]
    return chosen


@exact_helper
def walk(
    scores: Scores, sizes: Sizes, b: int, following: Ints | None, v: int, uniforms: Array, ways: Ways, options: Array,
    partners: Ints,
) -> None:  # fmt: skip
    """partners (N,) = one alignment, the best, or drawn by uniform numbers (N + M + 1,); of size 0 where none are."""
    match, x_open, x_extend, y_open, y_extend, _ = scores
    paired, in_x, in_y, _, before, after = ways
    n, m, none = sizes.n[b], sizes.m[b], match.shape[2]
    i, j, steps, unpaired = 0, 0, 0, 0  # unpaired: 0 after a pair or at the start, 1 in a run of x, 2 in one of y
    partners[:] = -1
    outside = sizes.local
    while i < n:
        uniform = uniforms[steps] if uniforms.size else -1.0
        w, steps = stratum(following, b, i, v, none), steps + 1
        if outside:
            options[0] = before[w, i + 1] if w >= 0 and i < sizes.first[b] else -np.inf
            for k in range(m):
                u = stratum(following, b, i, v, k)
                options[k + 1] = match[b, i, k] + paired[u, i + 1, k + 1] if u >= 0 else -np.inf
            chosen = pick(options, m + 1, uniform)
            if chosen:
                partners[i], j, outside = chosen - 1, chosen, False
                v = stratum(following, b, i, v, chosen - 1)
            else:
                v = w
            i += 1
            continue
        u = stratum(following, b, i, v, j) if j < m else -1
        options[:4] = -np.inf
        if sizes.local and unpaired == 0 and i > sizes.last[b]:
            options[0] = after[v, i]
        if w >= 0 and unpaired < 2:
            options[1] = (x_open[b, i] if unpaired == 0 else x_extend[b, i]) + in_x[w, i + 1, j]
        if u >= 0:
            options[2] = match[b, i, j] + paired[u, i + 1, j + 1]
        if j < m:
            options[3] = (y_extend[b, j] if unpaired == 2 else y_open[b, j]) + in_y[v, i, j + 1]
        chosen = pick(options, 4, uniform)
        if chosen == 0:
            break
        if chosen == 1:
            i, v, unpaired = i + 1, w, 1
        elif chosen == 2:
            partners[i], i, j, v, unpaired = j, i + 1, j + 1, u, 0
        else:
            j, unpaired = j + 1, 2


@exact_kernel
def walks(
    worker: int, workers: int, scores: Scores, sizes: Sizes, following: Ints | None, strata: int, uniforms: Array,
    value: Array, partners: Ints,
) -> None:  # fmt: skip
    """partners (n, B, N) = alignments: with uniforms (n, B, N + M + 1) drawn, without (of size 0) the best.

    The best of each of `strata` values of a loss: following (B, N, V, M + 1) says what each choice of a partner, the
    last being none, leaves of a value. value (V, B) = its score or log Z, -inf where there is none.
    """
    ways, sums = make_ways(scores, strata, value), uniforms.size > 0
    options, no_numbers = np.empty(scores.match.shape[2] + 4), np.empty(0)
    for b in range(worker, value.shape[1], workers):
        finish(scores, sizes, b, following, sums, ways)
        for v in range(strata):
            value[v, b] = ways.before[v, 0] if sizes.local else ways.paired[v, 0, 0]
        for i in range(partners.shape[0]):
            v = 0 if sums else i
            if value[v, b] > -np.inf:
                numbers = uniforms[i, b] if sums else no_numbers
                walk(scores, sizes, b, following, v, numbers, ways, options, partners[i, b])


@exact_kernel
def best_ways(scores: Scores, sizes: Sizes, b: int, paired: Array, in_x: Array, before: Array) -> None:
    """The best scores of ways to finish example b: (N + 1, M + 1) twice, and (N + 1,)."""
    ways = make_ways(scores, 1, paired)
    finish(scores, sizes, b, None, False, ways)
    for i in range(paired.shape[0]):
        before[i] = ways.before[0, i]
        for j in range(paired.shape[1]):
            paired[i, j], in_x[i, j] = ways.paired[0, i, j], ways.in_x[0, i, j]
