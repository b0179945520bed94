"""The chain by compiled kernels: CPU tensors in and out, values and first derivatives.

Each operation is a function of tensors. Eagerly it is called as it is, inside an `autograd.Function` where it has a
derivative; under `torch.compile` it goes through a `torch.library.custom_op`, which costs more a call but which the
compiler can keep in a whole graph.
"""

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from structloss.kernels import chain_lanes, chain_max, chain_sum, product_max, product_mean, product_sum
from structloss.kernels.levels import Potentials
from structloss.kernels.product import Machines, walk
from structloss.kernels.types import DONE, EMPTY, LARGEST, NOT_A_NUMBER, OK, PLUS_INFINITY
from structloss.kernels.workers import run
from structloss.structures.base import Found
from structloss.structures.chain.machines import Augmentation, Joint, joint
from structloss.structures.chain.parts import Maybe, Parts, as_arrays, like, ranked
from structloss.structures.derivatives import NoSecondDerivative, apply, guard

A = ParamSpec("A")
R = TypeVar("R")
Gradients = tuple[Tensor, Tensor, Tensor]  # of unary (B, T, K), shared table (B, H, K), levels (B, T, H, K), or empty


def _opaque(name: str, fake: Callable[..., Any]) -> Callable[[Callable[A, R]], Callable[A, R]]:
    """Make a function of tensors one node of a compiled graph; `fake` gives the shapes of what it returns."""

    def wrap(function: Callable[A, R]) -> Callable[A, R]:
        operation: Any = torch.library.custom_op(f"structloss::{name}", function, mutates_args=())
        operation.register_fake(fake)

        def call(*args: A.args, **kwargs: A.kwargs) -> R:
            if torch.compiler.is_compiling():
                return cast(R, operation(*args, **kwargs))
            return function(*args, **kwargs)

        call.operation = operation  # type: ignore[attr-defined]
        return call

    return wrap


def _shape(unary: Maybe, table: Maybe) -> tuple[int, int, int]:
    """T, H, K."""
    scores = like(unary, table)
    return scores.shape[1] if scores.dim() > 2 else 0, 1 if table is None else table.shape[-2], scores.shape[-1]


def raise_for(status: np.ndarray[Any, Any]) -> None:
    """Raise for the first example that a kernel found to be unfit."""
    if not status.size or status.max() <= OK:
        return
    for code, found in ((NOT_A_NUMBER, "NaN"), (PLUS_INFINITY, f"+inf or a number above {LARGEST:g}")):
        bad = np.flatnonzero(status == code)
        if bad.size:
            raise ValueError(f"potentials: example {bad[0]} has {found}, but wanted numbers or -inf")


def _spread(kernel: Callable[..., None], parts: int, steps: int, *args: Any) -> None:
    run(kernel, torch.get_num_threads(), parts, steps, *args)


def _run(kernel: Callable[..., None], p: Potentials, passes: int, *args: Any) -> None:
    """Run a kernel on the examples of p, in as many threads as `passes` over its arcs are worth."""
    batch, T = p.lengths.shape[0], max(p.unary.shape[1], p.table.shape[1])
    H, K = max(1, p.table.shape[2]), max(p.unary.shape[2], p.table.shape[3])
    _spread(kernel, batch, batch * T * (H * K + 4 * K + 20) * passes, p, *args)


# --- log_partition ---------------------------------------------------------------------------------------------------


def _empty_gradients(unary: Maybe, table: Maybe, batch: int, want_unary: bool, want_table: bool) -> Gradients:
    """Zeros for each that is wanted, and an empty tensor for each that is not."""
    T, H, K = _shape(unary, table)
    scores = like(unary, table)
    shared = table is not None and table.dim() == 2
    return (
        scores.new_zeros((batch, T, K) if want_unary else (0, 0, 0)),
        scores.new_zeros((batch, H, K) if want_table and shared else (0, 0, 0)),
        scores.new_zeros((batch, T, H, K) if want_table and not shared else (0, 0, 0, 0)),
    )


