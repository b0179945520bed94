"""Alignments of two strings: their costs by dynamic programming, and as acceptors for the compiler.

Costs: of aligning a symbol of the reference with one of the answer, of inserting a symbol that the reference lacks, and
of deleting one that the answer lacks.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.checks import UNKNOWN
from structloss.kernels.compile import exact_kernel
from structloss.kernels.determinise import Acceptor
from structloss.kernels.types import Array, Ints


class Pairs(NamedTuple):
    """The cost of aligning two labels: one for equal and one for unequal labels, or a table of all pairs."""

    match: float
    substitution: float
    table: Array  # (K, K), by the reference's label, then the answer's; of size 0 where the two numbers say it all


@exact_kernel
def pair_cost(pairs: Pairs, wanted: Ints, label: int) -> float:
    """The least cost of answering `label` where any of `wanted` is right: labels, UNKNOWN for all, -1 for none."""
    best = np.inf
    for i in range(wanted.shape[0]):
        if pairs.table.size == 0:
            if wanted[i] != -1:
                agrees = wanted[i] == label or wanted[i] == UNKNOWN
                best = min(best, pairs.match if agrees else pairs.substitution)
        elif wanted[i] >= 0:
            best = min(best, pairs.table[wanted[i], label])
        elif wanted[i] == UNKNOWN:
            for k in range(pairs.table.shape[0]):
                best = min(best, pairs.table[k, label])
    return best


@exact_kernel
def edit_distance(y: Ints, reference: Ints, pairs: Pairs, insertion: float, deletion: float) -> float:
    """The least cost of turning the reference (n, m), any of m labels at each place, into y."""
    n = reference.shape[0]
    row = np.arange(n + 1) * deletion
    for i in range(y.shape[0]):
        diagonal = row[0]
        row[0] += insertion
        for j in range(n):
            best = min(diagonal + pair_cost(pairs, reference[j], y[i]), row[j] + deletion, row[j + 1] + insertion)
            diagonal = row[j + 1]
            row[j + 1] = best
    return float(row[n])


@exact_kernel
def smith_waterman(y: Ints, reference: Ints, pairs: Pairs, insertion: float, deletion: float) -> float:
    """The least cost of aligning some stretch of y with some stretch of the reference, 0 for none at all."""
    n, least = reference.shape[0], 0.0
    row = np.zeros(n + 1)
    for i in range(y.shape[0]):
        diagonal = 0.0
        for j in range(n):
            pair = diagonal + pair_cost(pairs, reference[j], y[i])
            best = min(pair, row[j] + deletion, row[j + 1] + insertion, 0.0)
            diagonal = row[j + 1]
            row[j + 1] = best
            least = min(least, best)
    return least


@exact_kernel
def edit_acceptor(cost: Array, insertion: float, deletion: float) -> Acceptor:
    """The paper's Y-bar o U_edit o Y_i, projected to its input. Position i: i symbols of the reference are behind.

    cost (n, C): of aligning the reference's symbols with each class.
    """
    n, C = cost.shape
    start, stop = np.full(n + 1, np.inf), np.full(n + 1, np.inf)
    start[0], stop[n] = 0.0, 0.0
    move_start = np.empty((C, n + 2), np.int64)
    move_to, move_cost = np.empty(C * (2 * n + 1), np.int64), np.empty(C * (2 * n + 1))
    k = 0
    for c in range(C):
        for i in range(n + 1):
            move_start[c, i] = k
            move_to[k], move_cost[k] = i, insertion
            k += 1
            if i < n:
                move_to[k], move_cost[k] = i + 1, cost[i, c]
                k += 1
        move_start[c, n + 1] = k
    silent_start = np.empty(n + 2, np.int64)
    for i in range(n + 2):
        silent_start[i] = min(i, n)
    return Acceptor(
        start, stop, move_start, move_to, move_cost, silent_start, np.arange(1, n + 1), np.full(n, deletion)
    )


@exact_kernel
def smith_waterman_acceptor(cost: Array, insertion: float, deletion: float) -> Acceptor:
    """The paper's Smith-Waterman transducer against one reference.

    Position 0: nothing is aligned yet. Position i, 1 to n: an alignment is under way and has i symbols of the reference
    behind it. Position n + 1: it has ended. An alignment begins and ends with a pair, as gaps only cost.
    """
    n, C = cost.shape
    P = n + 2
    start, stop = np.full(P, np.inf), np.zeros(P)
    start[0] = 0.0
    moves = C * (1 + n + 3 * n + 1)
    move_start = np.empty((C, P + 1), np.int64)
    move_to, move_cost = np.empty(moves, np.int64), np.empty(moves)
    k = 0
    for c in range(C):
        move_start[c, 0] = k
        move_to[k], move_cost[k] = 0, 0.0
        k += 1
        for i in range(n):
            move_to[k], move_cost[k] = i + 1, cost[i, c]
            k += 1
        for i in range(1, n + 1):
            move_start[c, i] = k
            move_to[k], move_cost[k] = i, insertion
            k += 1
            if i < n:
                move_to[k], move_cost[k] = i + 1, cost[i, c]
                k += 1
            move_to[k], move_cost[k] = n + 1, 0.0
            k += 1
        move_start[c, n + 1] = k
        move_to[k], move_cost[k] = n + 1, 0.0
        k += 1
        move_start[c, P] = k
    silent_start = np.zeros(P + 1, np.int64)
    for i in range(1, P + 1):
        silent_start[i] = min(max(i - 1, 0), max(n - 1, 0))
    silent_to = np.empty(max(n - 1, 0), np.int64)
    for i in range(1, n):
        silent_to[i - 1] = i + 1
    return Acceptor(
        start, stop, move_start, move_to[:k], move_cost[:k], silent_start, silent_to, np.full(max(n - 1, 0), deletion)
    )
