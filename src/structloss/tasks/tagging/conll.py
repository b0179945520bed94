"""Tagged text in columns: CoNLL's, one token a line and an empty line between sentences, and CoNLL-U."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from structloss.text import DataError, columns, numbered_lines

_CONLLU_COLUMNS = 10
_FIRST_ID = re.compile(r"1|1-[0-9]{1,9}|0\.1")
_ID = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})|\.[0-9]{1,9})?")
_SPACES = " \t"  # between columns; other spaces, as the no-break space, are letters of a token


class Layout(NamedTuple):
    """How the lines of a file are cut into columns."""

    tabs: bool  # at tabs only, so that a column may hold spaces or be empty; else at runs of spaces and tabs
    width: int  # how many columns a token has
    conllu: bool
    shown_by: str  # whatever says how wide it is

    def cut(self, line: str) -> list[str]:
        """The columns of a line."""
        return line.split("\t") if self.tabs else columns(line)


@dataclass(frozen=True)
class Sentence:
    """The columns of each token, and all the lines of the file that belong to the sentence, in its layout.

    The lines are also those of comments, of what is no token of its own in CoNLL-U, and the empty ones that follow.
    """

    tokens: tuple[tuple[str, ...], ...]
    layout: Layout
    lines: tuple[str, ...] = field(repr=False)
    places: tuple[int, ...] = field(repr=False)  # of each token's line among the lines
    first: int = field(repr=False)  # the number of the first line in the file

    def column(self, index: int) -> list[str]:
        """One column."""
        return [token[index] for token in self.tokens]

    @property
    def numbers(self) -> list[int]:
        """Of each token's line in the file."""
        return [self.first + place for place in self.places]


def read(path: Path | str) -> list[Sentence]:
    """The sentences of a file. Every line is a token, a comment before a sentence, or empty, and belongs to a sentence.

    The first line without # shows the columns: they stand between tabs if it has one, else between spaces and tabs, and
    every token has as many. A line "# ..." or "#" is a token if it has that many, else it is a comment; between spaces
    it is a comment also if it has a =, as "# id = 3" has. What begins with # and a letter is a token.

    A file is CoNLL-U if that first line has ten columns between tabs and an id that CoNLL-U can begin with, or if it is
    named .conllu. Then every line with # is a comment, ids must count 1, 2, 3, ..., and lines of multi-word tokens
    (1-2) and of empty nodes (1.1) are kept but are no tokens.
    """
    path = Path(path)
    content = list(numbered_lines(path))
    layout = _layout(path, content)
    sentences: list[Sentence] = []
    lines: list[str] = []
    tokens: list[tuple[str, ...]] = []
    places: list[int] = []
    first, ended, last_id = 1, False, 0

    def finish() -> None:
        sentences.append(Sentence(tuple(tokens), layout, tuple(lines), tuple(places), first))
        for collected in (lines, tokens, places):
            collected.clear()

    for number, line in content:
        empty = _is_empty(line)
        if ended and not empty:
            finish()
            first, ended, last_id = number, False, 0
        lines.append(line)
        if empty:
            ended = bool(tokens)
            continue
        if (layout.conllu or not tokens) and _is_comment(line, layout):
            continue
        cut = layout.cut(line)
        if len(cut) != layout.width:
            raise DataError(f"{path}, line {number}: got {len(cut)} columns, but {layout.shown_by} has {layout.width}")
        if layout.conllu:
            word = _is_word(cut[0], last_id, f"{path}, line {number}")
            last_id += word
            if not word:
                continue
        tokens.append(tuple(cut))
        places.append(len(lines) - 1)
    if tokens:
        finish()
    elif sentences:  # comments after the last sentence
        last = sentences.pop()
        sentences.append(Sentence(last.tokens, layout, (*last.lines, *lines), last.places, last.first))
    if not sentences:
        got = "only lines that may be comments" if any(not _is_empty(line) for line in lines) else "no token at all"
        raise DataError(f"{path}, line 1: got {got}, but wanted tagged text in columns")
    return sentences


