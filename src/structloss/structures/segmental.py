"""What is common to structures whose outputs cut frames into segments."""

import math
from abc import abstractmethod
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from structloss.kernels.segmentation_max import Levels
from structloss.losses import Loss
from structloss.losses.labels import Labels, as_padded
from structloss.structures import segmentation_native, segmentation_torch
from structloss.structures.base import Strata, Structure
from structloss.structures.checks import check_count, check_floating, objection, unfit
from structloss.structures.derivatives import apply
from structloss.structures.engine import is_native
from structloss.structures.segmentation_search import best_paths
from structloss.structures.segments import Parts, following_start


class Segmental(Structure):
    """T frames cut into segments, each in one of K states.

    Inside, an output is its marks (B, T): the state of the segment that starts at each frame, -1 where none does.
    """

    _longest_first: ClassVar[bool]  # which of two outputs comes first, where they differ by a duration
    _parts: Parts
    _only: Tensor | None  # the marks of the one output that is left, where a reference says all of it

    @classmethod
    def _of(cls, parts: Parts, only: Tensor | None) -> Self:
        structure = cls.__new__(cls)
        structure._parts, structure._only = parts, only
        return structure

    @abstractmethod
    def _marks(self, y: Tensor) -> Tensor:
        """The marks (n, B, T) of outputs (B, ...) or (n, B, ...), checked."""

    @abstractmethod
    def _outputs(self, marks: Tensor) -> Tensor:
        """Outputs from their marks (..., B, T)."""

    @abstractmethod
    def _levels(self, loss: Loss, reference: Any) -> Levels:
        """What a loss against the reference can come to."""

    def _padded(self, reference: Labels, sizes: Tensor, width: int, of: str) -> Tensor:
        """References (B, width), from a tensor or from lists, each of its example's size."""
        given, own = as_padded(reference, "reference", sizes.device)
        if own is not None and own.shape == sizes.shape:
            if (own != sizes).any():
                b = int((own != sizes).int().argmax())
                raise ValueError(
                    f"reference: reference[{b}] has {int(own[b])} entries, but example {b} has {int(sizes[b])} {of}"
                )
            given = torch.nn.functional.pad(given, (0, width - given.shape[1]), value=-1)
        wanted = (sizes.shape[0], width)
        if given.shape != wanted:
            raise ValueError(
                f"reference: got shape {tuple(given.shape)}, but wanted {wanted}, or a list of {wanted[0]}"
            )
        return given

    @property
    def lengths(self) -> Tensor:
        """How many frames each example has, (B,)."""
        return self._parts.lengths

    @property
    def _native(self) -> bool:
        return is_native(self._parts.opening.device)

    @property
    def _engine(self) -> Any:
        return segmentation_native if self._native else segmentation_torch

    def score(self, y: Tensor) -> Tensor:
        """The score (B,) of outputs y, or (n, B) of n outputs each; -inf where a duration is forbidden. Cost T each.

        A row of -1, which is what `argmax()` gives where there is no output, has -inf too.
        """
        marks = self._marks(y)
        return self._score(marks) if y.dim() == 3 else self._score(marks)[0]

    def _score(self, marks: Tensor) -> Tensor:
        """The score (n, B) of marks (n, B, T); -inf of those that leave a frame out or have a forbidden duration."""
        p = self._parts
        longest, device = p.durations.shape[1], marks.device
        b, t = torch.arange(marks.shape[1], device=device)[:, None], torch.arange(marks.shape[2], device=device)
        starts = (marks >= 0) & p.within
        state = torch.where(starts, marks, 0)
        since = torch.where(starts, t, -1).cummax(2).values if len(t) else marks  # where this frame's segment starts
        duration = torch.where(starts, following_start(starts, p.lengths) - t, 1)
        forbidden = (duration < p.shortest) | (duration > longest) | (duration > p.limits)
        possible = ~(starts & forbidden).any(2)
        possible = possible & ((since >= 0) | ~p.within).all(2)
        duration = duration.clamp(1, longest)
        earlier = torch.cat([since.new_full((*since.shape[:2], 1), -1), since], 2)  # the start before each frame
        last = earlier.gather(2, p.lengths.expand(marks.shape[0], -1)[:, :, None]).clamp(min=0)
        before, follows = earlier[:, :, :-1].clamp(min=0), earlier[:, :, :-1] >= 0
        covering = state.gather(2, since.clamp(min=0)) if len(t) else state

        def summed(x: Tensor, where: Tensor) -> Tensor:
            return torch.where(where, x, 0).double().sum(2)

        total = summed(p.opening[b, t, state] + p.durations[b, duration - 1, state], starts)
        total = total + summed(p.frames[b, t, covering], p.within)
        if p.transitions is not None:
            node = torch.where(follows, state.gather(2, before) + 1, 0)
            total = total + summed(p.transitions[node, state], starts)
        if p.rates is not None:
            total = total + summed(p.rates[b, state, duration.gather(2, before) - 1, duration - 1], starts & follows)
        ending = state.gather(2, last)[:, :, 0] + 1 if len(t) else last[:, :, 0]
        total = total + p.final[b[:, 0], torch.where(p.lengths > 0, ending, 0)]
        return torch.where(possible & (total > -math.inf), total, -math.inf).to(p.opening.dtype)

    def argmax(self) -> Tensor:
        with torch.no_grad():
            return self._outputs(self._best())

    def _best(self) -> Tensor:
        marks: Tensor = self._engine.argmax(self._parts, self._longest_first)[0]
        return marks

    def max(self) -> Tensor:
        marks = self._only
        if marks is None:
            with torch.no_grad():
                marks = self._best()
        return self._score(marks[None])[0]

    def log_partition(self) -> Tensor:
        if self._only is not None:
            return self._score(self._only[None])[0]
        value: Tensor = self._engine.log_partition(self._parts)
        return value

    def _starting(self) -> Tensor:
        """The probability that a segment of each state starts at each frame, (B, T, K)."""
        if self._native:
            return segmentation_native.marginals(self._parts)
        return segmentation_torch.marginals(self._parts, create_graph=torch.is_grad_enabled())

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        check_count(n, "n")
        batch, frames, _ = self._parts.opening.shape
        device = self._parts.opening.device
        uniforms = torch.rand((n, batch, frames, 2), generator=generator, device=device, dtype=torch.float64)
        with torch.no_grad():
            marks, exists = self._engine.sample(self._parts, uniforms)
        if not exists.all():
            raise ValueError(f"sample: example {int((~exists).int().argmax())} has no output: every score is -inf")
        return self._outputs(marks)

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The scores (B, k) and the outputs (B, k, ...) of the k best, best first, ties in lexicographic order; exact.

        Where there are fewer than k outputs: score -inf, and -1. The cost of `argmax()`, and a best-first search in
        Python over k segments for each segment of an output.
        """
        check_count(k, "k")
        p = self._parts
        marks = torch.full((k, *p.opening.shape[:2]), -1)
        exists = torch.zeros(k, p.opening.shape[0], dtype=torch.bool)
        with torch.no_grad():
            best = self._engine.completions(p)
        for b in range(marks.shape[1]):
            for i, path in enumerate(best_paths(p.arrays, b, best[b], k, self._longest_first)):
                exists[i, b] = True
                for t, state in path:
                    marks[i, b, t] = state
        marks, exists = marks.to(p.opening.device), exists.to(p.opening.device)
        scores = torch.where(exists, self._score(marks), -math.inf)
        return scores.T, self._outputs(marks).transpose(0, 1)

    def uniform(self) -> Self:
        """The same outputs, every one with score 0 (what -inf forbids stays forbidden)."""
        return self._of(self._parts.uniform(), self._only)

    def expectation(self, other: Self) -> Tensor:
        """E[other.score(y)], y drawn from self. (B,); 0 where self has no output. Three times `log_partition()`."""
        if type(other) is not type(self):
            raise TypeError(f"other: got {type(other).__name__}, but wanted a {type(self).__name__}")
        p, f = self._parts, other._parts
        same = p.opening.shape == f.opening.shape and p.durations.shape == f.durations.shape
        if not same or p.shortest != f.shortest:
            raise ValueError(f"other: got {other!r}, but wanted the batch, frames, segments and durations of {self!r}")
        if (p.lengths != f.lengths).any() or (p.counts != f.counts).any():
            raise ValueError("other: got other lengths, but two structures are compared over the same outputs")
        if p.opening.dtype != f.opening.dtype:
            raise TypeError(f"other: got {f.opening.dtype}, but wanted {p.opening.dtype}")
        if p.rates is not None or f.rates is not None:
            p, f = p.with_rates(), f.with_rates()
        value: Tensor = self._engine.expectation(p, f)
        return value

    def strata(self, loss: Loss, reference: Any, lowest: bool = False) -> Strata:
        """The best output at each value of loss(y, reference), or the one of lowest score.

        With V values, V times the time and memory of `argmax()`; an error where that is more than 512 MiB an example.
        """
        p, levels = self._parts.negated() if lowest else self._parts, self._levels(loss, reference)
        # A search, and not differentiated: by the kernels under either engine.
        best, marks = segmentation_native.strata(p, levels, self._longest_first)
        like = p.opening
        return Strata(
            torch.from_numpy(levels.values[:, 0]).to(like),
            self._outputs(marks.to(like.device).transpose(0, 1)).transpose(0, 1),
            (best > -math.inf).to(like.device),
        )

    def _repr(self, **sizes: int) -> str:
        p = self._parts
        own = ", ".join(f"{name}={size}" for name, size in sizes.items())
        return (
            f"{type(self).__name__}(batch={p.opening.shape[0]}, frames={p.opening.shape[1]}, {own}, "
            f"durations={p.shortest} to {p.durations.shape[1]}, {p.opening.dtype}, {p.opening.device})"
        )


def check_scores(x: Tensor, name: str, shape: tuple[int, ...], within: Tensor) -> Tensor:
    """x, 0 where it is not within (broadcast to the shape); raise unless the rest are numbers or -inf."""
    check_floating(x, name)
    if tuple(x.shape) != shape:
        raise ValueError(f"{name}: got shape {tuple(x.shape)}, but wanted {shape}")
    wrong = unfit(x) & within
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        whose = f"example {place[0]} has" if x.dim() > 2 else "got"
        raise ValueError(f"{name}: {whose} {objection(x[tuple(place)], f' at {tuple(place)}')}")
    return x if bool(within.all()) else apply(_Within, x, within)


class _Within(torch.autograd.Function):
    """x where it is within, else 0. Unlike torch.where it can be differentiated again and again, as x itself can."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, within: Tensor) -> Tensor:
        ctx.within = within
        return torch.where(within, x, 0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return torch.where(ctx.within, g, 0), None


def check_alike(scores: dict[str, Tensor]) -> None:
    """Raise unless all are floating-point, on one device and of one precision."""
    for name, x in scores.items():
        check_floating(x, name)
    (first, like), *rest = scores.items()
    for name, x in rest:
        if x.device != like.device:
            raise ValueError(f"{name}: got device {x.device}, but {first} is on {like.device}")
        if x.dtype != like.dtype:
            raise TypeError(f"{name}: got {x.dtype}, but {first} is {like.dtype}")


def longest_duration(given: dict[str, int], frames: int, min_duration: int, max_duration: int | None) -> int:
    """D, from the potentials that have an axis for it, or from max_duration, or T."""
    check_count(min_duration, "min_duration")
    if max_duration is not None:
        check_count(max_duration, "max_duration")
        if max_duration < min_duration:
            raise ValueError(f"max_duration: got {max_duration}, below min_duration, {min_duration}")
    longest = min(given.values(), default=max(1, frames))
    return longest if max_duration is None else min(longest, max_duration)
