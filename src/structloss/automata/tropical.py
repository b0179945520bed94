"""From a weighted acceptor over the tropical semiring to a LossAutomaton."""

import math

import numpy as np
from numpy.typing import NDArray

from structloss.automata.automaton import SMALLER, LossAutomaton, TooManyStatesError
from structloss.automata.open import Floats, Ints, OpenAutomaton, grown, table_for
from structloss.kernels import determinise, subsumption
from structloss.kernels.determinise import States
from structloss.kernels.sparse import NO_ROOM, EditMachine
from structloss.kernels.subsumption import UNIT, Acceptor, Limits
from structloss.kernels.tables import rehash


def compile_acceptor(
    acceptor: Acceptor, class_of: NDArray[np.int64], length: int, cap: float, absolute: bool, max_states: int,
    prune: bool = False,
) -> LossAutomaton:  # fmt: skip
    """The machine that gives every string of `length` the least cost of the acceptor's paths, at most `cap`.

    See `kernels.determinise` for the algorithm and why it is exact. `absolute` puts the whole loss into final weights.
    With `prune`, what reaches the cap is outside.
    """
    absolute = absolute or math.isfinite(cap)
    C, P = acceptor.move_start.shape[0], len(acceptor.start)
    completion, place, alive = (
        np.empty((length + 1, P)),
        np.full((length + 1, P), -1),
        np.empty((length + 1, P), np.int64),
    )
    counts, ordinary = np.zeros(length + 1, np.int64), np.empty((length + 1, C), np.int64)
    subsumption.positions_of_use(acceptor, cap, completion, place, alive, counts, ordinary)
    limits = Limits(completion, place, alive, counts, ordinary, np.empty((length + 1, counts.max(), counts.max())))
    subsumption.level_bounds(acceptor, limits)

    room, offsets = 32 * (length + 2), np.zeros(length + 2, np.int64)
    next_state, weights = np.zeros((room, C), np.int32), np.zeros((0 if absolute else room, C))
    known, states, arc = _with_room(_NO_STATES, 0, 0, room, 4 * room + P), 0, -1
    while not offsets[-1]:
        states, arc = determinise.expand(
            acceptor, limits, cap, math.inf, absolute, known, next_state, weights, offsets, max_states, _NONE, _NONE,
            states, arc,
        )  # fmt: skip
        level = int((offsets > 0).sum())  # of the states that were found last
        if states > max_states:
            raise TooManyStatesError(
                f"max_states: the machine for outputs of length {length} passed {max_states} states at position "
                f"{min(level, length)}; {SMALLER}"
            )
        if not offsets[-1]:
            room *= 2
            next_state, weights = grown(next_state, room), weights if absolute else grown(weights, room)
            known = _with_room(known, int(offsets[level]), states, room, 2 * len(known.cost))
    final = np.zeros(states)
    determinise.least_with(known, np.arange(offsets[-2], states), completion[-1], cap, final[offsets[-2] :])
    if prune:
        final[final >= cap - UNIT] = math.inf
    return LossAutomaton(class_of, next_state[:states], weights[:states], final, offsets)


_NONE = np.zeros(0, np.int64)
_NO_STATES = States(np.zeros(1, np.int64), _NONE, np.zeros(0), _NONE)


def _with_room(s: States, first: int, last: int, states: int, entries: int) -> States:
    """Room for so many states and entries; those from `first` to `last` can be found."""
    grown_to = States(grown(s.begin, states + 1), grown(s.key, 2 * entries), grown(s.cost, entries), table_for(states))
    rehash(grown_to.key, grown_to.begin, 2, first, last, grown_to.table)
    return grown_to


