"""Praat's TextGrids, in the long or the short text format: one tier of intervals."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from structloss.tasks.alignment.segments import LONGEST, Interval, Segments
from structloss.text import DataError

# Praat reads the texts, flags and free-standing numbers of a file, and takes whatever else it says for a comment: so
# the long format is the short one with comments.
_TOKEN = re.compile(r'"(?P<text>[^"]*(?:""[^"]*)*)"|(?P<open>")|!.*|(?P<word>[^\s"]+)')
_NUMBER = re.compile(r"[-+]?[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][-+]?[0-9]{1,3})?")


class _Tier(NamedTuple):
    name: str
    kind: str
    end: float
    intervals: list[tuple[float, float, str, int]]  # with the number of the line; none of a tier of points


def read(path: Path, tier: str) -> Segments:
    """The intervals of a tier; what lies between them, before or after them, is silence."""
    found: dict[str, _Tier] = {}
    for other in _tiers(path):
        found.setdefault(other.name, other)
    if tier not in found:
        names = ", ".join(map(repr, found)) or "none"
        raise DataError(f"{path}: got no tier {tier!r}; its tiers are {names}")
    wanted, where = found[tier], f"{path}, tier {tier!r}"
    if wanted.kind != "IntervalTier":
        raise DataError(f"{where}: got points, but wanted intervals")
    if not wanted.end <= LONGEST:
        raise DataError(f"{where}: ends at {wanted.end:g} seconds, but wanted at most {LONGEST:g}")
    segments = Segments.from_intervals(_places(path, wanted), where)
    return segments.until(wanted.end) if wanted.end > segments.duration else segments


def _places(path: Path, tier: _Tier) -> Iterator[Interval]:
    for number, (start, end, name, line) in enumerate(tier.intervals, 1):
        yield start, end, name, f"{path}, line {line}, tier {tier.name!r}, interval {number}"


def written(segments: Segments, tier: str) -> str:
    """A TextGrid of one tier, in the long format."""
    end = _seconds(segments.duration)
    lines = [
        'File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {end}", "tiers? <exists>",
        "size = 1", "item []:", "    item [1]:", '        class = "IntervalTier"', f"        name = {_quoted(tier)}",
        "        xmin = 0", f"        xmax = {end}", f"        intervals: size = {len(segments)}",
    ]  # fmt: skip
    for number, (start, stop, phone) in enumerate(segments, 1):
        lines += [
            f"        intervals [{number}]:", f"            xmin = {_seconds(start)}",
            f"            xmax = {_seconds(stop)}", f"            text = {_quoted(phone)}",
        ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _seconds(time: float) -> str:
    return np.format_float_positional(time, trim="-")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _tiers(path: Path) -> list[_Tier]:
    reader = _Reader(path)
    kind, content = reader.text("the type of file"), reader.text("the class of object")
    if kind not in ("ooTextFile", "ooTextFile short") or content != "TextGrid":
        raise DataError(f"{path}, line {reader.line}: is no TextGrid in Praat's text format")
    reader.number("the start")
    reader.number("the end")
    tiers = []
    for number in range(1, reader.count("the number of tiers") + 1):
        kind = reader.text(f"the class of tier {number}")
        if kind not in ("IntervalTier", "TextTier"):
            raise DataError(
                f"{path}, line {reader.line}: got a tier of the class {kind[:40]!r}, but wanted IntervalTier"
            )
        name = reader.text(f"the name of tier {number}")
        of = f"of tier {name!r}"
        reader.number(f"the start {of}")
        end, intervals = reader.number(f"the end {of}"), []
        for _ in range(reader.count(f"the number of entries {of}")):
            start = reader.number(f"a time {of}")
            stop = reader.number(f"an end {of}") if kind == "IntervalTier" else start
            intervals.append((start, stop, reader.text(f"a name {of}"), reader.line))
        tiers.append(_Tier(name, kind, end, intervals))
    reader.finish()
    return tiers


class _Reader:
    """The texts and numbers of a file one after the other; whatever is not what is wanted is an error with its line."""

    def __init__(self, path: Path) -> None:
        self._path, self.line, self._seen = path, 1, 0
        content = path.read_bytes()
        try:
            self._content = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise DataError(f"{path}, line {line}: is neither UTF-8 nor UTF-16 ({error.reason})") from None
        self._tokens = self._split()

    def _split(self) -> Iterator[tuple[str | None, str]]:
        """Texts as (text, ""), and numbers as (None, number)."""
        for match in _TOKEN.finditer(self._content):
            text, word = match["text"], match["word"]
            if text is None and match["open"] is None and (word is None or word[0] not in "+-0123456789"):
                continue
            self.line += self._content.count("\n", self._seen, match.start())
            self._seen = match.start()
            if match["open"] is not None:
                raise DataError(f"{self._path}, line {self.line}: got a text without its end; was it cut off?")
            yield (text.replace('""', '"'), "") if text is not None else (None, word)

    def _next(self, wanted: str) -> tuple[str | None, str]:
        try:
            return next(self._tokens)
        except StopIteration:
            raise DataError(f"{self._path}, line {self.line}: ends before {wanted}; was it cut off?") from None

    def text(self, wanted: str) -> str:
        """The next one, which must be a text."""
        text, number = self._next(wanted)
        if text is None:
            raise DataError(f"{self._path}, line {self.line}: got {number[:40]!r}, but wanted {wanted}, a text")
        return text

    def number(self, wanted: str) -> float:
        """The next one, which must be a number."""
        text, number = self._next(wanted)
        if text is not None or not _NUMBER.fullmatch(number):
            got = number if text is None else text
            raise DataError(f"{self._path}, line {self.line}: got {got[:40]!r}, but wanted {wanted}, a number")
        return float(number)

    def count(self, wanted: str) -> int:
        """The next one, which must be a whole number."""
        number = self.number(wanted)
        if not (number.is_integer() and 0 <= number <= len(self._content)):
            raise DataError(f"{self._path}, line {self.line}: got {number:g}, but wanted {wanted}")
        return int(number)

    def finish(self) -> None:
        """Raise if anything follows."""
        for text, number in self._tokens:
            raise DataError(f"{self._path}, line {self.line}: got {(text or number)[:40]!r} after the last tier")
