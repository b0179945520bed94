"""The linear relaxation of a factor graph: maxima over the local marginal polytope, by a smoothed dual method.

A relaxed solution mu gives every variable and every factor a distribution over its labels and cells, and the marginals
of a factor's are those of its variables. The dual moves scores between factors f and variables v by messages delta:

    bound = sum over v of max (theta_v + sum over f of delta_fv) + sum over f of max (theta_f - sum over v of delta_fv)

is at least the value of every mu, whatever delta is. With log-sum-exp at a temperature tau for the maximum, one pass
over the variables of an example in their order, and one back, is a pass of sum-product along monotone chains
(Kolmogorov 2006, in the smoothed form of Savchynskyy et al. 2012): at variable v

    M_fv(x) = tau log of the sum over the other labels of f of exp((theta_f + sum over u of A_fu) / tau)
    total_v = theta_v + sum over f of M_fv,        A_fv = gamma_v total_v - M_fv,

gamma_v one over the number of chains through v. The temperature falls step by step. At each step the beliefs
exp((theta_f + sum of A_fv) / tau) are mended into a solution mu: scaled down until no marginal is too large, and what
is missing is added as a product. Its value, below, and the bound, above, are the certificate.

Sums are made in linear arithmetic with E = exp((theta_f + sum of absorbed_fv - top_f) / tau), where `absorbed` follows
A; where a sum is lost to underflow the maximum takes its place, which is off by tau times the log of the number of
cells at most (any M gives a bound).
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.chain_sum import exp_nonpositive
from structloss.kernels.compile import kernel
from structloss.kernels.elimination import Graph
from structloss.kernels.levels import Array, Labels

ROUND = 10  # passes ahead and back, between two looks at the gap
LOST = 1e-40  # a sum below may have lost terms: E below exp(-700), times exp(FAR) at most
FAR = 600.0  # exponents beyond are absorbed
INFEASIBLE, NOT_CONVERGED, CONVERGED, INTEGRAL = 0, 1, 2, 3


class Slots(NamedTuple):
    """What variables and factors know of each other. A slot is a variable's place in the scope of a factor."""

    factor: Labels  # (S,): whose slot it is
    stride: Labels  # (S,): how far apart neighbouring labels are in its table
    messages: Labels  # (S + 1,): where its messages begin, one for each label
    begin: Labels  # (V + 1,): where each variable's slots begin in the next
    of: Labels  # (S,)
    cells: Labels  # (S + 1,): where a slot's part of the next begins, one entry for each cell of its factor
    entry: Labels  # which of the messages is about the label that this slot has in that cell
    first: Labels  # (S,): whether no variable of the factor comes before
    last: Labels  # (S,): or after
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
    allowed: Labels  # as unary: whether the label is possible at all
    open: Labels  # the same for every message
    before: Array  # M of the pass before


@kernel
def forbid(g: Graph, s: Slots, b: int, unary: Array, tables: Array, allowed: Labels, open_: Labels) -> bool:
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


@kernel
def bound(g: Graph, s: Slots, b: int, unary: Array, tables: Array, r: Room) -> float:
    """The dual value after a pass ahead: delta is M at the last slot of a factor, -A at the others."""
    result = 0.0
    for v in range(g.variables[b], g.variables[b + 1]):
        best = -np.inf
        for x in range(g.labels[v + 1] - g.labels[v]):
            if r.allowed[g.labels[v] + x]:
                value = unary[g.labels[v] + x]
                for i in range(s.begin[v], s.begin[v + 1]):
                    at = s.of[i]
                    value += r.M[s.messages[at] + x] if s.last[at] else -r.A[s.messages[at] + x]
                best = max(best, value)
        result += best
    for f in range(g.factors[b], g.factors[b + 1]):
        best = -np.inf
        for c in range(g.cells[f + 1] - g.cells[f]):
            value = tables[g.cells[f] + c]
            for at in range(g.slots[f], g.slots[f + 1]):
                i = s.entry[s.cells[at] + c]
                if not r.open[i]:
                    value = -np.inf
                value += -r.M[i] if s.last[at] else r.A[i]
            best = max(best, value)
        result += best
    return result


@kernel
def marginal(g: Graph, s: Slots, at: int, mu: Array, out: Array) -> None:
    """out[x] = the mass of the cells of mu with label x at this slot."""
    f, begin, size = s.factor[at], s.messages[at], s.messages[at + 1] - s.messages[at]
    out[:size] = 0.0
    if g.slots[f + 1] - g.slots[f] == 2:
        others = (g.cells[f + 1] - g.cells[f]) // size
        near, far = (1, size) if s.stride[at] == 1 else (others, 1)
        for z in range(others):
            for x in range(size):
                out[x] += mu[g.cells[f] + x * near + z * far]
        return
    for c in range(g.cells[f + 1] - g.cells[f]):
        out[s.entry[s.cells[at] + c] - begin] += mu[g.cells[f] + c]


