"""From the messages of `kernels.dual` to answers: a relaxed solution, and an assignment.

The beliefs exp((theta_f + sum of A_fv) / tau) are mended into a solution mu: scaled down until no marginal is too
large, and what is missing is added as a product. Its value is below the bound, up to mass on forbidden cells.
"""

import numpy as np

from structloss.kernels.arithmetic import exp_nonpositive
from structloss.kernels.compile import helper, inlined_helper, kernel
from structloss.kernels.dual import Room, answer
from structloss.kernels.factors import SCALE, SUM, Graph, Slots, along, gather
from structloss.kernels.types import Array, Ints


@inlined_helper
def believe(g: Graph, s: Slots, f: int, scores: Array, tau: float, r: Room, mu: Array) -> None:
    """mu = the belief of factor f's cells, and the marginals of it in `missing`."""
    for at in range(g.slots[f], g.slots[f + 1]):
        answer(g, s, at, r)
    top = gather(g, s, f, scores, r.A, mu)
    norm = 0.0
    for c in range(g.cells[f], g.cells[f + 1]):
        mu[c] = exp_nonpositive((mu[c] - top) / tau)
        norm += mu[c]
    for c in range(g.cells[f], g.cells[f + 1]):
        mu[c] /= norm
    for at in range(g.slots[f], g.slots[f + 1]):
        along(SUM, g, s, at, mu, r.missing)


@inlined_helper
def average(g: Graph, s: Slots, v: int, scores: Array, r: Room, mu: Array) -> None:
    """mu = the mean of the marginals that its factors have of variable v; its best label where it has none."""
    labels, size, count = g.labels[v], g.labels[v + 1] - g.labels[v], s.begin[v + 1] - s.begin[v]
    best = 0
    for x in range(size):
        mu[labels + x] = 0.0
        best = x if scores[labels + x] > scores[labels + best] else best
        for i in range(s.begin[v], s.begin[v + 1]):
            mu[labels + x] += r.missing[s.messages[s.of[i]] + x] / count
    if count == 0:
        mu[labels + best] = 1.0


@inlined_helper
def mend(g: Graph, s: Slots, f: int, scores: Array, r: Room, mu: Array) -> tuple[float, float, float]:
    """Mend the belief of factor f to the marginals of its variables. E is overwritten.

    Returns what it adds to the value, to the mass on forbidden cells, and how much mass was mended.
    """
    for at in range(g.slots[f], g.slots[f + 1]):
        along(SUM, g, s, at, mu, r.missing)
        for i in range(s.messages[at], s.messages[at + 1]):
            wanted = mu[g.labels[g.scope[at]] + i - s.messages[at]]
            r.missing[i] = wanted / r.missing[i] if r.missing[i] > wanted else 1.0
        along(SCALE, g, s, at, mu, r.missing)
    left = 0.0
    for at in range(g.slots[f], g.slots[f + 1]):
        along(SUM, g, s, at, mu, r.missing)
        left = 0.0
        for i in range(s.messages[at], s.messages[at + 1]):
            wanted = mu[g.labels[g.scope[at]] + i - s.messages[at]]
            r.missing[i] = max(0.0, wanted - r.missing[i])
            left += r.missing[i]
    for c in range(g.cells[f], g.cells[f + 1]):
        r.E[c] = left
    if left > 0:
        for i in range(s.messages[g.slots[f]], s.messages[g.slots[f + 1]]):
            r.missing[i] /= left
        for at in range(g.slots[f], g.slots[f + 1]):
            along(SCALE, g, s, at, r.E, r.missing)
    value = violation = 0.0
    for c in range(g.cells[f], g.cells[f + 1]):
        if scores[c] > -np.inf:
            mu[c] += r.E[c]
            value += mu[c] * scores[c]
        else:
            violation += r.E[c]
    return value, violation, left


@helper
def solution(g: Graph, s: Slots, b: int, scores: Array, tau: float, r: Room, mu: Array) -> tuple[float, float, float]:
    """Fill mu with the beliefs, mended to a point of the polytope.

    Returns its value, its mass on forbidden cells, and how much mass was mended.
    """
    value = violation = mended = 0.0
    for f in range(g.factors[b], g.factors[b + 1]):
        believe(g, s, f, scores, tau, r, mu)
    for v in range(g.variables[b], g.variables[b + 1]):
        average(g, s, v, scores, r, mu)
        for i in range(g.labels[v], g.labels[v + 1]):
            if mu[i] > 0:
                value += mu[i] * scores[i]
    for f in range(g.factors[b], g.factors[b + 1]):
        score, off, left = mend(g, s, f, scores, r, mu)
        value, violation, mended = value + score, violation + off, mended + left
    return value, violation, mended


@kernel
def decode(g: Graph, s: Slots, b: int, scores: Array, r: Room, labels: Ints, work: Array) -> float:
    """labels[v] = one variable after the other, the best given those before it. Returns their score.

    A factor whose other variables are decided counts with its table, any other with its message M.
    """
    score = 0.0
    for v in range(g.variables[b], g.variables[b + 1]):
        first, size = g.labels[v], g.labels[v + 1] - g.labels[v]
        for x in range(size):
            work[x] = scores[first + x] if r.allowed[first + x] else -np.inf
            work[size + x] = 0.0  # what is to come
        for i in range(s.begin[v], s.begin[v + 1]):
            at = s.of[i]
            if not s.last[at]:
                for x in range(size):
                    work[size + x] += r.M[s.messages[at] + x]
                continue
            f = s.factor[at]
            cell = g.cells[f]
            for other in range(g.slots[f], g.slots[f + 1]):
                cell += s.inner[other] * labels[g.scope[other]] if other != at else 0
            for x in range(size):
                work[x] += scores[cell + x * s.inner[at]]
        best = 0
        for x in range(size):
            best = x if work[x] + work[size + x] > work[best] + work[size + best] else best
        labels[v] = best
        score += work[best]
    return score
