"""What structures share whose outputs are trees: their parts (arcs, brackets) have scores, to which losses add."""

import math
from abc import abstractmethod
from typing import Any, Self

import torch
from torch import Tensor

from structloss.losses import Loss
from structloss.structures.checks import check_scale
from structloss.structures.kinds import Scored
from structloss.structures.tensors import wide


class Trees(Scored):
    """Sets of trees, which score the sum of the scores of their parts."""

    @abstractmethod
    def _costs(self, loss: Loss, reference: Any, dtype: torch.dtype) -> Tensor:
        """What each part costs, in the shape of the scores: of a tree they sum up to its loss."""

    def augment(self, loss: Loss, reference: Any, scale: float = 1.0) -> Self:
        """The same trees, y scored by score(y) + scale * loss(y, reference), at no cost.

        Args:
            loss: a sum over words for a `DependencyTree`, such as `Hamming`; else one over brackets, `BracketErrors`.
            reference: in one of the forms that the structure names.
            scale: a number; negative to subtract the loss.
        """
        check_scale(scale)
        return self._with(_scores=self._scores + scale * self._costs(loss, reference, self.dtype))

    def _summed(self, own: Tensor, used: Tensor, none: Tensor) -> Tensor:
        """The scores (n, B) of trees, from those of their parts (n, B, L) where these are used; -inf where is none."""
        value = torch.where(used, wide(own), 0).sum(2)
        return torch.where(none | (value == -math.inf), -math.inf, value).to(self.dtype)
