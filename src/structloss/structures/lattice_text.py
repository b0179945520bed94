"""Acceptors in OpenFst's (AT&T's) text, as `fstprint --acceptor` writes them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from structloss.structures.topology import Ints, find_loop

_EPSILON_NAMES = ("<eps>", "<epsilon>", "ε")
_MOST_BYTES = 64 * 2**20


class Acceptor(NamedTuple):
    """One graph with start 0; weights are scores, the higher the better."""

    arcs: Ints  # (n, 3)
    scores: list[float]  # (n,)
    final: dict[int, float]


def read(text: str | Path, name: str, symbols: Sequence[str] | None) -> Acceptor:
    """Parse lines `source target label [weight]` and `state [weight]`; the first one's state is the start.

    Weights are costs: a score is minus one, and a weight of inf forbids. Without symbols labels are numbers as OpenFst
    counts them, label y being y + 1 and 0 epsilon. Every error names the line.
    """
    if isinstance(text, Path):
        if text.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{text}: {text.stat().st_size} bytes are more than {_MOST_BYTES}")
        name, text = str(text), text.read_text(encoding="utf-8")
    elif not isinstance(text, str):
        raise TypeError(f"{name}: got {type(text).__name__}, but wanted a text or a Path")
    elif len(text) > _MOST_BYTES:
        raise ValueError(f"{name}: {len(text)} characters are more than {_MOST_BYTES}")
    table = None if symbols is None else {symbol: label for label, symbol in enumerate(symbols)}
    arcs, scores, arc_lines, start = [], [], [], None
    final: dict[int, float] = {}
    lines: dict[int, int] = {}  # where a state is first named
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields:
            continue
        where = f"{name}, line {number}"
        if len(fields) > 4:
            raise ValueError(
                f"{where}: got {len(fields)} columns, but wanted 3 or 4 for an arc of an acceptor (source, target, "
                "label, weight), 1 or 2 for a final state"
            )
        source = _state(fields[0], where)
        start = source if start is None else start
        lines.setdefault(source, number)
        if len(fields) <= 2:
            final[source] = _score(fields[1], where) if len(fields) == 2 else 0.0
            continue
        target = _state(fields[1], where)
        lines.setdefault(target, number)
        arcs.append((source, target, _label(fields[2], table, where)))
        scores.append(_score(fields[3], where) if len(fields) == 4 else 0.0)
        arc_lines.append(number)
    if start is None:
        raise ValueError(f"{name}: got no line at all, but wanted an acceptor")
    if not final:
        raise ValueError(f"{name}: it has no final state, so that it has no path")
    rows = np.array(arcs, np.int64).reshape(-1, 3)
    loop = find_loop(rows)
    if loop is not None:
        raise ValueError(
            f"{name}, line {arc_lines[loop]}: the arc from state {arcs[loop][0]} to state {arcs[loop][1]} lies on a "
            "loop, but a lattice has none"
        )
    _check_connected(rows, lines, start, name)
    if start != 0:  # the start gets the number 0, and what had it the start's
        renamed = {start: 0, 0: start}
        rows[:, 0], rows[:, 1] = _exchanged(rows[:, 0], start), _exchanged(rows[:, 1], start)
        final = {renamed.get(state, state): score for state, score in final.items()}
    return Acceptor(rows, scores, final)


def _exchanged(states: Ints, start: int) -> Ints:
    return np.where(states == start, 0, np.where(states == 0, start, states))


def _check_connected(arcs: Ints, lines: dict[int, int], start: int, name: str) -> None:
    """Raise if some states have nothing to do with the start: then the text has two starts."""
    root = {state: state for state in lines}

    def find(state: int) -> int:
        while root[state] != state:
            root[state] = root[root[state]]
            state = root[state]
        return state

    for source, target in arcs[:, :2].tolist():
        root[find(source)] = find(target)
    for state, number in lines.items():
        if find(state) != find(start):
            raise ValueError(
                f"{name}, line {number}: two starts: nothing connects state {state} with state {start}, the start, "
                "which is the state of the first line"
            )


def _state(field: str, where: str) -> int:
    if not field.isdecimal():
        raise ValueError(f"{where}: got {field!r}, but wanted a state, a number of at least 0")
    if len(field) > 9:
        raise ValueError(f"{where}: got state {field}, but wanted one below 1000000000")
    return int(field)


def _score(field: str, where: str) -> float:
    try:
        weight = float(field)
    except ValueError:
        weight = math.nan
    if math.isnan(weight) or weight == -math.inf:
        raise ValueError(f"{where}: got {field!r}, but wanted a weight, which is a number or inf")
    return 0.0 - weight


def _label(field: str, table: dict[str, int] | None, where: str) -> int:
    if table is None:
        if not field.isdecimal() or len(field) > 9:
            raise ValueError(f"{where}: got {field!r}, but wanted a symbol's number (or pass symbols)")
        return int(field) - 1
    if field in _EPSILON_NAMES:
        return -1
    if field not in table:
        raise ValueError(f"{where}: got the symbol {field!r}, which is not among the {len(table)} symbols")
    return table[field]
