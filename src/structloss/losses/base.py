"""What every loss offers."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from structloss.losses.labels import Labels


class Loss(ABC):
    """L(y, r): what the answer y costs against the reference r. Call it on a batch, get one number for each example."""

    @abstractmethod
    def __call__(self, y: Labels, reference: Labels, lengths: Tensor | None = None) -> Tensor:
        """The losses (B,) of answers y against references, by the loss's own definition.

        Args:
            y: labels (B, T), or (n, B, T) for n answers to each reference (the result is then (n, B)), or a list of
                label sequences. Negative labels are padding, as `argmax()` and `sample()` return them.
            reference: labels (B, T) or a list of label sequences; -100 is an unknown label.
            lengths: how many labels of each example count; by default those of y.
        """


class PositionLoss(Loss):
    """A loss that is a sum over positions, L(y, r) = sum over t of cost(t, y_t): it adds to a chain's own scores."""

    @abstractmethod
    def position_costs(self, reference: Tensor, lengths: Tensor, num_labels: int, dtype: torch.dtype) -> Tensor:
        """cost(t, y) (B, T, K) of each label at each position, for references (B, T); 0 beyond a length."""
