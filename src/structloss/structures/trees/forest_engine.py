"""Packed forests: sums by compiled kernels or in tensor operations, trees by kernels on the CPU."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structloss.kernels import forest
from structloss.kernels.types import Array
from structloss.kernels.workers import run
from structloss.structures import derivatives
from structloss.structures.base import Found, Strata
from structloss.structures.derivatives import Solve, as_array, known
from structloss.structures.graph.torch_engine import logsumexp
from structloss.structures.rows import Floats, Ints
from structloss.structures.strata import best_at_each
from structloss.structures.tensors import wide
from structloss.structures.trees.packed import Forests, with_values


def _run(kernel: Any, f: Forests, passes: int, *args: Any) -> None:
    run(kernel, torch.get_num_threads(), len(f.sizes), passes * 5 * len(f.packed.number), f.packed, *args)


def _solve(f: Forests) -> Solve:
    """log Z of the scores of arcs (A,), with how often each arc is used in the mean."""

    def solve(arrays: Sequence[Array | None], wanted: Sequence[bool]) -> tuple[Array, Sequence[Array | None]]:
        (scores,) = arrays
        assert scores is not None
        kind = np.promote_types(scores.dtype, np.float64)
        value, gradient = np.empty(len(f.sizes), kind), np.zeros(len(scores) if wanted[0] else 0, kind)
        room = np.empty(f.num_items + 1, kind), np.empty(len(scores), kind)
        _run(forest.log_partition, f, 3, scores, *room, value, gradient)
        return value, (gradient,)

    return solve


def log_partition(f: Forests, scores: Tensor, native: bool) -> Tensor:
    """log Z, (B,), of the scores of arcs (A,)."""
    if native:
        return known(_solve(f), [scores], f.owner)
    p, device = f.packed, scores.device
    arcs = wide(scores)[torch.from_numpy(p.number).to(device)]
    tails = torch.from_numpy(np.where(p.tails == f.num_items, 0, p.tails + 1)).to(device)
    beta = arcs.new_zeros(1)  # of no item, and of those that are lower
    level = p.cell_begin[:: max(1, len(f.sizes))]
    for first, last in pairwise(level):
        own = slice(p.arc_begin[first], p.arc_begin[last])
        head = np.repeat(np.arange(last - first), np.diff(p.arc_begin[first : last + 1]))
        values = arcs[own] + beta[tails[own]].sum(1)
        nothing = arcs.new_full((int(last - first),), -math.inf)
        beta = torch.cat([beta, logsumexp(values, torch.from_numpy(head).to(device), nothing)])
    return beta[torch.from_numpy(p.root + 1).to(device)].to(scores.dtype)


def expectation(f: Forests, scores: Tensor, other: Tensor) -> Tensor:
    """E[score under other] (B,), drawn under scores; native."""
    return derivatives.expectation(_solve(f), [scores], [other], f.owner)


def best(f: Forests, scores: Tensor, roots: Ints, k: int, longest: int) -> Found:
    """The arcs of the k best trees from roots (V, B), as (V, k, B, L), and whether there are so many, (V, k, B)."""
    none = f.num_items
    score, via, rank = np.full((none + 1, k), -np.inf), np.full((none + 1, k), -1), np.zeros((none + 1, k, 2), np.int64)
    score[none, 0] = 0.0
    trees = torch.full((*roots.shape[:1], k, roots.shape[1], longest), -1)
    exists = torch.zeros(trees.shape[:3], dtype=torch.bool)
    ways = forest.Ways(score, via, rank)
    _run(forest.best, f, k, as_array(scores.cpu()), roots, ways, trees.numpy(), exists.numpy())
    return Found(trees.to(scores.device), exists.to(scores.device))


def draw(f: Forests, scores: Tensor, n: int, generator: torch.Generator | None) -> Found:
    """The arcs of n trees (n, B, L), drawn with probability exp(score) / Z, and whether there is any (B,)."""
    shape = (n, len(f.sizes), f.longest)
    uniforms = torch.rand(shape, generator=generator, dtype=torch.float64, device=scores.device).cpu()
    trees, exists = torch.full(shape, -1), torch.zeros(shape[1], dtype=torch.bool)
    room = np.empty(f.num_items + 1), np.empty(len(scores))
    rest = uniforms.numpy(), trees.numpy(), exists.numpy()
    _run(forest.sample, f, 2 + n // 4, as_array(scores.detach().double().cpu()), *room, *rest)
    return Found(trees.to(scores.device), exists.to(scores.device))


def strata(f: Forests, scores: Tensor, costs: Floats) -> Strata:
    """The best trees (V, B, L) at each value of the sum of the costs (A,) of a tree's arcs.

    Items are told apart by the values that the costs of their trees can have: with V of them V * V times the cost of
    `best`, and that in Python once.
    """
    made, origin, values, roots = with_values(f, costs)
    of_arcs = torch.from_numpy(origin).to(scores.device)
    trees, exists = best(made, scores[of_arcs].detach(), roots, 1, f.longest)
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