@kernel
def mend_pair(
    g: Graph, s: Slots, f: int, tables: Array, mu: Array, mu_tables: Array, missing: Array
) -> tuple[float, float, float]:
    """What `solution` does to a factor, for a factor over two variables, without index arrays."""
    first, begin = g.cells[f], g.slots[f]
    rows, columns = s.messages[begin], s.messages[begin + 1]
    m, n = columns - rows, s.messages[begin + 2] - columns
    above, beside = g.labels[g.scope[begin]], g.labels[g.scope[begin + 1]]
    for z in range(n):
        missing[columns + z] = 0.0
    for x in range(m):
        total = 0.0
        for z in range(n):
            total += mu_tables[first + x * n + z]
        factor = mu[above + x] / total if total > mu[above + x] else 1.0
        for z in range(n):
            mu_tables[first + x * n + z] *= factor
            missing[columns + z] += mu_tables[first + x * n + z]
    for z in range(n):
        total, wanted = missing[columns + z], mu[beside + z]
        missing[columns + z] = wanted / total if total > wanted else 1.0
    for x in range(m):
        total = 0.0
        for z in range(n):
            mu_tables[first + x * n + z] *= missing[columns + z]
            total += mu_tables[first + x * n + z]
        missing[rows + x] = max(0.0, mu[above + x] - total)
    left = 0.0
    for z in range(n):
        total = 0.0
        for x in range(m):
            total += mu_tables[first + x * n + z]
        missing[columns + z] = max(0.0, mu[beside + z] - total)
        left += missing[columns + z]
    value = violation = 0.0
    for x in range(m):
        share = missing[rows + x] / left if left > 0 else 0.0
        for z in range(n):
            c = first + x * n + z
            added = share * missing[columns + z]
            if tables[c] > -np.inf:
                mu_tables[c] += added
                value += mu_tables[c] * tables[c]
            else:
                violation += added
    return value, violation, left


@kernel
def solution(
    g: Graph, s: Slots, b: int, unary: Array, tables: Array, tau: float, r: Room, mu: Array, mu_tables: Array,
    sums: Array, missing: Array,
) -> tuple[float, float, float]:  # fmt: skip
    """Fill mu with the beliefs, mended to a point of the polytope.

    Returns its value, its mass on forbidden cells, and how much mass was mended.
    """
    value = violation = mended = 0.0
    for f in range(g.factors[b], g.factors[b + 1]):
        for at in range(g.slots[f], g.slots[f + 1]):
            answer(g, s, at, g.scope[at], r)
        top = gather(g, s, f, tables, r, mu_tables)
        norm = 0.0
        for c in range(g.cells[f], g.cells[f + 1]):
            mu_tables[c] = exp_nonpositive((mu_tables[c] - top) / tau)
            norm += mu_tables[c]
        for c in range(g.cells[f], g.cells[f + 1]):
            mu_tables[c] /= norm
    for v in range(g.variables[b], g.variables[b + 1]):
        labels, size = g.labels[v], g.labels[v + 1] - g.labels[v]
        if s.begin[v] == s.begin[v + 1]:
            best = 0
            for x in range(size):
                best = x if unary[labels + x] > unary[labels + best] else best
            mu[labels : labels + size] = 0.0
            mu[labels + best] = 1.0
        else:
            mu[labels : labels + size] = 0.0
            for i in range(s.begin[v], s.begin[v + 1]):
                marginal(g, s, s.of[i], mu_tables, sums)
                for x in range(size):
                    mu[labels + x] += sums[x] / (s.begin[v + 1] - s.begin[v])
        for x in range(size):
            if mu[labels + x] > 0:
                value += mu[labels + x] * unary[labels + x]
    for f in range(g.factors[b], g.factors[b + 1]):
        if g.slots[f + 1] - g.slots[f] == 2:
            score, off, left = mend_pair(g, s, f, tables, mu, mu_tables, missing)
            value, violation, mended = value + score, violation + off, mended + left
            continue
        for at in range(g.slots[f], g.slots[f + 1]):
            labels, size = g.labels[g.scope[at]], s.messages[at + 1] - s.messages[at]
            marginal(g, s, at, mu_tables, sums)
            for x in range(size):
                sums[x] = mu[labels + x] / sums[x] if sums[x] > mu[labels + x] else 1.0
            for c in range(g.cells[f + 1] - g.cells[f]):
                mu_tables[g.cells[f] + c] *= sums[s.entry[s.cells[at] + c] - s.messages[at]]
        left = 0.0
        for at in range(g.slots[f], g.slots[f + 1]):
            labels, begin = g.labels[g.scope[at]], s.messages[at]
            marginal(g, s, at, mu_tables, sums)
            left = 0.0
            for x in range(s.messages[at + 1] - begin):
                missing[begin + x] = max(0.0, mu[labels + x] - sums[x])
                left += missing[begin + x]
        mended += left
        if left > 0:
            for i in range(s.messages[g.slots[f] + 1], s.messages[g.slots[f + 1]]):
                missing[i] /= left
        for c in range(g.cells[f + 1] - g.cells[f]):
            if left > 0:
                added = 1.0
                for at in range(g.slots[f], g.slots[f + 1]):
                    added *= missing[s.entry[s.cells[at] + c]]
                if tables[g.cells[f] + c] > -np.inf:
                    mu_tables[g.cells[f] + c] += added
                else:
                    violation += added
            if mu_tables[g.cells[f] + c] > 0:
                value += mu_tables[g.cells[f] + c] * tables[g.cells[f] + c]
    return value, violation, mended


