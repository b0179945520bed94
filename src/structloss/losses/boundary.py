"""Losses of a segmentation: how far its boundaries are from the reference's."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from structloss.losses.local import LocalLoss
from structloss.losses.references import Labels, as_pairs

_ROUNDING = 1e-6  # frames that times in seconds and milliseconds may be off by, as floating-point numbers


class BoundaryLoss(LocalLoss):
    r"""A mean over boundaries, :math:`L(y, r) = \frac{1}{|r|} \sum_k \text{penalty}(|y_k - r_k|)`.

    Boundaries are the frames where segments start. Those of the reference may lie between frames, as times do: floats.
    Those whose reference is unknown (-100) are not counted, -1 is padding.
    """

    over = "boundaries"

    def __init__(self, tau: float | None = None, *, tau_ms: float | None = None, frame_ms: float | None = None) -> None:
        if (tau is None) == (tau_ms is None) or (tau_ms is None) != (frame_ms is None):
            raise ValueError(
                f"tau: got tau={tau!r}, tau_ms={tau_ms!r}, frame_ms={frame_ms!r}, but wanted tau in frames, or tau_ms "
                "and frame_ms in milliseconds"
            )
        for value, name in ((tau, "tau"), (tau_ms, "tau_ms"), (frame_ms, "frame_ms")):
            if value is not None and not (0 <= value < math.inf and (value > 0 or name != "frame_ms")):
                wanted = "above 0" if name == "frame_ms" else "of at least 0"
                raise ValueError(f"{name}: got {value!r}, but wanted a finite number {wanted}")
        if tau is not None:
            self.tau = float(tau)
        else:
            assert tau_ms is not None
            assert frame_ms is not None
            self.tau = tau_ms / frame_ms

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tau={self.tau:g})"

    @abstractmethod
    def penalty(self, distance: Tensor) -> Tensor:
        """What boundaries cost that are so many frames (floating-point) from where they should be."""

    def __call__(self, y: Labels, reference: Labels, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        starts, wanted = as_pairs(y, reference, lengths, between=True)
        if wanted.dtype == torch.bool:
            raise TypeError("reference: got sets of labels, but wanted the frames where segments start")
        counted = (starts >= 0) & (wanted >= 0)
        penalty = self.penalty((starts - wanted).abs().double()).to(torch.get_default_dtype())
        return torch.where(counted, penalty, 0).sum(-1) / counted.sum(-1).clamp(min=1)

    def costs_of(self, reference: Tensor, lengths: Tensor, choices: int, dtype: torch.dtype) -> Tensor:
        """What it costs to start each segment at each frame, (B, N, frames), for references (B, N).

        Example:
            >>> import torch, structloss as sl
            >>> sl.BoundaryTolerance(1).costs_of(torch.tensor([[0, 3]]), torch.tensor([2]), 5, torch.float32)
            tensor([[[0.0000, 0.0000, 0.5000, 0.5000, 0.5000],
                     [0.5000, 0.5000, 0.0000, 0.0000, 0.0000]]])
        """
        device = reference.device
        counted = (reference >= 0) & (torch.arange(reference.shape[1], device=device) < lengths[:, None])
        distance = (torch.arange(choices, device=device) - reference[:, :, None]).abs().double()
        share = counted / counted.sum(1, keepdim=True).clamp(min=1).to(dtype)
        return torch.where(counted[:, :, None], self.penalty(distance).to(dtype), 0) * share[:, :, None]


class BoundaryTolerance(BoundaryLoss, name="tolerance"):
    r"""The part of boundaries that are off by more than tau: the tau-alignment loss (McAllester 2010, eq. 16).

    .. math:: L(y, r) = \frac{1}{|r|} \left| \{k : |y_k - r_k| > \tau\} \right|

    Args:
        tau: the tolerance in frames; it need not be a whole number.
        tau_ms, frame_ms: instead of tau, the tolerance and the length of a frame in milliseconds.

    y and reference are the frames where segments start, (B, N) or lists of them, as `Segmentation` gives them. Those of
    the reference may lie between frames: a float t stands for the time t * frame_ms, and the loss is then what is
    reported of times. What is unknown in the reference (-100) is not counted, -1 is padding. Cost N an answer; a
    `Segmentation` carries it at no cost, since it adds to the scores of boundaries.

    Example:
        >>> import torch, structloss as sl
        >>> y, reference = torch.tensor([[0, 4, 9, 12]]), torch.tensor([[0, 5, 12, 12]])
        >>> sl.BoundaryTolerance(1)(y, reference)
        tensor([0.2500])
        >>> sl.BoundaryTolerance(1)(y, [[0, 5.2, 9.7, 12.9]])  # 1.2, 0.7 and 0.9 frames off
        tensor([0.2500])
        >>> sl.BoundaryTolerance(tau_ms=20, frame_ms=10)
        BoundaryTolerance(tau=2)
    """

    def penalty(self, distance: Tensor) -> Tensor:
        return (distance > self.tau + _ROUNDING).to(distance.dtype)


class BoundaryInsensitive(BoundaryLoss, name="insensitive"):
    r"""How far boundaries are off beyond tau, in frames: the tau-insensitive loss (McAllester 2010, eq. 17).

    .. math:: L(y, r) = \frac{1}{|r|} \sum_k \max\{|y_k - r_k| - \tau, 0\}

    Args:
        tau: the tolerance in frames; it need not be a whole number.
        tau_ms, frame_ms: instead of tau, the tolerance and the length of a frame in milliseconds.

    y, reference and cost: as for `BoundaryTolerance`.

    Example:
        >>> import torch, structloss as sl
        >>> y, reference = torch.tensor([[0, 4, 9, 12]]), torch.tensor([[0, 5, 12, 12]])
        >>> sl.BoundaryInsensitive(1)(y, reference)
        tensor([0.5000])
    """

    def penalty(self, distance: Tensor) -> Tensor:
        return (distance - self.tau).clamp(min=0)
