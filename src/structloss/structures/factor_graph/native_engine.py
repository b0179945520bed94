"""Factor graphs by compiled kernels: exact values and first derivatives on the CPU."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels import elimination as kernels
from structloss.kernels.elimination import Plan
from structloss.kernels.workers import run
from structloss.structures.derivatives import apply, guard
from structloss.structures.factor_graph.parts import Ints, Parts

Plans = list[tuple[Ints, Plan]]


def _run(kernel: Any, plans: Plans, p: Parts, passes: int, *args: Any) -> None:
    for group, plan in plans:
        steps = passes * len(group) * int(plan.messages[-1] * plan.sizes.max(initial=1))
        run(kernel, torch.get_num_threads(), len(group), steps, p.graph, plan, group, *p.arrays, *args)


def _shares(plans: Plans, p: Parts, wanted: bool) -> tuple[NDArray[np.float64], ...]:
    """log Z (B,) and its gradients, flat as the scores are; empty unless wanted."""
    value = np.empty(p.batch)
    shares = [np.zeros(x.shape if wanted else (0,)) for x in (p.unary, p.tables)]
    _run(kernels.log_partition, plans, p, 3 if wanted else 1, value, *shares)
    return value, *shares


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, unary: Tensor, tables: Tensor, p: Parts, plans: Plans) -> Tensor:
        value, *ctx.found = _shares(plans, p, any(ctx.needs_input_grad))
        ctx.parts = p
        ctx.save_for_backward(unary, tables)
        return torch.from_numpy(value).to(unary.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.no_grad():
            result = weighed(g, ctx.parts, ctx.found)
        return *guard(result, ctx.saved_tensors), None, None


def weighed(g: Tensor, p: Parts, found: Any) -> list[Tensor]:
    """Each example's own gradients times the incoming ones (B,)."""
    return [
        (torch.from_numpy(x) * g.double()[owner]).to(g.dtype)
        for x, owner in zip(found, (p.topology.unary_owner, p.topology.table_owner), strict=True)
    ]


def log_partition(p: Parts, plans: Plans) -> Tensor:
    """log Z, (B,)."""
    return apply(_LogPartition, p.unary, p.tables, p, plans)


class _Expectation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # scores of p, scores of f, both parts, plans
        p, f, plans = arguments[4:]
        wanted, value = any(ctx.needs_input_grad), np.empty(p.batch)
        found = [np.zeros(x.shape if wanted else (0,)) for _ in range(2) for x in (p.unary, p.tables)]
        _run(kernels.expectation, plans, p, 6, *f.arrays, value, *found)
        ctx.parts, ctx.found = p, found
        ctx.save_for_backward(*arguments[:4])
        return torch.from_numpy(value).to(p.unary.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.no_grad():
            result = weighed(g, ctx.parts, ctx.found[2:]) + weighed(g, ctx.parts, ctx.found[:2])
        return *guard(result, ctx.saved_tensors), None, None, None


def expectation(p: Parts, f: Parts, plans: Plans) -> Tensor:
    """E[score under f], of what is drawn under p. (B,)"""
    return apply(_Expectation, p.unary, p.tables, f.unary, f.tables, p, f, plans)


def argmax(p: Parts, plans: Plans) -> tuple[Ints, NDArray[np.bool_]]:
    """The labels (V,) of the best assignments, -1 where there is none; whether there is one (B,)."""
    labels, exists = np.empty(len(p.topology.sizes), np.int64), np.empty(p.batch, np.int64)
    for group, plan in plans:
        _run(kernels.argmax, [(group, plan)], p, 1, int(p.topology.visible[group[0]]), labels, exists)
    return labels, exists > 0


def sample(p: Parts, plans: Plans, uniforms: NDArray[np.float64]) -> tuple[Ints, NDArray[np.bool_]]:
    """The labels (n, V) of assignments drawn at uniforms (n, V); whether there is any (B,)."""
    labels, exists = np.full(uniforms.shape, -1), np.empty(p.batch, np.int64)
    _run(kernels.sample, plans, p, 1, uniforms, labels, exists)
    return labels, exists > 0