@kernel
def decode(g: Graph, s: Slots, b: int, unary: Array, tables: Array, r: Room, labels: Labels, values: Array) -> float:
    """labels[v] = one variable after the other, the best given those before it. Returns their score.

    A factor whose other variables are decided counts with its table, any other with its message M.
    """
    score = 0.0
    for v in range(g.variables[b], g.variables[b + 1]):
        first, size = g.labels[v], g.labels[v + 1] - g.labels[v]
        for x in range(size):
            values[x] = unary[first + x] if r.allowed[first + x] else -np.inf
        for i in range(s.begin[v], s.begin[v + 1]):
            at = s.of[i]
            f = s.factor[at]
            if s.last[at]:
                cell = g.cells[f]
                for other in range(g.slots[f], g.slots[f + 1]):
                    cell += s.stride[other] * labels[g.scope[other]] if other != at else 0
                for x in range(size):
                    values[x] += tables[cell + x * s.stride[at]]
            else:
                for x in range(size):
                    values[x] += r.M[s.messages[at] + x]
        best = 0
        for x in range(size):
            best = x if values[x] > values[best] else best
        labels[v] = best
        score += unary[first + best]
    for f in range(g.factors[b], g.factors[b + 1]):
        at = g.cells[f]
        for i in range(g.slots[f], g.slots[f + 1]):
            at += s.stride[i] * labels[g.scope[i]]
        score += tables[at]
    return score


@kernel
def make_integral(g: Graph, s: Slots, b: int, labels: Labels, mu: Array, mu_tables: Array) -> None:
    """mu of an assignment."""
    for v in range(g.variables[b], g.variables[b + 1]):
        mu[g.labels[v] : g.labels[v + 1]] = 0.0
        mu[g.labels[v] + labels[v]] = 1.0
    for f in range(g.factors[b], g.factors[b + 1]):
        mu_tables[g.cells[f] : g.cells[f + 1]] = 0.0
        at = g.cells[f]
        for i in range(g.slots[f], g.slots[f + 1]):
            at += s.stride[i] * labels[g.scope[i]]
        mu_tables[at] = 1.0


@kernel
def typical_span(g: Graph, b: int, unary: Array, tables: Array) -> float:
    """The mean over variables and factors of how far their finite scores are apart."""
    total, count = 0.0, 0
    for v in range(g.variables[b], g.variables[b + 1]):
        low, high = np.inf, -np.inf
        for x in range(g.labels[v], g.labels[v + 1]):
            if unary[x] > -np.inf:
                low, high = min(low, unary[x]), max(high, unary[x])
        total, count = total + max(0.0, high - low), count + 1
    for f in range(g.factors[b], g.factors[b + 1]):
        low, high = np.inf, -np.inf
        for c in range(g.cells[f], g.cells[f + 1]):
            if tables[c] > -np.inf:
                low, high = min(low, tables[c]), max(high, tables[c])
        total, count = total + max(0.0, high - low), count + 1
    return total / count if count and total > 0 else 1.0


@kernel
def middle(g: Graph, b: int, unary: Array, tables: Array) -> float:
    """The score to expect where all labels and cells that are allowed are equally probable."""
    result = 0.0
    for v in range(g.variables[b], g.variables[b + 1]):
        total, count = 0.0, 0
        for x in range(g.labels[v], g.labels[v + 1]):
            if unary[x] > -np.inf:
                total, count = total + unary[x], count + 1
        result += total / max(1, count)
    for f in range(g.factors[b], g.factors[b + 1]):
        total, count = 0.0, 0
        for c in range(g.cells[f], g.cells[f + 1]):
            if tables[c] > -np.inf:
                total, count = total + tables[c], count + 1
        result += total / max(1, count)
    return result


