"""From a weighted acceptor over the probability semiring to a machine: of the sum over paths, mostly minus its log."""

import math

import numpy as np

from structloss.automata.open import Floats, Ints, OpenAutomaton, grown, table_for
from structloss.kernels import rational
from structloss.kernels.tables import rehash

_NOTHING = 1e-10  # of a direction's length: less is rounding


class RationalAutomaton(OpenAutomaton):
    r"""L(y) = -log(smoothing + start M(y_1) ... M(y_l) stop), for strings of any length.

    Without `log` it is -(smoothing + start M(y_1) ... M(y_l) stop).

    A state is the vector start M(y_1) ... M(y_t), as far as any continuation can see it: told apart are its products
    with the directions M(z_1) ... M(z_m) stop, z any string (Cortes 2018 keeps every position of the reference apart,
    and explodes). Without smoothing, and unless the loss must stand in final weights, a multiple of a vector is the
    same state, and the factor's -log stands on the arc.

    Args:
        start: (P,), at least 0.
        matrices: (C, P, P), at least 0.
        stop: (P,), at least 0.
    """

    def __init__(
        self, start: Floats, matrices: Floats, stop: Floats, smoothing: float, class_of: Ints, absolute: bool,
        max_states: int, log: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(class_of, len(matrices), max_states)
        self._matrices, self._stop, self._smoothing = np.ascontiguousarray(matrices), stop, smoothing
        self._log, self._normalise = log, log and smoothing == 0 and not absolute
        self._directions = observable(matrices, stop)
        room, width = len(self.final), 1 + self._directions.shape[1]
        self._vectors = rational.Vectors(
            np.zeros((room, len(start))), np.arange(room + 1), np.zeros(room * width, np.int64), table_for(room)
        )
        self._vectors.vector[0] = start
        self._totals: dict[int, tuple[Floats, Floats]] = {}  # see `_losses_within`
        self._expand(np.zeros(0, np.int64), np.zeros(0, np.int64))

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + sum(x.nbytes for x in (*self._vectors, self._matrices, self._directions))

    def _expand(self, states: Ints, classes: Ints) -> None:
        done = 0
        while done < len(states) or not self.num_states:
            before, v = self.num_states, self._vectors
            self.num_states, done = rational.expand(
                self._matrices, self._directions, self._normalise, v, self.next_state, self.weights, before, states,
                classes, done,
            )  # fmt: skip
            self.final[before : self.num_states] = self._loss(v.vector[before : self.num_states] @ self._stop)
            self._check_size(self.num_states)
            if done < len(states):
                self._grow(2 * len(self.final))
                room, width = len(self.final), 1 + self._directions.shape[1]
                self._vectors = rational.Vectors(
                    grown(v.vector, room), np.arange(room + 1), grown(v.key, room * width), table_for(room)
                )
                rehash(self._vectors.key, self._vectors.begin, width, 0, self.num_states, self._vectors.table)

    def _loss(self, total: Floats) -> Floats:
        total = total + self._smoothing
        if not self._log:
            return -total
        return np.where(total > 0, -np.log(np.where(total > 0, total, 1.0)), math.inf)

    def losses_to_go(self, states: Ints, length: int) -> tuple[Floats, Floats]:
        least, most = self._stop, self._stop
        for _ in range(length):
            least, most = (self._matrices @ least).min(0), (self._matrices @ most).max(0)
        vectors = self._vectors.vector[states]
        return self._loss(vectors @ most), self._loss(vectors @ least)

    def _losses_within(self, first: int, length: int) -> tuple[Floats, Floats]:
        if length not in self._totals:
            least, most = self._stop, self._stop
            lowest, highest = least, most
            for _ in range(length):
                least, most = (self._matrices @ least).min(0), (self._matrices @ most).max(0)
                lowest, highest = np.minimum(lowest, least), np.maximum(highest, most)
            self._totals[length] = lowest, highest
        vectors, (lowest, highest) = self._vectors.vector[first : self.num_states], self._totals[length]
        return self._loss(vectors @ highest), self._loss(vectors @ lowest)


def observable(matrices: Floats, stop: Floats) -> Floats:
    """A basis (P, D) of the directions M(z_1) ... M(z_m) stop, z any string: what can be seen of a vector.

    Schuetzenberger's reduction, in echelon form: each new direction is freed of the earlier ones' pivots.
    """
    basis: list[Floats] = []
    pivots: list[int] = []
    waiting = [stop]
    while waiting:
        direction = waiting.pop()
        size = np.abs(direction).max(initial=0.0)
        for pivot, known in zip(pivots, basis, strict=True):
            direction = direction - direction[pivot] * known
        if size == 0 or np.abs(direction).max() <= _NOTHING * size:
            continue
        pivot = int(np.abs(direction).argmax())
        direction = direction / direction[pivot]
        basis.append(direction)
        pivots.append(pivot)
        waiting.extend(matrices @ direction)
    return np.ascontiguousarray(np.array(basis).T) if basis else np.zeros((len(stop), 1))
