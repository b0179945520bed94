"""The linear relaxation of a factor graph: maxima over the local marginal polytope, by a smoothed dual method.

Passes of `kernels.dual` lower a bound at a temperature that falls step by step; now and then `kernels.primal` makes a
solution and an assignment of the messages. Value below and bound above are the certificate.
"""

import numpy as np

from structloss.kernels.compile import helper, kernel
from structloss.kernels.dual import Room, absorb, bound, push, sweep
from structloss.kernels.factors import Graph, Slots, forbid
from structloss.kernels.primal import decode, solution
from structloss.kernels.types import Array, Ints

INFEASIBLE, NOT_CONVERGED, CONVERGED, INTEGRAL = 0, 1, 2, 3

# The schedule. Temperatures are in units of how far apart the scores of a variable or factor are, `span`. Tried once,
# on six grids of 20 x 20 x 5 to a gap of 1e-3: half and twice of ROUND, a quarter and four times of WARM and HURRY, a
# third and twice of COOLING, five times of ENOUGH: 6 % faster to a third slower. Without momentum: five times as long.
ROUND = 10  # passes ahead and back between two looks at the gap, which cost as much as three or four of them
WARM = 0.02  # the first temperature
COOLING = 0.3  # what is left of it after a step
COLD = 1e-12  # below, sums are maxima: no smoothing
ENOUGH = 0.1  # below this part of the tolerance, smoothing is not what is in the way
HURRY = 2.0  # cool when what was mended is worth less than so many times the gap: the dual is what is in the way,
PATIENCE = 40.0  # or after so many looks over the hurry
SLOWER = 0.2  # what is left of the hurry when all temperatures were passed in vain
MOMENTUM = 0.95  # the most of the last change that is repeated: after k of them it is k / (k + 3), as Nesterov's


@helper
def copy(source: Array, into: Array, first: int, last: int) -> None:
    """into[first:last] = source[first:last]"""
    for i in range(first, last):
        into[i] = source[i]


@kernel
def relax(
    worker: int, workers: int, g: Graph, s: Slots, scores: Array, spans: Array, centres: Array, tolerance: float,
    most: int, r: Room, mu: Array, trial: Array, labels: Ints, best: Ints, certificate: Array, status: Ints,
) -> None:  # fmt: skip
    """Solve every example to a gap relative to how far the bound is above its centre, at least a span, or give up.

    certificate[b] = value of mu, bound, the score of the best assignment met, mass of mu on forbidden cells. Where the
    answer is that assignment, mu is left to the caller.
    """
    work = np.empty(2 * scores.shape[0])
    for b in range(worker, status.shape[0], workers):
        first, last = g.variables[b], g.variables[b + 1]
        if not forbid(g, s, b, scores, r.allowed, r.A, r.missing, r.E):
            certificate[b, 0] = certificate[b, 1] = certificate[b, 2] = -np.inf
            status[b] = INFEASIBLE
            continue
        span, wrong = spans[b], np.inf
        value, low, high, before = -np.inf, -np.inf, np.inf, np.inf
        hurry, sweeps, looks, momentum = HURRY, 0, 0, 0
        # A round without smoothing first: where the relaxation is tight it is soon over. Then from warm to cold.
        tau = 0.1 * COLD * span
        status[b] = NOT_CONVERGED
        while True:
            for f in range(g.factors[b], g.factors[b + 1]):
                absorb(g, s, f, scores, tau, r)  # A is what forbid() or solution() made of it
            smooth = tau >= COLD * span
            for turn in range(ROUND):
                sweep(g, s, b, scores, tau, False, r, work)
                sweep(g, s, b, scores, tau, True, r, work)
                if turn < ROUND - 1 and smooth:
                    push(g, s, b, min(MOMENTUM, momentum / (momentum + 3.0)), r)
                    momentum += 1
            sweeps += 2 * ROUND
            now = bound(g, s, b, scores, r)
            if now > before:
                momentum = 0
            before, high = now, min(high, now)
            found, off, mended = solution(g, s, b, scores, tau, r, trial)
            score = decode(g, s, b, scores, r, labels, work)
            if score > low:
                low = score
                copy(labels, best, first, last)
            # Mass on forbidden cells is not counted in the value, which may then be above the bound: less of it comes
            # first, and then what is nearest to the bound.
            less = max(off, tolerance) < max(wrong, tolerance)
            if less or (max(off, tolerance) == max(wrong, tolerance) and abs(high - found) < abs(high - value)):
                value, wrong = found, off
                copy(trial, mu, g.labels[first], g.labels[last])
                copy(trial, mu, g.cells[g.factors[b]], g.cells[g.factors[b + 1]])
            # An optimum may be near what is expected of a uniform answer, or below it where much is forbidden.
            allowance = tolerance * max(span, high - centres[b]) + 1e-12 * abs(high)
            if low >= high - allowance:
                value, wrong, status[b] = low, 0.0, INTEGRAL
                break
            if abs(high - value) <= allowance and wrong <= tolerance:
                status[b] = CONVERGED
                break
            if sweeps >= most:
                break
            looks += 1
            if not smooth:
                tau, looks, before = WARM * span, 0, np.inf
            elif span * mended < hurry * (high - found) or looks >= PATIENCE / hurry:
                tau, looks = COOLING * tau, 0
                if tau < ENOUGH * tolerance * span:  # cold, and not there: once more, and slower
                    tau, hurry, momentum = WARM * span, SLOWER * hurry, 0
        certificate[b, 0], certificate[b, 1], certificate[b, 2], certificate[b, 3] = value, high, low, wrong
