"""The tensors that score a batch of chains, as both engines read them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from structloss.kernels.levels import Machines, Potentials
from structloss.structures.chain.machines import Augmentation, no_machine
from structloss.structures.chain.writers import Writer
from structloss.structures.derivatives import Maybe, as_array


@dataclass(frozen=True)
class Parts:
    """score(t, h, y) = unary[t, y] + start[y] (t = 0) + end[y] (t = length - 1) + table[t, h, y].

    The history h is the last q - 1 labels as a number in base K, oldest first: H = K**(q-1) of them.
    """

    unary: Tensor | None  # (B, T, K)
    table: Tensor | None  # (B, T, H, K), or (H, K) when shared; None for order 1
    start: Tensor | None  # (K,)
    end: Tensor | None  # (K,)
    lengths: Tensor  # (B,)
    pinned: Tensor | None  # (B, T): the only label allowed, or negative where every label is
    order: int
    machine: Augmentation | None = None  # what a loss that is not a sum over positions adds
    writer: Writer | None = None  # what a path writes, where that is not the path itself
    error_bound: Tensor | None = None  # (B,), of Z, relative, where the machine was truncated

    @property
    def shared(self) -> bool:
        """Whether one table scores every position whose whole history exists (t >= q - 1)."""
        return self.table is not None and self.table.dim() == 2

    def replace(self, **changes: Any) -> Self:
        """The same with some tensors exchanged."""
        if self.error_bound is not None:  # what was proved of a sum says nothing of another
            changes.setdefault("error_bound", torch.ones_like(self.error_bound))
        changed = object.__new__(type(self))  # `dataclasses.replace` is eight times slower
        changed.__dict__.update(self.__dict__, **changes)
        changed.__dict__.pop("arrays", None)
        return changed

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """A function of each of the potentials."""
        named = zip(("unary", "table", "start", "end"), self.potentials, strict=True)
        return self.replace(**{name: function(x) for name, x in named if x is not None})

    def given(self, pinned: Tensor, native: bool) -> Self:
        """With these labels only; what the kernels of the native engine read is shared."""
        changed = self.replace(pinned=pinned)
        if native and not torch.compiler.is_compiling():
            changed.__dict__["arrays"] = self.arrays._replace(pinned=pinned.contiguous().numpy())
        return changed

    def examples(self, index: Tensor) -> Self:
        """Some of the examples."""

        def own(x: Maybe) -> Maybe:
            return None if x is None else x[index]

        table = self.table if self.shared else own(self.table)
        machine = None if self.machine is None else self.machine.examples(index.tolist())
        return self.replace(
            unary=own(self.unary), table=table, machine=machine, lengths=self.lengths[index],
            pinned=own(self.pinned), error_bound=own(self.error_bound),
        )  # fmt: skip

    @property
    def potentials(self) -> tuple[Maybe, Maybe, Maybe, Maybe]:
        """What is differentiated."""
        return self.unary, self.table, self.start, self.end

    @cached_property
    def arrays(self) -> Potentials:
        """The same memory as arrays, for the kernels (CPU only)."""
        return as_arrays([*map(as_array, (*self.potentials, self.lengths, self.pinned))], self.order)

    @property
    def no_machine(self) -> Machines:
        """A machine that adds nothing, as the kernels read it."""
        return no_machine(self.num_positions, self.num_labels)

    @property
    def machines(self) -> Machines:
        """What augments it, as the kernels read it."""
        return self.no_machine if self.machine is None else self.machine.arrays

    @property
    def any_potential(self) -> Tensor:
        """One of them: for its device and dtype."""
        found = self.table if self.unary is None else self.unary
        assert found is not None
        return found

    @property
    def num_labels(self) -> int:
        """K."""
        return self.any_potential.shape[-1]

    @property
    def num_positions(self) -> int:
        """T."""
        return self.any_potential.shape[1]

    @property
    def num_histories(self) -> int:
        """H = K**(q-1)."""
        return 1 if self.table is None else self.table.shape[-2]

    @property
    def unaries(self) -> Tensor:
        """What each label scores at each position, (B, T, K), starts, ends and pins with it; 0 beyond a length."""
        like, within, positions = self.any_potential, self.within[:, :, None], self._positions
        if self.unary is None:
            found = like.new_zeros(self.lengths.shape[0], self.num_positions, self.num_labels)
        else:
            found = torch.where(within, self.unary, 0)
        if self.start is not None:
            found = torch.where(within & (positions == 0)[:, None], found + self.start, found)
        if self.end is not None:
            found = torch.where((positions == self.lengths[:, None] - 1)[:, :, None], found + self.end, found)
        if self.pinned is not None:
            pinned, labels = self.pinned[:, :, None], torch.arange(self.num_labels, device=like.device)
            found = torch.where((pinned < 0) | (pinned == labels) | ~within, found, -torch.inf)
        return found

    def uniforms(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Numbers (n, B, T) from 0 to 1 to draw outputs with."""
        shape = (n, self.lengths.shape[0], self.num_positions)
        return torch.rand(shape, generator=generator, device=self.lengths.device, dtype=torch.float64)

    @property
    def within(self) -> Tensor:
        """Whether each position is within its example's length, (B, T)."""
        return self._positions < self.lengths[:, None]

    @property
    def _positions(self) -> Tensor:
        return torch.arange(self.num_positions, device=self.lengths.device)


_ABSENT = {
    np.dtype(kind): [np.empty((0,) * dims, kind) for dims in range(5)]
    for kind in (np.float32, np.float64, np.complex128, np.int64)
}
_NO_PINS = _ABSENT[np.dtype(np.int64)][2]


def as_arrays(arrays: Sequence[Any], order: int) -> Potentials:
    """What the kernels read, from the arrays of unary, table, start, end, lengths and pins, None where absent."""
    unary, table, start, end, lengths, pinned = arrays
    shared = table is not None and table.ndim == 2
    if shared:
        table = table[None, None]
    none = _ABSENT[(table if unary is None else unary).dtype]
    return Potentials(
        none[3] if unary is None else unary, none[4] if table is None else table, none[1] if start is None else start,
        none[1] if end is None else end, lengths, _NO_PINS if pinned is None else pinned, shared, order,
    )  # fmt: skip
