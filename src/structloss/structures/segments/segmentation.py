"""Segmentation: frames cut into segments whose names are known, as in the alignment of a recording to its phones."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor

from structloss.losses import Loss
from structloss.losses.references import UNKNOWN, Labels, as_lengths, as_rows
from structloss.structures.checks import check_over, check_scale, check_shape
from structloss.structures.scores import as_scores, sizes_of
from structloss.structures.segments.parts import Parts, limits_of
from structloss.structures.segments.segmental import Segmental, longest_duration

_AXES = {"boundary": "BNT", "frames": "BNT", "durations": "BND", "rates": "BNDD"}


class Segmentation(Segmental):
    r"""A batch of ways to cut T frames into N segments, in order, that cover all frames.

    The outputs y are the frames where the segments start, :math:`0 = y_0 < y_1 < \ldots < y_{N-1}` (McAllester 2010,
    section 6, counts from 1). With :math:`d_n = y_{n+1} - y_n` the duration of segment n, the last of which ends where
    the frames do,

    .. math:: \text{score}(y) = \sum_n \Big( \text{boundary}[n, y_n]
              + \sum_{t = y_n}^{y_n + d_n - 1} \text{frames}[n, t] + \text{durations}[n, d_n - 1] \Big)
              + \sum_{n \ge 1} \text{rates}[n, d_{n-1} - 1, d_n - 1]

    Sums and maxima cost N * T * D, where D is the longest duration, and N * T * D**2 with rates; only starts from which
    all frames can be covered are visited. Memory N * T, and N * T * D with rates.

    Args:
        boundary: floating-point (B, N, T), of segment n starting at frame t. -inf forbids, here and below.
        frames: (B, N, T), of frame t being in segment n.
        durations: (B, N, D), of segment n having d + 1 frames; no segment is longer than D.
        rates: (B, N, D, D), of segment n having d + 1 frames after e + 1 of segment n - 1, at [n, e, d]. At least one
            of these four is given; `lengths` too where neither boundary nor frames are.
        lengths: how many frames each example has, integers (B,), 0 to T, or a boolean mask (B, T); by default T.
        segments: how many segments each example has, integers (B,), 0 to N; by default N. What stands beyond a length
            or a number of segments never matters.
        min_duration, max_duration: the fewest and the most frames of a segment, by default 1 and D, or T.

    Outputs are int64 (B, N), -1 beyond an example's segments; `decode` gives them as lists. `marginals()` is the
    probability that segment n starts at frame t, (B, N, T). An example that cannot be cut so has no output: its
    `log_partition()` and `max()` are -inf with zero gradient, its `argmax()` is -1. bfloat16 and float16 are computed
    and returned in float32.

    Example:
        >>> import torch, structloss as sl
        >>> boundary = torch.tensor([[[0., 0., 0., 0.], [0., 1., 3., 1.]]])  # B = 1, N = 2, T = 4
        >>> segmentation = sl.Segmentation(boundary)
        >>> segmentation.argmax(), segmentation.max()
        (tensor([[0, 2]]), tensor([3.]))
        >>> segmentation.log_partition()  # of three ways
        tensor([3.2395])
        >>> segmentation.augment(sl.BoundaryTolerance(0), [[0, 1]], scale=-6.).argmax()
        tensor([[0, 1]])
    """

    _states = "segments"

    def __init__(
        self,
        boundary: Tensor | None = None,
        frames: Tensor | None = None,
        durations: Tensor | None = None,
        rates: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        segments: Tensor | Sequence[int] | None = None,
        min_duration: int = 1,
        max_duration: int | None = None,
    ) -> None:
        named = {"boundary": boundary, "frames": frames, "durations": durations, "rates": rates}
        given = {name: x for name, x in named.items() if x is not None}
        if not given:
            raise ValueError("boundary: got None, but wanted at least one of boundary, frames, durations and rates")
        sizes = sizes_of(given, _AXES, empty="B")
        if "T" not in sizes:
            sizes["T"] = _most_frames(lengths)
        batch, N, T, device = sizes["B"], sizes["N"], sizes["T"], next(iter(given.values())).device
        own_lengths, counts = as_lengths(lengths, batch, T, device), as_lengths(segments, batch, N, device, "segments")
        longest = longest_duration(sizes, min_duration, max_duration)
        n, t = torch.arange(N + 1, device=device), torch.arange(T, device=device)
        there, inside = n[:N] < counts[:, None], t < own_lengths[:, None]
        both, later = there[:, :, None] & inside[:, None], there & (n[:N] > 0)
        within = {"boundary": both, "frames": both, "durations": there[..., None], "rates": later[..., None, None]}
        scores = as_scores(given, _AXES, sizes, within)
        self._parts = Parts(
            opening=scores["boundary"].transpose(1, 2),
            frames=scores["frames"].transpose(1, 2),
            durations=scores["durations"][:, :, :longest].transpose(1, 2),
            rates=None if rates is None else scores["rates"][:, :, :longest, :longest],
            transitions=None,
            final=torch.where(n == counts[:, None], 0.0, -math.inf).to(scores["boundary"].dtype),
            lengths=own_lengths,
            limits=limits_of(torch.zeros_like(inside), own_lengths),
            counts=counts,
            shortest=min_duration,
        )

    @property
    def segments(self) -> Tensor:
        """How many segments each example has, (B,)."""
        return self._parts.counts

    def _named(self) -> Tensor:
        """Whether each segment is one of its example's, (B, N)."""
        counts = self._parts.counts
        return torch.arange(self._parts.opening.shape[2], device=counts.device) < counts[:, None]

    def _choices(self, y: Tensor, name: str) -> Tensor:
        batch, T, N = self._parts.opening.shape
        check_shape(y, (batch, N), name)
        named = self._named()
        # A row of -1 is also what argmax() gives where there is no output.
        absent = ((y == -1) | ~named).all(2, keepdim=True)
        wrong = self._wrong(y) & ~absent
        if wrong.any():
            i, b, n = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"{name}: the starts of example {b} are {y[i, b].tolist()}, wrong from segment {n} on: wanted 0 "
                f"first, then growing frames up to {int(self._parts.lengths[b]) - 1}, "
                f"{int(self._parts.counts[b])} in all"
            )
        return self._scattered(torch.where(named & ~absent, y, T))

    def _wrong(self, starts: Tensor) -> Tensor:
        """Of starts (..., B, N), which do not follow the one before them, or are outside; unknown ones may be any."""
        known = (starts != UNKNOWN) & self._named()
        latest = torch.where(known, starts, -1).cummax(-1).values
        before = torch.cat([torch.full_like(latest[..., :1], -1), latest[..., :-1]], -1)
        first = torch.arange(starts.shape[-1], device=starts.device) == 0
        outside = (starts >= self._parts.lengths[:, None]) | (first & (starts != 0))
        return known & ((starts <= before) | outside)

    def _scattered(self, starts: Tensor) -> Tensor:
        """Marks (..., B, T) of starts (..., B, N), T for none."""
        _, T, N = self._parts.opening.shape
        marks = starts.new_full((*starts.shape[:-1], T + 1), -1)
        return marks.scatter(-1, starts, torch.arange(N, device=starts.device).expand_as(starts))[..., :T]

    def _outputs(self, choices: Tensor, exists: Tensor) -> Tensor:
        T, N = self._parts.opening.shape[1:]
        starts = choices.new_full((*choices.shape[:-1], N + 1), -1)
        places = torch.arange(T, device=choices.device).expand_as(choices)
        starts = starts.scatter(-1, torch.where(choices >= 0, choices, N), places)[..., :N]
        return torch.where(exists[:, :, None], starts, -1)

    def _marginals(self) -> Tensor:
        return super()._marginals().transpose(1, 2)

    def augment(self, loss: Loss, reference: Labels, scale: float = 1.0) -> Self:
        """The same outputs, y scored by score(y) + scale * loss(y, reference). It is a Segmentation again, at no cost.

        Args:
            loss: BoundaryTolerance or BoundaryInsensitive: one that is a sum over boundaries.
            reference: starts (B, N), -100 where one is unknown, or a list of each example's; floats where they lie
                between frames.
            scale: a number; negative to subtract the loss.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Segmentation(torch.zeros(1, 2, 9)).augment(sl.BoundaryInsensitive(1), [[0, 3]]).argmax()
            tensor([[0, 8]])
        """
        check_scale(scale)
        p, costs = self._parts, self._costs(loss, reference, self._parts.opening.dtype)
        return self._like(replace(p, opening=p.opening + scale * costs))

    def _costs(self, loss: Loss, reference: Labels, dtype: torch.dtype) -> Tensor:
        """(B, T, N)"""
        local = check_over(loss, "boundaries", self, "all outputs of a Segmentation write the same names")
        p = self._parts
        return local.costs_of(self._reference(reference), p.counts, p.opening.shape[1], dtype).transpose(1, 2)

    def _reference(self, reference: Labels) -> Tensor:
        """References (B, N), -1 beyond an example's segments."""
        p = self._parts
        starts = as_rows(reference, p.counts, p.opening.shape[2], "reference", "segments", between=True)[0]
        named, more = self._named(), starts.is_floating_point()  # what is cut into frames may be longer than they are
        wrong = named & (starts != UNKNOWN) & ((starts < 0) | (starts >= p.lengths[:, None] + more))
        if wrong.any():
            b, n = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"reference: reference[{b}, {n}] is {starts[b, n].item()}, but starts are 0 to "
                f"{int(p.lengths[b]) - 1 + more}, or {UNKNOWN} for unknown"
            )
        return torch.where(named, starts, -1)

    def given(self, reference: Labels) -> Self:
        """The outputs that agree with the reference wherever it is known (-100: unknown), scored as they were.

        None, where a known duration is shorter or longer than allowed. Where a reference lies between frames, it is the
        nearest frame that leaves one for every segment (`nearest_starts`).

        Example:
            >>> import torch, structloss as sl
            >>> boundary = torch.tensor([[[0., 0., 0., 0.], [0., 1., 3., 1.], [0., 0., 0., 2.]]])
            >>> sl.Segmentation(boundary).given([[0, -100, 2]]).argmax()
            tensor([[0, 1, 2]])
        """
        p, places = self._parts, self._reference(reference)
        starts = nearest_starts(places, p.lengths, p.counts) if places.is_floating_point() else places
        latest = torch.where(places >= 0, places, -1).cummax(1).values if places.shape[1] else places
        wrong = self._wrong(starts) | ((places >= 0) & (places < latest))
        if wrong.any():
            b, n = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"reference: reference[{b}, {n}] is {places[b, n].item()}, but starts grow from 0 on, segment by "
                "segment"
            )
        known, T = starts >= 0, p.opening.shape[1]
        elsewhere = known[:, None] & (torch.arange(T, device=starts.device)[:, None] != starts[:, None])
        marks = self._scattered(torch.where(known, starts, T))
        return self._agreeing(marks, elsewhere, bool((known | ~self._named()).all()))


