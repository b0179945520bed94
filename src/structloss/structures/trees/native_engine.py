"""Trees by compiled kernels: CPU tensors in and out, values and first derivatives. Best trees on the CPU anywhere."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structloss.kernels import arborescence, cky, eisner, matrix_tree
from structloss.kernels.types import OK, UNSAFE, Array
from structloss.kernels.workers import run
from structloss.structures import derivatives
from structloss.structures.base import Found
from structloss.structures.derivatives import Solve, as_array, known
from structloss.structures.trees.parts import Arcs, Spans
from structloss.structures.trees.search import drawn_trees, ranked

Kernel = tuple[Callable[..., None], tuple[bool, ...]]  # and what it wants to know


def _sums(p: Arcs | Spans) -> tuple[Kernel, Kernel]:
    """What sums in linear arithmetic, and in logarithms where that might lose what counts."""
    if isinstance(p, Spans):
        return (cky.log_partition, (False,)), (cky.log_partition, (True,))
    root = p.single_root
    if p.projective:
        return (eisner.log_partition, (root, False)), (eisner.log_partition, (root, True))
    return (matrix_tree.log_partition, (root,)), (matrix_tree.log_partition_by_logs, (root,))


def _run(kernel: Callable[..., None], p: Arcs | Spans, *args: Any) -> None:
    batch, width, _, labels = p.scores.shape
    run(kernel, torch.get_num_threads(), batch, batch * width**2 * (width + labels), *args)


def _solve(p: Arcs | Spans) -> Solve:
    """log Z of the scores, with the probability of each arc, or span and label."""

    def solve(arrays: Sequence[Array | None], wanted: Sequence[bool]) -> tuple[Array, Sequence[Array | None]]:
        (scores,), lengths = arrays, p.lengths.cpu().numpy()
        assert scores is not None
        value, status = np.zeros(len(scores), np.promote_types(scores.dtype, np.float64)), np.full(len(scores), OK)
        gradient = np.zeros(scores.shape if wanted[0] else (0, *scores.shape[1:]), value.dtype)
        for i, (kernel, how) in enumerate(_sums(p)):
            if i == 0 or (status == UNSAFE).any():
                _run(kernel, p, scores, lengths, *how, status, value, gradient)
        return value, (gradient,)

    return solve


def log_partition(p: Arcs | Spans) -> Tensor:
    """log Z, (B,)."""
    return known(_solve(p), [p.scores])


def expectation(p: Arcs | Spans, f: Arcs | Spans) -> Tensor:
    """E[score under f] (B,), drawn under p."""
    return derivatives.expectation(_solve(p), [p.scores], [f.scores])


def best(p: Arcs | Spans, k: int) -> Found:
    """The arcs of the k best trees (k, B, T), of equals the smallest first, and whether there are so many (k, B).

    Or the brackets (1, B, 2T - 1) of the best one.
    """
    if isinstance(p, Arcs) and k > 1:
        return ranked(p, lambda part: best(part, 1), k)
    batch, width, _, _ = p.scores.shape
    spans = isinstance(p, Spans)
    trees = torch.full((1, batch, max(0, 2 * width - 1) if spans else width), -1)
    exists, rest = torch.zeros(1, batch, dtype=torch.bool), () if isinstance(p, Spans) else (p.single_root,)
    kernel = cky.best if isinstance(p, Spans) else eisner.best if p.projective else arborescence.best
    scores, lengths = as_array(p.scores.cpu()), p.lengths.cpu().numpy()
    _run(kernel, p, scores, lengths, *rest, trees[0].numpy(), exists[0].numpy())
    return Found(trees.to(p.scores.device), exists.to(p.scores.device))


def draw(p: Arcs, n: int, generator: torch.Generator | None) -> Found:
    """The arcs of n trees (n, B, T), drawn by exp(score) / Z, and whether there is any (B,)."""
    return drawn_trees(p, log_partition, n, generator)
