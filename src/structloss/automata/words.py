"""WordAutomaton: a machine over words that reads what labels spell, through a trie of the reference's words."""

from typing import NamedTuple

import numpy as np

from structloss.automata.open import Floats, Ints, OpenAutomaton, grown


class Reader(NamedTuple):
    """How labels lead through a trie of W words, and over the boundaries between words.

    Node 0 of the trie is the empty beginning, nodes below N are the beginnings of words, and node N stands for all that
    is the beginning of none. A label spells the rest of a word, and, if it has a boundary, whole words between the
    first and the last one and the beginning of another word. Labels that do the same everywhere are one class.
    """

    class_of: Ints  # (K,)
    column: Ints  # (C,), what a class spells before its first boundary, as a column of `step`
    crosses: Ints  # (C,), 1 where a class has a boundary
    between: Ints  # (C,), which of `whole` it spells between boundaries
    last: Ints  # (C,), the node to which it leads from its last boundary
    step: Ints  # (N + 1, H), where a column leads from each node
    whole: list[tuple[int, ...]]  # words, W for one that the reference lacks
    word: Ints  # (N + 1,), the word that a node spells, W for one that the reference lacks
    begins: Floats  # (W, N + 1), 1 where a node is a beginning of a word


class WordAutomaton(OpenAutomaton):
    """What a machine over words 0 to W, W for any that the reference lacks, gives to the words that labels spell.

    A state is one of that machine, and the node of the word that is being spelt. What a word would do to the machine
    is the same for most words: a node that begins none that does something else is as good as the last node, N. Such a
    word is counted at once, so that a state with node N has its word behind it and waits for the boundary.

    Args:
        words: the machine over words.
        reader: how labels spell them.
        max_states: raise `TooManyStatesError` rather than have more.
    """

    def __init__(self, words: OpenAutomaton, reader: Reader, max_states: int) -> None:
        super().__init__(reader.class_of, len(reader.column), max_states)
        self._words, self._reader = words, reader
        self._lost, self._other = len(reader.word) - 1, len(reader.begins)
        self._places = np.zeros((2, len(self.final)), np.int64)  # of each state that of the machine, and the node
        # The state of each pair: -1 where it has no number yet, -2 where the node is as good as the last one.
        self._numbers = np.zeros((0, len(reader.word)), np.int32)
        start = np.zeros(1, np.int64)
        self._look(start)
        self._number(start, start)

    @property
    def num_bytes(self) -> int:
        r = self._reader
        tables = (self._places, self._numbers, r.column, r.crosses, r.between, r.last, r.step, r.word, r.begins)
        return super().num_bytes + self._words.num_bytes + sum(x.nbytes for x in tables)

    def _read(self, inner: Ints, words: Ints) -> tuple[Ints, Floats]:
        return self._words.follow(inner, self._words.class_of[words])

    def _look(self, inner: Ints) -> None:
        """Find the nodes that matter in states of the machine over words that were not there before."""
        first, count = len(self._numbers), int(inner.max(initial=-1)) + 1
        if first >= count:
            return
        new = np.arange(first, count)
        states, every = np.repeat(new, self._other + 1), np.tile(np.arange(self._other + 1), len(new))
        target, weight = (x.reshape(len(new), -1) for x in self._read(states, every))
        matters = (target != target[:, -1:]) | (weight != weight[:, -1:])
        numbers = np.where(matters[:, :-1] @ self._reader.begins > 0, -1, -2).astype(np.int32)
        numbers[:, [0, self._lost]] = -1
        self._numbers = np.concatenate([self._numbers, numbers])

    def _number(self, inner: Ints, node: Ints) -> Ints:
        """The states of these pairs, new ones among them."""
        found = self._numbers[inner, node]
        new = found < 0
        if new.any():
            keys = np.unique(inner[new] * len(self._reader.word) + node[new])
            before, total = self.num_states, self.num_states + len(keys)
            self._check_size(total)
            self._grow(total)
            self._places = np.ascontiguousarray(grown(self._places.T, len(self.final)).T)
            places = np.stack(np.divmod(keys, len(self._reader.word)))
            self._places[:, before:total] = places
            self._numbers[places[0], places[1]] = np.arange(before, total)
            self.final[before:total] = self._final(*places)
            self.num_states = total
            found = self._numbers[inner, node]
        return found.astype(np.int64)

    def _final(self, inner: Ints, node: Ints) -> Floats:
        """A word under way counts as one that ends."""
        inner, weight, spelling = inner.copy(), np.zeros(len(inner)), (node > 0) & (node < self._lost)
        inner[spelling], weight[spelling] = self._read(inner[spelling], self._reader.word[node[spelling]])
        ends: Floats = weight + self._words.final[inner]
        return ends

    def _expand(self, states: Ints, classes: Ints) -> None:
        r, lost = self._reader, self._lost
        inner, node = self._places[:, states]
        weight, crosses = np.zeros(len(states)), r.crosses[classes] > 0

        def read(which: Ints, words: Ints) -> None:
            inner[which], added = self._read(inner[which], words)
            weight[which] += added

        behind = node == lost  # the word was counted when it was lost
        node = r.step[node, r.column[classes]]
        ended = np.flatnonzero(crosses & ~behind & (node > 0))
        read(ended, r.word[node[ended]])
        for i, words in enumerate(r.whole):
            which = np.flatnonzero(r.between[classes] == i) if words else classes[:0]
            for word in words if len(which) else ():
                read(which, np.full(len(which), word))
        node = np.where(crosses, r.last[classes], node)
        self._look(inner)
        losing = np.flatnonzero((self._numbers[inner, node] == -2) | ((node == lost) & (crosses | ~behind)))
        read(losing, np.full(len(losing), self._other))
        self._look(inner)
        node[losing] = lost
        self.next_state[states, classes] = self._number(inner, node)
        self.weights[states, classes] = weight

    def losses_to_go(self, states: Ints, length: int) -> tuple[Floats, Floats]:
        """Those of any number of words that so many labels can end, the one under way among them."""
        inner = self._places[0, states]
        most = 1 + length * (1 + max(map(len, self._reader.whole)))
        bounds = [self._words.losses_to_go(inner, words) for words in range(most + 1)]
        least, highest = (np.stack(x) for x in zip(*bounds, strict=True))
        return least.min(0), highest.max(0)
