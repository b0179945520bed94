"""What engines read of dependency trees."""

from typing import NamedTuple

import torch
from torch import Tensor


class Arcs(NamedTuple):
    """Words and what they may hang on; the words that count stand first."""

    scores: Tensor  # (B, T, T + 1, R): word d + 1 hangs on node h with label r
    lengths: Tensor  # (B,)
    single_root: bool
    projective: bool

    @property
    def within(self) -> Tensor:
        """(B, T, T + 1), which arcs there are: no word hangs on itself."""
        nodes = torch.arange(self.scores.shape[2], device=self.scores.device)
        there = nodes <= self.lengths[:, None]
        return there[:, 1:, None] & there[:, None] & (nodes != nodes[1:, None])
