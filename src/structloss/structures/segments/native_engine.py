"""Segments by compiled kernels: CPU tensors in and out, values and first derivatives."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels import segmentation_max, segmentation_mean, segmentation_sum
from structloss.kernels.segmentation import Gradients
from structloss.kernels.segmentation_max import Levels
from structloss.kernels.types import EMPTY
from structloss.kernels.workers import run
from structloss.structures.base import Found
from structloss.structures.derivatives import NoSecondDerivative, apply, guard
from structloss.structures.segments.parts import Maybe, Parts
from structloss.structures.segments.search import ranked

Floats = NDArray[np.float64]


def _run(kernel: Callable[..., None], p: Parts, passes: int, *args: Any) -> None:
    """Run a kernel on the examples of p, in as many threads as `passes` over its segments are worth."""
    batch, longest, states = p.durations.shape
    before = longest if p.rates is not None else 1 if p.transitions is None else 1 + states // longest
    steps = passes * batch * p.opening.shape[1] * states * longest * before
    run(kernel, torch.get_num_threads(), batch, steps, p.arrays, *args)


def _room(p: Parts, needs: Sequence[bool]) -> Gradients:
    """Zeros for each gradient that is needed, and size 0 for the others."""
    batch, shapes = p.opening.shape[0], []
    for x, needed, dims in zip(p.potentials, needs, (3, 3, 3, 4, 3, 2), strict=True):
        own = () if x is None else x.shape if x is not p.transitions else (batch, *x.shape)
        shapes.append(own if needed and x is not None else (batch,) + (0,) * (dims - 1))
    return Gradients(*(np.zeros(shape) for shape in shapes))


def _weighed(g: Tensor, found: Gradients, p: Parts, needs: Sequence[bool]) -> list[Maybe]:
    """The gradients of the potentials, from each example's own and the incoming g (B,)."""
    result: list[Maybe] = []
    for x, array, needed in zip(p.potentials, found, needs, strict=True):
        if x is None or not needed:
            result.append(None)
            continue
        own, weights = torch.from_numpy(array), g.double()
        if x is p.transitions:
            result.append(torch.tensordot(weights, own, 1).to(x.dtype))
        else:
            result.append((own * weights.reshape(-1, *(1,) * (own.dim() - 1))).to(x.dtype))
    return result


def _tensor(value: Floats, p: Parts) -> Tensor:
    """Sums are made in float64 and returned in the potentials' own precision."""
    return torch.from_numpy(value).to(p.opening.dtype)


def _followed(p: Parts) -> tuple[Maybe, ...]:
    """The potentials; where nothing is recorded, such that need no gradient."""
    return p.potentials if torch.is_grad_enabled() else p.map(Tensor.detach).potentials


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # the potentials, and the parts that they are
        p: Parts = arguments[6]
        ctx.needs, ctx.parts = ctx.needs_input_grad[:6], p
        ctx.found, value = _room(p, ctx.needs), np.empty(p.opening.shape[0])
        _run(segmentation_sum.log_partition, p, 5, any(ctx.needs), value, ctx.found)
        ctx.save_for_backward(*arguments[:6])
        return _tensor(value, p)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.no_grad():
            result = _weighed(g, ctx.found, ctx.parts, ctx.needs)
        return *guard(result, ctx.saved_tensors), None


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    return apply(_LogPartition, *_followed(p), p)


def marginals(p: Parts) -> Tensor:
    """The probability that a segment of each state starts at each frame, (B, T, K)."""
    found = _room(p, (True, False, False, False, False, False))
    _run(segmentation_sum.log_partition, p, 5, True, np.empty(p.opening.shape[0]), found)
    result = torch.from_numpy(found.opening).to(p.opening.dtype)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in p.potentials):
        return apply(NoSecondDerivative, result, *p.potentials)
    return result


class _Expectation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # the potentials of p, those of f, both parts
        p, f = arguments[12:]
        ctx.needs, ctx.parts = (ctx.needs_input_grad[:6], ctx.needs_input_grad[6:12]), (p, f)
        ctx.found, value = (_room(p, ctx.needs[0]), _room(f, ctx.needs[1])), np.zeros(p.opening.shape[0])
        _run(segmentation_mean.expectation, p, 12, f.arrays, any(ctx.needs_input_grad), value, *ctx.found)
        ctx.save_for_backward(*arguments[:12])
        return _tensor(value, p)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.no_grad():
            result = [x for i in (0, 1) for x in _weighed(g, ctx.found[i], ctx.parts[i], ctx.needs[i])]
        return *guard(result, ctx.saved_tensors), None, None


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score under f], of what is drawn under p; both have rates, or neither. (B,)"""
    return apply(_Expectation, *_followed(p), *_followed(f), p, f)


def argmax(p: Parts, longest_first: bool) -> tuple[Tensor, Tensor]:
    """The state that starts at each frame of the best way (B, T), -1 where none does; whether there is any (B,)."""
    labels, status = torch.full(p.opening.shape[:2], -1), np.zeros(p.opening.shape[0], np.int64)
    _run(segmentation_max.argmax, p, 1, longest_first, labels.numpy(), status)
    return labels, torch.from_numpy(status != EMPTY)


def completions(p: Parts) -> Floats:
    """The best score of a way to finish from each node, (B, T + 1, P, K + 1)."""
    best = np.empty((p.opening.shape[0], *p.num_nodes))
    _run(segmentation_max.completions, p, 1, best)
    return best


def sample(p: Parts, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The states that start at each frame of ways drawn at uniforms (n, B, T, 2); whether there is any (B,)."""
    labels, status = torch.full(uniforms.shape[:3], -1), np.zeros(p.opening.shape[0], np.int64)
    _run(segmentation_sum.sample, p, 4, uniforms.numpy(), labels.numpy(), status)
    return labels, torch.from_numpy(status != EMPTY)


def strata(p: Parts, levels: Levels, longest_first: bool) -> tuple[Tensor, Tensor]:
    """The best score (B, V) at each value of a loss, -inf where it has none, and the states that start (B, V, T)."""
    batch, most = p.opening.shape[0], levels.values.shape[2]
    scores, labels = np.full((batch, most), -np.inf), torch.full((batch, most, p.opening.shape[1]), -1)
    _run(segmentation_max.strata, p, most, levels, longest_first, scores, labels.numpy())
    return torch.from_numpy(scores), labels


def best(p: Parts, k: int) -> Found:
    """The states that start at each frame of the k best ways (k, B, T), and whether there are so many (k, B)."""
    if k == 1:
        marks, exists = argmax(p, p.longest_first)
        return Found(marks[None], exists[None])
    return ranked(p, completions(p), k)


def draw(p: Parts, n: int, generator: torch.Generator | None) -> Found:
    """The states that start at each frame of n ways (n, B, T), drawn by exp(score) / Z; whether there is any (B,)."""
    shape = (n, *p.opening.shape[:2], 2)
    return Found(*sample(p, torch.rand(shape, generator=generator, device=p.opening.device, dtype=torch.float64)))
