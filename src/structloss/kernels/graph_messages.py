"""Messages between the factors and the variables of a graph, at a temperature: passes of sum-product along chains.

One pass over the variables of an example in their order, and one back, follows monotone chains (Kolmogorov 2006, in the
smoothed form of Savchynskyy et al. 2012): at variable v

    M_fv(x) = tau log of the sum over the other labels of f of exp((theta_f + sum over u of A_fu) / tau)
    total_v = theta_v + sum over f of M_fv,        A_fv = gamma_v total_v - M_fv,

gamma_v one over the number of chains through v. Sums are made in linear arithmetic with E = exp((theta_f + sum of
absorbed_fv - top_f) / tau), where `absorbed` follows A; where a sum is lost to underflow the maximum takes its place,
which is off by tau times the log of the number of cells at most (any M gives a bound).
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.arithmetic import exp_nonpositive
from structloss.kernels.compile import kernel
from structloss.kernels.elimination import Graph
from structloss.kernels.types import Array, Ints

LOST = 1e-40  # a sum below may have lost terms: E below exp(-700), times exp(FAR) at most
FAR = 600.0  # exponents beyond are absorbed


class Slots(NamedTuple):
    """What variables and factors know of each other. A slot is a variable's place in the scope of a factor."""

    factor: Ints  # (S,): whose slot it is
    stride: Ints  # (S,): how far apart neighbouring labels are in its table
    messages: Ints  # (S + 1,): where its messages begin, one for each label
    begin: Ints  # (V + 1,): where each variable's slots begin in the next
    of: Ints  # (S,)
    cells: Ints  # (S + 1,): where a slot's part of the next begins, one entry for each cell of its factor
    entry: Ints  # which of the messages is about the label that this slot has in that cell
    first: Ints  # (S,): whether no variable of the factor comes before
    last: Ints  # (S,): or after
    share: Array  # (V,): gamma


class Room(NamedTuple):
    """What the method computes in, for the whole batch."""

    M: Array
    A: Array
    absorbed: Array
    scale: Array  # exp((A - absorbed) / tau)
    E: Array
    top: Array  # (F,)
    total: Array  # as unary
    allowed: Ints  # as unary: whether the label is possible at all
    open: Ints  # the same for every message
    before: Array  # M of the pass before


@kernel
def forbid(g: Graph, s: Slots, b: int, unary: Array, tables: Array, allowed: Ints, open_: Ints) -> bool:
    """Strike labels that no cell of some factor allows, until nothing changes. False where a variable has none left."""
    for v in range(g.variables[b], g.variables[b + 1]):
        for x in range(g.labels[v], g.labels[v + 1]):
            allowed[x] = unary[x] > -np.inf
    changed = True
    while changed:
        changed = False
        for f in range(g.factors[b], g.factors[b + 1]):
            begin, end = g.slots[f], g.slots[f + 1]
            for at in range(begin, end):
                for i in range(s.messages[at], s.messages[at + 1]):
                    open_[i] = 0
            for c in range(g.cells[f + 1] - g.cells[f]):
                possible = tables[g.cells[f] + c] > -np.inf
                for at in range(begin, end):
                    label = g.labels[g.scope[at]] + s.entry[s.cells[at] + c] - s.messages[at]
                    possible = possible and allowed[label] > 0
                if possible:
                    for at in range(begin, end):
                        open_[s.entry[s.cells[at] + c]] = 1
            for at in range(begin, end):
                for i in range(s.messages[at], s.messages[at + 1]):
                    label = g.labels[g.scope[at]] + i - s.messages[at]
                    if allowed[label] and not open_[i]:
                        allowed[label] = 0
                        changed = True
    some = True
    for v in range(g.variables[b], g.variables[b + 1]):
        some = some and bool(allowed[g.labels[v] : g.labels[v + 1]].any())
    return some


@kernel
def gather(g: Graph, s: Slots, f: int, tables: Array, r: Room, out: Array) -> float:
    """out = theta_f + the sum of A of factor f's cells, -inf where a label is struck. Returns the largest."""
    first, begin = g.cells[f], g.slots[f]
    top = -np.inf
    if g.slots[f + 1] - begin == 2:
        rows, columns = s.messages[begin], s.messages[begin + 1]
        count = s.messages[begin + 2] - columns
        c = first
        for i in range(rows, columns):
            for j in range(columns, columns + count):
                value = tables[c] + r.A[i] + r.A[j] if r.open[i] and r.open[j] else -np.inf
                out[c] = value
                top = max(top, value)
                c += 1
        return top
    for c in range(g.cells[f + 1] - first):
        value = tables[first + c]
        for at in range(begin, g.slots[f + 1]):
            i = s.entry[s.cells[at] + c]
            value += r.A[i] if r.open[i] else -np.inf
        out[first + c] = value
        top = max(top, value)
    return top


@kernel
def absorb(g: Graph, s: Slots, f: int, tables: Array, tau: float, r: Room) -> None:
    """E and top of factor f from A, which is absorbed."""
    for at in range(g.slots[f], g.slots[f + 1]):
        for i in range(s.messages[at], s.messages[at + 1]):
            r.absorbed[i] = r.A[i]
            r.scale[i] = r.open[i]
    first, count = g.cells[f], g.cells[f + 1] - g.cells[f]
    top = gather(g, s, f, tables, r, r.E)
    r.top[f] = top
    for c in range(first, first + count):
        r.E[c] = exp_nonpositive((r.E[c] - top) / tau)


