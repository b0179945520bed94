"""Expected edit distances over the paths of a graph to within a tolerance: see `kernels.sparse_graph`."""

from collections.abc import Sequence

import numpy as np
import torch

from structloss.kernels import sparse_graph
from structloss.kernels.forest import Weights
from structloss.kernels.prices import Prices
from structloss.kernels.types import Array
from structloss.kernels.words import WordMachine
from structloss.losses import EditDistance, WordErrors
from structloss.losses.references import String
from structloss.structures import sparse
from structloss.structures.certified import Certified
from structloss.structures.graph.packing import Weighted
from structloss.structures.graph.topology import Topology


def certified(
    w: Weighted[Topology], loss: EditDistance | WordErrors, references: Sequence[String], num_labels: int,
    tolerance: float, dtype: torch.dtype,
) -> Certified:  # fmt: skip
    """E[loss] (B,), its bounds, and how many entries a level were kept, from the scores of a topology."""
    t = w.packing
    nodes, arcs = t.num_items, t.num_arcs
    room = sparse_graph.Room(
        np.empty(nodes + 1), np.empty(arcs), np.empty(nodes), np.empty(nodes, np.int64), np.empty(nodes, np.int64),
        np.empty(nodes, np.int64), np.empty(arcs, np.int64), np.empty(nodes), t.label,
    )  # fmt: skip

    def walk(
        values: Array, b: int, machine: WordMachine, prices: Prices, most: float, limit: int, gradient: Array
    ) -> tuple[float, float, int, int]:
        weights = Weights(values, w.constant)
        return sparse_graph.expected(
            b, t.batch, t.packed, weights, room, machine, prices, most, limit, int(t.offset[b]), gradient
        )

    parts = [slice(int(begin), int(begin + size)) for begin, size in zip(t.offset, t.sizes, strict=True)]
    levels = (np.diff(t.packed.cell_begin).reshape(-1, t.batch) > 0).sum(0).tolist() if t.batch else []
    return sparse.certified(
        w.scores.double(), parts, levels, walk, loss, references, num_labels, tolerance, dtype, t.owner
    )
