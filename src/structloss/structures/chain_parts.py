"""The tensors that score a batch of chains, as both engines read them."""

from typing import NamedTuple

import torch
from torch import Tensor


class Parts(NamedTuple):
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

    @property
    def shared(self) -> bool:
        """Whether one table scores every position whose whole history exists (t >= q - 1)."""
        return self.table is not None and self.table.dim() == 2

    @property
    def potentials(self) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """What is differentiated."""
        return self.unary, self.table, self.start, self.end

    @property
    def any_potential(self) -> Tensor:
        """One of them: for its device and dtype."""
        potential = self.unary if self.unary is not None else self.table
        assert potential is not None
        return potential

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
    def within(self) -> Tensor:
        """Whether each position is within its example's length, (B, T)."""
        return torch.arange(self.num_positions, device=self.lengths.device) < self.lengths[:, None]
