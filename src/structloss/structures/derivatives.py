"""How the native engines are differentiated: once, by gradients that the kernels give along with the values.

A kernel that sums is a `Solve`: from the arrays of the potentials, real or complex, it makes a value for each example,
and of each potential that is wanted each example's own gradient. That is all a family of structures writes. `known` is
its value log Z as a tensor, `expectation` the same kernel run on complex numbers (see `kernels.arithmetic`).
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.arithmetic import STEP

Maybe = Tensor | None
Map = Callable[[Tensor], Tensor]
# (arrays of the potentials, None where absent; which gradients are wanted) -> the value (B,), and of each potential its
# gradient (B, ...), with an axis of examples before the others also where the examples share a potential; or None.
# Flat potentials (n,), of several examples in one row, have gradients (n,); `owner` (n,) says whose they are.
Arrays = Sequence[NDArray[Any] | None]
Solved = tuple[NDArray[Any], Arrays]
Solve = Callable[[Arrays, Sequence[bool]], Solved]
Owner = Maybe | Sequence[Maybe]  # one for all potentials, or one for each


def apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    """Call it, with a type that is known."""
    return cast(Tensor, cast(Any, function).apply(*args))


class NoSecondDerivative(torch.autograd.Function):
    """The first argument, whose derivative in the others is a clear error."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *potentials: Maybe) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError(
            'the native engine has first derivatives only; for a derivative of a derivative use sl.engine("torch")'
        )