def nearest_starts(places: Tensor, lengths: Tensor, segments: Tensor) -> Tensor:
    """The frames (B, N) where segments start whose boundaries lie at places (B, N) between frames, in order.

    The nearest frames, halves up, the first 0. Segments shorter than a frame push their successors on, or at the end
    their predecessors back. -1 and -100 stay as they are.

    Example:
        >>> import torch
        >>> nearest_starts(torch.tensor([[0.0, 10.0, 10.1, 30.0]]), torch.tensor([31]), torch.tensor([4]))
        tensor([[ 0, 10, 11, 30]])
    """
    n = torch.arange(places.shape[1], device=places.device)
    known = places >= 0
    free = torch.where(known, (places + 0.5).floor().to(torch.int64), 0) - n  # as if each had no frame of its own
    free = torch.where(known & (n > 0), free, 0).clamp(min=0)
    pushed = free.cummax(1).values if len(n) else free
    starts = torch.minimum(pushed, (lengths - segments)[:, None]) + n
    return torch.where(known, starts, places.to(torch.int64))


def _most_frames(lengths: Tensor | Sequence[int] | None) -> int:
    """T, of lengths or of a mask."""
    if lengths is None:
        raise ValueError("lengths: got None, but they are wanted where neither boundary nor frames are given")
    given = torch.as_tensor(lengths)
    return given.shape[1] if given.dim() == 2 else int(given.max()) if given.numel() else 0
