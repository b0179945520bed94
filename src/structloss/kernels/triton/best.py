"""The best output of chains, and of chains times loss machines, on a GPU: exact, in float64, ties in order."""

import triton
import triton.language as tl

from structloss.kernels.triton.levels import ahead_of, begin_at_end, level, rows_at, table_at


@triton.jit
def best(
    unary, table, lengths, class_of, next_state, weight, arc_begins, sizes, final, value, labels, room, via,
    T, K, H, R, finals, S,
    ORDER: tl.constexpr, TABLE: tl.constexpr, MACHINE: tl.constexpr, WEIGHTED: tl.constexpr,
    NB: tl.constexpr, KB: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The best labels (B, T), the lexicographically smallest of equals, and their score (B,); NaN where one matters.

    Backward, so that of equals the smallest label goes first; via (B, T, S * H) is the label by which each state goes
    on. room: (B, S * (H + R * K)) of the caller's, float64. Labels beyond a length are as they were.
    """
    b = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + b).to(tl.int32)
    beta = room + b * S * (H + R * K)
    ahead = beta + S * H
    states, _ = level(sizes, arc_begins, b, length, T, MACHINE)
    begin_at_end(final + b * finals, final, beta, beta, states, H, False, tl.float64, BLOCK)
    tl.debug_barrier()
    y = tl.arange(0, KB)[None, :]
    for i in range(0, length):
        t = length - 1 - i
        states, begin = level(sizes, arc_begins, b, t, T, MACHINE)
        row = b * T + t
        of_level = row * H * K if TABLE == 2 else 0
        ahead_of(
            unary + row * K, unary, class_of + b * K, next_state, weight, weight, begin, states, beta, beta, 0.0,
            0.0, ahead, ahead, K, H, R, ORDER == 1, MACHINE, WEIGHTED, False, tl.float64, BLOCK,
        )  # fmt: skip
        tl.debug_barrier()
        rows, scored = rows_at(t, K, ORDER), (TABLE == 2) | (t >= ORDER - 1)
        for first in range(0, states * H, NB):
            n = first + tl.arange(0, NB)
            inside = n < states * H
            h = (n % H)[:, None]
            there = inside[:, None] & (y < K)
            x = tl.load(ahead + ((n // H)[:, None] * R + h % R) * K + y, mask=there, other=-float("inf"))
            if TABLE > 0:
                x += table_at(table + of_level, h, y, there, rows, scored, K, tl.float64)
            top = tl.max(x, 1)
            choice = tl.min(tl.where(x == top[:, None], y, K - 1), 1)
            wrong = tl.sum((x != x).to(tl.int32), 1) > 0
            tl.store(beta + n, tl.where(wrong, float("nan"), top), mask=inside)
            tl.store(via + row * S * H + n, choice, mask=inside)
        tl.debug_barrier()
    tl.store(value + b, tl.load(beta))
    s, h = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    for t in range(0, length):
        row = b * T + t
        label = tl.load(via + row * S * H + s * H + h)
        tl.store(labels + row, label.to(tl.int64))
        if MACHINE:
            states, begin = level(sizes, arc_begins, b, t, T, MACHINE)
            arc = begin + tl.load(class_of + b * K + label) * states + s
            s = tl.load(next_state + arc)
        if ORDER > 1:
            h = (h * K + label) % H
