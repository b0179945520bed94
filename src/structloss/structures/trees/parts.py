"""What engines read of trees over words."""

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
        return arcs_between(torch.arange(self.scores.shape[1], device=self.lengths.device) < self.lengths[:, None])


class Spans(NamedTuple):
    """Spans of words, each with one of K labels."""

    scores: Tensor  # (B, T, T, K): of the span from word i to word j, both included
    lengths: Tensor  # (B,)

    @property
    def within(self) -> Tensor:
        """(B, T, T), which spans there are."""
        place = torch.arange(self.scores.shape[1], device=self.lengths.device)
        return (place[:, None] <= place) & (place < self.lengths[:, None, None])


def arcs_between(words: Tensor) -> Tensor:
    """(B, T, T + 1), which arcs there are of words (B, T) onto others, or onto the root, which is node 0."""
    nodes = torch.nn.functional.pad(words, (1, 0), value=True)
    itself = torch.eye(nodes.shape[1], dtype=torch.bool, device=words.device)[1:]
    return words[:, :, None] & nodes[:, None] & ~itself
