"""TropicalLoss: any weighted transducer over the tropical semiring as a loss."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from structloss.automata import LossAutomaton
from structloss.automata.transducer import Arc, Transducer
from structloss.automata.tropical import AcceptorBuilder, compile_acceptor
from structloss.losses.machine import MAX_STATES, MachineLoss, String


class TropicalLoss(MachineLoss):
    r"""The loss of a weighted transducer U over the tropical semiring (Cortes 2018, section 5).

    .. math:: L(y, r) = U(y, r) = \min_{\text{paths that read } y \text{ and write } r} \sum \text{weights}

    inf where there is no path: such a y is outside every sum.

    Args:
        transducer: a `Transducer`; OpenFst's text, or a `Path` to it; or a pywrapfst or pynini object. What it reads is
            the answer, what it writes the reference.
        cap: tell losses apart up to so much above the reference's own, L' = min(L, L(r, r) + cap).
        symbols: the names of labels 0, 1, ... where the text has names.
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
    ) -> None:
        super().__init__(max_states)
        if cap is not None and not cap >= 0:
            raise ValueError(f"cap: got {cap!r}, but wanted at least 0, or None")
        if isinstance(transducer, str | Path):
            transducer = Transducer.from_text(transducer, symbols)
        elif not isinstance(transducer, Transducer):
            transducer = Transducer.from_fst(transducer)
        self.transducer: Transducer = transducer
        self.cap = cap

    def __repr__(self) -> str:
        return f"TropicalLoss({self.transducer.num_states} states, {len(self.transducer.arcs)} arcs, cap={self.cap})"

    def distance(self, y: String, reference: String) -> float:
        limit = math.inf if self.cap is None else self._shortest(reference, reference) + self.cap
        return min(limit, self._shortest(y, reference))

    def _shortest(self, y: String, reference: String) -> float:
        """The shortest path, from the end: best[i, j, q] is from state q with y[i:] left to read, r[j:] to write."""
        u = self.transducer
        best = np.full((len(y) + 1, len(reference) + 1, u.num_states), np.inf)
        for i in range(len(y), -1, -1):
            for j in range(len(reference), -1, -1):
                if i == len(y) and j == len(reference):
                    for state, weight in u.final.items():
                        best[i, j, state] = weight
                for _ in range(u.num_states):  # as often as arcs that read and write nothing can follow one another
                    changed = False
                    for source, target, reads, writes, weight in u.arcs:
                        if reads is not None and (i == len(y) or y[i] != reads):
                            continue
                        if writes is not None and (j == len(reference) or reference[j] != writes):
                            continue
                        value = weight + best[i + (reads is not None), j + (writes is not None), target]
                        if value < best[i, j, source]:
                            best[i, j, source], changed = value, True
                    if not changed:
                        break
        return float(best[0, 0, u.start])

    def compile(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        u, labels = self.transducer, reference.tolist()
        rank = {state: place for place, state in enumerate(u.silent_order())}
        written = {*labels, None}
        useful = [arc for arc in u.arcs if arc.writes in written]
        by_label: dict[int, list[Arc]] = {}
        for arc in useful:
            if arc.reads is not None and arc.reads < num_labels:
                by_label.setdefault(arc.reads, []).append(arc)
        # Labels whose arcs differ in nothing but the label are one class; those that no arc reads are the last.
        classes: dict[frozenset[tuple[int, int, int | None, float]], int] = {}
        class_of = np.empty(num_labels, np.int64)
        for label in range(num_labels):
            arcs = frozenset((a.source, a.target, a.writes, a.weight) for a in by_label.get(label, ()))
            class_of[label] = classes.setdefault(arcs, len(classes))
        builder = AcceptorBuilder((len(labels) + 1) * u.num_states, len(classes))

        def position(state: int, j: int) -> int:
            return j * u.num_states + rank[state]

        def steps(arc_writes: int | None) -> list[tuple[int, int]]:
            if arc_writes is None:
                return [(j, j) for j in range(len(labels) + 1)]
            return [(j, j + 1) for j, label in enumerate(labels) if label == arc_writes]

        for arcs, symbol_class in classes.items():
            for source, target, writes, weight in sorted(arcs, key=repr):
                for before, after in steps(writes):
                    builder.move(symbol_class, position(source, before), position(target, after), weight)
        for arc in useful:
            if arc.reads is None:
                for before, after in steps(arc.writes):
                    builder.silent(position(arc.source, before), position(arc.target, after), arc.weight)
        builder.start[position(u.start, 0)] = 0.0
        for state, weight in u.final.items():
            builder.stop[position(state, len(labels))] = weight
        limit = math.inf if self.cap is None else self._shortest(reference, reference) + self.cap
        return compile_acceptor(builder.build(), class_of, length, limit, absolute, self.max_states)
