"""OpenAutomaton: a loss against one reference, for strings of any length, explored as far as it is asked for."""

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structloss.automata.automaton import MAX_STATES, SMALLER, LossAutomaton, TooManyStatesError
from structloss.kernels.tables import distinct_rows

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_UNEXPLORED = -1


class OpenAutomaton(ABC):
    """loss(y, reference) for strings y of any length, as a deterministic machine whose states are found on demand.

    State 0 is the start. The loss of y is the sum of the weights of its arcs and of the final weight of the state where
    it ends; a final weight of inf means that y is outside the machine. There may be infinitely many states (an n-gram
    loss counts without end): those that some string asked for are known, the others wait.

    Attributes:
        class_of: (K,), the symbol class of each label; labels of one class behave alike.
        next_state: (room, C), the state that a class leads to, -1 where nobody has asked yet.
        weights: (room, C), of the arcs.
        final: (room,), of the states.
        num_states: how many states are known.

    Example:
        >>> import structloss as sl
        >>> machine = sl.EditDistance().automaton([0, 1, 2], num_labels=3)
        >>> machine.weight([0, 2]), machine.weight([]), machine.weight([0, 1, 2, 2])
        (1.0, 3.0, 1.0)
    """

    def __init__(self, class_of: Ints, num_classes: int, max_states: int) -> None:
        self.class_of = class_of
        self.max_states = max_states
        self.num_states = 0
        self.next_state = np.full((64, num_classes), _UNEXPLORED, np.int64)
        self.weights = np.zeros((64, num_classes))
        self.final = np.zeros(64)
        self._explored = 0.0  # every string of so many labels was followed
        self._within = -1, np.zeros(0), np.zeros(0)  # the length that bounds were last asked for, and they
        self._lock = threading.RLock()

    @abstractmethod
    def _expand(self, states: Ints, classes: Ints) -> None:
        """Fill in next_state and weights of these arcs, none of which is known, and add the states they lead to."""

    @property
    def held(self) -> threading.RLock:
        """Whoever holds this is alone in finding states: `with machine.held:`."""
        return self._lock

    @property
    def num_labels(self) -> int:
        """How many labels there are, K."""
        return len(self.class_of)

    @property
    def num_arcs(self) -> int:
        """How many arcs are known."""
        return int((self.next_state[: self.num_states] != _UNEXPLORED).sum())

    @property
    def num_bytes(self) -> int:
        """How much memory its arrays take."""
        arrays = (self.class_of, self.next_state, self.weights, self.final, *self._within[1:])
        return sum(x.nbytes for x in arrays)

    def follow(self, states: Ints, classes: Ints) -> tuple[Ints, Floats]:
        """The states that these arcs lead to, and their weights. Cost: that of the arcs nobody asked for before."""
        with self._lock:  # kernels let other threads run before all that belongs to a new state is there
            found = self.next_state[states, classes]
            missing = found == _UNEXPLORED
            if missing.any():
                arcs = np.unique(states[missing] * self.next_state.shape[1] + classes[missing])
                self._expand(*np.divmod(arcs, self.next_state.shape[1]))
                found = self.next_state[states, classes]
            return found, self.weights[states, classes]

    def explored(self, depth: int) -> tuple[Ints, Floats]:
        """next_state (S, C) and final (S,) of all states that are known, those among them that `depth` labels reach."""
        with self._lock:
            self.explore(depth)
            return self.next_state[: self.num_states].copy(), self.final[: self.num_states].copy()

    def explore(self, depth: int | None = None) -> None:
        """Find every state that a string of at most `depth` labels reaches; with None, every state there is."""
        explored = math.inf if depth is None else depth
        if self._explored >= explored:
            return
        frontier, classes = np.zeros(1, np.int64), np.unique(self.class_of)
        seen = np.zeros(1, bool)
        seen[0] = True
        while len(frontier) and (depth is None or depth > 0):
            found, _ = self.follow(np.repeat(frontier, len(classes)), np.tile(classes, len(frontier)))
            seen = np.concatenate([seen, np.zeros(self.num_states - len(seen), bool)])
            frontier = np.unique(found[~seen[found]])
            seen[frontier] = True
            depth = None if depth is None else depth - 1
        self._explored = math.inf if not len(frontier) else explored

    def weight(self, y: Sequence[int] | NDArray[Any]) -> float:
        """The loss of one string."""
        state, total = np.zeros(1, np.int64), 0.0
        for label in y:
            state, weight = self.follow(state, self.class_of[label : label + 1])
            total += float(weight[0])
        return total + float(self.final[state[0]])

    def losses_to_go(self, states: Ints, length: int) -> tuple[Floats, Floats]:
        """Bounds of what the rest of a string adds: of these states, the least and the most that `length` labels can.

        At least as low as the least, at least as high as the most sum of arcs and final weight; inf is outside.
        """
        raise NotImplementedError(f"beam: {type(self).__name__} has no bounds of the loss that is still to come")

    def losses_within(self, length: int) -> tuple[Floats, Floats]:
        """Bounds of what the rest of a string of at most `length` labels adds, of each state that is known.

        (S,), at least as low as the least, and as high as the most, over strings that are inside; inf, as the least,
        where none is. Those of the last length are kept, and made for the states that are new.
        """
        with self._lock:
            of, least, most = self._within
            if of != length:
                least, most = np.zeros(0), np.zeros(0)
            if len(least) < self.num_states:
                low, high = self._losses_within(len(least), length)
                least, most = np.concatenate([least, low]), np.concatenate([most, high])
                self._within = length, least, most
            return least, most

    def _losses_within(self, first: int, length: int) -> tuple[Floats, Floats]:
        """Those bounds of the states from `first` on; here by exploring all that so many labels reach."""
        self.explore(length)
        N, classes = self.num_states, np.unique(self.class_of)
        following, weights = self.next_state[:N, classes], self.weights[:N, classes]
        least, there = self.final[:N].copy(), (following >= 0)
        most = np.where(np.isinf(least), -math.inf, least)
        for _ in range(length):
            low = np.where(there, weights + least[following], math.inf).min(1, initial=math.inf)
            high = np.where(there, weights + most[following], -math.inf).max(1, initial=-math.inf)
            if (low >= least).all() and (high <= most).all():
                break
            least, most = np.minimum(least, low), np.maximum(most, high)
        return least[first:], most[first:]

    def levelled(self, strings: Sequence[Sequence[int]], length: int) -> LossAutomaton:
        """The machine of what `length` symbols write, symbol k writing the labels strings[k] (none, one or more).

        Exactly the states that such a string reaches, levels being numbers of symbols; those that no continuation tells
        apart are one.
        """
        return levelled(self, strings, length)

    def _grow(self, room: int) -> None:
        """Make room for so many states."""
        if room <= len(self.final):
            return
        room = max(room, 2 * len(self.final))
        self.next_state = grown(self.next_state, room, _UNEXPLORED)
        self.weights, self.final = grown(self.weights, room), grown(self.final, room)

    def _check_size(self, states: int) -> None:
        if states > self.max_states:
            raise TooManyStatesError(
                f"max_states: the machine for strings of any length passed {self.max_states} states; a known length "
                f"makes it smaller; {SMALLER}"
            )


