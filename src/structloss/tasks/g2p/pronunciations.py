"""Words and their phones: one word a line, a tab, its phones between spaces."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from structloss.text import DataError, columns, numbered_lines


@dataclass(frozen=True)
class Pronunciation:
    """A word and its phones, of which there are none in a list of bare words."""

    word: str
    phones: tuple[str, ...]
    line: int


def read(path: Path) -> list[Pronunciation]:
    """The lines of a file, empty ones left out. Either every word has phones, or none has: then it is a list of words.

    A word with several pronunciations has several lines.
    """
    found: list[Pronunciation] = []
    width = 0
    for number, line in numbered_lines(path):
        if not columns(line):
            continue
        word, *rest = line.split("\t")
        width = width or 1 + len(rest)
        if 1 + len(rest) != width or width > 2:
            first = found[0].line if found else number
            wanted = "a word, a tab and its phones" if width != 1 else f"a bare word as in line {first}"
            raise DataError(f"{path}, line {number}: got {1 + len(rest)} columns, but wanted {wanted}")
        word, phones = word.strip(" "), tuple(columns(rest[0])) if rest else ()
        if not word:
            raise DataError(f"{path}, line {number}: got no word before the tab")
        if rest and not phones:
            raise DataError(f"{path}, line {number}: got no phones for {word!r}")
        found.append(Pronunciation(word, phones, number))
    if not found:
        raise DataError(f"{path}, line 1: got no word at all, but wanted words, tabs and phones")
    return found


def written(word: str, phones: Sequence[str]) -> str:
    """The line of a word."""
    return f"{word}\t{' '.join(phones)}"
