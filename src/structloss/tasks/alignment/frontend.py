"""What a model hears: MFCC and log-energy of short frames, with first and second derivatives.

Frame t stands for the time from t to t + 1 hops. Its window of 25 ms is centred in it, at (t + 1/2) hops; where that
reaches beyond the recording, the recording is reflected. A boundary at frame t is a boundary at the time t hops, the
start of the frame.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from structloss.tasks.alignment.audio import RATE
from structloss.tasks.alignment.extras import speech_module

CEPSTRA = 13
DIMENSIONS = 3 * (CEPSTRA + 1)
WINDOW_MS = 25.0

_WINDOW = int(RATE * WINDOW_MS / 1000)
_SHORTEST_HOP, _LONGEST_HOP = 16, _WINDOW  # samples
_FLOOR = float(np.finfo(np.float32).eps)  # of energies: about that of rounding to 16 bits


def hop_samples(hop_ms: float) -> int:
    """A hop in samples, or a ValueError if that is no whole number of them between 1 and 25 ms."""
    samples = hop_ms * RATE / 1000
    if not (_SHORTEST_HOP <= samples <= _LONGEST_HOP and samples == int(samples)):
        raise ValueError(
            f"hop_ms: got {hop_ms!r}, but wanted 1 to {WINDOW_MS:g} ms, a multiple of a sample's {1000 / RATE} ms"
        )
    return int(samples)


def frame_count(samples: int, hop_ms: float = 10.0) -> int:
    """How many frames so many samples have: to the nearest one, halves up, and at least one."""
    hop = hop_samples(hop_ms)
    return max(1, (samples + hop // 2) // hop)


def frame_of(seconds: float, hop_ms: float = 10.0) -> int:
    """The frame whose start is nearest, after `seconds` are rounded to samples; halves up.

    >>> frame_of(0.124), frame_of(0.125), frame_of(0.124, hop_ms=5.0)
    (12, 13, 25)
    """
    hop = hop_samples(hop_ms)
    return (round(seconds * RATE) + hop // 2) // hop


def place_of(seconds: float, hop_ms: float = 10.0) -> float:
    """A time in frames, between which it may lie.

    >>> place_of(0.1234)
    12.34
    """
    return seconds * RATE / hop_samples(hop_ms)


def seconds_of(frame: int, hop_ms: float = 10.0) -> float:
    """When a frame starts: the inverse of `frame_of`.

    >>> seconds_of(12), frame_of(seconds_of(12))
    (0.12, 12)
    """
    return frame * hop_samples(hop_ms) / RATE


def features(
    samples: NDArray[np.float32], hop_ms: float = 10.0, *, normalise: bool = False
) -> NDArray[np.float32]:  # shape: (frames, 42)
    """13 MFCC (the zeroth too) and log-energy, then their first and then their second derivatives.

    Args:
        samples: mono, at 16 kHz, in [-1, 1]; at least one. Fewer than a hop are taken as a hop that ends in silence.
        hop_ms: from one frame to the next.
        normalise: make every column's mean 0 and its variance 1; one that does not vary becomes 0.

    The derivative is the slope of a line through five frames, those at either end repeated. Nothing is random.
    """
    hop = hop_samples(hop_ms)
    samples = np.ascontiguousarray(samples, np.float32)
    if samples.ndim != 1 or not len(samples):
        raise ValueError(f"samples: got the shape {samples.shape}, but wanted (samples,) with at least one")
    if not np.isfinite(samples).all():
        raise ValueError("samples: got NaN or infinity")
    if len(samples) < hop:
        samples = np.pad(samples, (0, hop - len(samples)))
    static = np.column_stack([_cepstra(samples, hop_ms), _log_energy(samples, hop)])
    first = _derivative(static)
    result = np.concatenate([static, first, _derivative(first)], axis=1)
    if normalise:
        deviation = result.std(axis=0, dtype=np.float64)
        deviation[deviation < 1e-4] = np.inf
        result = ((result - result.mean(axis=0, dtype=np.float64)) / deviation).astype(np.float32)
    return result


def log_mel(samples: NDArray[np.float32], bins: int, hop_ms: float = 10.0) -> NDArray[np.float32]:
    """The logarithm of the energy in each of so many bands of the mel scale: (frames, bins), frames as of `features`.

    A recording shorter than a hop is taken as a hop that ends in silence.
    """
    fbank = speech_module("kaldi_native_fbank", "The speech front end")
    options = fbank.FbankOptions()
    options.mel_opts.num_bins = bins
    hop = hop_samples(hop_ms)
    samples = np.pad(samples, (0, max(0, hop - len(samples))))
    return _computed(fbank.OnlineFbank, options, samples, hop_ms)


def _cepstra(samples: NDArray[np.float32], hop_ms: float) -> NDArray[np.float32]:  # shape: (frames, 13)
    fbank = speech_module("kaldi_native_fbank", "The speech front end")
    options = fbank.MfccOptions()
    options.num_ceps, options.use_energy = CEPSTRA, False
    return _computed(fbank.OnlineMfcc, options, samples, hop_ms)


def _computed(kind: Any, options: Any, samples: NDArray[np.float32], hop_ms: float) -> NDArray[np.float32]:
    """What one of Kaldi's front ends says of each frame, without dither."""
    frames = options.frame_opts
    frames.samp_freq, frames.dither, frames.snip_edges = float(RATE), 0.0, False
    frames.frame_shift_ms, frames.frame_length_ms = hop_ms, WINDOW_MS
    computer = kind(options)
    computer.accept_waveform(RATE, samples)
    computer.input_finished()
    return np.stack([computer.get_frame(t) for t in range(computer.num_frames_ready)])


def _log_energy(samples: NDArray[np.float32], hop: int) -> NDArray[np.float32]:  # shape: (frames,)
    """The logarithm of each window's sum of squares, its mean taken away."""
    before = _WINDOW // 2 - hop // 2
    padded = np.pad(samples, (before, _WINDOW), mode="symmetric")
    count = (len(samples) + hop // 2) // hop
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::hop][:count]
    squares = np.einsum("ij,ij->i", windows, windows)
    energy = squares - windows.mean(axis=1) ** 2 * _WINDOW
    result: NDArray[np.float32] = np.log(np.maximum(energy, _FLOOR))
    return result


def _derivative(x: NDArray[np.float32]) -> NDArray[np.float32]:
    padded = np.pad(x, ((2, 2), (0, 0)), mode="edge")
    slope: NDArray[np.float32] = (2 * (padded[4:] - padded[:-4]) + padded[3:-1] - padded[1:-3]) / np.float32(10)
    return slope
