"""What is common to structures whose outputs cut frames into segments."""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from structloss.kernels.segments import Levels
from structloss.losses import Loss
from structloss.structures.base import Engine, Strata
from structloss.structures.checks import check_count
from structloss.structures.engine import is_native
from structloss.structures.kinds import Parted
from structloss.structures.segments import explicit, native_engine, torch_engine
from structloss.structures.segments.parts import Parts, covering, following_start, limits_of
from structloss.structures.strata import levels_of


class Segmental(Parted):
    """T frames cut into segments, each in one of K states.

    Inside, an output is its marks (B, T): the state of the segment that starts at each frame, -1 where none does.
    """

    _states: ClassVar[str]  # what its states are
    _parts: Parts
    _engines = native_engine, torch_engine

    @abstractmethod
    def _costs(self, loss: Loss, reference: Any, dtype: torch.dtype) -> Tensor:
        """What a loss costs, (B, T, K): a frame in state k, or a segment that starts there."""

    def _agreeing(self, marks: Tensor, elsewhere: Tensor, complete: bool) -> Self:
        """The outputs that start segments where marks (B, T) are not negative, and never elsewhere (B, T, K).

        Where the marks are complete, they are the one output that is left.
        """
        p = self._parts
        limits = torch.minimum(p.limits, limits_of(marks >= 0, p.lengths))
        left = replace(p, opening=p.opening.masked_fill(elsewhere, -math.inf), limits=limits)
        return self._like(left, marks if complete else None)

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
        return explicit if self._parts.added else super()._engine

    @property
    def _lengths(self) -> tuple[Tensor, ...]:
        return self._parts.lengths, self._parts.counts

    def _expectation(self, other: Self) -> Tensor:
        p, f = self._parts, other._parts
        if p.added or f.added:
            return explicit.lattice_of(p).expectation(explicit.lattice_of(f))
        if (p.rates is None) != (f.rates is None):
            return self._like(p.with_rates())._expectation(other._like(f.with_rates()))
        return super()._expectation(other)

    def _strata(self, loss: Loss, reference: Any) -> Strata:
        p, costs = self._parts, self._costs(loss, reference, torch.float64)
        if p.transitions is not None:
            losses, following = levels_of(costs, p.lengths, math.prod(p.num_nodes), "frames")
        else:
            losses, following = levels_of(_reached(costs, p), p.counts, math.prod(p.num_nodes), "segments")
        engine = native_engine if is_native(self.device) else torch_engine
        return Strata(
            torch.from_numpy(losses).to(p.opening), *engine.strata(p, Levels(following, p.transitions is not None))
        )

    def _sizes(self) -> dict[str, object]:
        p = self._parts
        (_, frames, states), longest = p.opening.shape, p.durations.shape[1]
        return {"frames": frames, self._states: states, "durations": f"{p.shortest} to {longest}"}


def _reached(costs: Tensor, p: Parts) -> Tensor:
    """The costs (B, N, T) of segments, those that the frames before and after leave no room for as of the nearest."""
    T, N = costs.shape[1:]
    n, t = torch.arange(N, device=costs.device), torch.arange(T, device=costs.device)
    first, last = n * p.shortest, p.lengths[:, None] - (p.counts[:, None] - n) * p.shortest  # (N,), (B, N)
    last = torch.where(n > 0, last, 0).clamp(0, max(0, T - 1))
    nearest = torch.minimum(torch.maximum(t, first[:, None]), last[:, :, None])
    return costs.transpose(1, 2).gather(2, nearest)


def longest_duration(sizes: dict[str, int], min_duration: int, max_duration: int | None) -> int:
    """The most frames of a segment, from the axis D of scores, T where none has it, and max_duration."""
    check_count(min_duration, "min_duration")
    if max_duration is not None:
        check_count(max_duration, "max_duration")
        if max_duration < min_duration:
            raise ValueError(f"max_duration: got {max_duration}, below min_duration, {min_duration}")
    longest = sizes.setdefault("D", max(1, sizes["T"]))
    return longest if max_duration is None else min(longest, max_duration)