class TropicalAutomaton(OpenAutomaton):
    """The least cost of an acceptor's paths, at most `cap`, for strings of any length: see `kernels.determinise`.

    Attributes:
        acceptor: the acceptor.
        cap: the most that a loss is told apart from.
        window: what costs so much more than the least is forgotten; inf for nothing.
        prune: whether what reaches the cap is outside.
        entries: of each state the positions where a path can be, with their costs.
    """

    def __init__(
        self,
        acceptor: Acceptor,
        limits: Limits,
        class_of: Ints,
        cap: float,
        absolute: bool,
        max_states: int,
        window: float = math.inf,
        prune: bool = False,
    ) -> None:
        super().__init__(class_of, acceptor.move_start.shape[0], max_states)
        self.acceptor, self.limits, self.cap, self.window, self.prune = acceptor, limits, cap, window, prune
        self.absolute = absolute or math.isfinite(cap)
        self.stop = np.empty(len(acceptor.start))  # what it costs to stop at a position
        subsumption.silent_stops(acceptor, self.stop)
        self.entries = _with_room(_NO_STATES, 0, 0, len(self.final), 4 * len(self.final) + len(self.stop))
        self._worst = -1, np.zeros(0)  # see `_losses_within`
        self._expand(_NONE, _NONE)

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + sum(x.nbytes for x in (*self.entries, *self.limits, *self.acceptor, self.stop))

    def _expand(self, states: Ints, classes: Ints) -> None:
        done = 0 if self.num_states else -1
        while done < len(states):
            before = self.num_states
            self.num_states, done = determinise.expand(
                self.acceptor, self.limits, self.cap, self.window, self.absolute, self.entries, self.next_state,
                self.weights, _NONE, self.max_states, states, classes, before, done,
            )  # fmt: skip
            self.final[before : self.num_states] = self._inside(
                self._least(np.arange(before, self.num_states), self.stop)
            )
            self._check_size(self.num_states)
            if done < len(states):
                self.make_room()

    def arrays(self, max_states: int) -> EditMachine:
        """What kernels read and add to, of an edit distance; hand it to `take` afterwards."""
        return EditMachine(
            self.acceptor, self.limits, self.cap, self.window, self.absolute, self.entries, self.next_state,
            self.weights, self.final, self.stop, max_states, np.array([self.num_states]),
        )  # fmt: skip

    def take(self, machine: EditMachine) -> None:
        """Know what a kernel has added."""
        self.num_states = min(int(machine.number[0]), len(self.final))

    def make_room(self, status: int = NO_ROOM) -> bool:
        """Whether a kernel stopped for want of room: there is room for twice as many states then."""
        if status == NO_ROOM:
            self._grow(2 * len(self.final))
            entries = 2 * len(self.entries.cost)
            self.entries = _with_room(self.entries, 0, self.num_states, len(self.final), entries)
        return status == NO_ROOM

    def _least(self, states: Ints, value: Floats) -> Floats:
        """The least cost + value (P,) over the entries of each state, at most the cap."""
        out = np.empty(len(states))
        determinise.least_with(self.entries, states, value, self.cap, out)
        return out

    def _inside(self, losses: Floats) -> Floats:
        """These least losses, inf where they are outside."""
        return np.where(losses >= self.cap - UNIT, math.inf, losses) if self.prune else losses

    def losses_to_go(self, states: Ints, length: int) -> tuple[Floats, Floats]:
        worst = np.empty((length + 1, len(self.stop)))
        subsumption.worst_completions(self.acceptor, length, worst)
        return self._inside(self._least(states, self.limits.completion[0])), self._least(states, worst[length])

    def _losses_within(self, first: int, length: int) -> tuple[Floats, Floats]:
        states = np.arange(first, self.num_states)
        if self._worst[0] != length:
            worst = np.full((length + 1, len(self.stop)), math.inf)
            if math.isinf(self.cap):  # else the cap is the most
                subsumption.worst_completions(self.acceptor, length, worst)
            self._worst = length, worst.max(0)
        return self._inside(self._least(states, self.limits.completion[0])), self._least(states, self._worst[1])


def edit_limits(acceptor: Acceptor, insertion: float, deletion: float) -> Limits:
    """Those of an edit distance whose costs are not negative, in closed form.

    From an earlier position one may delete what lies between; from a later one, insert what the other reads there.
    Positions of which none leads silently to the other, as with a band, are never those of one state.
    """
    completion, place = np.empty((1, len(acceptor.start))), np.arange(len(acceptor.start))
    subsumption.completions(acceptor, completion[0])
    ahead = place - place[:, None]  # of q, p
    row = np.cumsum(np.diff(acceptor.silent_start, prepend=-1)[:-1] == 0)
    bound = np.where(ahead > 0, ahead * deletion, -ahead * insertion)
    return _limits(acceptor, completion, place, place, np.where(row == row[:, None], bound, math.inf))


def open_limits(acceptor: Acceptor) -> Limits:
    """What is known of the acceptor's positions whatever string is left, or a ValueError where losses have no end."""
    completion, stop = np.empty((1, len(acceptor.start))), np.empty(len(acceptor.start))
    if not subsumption.completions(acceptor, completion[0]):
        raise ValueError(
            "transducer: a loop lowers the loss at every turn, but wanted losses that strings of any length bound"
        )
    subsumption.silent_stops(acceptor, stop)
    useful = completion[0] < math.inf
    alive, place = np.flatnonzero(useful), np.where(useful, np.cumsum(useful) - 1, -1)
    limits = _limits(acceptor, completion, place, alive, np.empty((len(alive), len(alive))))
    subsumption.open_bounds(acceptor, stop, alive, place, limits.ordinary[0], limits.bound[0])
    return limits


def _limits(acceptor: Acceptor, completion: Floats, place: Ints, alive: Ints, bound: Floats) -> Limits:
    """The limits of one level, in which every class is followed."""
    ordinary = np.zeros((1, len(acceptor.move_start)), np.int64)
    return Limits(completion, place[None], alive[None], np.array([len(alive)]), ordinary, bound[None])
