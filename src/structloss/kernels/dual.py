"""The dual of a factor graph's linear relaxation: messages between factors and variables that lower an upper bound.

A relaxed solution mu gives every variable and every factor a distribution over its labels and cells, and the marginals
of a factor's are those of its variables. The dual moves scores A between factors f and variables v:

    bound = sum over v of max (theta_v - sum over f of A_fv) + sum over f of max (theta_f + sum over v of A_fv)

is at least the value of every mu, whatever A is. One pass over the variables of an example in their order, and one
back, follows monotone chains (Kolmogorov 2006), with log-sum-exp at a temperature tau for the maximum (Savchynskyy et
al. 2012): at variable v

    M_fv(x) = tau log of the sum over the other labels of f of exp((theta_f + sum over u of A_fu) / tau)
    total_v = theta_v + sum over f of M_fv,        A_fv = gamma_v total_v - M_fv,

gamma_v one over the number of chains through v. Sums are made in linear arithmetic with E = exp((theta_f + sum of
absorbed_fv - top_f) / tau), where `absorbed` follows A; where a sum is lost to underflow the maximum takes its place,
which is off by tau times the log of the number of cells at most (any M gives a bound). A is -inf for struck labels.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.arithmetic import exp_nonpositive
from structloss.kernels.compile import helper, inlined_helper
from structloss.kernels.factors import MAX, Graph, Slots, along, gather
from structloss.kernels.types import Array, Ints

LOST = 1e-40  # a sum below may have lost terms: E below exp(-700), times exp(FAR) at most
FAR = 600.0  # exponents beyond are absorbed


class Room(NamedTuple):
    """What the method computes in, for the whole batch: messages, and what else is said."""

    M: Array
    A: Array
    absorbed: Array
    scale: Array  # exp((A - absorbed) / tau)
    before: Array  # M of the pass before
    missing: Array  # what a solution still lacks
    E: Array  # as the scores
    total: Array  # as the scores of labels
    allowed: Ints  # as those: whether the label is possible at all
    top: Array  # (F,)


@inlined_helper
def absorb(g: Graph, s: Slots, f: int, scores: Array, tau: float, r: Room) -> None:
    """E and top of factor f from A, which is absorbed."""
    for i in range(s.messages[g.slots[f]], s.messages[g.slots[f + 1]]):
        r.absorbed[i] = r.A[i]
        r.scale[i] = 1.0 if r.A[i] > -np.inf else 0.0
    top = gather(g, s, f, scores, r.A, r.E)
    r.top[f] = top
    for c in range(g.cells[f], g.cells[f + 1]):
        r.E[c] = exp_nonpositive((r.E[c] - top) / tau)


@helper
def contract(x: Array, outer: int, size: int, inner: int, w: Array, first: int) -> None:
    """x[o, i] = the sum over k of x[o, k, i] w[k]: into the beginning of x, which it has been read from by then."""
    if inner == 1:
        for o in range(outer):
            total = 0.0
            for k in range(size):
                total += x[o * size + k] * w[first + k]
            x[o] = total
        return
    for o in range(outer):
        for i in range(inner):
            x[o * inner + i] = x[o * size * inner + i] * w[first]
        for k in range(1, size):
            weight = w[first + k]
            for i in range(inner):
                x[o * inner + i] += x[(o * size + k) * inner + i] * weight


@helper
def send_best(g: Graph, s: Slots, at: int, scores: Array, r: Room, work: Array) -> None:
    """M of slot `at` where it was lost: maxima take the place of sums."""
    gather(g, s, s.factor[at], scores, r.A, work)
    along(MAX, g, s, at, work, r.missing)
    for i in range(s.messages[at], s.messages[at + 1]):
        if r.M[i] == -np.inf:
            r.M[i] = r.missing[i] - r.A[i]


@inlined_helper
def send(g: Graph, s: Slots, at: int, scores: Array, tau: float, r: Room, work: Array) -> None:
    """M of slot `at`, from the A of the other slots of its factor: one of these after the other is summed out."""
    f, messages, size = s.factor[at], s.messages[at], s.messages[at + 1] - s.messages[at]
    for c in range(g.cells[f], g.cells[f + 1]):
        work[c - g.cells[f]] = r.E[c]
    for k in range(g.slots[f + 1] - 1, g.slots[f] - 1, -1):
        if k != at:
            first = s.messages[k]
            contract(work, s.outer[k], s.messages[k + 1] - first, 1 if k > at else size, r.scale, first)
    lost = False
    for i in range(size):
        if r.A[messages + i] == -np.inf:
            r.M[messages + i] = 0.0
        elif work[i] > LOST:
            r.M[messages + i] = r.top[f] - r.absorbed[messages + i] + tau * np.log(work[i])
        else:
            r.M[messages + i] = -np.inf
            lost = True
    if lost:
        send_best(g, s, at, scores, r, work)


@helper
def answer(g: Graph, s: Slots, at: int, r: Room) -> None:
    """A = gamma total - M, its largest entry 0: a constant between factor and variable changes nothing."""
    v, begin = g.scope[at], s.messages[at]
    labels, size = g.labels[v], g.labels[v + 1] - g.labels[v]
    top = -np.inf
    for x in range(size):
        r.A[begin + x] = s.share[v] * r.total[labels + x] - r.M[begin + x] if r.allowed[labels + x] else -np.inf
        top = max(top, r.A[begin + x])
    for x in range(size):
        r.A[begin + x] -= top


@helper
def sweep(g: Graph, s: Slots, b: int, scores: Array, tau: float, ahead: bool, r: Room, work: Array) -> None:
    """One pass over the variables of example b, ahead or back."""
    begin, end = g.variables[b], g.variables[b + 1]
    for step in range(end - begin):
        v = begin + step if ahead else end - 1 - step
        labels, size = g.labels[v], g.labels[v + 1] - g.labels[v]
        for x in range(size):
            r.total[labels + x] = scores[labels + x]
        for i in range(s.begin[v], s.begin[v + 1]):
            at = s.of[i]
            comes = not (s.first[at] if ahead else s.last[at])
            if comes or (s.first[at] and s.last[at]):
                send(g, s, at, scores, tau, r, work)
            for x in range(size):
                r.total[labels + x] += r.M[s.messages[at] + x]
        for j in range(s.begin[v], s.begin[v + 1]):
            at = s.of[j]
            if not (s.last[at] if ahead else s.first[at]):
                answer(g, s, at, r)
                f = s.factor[at]
                far, most = False, FAR / (g.slots[f + 1] - g.slots[f] - 1)  # so much for a product of scales
                for i in range(s.messages[at], s.messages[at + 1]):
                    exponent = (r.A[i] - r.absorbed[i]) / tau
                    far = far or exponent > most or exponent < -most
                    r.scale[i] = np.exp(exponent) if r.A[i] > -np.inf else 0.0
                if far:
                    absorb(g, s, f, scores, tau, r)


@helper
def push(g: Graph, s: Slots, b: int, weight: float, r: Room) -> None:
    """Go on in the direction of the last change: a pass depends on the M of last slots alone."""
    for at in range(g.slots[g.factors[b]], g.slots[g.factors[b + 1]]):
        if s.last[at]:
            for i in range(s.messages[at], s.messages[at + 1]):
                found = r.M[i]
                r.M[i] += weight * (found - r.before[i])
                r.before[i] = found


@helper
def bound(g: Graph, s: Slots, b: int, scores: Array, r: Room) -> float:
    """The dual value after a pass ahead, where A is -M at the last slot of a factor. It overwrites that, and E."""
    for at in range(g.slots[g.factors[b]], g.slots[g.factors[b + 1]]):
        if s.last[at]:
            for i in range(s.messages[at], s.messages[at + 1]):
                r.A[i] = -r.M[i] if r.A[i] > -np.inf else -np.inf
    result = 0.0
    for v in range(g.variables[b], g.variables[b + 1]):
        best = -np.inf
        for x in range(g.labels[v + 1] - g.labels[v]):
            if r.allowed[g.labels[v] + x]:
                value = scores[g.labels[v] + x]
                for i in range(s.begin[v], s.begin[v + 1]):
                    value -= r.A[s.messages[s.of[i]] + x]
                best = max(best, value)
        result += best
    for f in range(g.factors[b], g.factors[b + 1]):
        result += gather(g, s, f, scores, r.A, r.E)
    return result
