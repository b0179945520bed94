"""The loss machines of a batch, as the kernels read them."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from structloss.automata import LossAutomaton, OpenAutomaton
from structloss.automata.automaton import MAX_STATES
from structloss.automata.pairs import pair, weighted_sum
from structloss.kernels.levels import Machines
from structloss.kernels.workers import map_in_threads
from structloss.losses import LocalLoss, MachineLoss


def _concatenated(arrays: Sequence[NDArray[Any]], kind: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.empty(0, kind)


class Source(NamedTuple):
    """Where machines come from: a loss, and a reference for each example."""

    loss: MachineLoss | LocalLoss
    references: Sequence[NDArray[np.int64]]


class MachineBatch:
    """One machine for each example, compiled when first asked for, and laid side by side once."""

    def __init__(
        self, make: Callable[[int], LossAutomaton], size: int, positions: int, source: Source | None = None
    ) -> None:
        self._make, self._size = make, size
        self.positions = positions  # T, at least the longest
        self.source = source
        self._open: list[OpenAutomaton] | None = None
        self.moved: dict[str, Any] = {}  # what `device_machines` has laid out, by device

    @classmethod
    def of(cls, automata: Sequence[LossAutomaton], positions: int) -> Self:
        """Of machines that are there."""
        return cls(automata.__getitem__, len(automata), positions)

    @cached_property
    def automata(self) -> tuple[LossAutomaton, ...]:
        """The machines; what the loss has not compiled before is compiled on all cores."""
        return tuple(map_in_threads(self._make, range(self._size), torch.get_num_threads()))

    def open_machines(self, num_labels: int) -> list[OpenAutomaton]:
        """The machines for strings of any length, where it is known what they are made of."""
        if self._open is None:
            assert self.source is not None
            loss, references = self.source
            self._open = [loss.open(r, num_labels, absolute=False) for r in references]
        return self._open

    @cached_property
    def layout(self) -> Machines:
        """The arrays, with weights as they are (scale 1), inf where a string is outside the machine."""
        machines, batch = self.automata, self._size
        classes = np.array([m.next_state.shape[1] for m in machines], np.int64)
        arcs = [m.next_state.size for m in machines]
        first = np.cumsum([0, *arcs])[:-1]
        levels = np.array([m.length for m in machines], np.int64) + 1
        there = np.arange(self.positions + 1) < levels[:, None]
        sizes, arc_begin = np.zeros(there.shape, np.int64), np.zeros(there.shape, np.int64)
        sizes[there] = _concatenated([m.sizes for m in machines], np.int64)
        before = _concatenated([m.offsets[:-1] for m in machines], np.int64)
        arc_begin[there] = before * np.repeat(classes, levels) + np.repeat(first, levels)
        last = [m.last for m in machines]
        ends = np.array([len(x) for x in last], np.int64)
        final = np.full((batch, ends.max(initial=1)), np.inf)
        final[np.arange(final.shape[1]) < ends[:, None]] = _concatenated(last, np.float64)
        class_of = np.stack([m.class_of for m in machines])[:, None] if machines else np.zeros((0, 1, 1), np.int64)
        weights = [m.by_class[1] for m in machines]
        if any(x.size for x in weights):
            weights = [np.zeros(n) if m.is_absolute else x for m, n, x in zip(machines, arcs, weights, strict=True)]
        next_state = _concatenated([m.by_class[0] for m in machines], np.int32)
        return Machines(class_of, classes, next_state, _concatenated(weights, np.float64), arc_begin, sizes, final)

    def scaled(self, scale: float) -> Machines:
        """The arrays with every weight times scale, -inf where a string is outside the machine."""
        m = self.layout
        outside = np.isinf(m.final)
        final = np.where(outside, -np.inf, scale * np.where(outside, 0.0, m.final))
        return m._replace(weight=scale * m.weight if scale != 1.0 else m.weight, final=final)


@lru_cache(maxsize=64)
def no_machine(positions: int, num_labels: int) -> Machines:
    """The machine that adds nothing, one for all examples: one state a level, one class, no weights."""
    levels = (1, positions + 1)
    return Machines(
        np.zeros((1, 1, num_labels), np.int64), np.ones(1, np.int64), np.zeros(1, np.int32), np.empty(0),
        np.zeros(levels, np.int64), np.ones(levels, np.int64), np.zeros((1, 1)),
    )  # fmt: skip


class Augmentation(NamedTuple):
    """What a loss adds to a chain: scale times the weight of its machine."""

    batch: MachineBatch
    scale: float

    @property
    def arrays(self) -> Machines:
        """As the kernels read it."""
        return self.batch.scaled(self.scale)

    def examples(self, index: Sequence[int]) -> "Augmentation":
        """Those of some examples."""
        batch = self.batch
        source = batch.source and batch.source._replace(references=[batch.source.references[b] for b in index])
        part = MachineBatch(lambda i: batch.automata[index[i]], len(index), batch.positions, source)
        return self._replace(batch=part)

    @property
    def forbids(self) -> bool:
        """Whether some string is outside its machine."""
        return any(np.isinf(m.last).any() for m in self.batch.automata)


def combined(a: Augmentation | None, b: Augmentation) -> Augmentation:
    """Both at once."""
    if a is None:
        return b
    if a.batch is b.batch:
        return Augmentation(a.batch, a.scale + b.scale)
    automata = tuple(
        weighted_sum(x, a.scale, y, b.scale, MAX_STATES)
        for x, y in zip(a.batch.automata, b.batch.automata, strict=True)
    )
    return Augmentation(MachineBatch.of(automata, a.batch.positions), 1.0)


def joint(a: Augmentation | None, b: Augmentation | None, nothing: Machines) -> tuple[Machines, Machines]:
    """One machine that runs both, with the weights of each; `nothing` where there is neither."""
    if a is not None and b is not None and a.batch is not b.batch:
        pairs = [pair(x, y, MAX_STATES) for x, y in zip(a.batch.automata, b.batch.automata, strict=True)]
        first = MachineBatch.of([x.first for x in pairs], a.batch.positions).scaled(a.scale)
        second = MachineBatch.of([x.second for x in pairs], a.batch.positions).scaled(b.scale)
    else:
        shared = b if a is None else a
        if shared is not None:
            layout = shared.batch.layout
            nothing = layout._replace(weight=np.empty(0), final=np.zeros_like(layout.final))
        first, second = (nothing if x is None else x.arrays for x in (a, b))
    arcs = max(first.weight.size, second.weight.size)
    first, second = (x if x.weight.size == arcs else x._replace(weight=np.zeros(arcs)) for x in (first, second))
    return first, second
