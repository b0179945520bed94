"""What engines read of dependency trees."""

from typing import NamedTuple

from torch import Tensor


class Arcs(NamedTuple):
    """Words and what they may hang on; the words that count stand first."""

    scores: Tensor  # (B, T, T + 1, R): word d + 1 hangs on node h with label r
    lengths: Tensor  # (B,)
    single_root: bool
    projective: bool
