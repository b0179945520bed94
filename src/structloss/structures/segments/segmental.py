"""What is common to structures whose outputs cut frames into segments."""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from structloss.losses import Loss
from structloss.structures.base import Engine, Parted, Strata
from structloss.structures.checks import at_least_float32, check_count, check_floating, objection, unfit
from structloss.structures.derivatives import Linear, apply
from structloss.structures.engine import is_native
from structloss.structures.segments import explicit, native_engine, torch_engine
from structloss.structures.segments.parts import Parts, covering, following_start, limits_of
from structloss.structures.segments.strata import levels_of
from structloss.structures.tensors import wide


class Segmental(Parted):
    """T frames cut into segments, each in one of K states.

    Inside, an output is its marks (B, T): the state of the segment that starts at each frame, -1 where none does.
    """

    _states: ClassVar[str]  # what its states are
    _parts: Parts

    @abstractmethod
    def _costs(self, loss: Loss, reference: Any, dtype: torch.dtype) -> Tensor:
        """What a loss costs, (B, T, K): a frame in state k, or a segment that starts there."""

    def _agreeing(self, marks: Tensor, elsewhere: Tensor, complete: bool) -> Self:
        """The outputs that start segments where marks (B, T) are not negative, and never elsewhere (B, T, K).

        Where the marks are complete, they are the one output that is left.
        """
        p = self._parts
        limits = torch.minimum(p.limits, limits_of(marks >= 0, p.lengths))
        opening, only = p.opening.masked_fill(elsewhere, -math.inf), marks if p.only is None and complete else p.only
        return self._like(replace(p, opening=opening, limits=limits, only=only))

    @property
    def lengths(self) -> Tensor:
        """How many frames each example has, (B,)."""
        return self._parts.lengths

    def _score(self, marks: Tensor) -> Tensor:
        """The score (n, B) of marks (n, B, T); -inf of those that leave a frame out or have a forbidden duration."""
        p, (n, batch, frames), device = self._parts, marks.shape, marks.device
        starts, covered = (marks >= 0) & p.within, covering(marks, p.within)
        i, b, t = starts.nonzero(as_tuple=True)  # of the segments of all outputs, one after the other
        output, k, d = i * batch + b, marks[i, b, t], following_start(starts, p.lengths)[i, b, t] - t
        first = torch.ones_like(starts[i, b, t])
        first[1:] = output[1:] != output[:-1]
        forbidden = (d < p.shortest) | (d > p.durations.shape[1]) | (d > p.limits[b, t])
        d = d.clamp(max=p.durations.shape[1]) - 1
        values = p.opening[b, t, k].double() + p.durations[b, d, k]
        if p.transitions is not None:
            values = values + p.transitions[b, torch.where(first, 0, k.roll(1) + 1), k]
        if p.rates is not None:
            values = values + torch.where(first, 0, p.rates[b, k, d.roll(1), d])
        values = values.masked_fill(forbidden, -math.inf)
        total = values.new_zeros(n * batch).index_add(0, output, values).view(n, batch)
        examples, places = torch.arange(batch, device=device), torch.arange(frames, device=device)
        own = p.frames[examples[:, None], places, covered.clamp(min=0)]
        total = total + torch.where(p.within, own, 0).double().sum(2)
        last = torch.cat([covered.new_full((n, batch, 1), -1), covered], 2)  # the state before each frame
        last = last.gather(2, p.lengths.expand(n, -1)[:, :, None])[:, :, 0]
        total = total + p.final[examples, last + 1]
        possible = ((covered >= 0) | ~p.within).all(2) & (total > -math.inf)
        return torch.where(possible, total, -math.inf).to(p.opening.dtype)

    @property
    def _engine(self) -> Engine[Parts]:
        if self._parts.added:
            return explicit
        return native_engine if is_native(self.device) else torch_engine

    def _single(self) -> Tensor | None:
        return None if self._parts.only is None else self._parts.only[None]

    def _check_same(self, other: Self) -> None:
        p, f = self._parts, other._parts
        same = p.opening.shape == f.opening.shape and p.durations.shape == f.durations.shape
        if not same or p.shortest != f.shortest:
            raise ValueError(f"other: got {other!r}, but wanted the batch, frames, segments and durations of {self!r}")
        if (p.lengths != f.lengths).any() or (p.counts != f.counts).any():
            raise ValueError("other: got other lengths, but two structures are compared over the same outputs")

    def _expectation(self, other: Self) -> Tensor:
        p, f = self._parts, other._parts
        if p.added or f.added:
            return explicit.lattice_of(p).expectation(explicit.lattice_of(f))
        if p.rates is not None or f.rates is not None:
            p, f = p.with_rates(), f.with_rates()
        if is_native(self.device):
            return native_engine.expectation(p, f)
        return super(Segmental, self._like(p.map(wide)))._expectation(other._like(f.map(wide))).to(self.dtype)

    def _strata(self, loss: Loss, reference: Any) -> Strata:
        p = self._parts
        losses, levels = levels_of(self._costs(loss, reference, torch.float64), p)
        found = (native_engine if is_native(self.device) else torch_engine).strata(p, levels)
        return Strata(torch.from_numpy(losses).to(p.opening), *found)

    def _sizes(self) -> dict[str, object]:
        p = self._parts
        (_, frames, states), longest = p.opening.shape, p.durations.shape[1]
        return {"frames": frames, self._states: states, "durations": f"{p.shortest} to {longest}"}


