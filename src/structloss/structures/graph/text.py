"""Acceptors in OpenFst's (AT&T's) text, as `fstprint --acceptor` writes them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from structloss.automata.openfst_text import lines_of, reached
from structloss.kernels.topological import arrange
from structloss.structures.rows import Ints
from structloss.text import DataError


def read(text: str | Path, name: str, symbols: Sequence[str] | None) -> tuple[Ints, list[float], dict[int, float]]:
    """The arcs (n, 3), their scores (n,) and the final ones of `source target label [weight]` and `state [weight]`.

    The first line's state is the start, state 0.

    Weights are costs: a score is minus one, and a weight of inf forbids. Without symbols labels are numbers as OpenFst
    counts them, label y being y + 1 and 0 epsilon. The numbers of states are names, of which only the order is kept.
    Every error names the line.
    """
    if not isinstance(text, str | Path):
        raise TypeError(f"{name}: got {type(text).__name__}, but wanted a text or a Path")
    name = str(text) if isinstance(text, Path) else name
    arcs, scores, arc_lines, start = [], [], [], None
    final: dict[int, float] = {}
    lines: dict[int, int] = {}  # where a state is first named
    for line in lines_of(text, name, ("label",), symbols):
        start = line.source if start is None else start
        lines.setdefault(line.source, line.number)
        score = 0.0 - (line.weight or 0.0)
        if line.target is None:
            final[line.source] = score
            continue
        lines.setdefault(line.target, line.number)
        (label,) = line.labels
        arcs.append((line.source, line.target, -1 if label is None else label))
        scores.append(score)
        arc_lines.append(line.number)
    if start is None:
        raise DataError(f"{name}: got no line at all, but wanted an acceptor")
    if not final:
        raise DataError(f"{name}: it has no final state, so that it has no path")
    connected = reached(start, [pair for p, q, _ in arcs for pair in ((p, q), (q, p))])
    for state, number in lines.items():
        if state not in connected:
            raise DataError(
                f"{name}, line {number}: two starts: nothing connects state {state} with state {start}, the start, "
                "which is the state of the first line"
            )
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
    return graph, scores, {number_of[state]: score for state, score in final.items()}
