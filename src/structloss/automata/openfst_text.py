"""OpenFst's (AT&T's) text of machines: the lines, states, weights and labels that transducers and acceptors share."""

import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from structloss.text import DataError, columns, numbered_lines

MOST_BYTES = 64 * 2**20
_MOST_STATES = 2**31  # OpenFst's own bound
_MOST_LABELS = 10_000_000
_EPSILON_NAMES = ("<eps>", "<epsilon>", "ε")
_WHOLE = re.compile("[0-9]{1,10}")
_WEIGHT = re.compile(r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?|inf(?:inity)?)", re.IGNORECASE)


class Line(NamedTuple):
    """An arc, or a final state: a line without a target."""

    source: int
    target: int | None
    labels: tuple[int | None, ...]  # one for each tape, None for epsilon
    weight: float | None  # where one is written
    number: int
    where: str  # as errors say it


def lines_of(text: str | Path, name: str, tapes: Sequence[str], symbols: Sequence[str] | None) -> Iterator[Line]:
    """The lines `source target label ... [weight]` and `state [weight]` of a text, called `name`, or of a file.

    There is a label for each of the tapes, which errors call so. Every error names the line.
    """
    arc, labels = 2 + len(tapes), Labels(symbols)
    for number, line in _numbered(text, name):
        fields, where = columns(line), f"{text if isinstance(text, Path) else name}, line {number}"
        if not fields:
            continue
        if len(fields) not in (1, 2, arc, arc + 1):
            raise DataError(
                f"{where}: got {len(fields)} columns, but wanted {arc} or {arc + 1} for an arc (source, target, "
                f"{', '.join(tapes)}, weight), 1 or 2 for a final state"
            )
        try:
            source = state_of(fields[0], where)
        except DataError as error:
            if isinstance(text, str) and "\n" not in text.strip():  # which looks like the name of a file
                raise DataError(f"{error}; a file is given as Path({text.strip()!r:.80})") from None
            raise
        weight = weight_of(fields[-1], where) if len(fields) in (2, arc + 1) else None
        if len(fields) <= 2:
            yield Line(source, None, (), weight, number, where)
        else:
            target = state_of(fields[1], where)
            yield Line(source, target, tuple(labels.of(x, where) for x in fields[2:arc]), weight, number, where)


def _numbered(text: str | Path, name: str) -> Iterator[tuple[int, str]]:
    if isinstance(text, Path):
        check_size(text)
        return numbered_lines(text)
    if len(text) > MOST_BYTES:
        raise ValueError(f"{name}: {len(text)} characters are more than {MOST_BYTES}")
    return ((number, line.removesuffix("\n")) for number, line in enumerate(io.StringIO(text, newline=None), 1))


def reached(start: int, arcs: Iterable[tuple[int, int]]) -> set[int]:
    """The states that arcs, each from a source to a target, lead to from the start."""
    following: dict[int, list[int]] = {}
    for source, target in arcs:
        following.setdefault(source, []).append(target)
    found, stack = {start}, [start]
    while stack:
        for target in following.get(stack.pop(), ()):
            if target not in found:
                found.add(target)
                stack.append(target)
    return found


def check_size(path: Path) -> None:
    """Raise for a file that is larger than any machine."""
    if path.stat().st_size > MOST_BYTES:
        raise DataError(f"{path}: {path.stat().st_size} bytes are more than {MOST_BYTES}")


def state_of(field: str, where: str) -> int:
    """The number of a state."""
    if not re.fullmatch("[0-9]+", field):
        raise DataError(f"{where}: got {field[:40]!r}, but wanted a state, a number of at least 0")
    if not _WHOLE.fullmatch(field) or int(field) >= _MOST_STATES:
        raise DataError(f"{where}: got state {field[:40]}, but wanted one below {_MOST_STATES}")
    return int(field)


def weight_of(field: str, where: str) -> float:
    """A weight, which is a number or inf."""
    weight = float(field) if _WEIGHT.fullmatch(field) else math.nan
    if math.isnan(weight) or weight == -math.inf or (math.isinf(weight) and field[-1].isdigit()):
        raise DataError(f"{where}: got {field[:40]!r}, but wanted a weight, which is a number or inf")
    return weight


class Labels:
    """From symbols to labels; without names labels are numbers as OpenFst counts them, y being y + 1 and 0 epsilon."""

    def __init__(self, symbols: Sequence[str] | None) -> None:
        if symbols is not None and not all(isinstance(symbol, str) for symbol in symbols):
            raise TypeError(
                f"symbols: got {symbols!r:.60}, but wanted the names of labels 0, 1, ..., a list of strings; those "
                "of a SymbolTable are [name for number, name in table if number]"
            )
        self._table = None if symbols is None else {symbol: label for label, symbol in enumerate(symbols)}

    def of(self, field: str, where: str) -> int | None:
        """The label of a symbol, or None for epsilon."""
        if self._table is None:
            if not _WHOLE.fullmatch(field) or int(field) > _MOST_LABELS:
                raise DataError(
                    f"{where}: got {field[:40]!r}, but wanted a symbol's number, at most {_MOST_LABELS} (or pass "
                    "symbols)"
                )
            return int(field) - 1 if int(field) else None
        if field in _EPSILON_NAMES:
            return None
        if field not in self._table:
            raise DataError(f"{where}: got the symbol {field!r}, which is not among the {len(self._table)} symbols")
        return self._table[field]
