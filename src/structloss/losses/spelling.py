"""What labels spell, and where that passes from one word to the next."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from structloss.automata.open import Ints
from structloss.automata.words import Reader
from structloss.kernels.words import Trie
from structloss.losses.references import String

_BOUNDARY = "\0"
T = TypeVar("T", str, tuple[str, ...])


class Spelling:
    """The text of each label. Words are what stands between boundaries, which are inside labels."""

    def __init__(self, spelling: Sequence[str], boundary: str) -> None:
        self.labels = [text.replace(boundary, _BOUNDARY) for text in spelling]
        parts = [text.split(_BOUNDARY) for text in self.labels]
        # Of each label what comes before its first boundary, by number, and all that comes after it.
        heads = _numbered(["", *(head for head, *_ in parts)])
        tails = _numbered([(), *(tuple(tail) for _, *tail in parts)])
        self._heads, self._longest = heads, max(map(len, heads))
        self._head_of = np.array([heads[head] for head, *_ in parts], np.int64)
        self._tail_of = np.array([tails[tuple(tail)] for _, *tail in parts], np.int64)
        self._beginnings = {tail[0]: i for tail, i in tails.items() if len(tail) == 1}
        self._longer = [(tail, i) for tail, i in tails.items() if len(tail) > 1]
        self._tails = len(tails)

    def __len__(self) -> int:
        return len(self.labels)

    def words(self, string: String) -> list[str]:
        """The words that labels spell."""
        largest = int(string.max(initial=-1))
        if largest >= len(self):
            raise ValueError(f"spelling: got that of {len(self)} labels, but there are labels up to {largest}")
        text = "".join([self.labels[k] for k in string.tolist()])
        return [word for word in text.split(_BOUNDARY) if word]

    def reader(self, words: Sequence[str], num_labels: int) -> Reader:
        """How labels 0 to num_labels - 1 lead through a trie of different words, which are sorted.

        A label beyond those that spell something spells nothing. Cost: the characters of the words times those of a
        label, and the labels.
        """
        nodes: dict[str, int] = {"": 0}
        for word in words:
            for end in range(1, len(word) + 1):
                nodes.setdefault(word[:end], len(nodes))
        N, W, number = len(nodes), len(words), {word: w for w, word in enumerate(words)}
        first, beyond = np.zeros(N + 1, np.int64), np.zeros(N + 1, np.int64)
        for w, word in enumerate(words):
            beyond[[nodes[word[:end]] for end in range(len(word) + 1)]] = w + 1
        for w, word in reversed(list(enumerate(words))):
            first[[nodes[word[:end]] for end in range(len(word) + 1)]] = w
        spelt = np.full(N + 1, W)
        spelt[[nodes[word] for word in words]] = np.arange(W)

        # What some label begins with and leads from a node to a node: a column each, behind those of what leads
        # nowhere and of nothing.
        moves = [
            (nodes[text[:begin]], head, node)
            for text, node in nodes.items()
            for begin in range(max(0, len(text) - self._longest), len(text))
            if (head := self._heads.get(text[begin:])) is not None
        ]
        source, own, target = np.array(moves, np.int64).reshape(-1, 3).T
        used, place = np.unique(own, return_inverse=True)
        step = np.full((N + 1, 2 + len(used)), N)
        step[:, 1] = np.arange(N + 1)
        step[source, 2 + place.reshape(-1)] = target
        columns = np.zeros(len(self._heads), np.int64)
        columns[0], columns[used] = 1, 2 + np.arange(len(used))

        # Of each tail the words in it, and the node where it ends.
        last, between = np.full(self._tails, N), np.zeros(self._tails, np.int64)
        whole: dict[tuple[int, ...], int] = {(): 0}
        last[0] = 0
        for text, node in nodes.items():
            if text in self._beginnings:
                last[self._beginnings[text]] = node
        for tail, i in self._longer:
            *inside, ending = tail
            last[i] = nodes.get(ending, N)
            between[i] = whole.setdefault(tuple(number.get(word, W) for word in inside if word), len(whole))

        crosses = (np.arange(self._tails) > 0).astype(np.int64)
        acts = np.stack([columns[self._head_of], *(x[self._tail_of] for x in (crosses, between, last))])
        silent = np.repeat([[1], [0], [0], [0]], max(0, num_labels - len(self)), 1)
        nowhere = np.zeros((4, 1), np.int64)  # what no label need spell: it leads to N without a boundary
        acts = np.concatenate([acts, silent], 1)[:, :num_labels]
        (column, crosses, between, last), class_of = _distinct(np.concatenate([acts, nowhere], 1))
        begin = np.cumsum([0, *map(len, whole)]).astype(np.int64)
        all_whole = np.array([word for sequence in whole for word in sequence], np.int64)
        trie = Trie(column, crosses, between, last, step, spelt, first, beyond, all_whole, begin, int(class_of[-1]))
        return Reader(class_of[:-1].copy(), trie)


def _numbered(texts: Sequence[T]) -> dict[T, int]:
    """The different ones, numbered in their order."""
    return {text: i for i, text in enumerate(dict.fromkeys(texts))}


def _distinct(columns: Ints) -> tuple[Ints, Ints]:
    """The different columns (R, C) of numbers (R, K) of at least 0, and which of them each one is."""
    key = np.ravel_multi_index(tuple(columns), tuple(columns.max(1) + 1))
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return np.ascontiguousarray(columns[:, first]), which.reshape(-1)
