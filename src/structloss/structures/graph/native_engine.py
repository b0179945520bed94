"""Packed forests by compiled kernels: CPU tensors in and out, values and first derivatives."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structloss.kernels import forest as kernels
from structloss.kernels.types import Array
from structloss.kernels.workers import run
from structloss.structures import derivatives
from structloss.structures.base import Found
from structloss.structures.derivatives import Solve, known
from structloss.structures.graph.packing import Packing, Weighted
from structloss.structures.rows import Ints


def _run(kernel: Callable[..., None], p: Packing, passes: int, *args: Any) -> None:
    """Run a kernel on the examples of p, in as many threads as `passes` over its arcs are worth."""
    run(kernel, torch.get_num_threads(), p.batch, passes * (5 * p.num_arcs + 10 * p.num_items), p.packed, *args)


def _solve(p: Packing) -> Solve:
    """log Z of the scores of numbers and the constants of arcs, with how often each is used in the mean."""

    def solve(arrays: Sequence[Array | None], wanted: Sequence[bool]) -> tuple[Array, Sequence[Array | None]]:
        scores, constant = arrays
        assert scores is not None
        assert constant is not None
        kind = np.promote_types(np.promote_types(scores.dtype, constant.dtype), np.float64)
        value, room = np.empty(p.batch, kind), (np.empty(p.num_items + 1, kind), np.empty(p.num_arcs, kind))
        gradients = [
            np.zeros(len(x) if needed else 0, kind) for x, needed in zip((scores, constant), wanted, strict=True)
        ]
        weights = kernels.Weights(scores, constant)
        _run(kernels.log_partition, p, 3 if any(wanted) else 2, weights, *room, value, *gradients)
        return value, gradients

    return solve


def log_partition(w: Weighted[Packing]) -> Tensor:
    """log Z, (B,)."""
    return known(_solve(w.packing), w.potentials, w.owners)


def expectation(w: Weighted[Packing], f: Weighted[Packing]) -> Tensor:
    """E[score under f], of what is drawn under w, of one packing. (B,)"""
    return derivatives.expectation(_solve(w.packing), w.potentials, f.potentials, w.owners)


def _arrays(w: Weighted[Packing]) -> kernels.Weights:
    """As searches and draws read them, on the CPU wherever they are."""
    return kernels.Weights(w.scores.detach().cpu().contiguous().numpy(), w.constant)


def best(w: Weighted[Packing], k: int) -> Found:
    """The numbers of the k best trees (k, B, L), -1 after the end, and whether there are so many (k, B)."""
    found = best_from(w, w.packing.packed.root[None], k, w.packing.longest)
    return Found(found.choices[0], found.exists[0])


def best_from(w: Weighted[Packing], roots: Ints, k: int, longest: int) -> Found:
    """The same of each of the roots (V, B), (V, k, B, L) and (V, k, B), of at most so many arcs."""
    none = w.packing.num_items
    score, via, rank = np.empty((none + 1, k)), np.empty((none + 1, k), np.int64), np.empty((none + 1, k, 2), np.int64)
    score[none], score[none, 0] = -np.inf, 0.0
    trees = torch.full((len(roots), k, roots.shape[1], longest), -1)
    exists = torch.zeros(trees.shape[:3], dtype=torch.bool)
    ways = kernels.Ways(score, via, rank)
    _run(kernels.best, w.packing, k, _arrays(w), roots, ways, trees.numpy(), exists.numpy())
    return Found(trees.to(w.scores.device), exists.to(w.scores.device))


def draw(w: Weighted[Packing], n: int, generator: torch.Generator | None) -> Found:
    """The numbers of n trees (n, B, L), drawn with probability exp(score) / Z, and whether there is any (B,)."""
    p, device = w.packing, w.scores.device
    shape = (n, p.batch, p.longest)
    uniforms = torch.rand(shape, generator=generator, dtype=torch.float64, device=device).cpu()
    trees, exists = torch.full(shape, -1), torch.zeros(p.batch, dtype=torch.bool)
    room = np.empty(p.num_items + 1), np.empty(p.num_arcs)
    _run(kernels.sample, p, 2 + n // 4, _arrays(w), *room, uniforms.numpy(), trees.numpy(), exists.numpy())
    return Found(trees.to(device), exists.to(device))
