"""Tagged text in columns: CoNLL's, one token a line and an empty line between sentences, and CoNLL-U."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from structloss.tasks.text import numbered_lines
from structloss.training.task import DataError


@dataclass(frozen=True)
class Sentence:
    """The columns of each token, and the lines of comments before them."""

    tokens: tuple[tuple[str, ...], ...]
    comments: tuple[str, ...] = ()
    lines: tuple[str, ...] = field(default=(), repr=False)  # of the file, with those that are no token of its own
    first_line: int = 0  # its number in the file

    def column(self, index: int) -> list[str]:
        """One column."""
        return [token[index] for token in self.tokens]


def read(path: Path | str) -> list[Sentence]:
    """The sentences of a file; with ten columns between tabs it is CoNLL-U.

    Columns are separated by tabs where the first token has one, else by white space. Every token has as many columns as
    the first. In CoNLL-U, lines of multi-word tokens (1-2) and of empty nodes (1.1) are kept but are no tokens.
    """
    path = Path(path)
    sentences: list[Sentence] = []
    tokens: list[tuple[str, ...]] = []
    comments: list[str] = []
    lines: list[str] = []
    tabs, width, first, begin = False, 0, 0, 0

    def finish() -> None:
        if tokens:
            sentences.append(Sentence(tuple(tokens), tuple(comments), tuple(lines), begin))
        for collected in (tokens, comments, lines):
            collected.clear()

    for number, line in numbered_lines(path):
        if not line.strip():
            finish()
            continue
        if line.startswith("#") and not tokens and (tabs or "\t" not in line) and line[1:2] in (" ", ""):
            comments.append(line)
            continue
        if not width:
            tabs, first = "\t" in line, number
        columns = tuple(line.split("\t")) if tabs else tuple(line.split())
        if not width:
            width = len(columns)
        if len(columns) != width:
            raise DataError(f"{path}, line {number}: got {len(columns)} columns, but line {first} has {width}")
        begin = begin if tokens else number
        lines.append(line)
        if not (width == 10 and tabs and ("-" in columns[0] or "." in columns[0])):
            tokens.append(columns)
    finish()
    if not sentences:
        raise DataError(f"{path}, line 1: got no token at all, but wanted tagged text in columns")
    return sentences


def written(sentence: Sentence, column: int, labels: Sequence[str]) -> Iterable[str]:
    """The lines of a sentence with other labels in a column, as they were read."""
    separator = "\t" if sentence.lines and "\t" in sentence.lines[0] else " "
    yield from sentence.comments
    following = iter(labels)
    for line in sentence.lines:
        columns = line.split(separator) if separator == "\t" else line.split()
        if not (len(columns) == 10 and separator == "\t" and ("-" in columns[0] or "." in columns[0])):
            columns[column] = next(following)
        yield separator.join(columns)
    yield ""
