"""Errors in pairs: what an alignment of two sequences leaves out, and what it makes up."""

from collections.abc import Sequence

import torch
from torch import Tensor

from structloss.losses.errors import Errors
from structloss.losses.references import UNKNOWN, Labels, as_padded, as_positions


class PairErrors(Errors, name="pair-errors"):
    r"""How many pairs of the reference the answer lacks, and how many it has that the reference lacks.

    .. math:: L(y, r) = \text{miss} \sum_{(i, j) \in r} 1[(i, j) \notin y]
              + \text{false alarm} \sum_{(i, j) \in y} 1[(i, j) \notin r]

    Answers and references are partners (B, N): of each position of x the position of y that it pairs with, or -1. A
    position that pairs with another than the reference says costs both. Where the reference is unknown (-100), nothing.
    `with_f1(F)` has the costs whose least is the highest F1 of pairs, where it has come to F (Parambath et al. 2014).

    Args:
        miss: the cost of a pair that is left out.
        false_alarm: of one that is made up.

    Example:
        >>> import torch, structloss as sl
        >>> y, reference = torch.tensor([[0, -1, 3, 4]]), torch.tensor([[0, 1, 2, -1]])
        >>> sl.PairErrors()(y, reference)  # two are missed, two made up
        tensor([4.])
    """

    over = "pairs"

    def __call__(self, y: Labels, reference: Labels, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        answers, own = as_padded(y, "y")
        wanted, sizes = as_padded(reference, "reference", answers.device)
        if answers.shape[-2] != wanted.shape[0]:
            raise ValueError(f"reference: got {wanted.shape[0]} references for {answers.shape[-2]} answers")
        if own is not None and sizes is not None and (own != sizes).any():
            b = int((own != sizes).int().argmax())
            raise ValueError(
                f"reference: reference[{b}] has {int(sizes[b])} partners, but the answer has {int(own[b])}, and they "
                "are compared position by position"
            )
        width = max(answers.shape[-1], wanted.shape[1])
        answers, wanted = (torch.nn.functional.pad(x, (0, width - x.shape[-1]), value=-1) for x in (answers, wanted))
        if lengths is not None:
            positions = as_positions(lengths, len(wanted), width, answers.device)
            answers, wanted = (
                torch.where(positions.within, positions.compact_outputs(x), -1) for x in (answers, wanted)
            )
        wrong = (answers != wanted) & (wanted != UNKNOWN)
        missed, made_up = ((wrong & (x >= 0)).sum(-1) for x in (wanted, answers))
        return self.miss * missed + self.false_alarm * made_up.to(torch.get_default_dtype())

    def costs_of(self, reference: Tensor, lengths: Tensor, choices: int, dtype: torch.dtype) -> Tensor:
        if reference.dtype == torch.bool:
            raise TypeError("reference: got sets of partners, but wanted one of each position, -1: none, -100: unknown")
        partner = torch.arange(choices, device=reference.device)
        partner = torch.where(partner == choices - 1, -1, partner)  # the last choice is none
        within = torch.arange(reference.shape[1], device=reference.device) < lengths[:, None]
        counted = (within & (reference != UNKNOWN))[:, :, None]
        there, right = (reference >= 0)[:, :, None], reference[:, :, None] == partner
        costs = self.miss * there.to(dtype) + self.false_alarm * (partner >= 0).to(dtype)
        return torch.where(counted & ~right, costs, 0)
