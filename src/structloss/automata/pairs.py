"""Two machines for the same strings, made one."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.automata.automaton import SMALLER, LossAutomaton, TooManyStatesError
from structloss.automata.open import Floats, Ints, OpenAutomaton
from structloss.kernels.machines import compose


class Paired(NamedTuple):
    """Machines with the states of the pair, one with the weights of each."""

    first: LossAutomaton
    second: LossAutomaton


def pair(a: LossAutomaton, b: LossAutomaton, max_states: int) -> Paired:
    """Run two machines at once. Cost: the pairs of states that some string reaches, times their classes."""
    classes, class_of = np.unique(a.class_of * b.next_state.shape[1] + b.class_of, return_inverse=True)
    class_a, class_b = np.divmod(classes, b.next_state.shape[1])
    widest = int(a.sizes.max()), int(b.sizes.max())
    next_state, in_a, in_b, offsets, outgrown = compose(
        a.next_state, a.offsets[:-1], class_a, b.next_state, b.offsets[:-1], class_b[None], widest, max_states
    )
    if outgrown >= 0:
        raise TooManyStatesError(
            f"max_states: two losses together passed {max_states} states at position {outgrown} of {a.length}; "
            f"{SMALLER}"
        )

    def part(m: LossAutomaton, states: NDArray[np.int64], symbol_classes: NDArray[np.int64]) -> LossAutomaton:
        place = states[:, None] * m.weights.shape[1] + symbol_classes
        weights = m.weights if m.is_absolute else m.weights.take(place)
        return LossAutomaton(class_of.reshape(-1).astype(np.int64), next_state, weights, m.final[states], offsets)

    return Paired(part(a, in_a, class_a), part(b, in_b, class_b))


def weighted_sum(
    a: LossAutomaton, factor_a: float, b: LossAutomaton, factor_b: float, max_states: int
) -> LossAutomaton:
    """factor_a * a + factor_b * b, as one machine."""
    first, second = pair(a, b, max_states)
    if first.is_absolute and second.is_absolute:
        weights = first.weights
    else:
        weights = np.zeros(first.next_state.shape)
        for machine, factor in ((first, factor_a), (second, factor_b)):
            if not machine.is_absolute:
                weights += factor * machine.weights
    outside = np.isinf(first.final) | np.isinf(second.final)
    ends = (np.where(outside, 0.0, machine.final) for machine in (first, second))
    final = np.where(outside, np.inf, factor_a * next(ends) + factor_b * next(ends))
    return LossAutomaton(first.class_of, first.next_state, weights, final, first.offsets)


class ScaledAutomaton(OpenAutomaton):
    """factor * a machine for strings of any length: its states, each with its own number.

    Attributes:
        machine: the machine.
        factor: what its losses are multiplied by; what is outside stays outside, whatever the factor is.
    """

    def __init__(self, machine: OpenAutomaton, factor: float) -> None:
        super().__init__(machine.class_of, machine.next_state.shape[1], machine.max_states)
        self.machine, self.factor = machine, factor
        self._take()

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self.machine.num_bytes

    def _take(self) -> None:
        """Know the states that the machine knows."""
        before, self.num_states = self.num_states, self.machine.num_states
        self._grow(self.num_states)
        self.final[before : self.num_states] = self._times(self.machine.final[before : self.num_states])

    def _times(self, losses: Floats) -> Floats:
        outside = np.isinf(losses)
        return np.where(outside, np.inf, self.factor * np.where(outside, 0.0, losses))

    def _expand(self, states: Ints, classes: Ints) -> None:
        found, weights = self.machine.follow(states, classes)
        self._take()
        self.next_state[states, classes], self.weights[states, classes] = found, self.factor * weights

    def losses_to_go(self, states: Ints, length: int) -> tuple[Floats, Floats]:
        return self._bounds(*self.machine.losses_to_go(states, length))

    def _losses_within(self, first: int, length: int) -> tuple[Floats, Floats]:
        least, most = (x[first : self.num_states] for x in self.machine.losses_within(length))
        return self._bounds(least, most)

    def _bounds(self, least: Floats, most: Floats) -> tuple[Floats, Floats]:
        outside = least == np.inf  # every string is
        least, most = (self.factor * np.where(outside | (self.factor == 0), 0.0, x) for x in (least, most))
        return np.where(outside, np.inf, np.minimum(least, most)), np.where(outside, np.inf, np.maximum(least, most))


def unscaled(machine: OpenAutomaton) -> tuple[OpenAutomaton, float]:
    """The machine without the factor that it has been multiplied by, and the factor."""
    return (machine.machine, machine.factor) if isinstance(machine, ScaledAutomaton) else (machine, 1.0)


class SumAutomaton(OpenAutomaton):
    """factor_a * a + factor_b * b for strings of any length: its states are pairs, found as they are asked for.

    Attributes:
        parts: the two machines.
        factors: of each.
        pairs: (2, room), of each state the state that either machine is in.
    """

    def __init__(self, a: OpenAutomaton, factor_a: float, b: OpenAutomaton, factor_b: float, max_states: int) -> None:
        width = b.next_state.shape[1]
        classes, class_of = np.unique(a.class_of * width + b.class_of, return_inverse=True)
        super().__init__(class_of.reshape(-1).astype(np.int64), len(classes), max_states)
        self.parts, self.factors, self._classes = (a, b), (factor_a, factor_b), np.divmod(classes, width)
        self._numbers: dict[tuple[int, int], int] = {}
        self.pairs = np.zeros((2, len(self.final)), np.int64)
        self._enter((0, 0))

    @property
    def num_bytes(self) -> int:
        pairs = 250 * self.num_states  # of a dict's entry, a tuple and its two numbers
        return super().num_bytes + pairs + self.pairs.nbytes + sum(m.num_bytes for m in set(self.parts))

    def _enter(self, pair: tuple[int, int]) -> int:
        state = self._numbers.setdefault(pair, self.num_states)
        if state == self.num_states:
            self._check_size(state + 1)
            if state + 1 > len(self.final):
                self._grow(state + 1)
                self.pairs = np.concatenate([self.pairs, np.zeros_like(self.pairs)], 1)
            self.pairs[:, state] = pair
            ends = [m.final[s] for m, s in zip(self.parts, pair, strict=True)]
            outside = any(np.isinf(end) for end in ends)
            self.final[state] = np.inf if outside else sum(f * e for f, e in zip(self.factors, ends, strict=True))
            self.num_states += 1
        return state

    def _expand(self, states: Ints, classes: Ints) -> None:
        (in_a, weight_a), (in_b, weight_b) = (
            m.follow(self.pairs[i, states], self._classes[i][classes]) for i, m in enumerate(self.parts)
        )
        targets = [self._enter(pair) for pair in zip(in_a.tolist(), in_b.tolist(), strict=True)]
        self.next_state[states, classes] = targets
        self.weights[states, classes] = self.factors[0] * weight_a + self.factors[1] * weight_b

    def losses_to_go(self, states: Ints, length: int) -> tuple[Floats, Floats]:
        return self._added_up([m.losses_to_go(self.pairs[i, states], length) for i, m in enumerate(self.parts)])

    def _losses_within(self, first: int, length: int) -> tuple[Floats, Floats]:
        own = self.pairs[:, first : self.num_states]
        return self._added_up(
            [tuple(x[s] for x in m.losses_within(length)) for s, m in zip(own, self.parts, strict=True)]
        )

    def _added_up(self, bounds: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
        """The bounds of the sum, from those of its parts."""
        lowest, highest, outside = (np.zeros(len(bounds[0][0]), kind) for kind in (float, float, bool))
        for factor, (least, most) in zip(self.factors, bounds, strict=True):
            outside |= least == np.inf  # every string is outside this part, and so outside the sum
            if factor:
                least, most = (factor * np.where(least == np.inf, 0.0, x) for x in (least, most))
                lowest, highest = lowest + np.minimum(least, most), highest + np.maximum(least, most)
        return np.where(outside, np.inf, lowest), np.where(outside, np.inf, highest)
