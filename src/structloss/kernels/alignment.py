"""Alignments of two strings: their least costs, by dynamic programming.

Costs: of aligning a symbol of the reference with one of the answer, of inserting symbols that the reference lacks, and
of deleting some that the answer lacks.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.checks import UNKNOWN
from structloss.kernels.compile import exact_helper, exact_kernel
from structloss.kernels.pairs import Scores, Sizes, walks
from structloss.kernels.subsumption import UNIT
from structloss.kernels.types import Array, Ints


class Pairs(NamedTuple):
    """The cost of aligning two labels: one for equal and one for unequal labels, or a table of all pairs."""

    match: float
    substitution: float
    table: Array  # (K, K), by the reference's label, then the answer's; of size 0 where the two numbers say it all


class Gaps(NamedTuple):
    """The cost of the first of several labels that are inserted in a row, of each further one; and of deletions."""

    first_insertion: float
    next_insertion: float
    first_deletion: float
    next_deletion: float


@exact_helper
def pair_costs(pairs: Pairs, reference: Ints, label: int, out: Array) -> None:
    """out[j] = the least cost of answering `label` where any of reference[j] is right: labels, UNKNOWN for all, -1."""
    match, substitution, table = pairs
    for j in range(reference.shape[0]):
        best = np.inf
        for i in range(reference.shape[1]):
            wanted = reference[j, i]
            if wanted >= 0 and table.size:
                best = min(best, table[wanted, label])
            elif wanted >= 0:
                best = min(best, match if wanted == label else substitution)
            elif wanted == UNKNOWN:
                best = min(best, match) if table.size == 0 else best
                for k in range(table.shape[0]):
                    best = min(best, table[k, label])
        out[j] = best


@exact_kernel
def windowed_cost(
    y: Ints, reference: Ints, pairs: Pairs, insertion: float, deletion: float, window: float, band: int
) -> float:
    """The edit distance of the reference (n, m) and y by rows from which all that is far from the least is forgotten.

    row[j] = the least cost of turning reference[:j] into what was read of y, by alignments that never cost `window` or
    more above the least of their row:

        new[j] = min(row[j - 1] + pair[j - 1], row[j] + insertion, new[j - 1] + deletion),
        then new[j] = inf where new[j] >= min(new) + window;

    at the end what is left of the reference is deleted. After i labels there is no row[j] but for j within `band` of i,
    or of n where that is less.
    """
    n = reference.shape[0]
    row, new, pair = np.empty(n + 1), np.empty(n + 1), np.empty(n)
    for j in range(n + 1):
        row[j] = j * deletion
        if row[j] >= window - UNIT or j > band:
            row[j] = np.inf
    for i in range(y.shape[0]):
        pair_costs(pairs, reference, y[i], pair)
        low, high = min(i + 1, n) - band, i + 1 + band
        new[0] = row[0] + insertion if low <= 0 else np.inf
        least = new[0]
        for j in range(1, n + 1):
            new[j] = min(row[j - 1] + pair[j - 1], row[j] + insertion, new[j - 1] + deletion)
            if j < low or j > high:
                new[j] = np.inf
            least = min(least, new[j])
        for j in range(n + 1):
            row[j] = np.inf if new[j] >= least + window - UNIT else new[j]
    best = np.inf
    for j in range(n + 1):
        best = min(best, row[j] + (n - j) * deletion)
    return float(best)


@exact_kernel
def least_cost(y: Ints, reference: Ints, pairs: Pairs, gaps: Gaps, local: bool) -> float:
    """The least cost of turning the reference (n, m), any of m labels at each place, into y: the edit distance.

    `local`: of aligning some stretch of y with some stretch of the reference, 0 for none at all: Smith-Waterman. Row by
    row of y, with the least costs of what ends in an insertion and in a deletion beside those of all (Gotoh 1982).
    """
    n, least = reference.shape[0], 0.0
    first_insertion, next_insertion, first_deletion, next_deletion = gaps
    row, inserted, pair = np.zeros(n + 1), np.full(n + 1, np.inf), np.empty(n)
    for j in range(0 if local else n):
        row[j + 1] = first_deletion + j * next_deletion
    for i in range(y.shape[0]):
        pair_costs(pairs, reference, y[i], pair)
        diagonal = row[0]
        inserted[0] = min(row[0] + first_insertion, inserted[0] + next_insertion)
        row[0] = 0.0 if local else inserted[0]
        deleted = row[0] + first_deletion
        for j in range(n):
            opened, extended = row[j + 1] + first_insertion, inserted[j + 1] + next_insertion
            inserted[j + 1] = opened if opened < extended else extended
            best = diagonal + pair[j]
            best = inserted[j + 1] if inserted[j + 1] < best else best
            best = 0.0 if local and best > 0.0 else best
            best = deleted if deleted < best else best  # what waits for the column before comes last
            opened, extended = best + first_deletion, deleted + next_deletion
            deleted = opened if opened < extended else extended
            least = best if best < least else least
            diagonal = row[j + 1]
            row[j + 1] = best
    return least if local else float(row[n])


@exact_kernel
def alignment(y: Ints, reference: Ints, pairs: Pairs, gaps: Gaps, local: bool, partners: Ints) -> None:
    """partners (1, 1, len(y)) = of each label of y the place in the reference that it is aligned with, -1 for none.

    Of several alignments of least cost the lexicographically smallest: `kernels.pairs`, of negative costs.
    """
    n, m = y.shape[0], reference.shape[0]
    scores = Scores(
        np.empty((1, n, m)), np.full((1, n), -gaps.first_insertion), np.full((1, n), -gaps.next_insertion),
        np.full((1, m), -gaps.first_deletion), np.full((1, m), -gaps.next_deletion), np.zeros((1, 1)),
    )  # fmt: skip
    for i in range(n):
        pair_costs(pairs, reference, y[i], scores.match[0, i])
        for j in range(m):
            scores.match[0, i, j] *= -1.0
    one, nothing = np.ones(1, np.int64), np.empty((1, 1, 0))
    sizes = Sizes(one * n, one * m, one * n, -one, local)
    walks(0, 1, scores, sizes, None, 1, nothing, np.empty((1, 1)), partners)
