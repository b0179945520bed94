"""What a GPU asks of the torch engine: few operations a position, and nobody who waits for the device."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import structloss as sl

LABELS, LENGTHS, STRINGS = 4, [6, 0, 3, 1], [[1, 2], [], [3, 1], [2]]


class Watch(TorchDispatchMode):
    """Counts operations, and lists those that the host would have to wait for, or that move something to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        name, found = func.overloadpacket.__name__, func(*args, **(kwargs or {}))
        asks = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
        if name == "index":  # asks only of a mask how many are in it
            asks = any(x is not None and x.dtype == torch.bool for x in args[1])
        moved = isinstance(found, torch.Tensor) and any(
            isinstance(x, torch.Tensor) and x.device != found.device for x in args
        )
        if asks or moved or name == "_local_scalar_dense":
            self.waits.append(name)
        return found


def crf(positions: int, lengths: list[int] | None = None) -> tuple[sl.Structure, list[torch.Tensor]]:
    leaves = [torch.randn(4, positions, LABELS, requires_grad=True), torch.randn(LABELS, LABELS, requires_grad=True)]
    return sl.Chain.from_emissions(*leaves, lengths=lengths), leaves


def dense(order: int, positions: int, lengths: list[int] | None = None) -> tuple[sl.Structure, list[torch.Tensor]]:
    leaves = [torch.randn(4, positions, *(LABELS,) * order, requires_grad=True)]
    return sl.Chain(leaves[0], lengths), leaves


def ctc(positions: int, lengths: list[int] | None = None) -> tuple[sl.Structure, list[torch.Tensor]]:
    leaves = [torch.randn(4, positions, LABELS, requires_grad=True)]
    return sl.CTC(leaves[0], lengths), leaves


KINDS: dict[str, Callable[..., tuple[sl.Structure, list[torch.Tensor]]]] = {
    "order 1": lambda *a: dense(1, *a),
    "order 2": crf,
    "order 3": lambda *a: dense(3, *a),
    "ctc": ctc,
}
LOSS = sl.EditDistance(cap=2)
# Operations a position that the engine of structloss 0.1 dispatched, forward and backward: log_partition() and max().
BEFORE = {"order 1": (51, 19, 75, 5), "order 2": (60, 26, 88, 11), "order 3": (62, 21, 91, 6), "ctc": (51, 19, 75, 5)}


def made(kind: str, machine: bool, *arguments: Any) -> tuple[sl.Structure, list[torch.Tensor]]:
    s, leaves = KINDS[kind](*arguments)
    return (s.augment(LOSS, STRINGS) if machine or kind == "ctc" else s), leaves


def operations(kind: str, machine: bool, operation: str, positions: int) -> list[int]:
    s, leaves = made(kind, machine, positions)
    with sl.engine("torch"):
        with Watch() as forward:
            value = getattr(s, operation)().sum()
        with Watch() as backward:
            torch.autograd.grad(value, leaves)
    return [forward.count, backward.count]


@pytest.mark.parametrize("machine", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_position_is_at_most_half_as_many_operations_as_it_was(kind: str, machine: bool) -> None:
    found = []
    for operation in ("log_partition", "max"):
        few, many = (operations(kind, machine, operation, positions) for positions in (6, 16))
        found += [(b - a) / 10 for a, b in zip(few, many, strict=True)]
    for before in (BEFORE[kind][:2], BEFORE[kind][2:]):
        now, found = found[:2], found[2:]
        assert sum(now) <= sum(before) / 2, (now, before)
        assert now[0] <= before[0] / 2


def on_a_device(s: sl.Structure) -> tuple[sl.Structure, list[torch.Tensor]]:
    """The same on a device without content, which answers no question: what asks for a number raises."""

    def moved(x: Any) -> Any:
        return x.detach().to("meta").requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x

    p = s._parts
    p = p.map(moved).replace(lengths=moved(p.lengths), pinned=moved(p.pinned))
    positions = type(s._positions)(p.lengths, s._positions.width)
    return s._with(_parts=p, _positions=positions, _only=moved(s._only)), [x for x in p.potentials if x is not None]


@pytest.mark.parametrize("operation", ["log_partition", "max", "argmax"])
@pytest.mark.parametrize(
    "kind", [*KINDS, *(f"{kind}, machine" for kind in KINDS), "order 2, given", "order 2, given in part"]
)
def test_nobody_waits_for_the_device(kind: str, operation: str) -> None:
    name, *more = kind.split(", ")
    s, _ = made(name, more == ["machine"], 6, LENGTHS)
    if more and more[0].startswith("given"):
        labels = torch.randint(0, LABELS, (4, 6))
        s = s.given(torch.where(labels == 0, -100, labels) if more == ["given in part"] else labels)
    device, leaves = on_a_device(s)
    getattr(device, operation)()  # machines are moved once
    with Watch() as watch:
        value = getattr(device, operation)()
        assert value.device.type == "meta"
        if operation != "argmax":
            torch.autograd.grad(value.sum(), leaves, allow_unused=True)
    assert watch.waits == []
    assert watch.count > 0


def test_who_asks_a_device_is_seen() -> None:
    with Watch() as watch:
        torch.ones(3).nonzero()
        torch.ones(1).item()
        torch.ones(1).to("meta")
    assert watch.waits == ["nonzero", "_local_scalar_dense", "_to_copy"]
    with pytest.raises(RuntimeError, match="meta tensors"):
        torch.ones(1, device="meta").item()
