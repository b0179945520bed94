"""Losses added up: 0.5 * EditDistance() + NGram(2) is a loss."""

import math

from structloss.automata import LossAutomaton, OpenAutomaton
from structloss.automata.pairs import SumAutomaton, weighted_sum
from structloss.losses.base import Loss, PositionLoss
from structloss.losses.machine import MachineLoss, String


class WeightedSum(MachineLoss):
    r"""A weighted sum of losses, :math:`L(y, r) = \sum_i f_i L_i(y, r)`. Write it with `*` and `+`.

    Its machine runs those of its parts at once: their states are pairs. What is outside one part, costs inf there, is
    outside the sum: inf, whatever the factors are, 0 and negative ones too.

    Example:
        >>> import structloss as sl
        >>> loss = 0.5 * sl.EditDistance() + sl.NGram(2)
        >>> loss([[0, 1, 2]], [[0, 1, 3]])  # 0.5 * 1 - log(1 + 1)
        tensor([-0.1931])
    """

    def __init__(self, parts: list[tuple[float, MachineLoss | PositionLoss]]) -> None:
        super().__init__()
        self.parts = parts

    def __repr__(self) -> str:
        return " + ".join(f"{factor} * {loss!r}" for factor, loss in self.parts)

    def distance(self, y: String, reference: String) -> float:
        parts = [loss.distance(y, reference) for _, loss in self.parts]
        if math.inf in parts:
            return math.inf
        return sum(factor * value for (factor, _), value in zip(self.parts, parts, strict=True))

    def compile(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        (factor, loss), *rest = self.parts
        machine = _machine(loss, reference, num_labels, length, absolute)
        if not rest:
            return weighted_sum(machine, factor, machine, 0.0, self.max_states)
        for further, other in rest:
            addend = _machine(other, reference, num_labels, length, absolute)
            machine, factor = weighted_sum(machine, factor, addend, further, self.max_states), 1.0
        return machine

    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        (factor, loss), *rest = self.parts
        machine = _open(loss, reference, num_labels, absolute)
        if not rest:
            return SumAutomaton(machine, factor, machine, 0.0, self.max_states)
        for further, other in rest:
            addend = _open(other, reference, num_labels, absolute)
            machine, factor = SumAutomaton(machine, factor, addend, further, self.max_states), 1.0
        return machine


# The machines of parts are not kept: that of the sum is, and holds what it needs of them.


def _machine(
    loss: MachineLoss | PositionLoss, reference: String, num_labels: int, length: int, absolute: bool
) -> LossAutomaton:
    make = loss.compile if isinstance(loss, MachineLoss) else loss.machine
    return make(reference, num_labels, length, absolute)


def _open(loss: MachineLoss | PositionLoss, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
    make = loss.compile_open if isinstance(loss, MachineLoss) else loss.open
    return make(reference, num_labels, absolute)


def parts_of(loss: Loss, factor: float) -> list[tuple[float, MachineLoss | PositionLoss]]:
    """A loss times a number, as a list of parts."""
    if isinstance(loss, WeightedSum):
        return [(factor * f, part) for f, part in loss.parts]
    if not isinstance(loss, MachineLoss | PositionLoss):
        raise TypeError(f"loss: got {loss!r}, but wanted a loss that has a machine")
    return [(factor, loss)]
