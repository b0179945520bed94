"""A chain as the graph of its paths: for what goes by the mass of few states, and not over the whole product."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from structloss.losses import EditDistance, WordErrors
from structloss.losses.references import String
from structloss.structures.certified import Certified
from structloss.structures.chain import torch_engine
from structloss.structures.chain.parts import Parts
from structloss.structures.chain.writers import Emits
from structloss.structures.graph import sparse
from structloss.structures.graph.packing import Weighted
from structloss.structures.graph.topology import Topology, build
from structloss.structures.rows import Ints


class Paths(NamedTuple):
    """The graphs of a batch of chains: a node is a position and a history."""

    topology: Topology
    there: Tensor  # (B, n), which arcs of the longest chain each example has
    place: Tensor  # where their scores stand among those of all arcs


def certified(
    p: Parts, loss: EditDistance | WordErrors, references: Sequence[String], num_labels: int, tolerance: float
) -> Certified:
    """E[loss of what is written] (B,), its bounds, and how many entries were kept a position."""
    torch_engine.check(p)
    scores, H, K = torch_engine.levels(p.map(Tensor.double)), p.num_histories, p.num_labels
    there = [scores[:, t, : min(H, K**t)].flatten(1) for t in range(p.num_positions)]
    rows = torch.cat([scores.new_zeros(len(p.lengths), 0), *there], 1)
    strings = p.writer.strings if isinstance(p.writer, Emits) else tuple((k,) for k in range(p.num_labels))
    graph = _paths(tuple(p.lengths.tolist()), p.num_positions, p.order, strings)
    own = rows.new_zeros(len(graph.topology.owner)).index_copy(0, graph.place, rows[graph.there])
    weighted = Weighted(graph.topology, own, np.empty(0))
    return sparse.certified(weighted, loss, references, num_labels, tolerance, p.any_potential.dtype)


@lru_cache(maxsize=4)
def _paths(lengths: tuple[int, ...], positions: int, order: int, strings: tuple[tuple[int, ...], ...]) -> Paths:
    """The graphs of chains of these lengths, whose state k writes strings[k]."""
    K = len(strings)
    H = K ** (order - 1)
    begin = np.cumsum([0, *(min(H, K**t) * K for t in range(positions))])  # where the arcs of a position begin
    arcs = {length: _arcs(length, K, H, strings) for length in set(lengths)}
    ends = {length: dict.fromkeys(range(length * H, length * H + min(H, K**length)), 0.0) for length in arcs}
    topology, _ = build([arcs[length] for length in lengths], [ends[length] for length in lengths])
    counts = torch.tensor([int(begin[length]) for length in lengths], dtype=torch.int64)
    there = torch.arange(int(begin[-1])) < counts[:, None]
    place = (torch.from_numpy(topology.offset)[:, None] + torch.arange(int(begin[-1])))[there]
    return Paths(topology, there, place)


def _arcs(length: int, K: int, H: int, strings: tuple[tuple[int, ...], ...]) -> Ints:
    """(n, 3): first those of every position, history and state; then what states write behind their first label."""
    counts = [min(H, K**t) * K for t in range(length)]
    t = np.repeat(np.arange(length), counts)
    h, k = np.divmod(np.concatenate([np.zeros(0, np.int64), *map(np.arange, counts)]), K)
    source, target = t * H + h, (t + 1) * H + (h * K + k) % H
    labels = np.full((K, max(1, *map(len, strings))), -1)
    for own, string in zip(labels, strings, strict=True):
        own[: len(string)] = string
    further = np.maximum(np.array(list(map(len, strings))) - 1, 0)[k]
    inner = (length + 1) * H + np.cumsum(further) - further  # the first node within a string
    rows = [np.stack([source, np.where(further > 0, inner, target), labels[k, 0]], 1)]
    for j in range(1, labels.shape[1]):
        at = np.flatnonzero(further >= j)
        after = np.where(further[at] == j, target[at], inner[at] + j)
        rows.append(np.stack([inner[at] + j - 1, after, labels[k[at], j]], 1))
    return np.concatenate(rows)
