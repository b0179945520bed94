"""Chains, and chains times loss machines, on a GPU: sums, and the gradients that go with them; see `levels`.

`scan` keeps each direction's vectors every `stride` levels, `gradient` makes those between again, stretch by stretch.
"""

import triton
import triton.language as tl

from structloss.kernels.triton.arithmetic import above, add, finish, logsumexp, start
from structloss.kernels.triton.levels import back, begin_at_end, begin_at_start, copy, level, on, rows_at, table_at


@triton.jit
def scan(
    unary, dunary, table, dtable, lengths, class_of, next_state, weight, dweight, arc_begins, sizes, final, dfinal,
    before, before_begin, place_begins, degrees, value, dvalue, alphas, dalphas, betas, dbetas, room, droom,
    T, K, H, R, A, finals, S, stride, marks,
    ORDER: tl.constexpr, TABLE: tl.constexpr, MACHINE: tl.constexpr, WEIGHTED: tl.constexpr, DUAL: tl.constexpr,
    KEEP: tl.constexpr, KIND: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr, AB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """value (B,) = log Z, dvalue its derivative; KEEP: alpha and beta of every `stride`-th level (B, marks, S * H).

    Program (b, 0) goes backward, program (b, 1) forward; without KEEP only the first is there. room: (B, 2, W) of
    the caller's, W = S * (H + R * K).
    """
    b = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + b).to(tl.int32)
    own = (b * 2 + tl.program_id(1)) * S * (H + R * K)
    state, dstate = room + own, droom + own
    middle, dmiddle = state + S * H, dstate + S * H
    if tl.program_id(1) == 0:
        states, _ = level(sizes, arc_begins, b, length, T, MACHINE)
        shift, dshift = begin_at_end(
            final + b * finals, dfinal + b * finals, state, dstate, states, H, DUAL, KIND, BLOCK
        )
        tl.debug_barrier()
        total, dtotal = tl.full([], 0.0, tl.float64), tl.full([], 0.0, tl.float64)
        for i in range(0, length):
            t = length - 1 - i
            total += shift.to(tl.float64)
            dtotal += dshift.to(tl.float64)
            shift, dshift = back(
                unary, dunary, table, dtable, class_of, next_state, weight, dweight, arc_begins, sizes, state, dstate,
                shift, dshift, state, dstate, middle, dmiddle, b, t, T, K, H, R,
                ORDER, TABLE, MACHINE, WEIGHTED, DUAL, KIND, NB, KB, BLOCK,
            )  # fmt: skip
            if KEEP and t % stride == 0:
                states, _ = level(sizes, arc_begins, b, t, T, MACHINE)
                mark = (b * marks + t // stride) * S * H
                copy(state, betas + mark, states * H, BLOCK)
                if DUAL:
                    copy(dstate, dbetas + mark, states * H, BLOCK)
        tl.store(value + b, total + tl.load(state).to(tl.float64))
        if DUAL:
            tl.store(dvalue + b, dtotal + tl.load(dstate).to(tl.float64))
    else:
        states, _ = level(sizes, arc_begins, b, 0, T, MACHINE)
        begin_at_start(state, dstate, states, H, DUAL, KIND, BLOCK)
        tl.debug_barrier()
        shift, dshift = tl.full([], 0.0, KIND), tl.full([], 0.0, KIND)
        for t in range(0, length):
            if t % stride == 0:
                states, _ = level(sizes, arc_begins, b, t, T, MACHINE)
                mark = (b * marks + t // stride) * S * H
                copy(state, alphas + mark, states * H, BLOCK)
                if DUAL:
                    copy(dstate, dalphas + mark, states * H, BLOCK)
            shift, dshift = on(
                unary, dunary, table, dtable, class_of, weight, dweight, arc_begins, sizes, before, before_begin,
                place_begins, degrees, state, dstate, shift, dshift, state, dstate, middle, dmiddle, b, t, T, K, H, R,
                A, ORDER, TABLE, MACHINE, WEIGHTED, DUAL, KIND, NB, KB, AB, BLOCK,
            )  # fmt: skip


@triton.jit
def total_of(alpha, dalpha, beta, dbeta, count, DUAL: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """log of the sum of exp(alpha + beta) over all states of a level, 0 where that is -inf, and its derivative."""
    top, total, dtotal = start(tl.zeros([BLOCK], KIND))
    for begin in range(0, count, BLOCK):
        n = begin + tl.arange(0, BLOCK)
        inside = n < count
        x = tl.load(alpha + n, mask=inside, other=-float("inf")) + tl.load(beta + n, mask=inside, other=-float("inf"))
        dx = x
        if DUAL:
            dx = tl.load(dalpha + n, mask=inside, other=0.0) + tl.load(dbeta + n, mask=inside, other=0.0)
        top, total, dtotal = add(top, total, dtotal, x, dx, DUAL)
    value, dvalue = finish(top, total, dtotal, DUAL)
    value, dvalue = logsumexp(value[None, :], dvalue[None, :], DUAL)
    return above(tl.max(value, 0)), above(tl.max(dvalue, 0))


@triton.jit
def gradient(
    g, unary, dunary, table, dtable, lengths, class_of, next_state, weight, dweight, arc_begins, sizes, final, dfinal,
    before, before_begin, place_begins, degrees, alphas, dalphas, betas, dbetas, room, droom,
    in_unary, in_dunary, in_table, in_dtable, T, K, H, R, A, finals, S, stride, marks,
    ORDER: tl.constexpr, TABLE: tl.constexpr, MACHINE: tl.constexpr, WEIGHTED: tl.constexpr, DUAL: tl.constexpr,
    WANTED: tl.constexpr, KIND: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr, AB: tl.constexpr,
    BLOCK: tl.constexpr, SB: tl.constexpr, HB: tl.constexpr,
):  # fmt: skip
    """g (B,) times the probability of each label at each level, in_unary (B, T, K), and of each q of them, in_table.

    WANTED says of the latter: 0 nothing, 1 their sum over levels that the shared table scores (B, P, H, K), 2 each one
    (B, T, H, K). With DUAL these are in_dunary and in_dtable, and in_unary and in_table have their derivatives. Program
    (b, p) of (B, P) treats the stretches p, p + P, ... of `stride` levels; room: (B, P, W) of the caller's,
    W = S * ((stride + 2) * H + R * K). What is written to is zero before.
    """
    b, p, programs = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    length, factor = tl.load(lengths + b).to(tl.int32), tl.load(g + b).to(KIND)
    own = (b * programs + p) * S * ((stride + 2) * H + R * K)
    state, dstate = room + own, droom + own
    beta, dbeta = state + (stride + 1) * S * H, dstate + (stride + 1) * S * H
    middle, dmiddle = beta + S * H, dbeta + S * H
    y = tl.arange(0, KB)
    for stretch in range(p, marks, programs):
        first = stretch * stride
        end = tl.minimum(first + stride, length)
        if first < end:
            states, _ = level(sizes, arc_begins, b, first, T, MACHINE)
            mark = (b * marks + stretch) * S * H
            copy(alphas + mark, state, states * H, BLOCK)
            if DUAL:
                copy(dalphas + mark, dstate, states * H, BLOCK)
            shift, dshift = tl.full([], 0.0, KIND), tl.full([], 0.0, KIND)
            last, _ = level(sizes, arc_begins, b, end, T, MACHINE)
            if end == length:
                shift, dshift = begin_at_end(
                    final + b * finals, dfinal + b * finals, beta, dbeta, last, H, DUAL, KIND, BLOCK
                )
            else:
                copy(betas + mark + S * H, beta, last * H, BLOCK)
                if DUAL:
                    copy(dbetas + mark + S * H, dbeta, last * H, BLOCK)
            tl.debug_barrier()
            fore, dfore = tl.full([], 0.0, KIND), tl.full([], 0.0, KIND)
            for t in range(first, end - 1):
                at = (t - first) * S * H
                fore, dfore = on(
                    unary, dunary, table, dtable, class_of, weight, dweight, arc_begins, sizes, before, before_begin,
                    place_begins, degrees, state + at, dstate + at, fore, dfore, state + at + S * H,
                    dstate + at + S * H, middle, dmiddle, b, t, T, K, H, R, A,
                    ORDER, TABLE, MACHINE, WEIGHTED, DUAL, KIND, NB, KB, AB, BLOCK,
                )  # fmt: skip
            for i in range(0, end - first):
                t = end - 1 - i
                at = (t - first) * S * H
                shift, dshift = back(
                    unary, dunary, table, dtable, class_of, next_state, weight, dweight, arc_begins, sizes, beta, dbeta,
                    shift, dshift, beta, dbeta, middle, dmiddle, b, t, T, K, H, R,
                    ORDER, TABLE, MACHINE, WEIGHTED, DUAL, KIND, NB, KB, BLOCK,
                )  # fmt: skip
                states, _ = level(sizes, arc_begins, b, t, T, MACHINE)
                total, dtotal = total_of(state + at, dstate + at, beta, dbeta, states * H, DUAL, KIND, BLOCK)
                rows, scored = rows_at(t, K, ORDER), (TABLE == 2) | (t >= ORDER - 1)
                row = b * T + t
                of_level = row * H * K if TABLE == 2 else 0
                labels, dlabels = tl.zeros([KB], KIND), tl.zeros([KB], KIND)
                for hs in range(0, H, HB):
                    h = hs + tl.arange(0, HB)
                    real = (h < H)[:, None] & (y < K)[None, :]
                    arc = h[:, None] * K + y[None, :]
                    fixed = tl.where(real, 0.0, -float("inf")).to(KIND)
                    dfixed = tl.zeros_like(fixed)
                    if TABLE > 0:
                        fixed = table_at(table + of_level, h[:, None], y[None, :], real, rows, scored, K, KIND)
                        if DUAL:
                            some = real & scored & (h < rows)[:, None]
                            dfixed = tl.load(dtable + of_level + arc, mask=some, other=0.0).to(KIND)
                    share, dshare = tl.zeros([HB, KB], KIND), tl.zeros([HB, KB], KIND)
                    for ss in range(0, states, SB):
                        s = (ss + tl.arange(0, SB))[:, None]
                        inside = (s < states) & (h < H)[None, :]
                        x = tl.load(state + at + s * H + h[None, :], mask=inside, other=-float("inf")) - total
                        place = ((s * R + h[None, :] % R) * K)[:, :, None] + y[None, None, :]
                        whole = inside[:, :, None] & (y < K)[None, None, :]
                        then = tl.load(middle + place, mask=whole, other=-float("inf"))
                        probability = tl.exp(x[:, :, None] + (fixed[None, :, :] + then))
                        share += tl.sum(probability, 0)
                        if DUAL:
                            dx = tl.load(dstate + at + s * H + h[None, :], mask=inside, other=0.0) - dtotal
                            dthen = tl.load(dmiddle + place, mask=whole, other=0.0)
                            dx = dx[:, :, None] + (dfixed[None, :, :] + dthen)
                            counts = (probability > 0) & (dx > -float("inf"))
                            dshare += tl.sum(tl.where(counts, probability * dx, 0.0), 0)
                    labels += tl.sum(share, 0)
                    dlabels += tl.sum(dshare, 0)
                    if WANTED == 2:
                        if DUAL:
                            tl.store(in_table + row * H * K + arc, factor * dshare, mask=real)
                            tl.store(in_dtable + row * H * K + arc, factor * share, mask=real)
                        else:
                            tl.store(in_table + row * H * K + arc, factor * share, mask=real)
                    if WANTED == 1:
                        sums = (b * programs + p) * H * K + arc
                        some = real & scored
                        if DUAL:
                            known = tl.load(in_table + sums, mask=some, other=0.0)
                            tl.store(in_table + sums, known + factor * dshare, mask=some)
                            known = tl.load(in_dtable + sums, mask=some, other=0.0)
                            tl.store(in_dtable + sums, known + factor * share, mask=some)
                        else:
                            known = tl.load(in_table + sums, mask=some, other=0.0)
                            tl.store(in_table + sums, known + factor * share, mask=some)
                if DUAL:
                    tl.store(in_unary + row * K + y, factor * dlabels, mask=y < K)
                    tl.store(in_dunary + row * K + y, factor * labels, mask=y < K)
                else:
                    tl.store(in_unary + row * K + y, factor * labels, mask=y < K)
                tl.debug_barrier()
