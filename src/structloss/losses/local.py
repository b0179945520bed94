"""Losses that are sums over places: they add to the scores of a structure, at no cost."""

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.automata import LossAutomaton, OpenAutomaton, TooManyStatesError
from structloss.automata.automaton import check_num_labels
from structloss.automata.open import merged, opened
from structloss.losses.base import Loss, Terms, shown
from structloss.losses.references import UNKNOWN, Labels, String

_MOST_SUMS = 1_000_000


class LocalLoss(Loss):
    r"""A loss that is a sum over places of what is chosen there.

    .. math:: L(y, r) = \sum_i \text{cost}_i(y_i)

    A structure adds the costs to its scores. `over` says what a place is: "labels", where a position has a label,
    "boundaries", where a segment has the frame it starts at, or "pairs", where a position has a partner (the last
    choice is none). To write your own, write `costs_of` and `__call__`.
    """

    reads_strings = False
    over: str

    @abstractmethod
    def costs_of(self, reference: Tensor, lengths: Tensor, choices: int, dtype: torch.dtype) -> Tensor:
        """What each choice costs at each place, (B, U, choices), 0 beyond a length.

        Args:
            reference: (B, U), -100 where it is unknown; or for labels sets of them, (B, U, choices).
            lengths: (B,), how many places each example has.
            choices: how many labels there are, or frames.
            dtype: of the costs.
        """

    def classes(self, reference: String, num_labels: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Labels that cost the same everywhere are one class: class_of (K,), and the costs of a class (l, C)."""
        labels, lengths = torch.from_numpy(_as_row(reference, num_labels))[None], torch.tensor([len(reference)])
        costs = self.costs_of(labels, lengths, num_labels, torch.float64)[0].numpy()
        if not len(reference):
            return np.zeros(num_labels, np.int64), costs[:, :1]
        columns, class_of = np.unique(costs, axis=1, return_inverse=True)
        return class_of.reshape(-1).astype(np.int64), columns

    def _sum(self, terms: Terms) -> "LocalSum":
        return LocalSum(terms)

    def distance(self, y: NDArray[np.int64], reference: String) -> float:
        """The loss of one answer; inf where it has not as many labels as the reference, as its machine has it."""
        if len(y) != len(reference):
            return math.inf
        if reference.ndim == 1:
            return float(self([y], [reference]))
        sets = _as_row(reference, 1 + int(max(y.max(initial=0), reference.max(initial=0))))
        return float(self(torch.from_numpy(y)[None], torch.from_numpy(sets)[None]))

    def automaton(
        self, reference: Sequence[int] | NDArray[np.int64] | Tensor, num_labels: int, length: int | None = None
    ) -> LossAutomaton | OpenAutomaton:
        """The machine that gives every string as long as the reference its loss: one state a position.

        With a `length`, which must be the reference's, only such strings; without one, other strings are outside.

        Example:
            >>> import structloss as sl
            >>> sl.Hamming().automaton([0, 1, 1], num_labels=3).weight([0, 2, 1])
            1.0
        """
        string = np.ascontiguousarray(reference, np.int64)
        if length is None:
            return self.open(string, num_labels, absolute=False)
        return self.machine(string, num_labels, length, absolute=False)

    def open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        """The machine for strings of any length: those not as long as the reference are outside."""
        return opened(self.machine(reference, num_labels, len(reference), absolute))

    def written(
        self, reference: String, num_labels: int, strings: tuple[tuple[int, ...], ...], length: int, absolute: bool
    ) -> LossAutomaton:
        """The machine of what `length` symbols write, symbol k writing strings[k]."""
        if all(len(string) == 1 for string in strings):
            labels = np.array([string[0] for string in strings])
            return self.machine(reference, num_labels, length, absolute).renamed(labels)
        return self.open(reference, num_labels, absolute).levelled(strings, length)

    def machine(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        """As `automaton`; `absolute` puts the loss into final weights, with a state for each sum so far."""
        if self.over != "labels":
            raise TypeError(f"loss: got {self!r}, a sum over {self.over}, but only a sum over labels has a machine")
        if length != len(reference):
            raise ValueError(
                f"length: got {length}, but {self!r} compares strings of one length, here {len(reference)}"
            )
        check_num_labels(num_labels)
        class_of, columns = self.classes(reference, num_labels)
        if not absolute:
            weights = np.concatenate([columns, np.zeros((1, columns.shape[1]))])
            next_state, offsets = np.zeros(weights.shape, np.int32), np.arange(length + 2)
            return LossAutomaton(class_of, next_state, weights, np.zeros(length + 1), offsets)
        sums, arcs = [np.zeros(1)], []
        for t, costs in enumerate(columns):
            values, place = np.unique(sums[t][:, None] + costs, return_inverse=True)
            differs = np.diff(values, prepend=-np.inf) > 1e-9 * np.maximum(1.0, np.abs(values))  # not by rounding only
            sums.append(values[differs])
            arcs.append((np.cumsum(differs)[place].reshape(-1, len(costs)) - 1, np.zeros((len(sums[t]), len(costs)))))
            if sum(map(len, sums)) > _MOST_SUMS:
                raise TooManyStatesError(
                    f"loss: its costs sum to more than {_MOST_SUMS} different values by position {t + 1}, too many to "
                    "search one by one; wanted costs that are multiples of one number (rounded costs, for instance)"
                )
        return merged(class_of, columns.shape[1], arcs, sums[-1])


def _as_row(reference: String, num_labels: int) -> NDArray[np.int64] | NDArray[np.bool_]:
    """A string of labels (n,) as it is, one of sets (n, m) as booleans (n, K)."""
    if reference.ndim == 1:
        return reference
    sets = np.zeros((len(reference), num_labels + 1), np.bool_)  # the last column: where no label stands
    np.put_along_axis(sets, np.where(reference >= 0, reference, num_labels), True, 1)
    sets[(reference == UNKNOWN).any(1)] = True
    return sets[:, :-1]


class LocalSum(LocalLoss):
    r"""A weighted sum of local losses, :math:`L(y, r) = \sum_i f_i L_i(y, r)`. Write it with `*` and `+`.

    Example:
        >>> import structloss as sl
        >>> loss = 0.5 * sl.BoundaryTolerance(1) + sl.BoundaryInsensitive(2)
        >>> loss([[0, 5]], [[0, 9]])  # 0.5 * 1/2 + 2/2
        tensor([1.2500])
    """

    def __init__(self, terms: Terms) -> None:
        kinds = {loss.over for _, loss in terms if isinstance(loss, LocalLoss)}
        if len(kinds) != 1:
            raise TypeError(
                f"loss: got {shown(terms)}, sums over {' and over '.join(sorted(kinds))}; wanted one of them"
            )
        self._terms = terms
        self.over = kinds.pop()

    @property
    def terms(self) -> Terms:
        return self._terms

    def __repr__(self) -> str:
        return shown(self._terms)

    def __call__(self, y: Labels, reference: Labels, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        return torch.stack([factor * loss(y, reference, lengths) for factor, loss in self._terms]).sum(0)

    def costs_of(self, reference: Tensor, lengths: Tensor, choices: int, dtype: torch.dtype) -> Tensor:
        found = [
            factor * loss.costs_of(reference, lengths, choices, dtype)
            for factor, loss in self._terms
            if isinstance(loss, LocalLoss)
        ]
        return torch.stack(found).sum(0)
