"""What the torch engines are made of: sums and maxima in logarithms, and the precision they are made in."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def wide(x: Tensor) -> Tensor:
    """x in float64, where the device has it."""
    return x if x.device.type == "mps" else x.double()


def moved(x: NDArray[Any], device: torch.device) -> Tensor:
    """An array on a device, float64 in the precision that the device has."""
    return torch.from_numpy(x).to(device, torch.float32 if device.type == "mps" and x.dtype == np.float64 else None)


def lowest(x: Tensor) -> float:
    """What stands for -inf in sums of numbers of this precision, a million of which are still a number."""
    return -torch.finfo(x.dtype).max * 2.0**-20


def lifted(x: Tensor) -> Tensor:
    """x, and -inf, with zero gradient, where it is a sum of what is too low to be anything else."""
    return torch.where(x > lowest(x) / 2, x, -math.inf)


def log_total(x: Tensor, dim: int) -> Tensor:
    """`logsumexp` of numbers that are all finite, in few operations.

    torch's own has the derivative exp(x - value), where the value rounds away what the largest number leaves.
    """
    top = x.detach().amax(dim, keepdim=True)
    return (x - top).exp().sum(dim).log() + top.squeeze(dim)


def logsumexp(x: Tensor, dim: int) -> Tensor:
    """log of the sum of exp; -inf, with zero gradient, where everything is -inf (torch's own gives NaN there)."""
    top = x.detach().amax(dim, keepdim=True)
    top = torch.where(torch.isfinite(top), top, 0)
    total = (x - top).exp().sum(dim)
    positive = total > 0
    return torch.where(positive, torch.where(positive, total, 1).log() + top.squeeze(dim), -math.inf)


def times(x: Tensor, factor: float) -> Tensor:
    """factor * x; what is no number stays as it is: -inf forbids, +inf and NaN are the errors that they were."""
    return torch.where(x.detach().isfinite(), factor * x, x.detach())


def amax(x: Tensor, dim: int) -> Tensor:
    """The largest along an axis."""
    return x.amax(dim)


def first_best(values: Tensor) -> Tensor:
    """The smallest index along the last axis that attains the maximum (torch.argmax promises no order)."""
    indices = torch.arange(values.shape[-1], device=values.device)
    return torch.where(values == values.amax(-1, keepdim=True), indices, values.shape[-1]).amin(-1)


def expectation(
    log_partition: Callable[[list[Tensor]], Tensor], terms: Sequence[tuple[Tensor, Tensor, Tensor]], zeros: Tensor
) -> Tensor:
    """E[score under f] (B,), of what is drawn under p, from p's scores, f's, and the examples whose scores they are.

    It is the derivative of log_partition(p + s * f) in s, at 0 (zeros (B,)); that in the direction of what is -inf
    under f counts how often an output uses it, which makes -inf, with zero gradient.
    """
    recorded = torch.is_grad_enabled() and any(x.requires_grad or v.requires_grad for x, v, _ in terms)
    with torch.enable_grad():
        steps = torch.stack([zeros, zeros]).requires_grad_()
        step, count = steps.unbind()
        moved = [x + step[b] * torch.where(v.isneginf(), 0, v) + count[b] * v.isneginf() for x, v, b in terms]
        value = log_partition(moved).sum() + steps[:0].sum()
        mean, outside = torch.autograd.grad(value, steps, create_graph=recorded)[0]
    return torch.where(outside > 0, -math.inf, mean)


def expectation_of(
    log_partition: Callable[[list[Tensor]], Tensor], p: Sequence[Tensor], f: Sequence[Tensor], owner: Tensor | None,
    batch: int,
) -> Tensor:  # fmt: skip
    """The same in the precision of sums, of potentials (B, ...), or flat ones of these examples."""
    examples = torch.arange(batch, device=p[0].device)
    whose = [examples.reshape(-1, *(1,) * (x.dim() - 1)) if owner is None else owner for x in p]
    terms = [(wide(x), wide(v), b) for x, v, b in zip(p, f, whose, strict=True)]
    return expectation(log_partition, terms, wide(p[0].new_zeros(batch))).to(p[0].dtype)


def drawn(values: Tensor, uniforms: Tensor) -> Tensor:
    """An index of the last axis of values (..., n), drawn by exp(values) by inverting it at uniforms (...)."""
    probability = values.softmax(-1).double()
    before = probability.cumsum(-1) - probability
    taken = (probability > 0) & (before <= uniforms[..., None])
    return torch.where(taken, torch.arange(values.shape[-1], device=taken.device), 0).amax(-1)
