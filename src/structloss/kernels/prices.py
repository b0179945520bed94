"""What it costs to send probability from one state of a loss machine to another, of labels or of words.

V_s is the loss to go from state s, a function of the string that is left. Of labels it is the least a + V_p over the
entries (p, a) of s, at most the cap. For positions of an edit distance V_q <= V_p + between(q, p), the deletions or
insertions that lead from one to the other. Hence V_x <= V_y + max over entries (p, b) of y of (row_x(p) - b), where
row_x(p) is the least a + between(q, p) over the entries (q, a) of x, at most the cap: rows are told apart by their sup
norm.

Of words, U_r is that of a state r of the machine over words. With a node for the beginning W of the word under way,
and labels left that spell w, the rest of it, and the words o behind the next boundary:

    V_(r, 0) = U_r(w o), or U_r(o) where w is empty;  V_(r, W) = U_r(Ww o) - what was counted;  V_(r, lost) = U_r(o).

To take a word for another changes U by at most `wrong_word`, one word more or less by the deletion or the insertion.
See docs/guide/sparse.md for the proofs.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_helper, exact_inlined_helper
from structloss.kernels.sparse import step as row_step
from structloss.kernels.subsumption import UNIT
from structloss.kernels.types import Array, Ints
from structloss.kernels.words import WordMachine, word_step


class Prices(NamedTuple):
    """What re-routing is paid by. The common class is that of labels that the reference lacks, or of no word of it."""

    insertion: float
    deletion: float
    wrong_word: float  # at most so much does the loss change when a word is taken for another
    common: int
    class_of: Ints  # (K,)
    wrong: Array  # (K,), at most so much does the loss change when a label is taken for a common one
    again: Array  # (K,), and so much more if the next frame repeats it, as nobody knows then which it was
    repeat: Array  # (K,), at most so much does the loss change by reading a label once more
    stays: Ints  # (K,), 1 where reading it leaves a lost word as it is
    ignored: float  # at most so much does the loss change by a common label
    differs: Ints  # (C, P), of labels: at how many of the first p positions the class costs not what a common one does


class Rows(NamedTuple):
    """What prices are made from: the states' entries, and of words the pairs that are states; see `rows_of`."""

    begin: Ints
    key: Ints
    cost: Array
    cap: float
    window: float
    positions: int
    insertion: float
    deletion: float
    wrong_word: float
    place: Ints  # (N, 2), of words
    other: int  # the class of words that the reference lacks
    lost: int  # the node of no word; -1 of labels
    next_state: Ints  # of the machine over words
    weights: Array


@exact_helper
def rows_of(m: WordMachine, prices: Prices) -> Rows:
    """Arrays of a NamedTuple that is handed on are counted one by one: these are all that prices need."""
    words, begin, key, cost = m.class_of.shape[0], m.rows.states.begin, m.rows.states.key, m.rows.states.cost
    other, lost = m.class_of[words - 1] if words else -1, m.trie.word.shape[0] - 1
    return Rows(
        begin, key, cost, m.rows.cap, m.rows.window, m.rows.stop.shape[0], prices.insertion, prices.deletion,
        prices.wrong_word, m.place, other, lost, m.rows.next_state, m.rows.weights,
    )  # fmt: skip


@exact_helper
def found(m: WordMachine, s: int, c: int) -> int:
    """The state that class c leads to, which nobody has asked for; or NO_ROOM, NO_KEYS, FULL."""
    return word_step(m, s, c) if m.class_of.shape[0] else row_step(m.rows, s, c)


@exact_helper
def reach(
    begin: Ints, key: Ints, cost: Array, cap: float, window: float, positions: int, deletion: float, state: int
) -> tuple[int, int]:
    """The first position of a state, and the last that deletions lead to before the cap or the window's end."""
    first, last, least = begin[state], begin[state + 1], np.inf
    for i in range(first, last):
        least = min(least, cost[i])
    limit, high, end = min(cap, least + window), -1, positions - 1
    for i in range(first, last):
        far = (limit - cost[i]) / deletion if deletion > 0.0 else np.inf
        high = max(high, end if far >= end else min(end, key[2 * i] + int(far)))
    return (int(key[2 * first]) if last > first else 0), int(high)


@exact_helper
def above(begin: Ints, key: Ints, cost: Array, cap: float, insertion: float, deletion: float, x: int, y: int) -> float:
    """Of rows, V_x is at most V_y plus this."""
    most = 0.0 if cap < np.inf else -np.inf
    for i in range(begin[y], begin[y + 1]):
        row = cap
        for k in range(begin[x], begin[x + 1]):
            ahead = key[2 * i] - key[2 * k]
            row = min(row, cost[k] + (ahead * deletion if ahead > 0 else -ahead * insertion))
        most = max(most, row - cost[i])
    return most + UNIT  # by which costs that are taken for equal may differ


@exact_helper
def between_nodes(
    insertion: float, deletion: float, wrong_word: float, lost: int, x: int, y: int
) -> tuple[float, float]:
    """What U(words under way at node x) - U(those at node y) is at most, and its negative, without what was counted."""
    if x == y:
        return 0.0, 0.0
    if y == lost:
        return insertion, deletion
    if x == lost:
        return deletion, insertion
    if x == 0:
        return max(deletion, wrong_word), max(insertion, wrong_word)
    if y == 0:
        return max(insertion, wrong_word), max(deletion, wrong_word)
    return wrong_word, wrong_word


@exact_inlined_helper
def apart(rows: Rows, x: int, y: int) -> tuple[float, float]:
    """V_x is at most V_y plus the first; V_y at most V_x plus the second."""
    begin, key, cost, cap, window, _, insertion, deletion, wrong_word, pairs, other, lost, next_state, weights = rows
    up, down, high, low, r, q = 0.0, 0.0, 0.0, 0.0, x, y
    if x != y and lost >= 0:
        r, node, q, place = pairs[x, 0], pairs[x, 1], pairs[y, 0], pairs[y, 1]
        up, down = between_nodes(insertion, deletion, wrong_word, lost, node, place)
        counted = 0.0
        if 0 < node < lost:
            counted += weights[r, other]
        if 0 < place < lost:
            counted -= weights[q, other]
        up, down = up - counted, down + counted
        if node != place and window == np.inf:  # or by way of the words under way being lost: see docs
            to_r, to_q = r, q
            if node == 0:
                high, low = high + insertion, low + deletion
            elif node < lost:
                to_r, low = next_state[r, other], low + wrong_word
            if place == 0:
                high, low = high + deletion, low + insertion
            elif place < lost:
                to_q, high = next_state[q, other], high + wrong_word
            if to_r != to_q:
                high += above(begin, key, cost, cap, insertion, deletion, to_r, to_q)
                low += above(begin, key, cost, cap, insertion, deletion, to_q, to_r)
        else:
            high, low = np.inf, np.inf
    else:
        high, low = np.inf, np.inf
    if r != q:
        up += above(begin, key, cost, cap, insertion, deletion, r, q)
        down += above(begin, key, cost, cap, insertion, deletion, q, r)
    return min(up, high), min(down, low)
