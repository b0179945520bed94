"""Weighted acceptors of all answers against one reference: those of alignments, and any, collected move by move.

cost (n, C) is that of aligning the reference's symbols with each class of labels; an insertion is a symbol that the
reference lacks, a deletion one that the answer lacks.
"""

import math

import numpy as np

from structloss.automata.open import Floats
from structloss.kernels.subsumption import Acceptor


def edit_acceptor(cost: Floats, insertion: float, deletion: float) -> Acceptor:
    """The paper's Y-bar o U_edit o Y_i, projected to its input. Position i: i symbols of the reference are behind."""
    n, C = cost.shape
    start, stop, i = np.full(n + 1, math.inf), np.full(n + 1, math.inf), np.arange(n + 2)
    start[0] = stop[n] = 0.0
    moves = 2 * n + 1  # of a class: from each position an insertion, and but for the last one a pair
    to, costs = np.arange(1, moves + 1) // 2, np.full((C, moves), insertion)
    costs[:, 1::2] = cost.T
    begin = np.minimum(2 * i, moves) + moves * np.arange(C)[:, None]
    return Acceptor(
        start, stop, begin, np.tile(to, C), costs.reshape(-1), np.minimum(i, n), i[1:-1].copy(), np.full(n, deletion)
    )


def banded_edit_acceptor(cost: Floats, insertion: float, deletion: float, band: int) -> Acceptor:
    """The edit distance by alignments that stay near the diagonal.

    A position is (i, j): i labels of the answer were read, at most n being told apart, and j of the reference are
    behind, j within `band` of i. Positions of one i stand in a row.
    """
    n, C = cost.shape
    places = [(i, j) for i in range(n + 1) for j in range(max(0, i - band), min(n, i + band) + 1)]
    number = {place: p for p, place in enumerate(places)}
    built = AcceptorBuilder(len(places), C)
    built.start[0] = 0.0
    for p, (i, j) in enumerate(places):
        if (i, j + 1) in number:
            built.silent(p, p + 1, deletion)
        else:
            built.stop[p] = (n - j) * deletion
        inserted, paired = (number.get((min(n, i + 1), j + k)) for k in (0, 1))
        for c in range(C):
            if inserted is not None:
                built.move(c, p, inserted, insertion)
            if paired is not None:
                built.move(c, p, paired, cost[j, c])
    return built.build()


def smith_waterman_acceptor(cost: Floats, insertion: float, deletion: float) -> Acceptor:
    """The paper's Smith-Waterman transducer against one reference.

    Position 0: nothing is aligned yet. Position i, 1 to n: an alignment is under way and has i symbols of the reference
    behind it. Position n + 1: it has ended. An alignment begins and ends with a pair, as gaps only cost.
    """
    n, C = cost.shape
    start, stop, i = np.full(n + 2, math.inf), np.zeros(n + 2), np.arange(1, n + 1)
    start[0] = 0.0
    # Moves of a class: from position 0 to itself or to a pair; from i an insertion, a pair, the end; at the end.
    to = np.concatenate([[0], i, np.stack([i, i + 1, np.full(n, n + 1)], 1).reshape(-1), [n + 1]])
    costs = np.zeros((C, len(to)))
    costs[:, 1 : n + 1] = cost.T
    costs[:, n + 1 : -1 : 3] = insertion
    costs[:, n + 2 : -4 : 3] = cost[1:].T
    there = np.arange(len(to)) != 4 * n - 1  # no pair is left at position n
    to, costs = (to[there], costs[:, there]) if n else (to, costs)
    begin = np.concatenate([[0], n + 1 + 3 * np.arange(n), [len(to) - 1, len(to)]]) + len(to) * np.arange(C)[:, None]
    silent_start = np.clip(np.arange(-1, n + 2), 0, max(n - 1, 0))
    return Acceptor(
        start,
        stop,
        begin,
        np.tile(to, C),
        costs.reshape(-1),
        silent_start,
        i[1:].copy(),
        np.full(max(n - 1, 0), deletion),
    )


