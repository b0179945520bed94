"""What every loss offers."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.automata import LossAutomaton, OpenAutomaton, TooManyStatesError
from structloss.automata.automaton import check_num_labels
from structloss.automata.open import opened
from structloss.kernels.machines import sum_machine
from structloss.losses.labels import Labels
from structloss.losses.numbers import check_number

if TYPE_CHECKING:
    from structloss.losses.combined import WeightedSum

_MOST_SUMS = 1_000_000


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

    def __mul__(self, factor: float) -> "WeightedSum":
        """This loss times a number."""
        from structloss.losses.combined import WeightedSum, parts_of

        return WeightedSum(parts_of(self, check_number(factor, "factor")))

    __rmul__ = __mul__

    def __add__(self, other: "Loss") -> "WeightedSum":
        """Both losses added up."""
        from structloss.losses.combined import WeightedSum, parts_of

        return WeightedSum(parts_of(self, 1.0) + parts_of(other, 1.0))


class PositionLoss(Loss):
    """A loss that is a sum over positions, L(y, r) = sum over t of cost(t, y_t): it adds to a chain's own scores."""

    @abstractmethod
    def position_costs(self, reference: Tensor, lengths: Tensor, num_labels: int, dtype: torch.dtype) -> Tensor:
        """cost(t, y) (B, T, K) of each label at each position, for references (B, T); 0 beyond a length."""

    def classes(self, reference: NDArray[np.int64], num_labels: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Labels that cost the same everywhere are one class: class_of (K,), and the costs of a class (l, C)."""
        labels, lengths = torch.from_numpy(reference)[None], torch.tensor([len(reference)])
        costs = self.position_costs(labels, lengths, num_labels, torch.float64)[0].numpy()
        if not len(reference):
            return np.zeros(num_labels, np.int64), costs[:, :1]
        columns, class_of = np.unique(costs, axis=1, return_inverse=True)
        return class_of.reshape(-1).astype(np.int64), columns

    def distance(self, y: NDArray[np.int64], reference: NDArray[np.int64]) -> float:
        """The loss of one answer."""
        return float(self(torch.from_numpy(y)[None], torch.from_numpy(reference)[None]))

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

    def open(self, reference: NDArray[np.int64], num_labels: int, absolute: bool) -> OpenAutomaton:
        """The machine for strings of any length: those not as long as the reference are outside."""
        return opened(self.machine(reference, num_labels, len(reference), absolute))

    def written(
        self, reference: NDArray[np.int64], num_labels: int, strings: tuple[tuple[int, ...], ...], length: int,
        absolute: bool,
    ) -> LossAutomaton:  # fmt: skip
        """The machine of what `length` symbols write, symbol k writing strings[k]."""
        if all(len(string) == 1 for string in strings):
            labels = np.array([string[0] for string in strings])
            return self.machine(reference, num_labels, length, absolute).renamed(labels)
        return self.open(reference, num_labels, absolute).levelled(strings, length)

    def machine(self, reference: NDArray[np.int64], num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        """As `automaton`; `absolute` puts the loss into final weights, with a state for each sum so far."""
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
        next_state, sums, offsets, outgrown = sum_machine(np.ascontiguousarray(columns), _MOST_SUMS)
        if outgrown >= 0:
            raise TooManyStatesError(
                f"loss: its costs sum to more than {_MOST_SUMS} different values by position {outgrown}, too many to "
                "search one by one; wanted costs that are multiples of one number (rounded costs, for instance)"
            )
        return LossAutomaton(class_of, next_state, np.empty((0, columns.shape[1])), sums, offsets)
