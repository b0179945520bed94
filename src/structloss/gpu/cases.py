"""Small structures whose outputs can all be listed, with scores by their definition: what engines are checked with."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from structloss.losses import EditDistance
from structloss.structures import CTC, Chain, Lattice, Structure
from structloss.structures.chain.linear import LinearChain

LABELS = 3  # no power of two
LENGTHS = (4, 0, 1, 3)  # the last example has no output
POSITIONS = 4
REFERENCES = [[1, 2], [], [2, 1], [1]]
CAP = 2
# Arcs (source, target, label) of the lattices; one has a level of 17 states, more than a kernel takes at a time.
ARCS: list[list[tuple[int, int, int]]] = [
    [(0, 1, 1), (0, 1, 2), (1, 2, -1), (0, 2, 1), (1, 3, 2), (2, 3, 1)],
    [],
    [*((0, i, i % 3) for i in range(1, 18)), *((i, 18, (i + 1) % 3) for i in range(1, 18))],
    [(0, 1, 1), (0, 1, 2), (1, 2, 1)],
]
FINAL: list[dict[int, float]] = [{1: -0.5, 3: 0.5}, {0: 0.25}, {18: 0.0, 4: 1.0}, {2: 0.0}]

Potentials = Sequence[Tensor]


class Case(NamedTuple):
    """A batch of sets of outputs: how to build it, and the score of each output, example by example."""

    name: str
    shapes: tuple[tuple[int, ...], ...]  # of its potentials
    build: Callable[[Potentials, str], Structure]  # on a device
    outputs: list[list[tuple[int, ...]]]
    score: Callable[[Potentials, int, tuple[int, ...]], Tensor]
    loss: Callable[[int, tuple[int, ...]], float]  # what an example's output costs

    def scores(self, potentials: Potentials) -> list[Tensor]:
        """Of each example's outputs, in float64."""
        return [torch.stack([self.score(potentials, b, y) for y in outputs]) for b, outputs in enumerate(self.outputs)]


def distance(a: Sequence[int], b: Sequence[int]) -> float:
    """Levenshtein's, by its recursion."""
    if not a or not b:
        return float(len(a) + len(b))
    return min(distance(a[1:], b) + 1, distance(a, b[1:]) + 1, distance(a[1:], b[1:]) + (a[0] != b[0]))


def _capped(b: int, y: Sequence[int]) -> float:
    """EditDistance(cap=CAP) by its definition."""
    return min(distance(y, REFERENCES[b]), CAP)


def _paths() -> list[list[tuple[int, ...]]]:
    return [list(itertools.product(range(LABELS), repeat=n)) for n in LENGTHS]


def _dense(potentials: Potentials, b: int, y: tuple[int, ...]) -> Tensor:
    (table,) = potentials
    order = table.dim() - 2
    total = table.new_zeros(())
    for t in range(len(y)):
        total = total + table[(b, t, *([0] * (order - 1) + list(y[: t + 1]))[-order:])]
    return total


def _shared(potentials: Potentials, b: int, y: tuple[int, ...]) -> Tensor:
    emissions, transitions, start, end = potentials
    order = transitions.dim()
    total = emissions.new_zeros(())
    for t, label in enumerate(y):
        total = total + emissions[b, t, label]
        if t >= order - 1:
            total = total + transitions[tuple(y[t - order + 1 : t + 1])]
    return total + start[y[0]] + end[y[-1]] if y else total


def _collapsed(path: Sequence[int]) -> list[int]:
    return [label for label, last in zip(path, (0, *path), strict=False) if label not in (0, last)]


def _chain(order: int, shared: bool) -> Case:
    B, T, K = len(LENGTHS), POSITIONS, LABELS
    shapes = ((B, T, K), (K,) * order, (K,), (K,)) if shared else ((B, T, *(K,) * order),)

    def build(potentials: Potentials, device: str) -> LinearChain:
        x = [p.to(device) for p in potentials]
        lengths = torch.tensor(LENGTHS, device=device)
        return Chain.from_emissions(x[0], x[1], x[2], x[3], lengths) if shared else Chain(x[0], lengths)

    name = f"chain, order {order}" + (", shared transitions" if shared else "")
    return Case(name, shapes, build, _paths(), _shared if shared else _dense, lambda b, y: 0.0)


