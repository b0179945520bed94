"""From a weighted acceptor over the tropical semiring to a LossAutomaton."""

import math

import numpy as np
from numpy.typing import NDArray

from structloss.automata.automaton import LossAutomaton, TooManyStatesError
from structloss.kernels.determinise import Acceptor, compile_tropical


def compile_acceptor(
    acceptor: Acceptor, class_of: NDArray[np.int64], length: int, cap: float, absolute: bool, max_states: int
) -> LossAutomaton:
    """The machine that gives every string of `length` the least cost of the acceptor's paths, at most `cap`.

    See `kernels.determinise` for the algorithm and why it is exact. `absolute` puts the whole loss into final weights.
    """
    absolute = absolute or math.isfinite(cap)
    next_state, weights, final, offsets, outgrown = compile_tropical(acceptor, length, cap, absolute, max_states)
    if outgrown >= 0:
        raise TooManyStatesError(
            f"max_states: the machine for outputs of length {length} passed {max_states} states at position "
            f"{outgrown}; a cap, which tells losses apart up to so much above the reference's own, makes it linear"
        )
    return LossAutomaton(class_of, next_state, weights[:0] if absolute else weights, final, offsets)


class AcceptorBuilder:
    """Collects the moves of an acceptor and lays them out as arrays."""

    def __init__(self, positions: int, classes: int) -> None:
        self.start = np.full(positions, math.inf)
        self.stop = np.full(positions, math.inf)
        self._moves: list[list[list[tuple[int, float]]]] = [[[] for _ in range(positions)] for _ in range(classes)]
        self._silent: list[list[tuple[int, float]]] = [[] for _ in range(positions)]

    def move(self, symbol_class: int, source: int, target: int, cost: float) -> None:
        """Reading a symbol of this class leads from source to target."""
        self._moves[symbol_class][source].append((target, cost))

    def silent(self, source: int, target: int, cost: float) -> None:
        """Reading nothing leads from source to target, a higher position."""
        self._silent[source].append((target, cost))

    def build(self) -> Acceptor:
        """The arrays."""
        moves = [move for by_source in self._moves for listed in by_source for move in listed]
        counts = np.array([[len(listed) for listed in by_source] for by_source in self._moves], np.int64)
        ends = np.cumsum(counts.ravel()).reshape(counts.shape)
        move_start = np.concatenate([ends[:, :1] - counts[:, :1], ends], 1)
        silent = [move for listed in self._silent for move in listed]
        silent_start = np.concatenate([[0], np.cumsum([len(listed) for listed in self._silent])]).astype(np.int64)
        return Acceptor(
            self.start, self.stop, move_start,
            np.array([target for target, _ in moves], np.int64), np.array([cost for _, cost in moves], np.float64),
            silent_start,
            np.array([target for target, _ in silent], np.int64), np.array([cost for _, cost in silent], np.float64),
        )  # fmt: skip
