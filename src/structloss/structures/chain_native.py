"""The chain by compiled kernels: CPU tensors in and out, values and first derivatives.

Each operation is a function of tensors. Eagerly it is called as it is, inside an `autograd.Function` where it has a
derivative (44 microseconds); under `torch.compile` it goes through a `torch.library.custom_op` (110 microseconds), which
the compiler can keep in a whole graph.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from structloss.kernels import chain_max, chain_sum
from structloss.kernels.levels import EMPTY, NOT_A_NUMBER, PLUS_INFINITY, Potentials
from structloss.kernels.workers import run
from structloss.structures.chain_parts import Parts

A = ParamSpec("A")
R = TypeVar("R")
Maybe = Tensor | None
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


def _array(x: Maybe, dtype: torch.dtype, dims: int) -> np.ndarray[Any, Any]:
    if x is None:
        return torch.empty((0,) * dims, dtype=dtype).numpy()
    return x.detach().to(dtype).contiguous().numpy()


def _arrays(unary: Maybe, table: Maybe, start: Maybe, end: Maybe, lengths: Tensor, pinned: Maybe, order: int) -> Potentials:
    dtype = (unary if unary is not None else cast(Tensor, table)).dtype
    shared = table is not None and table.dim() == 2
    return Potentials(
        _array(unary, dtype, 3),
        _array(table if table is None or not shared else table[None, None], dtype, 4),
        _array(start, dtype, 1),
        _array(end, dtype, 1),
        lengths.contiguous().numpy(),
        _array(pinned, torch.int64, 2),
        shared,
        order,
    )


def _shape(unary: Maybe, table: Maybe) -> tuple[int, int, int]:
    """T, H, K."""
    like = cast(Tensor, unary if unary is not None else table)
    return like.shape[1], 1 if table is None else table.shape[-2], like.shape[-1]


def _raise_for(status: np.ndarray[Any, Any]) -> None:
    """Raise for the first example that a kernel found to be unfit."""
    if not status.any():
        return
    for code, found in ((NOT_A_NUMBER, "NaN"), (PLUS_INFINITY, "+inf")):
        bad = np.flatnonzero(status == code)
        if bad.size:
            raise ValueError(f"potentials: example {bad[0]} has {found}, but wanted numbers or -inf")


def _run(kernel: Callable[..., None], p: Potentials, passes: int, *args: Any) -> None:
    histories, K = max(1, p.table.shape[2]), max(p.unary.shape[2], p.table.shape[3])
    steps = int(p.lengths.sum()) * (histories * K + 4 * K + 20) * passes
    run(kernel, torch.get_num_threads(), p.lengths.shape[0], steps, p, *args)


class _NoSecondDerivative(torch.autograd.Function):
    """The identity, whose own derivative is a clear error."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError(
            'the native engine has first derivatives only; for a derivative of a derivative use sl.engine("torch")'
        )


def _guard(x: Maybe) -> Maybe:
    """In a backward pass that is itself being recorded (create_graph=True), refuse to be differentiated again."""
    if x is None or not torch.is_grad_enabled():
        return x
    return cast(Tensor, _NoSecondDerivative.apply(x.requires_grad_()))


# --- log_partition ---------------------------------------------------------------------------------------------------


def _empty_gradients(unary: Maybe, table: Maybe, batch: int, want_unary: bool, want_table: bool) -> Gradients:
    T, H, K = _shape(unary, table)
    like = cast(Tensor, unary if unary is not None else table)
    shared = table is not None and table.dim() == 2
    return (
        like.new_zeros((batch, T, K) if want_unary else (0, 0, 0)),
        like.new_zeros((batch, H, K) if want_table and shared else (0, 0, 0)),
        like.new_zeros((batch, T, H, K) if want_table and not shared else (0, 0, 0, 0)),
    )


