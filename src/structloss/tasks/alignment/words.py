"""From the words of a transcript to phones, through the dictionary that pocketsphinx carries."""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from structloss.tasks.alignment.phones import ARPABET, SILENCE
from structloss.tasks.g2p import dictionary
from structloss.text import DataError, columns, numbered_lines

_PAUSE = re.compile('[.,;:!?()"\u2013\u2014]|--')
_TOKEN = re.compile(f"a+(?:'a+)*'?|{_PAUSE.pattern}")  # where every letter is an a
_APOSTROPHE = "\u2019"


@lru_cache(maxsize=1)
def _pronunciations() -> dict[str, tuple[str, ...]]:
    """Every word with its first pronunciation."""
    found: dict[str, tuple[str, ...]] = {}
    for _, line in numbered_lines(dictionary.path()):
        word, *phones = line.split()
        found.setdefault(word, tuple(phone.lower() for phone in phones))
    return found


def phones_of(text: str, where: str) -> tuple[str, ...]:
    """The phones of a text, silence at both ends and where punctuation lets a speaker pause.

    Words that the dictionary lacks, and numbers in digits, are an error that names them all.

    Example:
        >>> phones_of("Hello, you.", "text")
        ('sil', 'hh', 'ah', 'l', 'ow', 'sil', 'y', 'uw', 'sil')
    """
    known, unknown = _pronunciations(), []
    phones: list[str] = [SILENCE]
    for token in _tokens(text.replace(_APOSTROPHE, "'")):
        if _PAUSE.fullmatch(token):
            if phones[-1] != SILENCE:
                phones.append(SILENCE)
        elif token.lower() in known:
            phones.extend(known[token.lower()])
        else:
            unknown.append(token)
    if unknown:
        raise DataError(f"{where}: the dictionary lacks {', '.join(map(repr, dict.fromkeys(unknown)))}")
    if len(phones) == 1:
        raise DataError(f"{where}: got no word")
    return tuple(phones) if phones[-1] == SILENCE else (*phones, SILENCE)


def _tokens(text: str) -> Iterator[str]:
    """Words and what lets a speaker pause. Digits, accents of their own and invisible joiners belong to words."""
    for match in _TOKEN.finditer("".join("a" if _is_spoken(letter) else letter for letter in text)):
        yield text[slice(*match.span())]


def _is_spoken(letter: str) -> bool:
    category = unicodedata.category(letter)
    return category[0] in "LMN" or category == "Cf"


def read(path: Path) -> tuple[str, ...]:
    """The phones of a transcript: a text file of phones if all of it is phones, else of words."""
    lines = [(number, line) for number, line in numbered_lines(path) if columns(line)]
    if not lines:
        raise DataError(f"{path}, line 1: got an empty transcript")
    tokens = [token.lower() for _, line in lines for token in columns(line)]
    if {*tokens} <= {*ARPABET, SILENCE}:
        return tuple(tokens)
    found: list[str] = []
    for number, line in lines:
        phones = phones_of(line, f"{path}, line {number}")
        found.extend(phones[1:] if found else phones)
    return tuple(found)
