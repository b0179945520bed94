"""Align recordings with a trained model: one file, or many in parallel, where one that fails stops no other."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from structloss.files import check_output
from structloss.tasks.alignment import audio, transcripts, words
from structloss.tasks.alignment.frontend import seconds_of
from structloss.tasks.alignment.recordings import Untimed
from structloss.tasks.alignment.segments import Segments
from structloss.tasks.alignment.task import Aligner, Alignment
from structloss.tasks.alignment.utterance import Utterance
from structloss.training.directory import checksum_of, load
from structloss.training.task import DataError, Example


@dataclass(frozen=True)
class Reading:
    """How transcripts are read: what says how words are pronounced, what times of a .lab are in, and what texts are."""

    dictionary: Path | None = None
    lab_unit: str | None = None
    texts_of_phones: bool = False

    def phones(self, path: Path, known: Collection[str] = ()) -> tuple[str, ...]:
        """The phones of a transcript: of one with times, or of a text of a model's `known` phones or of words."""
        if path.suffix.lower() in transcripts.SUFFIXES:
            return transcripts.read(path, lab_unit=self.lab_unit).phones
        return words.phones_in(path) if self.texts_of_phones else words.read(path, known, self.dictionary)

    def untimed(self, one: Untimed, hop_ms: float) -> Utterance:
        """A recording with the phones of its text."""
        return Utterance.bare(one.name, audio.read(one.audio), self.phones(one.text), hop_ms)


@dataclass(frozen=True)
class Job:
    """A recording, what is said in it, and the transcript with times to write."""

    audio: Path
    transcript: Path
    out: Path
    reading: Reading = Reading()


def read_model(folder: Path) -> Aligner:
    """The aligner of a model directory."""
    _, model = load(folder, {Alignment.name: Alignment()})
    assert isinstance(model, Aligner)
    return model


def align(model: Aligner, recording: Path, phones: Sequence[str]) -> Segments:
    """When each phone starts and ends, in seconds; the last ends where the recording does."""
    samples = audio.read(recording)
    hop_ms = model.config["hop_ms"]
    utterance = Utterance.bare(recording.name, samples, phones, hop_ms)
    with torch.no_grad():
        starts = model.structure([model.encode(Example(utterance, (), None, str(recording)))]).decode()[0]
    if len(starts) != len(phones):
        raise DataError(f"{recording}: has {len(utterance.x)} frames, into which {len(phones)} phones cannot be cut")
    times = (*(seconds_of(start, hop_ms) for start in starts), len(samples) / audio.RATE)
    return Segments(tuple(phones), times)


def jobs_of(recording: Path, transcript: Path, out: Path, reading: Reading | None = None) -> list[Job]:
    """One job for a file, or for folders one for every recording, with the transcript of the same name and subfolder.

    A text is preferred to a transcript with times; where there is neither, the job says so when it is done.
    """
    reading = reading or Reading()
    if not recording.is_dir():
        return [Job(recording, transcript, out, reading)]
    if not transcript.is_dir():
        raise DataError(f"{transcript}: is no folder, but {recording} is: wanted a transcript for each recording")
    texts: dict[Path, Path] = {}
    for suffix in (*transcripts.SUFFIXES, ".txt"):
        found = (path for path in transcript.rglob("*") if path.suffix.lower() == suffix)
        texts.update({path.relative_to(transcript).with_suffix(""): path for path in found})
    jobs = []
    for path in sorted(path for path in recording.rglob("*") if path.suffix.lower() in audio.SUFFIXES):
        name = path.relative_to(recording).with_suffix("")
        jobs.append(Job(path, texts.get(name, transcript / f"{name}.txt"), out / f"{name}.TextGrid", reading))
    if not jobs:
        raise DataError(f"{recording}: got no recording")
    return jobs


@lru_cache(maxsize=2)
def _loaded(folder: Path, checksum: str) -> Aligner:
    """The aligner of a directory, read once in a process that aligns many recordings."""
    return read_model(folder)


def align_file(folder: Path, job: Job) -> float:
    """Align one recording with the model of a directory, and write its transcript; how many seconds it has."""
    job.out.parent.mkdir(parents=True, exist_ok=True)
    check_output(job.out, job.audio, job.transcript)
    model = _loaded(folder, checksum_of(folder))
    segments = align(model, job.audio, job.reading.phones(job.transcript, model.names))
    transcripts.write(job.out, segments)
    return segments.duration