def _fake_log_partition(
    unary: Maybe, table: Maybe, start: Maybe, end: Maybe, lengths: Tensor, pinned: Maybe, order: int,
    want_unary: bool, want_table: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    like = cast(Tensor, unary if unary is not None else table)
    batch = lengths.shape[0]
    return like.new_empty(batch), *_empty_gradients(unary, table, batch, want_unary, want_table)


@_opaque("chain_log_partition", _fake_log_partition)
def _log_partition(
    unary: Maybe, table: Maybe, start: Maybe, end: Maybe, lengths: Tensor, pinned: Maybe, order: int,
    want_unary: bool, want_table: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """log Z (B,) and, where wanted, the marginals: the gradient of each example's log Z."""
    p = _arrays(unary, table, start, end, lengths, pinned, order)
    batch = lengths.shape[0]
    gradients = _empty_gradients(unary, table, batch, want_unary, want_table)
    value, status = np.zeros(batch), np.zeros(batch, np.int64)
    wanted = want_unary or want_table
    _run(chain_sum.log_partition, p, 3 if wanted else 1, wanted, value, *(g.numpy() for g in gradients), status)
    _raise_for(status)
    like = cast(Tensor, unary if unary is not None else table)
    return torch.from_numpy(value).to(like.dtype), *gradients


def _scaled(
    g: Tensor, gradients: Gradients, lengths: Tensor, needs: tuple[bool, ...],
    multiply: Callable[[Tensor, Tensor], Tensor] = torch.mul,
) -> tuple[Maybe, ...]:  # fmt: skip
    """The gradients of unary, table, start and end, from each example's own and the incoming g (B,)."""
    g_unary, g_table, g_levels = gradients
    if g_unary.numel():
        g_unary = multiply(g_unary, g[:, None, None])
    table: Maybe = None
    if needs[1]:
        shared = g_levels.shape[2] == 0
        table = torch.tensordot(g, g_table, 1) if shared else multiply(g_levels, g[:, None, None, None])
    return g_unary if needs[0] else None, table, *_ends(g_unary, lengths, needs)


def _ends(g_unary: Tensor, lengths: Tensor, needs: tuple[bool, ...]) -> tuple[Maybe, Maybe]:
    """The gradients of start and end from those of the labels, which are zero beyond a length."""
    start = g_unary[:, :1].sum((0, 1)) if needs[2] else None
    end: Maybe = None
    if needs[3]:
        last = (lengths - 1).clamp(min=0)
        end = g_unary[torch.arange(lengths.shape[0]), last].sum(0) if g_unary.shape[1] else g_unary.sum((0, 1))
    return start, end


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, unary: Maybe, table: Maybe, start: Maybe, end: Maybe, lengths: Tensor, pinned: Maybe, order: int
    ) -> Tensor:
        needs = ctx.needs_input_grad
        ctx.order, ctx.lengths, ctx.wants = order, lengths, (needs[0] or needs[2] or needs[3], needs[1])
        value, *ctx.gradients = _log_partition(unary, table, start, end, lengths, pinned, order, *ctx.wants)
        ctx.save_for_backward(unary, table, start, end, pinned)
        return value

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        if ctx.gradients is None:  # a second backward pass through a retained graph: the first took them
            *potentials, pinned = ctx.saved_tensors
            _, *ctx.gradients = _log_partition(*potentials, ctx.lengths, pinned, ctx.order, *ctx.wants)
        gradients, ctx.gradients = tuple(ctx.gradients), None
        with torch.no_grad():
            # Scaled in place, to keep the peak at one array of gradients.
            result = _scaled(g, gradients, ctx.lengths, ctx.needs_input_grad, torch.Tensor.mul_)
        return *(_guard(x) for x in result), None, None, None


def _setup_log_partition(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:], inputs[4])
    ctx.mark_non_differentiable(*output[1:])


def _backward_log_partition(ctx: Any, g: Tensor, *_: Tensor) -> Any:
    *gradients, lengths = ctx.saved_tensors
    needs = tuple(ctx.needs_input_grad[:4])
    return *_scaled(g, cast(Gradients, tuple(gradients)), lengths, needs), None, None, None, None, None


