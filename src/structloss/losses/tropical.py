"""TropicalLoss: any weighted transducer over the tropical semiring as a loss."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from structloss.automata.acceptors import AcceptorBuilder
from structloss.automata.automaton import MAX_STATES
from structloss.automata.transducer import Transducer
from structloss.kernels.subsumption import Acceptor
from structloss.losses.acceptor import AcceptorLoss
from structloss.losses.references import String


class TropicalLoss(AcceptorLoss):
    r"""The loss of a weighted transducer U over the tropical semiring (Cortes 2018, section 5).

    .. math:: L(y, r) = U(y, r) = \min_{\text{paths that read } y \text{ and write } r} \sum \text{weights}

    inf where there is no path: such a y is outside every sum.

    Args:
        transducer: a `Transducer`; OpenFst's text, or a `Path` to it or to a binary file; or a pywrapfst or pynini
            object. What it reads is the answer, what it writes the reference.
        cap: tell losses apart up to so much above the reference's own, L' = min(L, L(r, r) + cap).
        threshold: leave out answers whose loss is more than so much above the reference's own, as for `EditDistance`.
        symbols: the names of labels 0, 1, ... where the text, or the symbol table of an OpenFst machine, has names.
        max_states: raise `TooManyStatesError` rather than build a larger machine.

    Example:
        >>> import structloss as sl
        >>> hamming = sl.TropicalLoss("0 0 a a\n0 0 b b\n0 0 a b 1\n0 0 b a 1\n0", symbols=["a", "b"])
        >>> hamming([[0, 1, 1]], [[0, 0, 1]])
        tensor([1.])
    """

    def __init__(
        self,
        transducer: Transducer | str | Path | Any,
        cap: float | None = None,
        symbols: list[str] | None = None,
        max_states: int = MAX_STATES,
        threshold: float | None = None,
    ) -> None:
        super().__init__(cap, max_states, threshold)
        self.transducer = Transducer.read(transducer, symbols, "tropical")

    def __repr__(self) -> str:
        u = self.transducer
        return f"TropicalLoss({u.num_states} states, {len(u.arcs)} arcs, {self._shown_limit})"

    def uncapped(self, y: String, reference: String) -> float:
        """The shortest path: `kernels.paths`."""
        return self.transducer.weight(y, reference, "tropical")

    def acceptor_of(self, reference: String, num_labels: int) -> tuple[Acceptor, NDArray[np.int64]]:
        u = self.transducer.against(reference, num_labels)
        builder = AcceptorBuilder(u.num_positions, u.num_classes)
        for symbol_class, source, target, weight in u.moves:
            builder.move(symbol_class, source, target, weight)
        for source, target, weight in u.silent:
            builder.silent(source, target, weight)
        builder.start[u.start] = 0.0
        for position, weight in u.stop.items():
            builder.stop[position] = weight
        return builder.build(), u.class_of
