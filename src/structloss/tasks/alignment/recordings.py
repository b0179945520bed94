"""A recording and its transcript: as files, and as samples with the phones' times."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from structloss.tasks.alignment import audio, transcripts
from structloss.tasks.alignment.segments import Segments
from structloss.text import DataError

_LATER = 0.05  # seconds that a transcript may end after its recording: both are rounded by who made them


@dataclass(frozen=True)
class Speech:
    """Samples, mono at 16 kHz, and the phones in them; the last one ends where the samples do."""

    name: str
    speaker: str
    samples: NDArray[np.float32]
    segments: Segments


@dataclass(frozen=True)
class Recording:
    """Where a recording and its transcript lie, and what reads the transcript."""

    name: str
    speaker: str
    audio: Path
    transcript: Path
    reader: Callable[[Path], Segments] = transcripts.read

    def read(self) -> Speech:
        """Both, or a `DataError` that names the file; so is a transcript that is longer than its recording."""
        samples = audio.read(self.audio)
        segments, duration = self.reader(self.transcript), len(samples) / audio.RATE
        if segments.duration > duration + _LATER or segments.starts[-1] >= duration:
            raise DataError(
                f"{self.transcript}: ends at {segments.duration:.3f} seconds, but {self.audio} at {duration:.3f}"
            )
        return Speech(self.name, self.speaker, samples, segments.until(duration))


@dataclass(frozen=True)
class Untimed:
    """Where a recording lies and a text of what is said in it, without times."""

    name: str
    audio: Path
    text: Path


def in_folder(folder: Path | str, lab_unit: str | None = None) -> list[Recording]:
    """The recordings of a folder and those below it that have a transcript beside them, under the same name.

    A recording's name is its path in the folder without suffix, and its speaker the folder it lies in. `lab_unit` is
    what times of a .lab are in.
    """
    reader = transcripts.read if lab_unit is None else partial(transcripts.read, lab_unit=lab_unit)
    found = [
        Recording(stem.relative_to(folder).as_posix(), sound.parent.name, sound, transcript, reader)
        for stem, sound, transcript in _with_texts(Path(folder), transcripts.SUFFIXES)
    ]
    if not found:
        raise DataError(
            f"{folder}: got no recording with a transcript beside it that has times: wanted "
            f"{', '.join(transcripts.SUFFIXES)} under the same name"
        )
    return found


def untimed_in_folder(folder: Path | str) -> list[Untimed]:
    """The recordings of a folder and those below it that have a .txt beside them; none where any has a transcript."""
    if any(_with_texts(Path(folder), transcripts.SUFFIXES)):
        return []
    return [
        Untimed(stem.relative_to(folder).as_posix(), sound, text)
        for stem, sound, text in _with_texts(Path(folder), (".txt",))
    ]


def _with_texts(folder: Path, suffixes: tuple[str, ...]) -> Iterator[tuple[Path, Path, Path]]:
    """Recordings with files of these suffixes beside them, the first being preferred: path without suffix, both."""
    if not folder.is_dir():
        raise DataError(f"{folder}: is not there, but wanted a folder of recordings")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    written = {}
    for suffix in reversed(suffixes):
        written.update({path.with_suffix(""): path for path in files if path.suffix.lower() == suffix})
    for path in files:
        stem = path.with_suffix("")
        if path.suffix.lower() in audio.SUFFIXES and stem in written:
            yield stem, path, written[stem]
