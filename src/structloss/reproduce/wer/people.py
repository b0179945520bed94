"""Strings of spoken digits by people who are kept apart: some to train on, one to choose on, one to test on."""

from dataclasses import dataclass
from pathlib import Path

from structloss.tasks.alignment import digits
from structloss.tasks.alignment.phones import SILENCE
from structloss.tasks.speech.corpus import BOUNDARY
from structloss.tasks.speech.task import frames
from structloss.training.experiment import Data
from structloss.training.task import Example

PEOPLE = ("george", "jackson", "lucas", "nicolas", "theo", "yweweler")
LENGTHS = (3, 7)  # digits in an utterance
PAUSE = 0.15  # seconds between two, at most


@dataclass(frozen=True)
class Sizes:
    """How many utterances."""

    train: int = 600
    dev: int = 150
    test: int = 350


def held_out(seed: int) -> tuple[str, str]:
    """Who is tested on with a seed, and who is chosen on: six seeds test on everybody once.

    Example:
        >>> held_out(0), held_out(1)
        (('yweweler', 'theo'), ('theo', 'nicolas'))
    """
    test = len(PEOPLE) - 1 - seed % len(PEOPLE)
    return PEOPLE[test], PEOPLE[test - 1]


def check(folder: Path) -> None:
    """Raise a `DataError` unless recordings by everybody are there."""
    digits.utterances(folder, 0, 0, PEOPLE)


def data(folder: Path, seed: int, sizes: Sizes) -> Data:
    """The utterances of a seed."""
    test, dev = held_out(seed)
    train = [name for name in PEOPLE if name not in (test, dev)]
    return Data(
        _examples(folder, sizes.train, 3 * seed, train),
        _examples(folder, sizes.dev, 3 * seed + 1, [dev]),
        _examples(folder, sizes.test, 3 * seed + 2, [test]),
    )


def _examples(folder: Path, count: int, seed: int, speakers: list[str]) -> list[Example]:
    made = digits.utterances(folder, count, seed, speakers, LENGTHS, PAUSE)
    texts = (BOUNDARY.join(name for name in speech.segments.phones if name != SILENCE) for speech in made)
    return [Example(frames(s.samples), tuple(text), s.name, s.name) for s, text in zip(made, texts, strict=True)]
