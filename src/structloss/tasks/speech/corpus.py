"""Recordings and what is said in them: a folder of both, a list of paths and transcripts, or one recording."""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from structloss.tasks.alignment import audio
from structloss.text import DataError, numbered_lines

BOUNDARY = " "  # between words
_APOSTROPHES = str.maketrans("\u2019\u02bc", "''")


@dataclass(frozen=True)
class Entry:
    """A recording, what it is called, and its transcript, None where there is none."""

    name: str
    audio: Path
    text: str | None
    where: str  # file and line, for errors
    listed: bool = False

    def samples(self) -> NDArray[np.float32]:
        """Mono at 16 kHz; a `DataError` names the recording, and the line that lists it."""
        try:
            return audio.read(self.audio)
        except (DataError, OSError) as error:
            raise DataError(f"{self.where}: {error}" if self.listed else str(error)) from None


def plain(text: str) -> str:
    """What is counted of a transcript: lower case, letters, digits, marks and apostrophes; all else is a boundary.

    Example:
        >>> plain('"Don\u2019t," she said \u2014 twice.')
        "don't she said twice"
    """
    lower = unicodedata.normalize("NFC", text.lower().translate(_APOSTROPHES))
    kept = "".join(c if c == "'" or unicodedata.category(c)[0] in "LMN" else " " for c in lower)
    return BOUNDARY.join(filter(None, (word.strip("'") for word in kept.split())))


def read(path: Path, transcribed: bool) -> list[Entry]:
    """The recordings of a folder and those below it, of a list, or the one that the path is.

    In a folder, `a.txt` is the transcript of `a.wav`. A list has a recording a line, a tab, and its transcript; paths
    are relative to its folder. Where all are to be `transcribed`, one without a transcript is a `DataError`; an empty
    one always is.
    """
    if path.is_dir():
        entries = list(_in_folder(path))
    elif path.suffix.lower() in audio.SUFFIXES:
        entries = [_beside(path, path.name)]
    else:
        entries = list(_listed(path))
    if not entries:
        raise DataError(f"{path}: got no recording")
    for entry in entries:
        if entry.text is None and transcribed:
            raise DataError(f"{entry.where}: got no transcript")
        if entry.text == "":
            raise DataError(f"{entry.where}: got an empty transcript, but wanted at least one word")
    return entries


def _in_folder(folder: Path) -> Iterator[Entry]:
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in audio.SUFFIXES and path.is_file():
            yield _beside(path, path.relative_to(folder).as_posix())


def _beside(recording: Path, name: str) -> Entry:
    """A recording and the transcript beside it."""
    text = recording.with_suffix(".txt")
    if not text.is_file():
        return Entry(name, recording, None, str(recording))
    said = plain(" ".join(line for _, line in numbered_lines(text)))
    return Entry(name, recording, said, f"{text}, line 1")


def _listed(path: Path) -> Iterator[Entry]:
    for number, line in numbered_lines(path):
        if not line.strip():
            continue
        name, *rest = line.split("\t")
        where = f"{path}, line {number}"
        if len(rest) > 1:
            raise DataError(f"{where}: got {1 + len(rest)} columns, but wanted a recording, a tab and its transcript")
        if not name.strip():
            raise DataError(f"{where}: got no recording before the tab")
        yield Entry(name, path.parent / name, plain(rest[0]) if rest else None, where, listed=True)
