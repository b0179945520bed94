"""LossAutomaton: a loss against one reference, as a deterministic machine over strings of one length."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.automata import drawing

if TYPE_CHECKING:
    import torch


class TooManyStatesError(ValueError):
    """A machine outgrew `max_states`."""


MAX_STATES = 1_000_000  # unless a loss says otherwise
SMALLER = (
    "a cap, which tells losses apart up to so much above the reference's own, makes the machine linear; a band does "
    "beside a window of EditDistance; "
    "augment(..., beam=n) keeps n states a position and bounds the error"
)


_MOST_LABELS = 2**24  # a machine knows the class of each label


def check_num_labels(num_labels: int) -> None:
    """Raise unless a machine can be made for so many labels."""
    if not 1 <= num_labels <= _MOST_LABELS:
        raise ValueError(f"num_labels: got {num_labels}, but wanted 1 to {_MOST_LABELS}; number the labels that occur")


class AutomatonTensors(NamedTuple):
    """The arrays of a `LossAutomaton` as tensors: see there."""

    class_of: "torch.Tensor"
    next_state: "torch.Tensor"
    weights: "torch.Tensor"
    final: "torch.Tensor"
    offsets: "torch.Tensor"


@dataclass(frozen=True)
class LossAutomaton:
    """loss(y, reference) for every string y of one length, as a deterministic, levelled, weighted acceptor.

    State 0 is the start; a label leads from a state of level t to one of level t + 1, along its class's arc. The loss
    of y is the sum of the weights of its arcs and of the final weight of the state where it ends. A final weight of inf
    means that y is outside the machine (an n-gram loss without smoothing and without an n-gram in common).

    Attributes:
        class_of: (K,), the symbol class of each label; labels of one class behave alike.
        next_state: (N, C), the place of the state that a class leads to among those of the next level.
        weights: (N, C), of the arcs; (0, C) where they are all 0 and the loss stands in the final weights alone.
        final: (N,), of the states of the last level.
        offsets: (length + 2,), where each level's states begin.

    Example:
        >>> import structloss as sl
        >>> machine = sl.EditDistance().automaton([0, 1, 2], num_labels=3, length=2)
        >>> machine.weight([0, 2])
        1.0
    """

    class_of: NDArray[np.int64]
    next_state: NDArray[np.int32]
    weights: NDArray[np.float64]
    final: NDArray[np.float64]
    offsets: NDArray[np.int64]

    def __post_init__(self) -> None:
        # A part of a larger array would keep all of it in memory.
        for name in ("next_state", "weights", "final", "offsets"):
            array = getattr(self, name)
            if array.base is not None:
                object.__setattr__(self, name, array.copy())

    @property
    def length(self) -> int:
        """The length of the strings it reads."""
        return len(self.offsets) - 2

    @property
    def num_labels(self) -> int:
        """How many labels there are, K."""
        return len(self.class_of)

    @property
    def num_states(self) -> int:
        """How many states there are, over all levels."""
        return len(self.final)

    @property
    def num_arcs(self) -> int:
        """How many arcs there are, one for each symbol class of each state before the last level."""
        return int(self.offsets[-2] * self.next_state.shape[1])

    @property
    def num_bytes(self) -> int:
        """How much memory its arrays take, those that kernels read as well."""
        return sum(x.nbytes for x in (self.class_of, self.final, self.offsets)) + 2 * (
            self.next_state.nbytes + self.weights.nbytes
        )

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """How many states each level has, (length + 1,)."""
        return np.diff(self.offsets)

    @cached_property
    def last(self) -> NDArray[np.float64]:
        """The final weights of the states of the last level."""
        return self.final[self.offsets[-2] :]

    @cached_property
    def by_class(self) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """next_state and weights with each level laid out (C, S) and all levels in a row, as the kernels read them."""
        C, sizes = self.next_state.shape[1], self.sizes
        begin, size = (np.repeat(x, sizes) for x in (self.offsets[:-1], sizes))
        place = (begin * (C - 1) + np.arange(len(begin)))[:, None] + size[:, None] * np.arange(C)
        next_state, weights = np.empty(self.next_state.size, np.int32), np.empty(self.weights.size)
        next_state[place] = self.next_state
        if not self.is_absolute:
            weights[place] = self.weights
        return next_state, weights

    @property
    def is_absolute(self) -> bool:
        """Whether the arcs weigh nothing and the loss stands in the final weights alone."""
        return len(self.weights) == 0

    def to(self, device: "torch.device | str") -> "AutomatonTensors":
        """Its arrays as tensors on a device.

        Example:
            >>> import structloss as sl
            >>> sl.EditDistance(cap=1).automaton([0, 1], num_labels=3, length=2).to("cpu").class_of
            tensor([0, 1, 2])
        """
        import torch

        arrays = (self.class_of, self.next_state, self.weights, self.final, self.offsets)
        return AutomatonTensors(*(torch.from_numpy(x).to(device) for x in arrays))

    def renamed(self, labels: NDArray[np.int64]) -> "LossAutomaton":
        """The machine of other symbols, symbol k standing for labels[k]."""
        return replace(self, class_of=self.class_of[labels])

    def times(self, factor: float) -> "LossAutomaton":
        """The machine of a factor times the loss; what is outside stays outside, whatever the factor is."""
        if factor == 1.0:
            return self
        final = np.where(np.isinf(self.final), np.inf, factor * np.where(np.isinf(self.final), 0.0, self.final))
        return replace(self, weights=factor * self.weights, final=final)

    def draw(self, path: str | Path | None = None, symbols: Sequence[str] | None = None) -> str:
        """Graphviz text of the machine; with a path that ends in .svg, .png or .pdf also a picture there.

        Args:
            path: where to draw (needs the extra `plot`).
            symbols: names of the labels.

        Example:
            >>> import structloss as sl
            >>> sl.EditDistance(cap=1).automaton([0, 1], num_labels=3, length=2).draw().splitlines()[0]
            'digraph loss {'
        """
        if path is not None:
            drawing.draw(self, path, symbols)
        return drawing.to_dot(self, symbols)

    def weight(self, y: Sequence[int] | NDArray[Any]) -> float:
        """The loss of one string. Cost: its length."""
        if len(y) != self.length:
            raise ValueError(f"y: got {len(y)} labels, but this machine reads strings of length {self.length}")
        place, total = 0, 0.0
        for t, label in enumerate(y):
            state, symbol_class = self.offsets[t] + place, self.class_of[label]
            if not self.is_absolute:
                total += self.weights[state, symbol_class]
            place = self.next_state[state, symbol_class]
        return float(total + self.final[self.offsets[-2] + place])