class Linear(torch.autograd.Function):
    """A linear function of x, by itself and its transpose. No tensor is saved: it may be differentiated repeatedly."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Map, transpose: Map) -> Tensor:
        ctx.transpose = transpose
        return function(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return ctx.transpose(g), None, None


def guard(gradients: Sequence[Maybe], potentials: Sequence[Maybe]) -> tuple[Maybe, ...]:
    """In a backward pass that is itself recorded (create_graph=True), gradients that refuse another derivative."""
    if not torch.is_grad_enabled():
        return tuple(gradients)
    return tuple(None if x is None else apply(NoSecondDerivative, x, *potentials) for x in gradients)


def once_only(x: Tensor, potentials: Sequence[Maybe]) -> Tensor:
    """What the native engine computed of the potentials; a derivative of it is a clear error."""
    recorded = torch.is_grad_enabled() and any(p is not None and p.requires_grad for p in potentials)
    return apply(NoSecondDerivative, x, *potentials) if recorded else x


def known(solve: Solve, potentials: Sequence[Maybe], owner: Owner = None, arrays: Any = None) -> Tensor:
    """The value (B,), whose gradient is computed with it; `arrays`: what `solve` reads, where that is there already."""
    arrays = [as_array(x) for x in potentials] if arrays is None else arrays
    return apply(_KnownGradient, solve, arrays, _owners(owner, len(potentials)), *_followed(potentials))


def expectation(solve: Solve, p: Sequence[Maybe], f: Sequence[Maybe], owner: Owner = None) -> Tensor:
    """E[score under f] (B,), drawn under p; both have the same potentials, of the same shapes.

    0 where p has no output; -inf, with zero gradient, where something that p uses is -inf under f.
    """
    return apply(_Expectation, solve, _owners(owner, len(p)), *_followed(p), *_followed(f))


def _owners(owner: Owner, number: int) -> Sequence[Maybe]:
    return [owner] * number if owner is None or isinstance(owner, Tensor) else owner


def _followed(potentials: Sequence[Maybe]) -> Sequence[Maybe]:
    """The potentials; where nothing is recorded, such that ask for no gradient."""
    return potentials if torch.is_grad_enabled() else [None if x is None else x.detach() for x in potentials]


class _KnownGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, solve: Solve, arrays: Any, owners: Sequence[Maybe], *potentials: Maybe) -> Tensor:
        ctx.save_for_backward(*potentials)
        ctx.solve, ctx.owners, ctx.needs = solve, owners, ctx.needs_input_grad[3:]
        value, ctx.gradients = solve(arrays, ctx.needs)
        return as_precise(torch.from_numpy(value), potentials)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        potentials = ctx.saved_tensors
        if ctx.gradients is None:  # a second pass through a retained graph: the first one's went into its result
            _, ctx.gradients = ctx.solve([as_array(x) for x in potentials], ctx.needs)
        gradients, ctx.gradients = ctx.gradients, None
        weights = g.detach().numpy()
        found = [
            None if x is None or not needed else weighed(weights, own, x, owner)
            for x, own, needed, owner in zip(potentials, gradients, ctx.needs, ctx.owners, strict=True)
        ]
        return None, None, None, *guard(found, potentials)


class _Expectation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, solve: Solve, owners: Sequence[Maybe], *potentials: Maybe) -> Tensor:
        number = len(owners)
        p, f = potentials[:number], potentials[number:]
        needs = ctx.needs_input_grad[2:]
        size = max([1e-300, *(_largest(x) for x in f if x is not None)])
        duals = [None if x is None or v is None else _dual(x, v, STEP / size) for x, v in zip(p, f, strict=True)]
        forbids = [
            x is not None and v is not None and bool((v.isneginf() & ~x.isneginf()).any())
            for x, v in zip(p, f, strict=True)
        ]
        wanted = [a or b or c for a, b, c in zip(needs[:number], needs[number:], forbids, strict=True)]
        value, gradients = solve(duals, wanted)
        outside = np.zeros(len(value), bool)
        for own, v, forbidden, owner in zip(gradients, f, forbids, owners, strict=True):
            if forbidden and own is not None and v is not None:
                hit = (own.real > 0) & v.isneginf().numpy()
                whose = np.nonzero(hit)[0] if owner is None else owner.numpy()[hit]
                outside[whose] = True
        mean = np.where(np.isneginf(value.real), 0.0, value.imag * (size / STEP))
        ctx.save_for_backward(*potentials)
        ctx.gradients, ctx.inside, ctx.size, ctx.needs = gradients, ~outside, size, needs
        ctx.owners = (*owners, *owners)
        return as_precise(torch.from_numpy(np.where(outside, -np.inf, mean)), potentials)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        potentials = ctx.saved_tensors
        found: list[Maybe] = []
        weights = np.where(ctx.inside, g.detach().numpy(), 0)
        for i, (x, needed, owner) in enumerate(zip(potentials, ctx.needs, ctx.owners, strict=True)):
            own = ctx.gradients[i % len(ctx.gradients)]
            if x is None or not needed or own is None:
                found.append(None)
                continue
            part = own.imag * (ctx.size / STEP) if i < len(ctx.gradients) else own.real.copy()
            found.append(weighed(weights, part, x, owner))
        return None, None, *guard(found, potentials)


def weighed(g: NDArray[Any], own: NDArray[Any], x: Tensor, owner: Maybe) -> Tensor:
    """The gradient of a potential x, from each example's own (B, ...), which is overwritten, and the incoming g."""
    if owner is not None:
        own *= g[owner.numpy()]
    elif own.ndim > x.dim():  # the examples share it
        own = g.astype(own.dtype, copy=False).dot(own.reshape(len(g), x.numel())).reshape(x.shape)
    else:  # in place, to keep the peak at one array of gradients
        own *= g.reshape(-1, *(1,) * (own.ndim - 1))
    return torch.from_numpy(own).to(x.dtype)


def as_array(x: Maybe) -> NDArray[Any] | None:
    """The tensor's memory as an array, copied only where it has gaps."""
    return None if x is None else x.detach().contiguous().numpy()


def as_precise(value: Tensor, potentials: Sequence[Maybe]) -> Tensor:
    """Sums are made in float64 and returned in the potentials' own precision."""
    return value.to(next(x.dtype for x in potentials if x is not None))


def _largest(x: Tensor) -> float:
    """The largest size of a number; what is none forbids, stands beyond a length, or is for the kernel to find."""
    if not x.numel():
        return 0.0
    low, high = torch.aminmax(x.detach())
    if not (low.isfinite() and high.isfinite()):
        low, high = torch.aminmax(torch.where(x.isfinite(), x.detach(), 0))
    return max(-float(low), float(high))


def _dual(x: Tensor, v: Tensor, scale: float) -> NDArray[np.complex128]:
    """x + i * scale * v; the direction is 0 where v is -inf."""
    direction, dual = v.detach().numpy(), np.empty(x.shape, np.complex128)
    dual.real = x.detach().numpy()
    np.multiply(direction, scale, out=dual.imag, dtype=np.float64)
    dual.imag[np.isneginf(direction)] = 0.0
    return dual
