"""CTC by Triton kernels: the likelihood of strings, and sums over paths weighed by where a loss machine ends.

As operators of torch, with first derivatives; see `kernels.triton.ctc` and `kernels.triton.endings`.
"""

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from structloss.automata import OpenAutomaton
from structloss.kernels.machines import turned
from structloss.kernels.types import Array
from structloss.losses.moved import MOVED
from structloss.losses.references import String
from structloss.structures.chain.triton_ops import (
    Maybe,
    no_second_derivative,
    nothing_kept,
    power_of_two,
    precision_of,
)
from structloss.structures.tensors import logsumexp

_ROOM = 2**27  # numbers that stretches treated at once may take beside the first


def _kind(scores: Tensor) -> Any:
    import triton.language as tl

    return tl.float64 if scores.dtype == torch.float64 else tl.float32


MOST_LABELS, MOST_SYMBOLS = 8192, 8192  # that a program holds at once, of an alphabet and of a string


def covers(scores: Tensor, references: Sequence[String]) -> bool:
    """Whether the kernels are for a CTC of this size, outside of a graph that is being compiled."""
    small = scores.shape[2] <= MOST_LABELS and max(map(len, references), default=0) <= MOST_SYMBOLS
    return small and len(references) > 0 and not torch.compiler.is_compiling()


# --- The likelihood of a string --------------------------------------------------------------------------------------


def likelihood(scores: Tensor, lengths: Tensor, references: Sequence[String], blank: int) -> Tensor:
    """log of the sum of exp(score) over the paths that write each reference, (B,); labels, all of them known."""
    longest, C = max(map(len, references), default=0), scores.shape[2]
    positions, leaps = (np.zeros((len(references), 2 * longest + 1), np.int32) for _ in range(2))
    counts = np.zeros(len(references), np.int32)
    positions[:] = blank
    for b, string in enumerate(references):
        if ((string < C) & (string != blank)).all():  # else no path writes it
            counts[b] = 2 * len(string) + 1
            positions[b, 1 : counts[b] : 2] = string
            leaps[b, 3 : counts[b] : 2] = string[1:] != string[:-1]
    moved = (torch.from_numpy(x).to(scores.device) for x in (positions, counts, leaps))
    keep = torch.is_grad_enabled() and scores.requires_grad
    value: Tensor = ctc_align(scores, lengths, *moved, keep)[0]
    return value.to(scores.dtype)


def _align(
    scores: Tensor, lengths: Tensor, positions: Tensor, counts: Tensor, leaps: Tensor, keep: bool
) -> list[Tensor]:
    from structloss.kernels.triton.ctc import align
    from structloss.kernels.triton.launching import launch

    (B, T, C), J = scores.shape, positions.shape[1]
    found = _align_shapes(scores, lengths, positions, counts, leaps, keep)
    value, alphas, betas = found
    if B:
        none = betas if keep else betas.new_empty(B, T, J)
        launch(
            align, (B, 2 if keep else 1), scores.contiguous(), lengths.contiguous(), positions, counts, leaps, value,
            alphas, none, T, C, J, KIND=_kind(scores), JB=power_of_two(J),
        )  # fmt: skip
    return found


def _align_shapes(
    scores: Tensor, lengths: Tensor, positions: Tensor, counts: Tensor, leaps: Tensor, keep: bool
) -> list[Tensor]:
    B, T, _ = scores.shape
    kept = (B if keep else 0, T, positions.shape[1])
    kind = precision_of(scores)
    return [scores.new_empty(B, dtype=torch.float64), *(scores.new_zeros(kept, dtype=kind) for _ in range(2))]


