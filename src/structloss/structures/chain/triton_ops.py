"""The Triton kernels of chains as operators of torch: with shapes for compilers, and derivatives.

Each launches kernels on the device of its tensors and waits for nothing. `chain_sum` is differentiated by
`chain_gradient`, which is differentiated no further.
"""

from collections.abc import Sequence
from math import isqrt
from typing import Any

import torch
from torch import Tensor

Maybe = Tensor | None

_ROOM = 2**27  # numbers that stretches treated at once may take beside the first: more of them, fewer levels in a row


class Sizes:
    """Of a launch: B, T, K, H, R, A, what a table is, and the blocks that programs work in."""

    def __init__(self, unary: Tensor, table: Maybe, order: int, states: int) -> None:
        self.B, self.T, self.K = unary.shape
        self.H = 1 if table is None else table.shape[-2]
        self.A = self.K if order > 1 else 1
        self.R, self.order, self.S = self.H // self.A, order, states
        self.table = 0 if table is None else 1 if table.dim() == 2 else 2
        self.stride = max(1, isqrt(max(0, self.T - 1)) + 1)
        self.marks = -(-self.T // self.stride)
        self.wide = unary.dtype == torch.float64
        self.most = 1024 if self.wide else 2048  # numbers of a block, so that registers hold them

    @property
    def kind(self) -> Any:
        """The precision that sums are made in, as kernels name it."""
        import triton.language as tl

        return tl.float64 if self.wide else tl.float32

    def kinds(self, machine: Sequence[Tensor], dual: bool | None) -> dict[str, Any]:
        """What a kernel is compiled for; `dual`, of one that makes sums, whether with derivatives along."""
        weighted = bool(machine) and machine[8].numel() > 0
        kinds = {"ORDER": self.order, "TABLE": self.table, "MACHINE": bool(machine), "WEIGHTED": weighted}
        return kinds if dual is None else {**kinds, "DUAL": dual, "KIND": self.kind}

    @property
    def blocks(self) -> dict[str, int]:
        """NB states times KB labels at a time, NB of AB, BLOCK of a row; powers of two."""
        KB = power_of_two(self.K)
        NB = min(power_of_two(self.S * self.H), max(1, self.most // KB))
        return {"NB": NB, "KB": KB, "BLOCK": min(1024, power_of_two(self.S * self.R * self.K))}

    @property
    def tiles(self) -> dict[str, int]:
        """SB machine states times HB histories times KB labels at a time."""
        KB = power_of_two(self.K)
        HB = min(power_of_two(self.H), max(1, self.most // KB))
        return {"HB": HB, "SB": min(power_of_two(self.S), max(1, self.most // (KB * HB)))}

    @property
    def behind(self) -> int:
        """AB: oldest labels at a time, which are all of them."""
        return power_of_two(self.A)


def power_of_two(n: int) -> int:
    """The smallest that is at least n."""
    return 1 << max(0, n - 1).bit_length()


def machine_arguments(unary: Tensor, machine: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], int]:
    """Of `DeviceMachines`, as kernels read them: forward tables, backward tables, and how many final states there are.

    class_of, next_state, weight, dweight, arc_begins, sizes, final, dfinal; before, before_begin, place_begins,
    degrees.
    """
    if machine:
        class_of, next_state, arc_begins, sizes, before, before_begin, places, degrees, weight, final, *rest = machine
        dweight, dfinal = rest or (weight, final)
        front = [class_of, next_state, weight, dweight, arc_begins, sizes, final, dfinal]
        return front, [before, before_begin, places, degrees], final.shape[1]
    none, long = unary.new_zeros(1, dtype=torch.int32), unary.new_zeros(1, dtype=torch.int64)
    zero = unary.new_zeros(unary.shape[0], 1, dtype=torch.float64)
    return [none, none, zero, zero, long, none, zero, zero], [none, none, long, none], 1


def precision_of(x: Tensor) -> torch.dtype:
    """The precision that sums are made in: float64 for float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


# --- Sums ------------------------------------------------------------------------------------------------------------


def _sum(
    unary: Tensor, table: Maybe, dunary: Maybe, dtable: Maybe, lengths: Tensor, machine: list[Tensor],
    order: int, states: int, keep: bool,
) -> list[Tensor]:  # fmt: skip
    from structloss.kernels.triton.chain import scan
    from structloss.kernels.triton.launching import launch

    z, dual = Sizes(unary, table, order, states), dunary is not None
    found = _sum_shapes(unary, table, dunary, dtable, lengths, machine, order, states, keep)
    if z.B:
        room = found[0].new_empty(z.B, 2, z.S * (z.H + z.R * z.K), dtype=precision_of(unary))
        droom = torch.empty_like(room) if dual else room
        unary, table, dunary, dtable = _contiguous(unary, table, dunary, dtable)
        front, back, finals = machine_arguments(unary, machine)
        launch(
            scan, (z.B, 2 if keep else 1),
            unary, dunary, table, dtable, lengths.contiguous(), *front, *back, *found, room, droom,
            z.T, z.K, z.H, z.R, z.A, finals, z.S, z.stride, z.marks, **z.kinds(machine, dual), **z.blocks,
            KEEP=keep, AB=z.behind,
        )  # fmt: skip
    return found


def _sum_shapes(
    unary: Tensor, table: Maybe, dunary: Maybe, dtable: Maybe, lengths: Tensor, machine: list[Tensor],
    order: int, states: int, keep: bool,
) -> list[Tensor]:  # fmt: skip
    z, dual = Sizes(unary, table, order, states), dunary is not None
    kept = (z.B, z.marks if keep else 0, z.S * z.H)
    none = (0, *kept[1:])
    wide, kind = torch.float64, precision_of(unary)
    shapes = (
        ((z.B,), wide),
        ((z.B if dual else 0,), wide),
        *((s if d else none, kind) for s, d in ((kept, True), (kept, dual), (kept, True), (kept, dual))),
    )
    return [unary.new_zeros(shape, dtype=dtype) for shape, dtype in shapes]


def _contiguous(unary: Tensor, *others: Maybe) -> list[Tensor]:
    """The tensors without gaps; in the place of one that is not there another, which kernels do not read."""
    return [(unary if x is None else x).contiguous() for x in (unary, *others)]


def _gradient(
    g: Tensor, unary: Tensor, table: Maybe, dunary: Maybe, dtable: Maybe, lengths: Tensor, machine: list[Tensor],
    kept: list[Tensor], order: int, states: int, wanted: int,
) -> list[Tensor]:  # fmt: skip
    from structloss.kernels.triton.chain import gradient
    from structloss.kernels.triton.launching import launch

    z, dual = Sizes(unary, table, order, states), dunary is not None
    kind, width = precision_of(unary), z.S * ((z.stride + 2) * z.H + z.R * z.K)
    programs = min(z.marks, max(1, _ROOM // max(1, z.B * width)))
    of_table = {0: (0,), 1: (z.B, programs, z.H, z.K), 2: (z.B, z.T, z.H, z.K)}[wanted]
    found = [unary.new_zeros(s, dtype=kind) for s in ((z.B, z.T, z.K), of_table) for _ in range(1 + dual)]
    in_unary, in_dunary, in_table, in_dtable = found if dual else (found[0], found[0], found[1], found[1])
    if z.B and z.T:
        room = unary.new_empty(z.B, programs, width, dtype=kind)
        droom = torch.empty_like(room) if dual else room
        unary, table, dunary, dtable = _contiguous(unary, table, dunary, dtable)
        front, back, finals = machine_arguments(unary, machine)
        launch(
            gradient, (z.B, programs),
            g.contiguous(), unary, dunary, table, dtable, lengths.contiguous(), *front, *back, *kept, room, droom,
            in_unary, in_dunary, in_table, in_dtable, z.T, z.K, z.H, z.R, z.A, finals, z.S, z.stride, z.marks,
            **z.kinds(machine, dual), WANTED=wanted, **z.blocks, **z.tiles, AB=z.behind,
        )  # fmt: skip
    if wanted == 1:
        found[1 + dual :] = [x.sum((0, 1)) for x in found[1 + dual :]]
    return [x.to(unary.dtype) for x in found]


def _gradient_shapes(
    g: Tensor, unary: Tensor, table: Maybe, dunary: Maybe, dtable: Maybe, lengths: Tensor, machine: list[Tensor],
    kept: list[Tensor], order: int, states: int, wanted: int,
) -> list[Tensor]:  # fmt: skip
    z, dual = Sizes(unary, table, order, states), dunary is not None
    of_table = {0: (0,), 1: (z.H, z.K), 2: (z.B, z.T, z.H, z.K)}[wanted]
    return [unary.new_empty(s) for s in ((z.B, z.T, z.K), of_table) for _ in range(1 + dual)]


def _setup_sum(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    unary, table, dunary, dtable, lengths, machine, ctx.order, ctx.states, _ = inputs
    ctx.machines = len(machine)
    ctx.save_for_backward(unary, table, dunary, dtable, lengths, *machine, *output[2:])


def _backward_sum(ctx: Any, gradients: list[Maybe]) -> Any:
    unary, table, dunary, dtable, lengths, *rest = ctx.saved_tensors
    dual, machine, kept = dunary is not None, rest[: ctx.machines], rest[ctx.machines :]
    g = gradients[1 if dual else 0]
    found: list[Maybe] = [None] * 4
    if g is not None:
        wanted = 0 if table is None else 1 if table.dim() == 2 else 2
        own = chain_gradient(
            g, unary, table, dunary, dtable, lengths, machine, kept, ctx.order, ctx.states, wanted
        )  # fmt: skip
        found = [own[0], own[2], own[1], own[3]] if dual else [own[0], own[1], None, None]
        if table is None:
            found[1] = found[3] = None
    return *found, None, [None] * ctx.machines, None, None, None


def nothing_kept(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Nothing is kept for a derivative that there is not."""


def no_second_derivative(ctx: Any, gradients: list[Maybe]) -> Any:
    """Where a gradient is differentiated."""
    raise NotImplementedError(
        'the Triton engine has first derivatives only; for a derivative of a derivative use sl.engine("torch")'
    )


_TENSORS = "Tensor unary, Tensor? table, Tensor? dunary, Tensor? dtable, Tensor lengths, Tensor[] machine"
_SIZES = "int order, int states"
chain_sum: Any = torch.library.custom_op(
    "structloss::chain_sum", _sum, mutates_args=(), schema=f"({_TENSORS}, {_SIZES}, bool keep) -> Tensor[]"
)
chain_gradient: Any = torch.library.custom_op(
    "structloss::chain_gradient", _gradient, mutates_args=(),
    schema=f"(Tensor g, {_TENSORS}, Tensor[] kept, {_SIZES}, int wanted) -> Tensor[]",
)  # fmt: skip
chain_sum.register_fake(_sum_shapes)
chain_sum.register_autograd(_backward_sum, setup_context=_setup_sum)
chain_gradient.register_fake(_gradient_shapes)
chain_gradient.register_autograd(no_second_derivative, setup_context=nothing_kept)


# --- The best output -------------------------------------------------------------------------------------------------


def _best(
    unary: Tensor, table: Maybe, lengths: Tensor, machine: list[Tensor], order: int, states: int
) -> tuple[Tensor, Tensor]:
    from structloss.kernels.triton.best import best
    from structloss.kernels.triton.launching import launch

    z = Sizes(unary, table, order, states)
    value = unary.new_empty(z.B, dtype=torch.float64)
    labels = lengths.new_zeros(z.B, z.T)
    if z.B:
        room = value.new_empty(z.B, z.S * (z.H + z.R * z.K))
        via = lengths.new_empty(z.B, z.T, z.S * z.H, dtype=torch.int32)
        unary, table = _contiguous(unary, table)
        front, _, finals = machine_arguments(unary, machine)
        class_of, next_state, weight, _, arc_begins, sizes, final, _ = front
        launch(
            best, (z.B,),
            unary, table, lengths.contiguous(), class_of, next_state, weight, arc_begins, sizes, final, value, labels,
            room, via, z.T, z.K, z.H, z.R, finals, z.S, **z.kinds(machine, None), **z.blocks,
        )  # fmt: skip
    return value, labels


def _best_shapes(
    unary: Tensor, table: Maybe, lengths: Tensor, machine: list[Tensor], order: int, states: int
) -> tuple[Tensor, Tensor]:
    return unary.new_empty(unary.shape[0], dtype=torch.float64), lengths.new_empty(unary.shape[:2])


chain_best: Any = torch.library.custom_op(
    "structloss::chain_best", _best, mutates_args=(),
    schema=f"(Tensor unary, Tensor? table, Tensor lengths, Tensor[] machine, {_SIZES}) -> (Tensor, Tensor)",
)  # fmt: skip
chain_best.register_fake(_best_shapes)
