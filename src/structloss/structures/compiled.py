"""Structures inside a compiled graph: what the native engine computes is one node, whatever it is.

Under `torch.compile` a structure is taken apart into its tensors and a few integers. The node, when it runs, puts it
together again and calls an operation of it, or an objective with all that belongs to it: machines of losses, searches,
both engines. Going back, a second node does the same and differentiates it. So everything that works outside of a
compiled graph works inside of one, and nothing is written twice; the price is that values are made once more in the
backward pass.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import count
from typing import Any, ClassVar, Protocol, Self, TypeVar, cast

import torch
from torch import Tensor

from structloss.losses.references import Labels, as_padded, is_sets
from structloss.structures.engine import engine, forced_engine

X = TypeVar("X")


class Flat(Protocol):
    """A structure that can be taken apart: the tensors that are differentiated first."""

    _kind: ClassVar[int]  # the number of its class

    def _flat(self) -> tuple[list[Tensor], list[int]]:
        """Its tensors, and integers that say the rest; the first of these is how many of the tensors are potentials."""

    @classmethod
    def _of_flat(cls, tensors: list[Tensor], rest: list[int]) -> Self:
        """Put together again."""

    def _empty(self, name: str, number: int) -> list[Tensor]:
        """Tensors without content, of the shapes that an operation gives."""


_OBJECTS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = count()


class _Thread(threading.local):
    repeats = False


_thread = _Thread()


def register_object(x: Any) -> int:
    """A number for an objective or for a kind of structure, by which a node finds it."""
    number = next(_numbers)
    _OBJECTS[number] = x
    return number


def repeats() -> bool:
    """Whether this computes values again that a graph has computed, to differentiate them: no step of training."""
    return _thread.repeats


def call(name: str, structures: Sequence[Flat], more: Sequence[Tensor] = (), number: int = 0) -> list[Tensor]:
    """What the operation `_name` of the first gives for the other structures and a number; or objective `number`."""
    tensors: list[Tensor] = []
    layout: list[int] = []
    for s in structures:
        own, rest = s._flat()
        layout += [s._kind, len(own), len(rest), *rest]
        tensors += own
    return cast(list[Tensor], _node(name, [*tensors, *more], layout, number))


def objective(s: Flat, reference: Labels, number: int) -> Tensor:
    """The values (B,) of the objective of this number."""
    if is_sets(reference):
        return call("objective", [s], [torch.as_tensor(reference)], number)[0]
    padded, lengths = as_padded(reference, "reference")
    return call("objective", [s], [padded] if lengths is None else [padded, lengths], number)[0]


def _result(name: str, tensors: Sequence[Tensor], layout: Sequence[int], number: int) -> list[Tensor]:
    (s, *others), _, more = _assembled(tensors, layout)
    if name != "objective":
        found = getattr(s, f"_{name}")(*others, *([number] if number else []))
        return [found] if isinstance(found, Tensor) else list(found)
    reference, *lengths = more
    rows = [row[:n] for row, n in zip(reference, lengths[0].tolist(), strict=True)] if lengths else reference
    objective = _OBJECTS[number]
    values = objective.values(s, rows)
    objective.check(values, s, rows)
    return [values]


def _assembled(tensors: Sequence[Tensor], layout: Sequence[int]) -> tuple[list[Any], list[int], list[Tensor]]:
    """The structures, the places of their potentials among the tensors, and the tensors that are left."""
    structures: list[Any] = []
    potentials: list[int] = []
    at, used = 0, 0
    while at < len(layout):
        kind, size, extra = layout[at : at + 3]
        rest = list(layout[at + 3 : at + 3 + extra])
        potentials += range(used, used + rest[0])
        structures.append(_OBJECTS[kind]._of_flat(list(tensors[used : used + size]), rest))
        at, used = at + 3 + extra, used + size
    return structures, potentials, list(tensors[used:])


def _run(name: str, tensors: list[Tensor], layout: list[int], number: int) -> list[Tensor]:
    with torch.no_grad():
        return [x.clone(memory_format=torch.contiguous_format) for x in _result(name, tensors, layout, number)]


def _shapes(name: str, tensors: list[Tensor], layout: list[int], number: int) -> list[Tensor]:
    return cast(list[Tensor], _assembled(tensors, layout)[0][0]._empty(name, number))


def _gradients(g: Tensor, name: str, tensors: list[Tensor], layout: list[int], number: int) -> list[Tensor]:
    """The gradients of the potentials, from g, that of the first result."""
    _, potentials, _ = _assembled(tensors, layout)
    leaves = [x.detach().requires_grad_() if i in potentials else x for i, x in enumerate(tensors)]
    inputs = [leaves[i] for i in potentials]

    def differentiate() -> tuple[Tensor | None, ...]:
        value = _result(name, leaves, layout, number)[0]
        if not value.requires_grad:
            return (None,) * len(inputs)
        return torch.autograd.grad(value, inputs, g, allow_unused=True)

    found = _in_a_thread(differentiate)
    return [torch.zeros_like(x) if own is None else own.contiguous() for own, x in zip(found, inputs, strict=True)]


def _in_a_thread(function: Callable[[], X]) -> X:
    """What a function gives that differentiates: within a node torch records nothing, in a new thread it does."""
    forced = forced_engine()

    def run() -> X:
        _thread.repeats = True
        with nullcontext() if forced is None else engine(forced):
            return function()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()


def _gradient_shapes(g: Tensor, name: str, tensors: list[Tensor], layout: list[int], number: int) -> list[Tensor]:
    contiguous = torch.contiguous_format
    return [torch.empty_like(tensors[i], memory_format=contiguous) for i in _assembled(tensors, layout)[1]]


_ARGUMENTS = "str name, Tensor[] tensors, int[] layout, int number"
_node: Any = torch.library.custom_op("structloss::call", _run, mutates_args=(), schema=f"({_ARGUMENTS}) -> Tensor[]")
_gradient_node: Any = torch.library.custom_op(
    "structloss::call_gradient", _gradients, mutates_args=(), schema=f"(Tensor g, {_ARGUMENTS}) -> Tensor[]"
)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.name, tensors, ctx.layout, ctx.number = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, gradients: list[Tensor | None]) -> Any:
    tensors = list(ctx.saved_tensors)
    found: list[Tensor | None] = [None] * len(tensors)
    if gradients[0] is not None:
        own = _gradient_node(gradients[0], ctx.name, tensors, ctx.layout, ctx.number)
        for i, x in zip(_assembled(tensors, ctx.layout)[1], own, strict=True):
            found[i] = x
    return None, found, None, None


_node.register_fake(_shapes)
_gradient_node.register_fake(_gradient_shapes)
_node.register_autograd(_backward, setup_context=_setup)
