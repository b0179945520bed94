"""Ready-made kinds of structures, which write some of the template: by what computes them, and what scores them."""

from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from structloss.structures.base import Engine, Found, NativeEngine, Structure
from structloss.structures.engine import is_native


class Computed(Structure):
    """A structure whose sums, maxima and draws an engine computes from its parts."""

    _parts: Any  # the weighted sets, as its engines read them
    _engines: ClassVar[tuple[NativeEngine[Any], Engine[Any]]]  # compiled kernels, and tensor operations

    @property
    def _engine(self) -> Engine[Any]:
        """What computes: the device decides, and who asks for another."""
        return self._engines[not is_native(self.device)]

    def _best(self, k: int) -> Found:
        return self._engine.best(self._parts, k)

    def _draw(self, n: int, generator: torch.Generator | None) -> Found:
        return self._engine.draw(self._parts, n, generator)

    def _log_partition(self) -> Tensor:
        return self._engine.log_partition(self._parts)

    def _expectation(self, other: Self) -> Tensor:
        if is_native(self.device):
            return self._engines[0].expectation(self._parts, other._parts)
        return super()._expectation(other)


class Parted(Computed):
    """One whose parts are tensors, of which each example has its own."""

    def _like(self, parts: Any, only: Tensor | None = None) -> Self:
        """The same but for its parts; of one output, where a reference said all of it first."""
        return self._with(_parts=parts, _only=only if self._only is None else self._only)

    @property
    def _batch(self) -> int:
        return len(self._parts.lengths)

    @property
    def _potentials(self) -> tuple[Tensor, ...]:
        return tuple(x for x in self._parts.potentials if x is not None)

    def _with_potentials(self, potentials: tuple[Tensor, ...]) -> Self:
        given = iter(potentials)
        return self._like(self._parts.map(lambda _: next(given)))

    def _examples(self, index: Tensor) -> Self:
        return self._with(_parts=self._parts.examples(index), _only=None if self._only is None else self._only[index])


class Scored(Structure):
    """One whose potentials are one tensor, (B, ...) unless it says otherwise."""

    _scores: Tensor

    @property
    def _batch(self) -> int:
        return self._scores.shape[0]

    @property
    def _potentials(self) -> tuple[Tensor, ...]:
        return (self._scores,)

    def _with_potentials(self, potentials: tuple[Tensor, ...]) -> Self:
        return self._with(_scores=potentials[0])
