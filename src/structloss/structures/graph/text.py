"""Acceptors for lattices: OpenFst's (AT&T's) text, as `fstprint --acceptor` writes it, and OpenFst objects."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from structloss.automata import openfst
from structloss.automata.openfst_text import lines_of, reached
from structloss.kernels.topological import arrange
from structloss.structures.graph.packing import Weighted
from structloss.structures.graph.topology import END, Topology
from structloss.structures.rows import Ints
from structloss.text import DataError


class Acceptor(NamedTuple):
    """The arcs of an example with states numbered from its start, 0, on; scores are minus the costs."""

    arcs: Ints  # (n, 3): source, target, label
    scores: list[float]  # (n,)
    final: dict[int, float]


def read(text: str | Path, name: str, symbols: Sequence[str] | None) -> Acceptor:
    """The acceptor of the lines `source target label [weight]` and `state [weight]`, the first of them of the start.

    Weights are costs: a score is minus one, and a weight of inf forbids. Without symbols labels are numbers as OpenFst
    counts them, label y being y + 1 and 0 epsilon. The numbers of states are names, of which only the order is kept.
    Every error names the line.
    """
    if not isinstance(text, str | Path):
        raise TypeError(f"{name}: got {type(text).__name__}, but wanted a text or a Path")
    name = str(text) if isinstance(text, Path) else name
    arcs, scores, arc_lines, start = [], [], [], None
    final: dict[int, float] = {}
    lines: dict[int, str] = {}  # where a state is first named
    for line in lines_of(text, name, ("label",), symbols):
        start = line.source if start is None else start
        lines.setdefault(line.source, f"{name}, line {line.number}")
        score = 0.0 - (line.weight or 0.0)
        if line.target is None:
            final[line.source] = score
            continue
        lines.setdefault(line.target, f"{name}, line {line.number}")
        (label,) = line.labels
        arcs.append((line.source, line.target, -1 if label is None else label))
        scores.append(score)
        arc_lines.append(f"{name}, line {line.number}")
    if start is None:
        raise DataError(f"{name}: got no line at all, but wanted an acceptor")
    return _arranged(arcs, scores, final, start, name, lines, arc_lines)


def from_fst(fst: Any, name: str, symbols: Sequence[str] | None) -> Acceptor:
    """That of a pywrapfst or pynini object, of any type of weights: they are costs."""
    machine = openfst.read(fst, name, "an OpenFst object")
    if machine.start < 0:
        raise ValueError(f"{name}: it has no start, so that it has no path")
    tables = machine.tables[0], machine.tables[0] if machine.tables[1] is None else machine.tables[1]
    reads, writes = openfst.labels_of(tables, symbols, name)
    arcs = []
    for source, target, read_symbol, written_symbol, _ in machine.arcs:
        label = reads(read_symbol)
        if label != writes(written_symbol):
            raise ValueError(
                f"{name}: the arc from state {source} to state {target} reads symbol {read_symbol} and writes "
                f"{written_symbol}, but a lattice is of an acceptor: project it first"
            )
        arcs.append((source, target, -1 if label is None else label))
    scores = [0.0 - arc[-1] for arc in machine.arcs]
    named = {machine.start, *machine.final, *(state for arc in arcs for state in arc[:2])}
    where = dict.fromkeys(sorted(named), name)
    final = {state: 0.0 - cost for state, cost in machine.final.items()}
    return _arranged(arcs, scores, final, machine.start, name, where, [name] * len(arcs))


def _arranged(
    arcs: list[tuple[int, int, int]], scores: list[float], final: dict[int, float], start: int, name: str,
    state_at: dict[int, str], arc_at: list[str],
) -> Acceptor:  # fmt: skip
    """With the start as state 0. Raises for what has no final state, two parts or a loop, and says where."""
    if not final:
        raise DataError(f"{name}: it has no final state, so that it has no path")
    connected = reached(start, [pair for p, q, _ in arcs for pair in ((p, q), (q, p))])
    for state, where in state_at.items():
        if state not in connected:
            raise DataError(
                f"{where}: two starts: nothing connects state {state} with state {start}, the start"
                + (", which is the state of the first line" if where != name else "")
            )
    order = [start, *sorted(state_at.keys() - {start})]
    number_of = {state: i for i, state in enumerate(order)}
    numbered = [(number_of[source], number_of[target], label) for source, target, label in arcs]
    graph = np.array(numbered, np.int64).reshape(-1, 3)
    nothing, none = np.zeros(0, np.int64), np.zeros(len(order), np.bool_)
    source, target, _ = np.ascontiguousarray(graph.T)
    loop = arrange(source, target, nothing, none, np.zeros(len(order), np.int64))
    if loop >= 0:
        raise DataError(
            f"{arc_at[loop]}: the arc from state {arcs[loop][0]} to state {arcs[loop][1]} lies on a loop, but a "
            "lattice has none"
        )
    return Acceptor(graph, scores, {number_of[state]: score for state, score in final.items()})


def to_fst(lattice: Weighted[Topology], symbols: Sequence[str] | None, arc_type: str) -> list[openfst.Fst]:
    """A pywrapfst object for each example; a cost is minus a score."""
    topology, example = lattice.packing, lattice.packing.level_and_example[1]
    cost, place = -lattice.of_arcs, np.zeros(topology.num_items + 1, np.int64)
    made = []
    for b in range(topology.batch):
        nodes = np.flatnonzero(example == b)
        place[nodes] = np.arange(len(nodes))  # the start comes first
        arcs, ends = [], {}
        for a in np.flatnonzero((example[topology.heads] == b) & (cost < np.inf)).tolist():
            head, tail, label = place[topology.heads[a]], place[topology.packed.tails[0, a]], topology.label[a]
            if label == END:
                ends[int(head)] = float(cost[a])
            else:
                arcs.append((int(head), int(tail), int(label) + 1, int(label) + 1, float(cost[a])))
        made.append(openfst.make(len(nodes), 0, arcs, ends, arc_type, symbols))
    return made
