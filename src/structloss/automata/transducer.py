"""Weighted transducers that a user brings: from arcs, from OpenFst's text, from an OpenFst object."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

EPSILON = None
_EPSILON_NAMES = ("<eps>", "<epsilon>", "ε")
_MOST_BYTES = 64 * 2**20


class Arc(NamedTuple):
    """Reading a label of the answer and writing one of the reference, either of them possibly nothing (None)."""

    source: int
    target: int
    reads: int | None
    writes: int | None
    weight: float = 0.0


@dataclass(frozen=True)
class Transducer:
    """A weighted transducer U(y, r) with start state 0 after `from_text`; states are 0 to num_states - 1.

    Example:
        >>> from structloss.automata.transducer import Transducer
        >>> Transducer.from_text("0 0 a b 1\\n0 0 a a\\n0 0 b b\\n0", symbols=["a", "b"]).num_states
        1
    """

    arcs: tuple[Arc, ...]
    final: dict[int, float]
    start: int = 0

    @property
    def num_states(self) -> int:
        """How many states there are."""
        named = [self.start, *self.final, *(a.source for a in self.arcs), *(a.target for a in self.arcs)]
        return max(named) + 1

    @classmethod
    def from_arcs(cls, arcs: Iterable[Sequence[Any]], final: dict[int, float] | Sequence[int], start: int = 0) -> Self:
        """From (source, target, reads, writes[, weight]) and final states, with weights or without."""
        weights = dict(final) if isinstance(final, dict) else dict.fromkeys(final, 0.0)
        return cls(tuple(Arc(*arc) for arc in arcs), weights, start).checked()

    @classmethod
    def from_text(cls, text: str | Path, symbols: Sequence[str] | None = None) -> Self:
        """From OpenFst's (AT&T's) text, or a file of it: lines `source target reads writes [weight]`, `state [weight]`.

        Args:
            text: the text itself, or a `Path` to it.
            symbols: the names of labels 0, 1, ...; `<eps>` reads or writes nothing. Without them labels are numbers as
                OpenFst counts them, label y being y + 1 and 0 epsilon.
        """
        name = "transducer"
        if isinstance(text, Path):
            if text.stat().st_size > _MOST_BYTES:
                raise ValueError(f"{text}: {text.stat().st_size} bytes are more than {_MOST_BYTES}")
            name, text = str(text), text.read_text(encoding="utf-8")
        table = None if symbols is None else {symbol: label for label, symbol in enumerate(symbols)}
        arcs, final, start = [], {}, None
        for number, line in enumerate(text.splitlines(), 1):
            fields = line.split()
            if not fields:
                continue
            where = f"{name}, line {number}"
            if len(fields) not in (1, 2, 4, 5):
                raise ValueError(
                    f"{where}: got {len(fields)} columns, but wanted 4 or 5 for an arc, 1 or 2 for a final state"
                )
            source = _number(fields[0], int, where, "a state")
            start = source if start is None else start
            if len(fields) <= 2:
                final[source] = _number(fields[1], float, where, "a weight") if len(fields) == 2 else 0.0
                continue
            target = _number(fields[1], int, where, "a state")
            reads, writes = (_label(field, table, where) for field in fields[2:4])
            weight = _number(fields[4], float, where, "a weight") if len(fields) == 5 else 0.0
            arcs.append(Arc(source, target, reads, writes, weight))
        if start is None:
            raise ValueError(f"{name}: got no line at all, but wanted a transducer")
        return cls(tuple(arcs), final, start).checked()

    @classmethod
    def from_fst(cls, fst: Any) -> Self:
        """From a pywrapfst or pynini object: label y is its symbol y + 1, and 0 epsilon."""
        arcs, final = [], {}
        for state in fst.states():
            if math.isfinite(float(fst.final(state))):
                final[state] = float(fst.final(state))
            for arc in fst.arcs(state):
                reads, writes = (label - 1 if label else None for label in (arc.ilabel, arc.olabel))
                arcs.append(Arc(state, arc.nextstate, reads, writes, float(arc.weight)))
        return cls(tuple(arcs), final, fst.start()).checked()

    def checked(self) -> Self:
        """Raise for weights that are no numbers, final states out of reach, and loops that read and write nothing."""
        for arc in self.arcs:
            if not math.isfinite(arc.weight):
                raise ValueError(
                    f"transducer: the arc {tuple(arc)} has weight {arc.weight}, but wanted a finite number"
                )
            if any(label is not None and label < 0 for label in (arc.reads, arc.writes)):
                raise ValueError(f"transducer: the arc {tuple(arc)} has a label below 0; nothing is None")
        reached, stack = {self.start}, [self.start]
        while stack:
            state = stack.pop()
            for arc in self.arcs:
                if arc.source == state and arc.target not in reached:
                    reached.add(arc.target)
                    stack.append(arc.target)
        for state in self.final:
            if state not in reached:
                raise ValueError(f"transducer: its final state {state} cannot be reached from its start {self.start}")
        if not self.final:
            raise ValueError("transducer: it has no final state, so that no string has a loss")
        self.silent_order()
        return self

    def silent_order(self) -> list[int]:
        """The states in an order in which arcs that read and write nothing only go forward."""
        following: dict[int, list[int]] = {}
        waiting = [0] * self.num_states
        for arc in self.arcs:
            if arc.reads is None and arc.writes is None:
                following.setdefault(arc.source, []).append(arc.target)
                waiting[arc.target] += 1
        ready = [state for state, count in enumerate(waiting) if count == 0]
        order = []
        while ready:
            state = ready.pop()
            order.append(state)
            for target in following.get(state, ()):
                waiting[target] -= 1
                if waiting[target] == 0:
                    ready.append(target)
        if len(order) < self.num_states:
            loop = sorted(set(range(self.num_states)) - set(order))
            raise ValueError(f"transducer: a loop through states {loop} reads and writes nothing, but wanted none")
        return order


def _number(field: str, kind: type[int] | type[float], where: str, wanted: str) -> Any:
    try:
        value = kind(field)
    except ValueError:
        raise ValueError(f"{where}: got {field!r}, but wanted {wanted}") from None
    if kind is int and value < 0:
        raise ValueError(f"{where}: got {field!r}, but wanted {wanted} of at least 0")
    if kind is int and value > 10_000_000:
        raise ValueError(f"{where}: got state {field}, but more than ten million make no transducer")
    return value


def _label(field: str, table: dict[str, int] | None, where: str) -> int | None:
    if table is None:
        number: int = _number(field, int, where, "a symbol's number (or pass symbols)")
        return number - 1 if number else None
    if field in _EPSILON_NAMES:
        return None
    if field not in table:
        raise ValueError(f"{where}: got the symbol {field!r}, which is not among the {len(table)} symbols")
    return table[field]
