"""The Hamming loss: positions where the answer differs from the reference."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.losses.base import PositionLoss
from structloss.losses.labels import UNKNOWN, Labels, as_lengths, as_padded, check_labels, check_unknown


class Hamming(PositionLoss):
    r"""How many positions are wrong, or what they cost.

    .. math:: L(y, r) = \sum_t 1[y_t \ne r_t] \quad\text{or}\quad \sum_t \text{costs}[r_t, y_t]

    Cortes 2018 (section 2.1) divides by the length: `normalize=True`. Positions whose reference is unknown (-100) or
    padding (negative at the end of a tensor's row) cost nothing.

    Args:
        costs: (K, K), the cost of answering j where the reference has i; by default 0 on the diagonal and 1 elsewhere.
        normalize: divide by the number of positions.

    Example:
        >>> import torch, structloss as sl
        >>> y, reference = torch.tensor([[0, 1, 1]]), torch.tensor([[0, 2, 1]])
        >>> sl.Hamming()(y, reference)
        tensor([1.])
        >>> sl.Hamming(costs=torch.tensor([[0., 1., 1.], [1., 0., 1.], [5., 5., 0.]]))(y, reference)
        tensor([5.])
    """

    def __init__(self, costs: Tensor | None = None, normalize: bool = False) -> None:
        if costs is not None:
            if costs.dim() != 2 or costs.shape[0] != costs.shape[1]:
                raise ValueError(f"costs: got shape {tuple(costs.shape)}, but wanted (K, K)")
            if not costs.is_floating_point():
                raise TypeError(f"costs: got {costs.dtype}, but wanted floating-point numbers")
            if not torch.isfinite(costs).all():
                raise ValueError("costs: got an entry that is infinite or NaN, but wanted finite costs")
        self.costs = costs
        self.normalize = normalize

    def __repr__(self) -> str:
        costs = "None" if self.costs is None else f"tensor{tuple(self.costs.shape)}"
        return f"Hamming(costs={costs}, normalize={self.normalize})"

    def __call__(self, y: Labels, reference: Labels, lengths: Tensor | None = None) -> Tensor:
        y, own = as_padded(y, "y")
        reference, reference_lengths = as_padded(reference, "reference", y.device)
        if reference_lengths is not None and own is None and reference.shape[-2] == y.shape[-2]:
            # A list has its own lengths, which must be the answers'.
            sizes = (y >= 0).sum(-1) if lengths is None else as_lengths(lengths, y.shape[-2], y.shape[-1], y.device)
            wrong = (sizes != reference_lengths).reshape(-1, y.shape[-2])
            if wrong.any():
                b = int(wrong.any(0).int().argmax())
                raise ValueError(
                    f"reference: reference[{b}] has {int(reference_lengths[b])} labels, but the answer has "
                    f"{int(sizes.reshape(-1, y.shape[-2])[wrong[:, b].int().argmax(), b])}, and the Hamming loss "
                    "compares position by position"
                )
            reference = torch.nn.functional.pad(reference, (0, y.shape[-1] - reference.shape[-1]), value=UNKNOWN)
        if reference.shape[-2:] != y.shape[-2:] or (own is not None and not _equal(own, reference_lengths)):
            raise ValueError(
                f"reference: got shape {tuple(reference.shape)} for answers of shape {tuple(y.shape)}, but the Hamming "
                "loss compares position by position: wanted the same number of examples and labels"
            )
        batch, positions = y.shape[-2:]
        check_unknown(reference, reference_lengths, "reference")
        within = y >= 0
        if lengths is not None:
            lengths = as_lengths(lengths, batch, positions, y.device)
            within = within & (torch.arange(positions, device=y.device) < lengths[:, None])
        counted = within & (reference >= 0)
        if self.costs is None:
            wrong = (y != reference).to(torch.get_default_dtype())
        else:
            for labels, name in ((y, "y"), (reference, "reference")):
                labels = torch.where(counted, labels, 0).flatten(0, -2)
                everywhere = labels.new_full((labels.shape[0],), positions)
                check_labels(labels, everywhere, self.costs.shape[0], name, allow_unknown=False)
            wrong = self.costs.to(y.device)[torch.where(counted, reference, 0), torch.where(counted, y, 0)]
        total = torch.where(counted, wrong, 0).sum(-1)
        return total / within.sum(-1).clamp(min=1) if self.normalize else total

    def position_costs(self, reference: Tensor, lengths: Tensor, num_labels: int, dtype: torch.dtype) -> Tensor:
        if self.costs is not None and self.costs.shape[0] != num_labels:
            raise ValueError(f"costs: got {self.costs.shape[0]} labels, but the structure has {num_labels}")
        device, positions = reference.device, reference.shape[1]
        counted = (torch.arange(positions, device=device) < lengths[:, None]) & (reference != UNKNOWN)
        if self.costs is None:
            costs = (reference[:, :, None] != torch.arange(num_labels, device=device)).to(dtype)  # (B, T, K)
        else:
            costs = self.costs.to(device=device, dtype=dtype)[torch.where(counted, reference, 0)]
        costs = torch.where(counted[:, :, None], costs, 0)
        return costs / lengths.clamp(min=1)[:, None, None] if self.normalize else costs

    def classes(self, reference: NDArray[np.int64], num_labels: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        if self.costs is not None or not len(reference):
            return super().classes(reference, num_labels)
        # Labels that the reference lacks cost the same: one of them, the last class, stands for all.
        present = np.unique(reference[(reference >= 0) & (reference < num_labels)])
        class_of = np.full(num_labels, len(present), np.int64)
        class_of[present] = np.arange(len(present))
        wrong = reference[:, None] != np.append(present, -1)
        columns = np.where((reference == UNKNOWN)[:, None], 0.0, wrong.astype(np.float64))
        return class_of, columns / len(reference) if self.normalize else columns


def _equal(a: Tensor, b: Tensor | None) -> bool:
    return b is None or torch.equal(a, b)
