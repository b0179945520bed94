"""The loss machines of a batch, as the kernels read them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from structloss.automata import LossAutomaton
from structloss.automata.automaton import MAX_STATES
from structloss.automata.pairs import pair, weighted_sum
from structloss.kernels.product import Machines
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
        machines = self.automata
        classes = np.array([m.next_state.shape[1] for m in machines], np.int64)
        arc_base = np.concatenate([[0], np.cumsum([m.next_state.size for m in machines])])
        arc_begin = np.zeros((len(machines), self.positions + 1), np.int64)
        sizes = np.zeros_like(arc_begin)
        for b, m in enumerate(machines):
            arc_begin[b, : m.length + 1] = arc_base[b] + m.offsets[:-1] * classes[b]
            sizes[b, : m.length + 1] = m.sizes
        weights: list[Floats] = []
        if not all(m.is_absolute for m in machines):
            weights = [np.zeros(m.next_state.size) if m.is_absolute else m.by_class[1] for m in machines]
        finals = [m.final[m.offsets[-2] :] for m in machines]
        final_begin = np.concatenate([[0], np.cumsum([len(f) for f in finals])])[:-1]
        return Machines(
            np.stack([m.class_of for m in machines] or [np.zeros(0, np.int64)])[: len(machines)],
            classes,
            np.concatenate([np.empty(0, np.int32), *(m.by_class[0] for m in machines)]),
            np.concatenate([np.empty(0), *weights]),
            arc_begin,
            sizes,
            np.concatenate([np.empty(0), *finals]),
            final_begin.astype(np.int64),
        )

    def scaled(self, scale: float) -> Machines:
        """The arrays with every weight times scale, -inf where a string is outside the machine."""
        m = self.layout
        return m._replace(weight=scale * m.weight if scale != 1.0 else m.weight, final=scaled_final(m.final, scale))

    @property
    def widest(self) -> int:
        """The most states of any level."""
        return int(self.layout.sizes.max(initial=1))


def scaled_final(final: Floats, scale: float) -> Floats:
    """scale * final, -inf where final is inf: no string may end there."""
    outside = np.isinf(final)
    return np.where(outside, -np.inf, scale * np.where(outside, 0.0, final))


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
        return bool(np.isinf(self.batch.layout.final).any())


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


class Joint(NamedTuple):
    """One machine for two augmentations: the arrays with the weights of the first, and those of the second."""

    first: Machines
    second_weight: NDArray[Any]
    second_final: Floats


def joint(a: Augmentation | None, b: Augmentation | None) -> Joint:
    """The machine that runs both; at least one of them is there."""
    if a is not None and b is not None and a.batch is not b.batch:
        pairs = [pair(x, y, MAX_STATES) for x, y in zip(a.batch.automata, b.batch.automata, strict=True)]
        first = MachineBatch.of([p.first for p in pairs], a.batch.positions).scaled(a.scale)
        second = MachineBatch.of([p.second for p in pairs], a.batch.positions).scaled(b.scale)
        return Joint(first, second.weight, second.final)
    shared = a if a is not None else b
    assert shared is not None
    layout = shared.batch.layout
    nothing = layout._replace(weight=np.empty(0), final=np.zeros_like(layout.final))
    first, second = (nothing if x is None else x.arrays for x in (a, b))
    return Joint(first, second.weight, second.final)
