"""Weighted transducers: from arcs, from OpenFst's text, files or objects; their weights, inverses and compositions."""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from structloss.automata import openfst, openfst_binary
from structloss.automata.openfst_text import lines_of, reached
from structloss.kernels.checks import UNKNOWN
from structloss.kernels.paths import Arcs, path_weight
from structloss.text import DataError

Semiring = Literal["tropical", "real"]  # weights are costs, added and minimised; or factors, multiplied and summed
_ONE = {"tropical": 0.0, "real": 1.0}


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
    """A weighted transducer U(y, r); states are 0 to num_states - 1.

    The numbers that states have in a file or in arcs are names, of which only the order is kept. Weights are finite; a
    final weight of inf says, over the tropical semiring, that a state is not final.

    Example:
        >>> from structloss.automata.transducer import Transducer
        >>> Transducer.from_text("0 0 a b 1\\n0 0 a a\\n0 0 b b\\n0", symbols=["a", "b"]).num_states
        1
    """

    arcs: tuple[Arc, ...]
    final: dict[int, float]
    start: int = 0

    @cached_property
    def num_states(self) -> int:
        """How many states there are."""
        return max(self._named()) + 1

    def _named(self) -> set[int]:
        """The states that anything names."""
        return {self.start, *self.final, *(a.source for a in self.arcs), *(a.target for a in self.arcs)}

    @classmethod
    def from_arcs(
        cls,
        arcs: Iterable[Sequence[Any]],
        final: dict[int, float] | Sequence[int],
        start: int | Sequence[int] | Mapping[int, float] = 0,
        semiring: Semiring = "tropical",
    ) -> Self:
        """From (source, target, reads, writes[, weight]) and final states, with weights or without.

        Args:
            start: the start; or several, with initial weights or without. Then one more state, the last, is the start,
                from which arcs that read and write nothing lead to them.
            semiring: says what a weight is where none is named: 0 ("tropical"), or 1 ("real").

        Example:
            >>> import structloss as sl
            >>> same = sl.Transducer.from_arcs([(0, 0, y, y) for y in range(3)], final=[0])
            >>> sl.TropicalLoss(same)([[0, 1], [0, 2]], [[0, 1], [0, 1]])
            tensor([0., inf])
            >>> late = sl.Transducer.from_arcs([(0, 1, 0, 0), (1, 2, 1, 1)], final=[2], start={0: 0.0, 1: 0.5})
            >>> sl.TropicalLoss(late)([[0, 1], [1]], [[0, 1], [1]])
            tensor([0.0000, 0.5000])
        """
        one = _ONE[semiring]
        weights = dict(final) if isinstance(final, dict) else dict.fromkeys(final, one)
        made = [_arc(arc, one) for arc in arcs]
        if isinstance(start, Mapping | Sequence):
            initial = dict(start) if isinstance(start, Mapping) else dict.fromkeys(start, one)
            if not initial:
                raise ValueError("start: got no state, but wanted at least one")
            first = 1 + max([*initial, *weights, *(q for arc in made for q in arc[:2])])
            leads = [_arc((first, q, None, None, w), one) for q, w in initial.items() if _ends(w, semiring)]
            made, start = [*made, *leads], first
        return cls(tuple(made), {q: w for q, w in weights.items() if _ends(w, semiring)}, start).checked()

    @classmethod
    def read(cls, source: Any, symbols: Sequence[str] | None, semiring: Semiring) -> Self:
        """From whatever a loss is given: a transducer, text, a `Path` to text or a binary file, an OpenFst object."""
        if isinstance(source, cls):
            return source.checked()
        if isinstance(source, str):
            return cls.from_text(source, symbols, semiring)
        if not isinstance(source, Path):
            return cls.from_fst(source, semiring, symbols)
        if openfst_binary.is_binary(source):
            return cls.from_binary(source, semiring, symbols)
        return cls.from_text(source, symbols, semiring)

    @classmethod
    def from_text(cls, text: str | Path, symbols: Sequence[str] | None = None, semiring: Semiring = "tropical") -> Self:
        """From OpenFst's (AT&T's) text, or a file of it: lines `source target reads writes [weight]`, `state [weight]`.

        The state of the first line is the start.

        Args:
            text: the text itself, or a `Path` to it.
            symbols: the names of labels 0, 1, ...; `<eps>` reads or writes nothing. Without them labels are numbers as
                OpenFst counts them, label y being y + 1 and 0 epsilon.
            semiring: says what a weight is where none is named: 0 ("tropical"), or 1 ("real").
        """
        name = str(text) if isinstance(text, Path) else "transducer"
        arcs, final, start = [], {}, None
        for line in lines_of(text, name, ("reads", "writes"), symbols):
            start = line.source if start is None else start
            weight = _ONE[semiring] if line.weight is None else line.weight
            if math.isinf(weight) and (line.target is not None or semiring == "real"):
                raise DataError(f"{line.where}: got the weight {weight}, but wanted a finite number")
            if line.target is not None:
                reads, writes = line.labels
                arcs.append(Arc(line.source, line.target, reads, writes, weight))
            elif _ends(weight, semiring):
                final[line.source] = weight
        if start is None:
            raise DataError(f"{name}: got no line at all, but wanted a transducer")
        return cls(tuple(arcs), final, start).checked(name)

    @classmethod
    def from_binary(cls, path: Path, semiring: Semiring = "tropical", symbols: Sequence[str] | None = None) -> Self:
        """From an OpenFst binary file of the type vector or const, as `from_fst`; OpenFst itself is not needed."""
        m = openfst_binary.read(path)
        columns = (m.source, m.target, m.reads, m.writes, m.weight)
        arcs = list(zip(*(column.tolist() for column in columns), strict=True))
        final = {state: cost for state, cost in enumerate(m.final.tolist()) if cost != math.inf}
        return cls._from_openfst(
            openfst.Machine(m.arc_type, m.start, arcs, final, m.tables), semiring, symbols, str(path)
        )

    @classmethod
    def from_fst(cls, fst: Any, semiring: Semiring = "tropical", symbols: Sequence[str] | None = None) -> Self:
        """From a pywrapfst or pynini object: label y is its symbol y + 1, and 0 epsilon.

        OpenFst's weights are costs; for "real" they become factors exp(-cost), whether their type is tropical or log.
        For "tropical" they must not be log, where paths are summed.

        Args:
            fst: the object.
            semiring: what its weights are to be.
            symbols: the names of labels 0, 1, ..., which are then looked up in its symbol tables: both must be there.
        """
        wanted = "a Transducer, OpenFst text, a Path or an OpenFst object"
        return cls._from_openfst(openfst.read(fst, "transducer", wanted), semiring, symbols, "transducer")

    @classmethod
    def _from_openfst(
        cls, machine: openfst.Machine, semiring: Semiring, symbols: Sequence[str] | None, name: str
    ) -> Self:
        """From OpenFst's own costs and symbols."""
        _check_semiring(machine.arc_type, semiring, name)
        weight = _factor if semiring == "real" else float
        read, written = openfst.labels_of(machine.tables, symbols, name)
        made = (Arc(p, q, read(reads), written(writes), weight(cost)) for p, q, reads, writes, cost in machine.arcs)
        ends = {state: weight(cost) for state, cost in machine.final.items()}
        return cls(tuple(made), ends, machine.start).checked(name)

    def to_fst(self, semiring: Semiring = "tropical", symbols: Sequence[str] | None = None) -> Any:
        """As a pywrapfst object, label y its symbol y + 1: with costs, or from factors ("real") with log64 weights.

        Args:
            semiring: what the weights here are.
            symbols: the names of labels 0, 1, ...: the object then has symbol tables.
        """
        return self._in_openfst("standard" if semiring == "tropical" else "log64", semiring, symbols)

    def _in_openfst(self, arc_type: str, semiring: Semiring, symbols: Sequence[str] | None = None) -> Any:
        cost = _cost if semiring == "real" else float
        arcs = [(a.source, a.target, _symbol(a.reads), _symbol(a.writes), cost(a.weight)) for a in self.arcs]
        final = {state: cost(weight) for state, weight in self.final.items()}
        return openfst.make(self.num_states, self.start, arcs, final, arc_type, symbols)

    def inverse(self) -> Self:
        """What reads what this one writes, and writes what it reads: U^-1(y, r) = U(r, y).

        Example:
            >>> import structloss as sl
            >>> swap = sl.Transducer.from_arcs([(0, 0, 0, 1)], final=[0])
            >>> sl.TropicalLoss(swap.inverse())([[1]], [[0]])
            tensor([0.])
        """
        arcs = tuple(a._replace(reads=a.writes, writes=a.reads) for a in self.arcs)
        return type(self)(arcs, self.final, self.start)

    def project(self, side: Literal["reads", "writes"]) -> Self:
        """The acceptor of what this one reads, or writes: its paths read and write that one string."""
        if side not in ("reads", "writes"):
            raise ValueError(f"side: got {side!r}, but wanted 'reads' or 'writes'")
        arcs = tuple(a._replace(reads=getattr(a, side), writes=getattr(a, side)) for a in self.arcs)
        return type(self)(arcs, self.final, self.start).checked()

    def compose(self, other: Self, semiring: Semiring = "tropical") -> Self:
        """This one, and then the other on what it wrote: the least sum, or the sum of products, over strings between.

        OpenFst composes, so the extra `fst` is needed; weights come back with the nine digits that its Python module
        hands over. Whatever else is wanted of transducers, `to_fst()` and `from_fst` go there and back.
        """
        wrap = openfst.openfst()
        left, right = (u._in_openfst("log64", semiring) for u in (self, other))  # no path is added to another here
        both = wrap.compose(left.arcsort("olabel"), right.arcsort("ilabel"))
        if not both.num_states():
            raise ValueError("other: it reads nothing of what this one writes, so that no string has a loss")
        machine = openfst.read(both, "compose", "a machine")
        weight = _factor if semiring == "real" else float
        arcs = (
            Arc(p, q, reads - 1 if reads else None, writes - 1 if writes else None, weight(cost))
            for p, q, reads, writes, cost in machine.arcs
        )
        return type(self)(tuple(arcs), {q: weight(c) for q, c in machine.final.items()}, machine.start).checked()

    def square(self, semiring: Semiring = "real") -> Self:
        """T o T^-1 (Cortes 2018, Figure 1): what the two strings have in common under T. Needs the extra `fst`."""
        return self.compose(self.inverse(), semiring)

    def weight(self, y: NDArray[np.int64], reference: NDArray[np.int64], semiring: Semiring) -> float:
        """U(y, r): the least cost of the paths that read y and write r, or the sum of their products ("real").

        Cost: the lengths' product times the arcs that states have for one label.
        """
        labels, arcs = self._by_label
        zero = math.inf if semiring == "tropical" else 0.0
        final = np.array([self.final.get(q, zero) for q in range(self.num_states)])
        place = np.minimum(np.searchsorted(labels, y), max(0, len(labels) - 1))
        numbers = np.where(labels[place] == y, place + 1, 0) if len(labels) else np.zeros(len(y), np.int64)
        rows = np.ascontiguousarray(reference if reference.ndim == 2 else reference[:, None])
        return float(path_weight(arcs._replace(final=final), self.start, numbers, rows, semiring == "tropical"))

    @cached_property
    def _by_label(self) -> tuple[NDArray[np.int64], Arcs]:
        """The labels that are read, in order, and the arcs as kernels read them."""
        reads = np.array([-1 if a.reads is None else a.reads for a in self.arcs], np.int64)
        labels = np.unique(reads[reads >= 0])
        number, source = np.where(reads < 0, 0, np.searchsorted(labels, reads) + 1), [a.source for a in self.arcs]
        width = len(labels) + 1
        key = np.array(source, np.int64) * width + number
        order = np.argsort(key, kind="stable")
        ends = np.searchsorted(key[order], np.arange(self.num_states * width + 1))
        begin = ends[np.arange(self.num_states)[:, None] * width + np.arange(width + 1)]
        columns = (
            np.array([getattr(self.arcs[i], field) for i in order], kind)
            for field, kind in (("target", np.int64), ("weight", np.float64))
        )
        writes = np.array([-1 if self.arcs[i].writes is None else self.arcs[i].writes for i in order], np.int64)
        target, weight = columns
        silent = np.array(self.silent_order(), np.int64)
        return labels, Arcs(silent, np.ascontiguousarray(begin), target, writes, weight, np.zeros(0))

    def checked(self, name: str = "transducer") -> Self:
        """The same with states numbered from 0 on, without gaps.

        Raises for weights that are no numbers, states below 0 or out of reach, and loops that read and write nothing.
        """
        for arc in self.arcs:
            if not math.isfinite(arc.weight):
                raise ValueError(f"{name}: the arc {tuple(arc)} has weight {arc.weight}, but wanted a finite number")
            if any(label is not None and label < 0 for label in (arc.reads, arc.writes)):
                raise ValueError(f"{name}: the arc {tuple(arc)} has a label below 0; nothing is None")
        for state, weight in self.final.items():
            if not math.isfinite(weight):
                raise ValueError(f"{name}: final state {state} has weight {weight}, but wanted a finite number")
        states = sorted(self._named())
        if states[0] < 0:
            raise ValueError(f"{name}: got state {states[0]}, but wanted states of at least 0")
        self._check_reach(name)
        self._order_of(states, name)
        if states[-1] == len(states) - 1:
            return self
        number = {state: i for i, state in enumerate(states)}
        arcs = tuple(arc._replace(source=number[arc.source], target=number[arc.target]) for arc in self.arcs)
        final = {number[state]: weight for state, weight in self.final.items()}
        return type(self)(arcs, final, number[self.start])

    def _check_reach(self, name: str) -> None:
        """Raise for final states out of reach, or if there is none."""
        within = reached(self.start, ((arc.source, arc.target) for arc in self.arcs))
        for state in self.final:
            if state not in within:
                raise ValueError(f"{name}: its final state {state} cannot be reached from its start {self.start}")
        if not self.final:
            raise ValueError(f"{name}: it has no final state, so that no string has a loss")

    def against(self, reference: NDArray[np.int64], num_labels: int) -> Against:
        """The acceptor of answers over `num_labels` labels against one reference, of labels or of sets of them."""
        sets = sets_of(reference)
        rank = {state: place for place, state in enumerate(self.silent_order())}
        written = {None}.union(*sets)
        useful = [arc for arc in self.arcs if arc.writes in written or UNKNOWN in written]
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

        states = self.num_states

        def steps(source: int, target: int, writes: int) -> list[tuple[int, int]]:
            """The positions before and after, wherever the reference goes on like this."""
            after = [(j, j) for j in range(len(sets) + 1)] if writes < 0 else [
                (j, j + 1) for j, labels in enumerate(sets) if writes in labels or UNKNOWN in labels
            ]  # fmt: skip
            return [(i * states + rank[source], j * states + rank[target]) for i, j in after]

        return Against(
            (len(sets) + 1) * states,
            rank[self.start],
            {len(sets) * states + rank[state]: weight for state, weight in self.final.items()},
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
        return self._order_of(range(self.num_states), "transducer")

    def _order_of(self, states: Sequence[int], name: str) -> list[int]:
        """That of these states; a loop of such arcs is an error."""
        following: dict[int, list[int]] = {}
        waiting = dict.fromkeys(states, 0)
        for arc in self.arcs:
            if arc.reads is None and arc.writes is None:
                following.setdefault(arc.source, []).append(arc.target)
                waiting[arc.target] += 1
        ready = [state for state, count in waiting.items() if count == 0]
        order = []
        while ready:
            state = ready.pop()
            order.append(state)
            for target in following.get(state, ()):
                waiting[target] -= 1
                if waiting[target] == 0:
                    ready.append(target)
        if len(order) < len(states):
            loop = sorted(set(states) - set(order))
            listed = f"[{', '.join(map(str, loop[:10]))}{', ...' if len(loop) > 10 else ''}]"
            raise ValueError(f"{name}: a loop through states {listed} reads and writes nothing, but wanted none")
        return order


def _arc(row: Sequence[Any], one: float) -> Arc:
    """An arc that a user wrote down, with a weight or without."""
    if len(row) not in (4, 5):
        raise ValueError(f"arcs: got {row!r:.80}, but wanted source, target, reads, writes and perhaps a weight")
    source, target, reads, writes, weight = (*row, one)[:5]
    try:
        read, written = (None if label is None else operator.index(label) for label in (reads, writes))
        return Arc(operator.index(source), operator.index(target), read, written, float(weight))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"arcs: got {row!r:.80}, but wanted whole numbers (or None for a label) and a weight"
        ) from error


