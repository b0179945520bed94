"""What the native engine does about derivatives: first ones, and a clear error for the others."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor


def apply(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    """Call it, with a type that is known."""
    return cast(Tensor, cast(Any, function).apply(*args))


class NoSecondDerivative(torch.autograd.Function):
    """The first argument, whose derivative in the others is a clear error."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *potentials: Tensor | None) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError(
            'the native engine has first derivatives only; for a derivative of a derivative use sl.engine("torch")'
        )


def guard(gradients: Sequence[Tensor | None], potentials: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """In a backward pass that is itself recorded (create_graph=True), gradients that refuse another derivative."""
    if not torch.is_grad_enabled():
        return tuple(gradients)
    return tuple(None if x is None else apply(NoSecondDerivative, x, *potentials) for x in gradients)
