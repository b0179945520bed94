"""CTC on a GPU: sums over the paths that write one string, and the probability of each label at each frame.

The string has a blank before, between and after its labels: J positions, and `leaps` says whether a path may come to
one from two before. All positions of a frame are one vector; alpha[t, j] has frame t's score, beta[t, j] has not.
"""

import triton
import triton.language as tl

from structloss.kernels.triton.arithmetic import above, add, finish, start


@triton.jit
def align(
    scores, lengths, positions, counts, leaps, value, alphas, betas, T, C, J, KIND: tl.constexpr, JB: tl.constexpr,
):  # fmt: skip
    """value (B,) = log of the sum over paths of exp(score); alphas, betas (B, T, J), each relative to its frame before.

    scores (B, T, C); positions, leaps (B, J); counts (B,), how many positions there are, 0 where no path writes it.
    Program (b, 0) goes backward and has the value, program (b, 1) forward.
    """
    b = tl.program_id(0).to(tl.int64)
    length, count = tl.load(lengths + b).to(tl.int32), tl.load(counts + b)
    j = tl.arange(0, JB)
    there = j < count
    label = tl.load(positions + b * J + j, mask=there, other=0)
    own = b * T * J
    shift, total = tl.full([], 0.0, KIND), tl.full([], 0.0, tl.float64)
    if tl.program_id(1) == 0:
        ends = there & (j >= count - 2)
        leap = tl.load(leaps + b * J + j + 2, mask=j + 2 < count, other=0) > 0
        stays = tl.load(positions + b * J + j + 1, mask=j + 1 < count, other=0)
        leapt = tl.load(positions + b * J + j + 2, mask=j + 2 < count, other=0)
        beta = tl.where(ends, 0.0, -float("inf")).to(KIND)
        for i in range(0, length):
            t = length - 1 - i
            if i > 0:
                row, then = scores + (b * T + t + 1) * C, betas + own + (t + 1) * J + j
                top, sums, none = start(tl.zeros([JB], KIND))
                x = tl.load(row + label, mask=there, other=0.0).to(KIND)
                x += tl.load(then, mask=there, other=-float("inf"))
                top, sums, none = add(top, sums, none, x, x, False)
                x = tl.load(row + stays, mask=j + 1 < count, other=0.0).to(KIND)
                x += tl.load(then + 1, mask=j + 1 < count, other=-float("inf"))
                top, sums, none = add(top, sums, none, x, x, False)
                x = tl.load(row + leapt, mask=leap, other=0.0).to(KIND)
                x += tl.load(then + 2, mask=leap, other=-float("inf"))
                top, sums, none = add(top, sums, none, x, x, False)
                beta, _ = finish(top, sums, none, False)
                shift = above(tl.max(tl.where(there, beta, -float("inf")), 0))
                beta = beta - shift
                total += shift.to(tl.float64)
            tl.store(betas + own + t * J + j, beta, mask=there)
            tl.debug_barrier()
        if length > 0:
            x = beta + tl.load(scores + b * T * C + label, mask=there, other=-float("inf")).to(KIND)
            x = tl.where(there & (j < 2), x, -float("inf"))
            top = above(tl.max(x, 0))
            tl.store(value + b, total + (top + tl.log(tl.sum(tl.exp(x - top), 0))).to(tl.float64))
        else:
            tl.store(value + b, tl.where(count == 1, 0.0, -float("inf")).to(tl.float64))
    else:
        leap = tl.load(leaps + b * J + j, mask=there, other=0) > 0
        for t in range(0, length):
            before = alphas + own + (t - 1) * J + j
            top, sums, none = start(tl.zeros([JB], KIND))
            x = tl.load(before, mask=there & (t > 0), other=-float("inf"))
            x = tl.where((j < 2) & (t == 0), 0.0, x).to(KIND)
            top, sums, none = add(top, sums, none, x, x, False)
            x = tl.load(before - 1, mask=there & (j > 0) & (t > 0), other=-float("inf"))
            top, sums, none = add(top, sums, none, x, x, False)
            x = tl.load(before - 2, mask=leap & (t > 0), other=-float("inf"))
            top, sums, none = add(top, sums, none, x, x, False)
            alpha, _ = finish(top, sums, none, False)
            alpha += tl.load(scores + (b * T + t) * C + label, mask=there, other=-float("inf")).to(KIND)
            alpha -= above(tl.max(tl.where(there, alpha, -float("inf")), 0))
            tl.store(alphas + own + t * J + j, alpha, mask=there)
            tl.debug_barrier()


@triton.jit
def align_gradient(
    g, lengths, positions, counts, alphas, betas, in_scores, T, C, J,
    KIND: tl.constexpr, JB: tl.constexpr, JN: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """in_scores (B, T, C) = g (B,) times the probability of each label; program (b, t) makes a frame's."""
    b, t = tl.program_id(0).to(tl.int64), tl.program_id(1)
    count = tl.load(counts + b)
    if t < tl.load(lengths + b):
        own = (b * T + t) * J
        j = tl.arange(0, JB)
        x = tl.load(alphas + own + j, mask=j < count, other=-float("inf"))
        x += tl.load(betas + own + j, mask=j < count, other=-float("inf"))
        top = above(tl.max(x, 0))
        total = tl.sum(tl.exp(x - top), 0)
        factor = tl.load(g + b).to(KIND) / tl.where(total == 0, 1.0, total)
        for first in range(0, C, CB):
            c = first + tl.arange(0, CB)
            found = tl.zeros([CB], KIND)
            for begin in range(0, count, JN):
                j = begin + tl.arange(0, JN)
                x = tl.load(alphas + own + j, mask=j < count, other=-float("inf"))
                x += tl.load(betas + own + j, mask=j < count, other=-float("inf"))
                label = tl.load(positions + b * J + j, mask=j < count, other=-1)
                share = tl.exp(x - top)
                found += tl.sum(tl.where(label[:, None] == c[None, :], share[:, None], 0.0), 0)
            tl.store(in_scores + (b * T + t) * C + c, factor * found, mask=c < C)