def _ends(weight: float, semiring: Semiring) -> bool:
    """Whether a final weight lets paths end at all: OpenFst writes inf, the tropical zero, where it does not."""
    return not (semiring == "tropical" and weight == math.inf)


def _symbol(label: int | None) -> int:
    return 0 if label is None else label + 1


def _cost(factor: float) -> float:
    """-log of a factor, inf of 0; a factor below 0 has none."""
    if factor < 0:
        raise ValueError(f"semiring: got the weight {factor}, but OpenFst wanted factors of at least 0")
    return -math.log(factor) if factor else math.inf


def _factor(cost: float) -> float:
    """exp(-cost), inf where that is too large for a number."""
    try:
        return math.exp(-cost)
    except OverflowError:
        return math.inf


def _check_semiring(arc_type: str, semiring: Semiring, name: str) -> None:
    if semiring == "tropical" and arc_type != "standard":
        raise ValueError(
            f"{name}: got arcs of type {arc_type!r}, whose paths are not minimised, but wanted 'standard'; "
            "a RationalLoss takes log"
        )


def sets_of(reference: NDArray[np.int64]) -> list[frozenset[int]]:
    """The labels that agree with each place of a reference, labels (n,) or sets (n, m); UNKNOWN stands for all."""
    rows = reference if reference.ndim == 2 else reference[:, None]
    return [frozenset(row) - {-1} for row in rows.tolist()]
