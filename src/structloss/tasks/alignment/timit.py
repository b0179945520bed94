"""TIMIT as McAllester 2010 uses it: without sa1 and sa2, 39 phones, and its training part in three."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from structloss.tasks.alignment import transcripts
from structloss.tasks.alignment.phones import ARPABET, SILENCE
from structloss.tasks.alignment.recordings import Recording
from structloss.tasks.alignment.segments import Segments
from structloss.text import DataError

SIZES = (1500, 1796, 100)
GLOTTAL_STOP = "q"

# Lee and Hon 1989: what stands for itself, and then what is folded into another.
FOLDING: dict[str, str] = {
    **{phone: phone for phone in (*ARPABET, "dx") if phone not in ("ao", "zh")},
    "ao": "aa", "ax": "ah", "ax-h": "ah", "axr": "er", "hv": "hh", "ix": "ih", "el": "l", "em": "m", "en": "n",
    "nx": "n", "eng": "ng", "zh": "sh", "ux": "uw",
    "pcl": SILENCE, "tcl": SILENCE, "kcl": SILENCE, "bcl": SILENCE, "dcl": SILENCE, "gcl": SILENCE,
    "h#": SILENCE, "pau": SILENCE, "epi": SILENCE,
}  # fmt: skip


@dataclass(frozen=True)
class Parts:
    """The recordings that train the frame classifier, those that train the alignment, the hold-out and the test set."""

    classifier: list[Recording]
    alignment: list[Recording]
    holdout: list[Recording]
    test: list[Recording]


def parts(folder: Path | str, seed: int, sizes: tuple[int, int, int] = SIZES) -> Parts:
    """The paper's parts: 1500, 1796 and 100 recordings of the training part, drawn by seed, and the whole test part.

    These are 3396 of the 3696 recordings without sa1 and sa2; the others are left out.
    """
    train = recordings(folder, "train")
    if sum(sizes) > len(train):
        raise DataError(f"{folder}: has {len(train)} recordings to train on, but wanted {' + '.join(map(str, sizes))}")
    random.Random(seed).shuffle(train)
    a, b, c = sizes
    return Parts(train[:a], train[a : a + b], train[a + b : a + b + c], recordings(folder, "test"))


def recordings(folder: Path | str, part: str) -> list[Recording]:
    """The recordings of a part, "train" or "test", in the order of their names; upper and lower case are alike.

    The parts lie in the folder or one below. A recording is named region/speaker/sentence, and is read with its phones
    folded.
    """
    folder = Path(folder)
    root = _part(folder, part)
    files = sorted((path for path in root.rglob("*") if path.is_file()), key=lambda path: str(path).lower())
    audio = {_stem(path): path for path in reversed(files) if path.suffix.lower() == ".wav"}
    found = []
    for path in files:
        if path.suffix.lower() == ".phn" and path.stem.lower() not in ("sa1", "sa2"):
            if _stem(path) not in audio:
                raise DataError(f"{path}: has no .wav beside it")
            name = "/".join(path.relative_to(root).with_suffix("").parts).lower()
            found.append(Recording(name, path.parent.name.lower(), audio[_stem(path)], path, segments))
    if not found:
        raise DataError(f"{root}: got no .phn at all, but wanted a part of TIMIT")
    return found


def segments(path: Path | str) -> Segments:
    """The phones of a `.phn`, folded into 39.

    The glottal stop q is dropped: its time goes to the phone before, so that every other phone starts where TIMIT says,
    and at the beginning to the phone after. Silences that meet, as a pause and the closure of a stop, become one; other
    phones that are folded into the same one stay apart, with the boundary that people have marked.
    """
    written = transcripts.read(path)
    for phone in written.phones:
        if phone != GLOTTAL_STOP and phone not in FOLDING and phone != SILENCE:
            raise DataError(f"{path}: got the phone {phone!r}, which is none of TIMIT's 61")
    kept = [k for k, phone in enumerate(written.phones) if phone != GLOTTAL_STOP]
    if not kept:
        raise DataError(f"{path}: got no phone but glottal stops")
    boundaries = (0.0, *(written.boundaries[k] for k in kept[1:]), written.duration)
    phones = tuple(FOLDING.get(written.phones[k], SILENCE) for k in kept)
    return Segments(phones, boundaries).with_silences_joined()


def _part(folder: Path, part: str) -> Path:
    inside: Sequence[Path] = sorted(folder.iterdir()) if folder.is_dir() else ()
    for place in (folder, *(path for path in inside if path.is_dir())):
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.is_dir() and path.name.lower() == part:
                return path
    raise DataError(f"{folder}: got no folder {part.upper()} in it, but wanted TIMIT, which has TRAIN and TEST")


def _stem(path: Path) -> str:
    """The path without suffixes: some copies have SA1.WAV.wav beside SA1.PHN."""
    return str(path.parent / path.name.partition(".")[0]).lower()
