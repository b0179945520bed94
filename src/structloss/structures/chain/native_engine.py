"""The chain by compiled kernels: CPU tensors in and out, values and first derivatives."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels import dense, dense_log, dense_max, lanes
from structloss.kernels.levels import Machines, Potentials, walk
from structloss.kernels.types import DONE, LARGEST, NOT_A_NUMBER, OK, PLUS_INFINITY, UNSAFE
from structloss.kernels.workers import run
from structloss.structures import derivatives
from structloss.structures.base import Found
from structloss.structures.chain.machines import joint
from structloss.structures.chain.parts import Parts, as_arrays
from structloss.structures.derivatives import Maybe, Solve, apply, as_array, as_precise, guard, known, once_only

Numbers = NDArray[Any]


def raise_for(status: Numbers) -> None:
    """Raise for the first example that a kernel found to be unfit."""
    if not status.size or status.max() <= OK:
        return
    for code, found in ((NOT_A_NUMBER, "NaN"), (PLUS_INFINITY, f"+inf or a number above {LARGEST:g}")):
        bad = np.flatnonzero(status == code)
        if bad.size:
            raise ValueError(f"potentials: example {bad[0]} has {found}, but wanted numbers or -inf")


def check_sums(value: Numbers, dtype: torch.dtype) -> None:
    """Raise where sums (..., B), made in float64, are more than the potentials' own precision holds."""
    flat = value.real.reshape(-1)
    if flat.dot(flat) < 1e76:  # no number above 1e38: the usual case, found at once
        return
    largest = torch.finfo(dtype).max
    wrong = np.argwhere(~(value.real <= largest))
    if len(wrong):
        raise ValueError(
            f"potentials: the scores of example {wrong[0, -1]} add up to more than {dtype} holds; wanted smaller ones"
        )


def _run(kernel: Callable[..., None], p: Potentials, m: Machines, passes: int, *args: Any) -> None:
    """Run a kernel on the examples of p times m, in as many threads as `passes` over its arcs are worth."""
    batch, T = p.lengths.shape[0], max(p.unary.shape[1], p.table.shape[1])
    H, K = max(1, p.table.shape[2]), max(p.unary.shape[2], p.table.shape[3])
    steps = batch * T * (H * K + 4 * K + 20) * passes * int(m.sizes.max(initial=1))
    run(kernel, torch.get_num_threads(), batch, steps, p, m, *args)


def _run_dense(
    kernel: Callable[..., None], p: Potentials, m: Machines, few: int, passes: int, status: Numbers, *args: Any
) -> None:
    """Run a kernel of `dense` on what is not done: apart on machines of at most `few` states a level, if most have."""
    rest = status != DONE
    narrow = rest & (m.sizes.max(1) <= (few if p.order == 2 else 1))
    if (p.order != 2 and m.weight.size) or 2 * narrow.sum() <= rest.sum():  # some would not be worth a kernel more
        narrow[:] = False
    for is_few, which in ((True, narrow), (None, rest & ~narrow)):
        examples = which.nonzero()[0]
        if examples.size:
            _run(kernel, p, m, passes, examples, is_few, *args, status)


# --- Sums ------------------------------------------------------------------------------------------------------------


