"""Expected edit distances over the paths of a graph to within a tolerance: see `kernels.sparse_graph`."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from structloss.kernels import sparse_graph
from structloss.kernels.graph import Weights
from structloss.kernels.prices import Prices
from structloss.kernels.types import Array
from structloss.kernels.words import WordMachine
from structloss.losses import EditDistance, WordErrors
from structloss.losses.references import String
from structloss.structures import sparse
from structloss.structures.certified import Certified
from structloss.structures.graph.topology import Topology
from structloss.structures.rows import Floats


def certified(
    t: Topology, final: Floats, scores: Tensor, loss: EditDistance | WordErrors, references: Sequence[String],
    num_labels: int, tolerance: float, dtype: torch.dtype,
) -> Certified:  # fmt: skip
    """E[loss] (B,), its bounds, and how many entries a level were kept, from the scores (sum n_b,) of a topology."""
    nodes, arcs = t.num_nodes, t.num_arcs
    room = sparse_graph.Room(
        np.empty(nodes), np.empty(arcs), np.empty(nodes), np.empty(nodes, np.int64), np.empty(nodes, np.int64),
        np.empty(arcs, np.int64), np.empty(nodes), t.label,
    )  # fmt: skip

    def walk(
        values: Array, b: int, machine: WordMachine, prices: Prices, most: float, limit: int, gradient: Array
    ) -> tuple[float, float, int, int]:
        weights = Weights(values, t.zeros, final)
        return sparse_graph.expected(
            b, t.batch, t.graph, weights, room, machine, prices, most, limit, int(t.offset[b]), gradient
        )

    parts = [slice(int(begin), int(begin + size)) for begin, size in zip(t.offset, t.sizes, strict=True)]
    levels = (np.diff(t.graph.cell_begin).reshape(-1, t.batch) > 0).sum(0).tolist() if t.batch else []
    return sparse.certified(
        scores.double(), parts, levels, walk, loss, references, num_labels, tolerance, dtype, t.owners[0]
    )
