"""The loss machines of a batch, as the kernels read them."""

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from structloss.automata import LossAutomaton
from structloss.automata.automaton import MAX_STATES
from structloss.automata.pairs import pair, weighted_sum
from structloss.kernels.levels import Machines
from structloss.kernels.workers import map_in_threads
from structloss.losses import LocalLoss, MachineLoss

Floats = NDArray[np.float64]


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

    @classmethod
    def of(cls, automata: Sequence[LossAutomaton], positions: int) -> Self:
        """Of machines that are there."""
        return cls(automata.__getitem__, len(automata), positions)

    @cached_property
    def automata(self) -> tuple[LossAutomaton, ...]:
        """The machines; what the loss has not compiled before is compiled on all cores."""
        return tuple(map_in_threads(self._make, range(self._size), torch.get_num_threads()))

    @cached_property
    def layout(self) -> Machines:
        """The arrays, with weights as they are (scale 1), inf where a string is outside the machine."""
        machines, batch = self.automata, self._size
        classes = np.array([m.next_state.shape[1] for m in machines], np.int64)
        arc_begin = np.zeros((batch, self.positions + 1), np.int64)
        sizes, class_of = (
            np.zeros_like(arc_begin),
            np.zeros((batch, 1, max((m.num_labels for m in machines), default=1)), np.int64),
        )
        final = np.full((batch, max((len(m.last) for m in machines), default=1)), np.inf)
        first = 0
        for b, m in enumerate(machines):
            arc_begin[b, : m.length + 1] = first + m.offsets[:-1] * classes[b]
            sizes[b, : m.length + 1] = m.offsets[1:] - m.offsets[:-1]
            class_of[b, 0] = m.class_of
            final[b, : len(m.last)] = m.last
            first += m.next_state.size
        weights: list[Floats] = []
        if not all(m.is_absolute for m in machines):
            weights = [np.zeros(m.next_state.size) if m.is_absolute else m.by_class[1] for m in machines]
        next_state = np.concatenate([np.empty(0, np.int32), *(m.by_class[0] for m in machines)])
        return Machines(class_of, classes, next_state, np.concatenate([np.empty(0), *weights]), arc_begin, sizes, final)

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