_log_partition.operation.register_autograd(_backward_log_partition, setup_context=_setup_log_partition)  # type: ignore[attr-defined]


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    if torch.compiler.is_compiling():
        return _log_partition(*p, p.unary is not None, p.table is not None)[0]
    return cast(Tensor, _LogPartition.apply(*p))


def marginals(p: Parts) -> Tensor:
    """The probability of each arc, (B, T, H, K)."""
    arrays = _arrays(*p)
    batch, (T, H, K) = p.lengths.shape[0], _shape(p.unary, p.table)
    levels = p.any_potential.new_zeros(batch, T, H, K)
    none = np.zeros((0, 0, 0), levels.numpy().dtype)
    status = np.zeros(batch, np.int64)
    _run(chain_sum.log_partition, arrays, 4, True, np.zeros(batch), none, none, levels.numpy(), status)
    _raise_for(status)
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in p.potentials):
        return cast(Tensor, _NoSecondDerivative.apply(levels.requires_grad_()))
    return levels


# --- expectation -----------------------------------------------------------------------------------------------------


def _fake_expectation(*arguments: Any) -> tuple[Tensor, ...]:
    p, f, wants = arguments[:7], arguments[7:14], arguments[14:]
    batch = p[4].shape[0]
    like = p[0] if p[0] is not None else p[1]
    return (
        like.new_empty(batch),
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
    p = _arrays(p_unary, p_table, p_start, p_end, p_lengths, p_pinned, p_order)
    f = _arrays(f_unary, f_table, f_start, f_end, f_lengths, f_pinned, f_order)
    batch = p_lengths.shape[0]
    in_p = _empty_gradients(p_unary, p_table, batch, want_p_unary, want_p_table)
    in_f = _empty_gradients(f_unary, f_table, batch, want_f_unary, want_f_table)
    value, status = np.zeros(batch), np.zeros(batch, np.int64)
    wanted = want_p_unary or want_p_table or want_f_unary or want_f_table
    arrays = (g.numpy() for g in (*in_p, *in_f))
    _run(chain_sum.expectation, p, 6 if wanted else 3, f, wanted, value, *arrays, status)
    _raise_for(status)
    like = cast(Tensor, p_unary if p_unary is not None else p_table)
    return torch.from_numpy(value).to(like.dtype), *in_p, *in_f


class _Expectation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        needs = ctx.needs_input_grad
        wants = (needs[0] or needs[2] or needs[3], needs[1], needs[7] or needs[9] or needs[10], needs[8])
        value, *ctx.gradients = _expectation(*arguments, *wants)
        ctx.lengths = arguments[4]
        return value

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        with torch.no_grad():
            in_p = _scaled(g, tuple(ctx.gradients[:3]), ctx.lengths, ctx.needs_input_grad[:4])  # type: ignore[arg-type]
            in_f = _scaled(g, tuple(ctx.gradients[3:]), ctx.lengths, ctx.needs_input_grad[7:11])  # type: ignore[arg-type]
        return *(_guard(x) for x in in_p), None, None, None, *(_guard(x) for x in in_f), None, None, None


def _setup_expectation(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*output[1:], inputs[4])
    ctx.mark_non_differentiable(*output[1:])


def _backward_expectation(ctx: Any, g: Tensor, *_: Tensor) -> Any:
    *gradients, lengths = ctx.saved_tensors
    needs = ctx.needs_input_grad
    in_p = _scaled(g, cast(Gradients, tuple(gradients[:3])), lengths, tuple(needs[:4]))
    in_f = _scaled(g, cast(Gradients, tuple(gradients[3:])), lengths, tuple(needs[7:11]))
    return *in_p, None, None, None, *in_f, None, None, None, None, None, None, None


_expectation.operation.register_autograd(_backward_expectation, setup_context=_setup_expectation)  # type: ignore[attr-defined]


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score of y under f], y drawn from p. (B,)"""
    if torch.compiler.is_compiling():
        wants = (p.unary is not None, p.table is not None, f.unary is not None, f.table is not None)
        return _expectation(*p, *f, *wants)[0]
    return cast(Tensor, _Expectation.apply(*p, *f))


# --- score -----------------------------------------------------------------------------------------------------------


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, y: Tensor, unary: Maybe, table: Maybe, start: Maybe, end: Maybe, lengths: Tensor, pinned: Maybe, order: int
    ) -> Tensor:
        p = _arrays(unary, table, start, end, lengths, pinned, order)
        value, status = np.zeros(y.shape[:2]), np.zeros(lengths.shape[0], np.int64)
        labels = y.contiguous()
        chain_max.score(p, labels.numpy(), value, status)
        _raise_for(status)
        ctx.save_for_backward(labels, unary, table, start, end, lengths)
        ctx.order, ctx.impossible = order, torch.from_numpy(value == -np.inf)
        return torch.from_numpy(value).to(cast(Tensor, unary if unary is not None else table).dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        y, unary, table, start, end, lengths = ctx.saved_tensors
        p = _arrays(unary, table, start, end, lengths, None, ctx.order)
        like = unary if unary is not None else table
        with torch.no_grad():
            gradients = [
                torch.zeros_like(x, memory_format=torch.contiguous_format) if needed else None
                for x, needed in zip((unary, table, start, end), ctx.needs_input_grad[1:5], strict=True)
            ]
            g_unary, g_table, g_start, g_end = gradients
            shared = table is not None and table.dim() == 2
            chain_max.score_gradient(
                p, y.numpy(), g.masked_fill(ctx.impossible, 0).contiguous().numpy(),
                _array(g_unary, like.dtype, 3),
                _array(g_table if shared else None, like.dtype, 2),
                _array(None if shared else g_table, like.dtype, 4),
                _array(g_start, like.dtype, 1), _array(g_end, like.dtype, 1),
            )  # fmt: skip
        return None, *(_guard(x) for x in gradients), None, None, None


def score(p: Parts, y: Tensor) -> Tensor:
    """The score of each output y (n, B, T): (n, B)."""
    return cast(Tensor, _Score.apply(y, *p))


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
    p = _arrays(unary, table, start, end, lengths, pinned, order)
    batch = lengths.shape[0]
    labels, status = torch.zeros(batch, _shape(unary, table)[0], dtype=torch.int64), np.zeros(batch, np.int64)
    _run(chain_max.argmax, p, 2, labels.numpy(), status)
    _raise_for(status)
    return labels, torch.from_numpy(status != EMPTY)


def argmax(p: Parts) -> tuple[Tensor, Tensor]:
    """The best output (B, T), and whether there is any (B,)."""
    return _argmax(*p)


def topk(p: Parts, k: int) -> Tensor:
    """The k best outputs (B, k, T), best first, -1 where there are fewer."""
    batch, (T, _, _) = p.lengths.shape[0], _shape(p.unary, p.table)
    labels, status = torch.full((batch, k, T), -1), np.zeros(batch, np.int64)
    _run(chain_max.topk, _arrays(*p), 2 * k, labels.numpy(), status)
    _raise_for(status)
    return labels


def sample(p: Parts, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (n, B, T) by inverting P(y | h) at uniforms (n, B, T), and whether there is any (B,)."""
    labels, status = torch.zeros(uniforms.shape, dtype=torch.int64), np.zeros(p.lengths.shape[0], np.int64)
    _run(chain_sum.sample, _arrays(*p), 3, uniforms.numpy(), labels.numpy(), status)
    _raise_for(status)
    return labels, torch.from_numpy(status != EMPTY)


def strata(p: Parts, next_stratum: Tensor, cost_class: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The best score (B, V) and output (B, V, T) of each stratum of level 0: see `kernels.chain_max.strata`."""
    batch, T, V = next_stratum.shape[:3]
    best = torch.full((batch, V), -torch.inf, dtype=torch.float64)
    labels, status = torch.zeros(batch, V, T, dtype=torch.int64), np.zeros(batch, np.int64)
    levels = (next_stratum.numpy(), cost_class.numpy(), sizes.numpy())
    _run(chain_max.strata, _arrays(*p), 2 * V, *levels, best.numpy(), labels.numpy(), status)
    _raise_for(status)
    return best.to(p.any_potential.dtype), labels
