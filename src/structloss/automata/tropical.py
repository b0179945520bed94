"""From a weighted acceptor over the tropical semiring to a LossAutomaton."""

import math

import numpy as np
from numpy.typing import NDArray

from structloss.automata.automaton import SMALLER, LossAutomaton, TooManyStatesError
from structloss.automata.open import Endings, Floats, Ints, OpenAutomaton, Scores
from structloss.kernels import beam, explore
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
            f"{outgrown}; {SMALLER}"
        )
    return LossAutomaton(class_of, next_state, weights[:0] if absolute else weights, final, offsets)


class TropicalAutomaton(OpenAutomaton):
    """The least cost of an acceptor's paths, at most `cap`, for strings of any length: see `kernels.explore`."""

    def __init__(
        self, acceptor: Acceptor, limits: explore.Limits, class_of: Ints, cap: float, absolute: bool, max_states: int
    ) -> None:
        super().__init__(class_of, acceptor.move_start.shape[0], max_states)
        self._acceptor, self._limits, self._cap = acceptor, limits, cap
        self._absolute = absolute or math.isfinite(cap)
        self._entry_start = np.zeros(len(self.final) + 1, np.int64)
        self._position, self._cost = np.zeros(0, np.int64), np.zeros(0)
        self._table = np.full(4 * len(self.final), -1)
        self._make_room(0)
        explore.add_start(acceptor, limits, cap, self._store)
        self.num_states = 1

    @property
    def _store(self) -> explore.Store:
        return explore.Store(
            self._entry_start, self._position, self._cost, self.final, self.next_state, self.weights, self._table
        )

    @property
    def num_bytes(self) -> int:
        own = (self._entry_start, self._position, self._cost, self._table, *self._limits, *self._acceptor)
        return super().num_bytes + sum(x.nbytes for x in own)

    def _make_room(self, states: int) -> None:
        """For twice the states, and for the entries that each of them may have."""
        if states + 1 >= len(self.final):
            self._grow(2 * len(self.final))
            self._entry_start = np.concatenate([self._entry_start, np.zeros(len(self._entry_start) - 1, np.int64)])
            self._table = np.full(4 * len(self.final), -1)
            explore.rehash(self._store, states)
        entries, P = int(self._entry_start[states]), len(self._acceptor.start)
        if entries + P > len(self._position):
            room = 2 * (entries + P)
            self._position = np.concatenate([self._position, np.zeros(room - len(self._position), np.int64)])
            self._cost = np.concatenate([self._cost, np.zeros(room - len(self._cost))])

    def _expand(self, states: Ints, classes: Ints) -> None:
        done = 0
        while done < len(states):
            found, done = explore.expand_tropical(
                self._acceptor, self._limits, self._cap, self._absolute, self._store, self.num_states,
                states, classes, done,
            )  # fmt: skip
            self.num_states = found
            self._check_size(found)
            if done < len(states):
                self._make_room(found)

    def endings(self, scores: Scores, scale: float) -> "TropicalEndings":
        return TropicalEndings(self, scores, scale)

    def losses_to_go(self, states: Ints, length: int) -> tuple[Floats, Floats]:
        lowest, highest = np.empty(len(states)), np.empty(len(states))
        worst = np.empty((length + 1, len(self._acceptor.start)))
        explore.worst_completions(self._acceptor, length, worst)
        explore.least_with(self._store, states, self._limits.completion, lowest)
        explore.least_with(self._store, states, worst[length], highest)
        return np.minimum(lowest, self._cap), np.minimum(highest, self._cap)


class TropicalEndings(Endings):
    """Also, with scores and losses taken together: see `kernels.beam`. The smaller of both bounds."""

    def __init__(self, machine: TropicalAutomaton, scores: Scores, scale: float) -> None:
        super().__init__(machine, scores, scale)
        self._tropical = machine
        T, H, _ = scores.level.shape
        self._endings = np.full((T + 1, H, len(machine._acceptor.start)), -np.inf)
        fill = beam.endings_along_a_strategy if scale >= 0 else beam.endings_along_all_paths
        fill(machine._acceptor, machine.class_of, scores.level, scores.rows, scale, self._endings)

    def bounds(self, states: Ints, t: int) -> Floats:
        out = np.empty((len(states), self.scores.rows[t]))
        beam.endings_of_states(self._tropical._store, states, self._endings[t], self.scale, out)
        if self.scale < 0 and math.isfinite(self._tropical._cap):  # exp(scale * min(L, cap)) is at most the sum of both
            out = np.logaddexp(out, self.scores.beta[t, : self.scores.rows[t]] + self.scale * self._tropical._cap)
        return np.minimum(out, super().bounds(states, t))


def open_limits(acceptor: Acceptor) -> explore.Limits:
    """What is known of the acceptor's positions whatever string is left, or a ValueError where losses have no end."""
    limits, sound = explore.limits_of(acceptor)
    if not sound:
        raise ValueError(
            "transducer: a loop lowers the loss at every turn, but wanted losses that strings of any length bound"
        )
    return limits


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
