"""Two machines for the same strings, made one."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.automata.automaton import LossAutomaton, TooManyStatesError
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
            "a cap on either makes their machines smaller"
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
    with np.errstate(invalid="ignore"):
        final = np.where(outside, np.inf, factor_a * first.final + factor_b * second.final)
    return LossAutomaton(first.class_of, first.next_state, weights, final, first.offsets)
