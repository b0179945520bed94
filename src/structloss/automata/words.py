"""WordAutomaton: a machine over words that reads what labels spell, through a trie of the reference's words."""

from typing import NamedTuple

import numpy as np

from structloss.automata.open import Floats, Ints, OpenAutomaton, bits, grown


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
    first: Ints  # (N + 1,), the first of the words that begin with a node, in the order of their numbers,
    beyond: Ints  # (N + 1,), and the one behind the last of them


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

    def __init__(self, words: OpenAutomaton, reader: Reader, max_states: int) -> None:
        super().__init__(reader.class_of, len(reader.column), max_states)
        self._words, self._reader = words, reader
        self._lost, self._other = len(reader.word) - 1, int(words.num_labels) - 1
        self._pair = np.zeros((0, len(reader.word)), np.int64)  # of each state of `words` and node; -1: as good as N
        self._pairs = np.zeros((2, 0), np.int64)  # of each pair the state and the node, of those that are one the first
        self._state = np.zeros(0, np.int64)  # of each pair, -1 where nobody has reached it
        self._cost = np.zeros(0)  # of a word that the reference lacks, in each state of `words`
        self._same: dict[tuple[int, bytes], int] = {}
        self._places = np.zeros((len(self.final), 2), np.int64)  # of each state that of `words`, and the node
        self._enter(np.zeros(1, np.int64), np.zeros(1, np.int64))

    @property
    def num_bytes(self) -> int:
        same = sum(150 + len(key) for _, key in self._same)  # of a dict's entry, a tuple and its parts
        tables = (self._pair, self._pairs, self._state, self._cost, self._places, *self._reader[:6], *self._reader[7:])
        return super().num_bytes + self._words.num_bytes + same + sum(x.nbytes for x in tables)

    def _look(self, inner: Ints) -> None:
        """Find the pairs of states of `words` that were not looked at before."""
        begun, count = len(self._pair), int(inner.max(initial=-1)) + 1
        if begun >= count:
            return
        r, new, every = self._reader, np.arange(begun, count), self._words.class_of
        target, weight = self._words.follow(np.repeat(new, len(every)), np.tile(every, len(new)))
        target, weight = target.reshape(len(new), -1), weight.reshape(len(new), -1)
        outcome = np.stack([target, bits(weight - weight[:, -1:])], 2)  # (m, W + 1, 2)
        matters = (outcome != outcome[:, -1:]).any(2)
        matter = np.concatenate([np.zeros((len(new), 1), np.int64), np.cumsum(matters, 1)], 1)  # of the words before
        alive = matter[:, r.beyond] > matter[:, r.first]
        alive[:, 0] = alive[:, self._lost] = False
        pair = np.full(alive.shape, -1)
        pair[:, [0, self._lost]] = len(self._state) + np.arange(2 * len(new)).reshape(-1, 2)
        found = [np.stack([np.repeat(new, 2), np.tile([0, self._lost], len(new))])]
        total = len(self._state) + 2 * len(new)
        fresh: list[tuple[int, int]] = []
        size = 2 * outcome.itemsize
        for i, own in enumerate(outcome):
            does = own.tobytes()
            for node in np.flatnonzero(alive[i]).tolist():
                words = does[size * r.first[node] : size * r.beyond[node]]
                number = self._same.setdefault((node, words + does[-size:]), total + len(fresh))
                if number == total + len(fresh):
                    fresh.append((begun + i, node))
                pair[i, node] = number
        found.append(np.array(fresh, np.int64).reshape(-1, 2).T)
        self._pair = np.concatenate([self._pair, pair])
        self._pairs = np.concatenate([self._pairs, *found], 1)
        self._state = np.concatenate([self._state, np.full(2 * len(new) + len(fresh), -1)])
        self._cost = np.concatenate([self._cost, weight[:, -1]])

    def _enter(self, inner: Ints, node: Ints) -> Ints:
        """The states of these pairs, new ones among them."""
        self._look(inner)
        pairs = self._pair[inner, node]
        found = self._state[pairs]
        if (found < 0).any():
            new = np.unique(pairs[found < 0])
            before, total = self.num_states, self.num_states + len(new)
            self._check_size(total)
            self._grow(total)
            self._places = grown(self._places, len(self.final))
            self._places[before:total] = self._pairs[:, new].T
            self._state[new] = np.arange(before, total)
            self.final[before:total] = self._final(*self._pairs[:, new])
            self.num_states = total
            found = self._state[pairs]
        return found

    def _final(self, inner: Ints, node: Ints) -> Floats:
        """A word under way ends there."""
        under_way = (node > 0) & (node < self._lost)
        inner, weight = inner.copy(), np.zeros(len(inner))
        inner[under_way], weight[under_way] = self._ended(inner[under_way], self._reader.word[node[under_way]])
        ends: Floats = weight + self._words.final[inner]
        return ends

    def _ended(self, inner: Ints, words: Ints) -> tuple[Ints, Floats]:
        """Where these words lead, and what they cost more than one that the reference lacks."""
        target, weight = self._words.follow(inner, self._words.class_of[words])
        return target, weight - self._cost[inner]

    def _expand(self, states: Ints, classes: Ints) -> None:
        r, lost = self._reader, self._lost
        inner, before = self._places[states].T.copy()
        crosses, weight = r.crosses[classes] > 0, np.zeros(len(states))

        def ended(where: Ints, words: Ints) -> None:
            inner[where], more = self._ended(inner[where], words)
            weight[where] += more
            self._look(inner[where])

        node = r.step[before, r.column[classes]]
        begun = (before == 0) & (node > 0)
        weight[begun] += self._cost[inner[begun]]
        here = np.flatnonzero(crosses & (before < lost) & (node > 0))
        ended(here, r.word[node[here]])
        for i, words in enumerate(r.whole):
            here = np.flatnonzero(r.between[classes] == i) if words else classes[:0]
            for word in words if len(here) else ():
                weight[here] += self._cost[inner[here]]
                ended(here, np.full(len(here), word))
        node = np.where(crosses, r.last[classes], node)
        begun = crosses & (node > 0)
        weight[begun] += self._cost[inner[begun]]
        counted = (before == lost) & ~crosses  # its word was, when it was lost
        here = np.flatnonzero(((node == lost) | (self._pair[inner, node] < 0)) & ~counted)
        ended(here, np.full(len(here), self._other))
        node[here] = lost
        self.next_state[states, classes] = self._enter(inner, node)
        self.weights[states, classes] = weight

    def losses_to_go(self, states: Ints, length: int) -> tuple[Floats, Floats]:
        """Those of any number of words that so many labels can end, the one under way among them."""
        inner, node = self._places[states].T
        most = 1 + length * (1 + max(map(len, self._reader.whole)))
        bounds = [self._words.losses_to_go(inner, words) for words in range(most + 1)]
        least, highest = (np.stack(x) for x in zip(*bounds, strict=True))
        counted = np.where((node > 0) & (node < self._lost), self._cost[inner], 0.0)
        return least.min(0) - counted, highest.max(0) - counted

    def _losses_within(self, first: int, length: int) -> tuple[Floats, Floats]:
        inner, node = self._places[first : self.num_states].T
        least, most = self._words.losses_within(1 + length * (1 + max(map(len, self._reader.whole))))
        counted = np.where((node > 0) & (node < self._lost), self._cost[inner], 0.0)
        return least[inner] - counted, most[inner] - counted
