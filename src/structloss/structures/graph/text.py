"""Acceptors in OpenFst's (AT&T's) text, as `fstprint --acceptor` writes them."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from structloss.automata.openfst_text import Labels, rows, state_of, weight_of
from structloss.kernels.topological import arrange
from structloss.structures.graph.topology import Ints
from structloss.text import DataError


class Acceptor(NamedTuple):
    """One graph with start 0; weights are scores, the higher the better."""

    arcs: Ints  # (n, 3)
    scores: list[float]  # (n,)
    final: dict[int, float]


def read(text: str | Path, name: str, symbols: Sequence[str] | None) -> Acceptor:
    """Parse lines `source target label [weight]` and `state [weight]`; the first one's state is the start.

    Weights are costs: a score is minus one, and a weight of inf forbids. Without symbols labels are numbers as OpenFst
    counts them, label y being y + 1 and 0 epsilon. The numbers of states are names, of which only the order is kept.
    Every error names the line.
    """
    if not isinstance(text, str | Path):
        raise TypeError(f"{name}: got {type(text).__name__}, but wanted a text or a Path")
    name, labels = str(text) if isinstance(text, Path) else name, Labels(symbols)
    arcs, scores, arc_lines, start = [], [], [], None
    final: dict[int, float] = {}
    lines: dict[int, int] = {}  # where a state is first named
    for fields, number, where in rows(text, name):
        if len(fields) > 4:
            raise DataError(
                f"{where}: got {len(fields)} columns, but wanted 3 or 4 for an arc of an acceptor (source, target, "
                "label, weight), 1 or 2 for a final state"
            )
        source = state_of(fields[0], where)
        start = source if start is None else start
        lines.setdefault(source, number)
        score = 0.0 - weight_of(fields[-1], where) if len(fields) in (2, 4) else 0.0
        if len(fields) <= 2:
            final[source] = score
            continue
        target, label = state_of(fields[1], where), labels.of(fields[2], where)
        lines.setdefault(target, number)
        arcs.append((source, target, -1 if label is None else label))
        scores.append(score)
        arc_lines.append(number)
    if start is None:
        raise DataError(f"{name}: got no line at all, but wanted an acceptor")
    if not final:
        raise DataError(f"{name}: it has no final state, so that it has no path")
    _check_connected(arcs, lines, start, name)
    order = [start, *sorted(lines.keys() - {start})]
    number_of = {state: i for i, state in enumerate(order)}
    numbered = [(number_of[source], number_of[target], label) for source, target, label in arcs]
    graph = np.array(numbered, np.int64).reshape(-1, 3)
    nothing, none = np.zeros(0, np.int64), np.zeros(len(order), np.bool_)
    source, target, _ = np.ascontiguousarray(graph.T)
    loop = arrange(source, target, nothing, none, np.zeros(len(order), np.int64))
    if loop >= 0:
        raise DataError(
            f"{name}, line {arc_lines[loop]}: the arc from state {arcs[loop][0]} to state {arcs[loop][1]} lies on a "
            "loop, but a lattice has none"
        )
    return Acceptor(graph, scores, {number_of[state]: score for state, score in final.items()})


def _check_connected(arcs: Sequence[tuple[int, int, int]], lines: dict[int, int], start: int, name: str) -> None:
    """Raise if some states have nothing to do with the start: then the text has two starts."""
    root = {state: state for state in lines}

    def find(state: int) -> int:
        while root[state] != state:
            root[state] = root[root[state]]
            state = root[state]
        return state

    for source, target, _ in arcs:
        root[find(source)] = find(target)
    for state, number in lines.items():
        if find(state) != find(start):
            raise DataError(
                f"{name}, line {number}: two starts: nothing connects state {state} with state {start}, the start, "
                "which is the state of the first line"
            )