def grown(x: NDArray[Any], room: int, fill: int = 0) -> NDArray[Any]:
    """x with more rows, so many in all."""
    out = np.full((room, *x.shape[1:]), fill, x.dtype) if fill else np.zeros((room, *x.shape[1:]), x.dtype)
    out[: len(x)] = x
    return out


def table_for(states: int) -> Ints:
    """An empty hash table of so many states: see `kernels.tables`."""
    return np.full(1 << (2 * states).bit_length(), -1)


class ExplicitAutomaton(OpenAutomaton):
    """One whose states are all known from the start: next_state and weights (N, C), final (N,)."""

    def __init__(self, class_of: Ints, next_state: Ints, weights: Floats, final: Floats) -> None:
        super().__init__(class_of, next_state.shape[1], max(len(final), MAX_STATES))
        self.next_state, self.weights, self.final, self.num_states = next_state, weights, final, len(final)

    def _expand(self, states: Ints, classes: Ints) -> None:
        raise AssertionError("every arc is known")

    def losses_to_go(self, states: Ints, length: int) -> tuple[Floats, Floats]:
        least, most = self.final, np.where(np.isinf(self.final), -math.inf, self.final)
        for _ in range(length):
            least = (self.weights + least[self.next_state]).min(1)
            most = (self.weights + most[self.next_state]).max(1)
        return least[states], most[states]


