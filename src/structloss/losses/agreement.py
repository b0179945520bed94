"""Agreement: nothing for a string that agrees with the reference, and no other string at all."""

import math

from structloss.automata import LossAutomaton, OpenAutomaton
from structloss.automata.string import StringAutomaton
from structloss.kernels.checks import UNKNOWN
from structloss.losses.machine import MachineLoss, String


class Agreement(MachineLoss):
    """0 where y agrees with the reference wherever that is known (-100: unknown), else inf, which is outside every sum.

    A structure whose outputs write strings and that is augmented with it is that structure, given the reference.
    """

    def __repr__(self) -> str:
        return "Agreement()"

    def distance(self, y: String, reference: String) -> float:
        agrees = len(y) == len(reference) and ((y == reference) | (reference == UNKNOWN)).all()
        return 0.0 if agrees else math.inf

    def compile(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        machine = self.compile_open(reference, num_labels, absolute)
        return machine.levelled([[label] for label in range(num_labels)], length)

    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        return StringAutomaton(reference, num_labels)