@kernel
def relax(
    worker: int, workers: int, g: Graph, s: Slots, unary: Array, tables: Array, tolerance: float, most: int, r: Room,
    mu: Array, mu_tables: Array, trial: Array, trial_tables: Array, missing: Array, labels: Labels, best: Labels,
    certificate: Array, status: Labels,
) -> None:  # fmt: skip
    """Solve every example to a gap relative to how far the bound is from the middle, or for as many sweeps as allowed.

    certificate[b] = value of mu, bound, the score of the best assignment met, mass of mu on forbidden cells, sweeps.
    """
    sizes = 1
    for v in range(g.labels.shape[0] - 1):
        sizes = max(sizes, g.labels[v + 1] - g.labels[v])
    sums = np.empty(sizes)
    for b in range(worker, status.shape[0], workers):
        certificate[b] = 0.0
        mu_first, mu_last = g.labels[g.variables[b]], g.labels[g.variables[b + 1]]
        first, last = g.cells[g.factors[b]], g.cells[g.factors[b + 1]]
        if not forbid(g, s, b, unary, tables, r.allowed, r.open):
            certificate[b, 0] = certificate[b, 1] = certificate[b, 2] = -np.inf
            best[g.variables[b] : g.variables[b + 1]] = -1
            mu[mu_first:mu_last], mu_tables[first:last] = 0.0, 0.0
            status[b] = INFEASIBLE
            continue
        span, centre = typical_span(g, b, unary, tables), middle(g, b, unary, tables)
        value, low, high, sweeps = -np.inf, -np.inf, np.inf, 0
        # A few sweeps without smoothing first: where the relaxation is tight it is soon over. Then from warm to cold.
        warm, cold, hurry = 0.02 * span, 1e-12 * span, 2.0
        tau, tries, wrong, momentum, before = 0.1 * cold, 0, np.inf, 0, np.inf
        status[b] = NOT_CONVERGED
        for f in range(g.factors[b], g.factors[b + 1]):
            r.A[s.messages[g.slots[f]] : s.messages[g.slots[f + 1]]] = 0.0
            r.M[s.messages[g.slots[f]] : s.messages[g.slots[f + 1]]] = 0.0
            r.before[s.messages[g.slots[f]] : s.messages[g.slots[f + 1]]] = 0.0
            absorb(g, s, f, tables, tau, r)
        while True:
            for turn in range(ROUND):
                sweep(g, s, b, unary, tables, tau, False, r, sums)
                sweep(g, s, b, unary, tables, tau, True, r, sums)
                if turn < ROUND - 1 and tau >= cold:
                    push(g, s, b, min(0.95, momentum / (momentum + 3.0)), r)
                    momentum += 1
            sweeps += 2 * ROUND
            now = bound(g, s, b, unary, tables, r)
            if now > before:
                momentum = 0
            before, high = now, min(high, now)
            found, off, mended = solution(g, s, b, unary, tables, tau, r, trial, trial_tables, sums, missing)
            score = decode(g, s, b, unary, tables, r, labels, sums)
            if score > low:
                low = score
                best[g.variables[b] : g.variables[b + 1]] = labels[g.variables[b] : g.variables[b + 1]]
            # Mass on forbidden cells is not counted in the value: less of it comes first.
            less = max(off, tolerance) < max(wrong, tolerance)
            if less or (max(off, tolerance) == max(wrong, tolerance) and found > value):
                value, wrong = found, off
                mu[mu_first:mu_last] = trial[mu_first:mu_last]
                mu_tables[first:last] = trial_tables[first:last]
            allowance = tolerance * max(0.0, high - centre) + 1e-12 * abs(high)
            if low >= high - allowance:
                make_integral(g, s, b, best, mu, mu_tables)
                value, wrong, status[b] = low, 0.0, INTEGRAL
                break
            if value >= high - allowance and wrong <= tolerance:
                status[b] = CONVERGED
                break
            if sweeps >= most:
                break
            tries += 1
            if tau < cold and tries == 1:
                tau, tries, before = warm, 0, np.inf
            elif tau >= cold and (span * mended < hurry * (high - found) or tries >= 40 / hurry):
                tau, tries = 0.3 * tau, 0
                if tau < 0.1 * tolerance * span:  # cold, and not there: once more, and slower
                    tau, hurry, momentum = warm, 0.2 * hurry, 0
            for f in range(g.factors[b], g.factors[b + 1]):
                absorb(g, s, f, tables, tau, r)  # solution() has set A anew
        certificate[b, 0], certificate[b, 1], certificate[b, 2] = value, high, low
        certificate[b, 3], certificate[b, 4] = wrong, sweeps