def opened(machine: LossAutomaton) -> ExplicitAutomaton:
    """A machine for strings of one length among all strings: those of another length are outside."""
    n, C = machine.next_state.shape
    outside, inner = n, machine.offsets[-2]
    next_state, weights, final = np.full((n + 1, C), outside, np.int64), np.zeros((n + 1, C)), np.full(n + 1, np.inf)
    level = np.repeat(np.arange(machine.length + 1), machine.sizes)[:inner]
    next_state[:inner] = machine.offsets[level + 1][:, None] + machine.next_state[:inner]
    if not machine.is_absolute:
        weights[:inner] = machine.weights[:inner]
    final[inner:n] = machine.final[inner:]
    return ExplicitAutomaton(machine.class_of, next_state, weights, final)


def levelled(machine: OpenAutomaton, strings: Sequence[Sequence[int]], length: int) -> LossAutomaton:
    """See `OpenAutomaton.levelled`. Cost: the arcs of the result, times the labels that each writes."""
    written = [tuple(int(machine.class_of[label]) for label in string) for string in strings]
    distinct = sorted(set(written))
    number = {w: c for c, w in enumerate(distinct)}
    class_of = np.array([number[w] for w in written], np.int64)
    longest, C = max(len(w) for w in distinct), len(distinct)
    padded = np.full((C, longest), -1, np.int64)
    for c, w in enumerate(distinct):
        padded[c, : len(w)] = w
    levels, arcs = [np.zeros(1, np.int64)], []
    for t in range(length):
        states = np.repeat(levels[t], C)
        weight = np.zeros(len(states))
        for i in range(longest):
            classes = np.tile(padded[:, i], len(levels[t]))
            reads = classes >= 0
            states[reads], added = machine.follow(states[reads], classes[reads])
            weight[reads] += added
        following, place = np.unique(states, return_inverse=True)
        levels.append(following)
        arcs.append((place.reshape(-1, C), weight.reshape(-1, C)))
        if sum(map(len, levels)) > machine.max_states:
            raise TooManyStatesError(
                f"max_states: the machine passed {machine.max_states} states at position {t + 1} of {length}; {SMALLER}"
            )
    return merged(class_of, C, arcs, machine.final[levels[-1]])


def merged(class_of: Ints, C: int, arcs: list[tuple[NDArray[Any], Floats]], final: Floats) -> LossAutomaton:
    """Make one of the states of a level that have the same arcs, or at the end the same loss, from the last back.

    Args:
        arcs: of each level, the place among those of the next level and the weight, (S, C) each.
        final: of the last level's states, (S,).
    """
    final, which = np.unique(final, return_inverse=True)
    next_states, weights, sizes = [np.zeros((len(final), C), np.int64)], [np.zeros((len(final), C))], [len(final)]
    for place, weight in reversed(arcs):
        following = which[place]
        first, which = _distinct(np.concatenate([following, bits(weight)], 1))
        next_states.append(following[first])
        weights.append(weight[first])
        sizes.append(len(first))
    # Classes that lead everywhere alike are one, too.
    next_state, weight = np.concatenate(next_states[::-1]), np.concatenate(weights[::-1])
    kept, symbol_class = _distinct(np.ascontiguousarray(np.concatenate([next_state, bits(weight)]).T))
    weight = np.ascontiguousarray(weight[:, kept])
    offsets = np.concatenate([[0], np.cumsum(sizes[::-1])]).astype(np.int64)
    losses = np.zeros(offsets[-1])
    losses[offsets[-2] :] = final
    return LossAutomaton(
        symbol_class[class_of], next_state[:, kept].astype(np.int32), weight if weight.any() else weight[:0], losses,
        offsets,
    )  # fmt: skip


def bits(weights: Floats) -> Ints:
    """Numbers that are the same where the weights are."""
    return (weights + 0.0).view(np.int64)  # -0.0 is 0.0


def _distinct(rows: Ints) -> tuple[Ints, Ints]:
    """Where the different rows stand first, and of every row which of them it is."""
    n, m = rows.shape
    first, which = np.empty(n, np.int64), np.empty(n, np.int64)
    count = distinct_rows(rows.reshape(-1), np.arange(n + 1), m, table_for(n), first, which)
    return first[:count], which
