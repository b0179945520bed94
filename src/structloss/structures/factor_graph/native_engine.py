"""Factor graphs by compiled kernels, on the CPU: sums with first derivatives, and for any device maxima and draws."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels import elimination as kernels
from structloss.kernels.elimination import Plan
from structloss.kernels.workers import run
from structloss.structures import derivatives
from structloss.structures.factor_graph.parts import Ints, Parts

Plans = list[tuple[Ints, Plan]]
Solved = tuple[NDArray[Any], list[NDArray[Any] | None]]


def _run(kernel: Any, plans: Plans, p: Parts, passes: int, *args: Any) -> None:
    for group, plan in plans:
        steps = passes * len(group) * int(plan.messages[-1] * plan.sizes.max(initial=1))
        run(kernel, torch.get_num_threads(), len(group), steps, p.graph, plan, group, *args)


def _solver(p: Parts, plans: Plans) -> derivatives.Solve:
    """log Z (B,) and its gradient, flat as the scores are."""

    def solve(potentials: Sequence[NDArray[Any] | None], wanted: Sequence[bool]) -> Solved:
        scores = np.asarray(potentials[0])
        scores = scores.astype(np.result_type(scores, np.float64), copy=False)
        value, share = np.empty(p.batch, scores.dtype), np.zeros(len(scores) if wanted[0] else 0, scores.dtype)
        _run(kernels.log_partition, plans, p, 3 if wanted[0] else 1, scores, value, share)
        return value, [share if wanted[0] else None]

    return solve


def log_partition(p: Parts, plans: Plans) -> Tensor:
    """log Z, (B,)."""
    return derivatives.known(_solver(p, plans), [p.scores], torch.from_numpy(p.topology.owner))


def expectation(p: Parts, f: Parts, plans: Plans) -> Tensor:
    """E[score under f], of what is drawn under p. (B,)"""
    return derivatives.expectation(_solver(p, plans), [p.scores], [f.scores], torch.from_numpy(p.topology.owner))


def argmax(p: Parts, plans: Plans) -> tuple[Ints, NDArray[np.bool_]]:
    """The labels (V,) of the best assignments, -1 where there is none; whether there is one (B,)."""
    labels, exists = np.empty(len(p.topology.sizes), np.int64), np.empty(p.batch, np.int64)
    _run(kernels.argmax, plans, p, 1, p.array, p.topology.visible, labels, exists)
    return labels, exists > 0


def sample(p: Parts, plans: Plans, uniforms: Tensor) -> tuple[Ints, NDArray[np.bool_]]:
    """The labels (n, V) of assignments drawn at uniforms (n, V); whether there is any (B,)."""
    labels, exists = np.full(uniforms.shape, -1), np.empty(p.batch, np.int64)
    _run(kernels.sample, plans, p, 1, p.array, uniforms.numpy(), labels, exists)
    return labels, exists > 0
