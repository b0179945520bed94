"""Edit distance and Smith-Waterman: the least cost of an alignment, of the whole strings or of stretches of them."""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from structloss.automata import LossAutomaton
from structloss.automata.automaton import MAX_STATES
from structloss.automata.tropical import TropicalAutomaton, compile_acceptor, open_limits
from structloss.kernels import alignment
from structloss.kernels.alignment import Pairs
from structloss.kernels.determinise import Acceptor
from structloss.kernels.explore import Limits, edit_limits
from structloss.losses.machine import MachineLoss, String
from structloss.losses.numbers import check_at_least_zero, check_cap


class AlignmentLoss(MachineLoss):
    """The least cost of an alignment: of pairs, of insertions and of deletions."""

    def __init__(
        self,
        match: float,
        substitution: float | Tensor,
        insertion: float,
        deletion: float,
        cap: float | None,
        max_states: int,
    ) -> None:
        super().__init__(max_states)
        if not (match <= 0 and math.isfinite(match)):
            raise ValueError(f"match: got {match!r}, but wanted a finite number of at most 0")
        self.match, self.cap = float(match), check_cap(cap)
        self.insertion = check_at_least_zero(insertion, "insertion")
        self.deletion = check_at_least_zero(deletion, "deletion")
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
    def pairs(self) -> Pairs:
        """The cost of aligning two labels."""
        if isinstance(self.substitution, float):
            return Pairs(self.match, self.substitution, np.empty((0, 0)))
        return Pairs(0.0, 0.0, self.substitution)

    def _check(self, reference: String, largest: int) -> None:
        """Raise unless the reference has labels, and both strings, the largest label named, have costs."""
        if reference.min(initial=0) < 0:
            raise ValueError(
                f"reference: got the label {reference.min()}, but {self!r} wants labels of at least 0, and nothing but "
                "padding after them"
            )
        largest = max(largest, int(reference.max(initial=0)))
        if not isinstance(self.substitution, float) and largest >= len(self.substitution):
            raise ValueError(
                f"substitution: got costs for {len(self.substitution)} labels, but the strings have labels up to "
                f"{largest}"
            )

    def distance(self, y: String, reference: String) -> float:
        return min(self._limit(reference), self._uncapped(y, reference))

    def _uncapped(self, y: String, reference: String) -> float:
        self._check(reference, int(y.max(initial=0)))
        return float(self.align(y, reference, self.pairs, self.insertion, self.deletion))

    def _limit(self, reference: String) -> float:
        """The cap is counted from the reference's own loss."""
        return math.inf if self.cap is None else self._uncapped(reference, reference) + self.cap

    @property
    @abstractmethod
    def align(self) -> Callable[..., float]:
        """The dynamic program."""

    @property
    @abstractmethod
    def acceptor(self) -> Callable[..., Any]:
        """The acceptor of all answers against one reference."""

    def limits(self, acceptor: Acceptor, columns: NDArray[np.float64]) -> Limits:
        """What is known of the acceptor's positions whatever string is left; columns are the costs of pairs (n, C)."""
        return open_limits(acceptor)

    def _columns(self, reference: String, num_labels: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Labels that cost the same everywhere are one class: class_of (K,), and the costs of a class (n, C).

        The last class is that of most labels, those that the reference lacks: the compiler follows it first.
        """
        self._check(reference, num_labels - 1)
        if isinstance(self.substitution, float):
            present = np.unique(reference[reference < num_labels])
            class_of = np.full(num_labels, len(present), np.int64)
            class_of[present] = np.arange(len(present))
            others = np.full((len(reference), 1), self.substitution)
            return class_of, np.hstack([np.where(reference[:, None] == present, self.match, self.substitution), others])
        wanted, place = np.unique(reference, return_inverse=True)
        columns, class_of = np.unique(self.substitution[wanted, :num_labels], axis=1, return_inverse=True)
        return class_of.reshape(-1).astype(np.int64), columns[place]

    def compile(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        class_of, columns = self._columns(reference, num_labels)
        acceptor = self.acceptor(columns, self.insertion, self.deletion)
        return compile_acceptor(acceptor, class_of, length, self._limit(reference), absolute, self.max_states)

    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> TropicalAutomaton:
        class_of, columns = self._columns(reference, num_labels)
        acceptor = self.acceptor(columns, self.insertion, self.deletion)
        limits = self.limits(acceptor, columns)
        return TropicalAutomaton(acceptor, limits, class_of, self._limit(reference), absolute, self.max_states)


class EditDistance(AlignmentLoss):
    r"""The edit distance (Cortes 2018, section 5): the least cost of turning the reference into the answer.

    .. math:: L(y, r) = \min_{\text{alignments}} \sum \text{substitution} + \text{insertion} + \text{deletion costs}

    Args:
        substitution: the cost of a wrong label, or (K, K) costs, of answering j where the reference has i (the diagonal
            is then the cost of a match).
        insertion: the cost of a label that the reference lacks.
        deletion: the cost of a label that the answer lacks.
        cap: tell losses apart up to so much above the reference's own, L' = min(L, L(r, r) + cap). The machine is then
            linear in the length: some 3 / 9 / 18 / 45 / 98 states a position for unit costs and cap 2 to 6.
        max_states: raise `TooManyStatesError` rather than build a larger machine.

    The direct definition costs the product of the two lengths; the machine is exact, and without a cap exponential in
    the worst case.

    Example:
        >>> import torch, structloss as sl
        >>> sl.EditDistance()([[0, 1, 2]], [[1, 2, 2, 2]])
        tensor([3.])
        >>> sl.EditDistance(cap=2)([[0, 1, 2]], [[1, 2, 2, 2]])
        tensor([2.])
        >>> chain, reference = sl.Chain(torch.zeros(1, 3, 4)), [[1, 2, 2, 2]]
        >>> chain.augment(sl.EditDistance(), reference, -1.0).argmax()
        tensor([[1, 2, 2]])
    """

    align = staticmethod(alignment.edit_distance)
    acceptor = staticmethod(alignment.edit_acceptor)

    def limits(self, acceptor: Acceptor, columns: NDArray[np.float64]) -> Limits:
        if columns.min(initial=0.0) < 0:
            return open_limits(acceptor)
        return edit_limits(acceptor, self.insertion, self.deletion)

    def __init__(
        self,
        substitution: float | Tensor = 1.0,
        insertion: float = 1.0,
        deletion: float = 1.0,
        cap: float | None = None,
        max_states: int = MAX_STATES,
    ) -> None:
        super().__init__(0.0, substitution, insertion, deletion, cap, max_states)

    def __repr__(self) -> str:
        return (
            f"EditDistance(substitution={_shown(self.substitution)}, insertion={self.insertion}, "
            f"deletion={self.deletion}, cap={self.cap})"
        )


class SmithWaterman(AlignmentLoss):
    r"""The Smith-Waterman loss (Cortes 2018, Figure 3b): the least cost of a local alignment, at most 0.

    .. math:: L(y, r) = \min_{y', r'} \min_{\text{alignments of } y', r'} \sum \text{costs}

    over stretches y' of y and r' of r; a match is rewarded by its negative cost.

    Args:
        match: the cost of a right label, at most 0.
        substitution: the cost of a wrong one, or (K, K) costs, whose diagonal then replaces `match`.
        insertion, deletion, cap, max_states: as for `EditDistance`.

    Example:
        >>> import structloss as sl
        >>> sl.SmithWaterman()([[3, 0, 1, 2]], [[0, 1, 2, 4, 4]])
        tensor([-6.])
    """

    align = staticmethod(alignment.smith_waterman)
    acceptor = staticmethod(alignment.smith_waterman_acceptor)

    def __init__(
        self,
        match: float = -2.0,
        substitution: float | Tensor = 1.0,
        insertion: float = 1.0,
        deletion: float = 1.0,
        cap: float | None = None,
        max_states: int = MAX_STATES,
    ) -> None:
        super().__init__(match, substitution, insertion, deletion, cap, max_states)

    def __repr__(self) -> str:
        return (
            f"SmithWaterman(match={self.match}, substitution={_shown(self.substitution)}, insertion={self.insertion}, "
            f"deletion={self.deletion}, cap={self.cap})"
        )


def _shown(substitution: float | NDArray[np.float64]) -> str:
    return str(substitution) if isinstance(substitution, float) else f"tensor{substitution.shape}"
