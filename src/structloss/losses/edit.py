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
from structloss.kernels.determinise import Acceptor
from structloss.kernels.explore import Limits, edit_limits
from structloss.losses.machine import MachineLoss, String


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
        for name, value in (("insertion", insertion), ("deletion", deletion)):
            if not (value >= 0 and math.isfinite(value)):
                raise ValueError(f"{name}: got {value!r}, but wanted a finite cost of at least 0")
        if cap is not None and not cap >= 0:
            raise ValueError(f"cap: got {cap!r}, but wanted at least 0, or None")
        self.match, self.insertion, self.deletion, self.cap = float(match), float(insertion), float(deletion), cap
        self.substitution: float | NDArray[np.float64]
        if isinstance(substitution, Tensor):
            if substitution.dim() != 2 or substitution.shape[0] != substitution.shape[1]:
                raise ValueError(f"substitution: got shape {tuple(substitution.shape)}, but wanted a number or (K, K)")
            self.substitution = substitution.detach().cpu().double().numpy()
            if not np.isfinite(self.substitution).all():
                raise ValueError("substitution: got an entry that is infinite or NaN, but wanted finite costs")
        else:
            self.substitution = float(substitution)
            if not math.isfinite(self.substitution):
                raise ValueError(f"substitution: got {substitution!r}, but wanted a finite cost")

    def pair_costs(self, reference: String, num_labels: int) -> NDArray[np.float64]:
        """The cost (n, K) of aligning each symbol of the reference with each label."""
        if isinstance(self.substitution, float):
            costs = np.full((len(reference), num_labels), self.substitution)
            inside = np.flatnonzero(reference < num_labels)
            costs[inside, reference[inside]] = self.match
            return costs
        K = len(self.substitution)
        if num_labels > K or (len(reference) and reference.max() >= K):
            raise ValueError(
                f"substitution: got costs for {K} labels, but the strings have labels up to "
                f"{max(num_labels - 1, int(reference.max(initial=0)))}"
            )
        return self.substitution[reference][:, :num_labels]

    def distance(self, y: String, reference: String) -> float:
        return min(self._limit(reference), self._uncapped(y, reference))

    def _uncapped(self, y: String, reference: String) -> float:
        labels = int(max(y.max(initial=-1), reference.max(initial=-1))) + 1
        if not isinstance(self.substitution, float):
            labels = max(labels, len(self.substitution))
        costs = self.pair_costs(reference, max(1, labels))
        return float(self.align(y, reference, costs, self.insertion, self.deletion))

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
        costs = self.pair_costs(reference, num_labels)
        return _classes(costs, reference, scalar=isinstance(self.substitution, float), match=self.match)

    def compile(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        class_of, columns = self._columns(reference, num_labels)
        acceptor = self.acceptor(columns, self.insertion, self.deletion)
        return compile_acceptor(acceptor, class_of, length, self._limit(reference), absolute, self.max_states)

    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> TropicalAutomaton:
        class_of, columns = self._columns(reference, num_labels)
        acceptor = self.acceptor(columns, self.insertion, self.deletion)
        limits = self.limits(acceptor, columns)
        return TropicalAutomaton(acceptor, limits, class_of, self._limit(reference), absolute, self.max_states)


def _classes(
    costs: NDArray[np.float64], reference: String, scalar: bool, match: float
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Labels whose columns of costs (n, K) are equal are one class: class_of (K,), and one column a class (n, C).

    The last class is that of most labels, those that the reference lacks: the compiler follows it first.
    """
    num_labels = costs.shape[1]
    if scalar:
        present = np.unique(reference[reference < num_labels])
        class_of = np.full(num_labels, len(present), np.int64)
        class_of[present] = np.arange(len(present))
        columns = np.empty((len(reference), len(present) + 1))
        columns[:, :-1] = costs[:, present]
        absent = np.flatnonzero(class_of == len(present))
        columns[:, -1] = costs[:, absent[0]] if len(absent) else costs.max(initial=match)
        return class_of, columns
    columns, class_of = np.unique(costs, axis=1, return_inverse=True)
    return class_of.reshape(-1).astype(np.int64), np.ascontiguousarray(columns)


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
        match: the cost of a right label, below 0.
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
