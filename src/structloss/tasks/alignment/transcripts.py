"""Transcripts with times, read and written: TextGrid, .lab (HTK or xwaves), .phn (TIMIT) and .segs (festival)."""

import re
from collections.abc import Iterator
from pathlib import Path

from structloss.files import write_text
from structloss.tasks.alignment import textgrid
from structloss.tasks.alignment.segments import Interval, Segments
from structloss.text import DataError, columns, numbered_lines

SUFFIXES = (".textgrid", ".lab", ".phn", ".segs")  # in any case of letters

_HTK = 10_000_000  # units a second
LAB_UNITS = {
    "100ns": _HTK,
    "samples": 16_000,
    "ms": 1000,
    "seconds": 1,
}  # what times of a .lab can be in, so many a second
_SHORTEST_LAB = 1_000  # units of 100 ns: no recording is as short, but whole seconds look like that
_TIMIT = 16_000  # samples a second
_MOST_BYTES = 1 << 24
_WHOLE = re.compile(r"[0-9]{1,15}")
_DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{0,30})?")


def read(path: Path | str, tier: str = "phones", lab_unit: str | None = None) -> Segments:
    """The phones of a transcript, whose format is that of its suffix; `tier` is which one of a TextGrid.

    - `.TextGrid`: the intervals of a tier, empty ones being silence.
    - `.lab`: lines "start end phone" in HTK's units of 100 ns, or in seconds where times have a decimal point, or in
      `lab_unit`, one of `LAB_UNITS`; or, after a line that is a bare #, xwaves' lines "end colour phone" in seconds.
    - `.phn`: lines "start end phone" in samples at 16 kHz, as TIMIT has them.
    - `.segs`: xwaves' lines, as festival saves them.

    Gaps are silence, named "sil". What cannot be read, or overlaps, is a `DataError` with the file and line, or tier.
    """
    path = Path(path)
    suffix = _suffix(path)
    if lab_unit is not None and lab_unit not in LAB_UNITS:
        raise ValueError(f"lab_unit: got {lab_unit!r}, but wanted one of {', '.join(LAB_UNITS)}")
    if not path.is_file():
        raise DataError(f"{path}: is not there, but wanted a transcript")
    if path.stat().st_size > _MOST_BYTES:
        raise DataError(f"{path}: has {path.stat().st_size} bytes, more than {_MOST_BYTES}")
    if suffix == ".textgrid":
        return textgrid.read(path, tier)
    lines = [(f"{path}, line {number}", columns(line)) for number, line in numbered_lines(path)]
    header = next((i for i, (_, cut) in enumerate(lines) if cut == ["#"]), None)
    if suffix == ".segs" and header is None:
        raise DataError(f"{path}: got no line that is a bare #, after which segments start")
    if suffix != ".phn" and header is not None:
        intervals = _by_ends(lines[header + 1 :])
    elif suffix == ".phn":
        intervals = _by_units(lines, _TIMIT, _WHOLE, "samples")
    else:
        intervals = _of_lab(lines, path, lab_unit)
    return Segments.from_intervals(intervals, str(path))


def write(path: Path | str, segments: Segments, tier: str = "phones", *, xwaves: bool = False) -> None:
    """Write a transcript in the format of its suffix, whole or not at all; a `.lab` is HTK's unless `xwaves`.

    A ValueError if the format cannot say it: a name with white space outside of a TextGrid, or a phone that is shorter
    than the format's unit of time.
    """
    path = Path(path)
    suffix = _suffix(path)
    if suffix == ".textgrid":
        write_text(path, textgrid.written(segments, tier))
        return
    for phone in segments.phones:
        if set(phone) & set(" \t\r\n"):
            raise ValueError(f"segments: got the phone {phone!r}, but a name in {path.name} has no white space")
    if suffix == ".segs" or (xwaves and suffix == ".lab"):
        times = _rounded(segments, _HTK, path)
        rows = [f"{end / _HTK:.7f} 100 {phone}" for end, phone in zip(times[1:], segments.phones, strict=True)]
        rows.insert(0, "#")
    else:
        times = _rounded(segments, _TIMIT if suffix == ".phn" else _HTK, path)
        rows = [f"{a} {b} {phone}" for a, b, phone in zip(times, times[1:], segments.phones, strict=False)]
    write_text(path, "\n".join(rows) + "\n")


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"{path}: got a transcript named {path.suffix!r}, but wanted .TextGrid, .lab, .phn or .segs")
    return suffix


def _rounded(segments: Segments, units: int, path: Path) -> list[int]:
    times = [round(boundary * units) for boundary in segments.boundaries]
    for a, b, phone in zip(times, times[1:], segments.phones, strict=False):
        if a >= b:
            raise ValueError(f"segments: got {phone!r} shorter than {1 / units} seconds, the unit of {path.name}")
    return times


def _of_lab(lines: list[tuple[str, list[str]]], path: Path, unit: str | None) -> Iterator[Interval]:
    """Lines of start, end and phone in a unit; without one in that which their numbers tell, if they do."""
    if unit is not None:
        return _by_units(lines, LAB_UNITS[unit], _DECIMAL, unit)
    times = [time for _, cut in lines if len(cut) > 2 for time in cut[:2] if _DECIMAL.fullmatch(time)]
    if any("." in time for time in times):
        return _by_units(lines, 1, _DECIMAL, "seconds")
    latest = max(map(int, times), default=_SHORTEST_LAB)
    if latest < _SHORTEST_LAB and len(times) == 2 * sum(bool(cut) for _, cut in lines):
        raise DataError(
            f"{path}: ends at {latest}, too little for HTK's units of 100 ns; --lab-unit "
            f"{'|'.join(LAB_UNITS)} says what its times are in"
        )
    return _by_units(lines, _HTK, _WHOLE, "units of 100 ns")


def _by_units(lines: list[tuple[str, list[str]]], units: int, number: re.Pattern[str], unit: str) -> Iterator[Interval]:
    """Lines of start, end and phone, times in a unit of which a second has so many."""
    for where, cut in lines:
        if cut:
            start, end, phone = _three(where, cut, number, (0, 1), f"start, end and phone, times in {unit}")
            yield float(start) / units, float(end) / units, phone, where


def _by_ends(lines: list[tuple[str, list[str]]]) -> Iterator[Interval]:
    """Lines of end, colour and phone, times in seconds; each starts where the one before ends."""
    last = 0.0
    for where, cut in lines:
        if cut:
            end, _, phone = _three(where, cut, _DECIMAL, (0,), "end in seconds, colour and phone")
            yield last, float(end), phone, where
            last = float(end)


def _three(
    where: str, cut: list[str], number: re.Pattern[str], numbers: tuple[int, ...], wanted: str
) -> tuple[str, str, str]:
    """The first three columns; what follows them, as scores do in HTK, is not read."""
    if len(cut) < 3 or not all(number.fullmatch(cut[i]) for i in numbers):
        raise DataError(f"{where}: got {' '.join(cut)[:80]!r}, but wanted {wanted}")
    return cut[0], cut[1], cut[2]
