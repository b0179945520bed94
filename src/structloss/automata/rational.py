"""From a weighted acceptor over the probability semiring to a machine: minus the log of the sum over paths."""

import math

import numpy as np

from structloss.automata.open import Floats, Ints, OpenAutomaton
from structloss.kernels import explore

_NOTHING = 1e-10  # of a direction's length: less is rounding


class RationalAutomaton(OpenAutomaton):
    r"""L(y) = -log(smoothing + start M(y_1) ... M(y_l) stop), for strings of any length.

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
        max_states: int,
    ) -> None:  # fmt: skip
        super().__init__(class_of, len(matrices), max_states)
        self._matrices, self._stop, self._smoothing = np.ascontiguousarray(matrices), stop, smoothing
        self._normalise = smoothing == 0 and not absolute
        self._directions = observable(matrices, stop)
        room = len(self.final)
        self._vector, self._seen = np.zeros((room, len(start))), np.zeros((room, self._directions.shape[1]))
        self._table = np.full(4 * room, -1)
        self._vector[0] = start
        explore.look(start, self._directions, self._seen[0])
        self.num_states = 1
        explore.rehash_vectors(self._vectors, 1)
        self._fill_final(0)

    @property
    def _vectors(self) -> explore.Vectors:
        return explore.Vectors(self._vector, self._seen, self.next_state, self.weights, self._table)

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + sum(x.nbytes for x in (self._vector, self._seen, self._table, self._matrices))

    def _expand(self, states: Ints, classes: Ints) -> None:
        done = 0
        while done < len(states):
            before = self.num_states
            self.num_states, done = explore.expand_rational(
                self._matrices, self._directions, self._normalise, self._vectors, before, states, classes, done
            )
            self._fill_final(before)
            self._check_size(self.num_states)
            if done < len(states):
                room = 2 * len(self.final)
                self._grow(room)
                self._vector = np.concatenate([self._vector, np.zeros((room // 2, self._vector.shape[1]))])
                self._seen = np.concatenate([self._seen, np.zeros((room // 2, self._seen.shape[1]))])
                self._table = np.full(4 * room, -1)
                explore.rehash_vectors(self._vectors, self.num_states)

    def _fill_final(self, begin: int) -> None:
        self.final[begin : self.num_states] = self._loss(self._vector[begin : self.num_states] @ self._stop)

    def _loss(self, total: Floats) -> Floats:
        total = total + self._smoothing
        return np.where(total > 0, -np.log(np.where(total > 0, total, 1.0)), math.inf)

    def losses_to_go(self, states: Ints, length: int) -> tuple[Floats, Floats]:
        least, most = self._stop, self._stop
        for _ in range(length):
            least, most = (self._matrices @ least).min(0), (self._matrices @ most).max(0)
        vectors = self._vector[states]
        return self._loss(vectors @ most), self._loss(vectors @ least)


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
