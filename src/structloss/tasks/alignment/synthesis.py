"""Speech with known phone times, made on the spot: sentences read by the voices of festival and flite."""

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from structloss.files import write_text
from structloss.tasks.alignment import audio, transcripts
from structloss.tasks.alignment.phones import SILENCE, SYNTHESISED
from structloss.tasks.alignment.recordings import Recording
from structloss.tasks.alignment.segments import Segments
from structloss.tasks.alignment.voices import Voice, check_text, speak, voice_of
from structloss.training.task import DataError

_AT_ONCE = 100  # sentences in a temporary folder
_QUIETER = 10.0  # decibels, of silences against phones


@dataclass(frozen=True)
class Synthesis:
    """The recordings that were made, and why each of the others was not."""

    recordings: list[Recording] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)


def synthesise(
    sentences: Sequence[str],
    voice: str,
    folder: Path | str,
    *,
    suffix: str = ".TextGrid",
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Synthesis:
    """Have a voice of `VOICES` read sentences.

    Sentence i becomes `<voice>-<i>.wav`, mono at 16 kHz, a transcript of the same name whose phones are CMUdict's in
    lower case and "sil", and `.txt`, the sentence itself. A sentence whose times do not fit its wave is dropped: phones
    must follow each other, end with the wave to within two frames (four for kal), and silences must be quieter than
    phones by 10 dB.

    Args:
        sentences: printable ASCII.
        voice: one of `VOICES`; one that is not installed is a FileNotFoundError that names Debian's packages.
        folder: made where it is not there; files of these names are replaced.
        suffix: of transcripts, .TextGrid, .lab, .phn or .segs.
        workers: processes of flite at a time, by default one a core.
        progress: called with the number of sentences just done.
    """
    if suffix.lower() not in transcripts.SUFFIXES:
        raise ValueError(f"suffix: got {suffix!r}, but wanted .TextGrid, .lab, .phn or .segs")
    for text in sentences:
        check_text(text)
    speaker, folder, result = voice_of(voice), Path(folder), Synthesis()
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(sentences), _AT_ONCE):
        texts = sentences[first : first + _AT_ONCE]
        with tempfile.TemporaryDirectory() as temporary:
            speak(speaker, texts, Path(temporary), workers or os.cpu_count() or 1)
            for i, text in enumerate(texts):
                name = f"{voice}-{first + i:05d}"
                try:
                    samples, segments = _checked(Path(temporary) / str(i), speaker)
                except DataError as error:
                    result.dropped[name] = str(error)
                    continue
                made = Recording(name, voice, folder / f"{name}.wav", folder / f"{name}{suffix}")
                audio.write(made.audio, samples)
                transcripts.write(made.transcript, segments)
                write_text(folder / f"{name}.txt", text + "\n")
                result.recordings.append(made)
        if progress is not None:
            progress(len(texts))
    return result


def _checked(spoken: Path, voice: Voice) -> tuple[NDArray[np.float32], Segments]:
    """What a voice has spoken, or a `DataError` that says what is wrong with it."""
    segments = transcripts.read(spoken.with_suffix(".segs"))
    samples = audio.read(spoken.with_suffix(".wav"))
    duration = len(samples) / audio.RATE
    if abs(duration - segments.duration) > voice.rest:
        raise DataError(f"the phones end at {segments.duration:.3f} seconds, but the wave at {duration:.3f}")
    unknown = sorted(set(segments.phones) - set(SYNTHESISED))
    if unknown:
        raise DataError(f"got the phone {unknown[0]!r}, which is none of {voice.program}'s")
    segments = segments.renamed(SYNTHESISED).until(duration)
    if set(segments.phones) <= {SILENCE}:
        raise DataError("got nothing but silence")
    difference = _level(samples, segments, speech=True) - _level(samples, segments, speech=False)
    if difference < _QUIETER:
        raise DataError(f"got silences that are only {difference:.1f} dB quieter than phones")
    return samples, segments


def _level(samples: NDArray[np.float32], segments: Segments, *, speech: bool) -> float:
    """The median over all phones, or all silences, of their mean energies, in decibels."""
    energies = [
        np.square(samples[round(start * audio.RATE) : round(end * audio.RATE)], dtype=np.float64).mean()
        for start, end, phone in segments
        if (phone != SILENCE) is speech
    ]
    return float(10 * np.log10(np.median(energies) + 1e-10)) if energies else -100.0
