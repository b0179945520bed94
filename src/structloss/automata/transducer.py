"""Weighted transducers that a user brings: from arcs, from OpenFst's text, from an OpenFst object."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Semiring = Literal["tropical", "real"]  # weights are costs, added and minimised; or factors, multiplied and summed
_ONE = {"tropical": 0.0, "real": 1.0}
_EPSILON_NAMES = ("<eps>", "<epsilon>", "ε")
_MOST_BYTES = 64 * 2**20
_MAGIC = (2125659606).to_bytes(4, "little")  # how OpenFst's binary files begin


class Arc(NamedTuple):
    """Reading a label of the answer and writing one of the reference, either of them possibly nothing (None)."""

    source: int
    target: int
    reads: int | None
    writes: int | None
    weight: float


class Against(NamedTuple):
    """A transducer with what it writes fixed to one reference: an acceptor of answers.

    A position is a state and how much of the reference is written. Silent moves read nothing, and go to higher
    positions. Labels whose moves differ in nothing are one class.
    """

    num_positions: int
    start: int
    stop: dict[int, float]
    class_of: NDArray[np.int64]
    num_classes: int
    moves: list[tuple[int, int, int, float]]  # class, source, target, weight
    silent: list[tuple[int, int, float]]  # source, target, weight


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
    def from_arcs(
        cls,
        arcs: Iterable[Sequence[Any]],
        final: dict[int, float] | Sequence[int],
        start: int = 0,
        semiring: Semiring = "tropical",
    ) -> Self:
        """From (source, target, reads, writes[, weight]) and final states, with weights or without.

        Args:
            semiring: says what a weight is where none is named: 0 ("tropical"), or 1 ("real").

        Example:
            >>> import structloss as sl
            >>> same = sl.Transducer.from_arcs([(0, 0, y, y) for y in range(3)], final=[0])
            >>> sl.TropicalLoss(same)([[0, 1], [0, 2]], [[0, 1], [0, 1]])
            tensor([0., inf])
        """
        one = _ONE[semiring]
        weights = dict(final) if isinstance(final, dict) else dict.fromkeys(final, one)
        return cls(tuple(Arc(*(arc if len(arc) > 4 else (*arc, one))) for arc in arcs), weights, start).checked()

    @classmethod
    def read(cls, source: Any, symbols: Sequence[str] | None, semiring: Semiring) -> Self:
        """From whatever a loss is given: a transducer, text, a `Path` to text or a binary file, an OpenFst object."""
        if isinstance(source, cls):
            return source
        if isinstance(source, str):
            return cls.from_text(source, symbols, semiring)
        if not isinstance(source, Path):
            return cls.from_fst(source, semiring)
        if source.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{source}: {source.stat().st_size} bytes are more than {_MOST_BYTES}")
        with source.open("rb") as file:
            binary = file.read(4) == _MAGIC
        return cls.from_binary(source, semiring) if binary else cls.from_text(source, symbols, semiring)

    @classmethod
    def from_binary(cls, path: Path, semiring: Semiring = "tropical") -> Self:
        """From an OpenFst binary file (needs the extra `fst`)."""
        try:
            import pywrapfst
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{path} is binary, which needs OpenFst: pip install 'structloss[fst]'"
            ) from error
        try:
            fst = pywrapfst.Fst.read(str(path))
        except pywrapfst.FstIOError as error:
            raise ValueError(f"{path}: OpenFst cannot read it ({error})") from error
        return cls.from_fst(fst, semiring)

    @classmethod
    def from_text(cls, text: str | Path, symbols: Sequence[str] | None = None, semiring: Semiring = "tropical") -> Self:
        """From OpenFst's (AT&T's) text, or a file of it: lines `source target reads writes [weight]`, `state [weight]`.

        Args:
            text: the text itself, or a `Path` to it.
            symbols: the names of labels 0, 1, ...; `<eps>` reads or writes nothing. Without them labels are numbers as
                OpenFst counts them, label y being y + 1 and 0 epsilon.
            semiring: says what a weight is where none is named: 0 ("tropical"), or 1 ("real").
        """
        name, one = "transducer", _ONE[semiring]
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
                final[source] = _number(fields[1], float, where, "a weight") if len(fields) == 2 else one
                continue
            target = _number(fields[1], int, where, "a state")
            reads, writes = (_label(field, table, where) for field in fields[2:4])
            weight = _number(fields[4], float, where, "a weight") if len(fields) == 5 else one
            arcs.append(Arc(source, target, reads, writes, weight))
        if start is None:
            raise ValueError(f"{name}: got no line at all, but wanted a transducer")
        return cls(tuple(arcs), final, start).checked()

    @classmethod
    def from_fst(cls, fst: Any, semiring: Semiring = "tropical") -> Self:
        """From a pywrapfst or pynini object: label y is its symbol y + 1, and 0 epsilon.

        OpenFst's weights are costs, whether their type is tropical or log; for "real" they become factors exp(-cost).
        """
        if not all(hasattr(fst, name) for name in ("states", "arcs", "final", "start")):
            raise TypeError(
                f"transducer: got {fst!r:.60}, but wanted a Transducer, OpenFst text, a Path or an OpenFst object"
            )

        def weight(of: Any) -> float:
            return math.exp(-float(of)) if semiring == "real" else float(of)

        arcs, final = [], {}
        for state in fst.states():
            if math.isfinite(float(fst.final(state))):
                final[state] = weight(fst.final(state))
            for arc in fst.arcs(state):
                reads, writes = (label - 1 if label else None for label in (arc.ilabel, arc.olabel))
                arcs.append(Arc(state, arc.nextstate, reads, writes, weight(arc.weight)))
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

    def against(self, reference: NDArray[np.int64], num_labels: int) -> Against:
        """The acceptor of answers over `num_labels` labels against one reference."""
        labels = reference.tolist()
        rank = {state: place for place, state in enumerate(self.silent_order())}
        written = {*labels, None}
        useful = [arc for arc in self.arcs if arc.writes in written]
        by_label: dict[int, list[Arc]] = {}
        for arc in useful:
            if arc.reads is not None and arc.reads < num_labels:
                by_label.setdefault(arc.reads, []).append(arc)
        classes: dict[tuple[tuple[int, int, int, float], ...], int] = {}
        class_of = np.empty(num_labels, np.int64)
        for label in range(num_labels):
            arcs = (
                (a.source, a.target, -1 if a.writes is None else a.writes, a.weight) for a in by_label.get(label, ())
            )
            class_of[label] = classes.setdefault(tuple(sorted(arcs)), len(classes))

        def steps(source: int, target: int, writes: int) -> list[tuple[int, int]]:
            """The positions before and after, wherever the reference goes on like this."""
            after = [(j, j) for j in range(len(labels) + 1)] if writes < 0 else [
                (j, j + 1) for j, label in enumerate(labels) if label == writes
            ]  # fmt: skip
            return [(i * self.num_states + rank[source], j * self.num_states + rank[target]) for i, j in after]

        return Against(
            (len(labels) + 1) * self.num_states,
            rank[self.start],
            {len(labels) * self.num_states + rank[state]: weight for state, weight in self.final.items()},
            class_of,
            len(classes),
            [
                (c, before, after, weight)
                for arcs_of, c in classes.items()
                for source, target, writes, weight in arcs_of
                for before, after in steps(source, target, writes)
            ],
            [
                (before, after, arc.weight)
                for arc in useful
                if arc.reads is None
                for before, after in steps(arc.source, arc.target, -1 if arc.writes is None else arc.writes)
            ],
        )

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
