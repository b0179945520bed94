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

    _kind: ClassVar[int]

    def _flat(self) -> tuple[list[Tensor], list[int]]:
        """Its tensors, and integers that say the rest; the first of these is how many of the tensors are potentials."""

    @classmethod
    def _of_flat(cls, tensors: list[Tensor], rest: list[int]) -> Self:
        """Put together again."""


Operation = Callable[..., list[Tensor]]  # of structures, tensors and an integer
Shapes = Callable[..., list[Tensor]]  # the same of tensors without content

_KINDS: list[type[Flat]] = []
_OPERATIONS: dict[str, tuple[Operation, Shapes]] = {}
_OBJECTS: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = count()


def register_kind(kind: type[Flat]) -> int:
    """A number for a kind of structure."""
    _KINDS.append(kind)
    return len(_KINDS) - 1


def register_object(x: Any) -> int:
    """A number for an object, such as an objective, by which a node finds it."""
    number = next(_numbers)
    _OBJECTS[number] = x
    return number


def register(name: str, operation: Operation, shapes: Shapes) -> None:
    """An operation that can be a node: `operation` computes it, `shapes` gives empty tensors like what it returns."""
    _OPERATIONS[name] = operation, shapes


def call(name: str, structures: Sequence[Flat], more: Sequence[Tensor] = (), number: int = 0) -> list[Tensor]:
    """What the operation gives for structures, further tensors and a number."""
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


def _objective(s: Any, reference: Tensor, lengths: Tensor | None = None, *, number: int) -> list[Tensor]:
    own = _OBJECTS[number]
    rows: Any = reference
    if lengths is not None:
        rows = [row[:n] for row, n in zip(reference, lengths.tolist(), strict=True)]
    training = own.training
    own.training = training and not torch.is_grad_enabled()  # the backward pass is no further step of training
    try:
        return [own.checked_values(s, rows)]
    finally:
        own.training = training


def _assembled(tensors: Sequence[Tensor], layout: Sequence[int]) -> tuple[list[Any], list[int], list[Tensor]]:
    """The structures, the places of their potentials among the tensors, and the tensors that are left."""
    structures: list[Any] = []
    potentials: list[int] = []
    at, used = 0, 0
    while at < len(layout):
        kind, size, extra = layout[at : at + 3]
        rest = list(layout[at + 3 : at + 3 + extra])
        potentials += range(used, used + rest[0])
        structures.append(_KINDS[kind]._of_flat(list(tensors[used : used + size]), rest))
        at, used = at + 3 + extra, used + size
    return structures, potentials, list(tensors[used:])


def _run(name: str, tensors: list[Tensor], layout: list[int], number: int) -> list[Tensor]:
    structures, _, more = _assembled(tensors, layout)
    with torch.no_grad():
        return [
            x.clone(memory_format=torch.contiguous_format)
            for x in _OPERATIONS[name][0](*structures, *more, number=number)
        ]


def _shapes(name: str, tensors: list[Tensor], layout: list[int], number: int) -> list[Tensor]:
    structures, _, more = _assembled(tensors, layout)
    return _OPERATIONS[name][1](*structures, *more, number=number)


def _gradients(g: Tensor, name: str, tensors: list[Tensor], layout: list[int], number: int) -> list[Tensor]:
    """The gradients of the potentials, from g, that of the first result."""
    _, potentials, _ = _assembled(tensors, layout)
    leaves = [x.detach().requires_grad_() if i in potentials else x for i, x in enumerate(tensors)]
    inputs = [leaves[i] for i in potentials]

    def differentiate() -> tuple[Tensor | None, ...]:
        structures, _, more = _assembled(leaves, layout)
        value = _OPERATIONS[name][0](*structures, *more, number=number)[0]
        if not value.requires_grad:
            return (None,) * len(inputs)
        return torch.autograd.grad(value, inputs, g, allow_unused=True)

    found = _in_a_thread(differentiate)
    return [torch.zeros_like(x) if own is None else own.contiguous() for own, x in zip(found, inputs, strict=True)]


def _in_a_thread(function: Callable[[], X]) -> X:
    """What a function gives that differentiates: within a node torch records nothing, in a new thread it does."""
    found: list[X] = []
    errors: list[BaseException] = []
    forced = forced_engine()

    def run() -> None:
        try:
            with nullcontext() if forced is None else engine(forced):
                found.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]


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
register("objective", _objective, lambda s, *_, number: [s._any_potential.new_empty(len(s))])
