"""WordAutomaton: a machine over words that reads what labels spell, through a trie of the reference's words."""

from typing import NamedTuple

import numpy as np

from structloss.automata.open import Floats, Ints, OpenAutomaton, grown, table_for
from structloss.automata.tropical import TropicalAutomaton
from structloss.kernels import words as kernels
from structloss.kernels.sparse import FULL, NO_ROOM, EditMachine
from structloss.kernels.tables import rehash
from structloss.kernels.types import OK
from structloss.kernels.words import NO_KEYS, Trie, WordMachine


class Reader(NamedTuple):
    """How labels lead through a trie: those that do the same everywhere are one class (K,)."""

    class_of: Ints
    trie: Trie


class WordAutomaton(OpenAutomaton):
    """What a machine over words 0 to W, W for any that the reference lacks, gives to the words that labels spell.

    A state is one of that machine, and the node of the word that is being spelt. As soon as a word begins it counts as
    one that the reference lacks; what is different about it is settled at its end. So in a word it matters only what
    the words that begin like it would do that others would not. A node where none does anything else is as good as the
    last one, which has the word behind it and waits for the boundary; and two states of the machine for which the same
    words do the same are one at this node.

    Args:
        words: the machine over words.
        reader: how labels spell them.
        max_states: raise `TooManyStatesError` rather than have more.
    """

    def __init__(self, words: TropicalAutomaton, reader: Reader, max_states: int) -> None:
        super().__init__(reader.class_of, len(reader.trie.column), max_states)
        self.words, self.trie = words, reader.trie
        self._place, self._begin = np.zeros((len(self.final), 2), np.int64), np.zeros(len(self.final) + 1, np.int64)
        self._key, self._table = np.zeros(4 * len(self.final), np.int64), table_for(len(self.final))
        self._fill(np.zeros(0, np.int64), np.zeros(0, np.int64), -1)

    @property
    def num_bytes(self) -> int:
        tables = (self._place, self._begin, self._key, self._table, *self.trie[:-1])
        return super().num_bytes + self.words.num_bytes + sum(x.nbytes for x in tables)

    def arrays(self, max_states: int) -> WordMachine:
        """What kernels read and add to; hand it to `take` afterwards."""
        return WordMachine(
            self.words.arrays(max_states), self.trie, self.words.class_of, self.next_state, self.weights, self.final,
            self._place, self._begin, self._key, self._table, max_states, np.array([self.num_states]),
        )  # fmt: skip

    def take(self, machine: WordMachine) -> None:
        """Know what a kernel has added."""
        self.words.take(machine.rows)
        self.num_states = int(machine.number[0])

    def make_room(self, status: int) -> bool:
        """Whether a kernel stopped for want of room, which there is then."""
        if status == NO_ROOM:
            self.words.make_room()
        elif status == NO_KEYS:
            self._grow(2 * len(self.final))
            self._place, self._begin = grown(self._place, len(self.final)), grown(self._begin, len(self.final) + 1)
            most = 4 + 2 * int((self.trie.beyond - self.trie.first).max())
            self._key, self._table = grown(self._key, 2 * len(self._key) + most), table_for(len(self.final))
            rehash(self._key, self._begin, 1, 0, self.num_states, self._table)
        return status in (NO_ROOM, NO_KEYS)

    def _expand(self, states: Ints, classes: Ints) -> None:
        self._fill(states, classes, 0)

    def _fill(self, states: Ints, classes: Ints, done: int) -> None:
        status = NO_ROOM
        while status != OK:
            machine = self.arrays(self.max_states)
            done, status = kernels.expand(machine, states, classes, done)
            self.take(machine)
            if status == FULL:
                self._check_size(self.max_states + 1)
            self.make_room(status)

    def losses_to_go(self, states: Ints, length: int) -> tuple[Floats, Floats]:
        """Those of any number of words that so many labels can end, the one under way among them."""
        inner, node = self._place[states].T
        bounds = [self.words.losses_to_go(inner, words) for words in range(self._most(length) + 1)]
        least, highest = (np.stack(x) for x in zip(*bounds, strict=True))
        counted = self._counted(inner, node)
        return least.min(0) - counted, highest.max(0) - counted

    def _losses_within(self, first: int, length: int) -> tuple[Floats, Floats]:
        inner, node = self._place[first : self.num_states].T
        least, most = self.words.losses_within(self._most(length))
        counted = self._counted(inner, node)
        return least[inner] - counted, most[inner] - counted

    def _most(self, length: int) -> int:
        """How many words so many labels can end."""
        return 1 + length * (1 + int(np.diff(self.trie.begin).max()))

    def _counted(self, inner: Ints, node: Ints) -> Floats:
        """What was counted for the word under way."""
        other = self.words.class_of[-1]
        within = (node > 0) & (node < len(self.trie.word) - 1)
        return np.where(within, self.words.weights[inner, other], 0.0)


def alone(rows: EditMachine) -> WordMachine:
    """The machine of an edit distance of labels itself, for kernels that read either."""
    none, two = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
    trie = Trie(none, none, none, none, two, none, none, none, none, none, 0)
    return WordMachine(
        rows, trie, none, rows.next_state, rows.weights, rows.final, two, none, none, none, rows.max_states, rows.number
    )
