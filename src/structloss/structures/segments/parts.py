"""The tensors that score the ways to cut frames into segments, as all engines read them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.segments import Segments
from structloss.losses import MachineLoss
from structloss.losses.references import String
from structloss.structures.graph.lattice import Lattice
from structloss.structures.graph.packing import Recent

Maybe = Tensor | None
_POTENTIALS = ("opening", "frames", "durations", "rates", "transitions", "final")


class Added(NamedTuple):
    """A loss over what is written, its references, and a scale."""

    loss: MachineLoss
    strings: list[String]
    scale: float


@dataclass(frozen=True)
class Parts:
    """What a segment scores: see `kernels.segments`. What stands beyond a length is a number, and never matters.

    The segments of an example are in states 0, 1, ..., or, where there are transitions, in any.
    """

    opening: Tensor  # (B, T, K), of a segment of state k that starts at frame t
    frames: Tensor  # (B, T, K), of frame t in state k
    durations: Tensor  # (B, D, K), of d + 1 frames
    rates: Tensor | None  # (B, K, D, D), of a duration after another; 0 for state 0
    transitions: Tensor | None  # (B, K + 1, K): row 0 of the first segment, row k + 1 of what follows state k
    final: Tensor  # (B, K + 1), of ending with state j - 1
    lengths: Tensor  # (B,)
    limits: Tensor  # (B, T), the most frames that a segment can have which starts there
    counts: Tensor  # (B,), how many segments there are, where there are no transitions
    shortest: int
    longest_first: bool = False  # which of two outputs comes first, where they differ by a duration
    added: tuple[Added, ...] = ()  # what losses over strings add, through the explicit graph
    lattices: Recent[Lattice] = field(default_factory=lambda: Recent(2))  # explicit graphs, of some lengths

    @property
    def potentials(self) -> tuple[Tensor, Tensor, Tensor, Maybe, Maybe, Tensor]:
        """What is differentiated."""
        return self.opening, self.frames, self.durations, self.rates, self.transitions, self.final

    def map(self, function: Callable[[Tensor], Tensor], names: Sequence[str] = _POTENTIALS) -> Self:
        """A function of each of the potentials, or of other tensors."""
        changes: dict[str, Any] = {
            name: function(getattr(self, name)) for name in names if getattr(self, name) is not None
        }
        return replace(self, **changes)

    def examples(self, index: Tensor) -> Self:
        """Some of the examples."""
        added = tuple(own._replace(strings=[own.strings[b] for b in index.tolist()]) for own in self.added)
        names = (*_POTENTIALS, "lengths", "limits", "counts")
        return replace(self.map(lambda x: x[index], names), added=added)

    def with_rates(self) -> Self:
        """The same with rates, of 0 where there are none."""
        batch, longest, states = self.durations.shape
        zeros = self.durations.new_zeros(batch, states, longest, longest)
        return replace(self, rates=zeros if self.rates is None else self.rates)

    @property
    def within(self) -> Tensor:
        """Whether each frame is within its example's length, (B, T)."""
        return torch.arange(self.opening.shape[1], device=self.lengths.device) < self.lengths[:, None]

    @property
    def num_nodes(self) -> tuple[int, int, int]:
        """(T + 1, P, K + 1): P is D with rates, and 1 without."""
        _, frames, states = self.opening.shape
        return frames + 1, self.durations.shape[1] if self.rates is not None else 1, states + 1

    def uniforms(self, n: int, generator: torch.Generator | None) -> Tensor:
        """What n draws are made from, a state and a duration at a frame: (n, B, T, 2)."""
        shape = (n, *self.opening.shape[:2], 2)
        return torch.rand(shape, generator=generator, device=self.opening.device, dtype=torch.float64)

    @cached_property
    def arrays(self) -> Segments:
        """What the kernels read, in float64 on the CPU."""
        return self.segments([None if x is None else x.detach().cpu().numpy() for x in self.potentials], np.float64)

    def segments(self, potentials: Sequence[NDArray[Any] | None], dtype: type[np.generic]) -> Segments:
        """The same with these arrays for the potentials."""
        own = zip(potentials, (3, 3, 3, 4, 3, 2), strict=True)
        scores = [np.zeros((0,) * n, dtype) if x is None else np.ascontiguousarray(x, dtype) for x, n in own]
        sizes = [x.cpu().contiguous().numpy() for x in (self.lengths, self.limits, self.counts)]
        return Segments._make([*scores, *sizes, self.shortest, self.longest_first])


def following_start(starts: Tensor, lengths: Tensor) -> Tensor:
    """Of each frame, the next one after it at which starts (..., B, T) is True, or else the end, (..., B, T)."""
    places = torch.arange(starts.shape[-1], device=starts.device)
    ends = lengths[:, None].expand(*starts.shape[:-1], 1)
    if len(places) == 0:
        return ends[..., :0]
    here_or_later = torch.where(starts, places, lengths[:, None]).flip(-1).cummin(-1).values.flip(-1)
    return torch.cat([here_or_later, ends], -1)[..., 1:]


def limits_of(starts: Tensor, lengths: Tensor) -> Tensor:
    """The most frames of a segment from each frame on, where the next must start wherever starts (B, T) is True."""
    places = torch.arange(starts.shape[-1], device=starts.device)
    return (following_start(starts, lengths) - places).clamp(min=0)


def covering(marks: Tensor, within: Tensor) -> Tensor:
    """What marks (..., B, T) have where the segment of each frame starts, and so -1 before the first; -1 not within."""
    places = torch.arange(marks.shape[-1], device=marks.device)
    since = torch.where((marks != -1) & within, places, 0).cummax(-1).values if len(places) else marks
    return torch.where(within, marks.gather(-1, since), -1)
