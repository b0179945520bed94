"""The tensors that score the alignments of pairs of sequences, as both engines read them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.pairs import Scores, Sizes

_POTENTIALS = Scores._fields


@dataclass(frozen=True)
class Parts:
    """What an alignment scores: see `kernels.pairs`. What stands beyond a length is a number, and never matters."""

    match: Tensor  # (B, N, M)
    x_open: Tensor  # (B, N)
    x_extend: Tensor  # (B, N)
    y_open: Tensor  # (B, M)
    y_extend: Tensor  # (B, M)
    constant: Tensor  # (B, 1), of every alignment
    lengths: Tensor  # (B,), of x
    m: Tensor  # (B,), of y
    must: Tensor  # (B, N), whether this position of x must have a partner
    local: bool

    @property
    def potentials(self) -> tuple[Tensor, ...]:
        """What is differentiated."""
        return tuple(getattr(self, name) for name in _POTENTIALS)

    def map(self, function: Callable[[Tensor], Tensor], names: Sequence[str] = _POTENTIALS) -> Self:
        """A function of each of the potentials, or of other tensors."""
        changes: dict[str, Any] = {name: function(getattr(self, name)) for name in names}
        return replace(self, **changes)

    def examples(self, index: Tensor) -> Self:
        """Some of the examples."""
        return self.map(lambda x: x[index], (*_POTENTIALS, "lengths", "m", "must"))

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The first and the last position of x that must have a partner, (B,) each; N and -1 where none must."""
        after = self.must.flip(1).cumsum(1).flip(1) > 0  # whether one from here on must
        before = self.must.cumsum(1) > 0
        return (~before).sum(1), after.sum(1) - 1

    @property
    def sizes(self) -> Sizes:
        """As the kernels read it."""
        n, m, first, last = (x.cpu().contiguous().numpy() for x in (self.lengths, self.m, *self.bounds))
        return Sizes(n, m, first, last, self.local)

    @property
    def scores(self) -> Scores:
        """As the kernels read it, in float64 on the CPU."""
        return scores_of([x.detach().cpu().numpy() for x in self.potentials])


def scores_of(potentials: Sequence[NDArray[Any]]) -> Scores:
    """The potentials in the precision of sums, float64 or complex numbers of it."""
    kind = np.complex128 if any(np.iscomplexobj(x) for x in potentials) else np.float64
    return Scores._make(np.ascontiguousarray(x, kind) for x in potentials)
