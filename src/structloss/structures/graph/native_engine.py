"""The lattice by compiled kernels: CPU tensors in and out, values and first derivatives."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structloss.kernels import graph
from structloss.kernels.types import Array
from structloss.kernels.workers import run
from structloss.structures import derivatives
from structloss.structures.base import Found
from structloss.structures.derivatives import Solve, known
from structloss.structures.graph.topology import Topology, Weighted


def _run(kernel: Callable[..., None], t: Topology, passes: int, *args: Any) -> None:
    """Run a kernel on the examples of t, in as many threads as `passes` over its arcs are worth."""
    run(kernel, torch.get_num_threads(), t.batch, passes * (5 * t.num_arcs + 10 * t.num_nodes), t.graph, *args)


def _room(t: Topology, kind: Any) -> tuple[Array, Array, Array]:
    """beta (N,), share (A,), ending (N,)."""
    return np.empty(t.num_nodes, kind), np.empty(t.num_arcs, kind), np.empty(t.num_nodes, kind)


def _solve(t: Topology) -> Solve:
    """log Z of scores (sum n_b,), constant (A,) and final (N,), with the probability of each arc and of each end."""

    def solve(arrays: Sequence[Array | None], wanted: Sequence[bool]) -> tuple[Array, Sequence[Array | None]]:
        weights, (arcs, _, ends) = graph.Weights._make(arrays), wanted
        kind = weights.final.dtype
        value, of_ends = np.empty(t.batch, kind), np.zeros(t.num_nodes if ends else 0, kind)
        of_arcs = np.zeros(t.num_scores if arcs or ends else 0, kind)
        _run(graph.log_partition, t, 3 if arcs or ends else 2, weights, *_room(t, kind), value, of_arcs, of_ends)
        return value, (of_arcs, None, of_ends)

    return solve


def log_partition(w: Weighted) -> Tensor:
    """log Z, (B,)."""
    return known(_solve(w.topology), w.potentials, w.topology.owners)


def expectation(w: Weighted, f: Weighted) -> Tensor:
    """E[score of a path under f], the path drawn under w, of one topology. (B,)"""
    return derivatives.expectation(_solve(w.topology), w.potentials, f.potentials, w.topology.owners)


def best(w: Weighted, k: int) -> Found:
    """The scores that the k best paths use (k, B, L), -1 after an end, and whether there are so many (k, B)."""
    t = w.topology
    score, via, rank = (np.empty((t.num_nodes, k), kind) for kind in (np.float64, np.int64, np.int64))
    paths, exists = torch.full((k, t.batch, t.num_levels - 1), -1), torch.zeros(k, t.batch, dtype=torch.bool)
    _run(graph.best, t, k, w.arrays, score, via, rank, paths.numpy(), exists.numpy())
    return Found(paths, exists)


def draw(w: Weighted, n: int, generator: torch.Generator | None) -> Found:
    """The scores that n paths use (n, B, L), drawn with probability exp(score) / Z, and whether there is any (B,)."""
    t = w.topology
    uniforms = torch.rand((n, t.batch, t.num_levels - 1), generator=generator, dtype=torch.float64)
    paths, exists = torch.full(uniforms.shape, -1), torch.zeros(t.batch, dtype=torch.bool)
    room = _room(t, np.float64)
    _run(graph.sample, t, 2 + n // 4, w.arrays, *room, uniforms.numpy(), paths.numpy(), exists.numpy())
    return Found(paths, exists)