def _align_gradient(
    g: Tensor, scores: Tensor, lengths: Tensor, positions: Tensor, counts: Tensor, alphas: Tensor, betas: Tensor
) -> Tensor:
    from structloss.kernels.triton.ctc import align_gradient
    from structloss.kernels.triton.launching import launch

    (B, T, C), J = scores.shape, positions.shape[1]
    found = alphas.new_zeros(B, T, C)
    if B and T:
        CB = min(256, power_of_two(C))
        launch(
            align_gradient, (B, T), g.contiguous(), lengths.contiguous(), positions, counts, alphas, betas, found,
            T, C, J, KIND=_kind(scores), JB=power_of_two(J), JN=min(power_of_two(J), 2048 // CB), CB=CB,
        )  # fmt: skip
    return found.to(scores.dtype)


def _align_gradient_shapes(g: Tensor, scores: Tensor, *_: Tensor) -> Tensor:
    return scores.new_empty(scores.shape)


def _align_setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    scores, lengths, positions, counts, _, _ = inputs
    ctx.save_for_backward(scores, lengths, positions, counts, *output[1:])


def _align_backward(ctx: Any, gradients: list[Maybe]) -> Any:
    g = gradients[0]
    found = None if g is None else ctc_align_gradient(g, *ctx.saved_tensors)
    return found, None, None, None, None, None


_STRINGS = "Tensor scores, Tensor lengths, Tensor positions, Tensor counts"
ctc_align: Any = torch.library.custom_op(
    "structloss::ctc_align", _align, mutates_args=(), schema=f"({_STRINGS}, Tensor leaps, bool keep) -> Tensor[]"
)
ctc_align_gradient: Any = torch.library.custom_op(
    "structloss::ctc_align_gradient", _align_gradient, mutates_args=(),
    schema=f"(Tensor g, {_STRINGS}, Tensor alphas, Tensor betas) -> Tensor",
)  # fmt: skip
ctc_align.register_fake(_align_shapes)
ctc_align.register_autograd(_align_backward, setup_context=_align_setup)
ctc_align_gradient.register_fake(_align_gradient_shapes)
ctc_align_gradient.register_autograd(no_second_derivative, setup_context=nothing_kept)


# --- Paths weighed by where a machine ends ---------------------------------------------------------------------------


class Endings(NamedTuple):
    """The machines of a batch on a device, each with a table of its own; arcs (C, S) in a row."""

    begins: Tensor  # (B + 1,), where the states of each begin
    next_state: Tensor
    before: Tensor
    before_begin: Tensor
    degrees: Tensor  # (B,)
    final: Tensor  # what it is worth to end in each state
    most_states: int


def _on_device(
    machines: Sequence[OpenAutomaton], lengths: Sequence[int], num_labels: int, device: torch.device,
    worth: Callable[[int, Array], Array],
) -> Endings:  # fmt: skip
    """The machines as far as strings of these lengths reach, each moved once a length; worth(b, losses) of its ends."""
    tables, ends, sizes = [], [], [0]
    for b, (machine, length) in enumerate(zip(machines, lengths, strict=True)):
        following, final = machine.explored(length)

        def make(machine: OpenAutomaton = machine, following: Array = following) -> list[Tensor]:
            labels = np.maximum(following, 0)[:, machine.class_of]  # it does not matter where the last level leads
            S, arcs = len(labels), labels.T.astype(np.int32).ravel()
            arrays = [np.zeros(n, np.int32) for n in (S * num_labels, S * num_labels + 1, 1)]
            turned(arcs, np.array([S, S]), num_labels, *arrays)
            return [torch.from_numpy(x).to(device) for x in (arcs, *arrays)]

        tables.append(MOVED.get(machine, f"{device}, {length}", make))
        sizes.append(tables[b][0].numel() // num_labels)  # it may be known further by now
        ends.append(worth(b, final[: sizes[-1]]))
    next_state, before, before_begin, degrees = (torch.cat(x) for x in zip(*tables, strict=True))
    begins, worths = (torch.from_numpy(x).to(device) for x in (np.cumsum(sizes), np.concatenate(ends)))
    return Endings(begins, next_state, before, before_begin, degrees, worths, max(sizes))


def _ending(scores: Tensor, lengths: Tensor, m: Endings, blank: int) -> Tensor:
    """log of the sum of exp(score + worth of its last state) over all paths, (B,) in float64."""
    keep = torch.is_grad_enabled() and scores.requires_grad
    value: Tensor = ctc_endings(scores, lengths, list(m[:-1]), m.most_states, blank, keep)[0]
    return value


def log_partition(
    scores: Tensor, lengths: Tensor, machines: Sequence[OpenAutomaton], scale: float, blank: int
) -> Tensor:
    """log of the sum over paths of exp(score + scale * loss), (B,); a path that is outside its loss is none."""

    def worth(_: int, losses: Array) -> Array:
        outside = np.isinf(losses)
        return np.where(outside, -np.inf, scale * np.where(outside, 0.0, losses))

    m = _on_device(machines, lengths.tolist(), scores.shape[2], scores.device, worth)
    return _ending(scores, lengths, m, blank).to(scores.dtype)


def expected(scores: Tensor, lengths: Tensor, machines: Sequence[OpenAutomaton], blank: int) -> Tensor | None:
    """E[loss], (B,); 0 where there is no path. None where some path may be outside its loss."""
    lowest = np.zeros(len(machines))
    outside = False

    def worth(b: int, losses: Array) -> Array:
        nonlocal outside
        outside = outside or not np.isfinite(losses).all()
        lowest[b] = losses.min()
        with np.errstate(divide="ignore", invalid="ignore"):
            found: Array = np.log(losses - lowest[b])
            return found

    m = _on_device(machines, lengths.tolist(), scores.shape[2], scores.device, worth)
    if outside:
        return None
    within = torch.arange(scores.shape[1], device=scores.device) < lengths[:, None]
    total = logsumexp(torch.where(within[:, :, None], scores, -np.log(scores.shape[2])).double(), 2).sum(1)
    empty = total == -torch.inf
    mean = (_ending(scores, lengths, m, blank) - torch.where(empty, 0, total)).exp()
    value = torch.from_numpy(lowest).to(scores.device) + mean
    return torch.where(empty, 0, value).to(scores.dtype)


def _blocks(S: int, C: int) -> dict[str, int]:
    CB = power_of_two(C)
    return {"SB": min(power_of_two(S), max(1, 2048 // CB)), "CB": CB, "BLOCK": min(1024, power_of_two(S * C))}


def _strides(T: int) -> tuple[int, int]:
    stride = max(1, isqrt(max(0, T - 1)) + 1)
    return stride, -(-T // stride)


def _endings(
    scores: Tensor, lengths: Tensor, machine: list[Tensor], states: int, blank: int, keep: bool
) -> list[Tensor]:
    from structloss.kernels.triton.endings import scan
    from structloss.kernels.triton.launching import launch

    B, T, C = scores.shape
    found = _endings_shapes(scores, lengths, machine, states, blank, keep)
    if B:
        room = found[1].new_empty(B, 2, 2, states * C)
        launch(
            scan, (B, 2 if keep else 1), scores.contiguous(), lengths.contiguous(), *machine, *found, room,
            T, C, states, blank, *_strides(T), KEEP=keep, KIND=_kind(scores), **_blocks(states, C),
        )  # fmt: skip
    return found


def _endings_shapes(
    scores: Tensor, lengths: Tensor, machine: list[Tensor], states: int, blank: int, keep: bool
) -> list[Tensor]:
    B, T, C = scores.shape
    kept = (B, _strides(T)[1] if keep else 0, states * C)
    kind = precision_of(scores)
    return [scores.new_empty(B, dtype=torch.float64), *(scores.new_zeros(kept, dtype=kind) for _ in range(2))]


def _endings_gradient(
    g: Tensor, scores: Tensor, lengths: Tensor, machine: list[Tensor], alphas: Tensor, betas: Tensor,
    states: int, blank: int,
) -> Tensor:  # fmt: skip
    from structloss.kernels.triton.endings import gradient
    from structloss.kernels.triton.launching import launch

    B, T, C = scores.shape
    stride, marks = _strides(T)
    found = alphas.new_zeros(B, T, C)
    if B and T:
        width = (stride + 4) * states * C
        room = alphas.new_empty(B, min(marks, max(1, _ROOM // max(1, B * width))), width)
        launch(
            gradient, (B, room.shape[1]), g.contiguous(), scores.contiguous(), lengths.contiguous(), *machine, alphas,
            betas, room, found, T, C, states, blank, stride, marks, KIND=_kind(scores), **_blocks(states, C),
        )  # fmt: skip
    return found.to(scores.dtype)


def _endings_gradient_shapes(g: Tensor, scores: Tensor, *_: Any) -> Tensor:
    return scores.new_empty(scores.shape)


def _endings_setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    scores, lengths, machine, ctx.states, ctx.blank, _ = inputs
    ctx.save_for_backward(scores, lengths, *output[1:], *machine)


def _endings_backward(ctx: Any, gradients: list[Maybe]) -> Any:
    scores, lengths, alphas, betas, *machine = ctx.saved_tensors
    g, found = gradients[0], None
    if g is not None:
        found = ctc_endings_gradient(g, scores, lengths, machine, alphas, betas, ctx.states, ctx.blank)
    return found, None, [None] * len(machine), None, None, None


_FRAMES = "Tensor scores, Tensor lengths, Tensor[] machine"
ctc_endings: Any = torch.library.custom_op(
    "structloss::ctc_endings", _endings, mutates_args=(),
    schema=f"({_FRAMES}, int states, int blank, bool keep) -> Tensor[]",
)  # fmt: skip
ctc_endings_gradient: Any = torch.library.custom_op(
    "structloss::ctc_endings_gradient", _endings_gradient, mutates_args=(),
    schema=f"(Tensor g, {_FRAMES}, Tensor alphas, Tensor betas, int states, int blank) -> Tensor",
)  # fmt: skip
ctc_endings.register_fake(_endings_shapes)
ctc_endings.register_autograd(_endings_backward, setup_context=_endings_setup)
ctc_endings_gradient.register_fake(_endings_gradient_shapes)
ctc_endings_gradient.register_autograd(no_second_derivative, setup_context=nothing_kept)