def _fake_log_partition(
    unary: Maybe, table: Maybe, start: Maybe, end: Maybe, lengths: Tensor, pinned: Maybe, order: int,
    want_unary: bool, want_table: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    scores = like(unary, table)
    batch = lengths.shape[0]
    return scores.new_empty(batch), *_empty_gradients(unary, table, batch, want_unary, want_table)


@_opaque("chain_log_partition", _fake_log_partition)
def _log_partition(
    unary: Maybe, table: Maybe, start: Maybe, end: Maybe, lengths: Tensor, pinned: Maybe, order: int,
    want_unary: bool, want_table: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """log Z (B,) and, where wanted, the marginals: the gradient of each example's log Z."""
    arrays = as_arrays(unary, table, start, end, lengths, pinned, order)
    gradients = _empty_gradients(unary, table, lengths.shape[0], want_unary, want_table)
    return _fill_log_partition(arrays, None, gradients), *gradients


def _fill_log_partition(p: Potentials, machine: Augmentation | None, gradients: Gradients) -> Tensor:
    """log Z (B,); its gradients go into those that are not empty."""
    value, status = _results(p)
    arrays = [g.numpy() for g in gradients]
    wanted = any(a.size for a in arrays)
    passes = 3 if wanted else 1
    if machine is not None:
        m = machine.arrays
        _run(product_sum.log_partition, p, passes * machine.batch.widest, m, wanted, value, *arrays, status)
        raise_for(status)
        return as_tensor(value, gradients[0].dtype)
    if _fits_lanes(p):
        groups, (_, T, K) = -(-value.size // chain_lanes.LANES), p.unary.shape
        steps = value.size * T * K * (K // 4 + 2) * passes
        _spread(chain_lanes.log_partition_lanes, groups, steps, p, wanted, value, *arrays[:2], status)
    if value.size and status.max() > DONE:
        _run(chain_sum.log_partition, p, passes, wanted, value, *arrays, status)
        raise_for(status)
    return as_tensor(value, gradients[0].dtype)


def _results(p: Potentials) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Room for a number and a status of each example."""
    batch = p.lengths.shape[0]
    return np.zeros(batch), np.zeros(batch, np.int64)


def as_tensor(value: np.ndarray[Any, Any], dtype: torch.dtype) -> Tensor:
    """Sums (..., B), made in float64, in the potentials' own precision; one that is more than it holds is an error."""
    flat = value.reshape(-1)
    if flat.dot(flat) < 1e76:  # no number above 1e38: the usual case, found at once
        return torch.from_numpy(value.astype(_PRECISIONS[dtype], copy=False))
    largest = torch.finfo(dtype).max
    if not value.max() <= largest:
        b = int(np.argwhere(~(value <= largest))[0, -1])
        raise ValueError(
            f"potentials: the scores of example {b} add up to more than {dtype} holds; wanted smaller ones"
        )
    return torch.from_numpy(value).to(dtype)


_PRECISIONS = {torch.float32: np.float32, torch.float64: np.float64}


def _fits_lanes(p: Potentials) -> bool:
    """Whether examples go side by side: the usual CRF, not so long that memory would suffer, and where it is faster.

    An example's level was measured at 48 + 0.30 * K**2 ns side by side, and at 182 + 0.37 * K**2 ns on its own; but
    only whole groups of LANES can be spread over threads. A thread more is counted as a third of a core: two threads
    were measured 1.3 times as fast as one, on a shared machine.
    """
    batch, T, K = p.unary.shape
    if not p.shared or p.order != 2 or p.pinned.size or T * K * chain_lanes.LANES > 1 << 19:
        return False
    threads = torch.get_num_threads()
    groups = -(-batch // chain_lanes.LANES)
    side_by_side = groups * chain_lanes.LANES * (48 + 0.30 * K * K) / (1 + (min(groups, threads) - 1) / 3)
    return bool(side_by_side < batch * (182 + 0.37 * K * K) / (1 + (min(batch, threads) - 1) / 3))


def _weighed(
    g: Tensor, gradients: Gradients, p: Potentials, needs: Sequence[bool], in_place: bool
) -> tuple[Maybe, ...]:
    """The gradients of unary, table, start and end, from each example's own and the incoming g (B,)."""
    g_unary, g_table, g_levels = gradients
    own, dtype = g_unary.numpy(), p.unary.dtype
    unary = own if in_place else np.empty_like(own)
    table = np.zeros(g_table.shape[1:] if needs[1] and p.shared else (0, 0), dtype)
    start, end = np.zeros(own.shape[2] if needs[2] else 0, dtype), np.zeros(own.shape[2] if needs[3] else 0, dtype)
    chain_sum.weigh(g.contiguous().numpy(), p.lengths, own, g_table.numpy(), unary, table, start, end)
    in_table: Maybe = None
    if needs[1] and p.shared:
        in_table = torch.from_numpy(table)
    elif needs[1]:
        weights = g[:, None, None, None]
        in_table = g_levels.mul_(weights) if in_place else g_levels * weights
    in_unary = (g_unary if in_place else torch.from_numpy(unary)) if needs[0] else None
    return in_unary, in_table, _needed(start, needs[2]), _needed(end, needs[3])


def _needed(array: np.ndarray[Any, Any], needed: bool) -> Maybe:
    return torch.from_numpy(array) if needed else None


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, unary: Maybe, table: Maybe, start: Maybe, end: Maybe,
        arrays: Potentials, machine: Augmentation | None,
    ) -> Tensor:  # fmt: skip
        needs = ctx.needs_input_grad
        ctx.machine = machine
        ctx.arrays, ctx.wants = arrays, (needs[0] or needs[2] or needs[3], needs[1])
        ctx.gradients = _empty_gradients(unary, table, arrays.lengths.shape[0], *ctx.wants)
        ctx.save_for_backward(unary, table, start, end)
        return _fill_log_partition(arrays, machine, ctx.gradients)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        if ctx.gradients is None:  # a second pass through a retained graph: the first one's went into its result
            ctx.gradients = _empty_gradients(ctx.saved_tensors[0], ctx.saved_tensors[1], g.shape[0], *ctx.wants)
            _fill_log_partition(ctx.arrays, ctx.machine, ctx.gradients)
        gradients, ctx.gradients = ctx.gradients, None
        with torch.no_grad():
            # In place, to keep the peak at one array of gradients.
            result = _weighed(g, gradients, ctx.arrays, ctx.needs_input_grad, in_place=True)
        return *guard(result, ctx.saved_tensors), None, None


def _setup_log_partition(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:], inputs[4])
    ctx.mark_non_differentiable(*output[1:])


def _scaled(g: Tensor, gradients: Sequence[Tensor], lengths: Tensor, needs: Sequence[bool]) -> tuple[Maybe, ...]:
    """What `_weighed` gives, in tensor operations that the compiler can trace."""
    g_unary, g_table, g_levels = gradients
    g_unary = g_unary * g[:, None, None]
    table = start = end = None
    if needs[1]:
        table = torch.tensordot(g, g_table, 1) if g_levels.shape[2] == 0 else g_levels * g[:, None, None, None]
    if needs[2]:
        start = g_unary[:, :1].sum((0, 1))
    if needs[3]:
        last = torch.arange(g_unary.shape[1]) == lengths[:, None] - 1
        end = (g_unary * last[:, :, None]).sum((0, 1))
    return g_unary if needs[0] else None, table, start, end


def _backward_log_partition(ctx: Any, g: Tensor, *_: Tensor) -> Any:
    *gradients, lengths = ctx.saved_tensors
    needs = tuple(ctx.needs_input_grad[:4])
    return *_scaled(g, gradients, lengths, needs), None, None, None, None, None


_log_partition.operation.register_autograd(_backward_log_partition, setup_context=_setup_log_partition)  # type: ignore[attr-defined]


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    if torch.compiler.is_compiling():
        return _log_partition(*p.tensors, p.unary is not None, p.table is not None)[0]
    return apply(_LogPartition, *p.potentials, p.arrays, p.machine)


def marginals(p: Parts) -> Tensor:
    """The probability of each arc, (B, T, H, K)."""
    batch, (T, H, K) = p.lengths.shape[0], _shape(p.unary, p.table)
    levels = p.any_potential.new_zeros(batch, T, H, K)
    none = np.zeros((0, 0, 0), levels.numpy().dtype)
    status = np.zeros(batch, np.int64)
    outputs = (True, np.zeros(batch), none, none, levels.numpy(), status)
    if p.machine is None:
        _run(chain_sum.log_partition, p.arrays, 4, *outputs)
    else:
        _run(product_sum.log_partition, p.arrays, 4 * p.machine.batch.widest, p.machine.arrays, *outputs)
    raise_for(status)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in p.potentials):
        return apply(NoSecondDerivative, levels, *p.potentials)
    return levels


# --- expectation -----------------------------------------------------------------------------------------------------


def _fake_expectation(*arguments: Any) -> tuple[Tensor, ...]:
    p, f, wants = arguments[:7], arguments[7:14], arguments[14:]
    batch = p[4].shape[0]
    return (
        like(p[0], p[1]).new_empty(batch),
        *_empty_gradients(p[0], p[1], batch, wants[0], wants[1]),
        *_empty_gradients(f[0], f[1], batch, wants[2], wants[3]),
    )


@_opaque("chain_expectation", _fake_expectation)
def _expectation(
    p_unary: Maybe, p_table: Maybe, p_start: Maybe, p_end: Maybe, p_lengths: Tensor, p_pinned: Maybe, p_order: int,
    f_unary: Maybe, f_table: Maybe, f_start: Maybe, f_end: Maybe, f_lengths: Tensor, f_pinned: Maybe, f_order: int,
    want_p_unary: bool, want_p_table: bool, want_f_unary: bool, want_f_table: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """E[score of y under f], y drawn from p (B,), and, where wanted, its gradients in p and in f."""
    p = as_arrays(p_unary, p_table, p_start, p_end, p_lengths, p_pinned, p_order)
    f = as_arrays(f_unary, f_table, f_start, f_end, f_lengths, f_pinned, f_order)
    batch = p_lengths.shape[0]
    in_p = _empty_gradients(p_unary, p_table, batch, want_p_unary, want_p_table)
    in_f = _empty_gradients(f_unary, f_table, batch, want_f_unary, want_f_table)
    return _fill_expectation(p, f, None, in_p, in_f), *in_p, *in_f


def _fill_expectation(p: Potentials, f: Potentials, machine: Joint | None, in_p: Gradients, in_f: Gradients) -> Tensor:
    """The expectation (B,); its gradients go into those that are not empty."""
    value, status = _results(p)
    arrays = [g.numpy() for g in (*in_p, *in_f)]
    wanted = any(a.size for a in arrays)
    if machine is None:
        _run(chain_sum.expectation, p, 6 if wanted else 3, f, wanted, value, *arrays, status)
    else:
        widest = int(machine.first.sizes.max(initial=1))
        extra = (machine.first, f, machine.second_weight, machine.second_final)
        _run(product_mean.expectation, p, 6 * widest, *extra, wanted, value, *arrays, status)
    raise_for(status)
    return as_tensor(value, in_p[0].dtype)


class _Expectation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:  # the potentials of p, those of f, the arrays of both
        needs, (p, f, machine) = ctx.needs_input_grad, arguments[8:]
        batch = p.lengths.shape[0]
        in_p = _empty_gradients(arguments[0], arguments[1], batch, needs[0] or needs[2] or needs[3], needs[1])
        in_f = _empty_gradients(arguments[4], arguments[5], batch, needs[4] or needs[6] or needs[7], needs[5])
        ctx.arrays, ctx.gradients = (p, f), (in_p, in_f)
        ctx.save_for_backward(*arguments[:8])
        return _fill_expectation(p, f, machine, in_p, in_f)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        needs = ctx.needs_input_grad
        with torch.no_grad():
            in_p = _weighed(g, ctx.gradients[0], ctx.arrays[0], needs[:4], in_place=False)
            in_f = _weighed(g, ctx.gradients[1], ctx.arrays[1], needs[4:8], in_place=False)
        return *guard((*in_p, *in_f), ctx.saved_tensors), None, None, None


def _setup_expectation(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:], inputs[4])
    ctx.mark_non_differentiable(*output[1:])


def _backward_expectation(ctx: Any, g: Tensor, *_: Tensor) -> Any:
    *gradients, lengths = ctx.saved_tensors
    needs = ctx.needs_input_grad
    in_p = _scaled(g, gradients[:3], lengths, needs[:4])
    in_f = _scaled(g, gradients[3:], lengths, needs[7:11])
    return *in_p, None, None, None, *in_f, None, None, None, None, None, None, None


_expectation.operation.register_autograd(_backward_expectation, setup_context=_setup_expectation)  # type: ignore[attr-defined]


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score of y under f], y drawn from p. (B,)"""
    if torch.compiler.is_compiling():
        wants = (p.unary is not None, p.table is not None, f.unary is not None, f.table is not None)
        return _expectation(*p.tensors, *f.tensors, *wants)[0]
    machine = None if p.machine is None and f.machine is None else joint(p.machine, f.machine)
    return apply(_Expectation, *p.potentials, *f.potentials, p.arrays, f.arrays, machine)


# --- score -----------------------------------------------------------------------------------------------------------


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, unary: Maybe, table: Maybe, start: Maybe, end: Maybe,
        arrays: Potentials, machine: Augmentation | None,
    ) -> Tensor:  # fmt: skip
        value, status = np.zeros(y.shape[:2]), np.zeros(y.shape[1], np.int64)
        labels = y.contiguous().numpy()
        chain_max.score(arrays, labels, value, status)
        raise_for(status)
        if machine is not None:
            losses = np.empty_like(value)
            walk(machine.arrays, arrays.lengths, labels, losses)
            value += losses
        ctx.save_for_backward(unary, table, start, end)
        ctx.labels, ctx.arrays, ctx.impossible = labels, arrays, value == -np.inf
        return as_tensor(value, like(unary, table).dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        p, dtype, needs = ctx.arrays, ctx.arrays.unary.dtype, ctx.needs_input_grad[1:5]
        weights = np.where(ctx.impossible, 0, g.numpy())
        # Zeros of numpy's take no memory until they are written to.
        unary, table, start, end = (
            np.zeros(x.shape if needed else (0,) * x.ndim, dtype) for x, needed in zip(p[:4], needs, strict=True)
        )
        none = np.zeros((0, 0), dtype), np.zeros((0, 0, 0, 0), dtype)
        in_table = (table[0, 0] if needs[1] else none[0], none[1]) if p.shared else (none[0], table)
        chain_max.score_gradient(p, ctx.labels, weights, unary, *in_table, start, end)
        found = (unary, in_table[0] if p.shared else table, start, end)
        gradients = [_needed(array, needed) for array, needed in zip(found, needs, strict=True)]
        return None, *guard(gradients, ctx.saved_tensors), None, None


def score(p: Parts, y: Tensor) -> Tensor:
    """The score of each output y (n, B, T): (n, B)."""
    return apply(_Score, y, *p.potentials, p.arrays, p.machine)


# --- searches: no derivative -----------------------------------------------------------------------------------------


def _fake_argmax(
    unary: Maybe, table: Maybe, start: Maybe, end: Maybe, lengths: Tensor, pinned: Maybe, order: int
) -> tuple[Tensor, Tensor]:
    batch = lengths.shape[0]
    return lengths.new_empty(batch, _shape(unary, table)[0]), lengths.new_empty(batch, dtype=torch.bool)


@_opaque("chain_argmax", _fake_argmax)
def _argmax(
    unary: Maybe, table: Maybe, start: Maybe, end: Maybe, lengths: Tensor, pinned: Maybe, order: int
) -> tuple[Tensor, Tensor]:
    arrays = as_arrays(unary, table, start, end, lengths, pinned, order)
    batch = lengths.shape[0]
    labels, status = torch.zeros(batch, _shape(unary, table)[0], dtype=torch.int64), np.zeros(batch, np.int64)
    _run(chain_max.argmax, arrays, 2, labels.numpy(), status)
    raise_for(status)
    return labels, torch.from_numpy(status != EMPTY)


def argmax(p: Parts) -> tuple[Tensor, Tensor]:
    """The best output (B, T), and whether there is any (B,)."""
    if p.machine is None:
        return _argmax(*p.tensors)
    return argmax_under(p, p.machine.arrays)


def argmax_under(p: Parts, machines: Machines) -> tuple[Tensor, Tensor]:
    """The best output (B, T) of the chain times these machines, and whether there is any (B,)."""
    batch = p.lengths.shape[0]
    labels, status = torch.zeros(batch, p.num_positions, dtype=torch.int64), np.zeros(batch, np.int64)
    _run(product_max.argmax, p.arrays, 2 * int(machines.sizes.max(initial=1)), machines, labels.numpy(), status)
    raise_for(status)
    return labels, torch.from_numpy(status != EMPTY)


def topk(p: Parts, k: int) -> Tensor:
    """The k best outputs (B, k, T), best first, -1 where there are fewer."""
    batch, (T, _, _) = p.lengths.shape[0], _shape(p.unary, p.table)
    labels, status = torch.full((batch, k, T), -1), np.zeros(batch, np.int64)
    if p.machine is None:
        _run(chain_max.topk, p.arrays, 2 * k, labels.numpy(), status)
    else:
        passes = 2 * k * p.machine.batch.widest
        _run(product_max.topk, p.arrays, passes, p.machine.arrays, labels.numpy(), status)
    raise_for(status)
    return labels


def sample(p: Parts, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (n, B, T) by inverting P(y | h) at uniforms (n, B, T), and whether there is any (B,)."""
    labels, status = torch.zeros(uniforms.shape, dtype=torch.int64), np.zeros(p.lengths.shape[0], np.int64)
    if p.machine is None:
        _run(chain_sum.sample, p.arrays, 3, uniforms.numpy(), labels.numpy(), status)
    else:
        draws = (p.machine.arrays, uniforms.numpy(), labels.numpy(), status)
        _run(product_sum.sample, p.arrays, 3 * p.machine.batch.widest, *draws)
    raise_for(status)
    return labels, torch.from_numpy(status != EMPTY)


def strata(p: Parts, next_stratum: Tensor, cost_class: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The best score (B, V) and output (B, V, T) of each stratum of level 0: see `kernels.chain_max.strata`."""
    batch, T, V = next_stratum.shape[:3]
    best = torch.full((batch, V), -torch.inf, dtype=torch.float64)
    labels, status = torch.zeros(batch, V, T, dtype=torch.int64), np.zeros(batch, np.int64)
    levels = (next_stratum.numpy(), cost_class.numpy(), sizes.numpy())
    _run(chain_max.strata, p.arrays, 2 * V, *levels, best.numpy(), labels.numpy(), status)
    raise_for(status)
    return best.to(p.any_potential.dtype), labels


def best(p: Parts, k: int) -> Found:
    """The k best outputs (k, B, T), best first, and whether there are so many (k, B)."""
    if k == 1:
        labels, exists = argmax(p)
        return Found(labels[None], exists[None])
    return ranked(p, topk(p, k) if p.num_positions else None, k)


def draw(p: Parts, n: int, generator: torch.Generator | None) -> Found:
    """n outputs (n, B, T) with probability exp(score) / Z, and whether there is any (B,)."""
    return Found(*sample(p, p.uniforms(n, generator)))
