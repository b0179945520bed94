"""Factor graphs by compiled kernels: values and first derivatives on the CPU."""

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
from structloss.structures.derivatives import Arrays, Solved
from structloss.structures.factor_graph.parts import Parts
from structloss.structures.rows import Ints

Plans = list[tuple[Ints, Plan]]


def _run(kernel: Any, plans: Plans, p: Parts, passes: int, *args: Any) -> None:
    for group, plan in plans:
        steps = passes * len(group) * int(plan.messages[-1] * plan.sizes.max(initial=1))
        run(kernel, torch.get_num_threads(), len(group), steps, p.graph, plan, group, *args)


def _solver(p: Parts, plans: Plans) -> derivatives.Solve:
    """log Z (B,) and its gradient, flat as the scores are."""

    def solve(potentials: Arrays, wanted: Sequence[bool]) -> Solved:
        scores = np.asarray(potentials[0])
        scores = scores.astype(np.result_type(scores, np.float64), copy=False)
        value, share = np.empty(p.batch, scores.dtype), np.zeros(len(scores) if wanted[0] else 0, scores.dtype)
        _run(kernels.log_partition, plans, p, 3 if wanted[0] else 1, False, scores, value, share)
        return value, [share if wanted[0] else None]

    return solve


def log_partition(p: Parts, plans: Plans) -> Tensor:
    """log Z, (B,)."""
    return derivatives.known(_solver(p, plans), [p.scores], torch.from_numpy(p.topology.owner))


def expectation(p: Parts, f: Parts, plans: Plans) -> Tensor:
    """E[score under f], of what is drawn under p. (B,)"""
    return derivatives.expectation(_solver(p, plans), [p.scores], [f.scores], torch.from_numpy(p.topology.owner))


def sample(p: Parts, plans: Plans, uniforms: Tensor) -> tuple[Ints, NDArray[np.bool_]]:
    """The labels (n, V) of assignments drawn at uniforms (n, V), -1 where there is none; whether there is any (B,)."""
    labels, ways = np.full(uniforms.shape, -1), np.empty(p.batch)
    _run(kernels.draw, plans, p, 1, False, p.array, uniforms.numpy(), labels, ways)
    return labels, ways > 0


def argmax(p: Parts, plans: Plans) -> tuple[Ints, NDArray[np.bool_]]:
    """The labels (V,) of the best assignments, -1 where there is none; whether there is one (B,).

    Of several it is the lexicographically first in the variables of outputs. The labels before the first that is not
    the smallest which some best assignment has are right: others are struck there, and the rest is found again.
    """
    t, scores, number = p.topology, p.array.copy(), np.arange(p.topology.width)
    labels, ways = np.full((1, len(t.sizes)), -1), np.empty(p.batch)
    while True:
        _run(kernels.draw, plans, p, 1, True, scores, np.zeros(labels.shape), labels, ways)
        plans = [(group[ways[group] > 1], plan) for group, plan in plans if (ways[group] > 1).any()]
        if not plans:
            return labels[0], ways > 0
        share = np.zeros(len(scores))
        _run(kernels.log_partition, plans, p, 2, True, scores, np.empty(p.batch), share)
        best = np.append(share, 0.0)[t.label_at] > 0  # (B, N, K): what some best assignment has
        smallest, several = best.argmax(2), best.sum(2) > 1
        later = t.outputs(labels)[0].numpy() > smallest
        plans = [(group[found], plan) for group, plan in plans if (found := later[group].any(1)).any()]
        kept = np.maximum(later.argmax(1), several.argmax(1) + 1)  # at least the first of which there are several
        other = best & (np.arange(t.num_labels) != smallest[..., None])
        scores[t.label_at[other & (number < kept[:, None])[..., None]]] = -np.inf
