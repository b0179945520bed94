"""WordErrors: the edit distance in words of what labels spell."""

from collections.abc import Sequence

import numpy as np

from structloss.automata.automaton import MAX_STATES
from structloss.automata.open import OpenAutomaton
from structloss.automata.pairs import ScaledAutomaton, unscaled
from structloss.automata.tropical import TropicalAutomaton
from structloss.automata.words import WordAutomaton
from structloss.losses.edit import EditDistance
from structloss.losses.machine import MachineLoss
from structloss.losses.references import String
from structloss.losses.spelling import Spelling


class WordErrors(MachineLoss, name="words"):
    r"""The edit distance in words of what labels spell, characters or pieces of words.

    .. math:: L(y, r) = \text{EditDistance}(\text{words}(y), \text{words}(r))

    Words are what stands between boundaries in the text that labels spell one after the other. It does not matter which
    labels spell a word; boundaries at the ends, or several in a row, make no empty words.

    Args:
        spelling: what labels 0, 1, ... spell: strings, of any length, or one string of characters. There may be one
            label more, CTC's blank, which is never written.
        boundary: what parts words, inside the spelling of labels: the space of characters, " ", or the mark with which
            pieces begin a word, as sentencepiece's "▁". By default "▁" where some label has it, else a space.
        substitution: the cost of a wrong word.
        insertion: the cost of a word that the reference lacks.
        deletion: the cost of a word that the answer lacks.
        cap: tell losses apart up to so much, L' = min(L, cap).
        normalize: divide by the number of the reference's words, or by 1 where it has none. The cap counts before that.
        max_states: raise `TooManyStatesError` rather than build a larger machine.
        window: no cap, but forget alignments of words that cost so much or more above the best one so far, as
            `EditDistance(window=...)` does. Best with a tolerance, on CTC.

    A state of the machine is one of the edit distance over words, and the beginning of a word of the reference that is
    being spelt and would not count as any other does. References must be known: -100 inside and sets are refused.

    Example:
        >>> import structloss as sl
        >>> characters = "abcdefghijklmnopqrstuvwxyz "
        >>> encode = lambda text: [characters.index(c) for c in text]
        >>> loss = sl.WordErrors(characters, boundary=" ")
        >>> loss([encode("the cat sat")], [encode("a cat  sat down")])
        tensor([2.])
        >>> pieces = ["▁the", "▁c", "▁ca", "at", "t", "▁"]
        >>> sl.WordErrors(pieces)([[0, 1, 3]], [[0, 2, 4]])  # both spell "the cat"
        tensor([0.])
    """

    def __init__(
        self,
        spelling: Sequence[str],
        boundary: str | None = None,
        substitution: float = 1.0,
        insertion: float = 1.0,
        deletion: float = 1.0,
        cap: float | None = None,
        normalize: bool = False,
        max_states: int = MAX_STATES,
        window: float | None = None,
    ) -> None:
        super().__init__(max_states)
        if not len(spelling):
            raise ValueError("spelling: got no labels, but wanted a string for each label")
        if not all(isinstance(text, str) for text in spelling):
            raise TypeError(f"spelling: got {spelling!r:.60}, but wanted a string for each label")
        if boundary is None:
            boundary = "▁" if any("▁" in text for text in spelling) else " "
        if not isinstance(boundary, str) or not boundary:
            raise ValueError(f"boundary: got {boundary!r}, but wanted what parts words, such as ' '")
        self.boundary, self._spelling = boundary, Spelling(spelling, boundary)
        self.words = EditDistance(
            substitution, insertion, deletion, cap, normalize=normalize, max_states=max_states, window=window
        )

    def __repr__(self) -> str:
        w = self.words
        kept = f"cap={w.cap}" if w.window is None else f"window={w.window}"
        return (
            f"WordErrors({len(self._spelling)} labels, boundary={self.boundary!r}, substitution={w.substitution}, "
            f"insertion={w.insertion}, deletion={w.deletion}, {kept}, normalize={w.normalize})"
        )

    def distance(self, y: String, reference: String) -> float:
        wanted = self._words(reference)
        number = {word: w for w, word in enumerate(sorted(set(wanted)))}
        answer = [number.get(word, len(number)) for word in self._spelling.words(y)]
        return self.words.distance(np.array(answer, np.int64), np.array([number[w] for w in wanted], np.int64))

    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        if num_labels > len(self._spelling) + 1:
            raise ValueError(f"spelling: got {len(self._spelling)} labels, but there are {num_labels}")
        wanted = self._words(reference)
        number = {word: w for w, word in enumerate(sorted(set(wanted)))}
        string = np.array([number[word] for word in wanted], np.int64)
        words, factor = unscaled(self.words.compile_open(string, len(number) + 1, absolute))
        assert isinstance(words, TropicalAutomaton)
        machine = WordAutomaton(words, self._spelling.reader(list(number), num_labels), self.max_states)
        return ScaledAutomaton(machine, factor) if self.words.normalize else machine

    def _words(self, reference: String) -> list[str]:
        """The reference's words."""
        if reference.ndim > 1 or (reference < 0).any():
            raise TypeError(
                "reference: got unknown labels (-100) or sets of labels, but WordErrors compares words that are known"
            )
        return self._spelling.words(reference)
