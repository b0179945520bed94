"""A machine over words that reads what labels spell: its arcs, made when asked for. See `automata.words`."""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_helper, exact_kernel
from structloss.kernels.sparse import FULL, EditMachine, step
from structloss.kernels.tables import slot_of
from structloss.kernels.types import OK, Array, Ints

NO_KEYS = -3  # instead of a state: there is no room for another one over words


class Trie(NamedTuple):
    """How classes of labels lead through a trie of W words, and over the boundaries between words.

    Node 0 is the empty beginning, nodes below N are the beginnings of words, and node N stands for all that is the
    beginning of none. A label spells the rest of a word, and, if it has a boundary, whole words between the first and
    the last one and the beginning of another word.
    """

    column: Ints  # (C,), what a class spells before its first boundary, as a column of `step`: 0 leads nowhere, 1 stays
    crosses: Ints  # (C,), 1 where a class has a boundary
    between: Ints  # (C,), which of the sequences of words it spells between boundaries
    last: Ints  # (C,), the node to which it leads from its last boundary
    step: Ints  # (N + 1, H), where a column leads from each node
    word: Ints  # (N + 1,), the word that a node spells, W for one that the reference lacks
    first: Ints  # (N + 1,), the first of the words that begin with a node, in the order of their numbers,
    beyond: Ints  # (N + 1,), and the one behind the last of them
    whole: Ints  # sequences of words, W for one that the reference lacks: sequence i is from begin[i] to begin[i + 1]
    begin: Ints
    common: int  # the class that spells what leads nowhere, and no boundary


class WordMachine(NamedTuple):
    """The machine over what labels spell, as far as it is known; or, where the trie is empty, that over words itself.

    A state is told apart by its key: the node and the state of `rows`, or in a word, what the words that begin like it
    would do there, as that is all that matters of the state of `rows`.
    """

    rows: EditMachine
    trie: Trie
    class_of: Ints  # (W + 1,), of each word its class in `rows`
    next_state: Ints  # (N, C), -1 where nobody has asked yet
    weights: Array  # (N, C)
    final: Array  # (N,)
    place: Ints  # (N, 2), of each state that of `rows`, and the node
    begin: Ints  # (N + 1,), where a state's key begins
    key: Ints
    table: Ints  # of keys: see `tables.slot_of`
    max_states: int
    number: Ints  # (1,), how many states are known


@exact_helper
def matters(rows: EditMachine, class_of: Ints, r: int, first: int, beyond: int) -> int:
    """1 if some word from `first` on does in r what a word that the reference lacks does not, else 0; or no state."""
    other = class_of[class_of.shape[0] - 1]
    wrong = step(rows, r, other)
    if wrong < 0:
        return wrong
    for w in range(first, beyond):
        right = step(rows, r, class_of[w])
        if right < 0:
            return right
        if right != wrong or rows.weights[r, class_of[w]] != rows.weights[r, other]:
            return 1
    return 0


@exact_helper
def enter(m: WordMachine, r: int, node: int) -> int:
    """The state of this pair, made if it is new. In a word, whose words matter, nothing else of r does.

    With a window that is not so of bounds (see docs/guide/sparse.md): there r itself tells states apart.
    """
    rows, trie, class_of, _, _, final, place, begin, key, table, max_states, number = m
    state, lost = number[0], trie.word.shape[0] - 1
    first, beyond, at = trie.first[node], trie.beyond[node], begin[state]
    if state + 2 > place.shape[0] or at + 2 * (beyond - first) + 4 > key.shape[0]:
        return NO_KEYS
    key[at] = node
    at += 1
    if node == 0 or node == lost or rows.window < np.inf:
        key[at] = r
        at += 1
    else:
        other = class_of[class_of.shape[0] - 1]
        key[at] = step(rows, r, other)
        at += 1
        for w in range(first, beyond):
            key[at] = step(rows, r, class_of[w])
            key[at + 1] = np.float64(rows.weights[r, class_of[w]] - rows.weights[r, other] + 0.0).view(np.int64)
            at += 2
    begin[state + 1] = at
    slot = slot_of(key, begin, 1, state, table, 0)
    if table[slot] >= 0:
        return int(table[slot])
    if state >= max_states:
        return FULL
    ends, weight = r, 0.0
    if 0 < node < lost:  # the word under way ends there
        c, other = class_of[trie.word[node]], class_of[class_of.shape[0] - 1]
        ends = step(rows, r, c)
        if ends < 0:
            return int(ends)
        weight = rows.weights[r, c] - rows.weights[r, other]
    table[slot] = state
    place[state, 0], place[state, 1], final[state] = r, node, weight + rows.final[ends]
    number[0] = state + 1
    return int(state)


@exact_helper
def word_step(m: WordMachine, state: int, c: int) -> int:
    """The state that class c leads to, found now if need be; or NO_ROOM, NO_KEYS, FULL.

    As soon as a word begins, it counts as one that the reference lacks; what is different about it is settled at its
    end, or as soon as none of the words that begin like it does anything else.
    """
    rows, trie, class_of, next_state, weights, _, place, _, _, _, _, _ = m
    column, crosses, between, last, onward, word, first, beyond, whole, begin, common = trie
    if next_state[state, c] >= 0:
        return int(next_state[state, c])
    r, before, lost, other = place[state, 0], place[state, 1], word.shape[0] - 1, class_of[class_of.shape[0] - 1]
    node, weight, cross = onward[before, column[c]], 0.0, crosses[c] > 0
    if not cross and node == lost and next_state[state, common] >= 0:
        next_state[state, c], weights[state, c] = next_state[state, common], weights[state, common]
        return int(next_state[state, c])
    if cross:
        if before < lost and node > 0:
            symbol, own = class_of[word[node]], 0.0
            if before > 0:
                if step(rows, r, other) < 0:
                    return step(rows, r, other)
                own = rows.weights[r, other]
            to = step(rows, r, symbol)
            if to < 0:
                return to
            weight += rows.weights[r, symbol] - own
            r = to
        for i in range(begin[between[c]], begin[between[c] + 1]):
            to = step(rows, r, class_of[whole[i]])
            if to < 0:
                return to
            weight += rows.weights[r, class_of[whole[i]]]
            r = to
        node = last[c]
    if node > 0 and (cross or before < lost):
        wrong = step(rows, r, other)
        if wrong < 0:
            return wrong
        if cross or before == 0:
            weight += rows.weights[r, other]
        if node < lost:
            does = matters(rows, class_of, r, first[node], beyond[node])
            if does < 0:
                return does
            node = node if does else lost
        if node == lost:
            r = wrong
    to = enter(m, r, node)
    if to >= 0:
        next_state[state, c], weights[state, c] = to, weight
    return to


@exact_kernel
def expand(m: WordMachine, states: Ints, classes: Ints, done: int) -> tuple[int, int]:
    """Follow these arcs from number `done` on; -1 is the start. The first not followed, and why: OK if there is none.

    `matters` has followed what `enter` asks for.
    """
    while done < states.shape[0]:
        to = enter(m, 0, 0) if done < 0 else word_step(m, states[done], classes[done])
        if to < 0:
            return done, to
        done += 1
    return done, OK
