"""Alignments of two strings: their least costs, by dynamic programming.

Costs: of aligning a symbol of the reference with one of the answer, of inserting a symbol that the reference lacks, and
of deleting one that the answer lacks.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.checks import UNKNOWN
from structloss.kernels.compile import exact_helper, exact_kernel
from structloss.kernels.subsumption import UNIT
from structloss.kernels.types import Array, Ints


class Pairs(NamedTuple):
    """The cost of aligning two labels: one for equal and one for unequal labels, or a table of all pairs."""

    match: float
    substitution: float
    table: Array  # (K, K), by the reference's label, then the answer's; of size 0 where the two numbers say it all


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
def windowed_cost(y: Ints, reference: Ints, pairs: Pairs, insertion: float, deletion: float, window: float) -> float:
    """The edit distance of the reference (n, m) and y by rows from which all that is far from the least is forgotten.

    row[j] = the least cost of turning reference[:j] into what was read of y, by alignments that never cost `window` or
    more above the least of their row:

        new[j] = min(row[j - 1] + pair[j - 1], row[j] + insertion, new[j - 1] + deletion),
        then new[j] = inf where new[j] >= min(new) + window;

    at the end what is left of the reference is deleted.
    """
    n = reference.shape[0]
    row, new, pair = np.empty(n + 1), np.empty(n + 1), np.empty(n)
    for j in range(n + 1):
        row[j] = j * deletion
        if row[j] >= window - UNIT:
            row[j] = np.inf
    for i in range(y.shape[0]):
        pair_costs(pairs, reference, y[i], pair)
        new[0] = row[0] + insertion
        least = new[0]
        for j in range(1, n + 1):
            new[j] = min(row[j - 1] + pair[j - 1], row[j] + insertion, new[j - 1] + deletion)
            least = min(least, new[j])
        for j in range(n + 1):
            row[j] = np.inf if new[j] >= least + window - UNIT else new[j]
    best = np.inf
    for j in range(n + 1):
        best = min(best, row[j] + (n - j) * deletion)
    return float(best)


@exact_kernel
def least_cost(y: Ints, reference: Ints, pairs: Pairs, insertion: float, deletion: float, local: bool) -> float:
    """The least cost of turning the reference (n, m), any of m labels at each place, into y: the edit distance.

    `local`: of aligning some stretch of y with some stretch of the reference, 0 for none at all: Smith-Waterman.
    """
    n, least = reference.shape[0], 0.0
    row, pair = np.zeros(n + 1), np.empty(n)
    for j in range(0 if local else n + 1):
        row[j] = j * deletion
    for i in range(y.shape[0]):
        pair_costs(pairs, reference, y[i], pair)
        diagonal = row[0]
        row[0] += 0.0 if local else insertion
        for j in range(n):
            best = min(diagonal + pair[j], row[j] + deletion, row[j + 1] + insertion)
            if local:
                best = min(best, 0.0)
                least = min(least, best)
            diagonal = row[j + 1]
            row[j + 1] = best
    return least if local else float(row[n])
