"""The best trees of packed forests at each value of a loss."""

import numpy as np
import torch
from torch import Tensor

from structloss.structures.base import Found, Strata
from structloss.structures.graph.native_engine import best_from
from structloss.structures.graph.packing import Weighted
from structloss.structures.rows import Floats
from structloss.structures.strata import best_at_each
from structloss.structures.trees.packed import Forests, with_values


def strata(f: Forests, scores: Tensor, costs: Floats) -> Strata:
    """The best trees (V, B, L) at each value of the sum of the costs (A,) of a tree's arcs.

    Items are told apart by the values that the costs of their trees can have: with V of them V * V times the cost of
    `best`, and that in Python once.
    """
    made, origin, values, roots = with_values(f, costs)
    of_arcs = torch.from_numpy(origin).to(scores.device)
    trees, exists = best_from(Weighted(made, scores[of_arcs].detach(), np.empty(0)), roots, 1, f.longest)
    trees = torch.where(trees >= 0, of_arcs[trees.clamp(min=0)], -1) if len(origin) else trees
    there = exists[:, 0].cpu().numpy()
    own = [x[there[: len(x), b]] for b, x in enumerate(values)]

    def at_each(wanted: Floats) -> Found:
        choices, found = trees[0, 0].clone(), torch.zeros_like(exists[0, 0])
        for b, x in enumerate(values):
            for v in np.flatnonzero(np.abs(x - wanted[b]) < 1e-8)[:1]:
                choices[b], found[b] = trees[v, 0, b], exists[v, 0, b]
        return Found(choices[None], found[None])

    return best_at_each(own, scores, at_each)
