"""What counts as a letter, and how much a letter may write: what explains words best that were held out."""

import math
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence

from structloss.tasks.g2p.inventory import ROUNDS, Phones, Word, counted, span_of

SPELLINGS = ("whole", "parts")
LONGEST = 8  # phones of a letter
_WORDS = 500  # are looked at
_HELD = 5  # every so many words one is held out
_BACKED = 0.5  # how many sightings of a letter the guess is worth that knows nothing of it
_GAIN = 0.02  # nats a phone: what a more complicated set-up has to gain
_IN_VAIN = 2  # after so many longer ones that gain nothing no longer ones are tried


def spelled(word: Sequence[str], spelling: str) -> tuple[str, ...]:
    """The letters of a word as they are, or taken apart: an accent is a letter of its own, and each part of a Hangul
    syllable (Unicode's canonical decomposition, NFD).

    Example:
        >>> spelled("é한", "whole"), len(spelled("é한", "parts"))
        (('é', '한'), 5)
    """
    return tuple(word) if spelling == "whole" else tuple(unicodedata.normalize("NFD", "".join(word)))


def choose(words: Sequence[Word], spelling: str = "auto", longest: int = 0) -> tuple[str, int]:
    """How to spell words, and how many phones a letter may write; what is given stays as it is.

    A model without context, each letter by itself, is estimated on four fifths of the words by EM for each set-up, and
    explains the rest: a letter that writes five phones wants a `longest` of five, a syllable that no other word has
    wants to be taken apart. Of two set-ups the simpler is taken unless the other explains a phone better by 0.02 nats.

    Example:
        >>> letters = {"m": ("M", "A", "N", "I"), "t": ("T", "U")}
        >>> choose([(w, sum((letters[x] for x in w), ())) for w in ("mt", "tm", "tmm", "ttm", "mmt", "t", "m") * 3])
        ('whole', 4)
    """
    chosen = words[:: max(1, len(words) // _WORDS)]
    best, found = -math.inf, ("whole", 2)
    for own in SPELLINGS if spelling == "auto" else (spelling,):
        seen = [(spelled(letters, own), phones) for letters, phones in chosen]
        if own != "whole" and spelling == "auto" and all(a == b for (a, _), (b, _) in zip(seen, chosen, strict=True)):
            continue
        vain = 0
        for span, value in _explained(seen, (longest,) if longest else range(2, LONGEST + 1)):
            vain = 0 if value > best + _GAIN else vain + 1
            if vain == 0:
                best, found = value, (own, span)
            elif vain == _IN_VAIN:
                break
    return found


def _explained(words: Sequence[Word], longest: Sequence[int]) -> Iterator[tuple[int, float]]:
    """For each `longest` the log-probability of a held-out phone, until there are no longer strings to be had."""
    held, seen = words[::_HELD], [word for i, word in enumerate(words) if i % _HELD] or words
    phones = sum(len(phones) for _, phones in held)
    for span in longest:
        if span > 2 and span > max(len(phones) for _, phones in words):
            return
        model = _estimated(seen, span)
        yield span, sum(_log_probability(word, span, model) for word in held) / max(1, phones)


class _Model:
    """p(string | letter), from counts and a guess that knows nothing of the letter."""

    def __init__(self, counts: dict[tuple[str, Phones], float], words: Sequence[Word]) -> None:
        phones = sum(len(phones) for _, phones in words)
        mean = phones / max(1, sum(len(letters) for letters, _ in words))
        self._counts, self._totals = counts, defaultdict[str, float](float)
        for (letter, _), count in counts.items():
            self._totals[letter] += count
        self._more = mean / (1 + mean) / (1 + len({phone for _, phones in words for phone in phones}))
        self._end = 1 / (1 + mean)

    def __call__(self, letter: str, string: Phones) -> float:
        guess = self._end * self._more ** len(string)
        return (self._counts.get((letter, string), 0.0) + _BACKED * guess) / (self._totals.get(letter, 0.0) + _BACKED)


def _estimated(words: Sequence[Word], longest: int) -> _Model:
    spans, probability = [span_of(word, longest) for word in words], dict[tuple[str, Phones], float]()
    for _ in range(ROUNDS):
        counts = counted(words, spans, probability)
        model = _Model(counts, words)
        probability = {key: model(*key) for key in counts}
    return model


def _log_probability(word: Word, longest: int, model: _Model) -> float:
    """Of the phones of a word, given its letters: over all cuts."""
    letters, phones = word
    span, total = span_of(word, longest), 0.0
    row = [1.0] + [0.0] * len(phones)
    for letter in letters:
        row = [
            sum(row[i] * model(letter, phones[i:j]) for i in range(max(0, j - span), j + 1))
            for j in range(len(phones) + 1)
        ]
        scale = max(row)
        total += math.log(scale)
        row = [x / scale for x in row]
    return total + math.log(max(row[-1], 1e-300))
