"""SemiMarkov: frames cut into segments whose labels are to be found, with transitions between them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from structloss.losses import LocalLoss, Loss, MachineLoss
from structloss.losses.agreement import Agreement
from structloss.losses.references import UNKNOWN, Labels, String, as_lengths, as_rows, as_strings, is_sets
from structloss.structures.base import Strata
from structloss.structures.checks import check_over, check_scale, check_shape
from structloss.structures.scores import as_scores, sizes_of
from structloss.structures.segments import explicit
from structloss.structures.segments.parts import Added, Parts, covering, limits_of
from structloss.structures.segments.segmental import Segmental, longest_duration

_AGREEMENT = Agreement()
_AXES = {"boundary": "BTK", "frames": "BTK", "durations": "KD BKD", "transitions": "KK", "start": "K", "end": "K"}


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

    Outputs are int64 (B, T), -1 beyond a length and in examples that have no output; `decode` gives the labels of their
    segments. `marginals()` is the probability that a segment with label k starts at frame t, (B, T, K). Of several best
    outputs the lexicographically smallest is the one that starts its next segment later.

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

    _states = "labels"

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
        named = {"boundary": boundary, "frames": frames, "durations": durations}
        named |= {"transitions": transitions, "start": start, "end": end}
        given = {name: x for name, x in named.items() if x is not None}
        if boundary is None and frames is None:
            raise ValueError("frames: got None, but wanted boundary, frames, or both")
        sizes = sizes_of(given, _AXES, empty="BT")
        batch, T, K = sizes["B"], sizes["T"], sizes["K"]
        longest = longest_duration(sizes, min_duration, max_duration)
        device = next(iter(given.values())).device
        own_lengths = as_lengths(lengths, batch, T, device)
        inside = torch.arange(T, device=device) < own_lengths[:, None]
        scores = as_scores(given, _AXES, sizes, dict.fromkeys(("boundary", "frames"), inside[:, :, None]))
        self._parts = Parts(
            opening=scores["boundary"],
            frames=scores["frames"],
            durations=scores["durations"][..., :longest].expand(batch, K, longest).transpose(1, 2),
            rates=None,
            transitions=torch.cat([scores["start"][None], scores["transitions"]]).expand(batch, K + 1, K),
            final=torch.nn.functional.pad(scores["end"], (1, 0)).expand(batch, K + 1),
            lengths=own_lengths,
            limits=limits_of(torch.zeros_like(inside), own_lengths),
            counts=torch.zeros_like(own_lengths),
            shortest=min_duration,
            longest_first=True,
        )

    @property
    def num_labels(self) -> int:
        """How many labels there are, K."""
        return self._parts.opening.shape[2]

    def _choices(self, y: Tensor, name: str) -> Tensor:
        check_shape(y, tuple(self._parts.opening.shape[:2]), name)
        self._check(y, name, allow_unknown=False)
        return torch.where(self._parts.within, y, -1)

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

    def frame_labels(self, y: Tensor) -> Tensor:
        """The label of the segment that covers each frame, (..., B, T), -1 beyond a length; what is unknown stays so.

        Example:
            >>> import torch, structloss as sl
            >>> sl.SemiMarkov(torch.zeros(1, 5, 3)).frame_labels(torch.tensor([[2, -1, -1, 0, -1]]))
            tensor([[2, 2, 2, 0, 0]])
        """
        return covering(y, self._parts.within)

    # --- Losses that read what is written: through the explicit graph ------------------------------------------------

    def _times(self, factor: float) -> Self:
        scaled = super()._times(factor)._parts
        added = tuple(own._replace(scale=factor * own.scale) for own in scaled.added)
        return self._like(replace(scaled, added=added))

    def _score(self, choices: Tensor) -> Tensor:
        total = super()._score(choices)
        for loss, strings, scale in self._parts.added:
            rows = choices.cpu().numpy()
            values = [[loss.distance(y[y >= 0], r) for y, r in zip(row, strings, strict=True)] for row in rows]
            losses = torch.tensor(values, dtype=total.dtype, device=total.device)
            total = torch.where(losses.isinf(), -math.inf, total + scale * losses.nan_to_num(0.0, 0.0, 0.0))
        return total

    def _strata(self, loss: Loss, reference: Labels) -> Strata:
        if isinstance(loss, MachineLoss):
            lattice = explicit.lattice_of(self._parts)
            found = lattice._strata(loss, self._written(reference))
            return found._replace(outputs=explicit.marks_of(lattice._outputs(found.outputs, found.exists), self._parts))
        if self._parts.added:
            raise NotImplementedError("strata: of a loss over frames, where another reads what is written")
        return super()._strata(loss, reference)

    def _written(self, reference: Labels) -> list[String]:
        """The labels of the segments of a reference: a list of them, or marks (B, T)."""
        if isinstance(reference, Tensor | np.ndarray) and not is_sets(reference):
            marks = self._reference(reference)
            if (marks == UNKNOWN).any():
                b = int((marks == UNKNOWN).any(1).int().argmax())
                raise ValueError(
                    f"reference: reference[{b}] has marks that are unknown, and so is what it writes; wanted a list of "
                    "label sequences"
                )
            reference = self._strings(marks)
        return as_strings(reference, self._batch)

    # --- Losses and references ---------------------------------------------------------------------------------------

    def augment(self, loss: Loss, reference: Labels, scale: float = 1.0) -> Self:
        """The same outputs, y scored by score(y) + scale * loss(y, reference). It is a SemiMarkov again.

        Args:
            loss: Hamming, over frames, at no cost: the label of the segment that covers each frame against the
                reference's. Or a loss with a machine, such as EditDistance, of the labels of the segments, one a
                segment: operations then walk the explicit graph times the machine, T * K * (K + D) arcs times S.
            reference: of Hamming labels of frames (B, T), or an output (B, T), whose -1 say that a segment goes on;
                -100 is unknown. Of a machine a list of label sequences, or an output (B, T).
            scale: a number; negative to subtract the loss.

        Example:
            >>> import torch, structloss as sl
            >>> sl.SemiMarkov(torch.zeros(1, 3, 2)).augment(sl.Hamming(), torch.tensor([[1, 1, 0]])).decode()
            [[0, 1]]
            >>> sl.SemiMarkov(torch.zeros(1, 3, 2)).augment(sl.EditDistance(), [[1, 0]], -1.0).decode()
            [[1, 0]]
        """
        check_scale(scale)
        p = self._parts
        if isinstance(loss, MachineLoss):
            return self._like(replace(p, added=(*p.added, Added(loss, self._written(reference), scale))))
        return self._like(replace(p, frames=p.frames + scale * self._costs(loss, reference, p.frames.dtype)))

    def _costs(self, loss: Loss, reference: Labels, dtype: torch.dtype) -> Tensor:
        """(B, T, K)"""
        if not isinstance(loss, LocalLoss):
            raise TypeError(f"loss: got {loss!r}, but wanted a loss that a SemiMarkov can carry, such as Hamming()")
        check_over(loss, "labels", self)
        labels = self.frame_labels(self._reference(reference))
        labels = torch.where(labels < 0, UNKNOWN, labels)
        return loss.costs_of(labels, self._parts.lengths, self.num_labels, dtype)

    def _reference(self, reference: Labels) -> Tensor:
        """References (B, T), -1 beyond a length."""
        p = self._parts
        marks = as_rows(reference, p.lengths, p.opening.shape[1], "reference", "frames")[0]
        self._check(marks, "reference", allow_unknown=True)
        return torch.where(p.within, marks, -1)

    def given(self, reference: Labels) -> Self:
        """The outputs that agree with the reference wherever it is known, scored as they were.

        Args:
            reference: marks as outputs have them (B, T): the label of the segment that starts at a frame, -1 where none
                does, -100 where neither is known. Or a list of label sequences, one label a segment: all the ways to
                cut that write it.

        Example:
            >>> import torch, structloss as sl
            >>> sl.SemiMarkov(torch.zeros(1, 3, 2)).given(torch.tensor([[1, -100, 0]])).argmax()
            tensor([[ 1, -1,  0]])
        """
        if is_sets(reference) or not isinstance(reference, Tensor | np.ndarray):
            return self.augment(_AGREEMENT, reference, 0.0)
        p, marks = self._parts, self._reference(reference)
        labels = torch.arange(self.num_labels, device=marks.device)
        elsewhere = (marks != UNKNOWN)[:, :, None] & (labels != marks[:, :, None]) & p.within[:, :, None]
        return self._agreeing(marks, elsewhere, bool((marks != UNKNOWN).all()))
