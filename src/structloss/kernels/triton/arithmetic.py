"""Sums of exponentials with derivatives along: what all kernels for GPUs add up with.

With every number x goes dx, its derivative in one direction, where DUAL says so; else dx is x and nobody looks. What
weighs nothing adds nothing, whatever its derivative; a derivative of -inf says that something with weight is forbidden
there.
"""

import triton
import triton.language as tl


@triton.jit
def above(x):
    """x, or 0 where it is -inf: what may be subtracted of numbers none of which is above it."""
    return tl.where(x > -float("inf"), x, 0.0)


@triton.jit
def logsumexp(x, dx, DUAL: tl.constexpr):
    """log of the sum of exp(x) along the last axis of (n, m), and the mean of dx; -inf and 0 where all is -inf."""
    top = above(tl.max(x, 1))
    weight = tl.exp(x - top[:, None])
    total = tl.sum(weight, 1)
    value = tl.log(total) + top
    dvalue = value
    if DUAL:
        dvalue = tl.sum(tl.where(weight > 0, weight * dx, 0.0), 1) / tl.where(total > 0, total, 1.0)
    return value, dvalue


@triton.jit
def start(x):
    """The sum of nothing, of the shape and precision of x: its largest term, their sum, and that of derivatives."""
    return tl.full(x.shape, -float("inf"), x.dtype), tl.zeros_like(x), tl.zeros_like(x)


@triton.jit
def add(top, total, dtotal, x, dx, DUAL: tl.constexpr):
    """One term more of log of the sum of exp(x), for each place."""
    higher = tl.maximum(top, x, propagate_nan=tl.PropagateNan.ALL)
    scale = tl.exp(top - above(higher))
    weight = tl.exp(x - above(higher))
    if DUAL:
        dtotal = tl.where(scale > 0, scale * dtotal, 0.0) + tl.where(weight > 0, weight * dx, 0.0)
    return higher, total * scale + weight, dtotal


@triton.jit
def finish(top, total, dtotal, DUAL: tl.constexpr):
    """The value of a sum that was added up term by term, and its derivative."""
    value = tl.log(total) + above(top)
    dvalue = value
    if DUAL:
        dvalue = dtotal / tl.where(total > 0, total, 1.0)
    return value, dvalue


@triton.jit
def highest(top, x):
    """The larger one of a number and the largest in a tensor of one axis."""
    return tl.maximum(top, tl.max(x, 0))
