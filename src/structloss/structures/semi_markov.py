"""SemiMarkov: frames cut into segments whose labels are to be found, with transitions between them."""

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from structloss.kernels.segmentation_max import Levels
from structloss.losses import Loss, PositionLoss
from structloss.losses.labels import UNKNOWN, Labels, as_lengths, as_padded
from structloss.structures.checks import at_least_float32, check_scale
from structloss.structures.segmental import Segmental, check_alike, check_scores, longest_duration
from structloss.structures.segmentation_strata import levels_of
from structloss.structures.segments import Parts, limits_of


class SemiMarkov(Segmental):
    r"""A batch of ways to cut T frames into segments, as many as one likes, each with one of K labels.

    An output y marks the frames where segments start: :math:`y_t` is the label of the segment that starts at frame t,
    -1 where none does. With segments :math:`i = 1, \ldots, m` that have label :math:`k_i`, start at :math:`t_i` and
    have :math:`d_i` frames (the semi-Markov CRF of Sarawagi and Cohen 2004),

    .. math:: \text{score}(y) = \text{start}[k_1] + \sum_i \Big( \text{boundary}[t_i, k_i]
              + \sum_{t = t_i}^{t_i + d_i - 1} \text{frames}[t, k_i] + \text{durations}[k_i, d_i - 1] \Big)
              + \sum_{i > 1} \text{transitions}[k_{i-1}, k_i] + \text{end}[k_m]

    Sums and maxima cost T * K * (D + K), where D is the longest duration; memory T * K. Neighbouring segments may have
    the same label unless transitions forbid it.

    Args:
        boundary: floating-point (B, T, K), of a segment with label k starting at frame t. -inf forbids, here and below.
        frames: (B, T, K), of frame t being in a segment with label k. At least one of these two is given.
        durations: (K, D) or (B, K, D), of a segment with label k having d + 1 frames; none is longer than D.
        transitions: (K, K), from row to column, between the labels of neighbouring segments.
        start, end: (K,), of the first and of the last label.
        lengths: how many frames each example has, integers (B,), 0 to T, or a boolean mask (B, T); by default T.
        min_duration, max_duration: the fewest and the most frames of a segment, by default 1 and D, or T.

    Outputs are int64 (B, T), -1 beyond a length and in examples that have no output. Of several best outputs the
    lexicographically smallest is the one that starts its next segment later.

    Example:
        >>> import torch, structloss as sl
        >>> frames = torch.tensor([[[0., 1.], [0., 2.], [3., 0.], [1., 0.]]])  # B = 1, T = 4, K = 2
        >>> semi = sl.SemiMarkov(frames=frames, transitions=torch.tensor([[-9., 0.], [0., -9.]]))
        >>> semi.argmax(), semi.decode(), semi.max()
        (tensor([[ 1, -1,  0, -1]]), [[1, 0]], tensor([7.]))
        >>> semi.frame_labels(semi.argmax())
        tensor([[1, 1, 0, 0]])
        >>> semi.expected(sl.Hamming(), torch.tensor([[1, -1, 0, -1]]))
        tensor([0.7045])
    """

    _longest_first = True

    def __init__(
        self,
        boundary: Tensor | None = None,
        frames: Tensor | None = None,
        durations: Tensor | None = None,
        transitions: Tensor | None = None,
        start: Tensor | None = None,
        end: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        min_duration: int = 1,
        max_duration: int | None = None,
    ) -> None:
        shared = {"durations": durations, "transitions": transitions, "start": start, "end": end}
        named = {"boundary": boundary, "frames": frames, **shared}
        scores = {name: x for name, x in named.items() if x is not None}
        if boundary is None and frames is None:
            raise ValueError("frames: got None, but wanted boundary, frames, or both")
        check_alike(scores)
        like = next(iter(scores.values()))
        if like.dim() != 3 or like.shape[2] == 0:
            name = next(iter(scores))
            raise ValueError(f"{name}: got shape {tuple(like.shape)}, but wanted (B, T, K) with K at least 1")
        batch, T, K = like.shape
        dtype, device = at_least_float32(like).dtype, like.device
        own_lengths = as_lengths(lengths, batch, T, device)
        within = (torch.arange(T, device=device) < own_lengths[:, None])[:, :, None]
        all_of_it = torch.ones((), dtype=torch.bool, device=device)
        given = {} if durations is None else {"durations": durations.shape[-1]}
        D = longest_duration(given, T, min_duration, max_duration)
        shapes = {"boundary": (batch, T, K), "frames": (batch, T, K), "transitions": (K, K), "start": (K,), "end": (K,)}
        if durations is not None:
            shared_durations = durations.dim() == 2
            shapes["durations"] = (K, durations.shape[-1]) if shared_durations else (batch, K, durations.shape[-1])
        checked = {
            name: check_scores(x, name, shapes[name], within if x.dim() == 3 and name != "durations" else all_of_it).to(
                dtype
            )
            for name, x in scores.items()
        }
        zeros = torch.zeros(1, device=device, dtype=dtype)
        rows = [checked.get("start", zeros.expand(K))[None], checked.get("transitions", zeros.expand(K, K))]
        ends = [zeros, checked.get("end", zeros.expand(K))]
        self._parts = Parts(
            opening=checked.get("boundary", zeros.expand(batch, T, K)),
            frames=checked.get("frames", zeros.expand(batch, T, K)),
            durations=checked.get("durations", zeros.expand(K, D))[..., :D].expand(batch, K, D).transpose(1, 2),
            rates=None,
            transitions=torch.cat(rows),
            final=torch.cat(ends).expand(batch, K + 1),
            lengths=own_lengths,
            limits=limits_of(torch.zeros((batch, T), dtype=torch.bool, device=device), own_lengths),
            counts=torch.zeros_like(own_lengths),
            shortest=min_duration,
        )
        self._only = None

    @property
    def num_labels(self) -> int:
        """How many labels there are, K."""
        return self._parts.opening.shape[2]

    def __repr__(self) -> str:
        return self._repr(labels=self.num_labels)

    def _marks(self, y: Tensor) -> Tensor:
        y, _ = as_padded(y, "y", self._parts.opening.device)
        wanted = tuple(self._parts.opening.shape[:2])
        if y.shape[-2:] != wanted or y.dim() > 3:
            raise ValueError(f"y: got shape {tuple(y.shape)}, but wanted {wanted} or (n, {wanted[0]}, {wanted[1]})")
        self._check(y, "y", allow_unknown=False)
        marks = torch.where(self._parts.within, y, -1)
        return marks if y.dim() == 3 else marks[None]

    def _check(self, marks: Tensor, name: str, allow_unknown: bool) -> None:
        """Raise unless the marks (..., B, T) within the lengths are labels, -1, or unknown, where that is allowed."""
        wrong = self._parts.within & ((marks < -1) | (marks >= self.num_labels))
        wrong = wrong & (marks != UNKNOWN) if allow_unknown else wrong
        if wrong.any():
            *_, b, t = wrong.nonzero()[0].tolist()
            unknown = f", or {UNKNOWN} for unknown" if allow_unknown else ""
            raise ValueError(
                f"{name}: {name}[{b}, {t}] is {int(marks[wrong][0])}, but labels of segments are 0 to "
                f"{self.num_labels - 1}, -1 where none starts{unknown}"
            )

    def _outputs(self, marks: Tensor) -> Tensor:
        return marks

    def decode(self, y: Tensor | None = None) -> list[list[int]]:
        """The labels of the segments of y (B, T), a list for each example; by default those of `argmax()`."""
        y = self.argmax() if y is None else y
        return [[label for label in row if label >= 0] for row in y.tolist()]

    def frame_labels(self, y: Tensor) -> Tensor:
        """The label of the segment that covers each frame, (..., B, T), -1 beyond a length; what is unknown stays so.

        Example:
            >>> import torch, structloss as sl
            >>> sl.SemiMarkov(torch.zeros(1, 5, 3)).frame_labels(torch.tensor([[2, -1, -1, 0, -1]]))
            tensor([[2, 2, 2, 0, 0]])
        """
        within = self._parts.within
        places = torch.arange(y.shape[-1], device=y.device)
        since = torch.where((y != -1) & within, places, 0).cummax(-1).values if y.shape[-1] else y
        return torch.where(within, y.gather(-1, since), -1)

    def marginals(self) -> Tensor:
        """The probability that a segment with label k starts at frame t, (B, T, K): the gradient in `boundary`.

        Example:
            >>> import torch, structloss as sl
            >>> sl.SemiMarkov(torch.zeros(1, 2, 1)).marginals()
            tensor([[[1.0000],
                     [0.5000]]])
        """
        return self._starting()

    def augment(self, loss: Loss, reference: Labels, scale: float = 1.0) -> Self:
        """The same outputs, y scored by score(y) + scale * loss(y, reference). It is a SemiMarkov again, at no cost.

        Args:
            loss: Hamming, over frames: the label of the segment that covers each frame against the reference's.
            reference: labels of frames (B, T), or an output (B, T), whose -1 say that a segment goes on; -100 is
                unknown.
            scale: a number; negative to subtract the loss.

        Example:
            >>> import torch, structloss as sl
            >>> sl.SemiMarkov(torch.zeros(1, 3, 2)).augment(sl.Hamming(), torch.tensor([[1, 1, 0]])).decode()
            [[0, 1]]
        """
        check_scale(scale)
        p, costs = self._parts, self._costs(loss, reference, self._parts.opening.dtype)
        return self._of(p.replace(frames=p.frames + scale * costs), self._only)

    def _costs(self, loss: Loss, reference: Labels, dtype: torch.dtype) -> Tensor:
        """(B, T, K)"""
        if not isinstance(loss, PositionLoss):
            raise TypeError(
                f"loss: got {loss!r}, but wanted a loss over frames, which a SemiMarkov can carry, such as Hamming()"
            )
        labels = self.frame_labels(self._reference(reference))
        labels = torch.where(labels < 0, UNKNOWN, labels)
        return loss.position_costs(labels, self._parts.lengths, self.num_labels, dtype)

    def _reference(self, reference: Labels) -> Tensor:
        """References (B, T), -1 beyond a length."""
        p = self._parts
        marks = self._padded(reference, p.lengths, p.opening.shape[1], "frames")
        self._check(marks, "reference", allow_unknown=True)
        return torch.where(p.within, marks, -1)

    def given(self, reference: Labels) -> Self:
        """The outputs that agree with the reference wherever it is known, scored as they were.

        Args:
            reference: marks as outputs have them (B, T): the label of the segment that starts at a frame, -1 where none
                does, -100 where neither is known.

        Example:
            >>> import torch, structloss as sl
            >>> sl.SemiMarkov(torch.zeros(1, 3, 2)).given(torch.tensor([[1, -100, 0]])).argmax()
            tensor([[ 1, -1,  0]])
        """
        p, marks = self._parts, self._reference(reference)
        labels = torch.arange(self.num_labels, device=marks.device)
        elsewhere = (marks != UNKNOWN)[:, :, None] & (labels != marks[:, :, None]) & p.within[:, :, None]
        only = marks if self._only is None and bool((marks != UNKNOWN).all()) else self._only
        limits = torch.minimum(p.limits, limits_of(marks >= 0, p.lengths))
        return self._of(p.replace(opening=p.opening.masked_fill(elsewhere, -math.inf), limits=limits), only)

    def _levels(self, loss: Loss, reference: Labels) -> Levels:
        costs = self._costs(loss, reference, torch.float64).contiguous().cpu().numpy()
        steps = [list(costs[b, :length]) for b, length in enumerate(self._parts.lengths.tolist())]
        return levels_of(costs, steps, self._parts, by_frame=True)
