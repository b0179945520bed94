"""The values that a loss over segments or over frames can take."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.segments import Levels
from structloss.structures import strata
from structloss.structures.segments.parts import Parts


def levels_of(costs: Tensor, p: Parts) -> tuple[NDArray[np.float64], Levels]:
    """The values of a loss (V, B), ascending, and what a search for the best way at each of them runs on.

    Args:
        costs: float64 (B, T, K), of a frame in state k, or where states stand in a row of a segment that starts there.
        p: what is searched.
    """
    by_frame = p.transitions is not None
    choices, counts = (costs, p.lengths) if by_frame else (_reached(costs, p), p.counts)  # (B, L, C), (B,)
    nodes, pairs, states = p.num_nodes
    what = "frames" if by_frame else "segments"
    losses, following = strata.levels_of(choices, counts, nodes * pairs * states, what)
    return losses, Levels(following, by_frame)


def _reached(costs: Tensor, p: Parts) -> Tensor:
    """The costs (B, N, T) of segments, those that the frames before and after leave no room for as of the nearest."""
    T, N = costs.shape[1:]
    n, t = torch.arange(N, device=costs.device), torch.arange(T, device=costs.device)
    first, last = n * p.shortest, p.lengths[:, None] - (p.counts[:, None] - n) * p.shortest  # (N,), (B, N)
    last = torch.where(n > 0, last, 0).clamp(0, max(0, T - 1))
    nearest = torch.minimum(torch.maximum(t, first[:, None]), last[:, :, None])
    return costs.transpose(1, 2).gather(2, nearest)
