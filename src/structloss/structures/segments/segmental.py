"""What is common to structures whose outputs cut frames into segments."""

import copy
import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor

from structloss.losses import Loss
from structloss.losses.references import Labels, as_padded
from structloss.structures.base import Found, Strata, Structure
from structloss.structures.checks import check_count, check_floating, objection, unfit
from structloss.structures.derivatives import apply
from structloss.structures.engine import is_native
from structloss.structures.segments import native_engine, torch_engine
from structloss.structures.segments.parts import Parts, following_start, limits_of
from structloss.structures.segments.strata import levels_of
from structloss.structures.tensors import wide


class Segmental(Structure):
    """T frames cut into segments, each in one of K states.

    Inside, an output is its marks (B, T): the state of the segment that starts at each frame, -1 where none does.
    """

    _parts: Parts
    _only: Tensor | None  # the marks (B, T) of the one output that is left, where a reference says all of it

    def _like(self, parts: Parts) -> Self:
        structure = copy.copy(self)
        structure._parts = parts
        return structure

    @abstractmethod
    def _costs(self, loss: Loss, reference: Any, dtype: torch.dtype) -> Tensor:
        """What a loss costs, (B, T, K): a frame in state k, or a segment that starts there."""

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

    def _agreeing(self, marks: Tensor, elsewhere: Tensor, complete: bool) -> Self:
        """The outputs that start segments where marks (B, T) are not negative, and never elsewhere (B, T, K).

        Where the marks are complete, they are the one output that is left.
        """
        p = self._parts
        limits = torch.minimum(p.limits, limits_of(marks >= 0, p.lengths))
        left = self._like(replace(p, opening=p.opening.masked_fill(elsewhere, -math.inf), limits=limits))
        left._only = marks if self._only is None and complete else self._only
        return left

    @property
    def lengths(self) -> Tensor:
        """How many frames each example has, (B,)."""
        return self._parts.lengths

    @property
    def _batch(self) -> int:
        return self._parts.opening.shape[0]

    @property
    def _potentials(self) -> tuple[Tensor, ...]:
        return tuple(x for x in self._parts.potentials if x is not None)

    def _with_potentials(self, potentials: tuple[Tensor, ...]) -> Self:
        given = iter(potentials)
        return self._like(self._parts.map(lambda _: next(given)))

    def __getitem__(self, examples: int | slice | Tensor) -> Self:
        """Some of the examples, as a batch of their own."""
        index = self._example_numbers(examples)
        part = self._like(self._parts.examples(index))
        part._only = None if self._only is None else self._only[index]
        return part

    @property
    def _native(self) -> bool:
        return is_native(self.device)

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
            total = total + summed(p.transitions[b, node, state], starts)
        if p.rates is not None:
            total = total + summed(p.rates[b, state, duration.gather(2, before) - 1, duration - 1], starts & follows)
        ending = state.gather(2, last)[:, :, 0] + 1 if len(t) else last[:, :, 0]
        total = total + p.final[b[:, 0], torch.where(p.lengths > 0, ending, 0)]
        return torch.where(possible & (total > -math.inf), total, -math.inf).to(p.opening.dtype)

    def _best(self, k: int) -> Found:
        return (native_engine.best if self._native else torch_engine.best)(self._parts, k)

    def _draw(self, n: int, generator: torch.Generator | None) -> Found:
        return (native_engine.draw if self._native else torch_engine.draw)(self._parts, n, generator)

    def _log_partition(self) -> Tensor:
        return (native_engine.log_partition if self._native else torch_engine.log_partition)(self._parts)

    def _single(self) -> Tensor | None:
        return None if self._only is None else self._only[None]

    def _marginals(self) -> Tensor:
        return native_engine.marginals(self._parts) if self._native else super()._marginals()

    def _check_same(self, other: Self) -> None:
        p, f = self._parts, other._parts
        same = p.opening.shape == f.opening.shape and p.durations.shape == f.durations.shape
        if not same or p.shortest != f.shortest:
            raise ValueError(f"other: got {other!r}, but wanted the batch, frames, segments and durations of {self!r}")
        if (p.lengths != f.lengths).any() or (p.counts != f.counts).any():
            raise ValueError("other: got other lengths, but two structures are compared over the same outputs")

    def _expectation(self, other: Self) -> Tensor:
        p, f = self._parts, other._parts
        if p.rates is not None or f.rates is not None:
            p, f = p.with_rates(), f.with_rates()
        if self._native:
            return native_engine.expectation(p, f)
        return super(Segmental, self._like(p.map(wide)))._expectation(other._like(f.map(wide))).to(self.dtype)

    def strata(self, loss: Loss, reference: Any, lowest: bool = False) -> Strata:
        """The best output at each value of loss(y, reference), or the one of lowest score.

        With V values, V times the time and memory of `argmax()`; an error where that is more than 512 MiB an example.
        """
        p = (self.detach()._times(-1.0) if lowest else self)._parts
        with torch.no_grad():
            losses, levels = levels_of(self._costs(loss, reference, torch.float64), p)
            marks, exists = (native_engine.strata if self._native else torch_engine.strata)(p, levels)
        return Strata(torch.from_numpy(losses).to(p.opening), self._outputs(marks, exists), exists)

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
