"""Tones that stand for phones, with exact times."""

import random

import numpy as np

from structloss.tasks.alignment import audio
from structloss.tasks.alignment.recordings import Speech
from structloss.tasks.alignment.segments import Segments

TONES = {"sil": 0.0, "aa": 300.0, "iy": 900.0, "s": 3000.0}


def spoken(seed: int) -> Speech:
    """Four to seven tones of random durations between silences."""
    generator = random.Random(seed)
    inner = [generator.choice(["aa", "iy", "s"])]
    while len(inner) < generator.randint(4, 7):
        inner.append(generator.choice([p for p in ("aa", "iy", "s") if p != inner[-1]]))
    phones = ["sil", *inner, "sil"]
    lengths = [int(generator.uniform(0.06, 0.16) * audio.RATE) for _ in phones]
    noise = np.random.default_rng(seed)
    pieces = [
        0.3 * np.sin(2 * np.pi * TONES[p] * np.arange(n) / audio.RATE) + 0.003 * noise.standard_normal(n)
        for p, n in zip(phones, lengths, strict=True)
    ]
    ends = np.cumsum(lengths) / audio.RATE
    samples = np.concatenate(pieces).astype(np.float32)
    return Speech(f"u{seed}", "tones", samples, Segments(tuple(phones), (0.0, *ends.tolist())))
