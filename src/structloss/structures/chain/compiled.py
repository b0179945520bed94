"""The native engine under torch.compile: each value of a plain chain is one opaque node, its gradient another."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from structloss.structures.chain import native_engine
from structloss.structures.chain.parts import Maybe, Parts

_CHAIN = "Tensor? {0}u, Tensor? {0}t, Tensor? {0}s, Tensor? {0}e, Tensor {0}lengths, Tensor? {0}pinned, int {0}order"
_CHAINS = {1: _CHAIN.format("p"), 2: f"{_CHAIN.format('p')}, {_CHAIN.format('f')}"}


def _parts(arguments: Sequence[Any]) -> list[Parts]:
    return [Parts(*arguments[i : i + 7]) for i in range(0, len(arguments), 7)]


def _operation(name: str, chains: int, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A value (B,) of one or two chains as a node, differentiable in their potentials."""
    schema = _CHAINS[chains]

    def value(*arguments: Any) -> Tensor:
        return function(*_parts(arguments))

    def gradient(g: Tensor, *arguments: Any) -> list[Tensor]:
        leaves = [x.detach().requires_grad_() if _differentiable(i, x) else x for i, x in enumerate(arguments)]
        with torch.enable_grad():
            found = function(*_parts(leaves))
        inputs = [x for i, x in enumerate(leaves) if _differentiable(i, x)]
        return list(torch.autograd.grad(found, inputs, g))

    def fake_gradient(g: Tensor, *arguments: Any) -> list[Tensor]:
        return [torch.empty_like(x) for i, x in enumerate(arguments) if _differentiable(i, x)]

    node: Any = torch.library.custom_op(f"structloss::{name}", value, mutates_args=(), schema=f"({schema}) -> Tensor")
    back: Any = torch.library.custom_op(
        f"structloss::{name}_gradient", gradient, mutates_args=(), schema=f"(Tensor g, {schema}) -> Tensor[]"
    )

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*(x for x in inputs if isinstance(x, Tensor)))
        ctx.inputs = [None if isinstance(x, Tensor) else (x,) for x in inputs]

    def backward(ctx: Any, g: Tensor) -> Any:
        saved = iter(ctx.saved_tensors)
        arguments = [next(saved) if x is None else x[0] for x in ctx.inputs]
        found = iter(back(g, *arguments))
        return tuple(next(found) if _differentiable(i, x) else None for i, x in enumerate(arguments))

    node.register_fake(lambda *arguments: _example(arguments).new_empty(arguments[4].shape[0]))
    back.register_fake(fake_gradient)
    node.register_autograd(backward, setup_context=setup)
    return cast(Callable[..., Tensor], node)


def _differentiable(i: int, x: Maybe) -> bool:
    """Whether argument i is a potential: the first four of each chain's seven."""
    return i % 7 < 4 and x is not None


def _example(arguments: Sequence[Any]) -> Tensor:
    return cast(Tensor, arguments[1] if arguments[0] is None else arguments[0])


def _argmax(*arguments: Any) -> tuple[Tensor, Tensor]:
    (p,) = _parts(arguments)
    choices, exists = native_engine.best(p, 1)
    return choices.contiguous(), exists.contiguous()


def _fake_argmax(*arguments: Any) -> tuple[Tensor, Tensor]:
    lengths, T = arguments[4], _example(arguments).shape[1]
    return lengths.new_empty(1, lengths.shape[0], T), lengths.new_empty(1, lengths.shape[0], dtype=torch.bool)


_log_partition_node = _operation("chain_log_partition", 1, lambda p: native_engine.log_partition(p))
_expectation_node = _operation("chain_expectation", 2, lambda p, f: native_engine.expectation(p, f))
_argmax_node: Any = torch.library.custom_op(
    "structloss::chain_argmax", _argmax, mutates_args=(), schema=f"({_CHAINS[1]}) -> (Tensor, Tensor)"
)
_argmax_node.register_fake(_fake_argmax)


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    return _log_partition_node(*p.tensors)


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score of y under f], y drawn from p, (B,)."""
    return _expectation_node(*p.tensors, *f.tensors)


def argmax(p: Parts) -> tuple[Tensor, Tensor]:
    """The best output (1, B, T), and whether there is any (1, B)."""
    return cast(tuple[Tensor, Tensor], _argmax_node(*p.tensors))
