"""Weighted transducers that a user brings: from arcs, from OpenFst's text or binary files, from an OpenFst object."""

import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from structloss.automata import openfst_binary
from structloss.automata.openfst_text import lines_of, reached
from structloss.kernels.checks import UNKNOWN
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
        made = tuple(_arc(arc, one) for arc in arcs)
        return cls(made, {q: w for q, w in weights.items() if _ends(w, semiring)}, start).checked()

    @classmethod
    def read(cls, source: Any, symbols: Sequence[str] | None, semiring: Semiring) -> Self:
        """From whatever a loss is given: a transducer, text, a `Path` to text or a binary file, an OpenFst object."""
        if isinstance(source, cls):
            return source.checked()
        if isinstance(source, str):
            return cls.from_text(source, symbols, semiring)
        if not isinstance(source, Path):
            return cls.from_fst(source, semiring)
        if openfst_binary.is_binary(source):
            return cls.from_binary(source, semiring)
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
    def from_binary(cls, path: Path, semiring: Semiring = "tropical") -> Self:
        """From an OpenFst binary file of the type vector or const, as `from_fst`; OpenFst itself is not needed."""
        machine = openfst_binary.read(path)
        _check_semiring(machine.arc_type, semiring, str(path))
        columns = (machine.source, machine.target, machine.reads, machine.writes, machine.weight)
        arcs = zip(*(column.tolist() for column in columns), strict=True)
        return cls._from_costs(arcs, enumerate(machine.final.tolist()), machine.start, semiring, str(path))

    @classmethod
    def from_fst(cls, fst: Any, semiring: Semiring = "tropical") -> Self:
        """From a pywrapfst or pynini object: label y is its symbol y + 1, and 0 epsilon.

        OpenFst's weights are costs; for "real" they become factors exp(-cost), whether their type is tropical or log.
        For "tropical" they must not be log, where paths are summed.
        """
        if not all(hasattr(fst, name) for name in ("states", "arcs", "final", "start", "arc_type")):
            raise TypeError(
                f"transducer: got {fst!r:.60}, but wanted a Transducer, OpenFst text, a Path or an OpenFst object"
            )
        _check_semiring(fst.arc_type(), semiring, "transducer")
        arcs = (
            (state, arc.nextstate, arc.ilabel, arc.olabel, float(arc.weight))
            for state in fst.states()
            for arc in fst.arcs(state)
        )
        final = ((state, float(fst.final(state))) for state in fst.states())
        return cls._from_costs(arcs, final, fst.start(), semiring, "transducer")

    @classmethod
    def _from_costs(
        cls, arcs: Iterable[tuple[int, int, int, int, float]], final: Iterable[tuple[int, float]], start: int,
        semiring: Semiring, name: str,
    ) -> Self:  # fmt: skip
        """From OpenFst's own costs and symbols."""
        weight = _factor if semiring == "real" else float
        made = (Arc(p, q, reads - 1 if reads else None, writes - 1 if writes else None, weight(cost))
                for p, q, reads, writes, cost in arcs)  # fmt: skip
        ends = {state: weight(cost) for state, cost in final if cost != math.inf}
        return cls(tuple(made), ends, start).checked(name)

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

    @cached_property
    def leaving(self) -> list[list[Arc]]:
        """The arcs of each state."""
        found: list[list[Arc]] = [[] for _ in range(self.num_states)]
        for arc in self.arcs:
            found[arc.source].append(arc)
        return found

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
