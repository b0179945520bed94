"""The linear relaxation of a factor graph: maxima over the local marginal polytope, by a smoothed dual method.

A relaxed solution mu gives every variable and every factor a distribution over its labels and cells, and the marginals
of a factor's are those of its variables. The dual moves scores between factors f and variables v by messages delta:

    bound = sum over v of max (theta_v + sum over f of delta_fv) + sum over f of max (theta_f - sum over v of delta_fv)

is at least the value of every mu, whatever delta is. With log-sum-exp at a temperature tau for the maximum, the
messages are those of `kernels.graph_messages`; the temperature falls step by step. At each step the beliefs
exp((theta_f + sum of A_fv) / tau) are mended into a solution mu: scaled down until no marginal is too large, and what
is missing is added as a product. Its value, below, and the bound, above, are the certificate.
"""

import numpy as np

from structloss.kernels.arithmetic import exp_nonpositive
from structloss.kernels.compile import kernel
from structloss.kernels.elimination import Graph
from structloss.kernels.graph_messages import Room, Slots, absorb, answer, forbid, gather, push, sweep
from structloss.kernels.types import Array, Ints

ROUND = 10  # passes ahead and back, between two looks at the gap
INFEASIBLE, NOT_CONVERGED, CONVERGED, INTEGRAL = 0, 1, 2, 3


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
def cell_of(g: Graph, s: Slots, f: int, labels: Ints) -> int:
    """Which cell of the tables factor f has under an assignment."""
    at = g.cells[f]
    for i in range(g.slots[f], g.slots[f + 1]):
        at += s.stride[i] * labels[g.scope[i]]
    return int(at)


@kernel
def decode(g: Graph, s: Slots, b: int, unary: Array, tables: Array, r: Room, labels: Ints, values: Array) -> float:
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
        score += tables[cell_of(g, s, f, labels)]
    return score


@kernel
def make_integral(g: Graph, s: Slots, b: int, labels: Ints, mu: Array, mu_tables: Array) -> None:
    """mu of an assignment."""
    for v in range(g.variables[b], g.variables[b + 1]):
        mu[g.labels[v] : g.labels[v + 1]] = 0.0
        mu[g.labels[v] + labels[v]] = 1.0
    for f in range(g.factors[b], g.factors[b + 1]):
        mu_tables[g.cells[f] : g.cells[f + 1]] = 0.0
        mu_tables[cell_of(g, s, f, labels)] = 1.0


@kernel
def extent(scores: Array, first: int, last: int) -> tuple[float, float]:
    """How far apart the finite ones of scores[first:last] are, and their mean; 0 where there are none."""
    low, high, total, count = np.inf, -np.inf, 0.0, 0
    for i in range(first, last):
        if scores[i] > -np.inf:
            low, high, total, count = min(low, scores[i]), max(high, scores[i]), total + scores[i], count + 1
    return (high - low, total / count) if count else (0.0, 0.0)


@kernel
def extents(g: Graph, b: int, unary: Array, tables: Array) -> tuple[float, float]:
    """The mean over variables and factors of how far their scores are apart, and the sum of their mean scores.

    The sum is the score to expect where all labels and cells that are allowed are equally probable.
    """
    apart = middle = 0.0
    for v in range(g.variables[b], g.variables[b + 1]):
        span, mean = extent(unary, g.labels[v], g.labels[v + 1])
        apart, middle = apart + span, middle + mean
    for f in range(g.factors[b], g.factors[b + 1]):
        span, mean = extent(tables, g.cells[f], g.cells[f + 1])
        apart, middle = apart + span, middle + mean
    count = g.variables[b + 1] - g.variables[b] + g.factors[b + 1] - g.factors[b]
    return (apart / count if apart > 0 else 1.0), middle


@kernel
def relax(
    worker: int, workers: int, g: Graph, s: Slots, unary: Array, tables: Array, tolerance: float, most: int, r: Room,
    mu: Array, mu_tables: Array, trial: Array, trial_tables: Array, missing: Array, labels: Ints, best: Ints,
    certificate: Array, status: Ints,
) -> None:  # fmt: skip
    """Solve every example to a gap relative to how far the bound is from the middle, or for as many sweeps as allowed.

    certificate[b] = value of mu, bound, the score of the best assignment met, mass of mu on forbidden cells.
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
        span, centre = extents(g, b, unary, tables)
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
            # Mass on forbidden cells is not counted in the value, which may then be above the bound: less of it comes
            # first, and then what is nearest to the bound.
            less = max(off, tolerance) < max(wrong, tolerance)
            if less or (max(off, tolerance) == max(wrong, tolerance) and abs(high - found) < abs(high - value)):
                value, wrong = found, off
                mu[mu_first:mu_last] = trial[mu_first:mu_last]
                mu_tables[first:last] = trial_tables[first:last]
            allowance = tolerance * max(0.0, high - centre) + 1e-12 * abs(high)
            if low >= high - allowance:
                make_integral(g, s, b, best, mu, mu_tables)
                value, wrong, status[b] = low, 0.0, INTEGRAL
                break
            if abs(high - value) <= allowance and wrong <= tolerance:
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
        certificate[b, 0], certificate[b, 1], certificate[b, 2], certificate[b, 3] = value, high, low, wrong
