"""Agreement: nothing for a string that agrees with the reference, and no other string at all."""

import math

from structloss.automata import OpenAutomaton
from structloss.automata.string import StringAutomaton
from structloss.losses.machine import MachineLoss
from structloss.losses.references import UNKNOWN, String


class Agreement(MachineLoss):
    """0 where y agrees with the reference wherever that is known (-100: unknown), else inf, which is outside every sum.

    A structure whose outputs write strings and that is augmented with it is that structure, given the reference.
    """

    def __repr__(self) -> str:
        return "Agreement()"

    def distance(self, y: String, reference: String) -> float:
        if len(y) != len(reference):
            return math.inf
        sets = reference if reference.ndim == 2 else reference[:, None]
        agrees = ((sets == y[:, None]) | (sets == UNKNOWN)).any(1).all()
        return 0.0 if agrees else math.inf

    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        return StringAutomaton(reference, num_labels)
