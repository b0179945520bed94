"""A recording as aligners see it: frames, phones, and where they start if that is known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from structloss.tasks.alignment.frontend import features, frame_of
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
    def of(cls, speech: Speech, hop_ms: float) -> Self:
        """What an aligner sees of speech whose phones have times. Every feature has mean 0 and variance 1."""
        x = torch.from_numpy(features(speech.samples, hop_ms, normalise=True))
        times = speech.segments.starts
        return cls(speech.name, x, speech.segments.phones, hop_ms, times, start_frames(times, hop_ms, len(x)))

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
    starts = [0]
    for n, time in enumerate(times[1:], 1):
        starts.append(min(max(frame_of(time, hop_ms), starts[-1] + 1), frames - (len(times) - n)))
    return tuple(starts)
