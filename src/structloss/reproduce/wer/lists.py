"""Minimum risk over a list of hypotheses, as recognisers are usually trained: biased, and the baseline here."""

from typing import Any, Literal

import torch
from torch import Tensor

from structloss.losses import Loss
from structloss.objectives import Impossible, Objective, Reduction
from structloss.structures import CTC
from structloss.structures.base import Structure
from structloss.tasks.speech.search import best_strings


class ListRisk(Objective):
    r"""The expected loss over k hypotheses as if there were no other ones.

    .. math:: \sum_{i \le k} \frac{P(y_i)}{\sum_{j \le k} P(y_j)} L(y_i, r)

    With the k best strings of a search it is minimum word error training as it is published (Prabhavalkar et al. 2018),
    with k that are drawn that of Shen et al. 2016. **Both are biased**: neither value nor gradient are those of the
    risk, since probability outside the list is left out. :math:`P(y_i)` is exact. The same number as
    `Lattice.nbest(hypotheses, log P).expected(L, r)`, from the loss itself instead of its machine.
    """

    def __init__(
        self, loss: Loss, k: int, blank: int, kind: Literal["best", "drawn"] = "best",
        reduction: Reduction = "mean", impossible: Impossible = "error",
    ) -> None:  # fmt: skip
        super().__init__(reduction, impossible)
        self.loss, self.k, self.blank, self.kind = loss, k, blank, kind

    def values(self, s: Structure, r: Any) -> Tensor:
        if not isinstance(s, CTC):
            raise TypeError(f"structure: got {type(s).__name__}, but wanted CTC")
        scores, strings = best_strings(s, self.blank, self.k) if self.kind == "best" else self._drawn(s)
        losses = torch.stack([self.loss(row, r) for row in strings]).to(scores)
        return (scores.softmax(0) * losses).sum(0)

    def _drawn(self, s: CTC) -> tuple[Tensor, list[list[list[int]]]]:
        """k paths, what they write, each string once."""
        drawn = s.decode(s.sample(self.k))
        listed = [list(dict.fromkeys(tuple(row[b]) for row in drawn)) for b in range(len(s))]
        strings = [[list(row[i]) if i < len(row) else [] for row in listed] for i in range(self.k)]
        exists = torch.tensor([[i < len(row) for row in listed] for i in range(self.k)])
        scores = torch.stack([s.given(row).log_partition() for row in strings])
        return torch.where(exists, scores, -torch.inf), strings
