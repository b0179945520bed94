"""Edit distance and Smith-Waterman: the least cost of an alignment, of the whole strings or of stretches of them."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.automata.acceptors import (
    affine_edit_acceptor,
    affine_local_acceptor,
    banded_edit_acceptor,
    edit_acceptor,
    smith_waterman_acceptor,
)
from structloss.automata.automaton import MAX_STATES
from structloss.automata.tropical import edit_limits, open_limits
from structloss.kernels.alignment import Gaps, Pairs, alignment, least_cost, windowed_cost
from structloss.kernels.subsumption import Acceptor, Limits
from structloss.losses.acceptor import AcceptorLoss
from structloss.losses.numbers import as_number, check_at_least_zero
from structloss.losses.references import UNKNOWN, Labels, String, as_strings


class AlignmentLoss(AcceptorLoss):
    """The least cost of an alignment: of pairs, of insertions and of deletions."""

    local: ClassVar[bool]  # of stretches of the strings, not of the whole

    def __init__(
        self,
        match: float,
        substitution: float | Tensor,
        insertion: float,
        deletion: float,
        cap: float | None,
        max_states: int,
        gap_open: float | None,
        gap_extend: float | None,
        threshold: float | None,
    ) -> None:
        super().__init__(cap, max_states, threshold)
        self.match = as_number(match, "match", "a finite number of at most 0")
        if not (self.match <= 0 and math.isfinite(self.match)):
            raise ValueError(f"match: got {match!r}, but wanted a finite number of at most 0")
        self.insertion = check_at_least_zero(insertion, "insertion")
        self.deletion = check_at_least_zero(deletion, "deletion")
        self.affine = gap_open is not None
        if (gap_open is None) != (gap_extend is None):
            raise ValueError(f"gap_extend: got {gap_extend} beside gap_open={gap_open}, but wanted both, or neither")
        if gap_open is not None and gap_extend is not None:
            if (self.insertion, self.deletion) != (1.0, 1.0):
                raise ValueError(
                    f"gap_open: got {gap_open} beside insertion={insertion}, deletion={deletion}, which it replaces; "
                    "wanted one or the other"
                )
            opens, extends = check_at_least_zero(gap_open, "gap_open"), check_at_least_zero(gap_extend, "gap_extend")
            if extends > opens:
                raise ValueError(f"gap_extend: got {gap_extend}, but wanted at most gap_open, {gap_open}")
            self.gaps = Gaps(opens, extends, opens, extends)
        else:
            self.gaps = Gaps(self.insertion, self.insertion, self.deletion, self.deletion)
        self.substitution: float | NDArray[np.float64]
        if isinstance(substitution, Tensor):
            if substitution.dim() != 2 or substitution.shape[0] != substitution.shape[1]:
                raise ValueError(f"substitution: got shape {tuple(substitution.shape)}, but wanted a number or (K, K)")
            self.substitution = substitution.detach().cpu().double().numpy()
            if not np.isfinite(self.substitution).all():
                raise ValueError("substitution: got an entry that is infinite or NaN, but wanted finite costs")
        else:
            self.substitution = check_at_least_zero(substitution, "substitution")

    @property
    def _shown_gaps(self) -> str:
        if self.affine:
            return f"gap_open={self.gaps.first_insertion}, gap_extend={self.gaps.next_insertion}"
        return f"insertion={self.insertion}, deletion={self.deletion}"

    @property
    def pairs(self) -> Pairs:
        """The cost of aligning two labels."""
        if isinstance(self.substitution, float):
            return Pairs(self.match, self.substitution, np.empty((0, 0)))
        return Pairs(0.0, 0.0, self.substitution)

    def _checked(self, reference: String, largest: int) -> String:
        """The reference as sets (n, m), all of whose labels, and the largest of the answer's, have costs."""
        largest = max(largest, int(reference.max(initial=0)))
        if not isinstance(self.substitution, float) and largest >= len(self.substitution):
            raise ValueError(
                f"substitution: got costs for {len(self.substitution)} labels, but the strings have labels up to "
                f"{largest}"
            )
        return np.ascontiguousarray(reference if reference.ndim == 2 else reference[:, None])

    def uncapped(self, y: String, reference: String) -> float:
        sets = self._checked(reference, int(y.max(initial=0)))
        return float(least_cost(y, sets, self.pairs, self.gaps, self.local))

    def align(self, y: Labels, reference: Labels) -> Tensor:
        """Who pairs with whom: of each label of y the place of its partner in the reference, -1 for none, (B, T).

        Of several alignments of least cost the lexicographically smallest. A cap plays no part in it.

        Example:
            >>> import structloss as sl
            >>> sl.EditDistance().align([[0, 1, 2]], [[1, 2, 2, 2]])
            tensor([[-1,  0,  1]])
            >>> sl.SmithWaterman().align([[3, 0, 1, 2]], [[0, 1, 2, 4, 4]])
            tensor([[-1,  0,  1,  2]])
        """
        answers = as_strings(y, len(y), "y")
        partners = torch.full((len(answers), max(map(len, answers), default=0)), -1)
        for own, r, out in zip(answers, as_strings(reference, len(answers)), partners.numpy(), strict=True):
            if own.ndim > 1 or (own < 0).any():
                raise ValueError(f"y: got {own.tolist()!r:.60}, but wanted labels of at least 0")
            sets = self._checked(r, int(own.max(initial=0)))
            alignment(own, sets, self.pairs, self.gaps, self.local, out[None, None, : len(own)])
        return partners

    @property
    @abstractmethod
    def acceptors(self) -> tuple[Callable[..., Acceptor], Callable[..., Acceptor]]:
        """Of all answers: from the costs of pairs (n, C), of insertion and of deletion; and from those of gaps."""

    def acceptor_of(self, reference: String, num_labels: int) -> tuple[Acceptor, NDArray[np.int64]]:
        class_of, columns = self._columns(reference, num_labels)
        linear, affine = self.acceptors
        if self.affine:
            return affine(columns, self.gaps.first_insertion, self.gaps.next_insertion), class_of
        return linear(columns, self.insertion, self.deletion), class_of

    def _columns(self, reference: String, num_labels: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Labels that cost the same everywhere are one class: class_of (K,), and the costs of a class (n, C).

        The last class is that of most labels, those that the reference lacks: the compiler follows it first.
        """
        sets = self._checked(reference, num_labels - 1)
        if isinstance(self.substitution, float):
            present = np.unique(sets[(sets >= 0) & (sets < num_labels)])
            class_of = np.full(num_labels, len(present), np.int64)
            class_of[present] = np.arange(len(present))
            unknown = (sets == UNKNOWN).any(1)[:, None]
            agrees = (sets[:, :, None] == np.append(present, -2)).any(1) | unknown
            return class_of, np.where(agrees, self.match, self.substitution)
        wanted, place = np.unique(sets, axis=0, return_inverse=True)
        table = np.vstack(
            [self.substitution, self.substitution.min(0, initial=np.inf), np.full(len(self.substitution), np.inf)]
        )
        rows = np.where(wanted == UNKNOWN, len(table) - 2, np.where(wanted < 0, len(table) - 1, wanted))
        columns, class_of = np.unique(table[rows].min(1)[:, :num_labels], axis=1, return_inverse=True)
        return class_of.reshape(-1).astype(np.int64), np.ascontiguousarray(columns[place.reshape(-1)])


class EditDistance(AlignmentLoss, name="edit"):
    r"""The edit distance (Cortes 2018, section 5): the least cost of turning the reference into the answer.

    .. math:: L(y, r) = \min_{\text{alignments}} \sum \text{substitution} + \text{insertion} + \text{deletion costs}

    Args:
        substitution: the cost of a wrong label, or (K, K) costs, of answering j where the reference has i (the diagonal
            is then the cost of a match).
        insertion: the cost of a label that the reference lacks.
        deletion: the cost of a label that the answer lacks.
        cap: tell losses apart up to so much above the reference's own, L' = min(L, L(r, r) + cap). The machine is then
            linear in the length: some 3 / 9 / 18 / 45 / 98 states a position for unit costs and cap 2 to 6.
        window: forget, after each label of the answer, every alignment so far that costs so much or more above the best
            one. Losses stay apart however large they are, and the machine stays small: its states are what lies within
            the window. The loss is then at least the edit distance, and equal where no alignment that was forgotten
            would have ended as the best: see the guide on choosing a window. Not together with a cap or a threshold.
        band: beside a window, forget also every alignment in which the i-th label of the answer comes more than so many
            places before or after the i-th of the reference (or, behind its end, before the end). Chains and lattices
            want it, as their whole machine is made: at 13 labels, a window of 3 and a band of 4 it has 12,000 states.
        max_states: raise `TooManyStatesError` rather than build a larger machine.
        normalize: divide by the number of the reference's labels, or by 1 where it has none: an error rate. The cap
            counts errors, before that.
        gap_open, gap_extend: affine costs, in place of `insertion` and `deletion`: k labels that are inserted in a row,
            or deleted, cost gap_open + (k - 1) * gap_extend. With both equal to c it is insertion=deletion=c. They are
            given together, gap_extend at most gap_open. Their machine is some times larger.
        threshold: leave out every answer whose loss is more than so much above the reference's own: its loss is inf,
            its score -inf under `augment`, and it is in no sum and no maximum (the pruning of Cortes 2018, section 6).
            The machine is as small as that of a cap, which keeps such answers, all at one loss; not together with a
            cap. The risk is inf wherever such an answer has a probability.

    The direct definition costs the product of the two lengths; the machine is exact, and without a cap exponential in
    the worst case.

    Example:
        >>> import torch, structloss as sl
        >>> sl.EditDistance()([[0, 1, 2]], [[1, 2, 2, 2]])
        tensor([3.])
        >>> sl.EditDistance(cap=2)([[0, 1, 2]], [[1, 2, 2, 2]])
        tensor([2.])
        >>> sl.EditDistance(threshold=2)([[0, 1, 2], [1, 2, 2]], [[1, 2, 2, 2]] * 2)
        tensor([inf, 1.])
        >>> chain, reference = sl.Chain(torch.zeros(1, 3, 4)), [[1, 2, 2, 2]]
        >>> chain.augment(sl.EditDistance(), reference, -1.0).argmax()
        tensor([[1, 2, 2]])
    """

    local = False
    acceptors = edit_acceptor, affine_edit_acceptor

    def limits(self, acceptor: Acceptor) -> Limits:
        if self.affine or np.min(self.substitution) < 0:
            return open_limits(acceptor)
        return edit_limits(acceptor, self.insertion, self.deletion)

    def __init__(
        self,
        substitution: float | Tensor = 1.0,
        insertion: float = 1.0,
        deletion: float = 1.0,
        cap: float | None = None,
        max_states: int = MAX_STATES,
        normalize: bool = False,
        gap_open: float | None = None,
        gap_extend: float | None = None,
        window: float | None = None,
        threshold: float | None = None,
        band: int | None = None,
    ) -> None:
        super().__init__(0.0, substitution, insertion, deletion, cap, max_states, gap_open, gap_extend, threshold)
        self.normalize = normalize
        if window is not None and not (isinstance(window, int | float) and 0 < window < math.inf):
            raise ValueError(f"window: got {window!r}, but wanted a finite number above 0, or None")
        if window is not None and cap is not None:
            raise ValueError(f"window: got {window!r} and cap={cap!r}, but wanted one of the two")
        if window is not None and threshold is not None:
            raise ValueError(f"window: got {window!r} and threshold={threshold!r}, but wanted one of the two")
        if window is not None and self.affine:
            raise ValueError("window: got it with gap_open and gap_extend, but wanted insertion and deletion with it")
        if window is not None and np.min(self.substitution) < 0:
            raise ValueError("window: got substitution costs below 0, but a window wants costs of at least 0")
        if band is not None and not (isinstance(band, int) and band >= 1):
            raise ValueError(f"band: got {band!r}, but wanted a whole number of at least 1, or None")
        if band is not None and window is None:
            raise ValueError(f"band: got {band!r} without a window, but wanted both")
        self.window, self.band = window, band

    def acceptor_of(self, reference: String, num_labels: int) -> tuple[Acceptor, NDArray[np.int64]]:
        if self.band is None:
            return super().acceptor_of(reference, num_labels)
        class_of, columns = self._columns(reference, num_labels)
        return banded_edit_acceptor(columns, self.insertion, self.deletion, self.band), class_of

    def uncapped(self, y: String, reference: String) -> float:
        if self.window is None:
            return super().uncapped(y, reference)
        sets = self._checked(reference, int(y.max(initial=0)))
        band = len(y) + len(sets) if self.band is None else self.band
        return float(windowed_cost(y, sets, self.pairs, self.insertion, self.deletion, float(self.window), band))

    def __repr__(self) -> str:
        kept = self._shown_limit if self.window is None else f"window={self.window}"
        kept += "" if self.band is None else f", band={self.band}"
        return (
            f"EditDistance(substitution={_shown(self.substitution)}, {self._shown_gaps}, {kept}"
            f"{', normalize=True' if self.normalize else ''})"
        )


class SmithWaterman(AlignmentLoss, name="smith-waterman"):
    r"""The Smith-Waterman loss (Cortes 2018, Figure 3b): the least cost of a local alignment, at most 0.

    .. math:: L(y, r) = \min_{y', r'} \min_{\text{alignments of } y', r'} \sum \text{costs}

    over stretches y' of y and r' of r; a match is rewarded by its negative cost.

    Args:
        match: the cost of a right label, at most 0.
        substitution: the cost of a wrong one, or (K, K) costs, whose diagonal then replaces `match`.
        insertion, deletion, cap, max_states, gap_open, gap_extend, threshold: as for `EditDistance`.

    Example:
        >>> import structloss as sl
        >>> sl.SmithWaterman()([[3, 0, 1, 2]], [[0, 1, 2, 4, 4]])
        tensor([-6.])
    """

    local = True
    acceptors = smith_waterman_acceptor, affine_local_acceptor

    def __init__(
        self,
        match: float = -2.0,
        substitution: float | Tensor = 1.0,
        insertion: float = 1.0,
        deletion: float = 1.0,
        cap: float | None = None,
        max_states: int = MAX_STATES,
        gap_open: float | None = None,
        gap_extend: float | None = None,
        threshold: float | None = None,
    ) -> None:
        super().__init__(match, substitution, insertion, deletion, cap, max_states, gap_open, gap_extend, threshold)

    def __repr__(self) -> str:
        return (
            f"SmithWaterman(match={self.match}, substitution={_shown(self.substitution)}, {self._shown_gaps}, "
            f"{self._shown_limit})"
        )


def _shown(substitution: float | NDArray[np.float64]) -> str:
    return str(substitution) if isinstance(substitution, float) else f"tensor{substitution.shape}"
