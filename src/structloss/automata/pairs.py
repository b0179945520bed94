"""Two machines for the same strings, made one."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.automata.automaton import SMALLER, LossAutomaton, TooManyStatesError
from structloss.automata.open import Endings, Floats, Ints, OpenAutomaton, Scores
from structloss.kernels.machines import gather_weights, pair_machines


class Paired(NamedTuple):
    """Machines with the states of the pair, one with the weights of each."""

    first: LossAutomaton
    second: LossAutomaton


def pair(a: LossAutomaton, b: LossAutomaton, max_states: int) -> Paired:
    """Run two machines at once. Cost: the pairs of states that some string reaches, times their classes."""
    classes, class_of = np.unique(a.class_of * b.next_state.shape[1] + b.class_of, return_inverse=True)
    class_a, class_b = np.divmod(classes, b.next_state.shape[1])
    next_state, in_a, in_b, offsets, outgrown = pair_machines(
        a.next_state, a.offsets, class_a, b.next_state, b.offsets, class_b, max_states
    )
    if outgrown >= 0:
        raise TooManyStatesError(
            f"max_states: two losses together passed {max_states} states at position {outgrown} of {a.length}; "
            f"{SMALLER}"
        )

    def part(m: LossAutomaton, states: NDArray[np.int64], symbol_classes: NDArray[np.int64]) -> LossAutomaton:
        weights = m.weights if m.is_absolute else gather_weights(m.weights, states, symbol_classes)
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


class SumAutomaton(OpenAutomaton):
    """factor_a * a + factor_b * b for strings of any length: its states are pairs, found as they are asked for."""

    def __init__(self, a: OpenAutomaton, factor_a: float, b: OpenAutomaton, factor_b: float, max_states: int) -> None:
        width = b.next_state.shape[1]
        classes, class_of = np.unique(a.class_of * width + b.class_of, return_inverse=True)
        super().__init__(class_of.reshape(-1).astype(np.int64), len(classes), max_states)
        self._parts, self._factors, self._classes = (a, b), (factor_a, factor_b), np.divmod(classes, width)
        self._pairs: dict[tuple[int, int], int] = {}
        self._states = np.zeros((2, len(self.final)), np.int64)
        self._enter((0, 0))

    @property
    def num_bytes(self) -> int:
        pairs = 250 * self.num_states  # of a dict's entry, a tuple and its two numbers
        return super().num_bytes + pairs + self._states.nbytes + sum(m.num_bytes for m in set(self._parts))

    def _enter(self, pair: tuple[int, int]) -> int:
        state = self._pairs.setdefault(pair, self.num_states)
        if state == self.num_states:
            self._check_size(state + 1)
            if state + 1 > len(self.final):
                self._grow(state + 1)
                self._states = np.concatenate([self._states, np.zeros_like(self._states)], 1)
            self._states[:, state] = pair
            ends = [m.final[s] for m, s in zip(self._parts, pair, strict=True)]
            outside = any(np.isinf(end) for end in ends)
            self.final[state] = np.inf if outside else sum(f * e for f, e in zip(self._factors, ends, strict=True))
            self.num_states += 1
        return state

    def _expand(self, states: Ints, classes: Ints) -> None:
        (in_a, weight_a), (in_b, weight_b) = (
            m.follow(self._states[i, states], self._classes[i][classes]) for i, m in enumerate(self._parts)
        )
        targets = [self._enter(pair) for pair in zip(in_a.tolist(), in_b.tolist(), strict=True)]
        self.next_state[states, classes] = targets
        self.weights[states, classes] = self._factors[0] * weight_a + self._factors[1] * weight_b

    def endings(self, scores: Scores, scale: float) -> "SumEndings":
        return SumEndings(self, scores, scale)

    def losses_to_go(self, states: Ints, length: int) -> tuple[Floats, Floats]:
        lowest, highest, outside = np.zeros(len(states)), np.zeros(len(states)), np.zeros(len(states), bool)
        for i, (m, factor) in enumerate(zip(self._parts, self._factors, strict=True)):
            least, most = m.losses_to_go(self._states[i, states], length)
            outside |= least == np.inf  # every string is outside this part, and so outside the sum
            if factor:
                least, most = (factor * np.where(least == np.inf, 0.0, x) for x in (least, most))
                lowest, highest = lowest + np.minimum(least, most), highest + np.maximum(least, most)
        return np.where(outside, np.inf, lowest), np.where(outside, np.inf, highest)


class SumEndings(Endings):
    """The endings of either part, with the other part's worst loss to go. The smallest of all bounds."""

    def __init__(self, machine: SumAutomaton, scores: Scores, scale: float) -> None:
        super().__init__(machine, scores, scale)
        self._sum = machine
        self._endings = [m.endings(scores, scale * f) for m, f in zip(machine._parts, machine._factors, strict=True)]

    def bounds(self, states: Ints, t: int) -> Floats:
        result, left = super().bounds(states, t), len(self.scores.level) - t
        for i, endings in enumerate(self._endings):
            scale = self.scale * self._sum._factors[1 - i]
            least, most = self._sum._parts[1 - i].losses_to_go(self._sum._states[1 - i, states], left)
            other = scale * (most if scale >= 0 else least) if scale else np.zeros(len(states))
            own = endings.bounds(self._sum._states[i, states], t)
            possible = (own > -np.inf) & (other > -np.inf)[:, None]
            both = np.add(own, other[:, None], out=np.full_like(own, -np.inf), where=possible)
            result = np.minimum(result, both)
        return result
