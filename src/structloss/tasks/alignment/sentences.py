"""English sentences without end, for voices to read: a small grammar of the past tense, drawn by seed."""

import random
from collections.abc import Callable

from structloss.tasks.alignment import vocabulary as words

SHORTEST, LONGEST = 5, 12  # words
_MOST = 1_000_000


def sentences(n: int, seed: int) -> list[str]:
    """n sentences of 5 to 12 words, no two alike; the first ones of a seed are the same for every n.

    >>> sentences(2, seed=0) == sentences(3, seed=0)[:2]
    True
    """
    if not 0 <= n <= _MOST:
        raise ValueError(f"n: got {n}, but wanted 0 to {_MOST}")
    grammar, found = _Grammar(random.Random(seed)), dict[str, None]()
    while len(found) < n:
        sentence = grammar.sentence()
        if SHORTEST <= len(sentence.split()) <= LONGEST:
            found[sentence] = None
    return list(found)


class _Grammar:
    """One method a phrase; each draws its parts."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self._pick = generator.choice

    def _chance(self, probability: float) -> bool:
        return self._generator.random() < probability

    def sentence(self) -> str:
        kinds: tuple[Callable[[], str], ...] = (
            self._statement, self._statement, self._statement, self._timed, self._joined, self._reported,
            self._question, self._there, self._relative,
        )  # fmt: skip
        text = self._pick(kinds)()
        return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")

    def _statement(self) -> str:
        return f"{self._subject()} {self._predicate()}"

    def _timed(self) -> str:
        return f"{self._pick(words.WHEN)}, {self._statement()}"

    def _joined(self) -> str:
        word = self._pick(("and", "but", "because", "while", "so", "although", "until"))
        return f"{self._subject()} {self._short()} {word} {self._subject()} {self._short()}"

    def _reported(self) -> str:
        return f"{self._subject()} {self._pick(words.SAID)} that {self._subject()} {self._short()}"

    def _question(self) -> str:
        word = self._pick(("why did", "when did", "where did", "how did", "did"))
        return f"{word} {self._subject()} {self._pick(words.DO)} {self._object()}?"

    def _there(self) -> str:
        return f"there was {self._noun_phrase(words.THINGS + words.ANIMALS, ('a',))} {self._place()}"

    def _relative(self) -> str:
        return f"{self._noun_phrase(words.PEOPLE, ('the',))} who {self._short()} {self._short()}"

    def _predicate(self) -> str:
        text = self._short()
        if self._chance(0.5):
            text += " " + self._place()
        if self._chance(0.3):
            text += " " + self._pick(words.WHEN)
        return text

    def _short(self) -> str:
        if self._chance(0.35):
            return self._pick(words.WENT) + (" " + self._pick(words.HOW) if self._chance(0.5) else "")
        before = self._pick(words.HOW[:11]) + " " if self._chance(0.15) else ""
        return f"{before}{self._pick(words.DID)} {self._object()}"

    def _subject(self) -> str:
        if self._chance(0.2):
            return self._pick(("he", "she", "they", "we", "I", "you", "nobody", "everyone", "somebody"))
        if self._chance(0.2):
            return self._pick(words.NAMES)
        return self._noun_phrase(words.PEOPLE + words.ANIMALS, ("the", "the", "a", "my", "our", "his", "her", "their"))

    def _object(self) -> str:
        if self._chance(0.12):
            return f"{self._pick(words.NUMBERS)} {_plural(self._pick(words.THINGS))}"
        return self._noun_phrase(words.THINGS, ("the", "the", "a", "a", "this", "that", "my", "your", "his", "her"))

    def _place(self) -> str:
        return f"{self._pick(words.PREPOSITIONS)} the {self._pick(words.WHERE)}"

    def _noun_phrase(self, nouns: list[str], determiners: tuple[str, ...]) -> str:
        noun = self._pick(nouns)
        if self._chance(0.4):
            noun = f"{self._pick(words.ADJECTIVES)} {noun}"
        determiner = self._pick(determiners)
        if determiner == "a" and noun[0] in "aeiou" and not noun.startswith("us"):  # a useful, a usual
            determiner = "an"
        return f"{determiner} {noun}"


def _plural(noun: str) -> str:
    irregular = {"knife": "knives", "leaf": "leaves", "loaf": "loaves"}
    if noun in irregular:
        return irregular[noun]
    if noun.endswith(("s", "x", "ch", "sh")) or noun in ("potato", "tomato"):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"