@kernel
def send(g: Graph, s: Slots, at: int, tables: Array, tau: float, r: Room, sums: Array) -> None:
    """M of slot `at`, from the A of the other slots of its factor."""
    f, begin, size = s.factor[at], s.messages[at], s.messages[at + 1] - s.messages[at]
    first, count = g.cells[f], g.cells[f + 1] - g.cells[f]
    pair = g.slots[f + 1] - g.slots[f] == 2
    other = 2 * g.slots[f] + 1 - at
    if pair:
        there, others = s.messages[other], s.messages[other + 1] - s.messages[other]
        far, near = s.stride[other], s.stride[at]
        if far == 1:
            for x in range(size):
                total = 0.0
                for z in range(others):
                    total += r.E[first + x * near + z] * r.scale[there + z]
                sums[x] = total
        else:
            for x in range(size):
                sums[x] = 0.0
            for z in range(others):
                weight = r.scale[there + z]
                for x in range(size):
                    sums[x] += r.E[first + z * far + x] * weight
    else:
        sums[:size] = 0.0
        for c in range(count):
            weight = r.E[first + c]
            for k in range(g.slots[f], g.slots[f + 1]):
                if k != at:
                    weight *= r.scale[s.entry[s.cells[k] + c]]
            sums[s.entry[s.cells[at] + c] - begin] += weight
    for x in range(size):
        if not r.open[begin + x]:
            r.M[begin + x] = 0.0
        elif sums[x] > LOST:
            r.M[begin + x] = r.top[f] - r.absorbed[begin + x] + tau * np.log(sums[x])
        elif pair:
            best = -np.inf
            for z in range(others):
                if r.open[there + z]:
                    best = max(best, tables[first + x * near + z * far] + r.A[there + z])
            r.M[begin + x] = best
        else:
            best = -np.inf
            for c in range(count):
                if s.entry[s.cells[at] + c] == begin + x:
                    value = tables[first + c]
                    for k in range(g.slots[f], g.slots[f + 1]):
                        i = s.entry[s.cells[k] + c]
                        if k != at:
                            value += r.A[i] if r.open[i] else -np.inf
                    best = max(best, value)
            r.M[begin + x] = best


@kernel
def sweep(
    g: Graph, s: Slots, b: int, unary: Array, tables: Array, tau: float, ahead: bool, r: Room, sums: Array
) -> None:
    """One pass over the variables of example b, ahead or back."""
    begin, end = g.variables[b], g.variables[b + 1]
    for step in range(end - begin):
        v = begin + step if ahead else end - 1 - step
        labels, size = g.labels[v], g.labels[v + 1] - g.labels[v]
        for x in range(size):
            r.total[labels + x] = unary[labels + x]
        for i in range(s.begin[v], s.begin[v + 1]):
            at = s.of[i]
            comes = not (s.first[at] if ahead else s.last[at])
            if comes or (s.first[at] and s.last[at]):
                send(g, s, at, tables, tau, r, sums)
            for x in range(size):
                r.total[labels + x] += r.M[s.messages[at] + x]
        for j in range(s.begin[v], s.begin[v + 1]):
            at = s.of[j]
            if not (s.last[at] if ahead else s.first[at]):
                answer(g, s, at, v, r)
                f = s.factor[at]
                far, most = False, FAR / (g.slots[f + 1] - g.slots[f] - 1)  # so much for a product of scales
                for i in range(s.messages[at], s.messages[at + 1]):
                    exponent = (r.A[i] - r.absorbed[i]) / tau
                    far = far or exponent > most or exponent < -most
                    r.scale[i] = np.exp(exponent) if r.open[i] else 0.0
                if far:
                    absorb(g, s, f, tables, tau, r)


@kernel
def push(g: Graph, s: Slots, b: int, weight: float, r: Room) -> None:
    """Go on in the direction of the last change: a pass depends on the M of last slots alone."""
    for f in range(g.factors[b], g.factors[b + 1]):
        for at in range(g.slots[f], g.slots[f + 1]):
            if s.last[at]:
                for i in range(s.messages[at], s.messages[at + 1]):
                    found = r.M[i]
                    r.M[i] += weight * (found - r.before[i])
                    r.before[i] = found


@kernel
def answer(g: Graph, s: Slots, at: int, v: int, r: Room) -> None:
    """A = gamma total - M, its largest entry 0: a constant between factor and variable changes nothing."""
    labels, size, begin = g.labels[v], g.labels[v + 1] - g.labels[v], s.messages[at]
    top = -np.inf
    for x in range(size):
        if r.allowed[labels + x]:
            r.A[begin + x] = s.share[v] * r.total[labels + x] - r.M[begin + x]
            top = max(top, r.A[begin + x])
        else:
            r.A[begin + x] = 0.0
    for x in range(size):
        if r.allowed[labels + x]:
            r.A[begin + x] -= top
