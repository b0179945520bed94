"""The Hamming loss: positions where the answer differs from the reference."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.losses.local import LocalLoss
from structloss.losses.numbers import check_at_least_zero, check_names
from structloss.losses.references import UNKNOWN, Labels, String, as_pairs, check_labels


class Hamming(LocalLoss, name="hamming"):
    r"""How many positions are wrong, or what they cost.

    .. math:: L(y, r) = \sum_t 1[y_t \ne r_t] \quad\text{or}\quad \sum_t \text{costs}[r_t, y_t]

    Cortes 2018 (section 2.1) divides by the length: `normalize=True`. Positions whose reference is unknown (-100) or
    padding cost nothing; where it is a set of labels, the least of them counts.

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

    over = "labels"

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

    @classmethod
    def weighted(cls, labels: Sequence[str], miss: float = 3.0, false_alarm: float = 1.0) -> "Hamming":
        """Hamming with costs for labels of which "O" marks what is not looked for.

        Args:
            labels: the names of labels 0, 1, ..., "O" among them.
            miss: of answering O where the reference has another label.
            false_alarm: of answering another label where the reference has O. To take one of the other labels for
                another costs the larger of the two, as it does both.

        Example:
            >>> import torch, structloss as sl
            >>> loss = sl.Hamming.weighted(["O", "B-PER", "I-PER"], miss=3, false_alarm=1)
            >>> loss(torch.tensor([[0, 1, 2]]), torch.tensor([[1, 0, 2]]))  # one missed, one made up
            tensor([4.])
        """
        check_names(labels)
        if "O" not in labels:
            raise ValueError(f"labels: got {', '.join(labels):.60}, but wanted O among them")
        miss, false_alarm = check_at_least_zero(miss, "miss"), check_at_least_zero(false_alarm, "false_alarm")
        outside, costs = labels.index("O"), torch.full((len(labels), len(labels)), max(miss, false_alarm))
        costs[:, outside] = miss
        costs[outside] = false_alarm
        return cls(costs.fill_diagonal_(0.0))

    def __repr__(self) -> str:
        costs = "None" if self.costs is None else f"tensor{tuple(self.costs.shape)}"
        return f"Hamming(costs={costs}, normalize={self.normalize})"

    def __call__(self, y: Labels, reference: Labels, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        labels, wanted = as_pairs(y, reference, lengths)
        within = labels >= 0
        chosen = torch.where(within, labels, 0)
        if wanted.dtype == torch.bool:
            counted, K = within, wanted.shape[2]
            self._check(chosen, K, "y")
            wrong = (
                _of_sets(wanted, self._matrix(K, wanted.device, torch.get_default_dtype()))
                .expand(*labels.shape, K)
                .gather(-1, chosen[..., None])[..., 0]
            )
        else:
            counted = within & (wanted >= 0)
            known = torch.where(counted, wanted, 0)
            if self.costs is None:
                wrong = (chosen != known).to(torch.get_default_dtype())
            else:
                for x, name in ((chosen, "y"), (known, "reference")):
                    self._check(x, self.costs.shape[0], name)
                wrong = self.costs.to(labels.device)[known, torch.where(counted, chosen, 0)]
        total = torch.where(counted, wrong, 0).sum(-1)
        return total / within.sum(-1).clamp(min=1) if self.normalize else total

    @staticmethod
    def _check(labels: Tensor, num_labels: int, name: str) -> None:
        rows = labels.flatten(0, -2)
        everywhere = rows.new_full((rows.shape[0],), rows.shape[1])
        check_labels(rows, everywhere, num_labels, name, allow_unknown=False)

    def costs_of(self, reference: Tensor, lengths: Tensor, choices: int, dtype: torch.dtype) -> Tensor:
        positions, device = reference.shape[1], reference.device
        within = torch.arange(positions, device=device) < lengths[:, None]
        if reference.dtype == torch.bool:
            counted, costs = within, _of_sets(reference, self._matrix(choices, device, dtype)).to(dtype)
        else:
            counted, matrix = within & (reference >= 0), self._matrix(choices, device, dtype)
            if matrix is None:
                costs = (reference[:, :, None] != torch.arange(choices, device=device)).to(dtype)  # (B, T, K)
            else:
                costs = matrix[torch.where(counted, reference, 0)]
        costs = torch.where(counted[:, :, None], costs, 0)
        return costs / lengths.clamp(min=1)[:, None, None] if self.normalize else costs

    def _matrix(self, num_labels: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """The costs (K, K), where they are given."""
        if self.costs is None:
            return None
        if self.costs.shape[0] != num_labels:
            raise ValueError(f"costs: got {self.costs.shape[0]} labels, but the structure has {num_labels}")
        return self.costs.to(device=device, dtype=dtype)

    def classes(self, reference: String, num_labels: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        if self.costs is not None or reference.ndim > 1 or not len(reference):
            return super().classes(reference, num_labels)
        # Labels that the reference lacks cost the same: one of them, the last class, stands for all.
        present = np.unique(reference[(reference >= 0) & (reference < num_labels)])
        class_of = np.full(num_labels, len(present), np.int64)
        class_of[present] = np.arange(len(present))
        wrong = reference[:, None] != np.append(present, -1)
        columns = np.where((reference == UNKNOWN)[:, None], 0.0, wrong.astype(np.float64))
        return class_of, columns / len(reference) if self.normalize else columns


def _of_sets(sets: Tensor, costs: Tensor | None) -> Tensor:
    """What each label costs where any label of a set (B, T, K) is right: the least cost, (B, T, K)."""
    if costs is None:
        return (~sets).to(torch.get_default_dtype())
    return torch.where(sets[..., None], costs, torch.inf).amin(2)
