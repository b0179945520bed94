"""pocketsphinx as an aligner off the shelf, told exactly which phones are said."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structloss.tasks.alignment.extras import speech_module
from structloss.tasks.alignment.phones import SILENCE

_FRAME = 0.01  # seconds


class Sphinx:
    """Aligns phones by pocketsphinx's own English model. Pauses are where the phones say, or nowhere else."""

    def __init__(self) -> None:
        self._sphinx = speech_module("pocketsphinx", "The aligner off the shelf")

    def starts(self, samples: NDArray[np.float32], phones: Sequence[str]) -> list[float] | None:
        """When each phone starts, in seconds; None where it finds no alignment.

        What lies between two silences is a word of its own, pronounced by just these phones.
        """
        chunks: list[list[str]] = [[]]
        for phone in phones:
            if phone == SILENCE:
                chunks.append([])
            else:
                chunks[-1].append(phone.upper())
        chunks = [chunk for chunk in chunks if chunk]
        if not chunks:
            return None
        with tempfile.TemporaryDirectory() as folder:
            lexicon = Path(folder) / "words.dict"
            lexicon.write_text("".join(f"w{i} {' '.join(chunk)}\n" for i, chunk in enumerate(chunks)))
            decoder = self._sphinx.Decoder(
                dict=str(lexicon), lm=None, samprate=16000, loglevel="FATAL", logfn=os.devnull
            )
        decoder.set_align_text(" ".join(f"w{i}" for i in range(len(chunks))))
        data = np.clip(samples * 32768, -32768, 32767).astype("<i2").tobytes()
        try:
            _decode(decoder, data)
            decoder.set_alignment()
            _decode(decoder, data)
        except RuntimeError:
            return None
        return _matched(decoder.get_alignment(), phones)


def _decode(decoder: Any, data: bytes) -> None:
    decoder.start_utt()
    decoder.process_raw(data, full_utt=True)
    decoder.end_utt()


def _matched(alignment: Any, phones: Sequence[str]) -> list[float] | None:
    """The starts of the phones asked for; a silence starts where the phone before it ends."""
    if alignment is None:
        return None
    found = [
        (entry.name, entry.start * _FRAME, (entry.start + entry.duration) * _FRAME) for entry in alignment.phones()
    ]
    spoken = iter([row for row in found if row[0] != "SIL"])
    starts, last = [], 0.0
    for phone in phones:
        if phone == SILENCE:
            starts.append(last)
            continue
        row = next(spoken, None)
        if row is None or row[0].lower() != phone:
            return None
        starts.append(row[1])
        last = row[2]
    return starts