def affine_edit_acceptor(cost: Floats, gap_open: float, gap_extend: float) -> Acceptor:
    """The edit distance where k labels inserted, or deleted, in a row cost gap_open + (k - 1) * gap_extend.

    With i symbols of the reference behind, position 3 i comes after a pair or at the start, 3 i + 1 after an insertion
    and 3 i + 2 after a deletion. Between two pairs insertions come first: no order of them costs less.
    """
    n, C = cost.shape
    built = AcceptorBuilder(3 * n + 3, C)
    built.start[0] = 0.0
    built.stop[3 * n :] = 0.0
    for i in range(n + 1):
        _affine_moves(built, cost, i, 3 * i, gap_open, gap_extend)
    return built.build()


def affine_local_acceptor(cost: Floats, gap_open: float, gap_extend: float) -> Acceptor:
    """As `smith_waterman_acceptor`, with affine gaps: positions 3 i - 2 to 3 i as 3 i to 3 i + 2 above, i from 1."""
    n, C = cost.shape
    built, end = AcceptorBuilder(3 * n + 2, C), 3 * n + 1
    built.start[0] = built.stop[0] = built.stop[end] = 0.0
    for c in range(C):
        built.move(c, 0, 0, 0.0)
        built.move(c, end, end, 0.0)
        for i in range(n):
            built.move(c, 0, 3 * i + 1, cost[i, c])
            built.move(c, 3 * i + 1, end, 0.0)
    for i in range(1, n + 1):
        built.stop[3 * i - 2] = 0.0
        _affine_moves(built, cost, i, 3 * i - 2, gap_open, gap_extend)
    return built.build()


def _affine_moves(
    built: "AcceptorBuilder", cost: Floats, i: int, pair: int, gap_open: float, gap_extend: float
) -> None:
    """The moves from the three positions with i symbols of the reference behind, of which `pair` is the first."""
    n, C = cost.shape
    insertion, deletion = pair + 1, pair + 2
    for c in range(C):
        built.move(c, pair, insertion, gap_open)
        built.move(c, insertion, insertion, gap_extend)
        for source in (pair, insertion, deletion) if i < n else ():
            built.move(c, source, pair + 3, cost[i, c])
    for source in (pair, insertion, deletion) if i < n else ():
        built.silent(source, deletion + 3, gap_extend if source == deletion else gap_open)


class AcceptorBuilder:
    """Collects the moves of an acceptor and lays them out as arrays."""

    def __init__(self, positions: int, classes: int) -> None:
        self.start = np.full(positions, math.inf)
        self.stop = np.full(positions, math.inf)
        self._moves: list[list[list[tuple[int, float]]]] = [[[] for _ in range(positions)] for _ in range(classes)]
        self._silent: list[list[tuple[int, float]]] = [[] for _ in range(positions)]

    def move(self, symbol_class: int, source: int, target: int, cost: float) -> None:
        """Reading a symbol of this class leads from source to target."""
        self._moves[symbol_class][source].append((target, cost))

    def silent(self, source: int, target: int, cost: float) -> None:
        """Reading nothing leads from source to target, a higher position."""
        self._silent[source].append((target, cost))

    def build(self) -> Acceptor:
        """The arrays."""
        moves = [move for by_source in self._moves for listed in by_source for move in listed]
        counts = np.array([[len(listed) for listed in by_source] for by_source in self._moves], np.int64)
        ends = np.cumsum(counts.ravel()).reshape(counts.shape)
        move_start = np.concatenate([ends[:, :1] - counts[:, :1], ends], 1)
        silent = [move for listed in self._silent for move in listed]
        silent_start = np.concatenate([[0], np.cumsum([len(listed) for listed in self._silent])]).astype(np.int64)
        return Acceptor(
            self.start, self.stop, move_start,
            np.array([target for target, _ in moves], np.int64), np.array([cost for _, cost in moves], np.float64),
            silent_start,
            np.array([target for target, _ in silent], np.int64), np.array([cost for _, cost in silent], np.float64),
        )  # fmt: skip
