"""Brackets that are missed and made up: what F1 over the parts of a tree counts."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from structloss.losses.errors import Errors
from structloss.losses.references import Labels


class BracketErrors(Errors, name="bracket-errors"):
    r"""Brackets of the reference that an answer lacks, and those it makes up, each at its price.

    .. math:: L(y, r) = \text{miss} \sum_{b \in r} 1[b \notin y] + \text{false alarm} \sum_{b \in y} 1[b \notin r]

    A bracket is a span with its label, or an arc of a `Forest`: whatever the numbers in an output stand for. Trained
    with miss = 1 - F/2 and false_alarm = F/2, where F is the F1 that is reached on development data, a model maximises
    F1 (Parambath et al. 2014): `with_f1(F)` is that.

    Args:
        miss: of each bracket of the reference that is not there; at least 0.
        false_alarm: of each bracket that the reference does not have; at least 0.

    Answers and references are brackets (B, L), in any order, negative ones being padding; or of each example a list of
    them, as numbers or as (begin, end, label). What an answer has twice counts twice. Cost L; a structure of trees
    carries it at no cost, since it adds to the scores of brackets.

    Example:
        >>> import structloss as sl
        >>> loss = sl.BracketErrors(miss=2.0, false_alarm=1.0)
        >>> loss([[(0, 2, 1), (0, 1, 0)]], [[(0, 2, 1), (1, 2, 0)]])
        tensor([3.])
    """

    over = "brackets"

    def __call__(self, y: Labels, reference: Labels, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        if lengths is not None:
            raise ValueError("lengths: brackets have none; leave them out")
        if isinstance(y, Tensor) and y.dim() == 3:
            return torch.stack([self(one, reference) for one in y])
        mine, theirs = (_listed(x) for x in (y, reference))
        if len(mine) != len(theirs):
            raise ValueError(f"reference: got {len(theirs)} references for {len(mine)} answers")
        return torch.tensor([self._of_example(own, set(r)) for own, r in zip(mine, theirs, strict=True)])

    def _of_example(self, own: list[Any], wanted: set[Any]) -> float:
        right = sum(x in wanted for x in own)
        return self.miss * (len(wanted) - right) + self.false_alarm * (len(own) - right)

    def costs_of(self, reference: Tensor, lengths: Tensor, choices: int, dtype: torch.dtype) -> Tensor:
        """What each bracket costs that is there, (B, 1, choices), the last of which is there in every answer."""
        batch = reference.shape[0]
        wanted = reference.new_zeros(batch, choices + 1)
        wanted.scatter_(1, torch.where(reference >= 0, reference, choices), 1)
        wanted = wanted[:, :-1].to(dtype)
        costs = self.false_alarm * (1 - wanted) - self.miss * wanted
        costs[:, -1] = self.miss * wanted[:, :-1].sum(1)
        return costs[:, None]


def _listed(rows: Any) -> list[list[Any]]:
    """The brackets of each example, numbers or tuples of them; negative numbers are padding."""
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
    return [
        [tuple(x) if isinstance(x, list | tuple) else x for x in row if not (isinstance(x, int) and x < 0)]
        for row in rows
    ]
