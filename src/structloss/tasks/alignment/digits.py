"""Spoken digits, one after another by one person: words with exact boundaries, from the Free Spoken Digit Dataset.

A folder of recordings {digit}_{speaker}_{index}.wav that are trimmed, so that a word ends where its recording does.
"""

import random
import re
from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from structloss.tasks.alignment import audio
from structloss.tasks.alignment.phones import SILENCE
from structloss.tasks.alignment.recordings import Speech
from structloss.tasks.alignment.segments import Segments
from structloss.training.task import DataError

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
TRAIN = ("george", "jackson", "lucas", "nicolas")
TEST = ("theo", "yweweler")

_NAME = re.compile(r"([0-9])_([a-z]+)_([0-9]{1,6})\.wav")
_LONGEST = 1000  # digits in an utterance


def utterances(
    folder: Path | str, count: int, seed: int, speakers: Sequence[str] = TRAIN, lengths: tuple[int, int] = (3, 8),
    pause: float = 0.0,
) -> list[Speech]:  # fmt: skip
    """Digits drawn by seed: each utterance is by one of the speakers, of `lengths[0]` to `lengths[1]` digits.

    The recordings follow each other without a pause, or with pauses of up to so many seconds between them; the
    segments' names are words, "zero" to "nine", and "sil" of pauses.
    """
    low, high = lengths
    if not 1 <= low <= high <= _LONGEST:
        raise ValueError(f"lengths: got {lengths}, but wanted two numbers from 1 to {_LONGEST}, the lower one first")
    if count < 0 or not speakers:
        raise ValueError(f"count, speakers: got {count} and {list(speakers)}, but wanted at least 0 and one speaker")
    files = _files(Path(folder))
    for speaker in speakers:
        if not any(name == speaker for name, _ in files):
            known = ", ".join(sorted({name for name, _ in files}))
            raise DataError(f"{folder}: got no recording by {speaker!r}; there are {known}")
    generator, read, made = random.Random(seed), cache(audio.read), []
    spoken = {speaker: sorted(digit for name, digit in files if name == speaker) for speaker in speakers}
    for number in range(count):
        speaker = generator.choice(speakers)
        digits = [generator.choice(spoken[speaker]) for _ in range(generator.randint(low, high))]
        pieces = [read(generator.choice(files[speaker, digit])) for digit in digits]
        names = [WORDS[digit] for digit in digits]
        for gap in range(len(digits) - 1, 0, -1) if pause else ():
            pieces.insert(gap, np.zeros(1 + int(generator.random() * pause * audio.RATE), np.float32))
            names.insert(gap, SILENCE)
        ends = tuple(end / audio.RATE for end in accumulate(len(piece) for piece in pieces))
        segments = Segments(tuple(names), (0.0, *ends))
        made.append(Speech(f"{speaker}-{seed}-{number:05d}", speaker, np.concatenate(pieces), segments))
    return made


def _files(folder: Path) -> dict[tuple[str, int], list[Path]]:
    """The recordings of each speaker and digit, in the order of their indices."""
    inside = folder / "recordings" if (folder / "recordings").is_dir() else folder
    if not inside.is_dir():
        raise DataError(f"{folder}: is not there, but wanted a folder of spoken digits")
    numbered: dict[tuple[str, int], list[tuple[int, Path]]] = {}
    for path in inside.iterdir():
        if match := _NAME.fullmatch(path.name):
            numbered.setdefault((match[2], int(match[1])), []).append((int(match[3]), path))
    if not numbered:
        raise DataError(f"{inside}: got no recording named as 7_theo_13.wav is")
    return {key: [path for _, path in sorted(found)] for key, found in sorted(numbered.items())}
