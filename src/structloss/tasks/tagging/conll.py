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
    numbers: tuple[int, ...] = field(default=(), repr=False)  # of each token's line in the file

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
    numbers: list[int] = []
    tabs, width, first = False, 0, 0

    def finish() -> None:
        if tokens:
            sentences.append(Sentence(tuple(tokens), tuple(comments), tuple(lines), tuple(numbers)))
        for collected in (tokens, comments, lines, numbers):
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
        lines.append(line)
        if not (width == 10 and tabs and ("-" in columns[0] or "." in columns[0])):
            tokens.append(columns)
            numbers.append(number)
    finish()
    if not sentences:
        raise DataError(f"{path}, line 1: got no token at all, but wanted tagged text in columns")
    return sentences


def written(sentence: Sentence, column: int, labels: Sequence[str], more: Sequence[str] | None = None) -> Iterable[str]:
    """The lines of a sentence with other labels in a column, or with labels in one more column, as they were read.

    What there is `more` of each token stands in one more column; in CoNLL-U, which has ten, in MISC as Marginals=.
    """
    separator = "\t" if sentence.lines and "\t" in sentence.lines[0] else " "
    yield from sentence.comments
    following = iter(zip(labels, more if more is not None else labels, strict=True))
    for line in sentence.lines:
        columns = line.split(separator) if separator == "\t" else line.split()
        conllu = len(columns) == 10 and separator == "\t"
        if not (conllu and ("-" in columns[0] or "." in columns[0])):
            label, last = next(following)
            columns[column : column + 1] = [label]  # one more where there was none
            if more is not None and conllu:
                columns[9] = f"{'' if columns[9] == '_' else columns[9] + '|'}Marginals={last}"
            elif more is not None:
                columns.append(last)
        yield separator.join(columns)
    yield ""
