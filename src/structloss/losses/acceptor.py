"""Losses that are the least cost of a path: an acceptor of all answers for each reference, made deterministic."""

import math
from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from structloss.automata import LossAutomaton, OpenAutomaton
from structloss.automata.pairs import ScaledAutomaton
from structloss.automata.tropical import TropicalAutomaton, compile_acceptor, open_limits
from structloss.kernels.subsumption import UNIT, Acceptor, Limits
from structloss.losses.machine import MachineLoss
from structloss.losses.numbers import check_cap
from structloss.losses.references import String


class AcceptorLoss(MachineLoss):
    """The least cost of a path that reads the answer, told apart up to a cap above the reference's own loss.

    With a threshold instead, an answer whose loss is more than that above the reference's own is outside: inf.

    Write `uncapped`, its own definition, and `acceptor_of`, the acceptor; determinisation is the compiler's.
    """

    normalize = False  # divide by the number of the reference's labels
    window: float | None = None  # what costs so much more than the least is forgotten

    def __init__(self, cap: float | None, max_states: int, threshold: float | None = None) -> None:
        super().__init__(max_states)
        self.cap, self.threshold = check_cap(cap), check_cap(threshold, "threshold")
        if cap is not None and threshold is not None:
            raise ValueError(
                f"threshold: got {threshold!r} beside cap={cap!r}, but wanted one of the two: a threshold leaves out "
                "what a cap keeps"
            )

    @abstractmethod
    def uncapped(self, y: String, reference: String) -> float:
        """The loss of one answer without the cap, by its own definition; where labels are unknown, the least."""

    @abstractmethod
    def acceptor_of(self, reference: String, num_labels: int) -> tuple[Acceptor, NDArray[np.int64]]:
        """The acceptor of all answers against one reference, and the class (K,) of each label."""

    def limits(self, acceptor: Acceptor) -> Limits:
        """What is known of the acceptor's positions whatever string is left."""
        return open_limits(acceptor)

    def distance(self, y: String, reference: String) -> float:
        value, limit = self.uncapped(y, reference), self._limit(reference)
        if self.threshold is not None and value >= limit - UNIT:
            return math.inf
        return min(limit, value) * self._factor(reference)

    def _factor(self, reference: String) -> float:
        return 1.0 / max(1, len(reference)) if self.normalize else 1.0

    def _limit(self, reference: String) -> float:
        """Where losses end, counted from the reference's own; where labels are unknown, from one completion's.

        A loss that equals the threshold is inside, and differs from this by more than rounding.
        """
        most = self.cap if self.threshold is None else self.threshold + 2 * UNIT
        if most is None:
            return math.inf
        labels = reference if reference.ndim == 1 else reference[:, 0]
        return self.uncapped(np.maximum(labels, 0), reference) + most

    @property
    def _shown_limit(self) -> str:
        return f"cap={self.cap}" if self.threshold is None else f"threshold={self.threshold}"

    def compile(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        if self.window is not None:  # what a known length drops may be the least, from which the window is counted
            return super().compile(reference, num_labels, length, absolute)
        acceptor, class_of = self.acceptor_of(reference, num_labels)
        limit, prune = self._limit(reference), self.threshold is not None
        machine = compile_acceptor(acceptor, class_of, length, limit, absolute, self.max_states, prune)
        return machine.times(self._factor(reference))

    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        acceptor, class_of = self.acceptor_of(reference, num_labels)
        limits, window = self.limits(acceptor), math.inf if self.window is None else float(self.window)
        limit, prune = self._limit(reference), self.threshold is not None
        machine = TropicalAutomaton(acceptor, limits, class_of, limit, absolute, self.max_states, window, prune)
        return ScaledAutomaton(machine, self._factor(reference)) if self.normalize else machine
