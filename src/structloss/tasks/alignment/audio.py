"""Recordings as float32 samples, mono, at 16 kHz, whatever the file is."""

import io
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structloss.files import write_bytes
from structloss.tasks.alignment.extras import speech_module
from structloss.tasks.alignment.resample import resample
from structloss.text import DataError

RATE = 16_000  # samples a second
SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".sph", ".nist")  # of recordings in a folder, in any case of letters

_RATES = (4_000, 192_000)
_MOST_CHANNELS = 32
_BLOCK = 1 << 16  # samples


def read(path: Path | str, most_hours: float = 3.0) -> NDArray[np.float32]:
    """The samples of a recording in [-1, 1]: channels are averaged, any rate becomes 16 kHz.

    Reads whatever libsndfile reads (RIFF, NIST SPHERE, FLAC, Ogg, MP3, ...). A file that is no recording, has no
    samples, or lasts longer than `most_hours` is a `DataError` that names it; no more than that is ever read.
    """
    path = Path(path)
    soundfile = speech_module("soundfile", "Reading recordings")
    if not path.is_file():
        raise DataError(f"{path}: is not there, but wanted a recording")
    if not path.stat().st_size:
        raise DataError(f"{path}: is empty, but wanted a recording")
    try:
        # By its descriptor: libsndfile then seeks by itself, and a bad seek is no traceback of a Python callback's.
        with path.open("rb") as stream, soundfile.SoundFile(stream.fileno(), closefd=False) as file:
            rate, channels = file.samplerate, file.channels
            if not _RATES[0] <= rate <= _RATES[1]:
                raise DataError(f"{path}: got {rate} samples a second, but wanted {_RATES[0]} to {_RATES[1]}")
            if channels > _MOST_CHANNELS:
                raise DataError(f"{path}: got {channels} channels, but wanted at most {_MOST_CHANNELS}")
            blocks, most = [], int(most_hours * 3600 * rate)
            for block in _blocks(file):
                with np.errstate(invalid="ignore", over="ignore"):  # what is no number is refused below
                    blocks.append(block.mean(axis=1, dtype=np.float32))
                most -= len(block)
                if most < 0:
                    raise DataError(f"{path}: is longer than {most_hours:g} hours")
    except (soundfile.SoundFileError, OSError, TypeError) as error:
        raise DataError(f"{path}: cannot be read as a recording ({error})") from error
    samples = np.concatenate(blocks) if blocks else np.zeros(0, np.float32)
    if not len(samples):
        raise DataError(f"{path}: has no samples")
    if not np.isfinite(samples).all():
        raise DataError(f"{path}: has samples that are no numbers")
    return resample(samples, rate, RATE)


def _blocks(file: Any) -> Iterator[NDArray[np.float32]]:
    """What a sound file really holds, (samples, channels), whatever its header says of its length."""
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        yield block


def write(path: Path | str, samples: NDArray[np.float32]) -> None:
    """Write samples at 16 kHz as a RIFF file of 16 bits; what lies beyond [-1, 1] is clipped."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.clip(np.rint(samples * 32768.0), -32768, 32767).astype("<i2").tobytes())
    write_bytes(Path(path), content.getvalue())
