"""CTC times a loss machine that reads what paths write, on a GPU, in T * S * C: the label before is summed out.

A path is in machine state s with c the label of its last frame (at first the blank). A frame's blank keeps s and makes
c the blank; its label c again keeps both; any other label y leads to next(s, y), whatever other label came before:

    beta[s, c]   = log( sum_{y not c, not blank} p(y) beta[next(s, y), y] + p(blank) beta[s, blank] + p(c) beta[s, c] )
    alpha[s, y]' = p(y) (sum_{next(s', y) = s} sum_{c not y} alpha[s', c] + alpha[s, y])
    alpha[s, blank]' = p(blank) sum_c alpha[s, c]

Sums over all but one label are taken from the sum of all, but for the largest, whose others are added up. The tables of
`turned` say which states lead to a place (y, s). Everything is in logarithms, relative to the largest of the level
before.
"""

import triton
import triton.language as tl

from structloss.kernels.triton.arithmetic import above, add, finish, highest, start
from structloss.kernels.triton.chain import total_of
from structloss.kernels.triton.levels import copy


@triton.jit
def all_but_one(x, c):
    """log of the sums of exp(x) (n, m) along the last axis without each, -inf where nothing is left; and of all."""
    top = tl.max(x, 1)
    first = tl.min(tl.where(x == top[:, None], c, 1 << 30), 1)
    safe = above(top)
    weight = tl.exp(x - safe[:, None])
    total = tl.sum(weight, 1)
    rest = tl.where(c == first[:, None], -float("inf"), x)
    high = above(tl.max(rest, 1))
    others = tl.log(tl.sum(tl.exp(rest - high[:, None]), 1)) + high
    left = tl.log(tl.maximum(total[:, None] - weight, 0.0, propagate_nan=tl.PropagateNan.ALL)) + safe[:, None]
    return tl.where(c == first[:, None], others[:, None], left), tl.log(total) + safe


@triton.jit
def both(x, y):
    """log(exp(x) + exp(y))."""
    top = above(tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL))
    return tl.log(tl.exp(x - top) + tl.exp(y - top)) + top


@triton.jit
def back(row, next_state, there, shift, out, states, C, blank, KIND: tl.constexpr, SB: tl.constexpr, CB: tl.constexpr):
    """out = beta before a frame whose scores are `row`, from `there`, that after it. Returns the largest."""
    top = tl.full([], -float("inf"), KIND)
    c = tl.arange(0, CB)[None, :]
    p = tl.load(row + c, mask=c < C, other=-float("inf")).to(KIND) - shift
    stay = tl.load(row + blank).to(KIND) - shift
    for begin in range(0, states, SB):
        s = (begin + tl.arange(0, SB))[:, None]
        inside = (s < states) & (c < C)
        label = inside & (c != blank)
        to = tl.load(next_state + c * states + s, mask=label, other=0)
        moved = tl.where(label, p + tl.load(there + to * C + c, mask=label, other=-float("inf")), -float("inf"))
        value, _ = all_but_one(moved, c)
        again = tl.where(label, p + tl.load(there + s * C + c, mask=label, other=-float("inf")), -float("inf"))
        silent = stay + tl.load(there + s * C + blank, mask=s < states, other=-float("inf"))
        value = both(both(value, again), silent)
        tl.store(out + s * C + c, value, mask=inside)
        top = highest(top, tl.max(tl.where(inside, value, -float("inf")), 1))
    return above(top)


@triton.jit
def leave(alpha, out, states, C, blank, SB: tl.constexpr, CB: tl.constexpr):
    """out[s, y] = log of the sum of exp(alpha[s, c]) over c other than y; for the blank over all c."""
    c = tl.arange(0, CB)[None, :]
    for begin in range(0, states, SB):
        s = (begin + tl.arange(0, SB))[:, None]
        inside = (s < states) & (c < C)
        value, total = all_but_one(tl.load(alpha + s * C + c, mask=inside, other=-float("inf")), c)
        tl.store(out + s * C + c, tl.where(c == blank, total[:, None], value), mask=inside)