def _log_partition(
    p: Potentials, m: Machines, want_unary: bool, want_table: bool, want_levels: bool, want_final: bool
) -> tuple[Numbers, Numbers, Numbers, Numbers, Numbers]:
    """log Z (B,), and what is wanted of its gradients, zero or empty: as `dense.log_partition` has them."""
    batch, kind = p.lengths.shape[0], p.unary.dtype
    T = p.unary.shape[1] if p.shared else max(p.unary.shape[1], p.table.shape[1])
    H, K = max(1, p.table.shape[2]), max(p.unary.shape[2], p.table.shape[3])
    value = np.zeros(batch, np.complex128 if kind.kind == "c" else np.float64)
    status = np.zeros(batch, np.int64)
    gradients = (
        np.zeros((batch, T, K) if want_unary else (0, 0, 0), kind),
        np.zeros((batch, H, K) if want_table else (0, 0, 0), kind),
        np.zeros((batch, T, H, K) if want_levels else (0, 0, 0, 0), kind),
        np.zeros((batch, m.final.shape[1]) if want_final else (0, 0), value.dtype),
    )
    wanted = want_unary or want_table or want_levels or want_final
    passes = 3 if wanted else 1
    order = _side_by_side(p, m) if not want_levels and not want_final else _NO_EXAMPLES
    if order.size:
        groups, steps = -(-len(order) // lanes.LANES), len(order) * T * K * (K // 4 + 2) * passes
        threads = torch.get_num_threads()
        run(lanes.log_partition, threads, groups, steps, p, order, wanted, value, *gradients[:2], status)
    if status.max(initial=DONE) > DONE:
        _run_dense(dense.log_partition, p, m, dense.FEW, passes, status, wanted, value, *gradients)
        if status.max() == UNSAFE:
            _run(dense_log.log_partition, p, m, passes, wanted, value, *gradients, status)
        raise_for(status)
    return value, *gradients


_NOBODY_CAN_TELL = 20_000  # ns: so little is done side by side, and a first call compiles one kernel instead of two


_NO_EXAMPLES = np.zeros(0, np.int64)


def _side_by_side(p: Potentials, m: Machines) -> Numbers:
    """The examples that go side by side, by their lengths: the usual CRF, not so long that memory would suffer.

    They have no machine, or one that adds nothing, as ChunkErrors has for a sentence without chunks. None where that is
    slower: an example's level was measured at 48 + 0.30 * K**2 ns side by side, and at 182 + 0.37 * K**2 ns on its own;
    but only whole groups of LANES can be spread over threads. A thread more is counted as a third of a core: two
    threads were measured 1.3 times as fast as one, on a shared machine.
    """
    batch, T, K = p.unary.shape
    usual = p.shared and p.order == 2 and not p.pinned.size and p.unary.dtype.kind == "f"
    if not usual or T * K * lanes.LANES > 1 << 19:
        return _NO_EXAMPLES
    order = p.lengths.argsort(kind="stable")
    if m.next_state.size > 1:
        order = order[_adds_nothing(m)[order]] if len(m.sizes) == batch else _NO_EXAMPLES
    count, threads = len(order), torch.get_num_threads()
    groups = -(-count // lanes.LANES)
    side_by_side = groups * lanes.LANES * (48 + 0.30 * K * K) / (1 + (min(groups, threads) - 1) / 3)
    alone = count * (182 + 0.37 * K * K) / (1 + (min(count, threads) - 1) / 3)
    faster = side_by_side < alone or (count == batch and side_by_side * T < _NOBODY_CAN_TELL)
    return order if faster else _NO_EXAMPLES


def _adds_nothing(m: Machines) -> NDArray[np.bool_]:
    """Of each machine, whether it has one state a level and no weights."""
    one: NDArray[np.bool_] = (m.sizes.max(1) == 1) & (m.final[:, 0] == 0)
    if m.weight.size and one.any():
        one &= ~np.logical_or.reduceat(m.weight != 0, m.arc_begin[:, 0])
    return one


def solver(p: Parts, machines: Machines) -> Solve:
    """log Z of p's outputs from unary, table, start and end, and of the machines, unless None, weights and finals.

    Or from `p.arrays`, and the machines as they are.
    """
    dtype, shared = p.any_potential.dtype, p.shared

    def solve(potentials: Sequence[Any], wanted: Sequence[bool]) -> tuple[Numbers, Sequence[Numbers | None]]:
        arrays, m = potentials, machines
        if not isinstance(arrays, Potentials):
            arrays = as_arrays([*potentials[:4], p.lengths.numpy(), as_array(p.pinned)], p.order)
            if potentials[5:] and potentials[5] is not None:
                m = machines._replace(weight=potentials[4], final=potentials[5])
        lengths, in_ends, of_machine = arrays.lengths, wanted[2] or wanted[3], len(wanted) > 4 and wanted[5]
        value, in_unary, in_table, in_levels, in_final = _log_partition(
            arrays, m, wanted[0] or in_ends, wanted[1] and shared, wanted[1] and not shared, of_machine
        )
        check_sums(value, dtype)
        if value.dtype.kind == "c":
            raise_for(np.where(np.isnan(value.imag), NOT_A_NUMBER, np.where(np.isinf(value.imag), PLUS_INFINITY, OK)))
        ends = in_unary
        if in_ends and not in_unary.shape[1]:
            ends = np.zeros((len(lengths), 1, in_unary.shape[2]), in_unary.dtype)
        return (
            value,
            (
                in_unary if wanted[0] else None,
                (in_table if shared else in_levels) if wanted[1] else None,
                ends[:, 0].copy() if wanted[2] else None,
                ends[np.arange(len(lengths)), lengths - 1] if wanted[3] else None,  # of a length 0 the last: zeros
                *(None, in_final if of_machine else None)[: len(wanted) - 4],
            ),
        )

    return solve


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    return known(solver(p, p.machines), p.potentials, arrays=p.arrays)


def marginals(p: Parts) -> Tensor:
    """The probability of each arc, (B, T, H, K)."""
    levels = _log_partition(p.arrays, p.machines, False, False, True, False)[3]
    return once_only(torch.from_numpy(levels), p.potentials)


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score of y under f], y drawn from p. (B,)"""
    p, f = alike(p, f)
    first, second = joint(p.machine, f.machine, p.no_machine)
    weights = ((torch.from_numpy(m.weight), torch.from_numpy(m.final)) for m in (first, second))
    of_p, of_f = ((*x.potentials, *w) for x, w in zip((p, f), weights, strict=True))
    return derivatives.expectation(solver(p, first), of_p, of_f)


def alike(p: Parts, f: Parts) -> tuple[Parts, Parts]:
    """Both with the same potentials, of the same shapes: what only one of them has is zeros in the other."""
    if f.pinned is not None and f.pinned is not p.pinned:  # a label that p may use and f forbids
        labels = torch.arange(f.num_labels, device=f.lengths.device)
        allowed = (f.pinned[:, :, None] < 0) | (f.pinned[:, :, None] == labels)
        f = f.replace(unary=torch.where(allowed, 0.0 if f.unary is None else f.unary, -torch.inf).to(f.any_potential))
    if p.shared != f.shared:
        p, f = _dense(p), _dense(f)
    for name in ("unary", "start", "end"):
        if (getattr(p, name) is None) != (getattr(f, name) is None):
            own = (p.lengths.shape[0], p.num_positions, p.num_labels) if name == "unary" else (p.num_labels,)
            zeros = {name: p.any_potential.new_zeros(own)}
            p, f = (x.replace(**zeros) if getattr(x, name) is None else x for x in (p, f))
    return p, f


def _dense(p: Parts) -> Parts:
    """The same with a table (B, T, H, K) of its own for each position."""
    if not p.shared:
        return p
    assert p.table is not None
    complete = torch.arange(p.num_positions, device=p.lengths.device) >= p.order - 1  # the history
    table = torch.where(complete[:, None, None], p.table, 0.0)
    return p.replace(table=table.expand(p.lengths.shape[0], *table.shape))


# --- The score of an output ------------------------------------------------------------------------------------------


class _Score(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, y: Tensor, unary: Maybe, table: Maybe, start: Maybe, end: Maybe,
        arrays: Potentials, add: Callable[[Numbers, Numbers], None] | None,
    ) -> Tensor:  # fmt: skip
        value, status = np.zeros(y.shape[:2]), np.zeros(y.shape[1], np.int64)
        labels = y.contiguous().numpy()
        dense_max.score(arrays, labels, value, status)
        raise_for(status)
        if add is not None:
            add(labels, value)
        ctx.save_for_backward(unary, table, start, end)
        ctx.labels, ctx.arrays, ctx.impossible = labels, arrays, value == -np.inf
        found = as_precise(torch.from_numpy(value), (unary, table))
        check_sums(value, found.dtype)
        return found

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
        dense_max.score_gradient(p, ctx.labels, weights, unary, *in_table, start, end)
        found = (unary, in_table[0] if p.shared else table, start, end)
        gradients = [torch.from_numpy(x) if needed else None for x, needed in zip(found, needs, strict=True)]
        return None, *guard(gradients, ctx.saved_tensors), None, None


def score(p: Parts, y: Tensor, add: Callable[[Numbers, Numbers], None] | None = None) -> Tensor:
    """The score of each output y (n, B, T): (n, B).

    What is not in the potentials `add` adds, from the outputs to their values; unless it is there, p's machine.
    """
    if add is None and p.machine is not None:
        add = partial(walk, p.machine.arrays, p.arrays.lengths)
    return apply(_Score, y, *p.potentials, p.arrays, add)


# --- Searches: no derivative -----------------------------------------------------------------------------------------


def argmax(p: Parts, machines: Machines) -> Found:
    """The best output (V, B, T) from each of the V states where these machines start, and whether there is any."""
    batch, starts = p.lengths.shape[0], int(machines.sizes[:, 0].max(initial=1))
    value, labels = np.full((batch, starts), -np.inf), np.zeros((batch, starts, p.num_positions), np.int64)
    status = np.zeros(batch, np.int64)
    _run(dense_max.argmax, p.arrays, machines, 2, value, labels, status)
    raise_for(status)
    return Found(torch.from_numpy(labels).transpose(0, 1), torch.from_numpy(np.isfinite(value.T)))


def best(p: Parts, k: int) -> Found:
    """The k best outputs (k, B, T), best first, and whether there are so many (k, B)."""
    if k == 1:
        return argmax(p, p.machines)
    batch = p.lengths.shape[0]
    labels, status = torch.full((batch, k, p.num_positions), -1), np.zeros(batch, np.int64)
    if p.num_positions:
        _run(dense_max.topk, p.arrays, p.machines, 2 * k, labels.numpy(), status)
    raise_for(status)
    empty = (p.lengths == 0) & (torch.arange(k) == 0)[:, None]  # of length 0 there is one output
    labels = labels.transpose(0, 1)
    return Found(labels.clamp(min=0), (labels[:, :, :1] >= 0).any(2) | empty)


def draw(p: Parts, n: int, generator: torch.Generator | None) -> Found:
    """n outputs (n, B, T) with probability exp(score) / Z, and whether there is any (B,)."""
    uniforms, batch = p.uniforms(n, generator), p.lengths.shape[0]
    labels, status, value = torch.zeros(uniforms.shape, dtype=torch.int64), np.zeros(batch, np.int64), np.zeros(batch)
    _run_dense(dense.sample, p.arrays, p.machines, 1, 3, status, value, uniforms.numpy(), labels.numpy())
    if (status == UNSAFE).any():
        _run(dense_log.sample, p.arrays, p.machines, 3, value, uniforms.numpy(), labels.numpy(), status)
    raise_for(status)
    return Found(labels, torch.from_numpy(value > -np.inf))