def sizes_of(scores: dict[str, Tensor], axes: dict[str, str], empty: str) -> dict[str, int]:
    """The size of each axis: it is the same in all scores. Raise unless these are alike, and only some axes `empty`.

    The axes of a score are letters, of several ways to give it separated by a space: {"durations": "KD BKD"}.
    """
    (first, like), *_ = scores.items()
    sizes: dict[str, int] = {}
    for name, x in scores.items():
        check_floating(x, name)
        if x.device != like.device:
            raise ValueError(f"{name}: got device {x.device}, but {first} is on {like.device}")
        if x.dtype != like.dtype:
            raise TypeError(f"{name}: got {x.dtype}, but {first} is {like.dtype}")
        letters = next((own for own in axes[name].split() if len(own) == x.dim()), "")
        if not letters or any(size == 0 and axis not in empty for axis, size in zip(letters, x.shape, strict=True)):
            wanted = " or ".join(f"({', '.join(own)})" for own in axes[name].split())
            raise ValueError(
                f"{name}: got shape {tuple(x.shape)}, but wanted {wanted}, with none of them 0 but {', '.join(empty)}"
            )
        shape = tuple(sizes.setdefault(axis, size) for axis, size in zip(letters, x.shape, strict=True))
        if x.shape != shape:
            raise ValueError(f"{name}: got shape {tuple(x.shape)}, but wanted {shape}")
    return sizes


def as_scores(
    given: dict[str, Tensor], axes: dict[str, str], sizes: dict[str, int], within: dict[str, Tensor]
) -> dict[str, Tensor]:
    """All scores, 0 where they are not within, or not given; raise unless the rest are numbers or -inf."""
    zero, scores = at_least_float32(next(iter(given.values())).new_zeros(())), {}
    for name, letters in axes.items():
        scores[name] = zero.expand([sizes[axis] for axis in letters.split()[0]])
        if name in given:
            x, inside = given[name], within.get(name, torch.ones_like(zero, dtype=torch.bool))
            wrong = unfit(x) & inside
            if wrong.any():
                place = tuple(wrong.nonzero()[0].tolist())
                whose = f"example {place[0]} has" if x.dim() > 2 else "got"
                raise ValueError(f"{name}: {whose} {objection(x[place], f' at {place}')}")
            scores[name] = at_least_float32(x if bool(inside.all()) else _masked(x, inside))
    return scores


def _masked(x: Tensor, within: Tensor) -> Tensor:
    """x where it is within, else 0; unlike torch.where it can be differentiated again and again, as x itself can."""

    def mask(x: Tensor) -> Tensor:
        return torch.where(within, x, 0)

    return apply(Linear, x, mask, mask)


def longest_duration(sizes: dict[str, int], min_duration: int, max_duration: int | None) -> int:
    """The most frames of a segment, from the axis D of scores, T where none has it, and max_duration."""
    check_count(min_duration, "min_duration")
    if max_duration is not None:
        check_count(max_duration, "max_duration")
        if max_duration < min_duration:
            raise ValueError(f"max_duration: got {max_duration}, below min_duration, {min_duration}")
    longest = sizes.setdefault("D", max(1, sizes["T"]))
    return longest if max_duration is None else min(longest, max_duration)
