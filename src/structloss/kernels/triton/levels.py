"""From level to level of a chain, or of a chain times a loss machine, on a GPU: what is summed, and in which order.

States of level t are pairs of a machine state s and a history h, at place s * H + h; K labels, H = K**(q-1) histories.
A history is an oldest label a and the rest r: h = a * R + r with R = H / A, where A = K, and A = R = 1 for q = 1. Label
y leads from (s, h) to (next(s, y), r * K + y): only a is forgotten. So a level is two steps, and K**q is never
multiplied by what the machine costs:

    backward:  ahead[s, r, y] = unary[t, y] + weight(t, s, y) + beta[next(s, y), r * K + y]
               beta[s, h]     = log sum_y exp(table[h, y] + ahead[s, r, y])
    forward:   behind[s, r, y]        = unary[t, y] + log sum_a exp(alpha[s, a * R + r] + table[a * R + r, y])
               alpha[s', r * K + y]   = log sum_s exp(behind[s, r, y] + weight(t, s, y)),  next(s, y) = s'

The last sum reads the machine's arcs backward: `before[before_begin[place]: ...]` are the states s of a place (class,
s'). Everything is in logarithms, relative to the largest of the level before; what was taken off is summed up in
float64. `scan` keeps each direction's vectors every `stride` levels, `gradient` makes those between again, stretch by
stretch.
"""

import triton
import triton.language as tl

from structloss.kernels.triton.arithmetic import above, add, finish, highest, logsumexp, start