def _layout(path: Path, content: Sequence[tuple[int, str]]) -> Layout:
    """That of the first line which can be nothing but a token, or, where all may be comments, of the first at all."""
    filled = [(number, line) for number, line in content if not _is_empty(line)]
    certain = (row for row in filled if not row[1].startswith("#"))
    likely = (row for row in filled if not _looks_like_a_comment(row[1]))
    number, line = next(chain(certain, likely), (1, ""))
    tabs = "\t" in line
    cut = line.split("\t") if tabs else columns(line)
    named = path.name.removesuffix(".gz").endswith(".conllu")
    if named or (tabs and len(cut) == _CONLLU_COLUMNS and _FIRST_ID.fullmatch(cut[0])):
        return Layout(True, _CONLLU_COLUMNS, True, "CoNLL-U")
    return Layout(tabs, len(cut), False, f"line {number}")


def _is_empty(line: str) -> bool:
    return not line.strip(_SPACES)


def _looks_like_a_comment(line: str) -> bool:
    return line.startswith("# ") or line == "#"


def _is_comment(line: str, layout: Layout) -> bool:
    """Whether a line before a sentence is no token."""
    if layout.conllu:
        return line.startswith("#")
    if not _looks_like_a_comment(line):
        return False
    return (not layout.tabs and "=" in line) or len(layout.cut(line)) != layout.width


def _is_word(identifier: str, last: int, where: str) -> bool:
    """Whether a line of CoNLL-U is a word of its own; if not, it is a multi-word token or an empty node."""
    match = _ID.fullmatch(identifier)
    number = int(match[1]) if match else -1
    if match and match[0] == str(last + 1):
        return True
    if match and "-" in match[0] and number == last + 1 and int(match[2]) >= number:
        return False
    if match and "." in match[0] and number == last:
        return False
    raise DataError(f"{where}: got the id {identifier[:40]!r}, but CoNLL-U wants {last + 1} here")


def written(
    sentence: Sentence, answers: Mapping[int, Sequence[str]], more: Sequence[str] | None = None
) -> Iterable[str]:
    """The lines of a sentence with other answers in some columns, or in one more column; all else as it was.

    What there is `more` of each token stands in one more column; in CoNLL-U, which has ten, in MISC as Marginals=.
    """
    for label in () if sentence.layout.tabs else chain.from_iterable(answers.values()):
        if columns(label) != [label]:
            raise ValueError(f"labels: got {label!r}, which cannot stand in a file with spaces between columns")
    extra = [None] * len(sentence.places) if more is None else more
    rows = zip(*answers.values(), strict=True)
    found = {p: (dict(zip(answers, r, strict=True)), e) for p, r, e in zip(sentence.places, rows, extra, strict=True)}
    for place, line in enumerate(sentence.lines):
        yield _relabelled(line, sentence.layout, *found[place]) if place in found else line
    if not _is_empty(sentence.lines[-1]):
        yield ""


def _relabelled(line: str, layout: Layout, answers: Mapping[int, str], more: str | None) -> str:
    """A token's line with its own separators; new columns follow a tab if it has one, else a space."""
    body = line if layout.tabs else line.strip(_SPACES)
    before, _, after = line.partition(body)
    parts = re.split("(\t)" if layout.tabs else "([ \t]+)", body)  # columns, and between them separators
    separator = "\t" if "\t" in body else " "
    for column, label in answers.items():
        if 2 * column < len(parts):
            parts[2 * column] = label
        else:
            parts += [separator, label]
    if more is not None and layout.conllu:
        misc = parts[-1]
        parts[-1] = f"{'' if misc == '_' else misc + '|'}Marginals={more}"
    elif more is not None:
        parts += [separator, more]
    return before + "".join(parts) + after
