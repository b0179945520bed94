"""RationalLoss: any weighted transducer over the probability semiring as a loss."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from structloss.automata.automaton import MAX_STATES, TooManyStatesError
from structloss.automata.rational import RationalAutomaton
from structloss.automata.transducer import Transducer
from structloss.losses.machine import MachineLoss
from structloss.losses.numbers import check_at_least_zero
from structloss.losses.references import String

_MOST_BYTES = 1 << 30  # of the matrices of a machine


class RationalLoss(MachineLoss):
    r"""Minus the log of a weighted transducer U over the probability semiring (Cortes 2018, section 4).

    .. math:: L(y, r) = -\log\Big(\text{smoothing} + \sum_{\text{paths that read } y \text{ and write } r}
              \prod \text{weights}\Big)

    inf where the sum is 0: such a y is outside every sum.

    Args:
        transducer: as for `TropicalLoss`, but weights are factors of at least 0, 1 where none is named. OpenFst objects
            and binary files, whose weights are costs, stand for the factors exp(-cost).
        smoothing: added to the sum, so that every string has a finite loss.
        symbols: the names of labels 0, 1, ... where the text, or the symbol table of an OpenFst machine, has names.
        max_states: raise `TooManyStatesError` rather than build a larger machine.

    A state of the machine is what continuations can see of the sums over paths so far: polynomially many for counts of
    n-grams, exponentially many for some transducers.

    Example:
        >>> import structloss as sl
        >>> skip = [(q, q, *labels) for q in (0, 1) for y in range(2) for labels in ((y, None), (None, y))]
        >>> common = sl.Transducer.from_arcs([*skip, (0, 1, 0, 0)], final=[1], semiring="real")
        >>> sl.RationalLoss(common, smoothing=1.0)([[0, 1, 0]], [[0]])  # two paths match label 0 and skip the rest
        tensor([-1.0986])
    """

    def __init__(
        self,
        transducer: Transducer | str | Path | Any,
        smoothing: float = 0.0,
        symbols: list[str] | None = None,
        max_states: int = MAX_STATES,
    ) -> None:
        super().__init__(max_states)
        self.smoothing = check_at_least_zero(smoothing, "smoothing")
        self.transducer = Transducer.read(transducer, symbols, "real")
        for arc in self.transducer.arcs:
            if arc.weight < 0:
                raise ValueError(f"transducer: the arc {tuple(arc)} has weight {arc.weight}, but wanted at least 0")
        for state, weight in self.transducer.final.items():
            if weight < 0:
                raise ValueError(f"transducer: final state {state} has weight {weight}, but wanted at least 0")

    def __repr__(self) -> str:
        u = self.transducer
        return f"RationalLoss({u.num_states} states, {len(u.arcs)} arcs, smoothing={self.smoothing})"

    def distance(self, y: String, reference: String) -> float:
        """Minus the log of the sum over paths: `kernels.paths`."""
        product = self.smoothing + self.transducer.weight(y, reference, "real")
        return -math.log(product) if product > 0 else math.inf

    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> RationalAutomaton:
        u = self.transducer.against(reference, num_labels)
        P = u.num_positions
        if (u.num_classes + 2) * P * P * 8 > _MOST_BYTES:
            raise TooManyStatesError(
                f"transducer: its {self.transducer.num_states} states make {P} positions against a reference of "
                f"{len(reference)} labels, whose matrices are larger than {_MOST_BYTES} bytes"
            )
        matrices, silent = np.zeros((u.num_classes, P, P)), np.zeros((P, P))
        for symbol_class, source, target, weight in u.moves:
            matrices[symbol_class, source, target] += weight
        for source, target, weight in u.silent:
            silent[source, target] += weight
        # Any number of silent moves: I + S + S^2 + ... ends, as they only go to higher positions.
        closure = np.eye(P)
        for p in range(P - 1, -1, -1):
            closure[p] += silent[p] @ closure
        start, stop = np.zeros(P), np.zeros(P)
        start[u.start] = 1.0
        for position, weight in u.stop.items():
            stop[position] = weight
        return RationalAutomaton(
            start @ closure, matrices @ closure, stop, self.smoothing, u.class_of, absolute, self.max_states
        )
