"""Explicit graphs on a GPU: sums in both directions, the gradient of each score, and the best path; all in float64.

Nodes and arcs are those of `kernels.forest`, of one tail: in a row, sorted by level, so that what a level needs is
known when it comes, with one program an example and direction. An arc that ends a path leads to node N, which is none.
Nothing is added atomically: going back a node gathers over the arcs that leave it, going forward over those that enter
it, and a score over the arcs that have it.
"""

import triton
import triton.language as tl

from structloss.kernels.triton.arithmetic import above, add, finish, logsumexp, start


@triton.jit
def cell(cell_begin, d, B, b):
    """Where the nodes of example b on level d begin and end."""
    at = cell_begin + d * B + b
    return tl.load(at).to(tl.int32), tl.load(at + 1).to(tl.int32)


@triton.jit
def arcs_of(begin, n, inside):
    """Where the arcs of nodes n begin and end, and the most arcs of one of them."""
    low, high = tl.load(begin + n, mask=inside, other=0), tl.load(begin + n + 1, mask=inside, other=0)
    return low[:, None], high[:, None], tl.max(high - low, 0).to(tl.int32)


@triton.jit
def worth(scores, base, constant, other, found, a, there):
    """score + constant + what is known of the node at the other end, of arcs a; -inf where there is none."""
    own = tl.load(scores + tl.load(base + a, mask=there, other=0), mask=there, other=0.0).to(tl.float64)
    node = tl.load(other + a, mask=there, other=0)
    return own + tl.load(constant + a, mask=there, other=0.0) + tl.load(found + node, mask=there, other=-float("inf"))


@triton.jit
def sweep(
    scores, dscores, cell_begin, begins, base, other, constant, dconstant, found, dfound, B, D, N, A,
    DUAL: tl.constexpr, NB: tl.constexpr, AB: tl.constexpr,
):  # fmt: skip
    """found (2, N + 1): of each node log of the sum over the ways to end, and to come there; dfound its derivative.

    Program (b, way). Of each way: where the arcs of a node begin (2, N + 2), their scores, what is at their other end
    and what they score by themselves (2, A). What is found of node N and of the starts, which nothing enters, is there.
    """
    b, way = tl.program_id(0), tl.program_id(1)
    begin, base, other = begins + way * (N + 2), base + way * A, other + way * A
    constant, dconstant = constant + way * A, dconstant + way * A
    found, dfound = found + way * (N + 1), dfound + way * (N + 1)
    for i in range(way, D):
        from_node, to_node = cell(cell_begin, tl.where(way == 0, D - 1 - i, i), B, b)
        for at in range(from_node, to_node, NB):
            n = at + tl.arange(0, NB)
            inside = n < to_node
            top, total, dtotal = start(tl.zeros([NB], tl.float64))
            low, high, degree = arcs_of(begin, n, inside)
            for j in range(0, degree, AB):
                a = low + j + tl.arange(0, AB)[None, :]
                there = a < high
                x = worth(scores, base, constant, other, found, a, there)
                dx = x
                if DUAL:
                    dx = worth(dscores, base, dconstant, other, dfound, a, there)
                value, dvalue = logsumexp(x, dx, DUAL)
                top, total, dtotal = add(top, total, dtotal, value, dvalue, DUAL)
            value, dvalue = finish(top, total, dtotal, DUAL)
            tl.store(found + n, value, mask=inside)
            if DUAL:
                tl.store(dfound + n, dvalue, mask=inside)
        tl.debug_barrier()


@triton.jit
def gradient(
    g, scores, dscores, begin, arcs, owner, tail, head, constant, dconstant, found, dfound, in_scores, in_dscores, n, N,
    DUAL: tl.constexpr, NB: tl.constexpr, AB: tl.constexpr,
):  # fmt: skip
    """g (B,) of its example times the probability of each score (n,), over the arcs that have it, in_scores.

    With DUAL that is in_dscores, and in_scores has its derivative.
    """
    s = tl.program_id(0) * NB + tl.arange(0, NB)
    inside = s < n
    b = tl.load(owner + s, mask=inside, other=0)
    z, dz = above(tl.load(found + b, mask=inside, other=0.0)), tl.zeros([NB], tl.float64)
    if DUAL:
        dz = above(tl.load(dfound + b, mask=inside, other=0.0))
    own, factor = tl.load(scores + s, mask=inside, other=0.0).to(tl.float64), tl.load(g + b, mask=inside, other=0.0)
    share, dshare = tl.zeros([NB], tl.float64), tl.zeros([NB], tl.float64)
    low, high, degree = arcs_of(begin, s, inside)
    for j in range(0, degree, AB):
        place = low + j + tl.arange(0, AB)[None, :]
        there = place < high
        a = tl.load(arcs + place, mask=there, other=0)
        begins, ends = tl.load(head + a, mask=there, other=0), tl.load(tail + a, mask=there, other=0)
        x = tl.load(found + N + 1 + begins, mask=there, other=-float("inf")) + tl.load(
            found + ends, mask=there, other=0.0
        )
        x += (own - z)[:, None] + tl.load(constant + a, mask=there, other=0.0)
        probability = tl.exp(x)
        share += tl.sum(probability, 1)
        if DUAL:
            dx = tl.load(dfound + N + 1 + begins, mask=there, other=0.0) + tl.load(dfound + ends, mask=there, other=0.0)
            dx += (tl.load(dscores + s, mask=inside, other=0.0).to(tl.float64) - dz)[:, None]
            dx += tl.load(dconstant + a, mask=there, other=0.0)
            counts = (probability > 0) & (dx > -float("inf"))
            dshare += tl.sum(tl.where(counts, probability * dx, 0.0), 1)
    if DUAL:
        tl.store(in_dscores + s, factor * share, mask=inside)
        share = dshare
    tl.store(in_scores + s, factor * share, mask=inside)


@triton.jit
def best(
    scores, cell_begin, begin, base, tail, constant, found, via, path, B, D, L, NB: tl.constexpr, AB: tl.constexpr
):  # fmt: skip
    """found (N + 1,): the score of the best way to end; path (B, L): the scores that the best path uses, -1 after it.

    Of equals that of the first arc: via (N + 1,), -1 where there is none. NaN where one matters. Both know of node N.
    """
    b = tl.program_id(0)
    for i in range(0, D):
        from_node, to_node = cell(cell_begin, D - 1 - i, B, b)
        for at in range(from_node, to_node, NB):
            n = at + tl.arange(0, NB)
            inside = n < to_node
            top = tl.full([NB], -float("inf"), tl.float64)
            choice = tl.full([NB], -1, tl.int64)
            low, high, degree = arcs_of(begin, n, inside)
            for j in range(0, degree, AB):
                a = low + j + tl.arange(0, AB)[None, :]
                x = worth(scores, base, constant, tail, found, a, a < high)
                most = tl.max(x, 1)
                most = tl.where(tl.sum((x != x).to(tl.int32), 1) > 0, float("nan"), most)
                first = tl.min(tl.where((x == most[:, None]) & (a < high), a, 2**62), 1)
                choice = tl.where(most > top, first, choice)
                top = tl.maximum(top, most, propagate_nan=tl.PropagateNan.ALL)
            tl.store(found + n, top, mask=inside)
            tl.store(via + n, choice, mask=inside)
        tl.debug_barrier()
    node = b.to(tl.int64)
    for t in range(0, L):
        arc = tl.load(via + node)
        taken = tl.maximum(arc, 0)
        tl.store(path + b * L + t, tl.where(arc >= 0, tl.load(base + taken), -1))
        node = tl.where(arc >= 0, tl.load(tail + taken), node)