@triton.jit
def on(
    row, before, before_begin, alpha, leaving, shift, out, states, C, blank, degree,
    KIND: tl.constexpr, SB: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """out = alpha after a frame whose scores are `row`, from alpha and what `leave` made of it. Returns the largest."""
    top = tl.full([], -float("inf"), KIND)
    c = tl.arange(0, CB)[None, :]
    p = tl.load(row + c, mask=c < C, other=-float("inf")).to(KIND) - shift
    for begin in range(0, states, SB):
        s = (begin + tl.arange(0, SB))[:, None]
        inside = (s < states) & (c < C)
        label = inside & (c != blank)
        first = tl.load(before_begin + c * states + s, mask=label, other=0)
        last = tl.load(before_begin + c * states + s + 1, mask=label, other=0)
        own = tl.load(alpha + s * C + c, mask=label, other=-float("inf"))
        high, sums, none = start(own)
        high, sums, none = add(high, sums, none, own, own, False)
        for j in range(0, degree):
            some = label & (first + j < last)
            origin = tl.load(before + first + j, mask=some, other=0)
            x = tl.load(leaving + origin * C + c, mask=some, other=-float("inf"))
            high, sums, none = add(high, sums, none, x, x, False)
        value, _ = finish(high, sums, none, False)
        silent = tl.load(leaving + s * C + c, mask=inside & (c == blank), other=-float("inf"))
        value = p + tl.where(c == blank, silent, value)
        tl.store(out + s * C + c, value, mask=inside)
        top = highest(top, tl.max(tl.where(inside, value, -float("inf")), 1))
    return above(top)


@triton.jit
def end(final, beta, states, C, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """beta after the last frame: what it is worth to end in each state."""
    for begin in range(0, states * C, BLOCK):
        n = begin + tl.arange(0, BLOCK)
        inside = n < states * C
        tl.store(beta + n, tl.load(final + n // C, mask=inside, other=0.0).to(KIND), mask=inside)


@triton.jit
def scan(
    scores, lengths, begins, next_state, before, before_begin, degrees, final, value, alphas, betas, room,
    T, C, S, blank, stride, marks,
    KEEP: tl.constexpr, KIND: tl.constexpr, SB: tl.constexpr, CB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """value (B,) = log of the sum over paths of exp(score + final of their last state); KEEP: marks (B, marks, S * C).

    The states of example b are begins[b] to begins[b + 1] of `final`, its arcs C times as many. Program (b, 0) goes
    backward, program (b, 1) forward; room (B, 2, 2, S * C) is the caller's.
    """
    b = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + b).to(tl.int32)
    origin = tl.load(begins + b)
    states = (tl.load(begins + b + 1) - origin).to(tl.int32)
    first = room + (b * 2 + tl.program_id(1)) * 2 * S * C
    shift = tl.full([], 0.0, KIND)
    if tl.program_id(1) == 0:
        end(final + origin, first, states, C, KIND, BLOCK)
        tl.debug_barrier()
        total = tl.full([], 0.0, tl.float64)
        for i in range(0, length):
            t = length - 1 - i
            total += shift.to(tl.float64)
            there, here = first + (i % 2) * S * C, first + (1 - i % 2) * S * C
            shift = back(
                scores + (b * T + t) * C, next_state + origin * C, there, shift, here, states, C, blank, KIND, SB, CB
            )
            tl.debug_barrier()
            if KEEP and t % stride == 0:
                copy(here, betas + (b * marks + t // stride) * S * C, states * C, BLOCK)
        tl.store(value + b, total + tl.load(first + (length % 2) * S * C + blank).to(tl.float64))
    else:
        for begin in range(0, states * C, BLOCK):
            n = begin + tl.arange(0, BLOCK)
            tl.store(first + n, tl.where(n == blank, 0.0, -float("inf")).to(KIND), mask=n < states * C)
        tl.debug_barrier()
        middle = first + S * C
        for t in range(0, length):
            if t % stride == 0:
                copy(first, alphas + (b * marks + t // stride) * S * C, states * C, BLOCK)
            leave(first, middle, states, C, blank, SB, CB)
            tl.debug_barrier()
            shift = on(
                scores + (b * T + t) * C, before + origin * C, before_begin + origin * C + b, first, middle, shift,
                first, states, C, blank, tl.load(degrees + b), KIND, SB, CB,
            )  # fmt: skip
            tl.debug_barrier()


@triton.jit
def gradient(
    g, scores, lengths, begins, next_state, before, before_begin, degrees, final, alphas, betas, room, in_scores,
    T, C, S, blank, stride, marks,
    KIND: tl.constexpr, SB: tl.constexpr, CB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """in_scores (B, T, C) = g (B,) times the probability of each label at each frame, each path weighed by its end.

    Program (b, p) of (B, P) treats the stretches p, p + P, ... of `stride` frames; room: (B, P, stride + 4, S * C).
    """
    b, p, programs = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    length, factor = tl.load(lengths + b).to(tl.int32), tl.load(g + b).to(KIND)
    origin = tl.load(begins + b)
    states = (tl.load(begins + b + 1) - origin).to(tl.int32)
    level = S * C
    alpha = room + (b * programs + p) * (stride + 4) * level
    middle, buffer = alpha + (stride + 1) * level, alpha + (stride + 2) * level
    c = tl.arange(0, CB)[None, :]
    for stretch in range(p, marks, programs):
        first = stretch * stride
        stop = tl.minimum(first + stride, length)
        if first < stop:
            mark = (b * marks + stretch) * level
            copy(alphas + mark, alpha, states * C, BLOCK)
            if stop == length:
                end(final + origin, buffer, states, C, KIND, BLOCK)
            else:
                copy(betas + mark + level, buffer, states * C, BLOCK)
            tl.debug_barrier()
            shift = tl.full([], 0.0, KIND)
            for t in range(first, stop - 1):
                here = alpha + (t - first) * level
                leave(here, middle, states, C, blank, SB, CB)
                tl.debug_barrier()
                shift = on(
                    scores + (b * T + t) * C, before + origin * C, before_begin + origin * C + b, here, middle, shift,
                    here + level, states, C, blank, tl.load(degrees + b), KIND, SB, CB,
                )  # fmt: skip
                tl.debug_barrier()
            shift = tl.full([], 0.0, KIND)
            for i in range(0, stop - first):
                t = stop - 1 - i
                row = scores + (b * T + t) * C
                there, here = buffer + (i % 2) * level, buffer + (1 - i % 2) * level
                used = shift
                shift = back(row, next_state + origin * C, there, shift, here, states, C, blank, KIND, SB, CB)
                own = alpha + (t - first) * level
                leave(own, middle, states, C, blank, SB, CB)
                tl.debug_barrier()
                total, _ = total_of(own, own, here, here, states * C, False, KIND, BLOCK)
                score = tl.load(row + c, mask=c < C, other=-float("inf")).to(KIND) - used - total
                share = tl.zeros([1, CB], KIND)
                for begin in range(0, states, SB):
                    s = (begin + tl.arange(0, SB))[:, None]
                    inside = (s < states) & (c < C)
                    label = inside & (c != blank)
                    to = tl.load(next_state + origin * C + c * states + s, mask=label, other=0)
                    to = tl.where(c == blank, s, to)
                    left = tl.load(middle + s * C + c, mask=inside, other=-float("inf"))
                    x = left + score + tl.load(there + to * C + c, mask=inside, other=-float("inf"))
                    again = tl.load(own + s * C + c, mask=label, other=-float("inf"))
                    again += score + tl.load(there + s * C + c, mask=label, other=-float("inf"))
                    share += tl.sum(tl.exp(x) + tl.exp(again), 0)[None, :]
                tl.store(in_scores + (b * T + t) * C + c, factor * share, mask=c < C)
                tl.debug_barrier()