@triton.jit
def ahead_of(
    unary, dunary, class_of, next_state, weight, dweight, arc_begin, states, beta, dbeta, shift, dshift, out, dout,
    K, H, R, FIRST: tl.constexpr, MACHINE: tl.constexpr, WEIGHTED: tl.constexpr, DUAL: tl.constexpr,
    KIND: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out[s, r, y] = unary[y] + weight(s, y) + beta[next(s, y), r * K + y] - shift, of a level (FIRST: q = 1)."""
    total = states * R * K
    for begin in range(0, total, BLOCK):
        n = begin + tl.arange(0, BLOCK)
        there = n < total
        y, s = n % K, n // (R * K)
        value = tl.load(unary + y, mask=there, other=0.0).to(KIND)
        dvalue = value
        if DUAL:
            dvalue = tl.load(dunary + y, mask=there, other=0.0).to(KIND)
        to = s
        if MACHINE:
            arc = arc_begin + tl.load(class_of + y, mask=there, other=0) * states + s
            to = tl.load(next_state + arc, mask=there, other=0)
            if WEIGHTED:
                value += tl.load(weight + arc, mask=there, other=0.0).to(KIND)
                if DUAL:
                    dvalue += tl.load(dweight + arc, mask=there, other=0.0).to(KIND)
        place = to * H
        if not FIRST:
            place += n % (R * K)
        tl.store(out + n, value + (tl.load(beta + place, mask=there, other=0.0) - shift), mask=there)
        if DUAL:
            tl.store(dout + n, dvalue + (tl.load(dbeta + place, mask=there, other=0.0) - dshift), mask=there)


@triton.jit
def table_at(table, h, y, there, rows, scored, K, KIND: tl.constexpr):
    """The scores (n, m) of histories h (n, m) and labels y; 0 where the table scores nothing, -inf where h is none."""
    value = tl.load(table + h * K + y, mask=there & scored & (h < rows), other=0.0).to(KIND)
    return tl.where(there & (h < rows), value, -float("inf"))


@triton.jit
def settle(
    table, dtable, scored, rows, ahead, dahead, states, beta, dbeta, K, H, R,
    TABLE: tl.constexpr, DUAL: tl.constexpr, KIND: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr,
):  # fmt: skip
    """beta[s, h] = log sum_y exp(table[h, y] + ahead[s, r, y]). Returns the largest, and the largest derivative."""
    top = tl.full([], -float("inf"), KIND)
    dtop = tl.full([], -float("inf"), KIND)
    total = states * H
    y = tl.arange(0, KB)[None, :]
    for begin in range(0, total, NB):
        n = begin + tl.arange(0, NB)
        h = (n % H)[:, None]
        there = (n < total)[:, None] & (y < K)
        place = ((n // H)[:, None] * R + h % R) * K + y
        x = tl.load(ahead + place, mask=there, other=-float("inf"))
        dx = x
        if DUAL:
            dx = tl.load(dahead + place, mask=there, other=0.0)
        if TABLE:
            x += table_at(table, h, y, there, rows, scored, K, KIND)
            if DUAL:
                dx += tl.load(dtable + h * K + y, mask=there & scored & (h < rows), other=0.0).to(KIND)
        value, dvalue = logsumexp(x, dx, DUAL)
        tl.store(beta + n, value, mask=n < total)
        top = highest(top, tl.where(n < total, value, -float("inf")))
        if DUAL:
            tl.store(dbeta + n, dvalue, mask=n < total)
            dtop = highest(dtop, tl.where(n < total, dvalue, -float("inf")))
    return above(top), above(dtop)


@triton.jit
def behind_of(
    unary, dunary, table, dtable, scored, rows, states, alpha, dalpha, shift, dshift, out, dout, K, H, R, A,
    TABLE: tl.constexpr, DUAL: tl.constexpr, KIND: tl.constexpr, NB: tl.constexpr, AB: tl.constexpr,
):  # fmt: skip
    """out[s, r, y] = unary[y] - shift + log sum_a exp(alpha[s, a * R + r] + table[a * R + r, y])."""
    total = states * R * K
    a = tl.arange(0, AB)[None, :]
    for begin in range(0, total, NB):
        n = begin + tl.arange(0, NB)
        y = (n % K)[:, None]
        h = a * R + ((n // K) % R)[:, None]
        there = (n < total)[:, None] & (a < A)
        place = (n // (R * K))[:, None] * H + h
        x = tl.load(alpha + place, mask=there, other=-float("inf"))
        dx = x
        if DUAL:
            dx = tl.load(dalpha + place, mask=there, other=0.0)
        if TABLE:
            x += table_at(table, h, y, there, rows, scored, K, KIND)
            if DUAL:
                dx += tl.load(dtable + h * K + y, mask=there & scored & (h < rows), other=0.0).to(KIND)
        value, dvalue = logsumexp(x, dx, DUAL)
        value += tl.load(unary + n % K, mask=n < total, other=0.0).to(KIND) - shift
        tl.store(out + n, value, mask=n < total)
        if DUAL:
            dvalue += tl.load(dunary + n % K, mask=n < total, other=0.0).to(KIND) - dshift
            tl.store(dout + n, dvalue, mask=n < total)


@triton.jit
def arrive(
    behind, dbehind, class_of, weight, dweight, arc_begin, states, before, before_begin, place_begin, nexts, degree,
    to, r, y, there, K, R, WEIGHTED: tl.constexpr, DUAL: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """log sum_s exp(behind[s, r, y] + weight(s, y)) over the states s from which y leads `to`, at each place."""
    c = tl.load(class_of + y, mask=there, other=0)
    at = place_begin + c * nexts + to
    first = tl.load(before_begin + at, mask=there, other=0)
    last = tl.load(before_begin + at + 1, mask=there, other=0)
    top, total, dtotal = start(first.to(KIND))
    for j in range(0, degree):
        some = there & (first + j < last)
        s = tl.load(before + first + j, mask=some, other=0)
        place = (s * R + r) * K + y
        x = tl.load(behind + place, mask=some, other=-float("inf"))
        dx = x
        if DUAL:
            dx = tl.load(dbehind + place, mask=some, other=0.0)
        if WEIGHTED:
            arc = arc_begin + c * states + s
            x += tl.load(weight + arc, mask=some, other=0.0).to(KIND)
            if DUAL:
                dx += tl.load(dweight + arc, mask=some, other=0.0).to(KIND)
        top, total, dtotal = add(top, total, dtotal, x, dx, DUAL)
    return finish(top, total, dtotal, DUAL)


@triton.jit
def move(
    behind, dbehind, class_of, weight, dweight, arc_begin, states, before, before_begin, place_begin, nexts, degree,
    alpha, dalpha, K, R, FIRST: tl.constexpr, MACHINE: tl.constexpr, WEIGHTED: tl.constexpr, DUAL: tl.constexpr,
    KIND: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """alpha of the next level from what `behind_of` made. Returns the largest, and the largest derivative."""
    top = tl.full([], -float("inf"), KIND)
    dtop = tl.full([], -float("inf"), KIND)
    if FIRST:
        y = tl.broadcast_to(tl.arange(0, KB)[None, :], (NB, KB))
        for begin in range(0, nexts, NB):
            n = begin + tl.arange(0, NB)
            inside = n < nexts
            to = tl.broadcast_to(n[:, None], (NB, KB))
            there = (to < nexts) & (y < K)
            if MACHINE:
                value, dvalue = arrive(
                    behind, dbehind, class_of, weight, dweight, arc_begin, states, before, before_begin, place_begin,
                    nexts, degree, to, 0, y, there, K, R, WEIGHTED, DUAL, KIND,
                )  # fmt: skip
            else:
                value = tl.load(behind + y, mask=there, other=-float("inf"))
                dvalue = value
                if DUAL:
                    dvalue = tl.load(dbehind + y, mask=there, other=0.0)
            value, dvalue = logsumexp(value, dvalue, DUAL)
            tl.store(alpha + n, value, mask=inside)
            top = highest(top, tl.where(inside, value, -float("inf")))
            if DUAL:
                tl.store(dalpha + n, dvalue, mask=inside)
                dtop = highest(dtop, tl.where(inside, dvalue, -float("inf")))
    else:
        total = nexts * R * K
        for begin in range(0, total, BLOCK):
            n = begin + tl.arange(0, BLOCK)
            inside = n < total
            if MACHINE:
                value, dvalue = arrive(
                    behind, dbehind, class_of, weight, dweight, arc_begin, states, before, before_begin, place_begin,
                    nexts, degree, n // (R * K), (n // K) % R, n % K, inside, K, R, WEIGHTED, DUAL, KIND,
                )  # fmt: skip
            else:
                value = tl.load(behind + n, mask=inside, other=-float("inf"))
                dvalue = value
                if DUAL:
                    dvalue = tl.load(dbehind + n, mask=inside, other=0.0)
            tl.store(alpha + n, value, mask=inside)
            top = highest(top, tl.where(inside, value, -float("inf")))
            if DUAL:
                tl.store(dalpha + n, dvalue, mask=inside)
                dtop = highest(dtop, tl.where(inside, dvalue, -float("inf")))
    return above(top), above(dtop)


@triton.jit
def copy(source, target, count, BLOCK: tl.constexpr):
    """target[:count] = source[:count]."""
    for begin in range(0, count, BLOCK):
        n = begin + tl.arange(0, BLOCK)
        tl.store(target + n, tl.load(source + n, mask=n < count), mask=n < count)


@triton.jit
def begin_at_end(final, dfinal, beta, dbeta, states, H, DUAL: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """beta of the last level: what it is worth to end. Returns the largest, and the largest derivative."""
    top = tl.full([], -float("inf"), KIND)
    dtop = tl.full([], -float("inf"), KIND)
    for begin in range(0, states * H, BLOCK):
        n = begin + tl.arange(0, BLOCK)
        inside = n < states * H
        value = tl.load(final + n // H, mask=inside, other=-float("inf")).to(KIND)
        tl.store(beta + n, value, mask=inside)
        top = highest(top, value)
        if DUAL:
            dvalue = tl.load(dfinal + n // H, mask=inside, other=-float("inf")).to(KIND)
            tl.store(dbeta + n, dvalue, mask=inside)
            dtop = highest(dtop, dvalue)
    return above(top), above(dtop)


@triton.jit
def begin_at_start(alpha, dalpha, states, H, DUAL: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """alpha of level 0: a path begins in machine state 0 with history 0."""
    for begin in range(0, states * H, BLOCK):
        n = begin + tl.arange(0, BLOCK)
        tl.store(alpha + n, tl.where(n == 0, 0.0, -float("inf")).to(KIND), mask=n < states * H)
        if DUAL:
            tl.store(dalpha + n, tl.zeros_like(n).to(KIND), mask=n < states * H)


@triton.jit
def rows_at(t, K, ORDER: tl.constexpr):
    """How many histories exist at level t: min(H, K**t)."""
    rows = 1
    for i in tl.static_range(ORDER - 1):
        rows = tl.where(t > i, rows * K, rows)
    return rows


@triton.jit
def level(sizes, arc_begins, b, t, T, MACHINE: tl.constexpr):
    """How many machine states level t of example b has, and where its arcs begin."""
    states, begin = tl.full([], 1, tl.int32), tl.full([], 0, tl.int64)
    if MACHINE:
        states = tl.load(sizes + b * (T + 1) + t)
        begin = tl.load(arc_begins + b * (T + 1) + t)
    return states, begin


@triton.jit
def back(
    unary, dunary, table, dtable, class_of, next_state, weight, dweight, arc_begins, sizes,
    beta, dbeta, shift, dshift, out, dout, ahead, dahead, b, t, T, K, H, R,
    ORDER: tl.constexpr, TABLE: tl.constexpr, MACHINE: tl.constexpr, WEIGHTED: tl.constexpr, DUAL: tl.constexpr,
    KIND: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = beta of level t from beta of level t + 1, and `ahead`. TABLE: 0 none, 1 shared, 2 one a level."""
    states, begin = level(sizes, arc_begins, b, t, T, MACHINE)
    row = b * T + t
    of_level = row * H * K if TABLE == 2 else 0
    ahead_of(
        unary + row * K, dunary + row * K, class_of + b * K, next_state, weight, dweight, begin, states,
        beta, dbeta, shift, dshift, ahead, dahead, K, H, R, ORDER == 1, MACHINE, WEIGHTED, DUAL, KIND, BLOCK,
    )  # fmt: skip
    tl.debug_barrier()
    top, dtop = settle(
        table + of_level, dtable + of_level, (TABLE == 2) | (t >= ORDER - 1), rows_at(t, K, ORDER), ahead, dahead,
        states, out, dout, K, H, R, TABLE > 0, DUAL, KIND, NB, KB,
    )  # fmt: skip
    tl.debug_barrier()
    return top, dtop


@triton.jit
def on(
    unary, dunary, table, dtable, class_of, weight, dweight, arc_begins, sizes, before, before_begin, place_begins,
    degrees, alpha, dalpha, shift, dshift, out, dout, behind, dbehind, b, t, T, K, H, R, A,
    ORDER: tl.constexpr, TABLE: tl.constexpr, MACHINE: tl.constexpr, WEIGHTED: tl.constexpr, DUAL: tl.constexpr,
    KIND: tl.constexpr, NB: tl.constexpr, KB: tl.constexpr, AB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = alpha of level t + 1 from alpha of level t."""
    states, begin = level(sizes, arc_begins, b, t, T, MACHINE)
    row = b * T + t
    of_level = row * H * K if TABLE == 2 else 0
    behind_of(
        unary + row * K, dunary + row * K, table + of_level, dtable + of_level, (TABLE == 2) | (t >= ORDER - 1),
        rows_at(t, K, ORDER), states, alpha, dalpha, shift, dshift, behind, dbehind, K, H, R, A,
        TABLE > 0, DUAL, KIND, NB, AB,
    )  # fmt: skip
    tl.debug_barrier()
    nexts, _ = level(sizes, arc_begins, b, t + 1, T, MACHINE)
    places, degree, base = begin, states, begin
    if MACHINE:
        places, degree, base = tl.load(place_begins + row), tl.load(degrees + row), tl.load(arc_begins + b * (T + 1))
    top, dtop = move(
        behind, dbehind, class_of + b * K, weight, dweight, begin, states, before + base, before_begin, places, nexts,
        degree, out, dout, K, R, ORDER == 1, MACHINE, WEIGHTED, DUAL, KIND, NB, KB, BLOCK,
    )  # fmt: skip
    tl.debug_barrier()
    return top, dtop
