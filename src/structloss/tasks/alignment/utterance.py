"""A recording as aligners see it: frames, phones, and where they start if that is known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.structures.segments.segmentation import nearest_starts
from structloss.tasks.alignment.frontend import features, place_of, seconds_of
from structloss.tasks.alignment.recordings import Speech


@dataclass(frozen=True)
class Utterance:
    """Frames x (T, d) of `hop_ms` each, N phones, and the seconds and the frames they start at, if known."""

    name: str
    x: Tensor
    phones: tuple[str, ...]
    hop_ms: float
    times: tuple[float, ...] = ()
    starts: tuple[int, ...] = ()

    @classmethod
    def bare(cls, name: str, samples: NDArray[np.float32], phones: Sequence[str], hop_ms: float) -> Self:
        """What an aligner sees of a recording whose phones have no times. Every feature has mean 0 and variance 1."""
        return cls(name, torch.from_numpy(features(samples, hop_ms, normalise=True)), tuple(phones), hop_ms)

    @classmethod
    def of(cls, speech: Speech, hop_ms: float) -> Self:
        """The same of speech whose phones have times."""
        made, times = cls.bare(speech.name, speech.samples, speech.segments.phones, hop_ms), speech.segments.starts
        return replace(made, times=times, starts=start_frames(times, hop_ms, len(made.x)))

    def at(self, starts: Sequence[int]) -> Self:
        """The same with phones that start at these frames."""
        return replace(self, starts=tuple(starts), times=tuple(seconds_of(start, self.hop_ms) for start in starts))

    @property
    def places(self) -> tuple[float, ...]:
        """Where the phones start in frames, between which times may lie: what losses and metrics are about."""
        return tuple(place_of(time, self.hop_ms) for time in self.times)

    def durations(self) -> list[int]:
        """Of each phone, in frames."""
        ends = (*self.starts[1:], len(self.x))
        return [end - start for start, end in zip(self.starts, ends, strict=True)]

    def frame_phones(self) -> tuple[str, ...]:
        """The phone of each frame, (T,)."""
        return tuple(phone for phone, n in zip(self.phones, self.durations(), strict=True) for _ in range(n))


def start_frames(times: Sequence[float], hop_ms: float, frames: int) -> tuple[int, ...]:
    """The frames nearest to times in seconds, the first 0, so that every phone has at least one frame.

    Where phones are shorter than a frame, they push their successors on, or at the end their predecessors back.

    Example:
        >>> start_frames([0.0, 0.1, 0.101, 0.3], 10.0, 31)
        (0, 10, 11, 30)
    """
    if frames < len(times):
        raise ValueError(f"times: got {len(times)} phones in {frames} frames, but every phone needs one")
    places = torch.tensor([[place_of(time, hop_ms) for time in times]], dtype=torch.float64)
    return tuple(nearest_starts(places, torch.tensor([frames]), torch.tensor([len(times)]))[0].tolist())