def _with_machine(case: Case) -> Case:
    def build(potentials: Potentials, device: str) -> Structure:
        return case.build(potentials, device).augment(EditDistance(cap=CAP), REFERENCES, 0.75)

    def score(potentials: Potentials, b: int, y: tuple[int, ...]) -> Tensor:
        return case.score(potentials, b, y) + 0.75 * (case.loss(b, y) if case.name == "lattice" else _capped(b, y))

    return case._replace(name=f"{case.name}, times a machine", build=build, score=score)


def _ctc(kind: str) -> Case:
    def build(potentials: Potentials, device: str) -> Structure:
        ctc = CTC(potentials[0].to(device), torch.tensor(LENGTHS, device=device))
        if kind == "given a string":
            return ctc.given(REFERENCES)
        return ctc.augment(EditDistance(cap=CAP), REFERENCES, -1.5) if kind == "times a machine" else ctc

    def score(potentials: Potentials, b: int, path: tuple[int, ...]) -> Tensor:
        total, written = _dense(potentials, b, path), _collapsed(path)
        if kind == "given a string":
            return total if written == REFERENCES[b] else total - torch.inf
        return total - 1.5 * _capped(b, written) if kind == "times a machine" else total

    shapes = ((len(LENGTHS), POSITIONS, LABELS),)
    loss = lambda b, path: _capped(b, _collapsed(path))  # noqa: E731
    return Case(f"CTC, {kind}", shapes, build, _paths(), score, loss)


def _lattice() -> Case:
    begins = [sum(map(len, ARCS[:b])) for b in range(len(ARCS))]

    def build(potentials: Potentials, device: str) -> Structure:
        return Lattice(ARCS, potentials[0].to(device), FINAL, LABELS)

    def paths(b: int, state: int = 0) -> Iterator[tuple[int, ...]]:
        if state in FINAL[b]:
            yield ()
        for arc, (source, target, _) in enumerate(ARCS[b]):
            if source == state:
                yield from ((arc, *rest) for rest in paths(b, target))

    def score(potentials: Potentials, b: int, path: tuple[int, ...]) -> Tensor:
        end = ARCS[b][path[-1]][1] if path else 0
        return potentials[0][[begins[b] + arc for arc in path]].sum() + FINAL[b][end]

    def loss(b: int, path: tuple[int, ...]) -> float:
        return _capped(b, [ARCS[b][arc][2] for arc in path if ARCS[b][arc][2] >= 0])

    shapes = ((sum(map(len, ARCS)),),)
    return Case("lattice", shapes, build, [list(paths(b)) for b in range(len(ARCS))], score, loss)


def cases() -> list[Case]:
    """Everything that has kernels."""
    chains = [_chain(1, False), _chain(2, True), _chain(2, False), _chain(3, True), _chain(3, False)]
    machines = [_with_machine(c) for c in (chains[0], chains[1], chains[4])]
    lattices = [_lattice(), _with_machine(_lattice())]
    return [*chains, *machines, *(_ctc(kind) for kind in ("given a string", "times a machine", "plain")), *lattices]


def potentials_of(case: Case, dtype: torch.dtype, seed: int) -> list[Tensor]:
    """Numbers, some of them -inf; the last example without an output; what must not matter is NaN or inf."""
    generator, found = torch.Generator().manual_seed(seed), []
    for i, shape in enumerate(case.shapes):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) > 1 or i == 0:
            x[torch.rand(shape, generator=generator) < 0.08] = -torch.inf
        if len(shape) == 1 and i == 0:  # of the arcs of lattices
            x[-len(ARCS[3]) :] = -torch.inf
        elif i == 0:
            x[3, 1] = -torch.inf
            for b, length in enumerate(LENGTHS):
                x[b, length:] = torch.nan if b % 2 else torch.inf
        found.append(x.to(dtype))
    return found
