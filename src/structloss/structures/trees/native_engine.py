"""Trees by compiled kernels: CPU tensors in and out, values and first derivatives."""

from collections.abc import Sequence
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
from structloss.structures.trees.parts import Arcs


def _solve(p: Arcs) -> Solve:
    """log Z of scores (B, T, T + 1, R), with the probability of each arc."""

    def solve(arrays: Sequence[Array | None], wanted: Sequence[bool]) -> tuple[Array, Sequence[Array | None]]:
        (scores,), lengths = arrays, p.lengths.cpu().numpy()
        assert scores is not None
        batch, threads = len(scores), torch.get_num_threads()
        value = np.zeros(batch, np.promote_types(scores.dtype, np.float64))
        gradient = np.zeros(scores.shape if wanted[0] else (0, *scores.shape[1:]), value.dtype)
        steps = batch * scores.shape[1] ** 3
        status, rest = np.full(batch, OK), (scores, lengths, p.single_root)
        linear: tuple[Any, ...] = (eisner.log_partition, False)
        logs: tuple[Any, ...] = (eisner.log_partition, True)
        if not p.projective:
            linear, logs = (matrix_tree.log_partition,), (matrix_tree.log_partition_by_logs,)
        for i, (kernel, *how) in enumerate((linear, logs)):
            if i == 0 or (status == UNSAFE).any():
                run(kernel, threads, batch, steps, *rest, *how, status, value, gradient)
        return value, (gradient,)

    return solve


def log_partition(p: Arcs) -> Tensor:
    """log Z, (B,)."""
    return known(_solve(p), [p.scores])


def expectation(p: Arcs, f: Arcs) -> Tensor:
    """E[score under f] (B,), drawn under p."""
    return derivatives.expectation(_solve(p), [p.scores], [f.scores])


def best(p: Arcs) -> Found:
    """The arcs of the best trees (1, B, T), of equals the smallest, and whether there is any (1, B)."""
    batch, width, _, _ = p.scores.shape
    trees, exists = torch.full((1, batch, width), -1), torch.zeros(1, batch, dtype=torch.bool)
    scores, lengths = as_array(p.scores.cpu()), p.lengths.cpu().numpy()
    kernel = eisner.best if p.projective else arborescence.best
    threads, steps = torch.get_num_threads(), batch * width**3
    run(kernel, threads, batch, steps, scores, lengths, p.single_root, trees[0].numpy(), exists[0].numpy())
    return Found(trees.to(p.scores.device), exists.to(p.scores.device))


def _solve_spans(lengths: Tensor) -> Solve:
    """log Z of binary trees with scores (B, T, T, K), with the probability of each span."""

    def solve(arrays: Sequence[Array | None], wanted: Sequence[bool]) -> tuple[Array, Sequence[Array | None]]:
        (scores,), sizes = arrays, lengths.cpu().numpy()
        assert scores is not None
        batch, threads = len(scores), torch.get_num_threads()
        value = np.zeros(batch, np.promote_types(scores.dtype, np.float64))
        gradient = np.zeros(scores.shape if wanted[0] else (0, *scores.shape[1:]), value.dtype)
        status, steps = np.full(batch, OK), batch * scores.shape[1] ** 2 * (scores.shape[1] + scores.shape[3])
        for logs in (False, True):
            if not logs or (status == UNSAFE).any():
                run(cky.log_partition, threads, batch, steps, scores, sizes, logs, status, value, gradient)
        return value, (gradient,)

    return solve


def spans_log_partition(scores: Tensor, lengths: Tensor) -> Tensor:
    """log Z, (B,), of binary trees with scores (B, T, T, K)."""
    return known(_solve_spans(lengths), [scores])


def spans_expectation(scores: Tensor, other: Tensor, lengths: Tensor) -> Tensor:
    """E[score under other] (B,), drawn under scores."""
    return derivatives.expectation(_solve_spans(lengths), [scores], [other])


def best_spans(scores: Tensor, lengths: Tensor) -> Found:
    """The brackets of the best binary trees (1, B, 2T - 1), and whether there is any (1, B)."""
    batch, width = scores.shape[:2]
    trees, exists = torch.full((1, batch, max(0, 2 * width - 1)), -1), torch.zeros(1, batch, dtype=torch.bool)
    rest = as_array(scores.cpu()), lengths.cpu().numpy(), trees[0].numpy(), exists[0].numpy()
    run(cky.best, torch.get_num_threads(), batch, batch * width**3, *rest)
    return Found(trees.to(scores.device), exists.to(scores.device))
