"""Praat's TextGrids, through praatio: one tier of intervals."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from structloss.tasks.alignment.extras import speech_module
from structloss.tasks.alignment.segments import Interval, Segments
from structloss.training.task import DataError

_EARLIEST = 1e-4  # seconds: below, praatio writes 1e-05, which it does not read
_SIZES = re.compile(  # of each tier, in the long and in the short format
    r'(?:intervals|points): size = (\d+)|^"(?:IntervalTier|TextTier)"\s*\n".*"\s*\n\S+\s*\n\S+\s*\n(\d+)\s*$', re.M
)


def read(path: Path, tier: str) -> Segments:
    """The intervals of a tier; what lies between them, before or after them, is silence."""
    found = {str(entry["name"]): entry for entry in reversed(_tiers(path))}
    if tier not in found:
        names = ", ".join(repr(name) for name in reversed(found)) or "none"
        raise DataError(f"{path}: got no tier {tier!r}; its tiers are {names}")
    if found[tier]["class"] != "IntervalTier":
        raise DataError(f"{path}, tier {tier!r}: got points, but wanted intervals")
    segments = Segments.from_intervals(_intervals(path, tier, found[tier]), f"{path}, tier {tier!r}")
    end = float(found[tier]["xmax"])
    return segments.until(end) if end > segments.duration else segments


def written(segments: Segments, tier: str) -> str:
    """A TextGrid of one tier, in the long format."""
    praatio = speech_module("praatio.utilities.textgrid_io", "Writing TextGrids")
    if segments.boundaries[1] < _EARLIEST:
        raise ValueError(f"segments: got {segments.phones[0]!r} shorter than {_EARLIEST} seconds at the start")
    content = {
        "xmin": 0.0,
        "xmax": segments.duration,
        "tiers": [
            {
                "class": "IntervalTier",
                "name": tier,
                "xmin": 0.0,
                "xmax": segments.duration,
                "entries": list(segments),
            }
        ],
    }
    return str(praatio.getTextgridAsStr(content, "long_textgrid", includeBlankSpaces=False))


def _tiers(path: Path) -> list[dict[str, Any]]:
    praatio = speech_module("praatio.utilities.textgrid_io", "Reading TextGrids")
    content = path.read_bytes()
    try:
        text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
        tiers: list[dict[str, Any]] = praatio.parseTextgridStr(text, includeEmptyIntervals=True)["tiers"]
        sizes = [int(long or short) for long, short in _SIZES.findall(text)]
        if len(sizes) == len(tiers) and sizes != [len(tier["entries"]) for tier in tiers]:
            raise ValueError("its tiers have not as many entries as they say; was it cut off?")
    except Exception as error:  # whatever a parser of trusted files may raise on one that is none
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path}: cannot be read as a TextGrid ({reason})") from error
    return tiers


def _intervals(path: Path, tier: str, content: dict[str, Any]) -> Iterator[Interval]:
    for number, entry in enumerate(content["entries"], 1):
        where = f"{path}, tier {tier!r}, interval {number}"
        try:
            start, end, phone = float(entry[0]), float(entry[1]), str(entry[2])
        except (ValueError, TypeError, IndexError, KeyError):
            raise DataError(f"{where}: got {str(entry)[:80]!r}, but wanted start, end and name") from None
        yield start, end, phone, where
