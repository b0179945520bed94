"""Sum-product belief propagation in factor graphs, plain or tree-reweighted.

With rho_f the weight of a factor (1 for all: the Bethe approximation, exact on trees; the probability that f is in a
random spanning forest: an upper bound of log Z), messages m from factors to variables and n from variables,

    n_v(x) = exp(theta_v(x)) times the product over f of m_fv(x)^rho_f
    m_fv(x) = sum over the other labels of f of exp(theta_f / rho_f) times the product over u of n_u / m_fu

in logarithms, and beliefs b_v ~ n_v, b_f ~ exp(theta_f / rho_f) times the product over v of n_v / m_fv. The value is

    log Z ~ sum of b theta + sum over f of rho_f H(b_f) + sum over v of (1 - sum over f of rho_f) H(b_v).
"""

import numpy as np

from structloss.kernels.compile import kernel
from structloss.kernels.factors import Graph, Slots, add_along, forbid, gather, max_along, sum_along
from structloss.kernels.types import Array, Ints


@kernel
def fill_totals(g: Graph, s: Slots, b: int, scores: Array, rho: Array, allowed: Ints, m: Array, total: Array) -> None:
    """total = log n, its largest entry 0."""
    for v in range(g.variables[b], g.variables[b + 1]):
        top = -np.inf
        for x in range(g.labels[v + 1] - g.labels[v]):
            value = scores[g.labels[v] + x] if allowed[g.labels[v] + x] else -np.inf
            for i in range(s.begin[v], s.begin[v + 1]):
                at = s.of[i]
                value += rho[s.factor[at]] * m[s.messages[at] + x]
            total[g.labels[v] + x] = value
            top = max(top, value)
        for x in range(g.labels[v], g.labels[v + 1]):
            total[x] -= top


@kernel
def fill_cells(
    g: Graph, s: Slots, f: int, scores: Array, rho: Array, m: Array, total: Array, answer: Array, belief: Array
) -> float:
    """belief = the log of that of factor f's cells, not normalised; answer = log n / m. Returns the largest."""
    for at in range(g.slots[f], g.slots[f + 1]):
        for i in range(s.messages[at], s.messages[at + 1]):
            answer[i] = total[g.labels[g.scope[at]] + i - s.messages[at]] - m[i]
    return gather(g, s, f, scores, rho[f], answer, belief)


@kernel
def send(
    g: Graph, s: Slots, at: int, belief: Array, answer: Array, damping: float, m: Array, top: Array, sums: Array,
    work: Array,
) -> float:  # fmt: skip
    """m of one slot from the cells of its factor, its largest entry 0. Returns by how much it changed."""
    f = s.factor[at]
    max_along(g, s, at, belief, top)
    for i in range(s.messages[at], s.messages[at + 1]):
        sums[i] = -top[i] if top[i] > -np.inf else 0.0
    for c in range(g.cells[f], g.cells[f + 1]):
        work[c] = belief[c]
    add_along(g, s, at, sums, work)
    for c in range(g.cells[f], g.cells[f + 1]):
        work[c] = np.exp(work[c])
    sum_along(g, s, at, work, sums)
    highest, change = -np.inf, 0.0
    for i in range(s.messages[at], s.messages[at + 1]):
        sums[i] = top[i] + np.log(sums[i]) - answer[i] if top[i] > -np.inf else -np.inf
        highest = max(highest, sums[i])
    for i in range(s.messages[at], s.messages[at + 1]):
        if sums[i] > -np.inf:
            new = damping * m[i] + (1 - damping) * (sums[i] - highest)
            change = max(change, abs(new - m[i]))
            m[i] = new
    return change


@kernel
def propagate(
    worker: int, workers: int, g: Graph, s: Slots, scores: Array, rho: Array, damping: float, tolerance: float,
    most: int, allowed: Ints, messages: Array, total: Array, belief: Array, work: Array, value: Array, residual: Array,
) -> None:  # fmt: skip
    """Messages until they change by less than the tolerance; beliefs, the value, and how much they changed last.

    messages (4, M): m, and room for three more of each. Labels that no cell of some factor allows have belief 0.
    """
    m, answer, top, sums = messages
    for b in range(worker, value.shape[0], workers):
        residual[b], value[b] = 0.0, -np.inf
        if not forbid(g, s, b, scores, allowed, answer, top, work):
            continue
        for _ in range(most):
            residual[b] = 0.0
            fill_totals(g, s, b, scores, rho, allowed, m, total)
            for f in range(g.factors[b], g.factors[b + 1]):
                if fill_cells(g, s, f, scores, rho, m, total, answer, belief) > -np.inf:
                    for at in range(g.slots[f], g.slots[f + 1]):
                        change = send(g, s, at, belief, answer, damping, m, top, sums, work)
                        residual[b] = max(residual[b], change)
            if residual[b] < tolerance:
                break
        fill_totals(g, s, b, scores, rho, allowed, m, total)
        value[b] = bethe(g, s, b, scores, rho, m, total, answer, belief)


@kernel
def normalise(scores: Array, first: int, last: int, top: float, weight: float, belief: Array) -> float:
    """belief = exp(belief - top), normalised. Returns its score, and its entropy times the weight."""
    norm = value = 0.0
    for i in range(first, last):
        belief[i] = np.exp(belief[i] - top)
        norm += belief[i]
    for i in range(first, last):
        belief[i] /= norm
        if belief[i] > 0:
            value += belief[i] * scores[i] - weight * belief[i] * np.log(belief[i])
    return value


@kernel
def bethe(
    g: Graph, s: Slots, b: int, scores: Array, rho: Array, m: Array, total: Array, answer: Array, belief: Array
) -> float:
    """The value, and the beliefs of labels and cells."""
    value = 0.0
    for f in range(g.factors[b], g.factors[b + 1]):
        top = fill_cells(g, s, f, scores, rho, m, total, answer, belief)
        if top == -np.inf:
            return -np.inf
        value += normalise(scores, g.cells[f], g.cells[f + 1], top, rho[f], belief)
    for v in range(g.variables[b], g.variables[b + 1]):
        weight = 1.0
        for i in range(s.begin[v], s.begin[v + 1]):
            weight -= rho[s.factor[s.of[i]]]
        for x in range(g.labels[v], g.labels[v + 1]):
            belief[x] = total[x]
        value += normalise(scores, g.labels[v], g.labels[v + 1], 0.0, weight, belief)
    return value


@kernel
def root(parent: Ints, v: int) -> int:
    """The variable that stands for all that are connected with v."""
    while parent[v] != v:
        v = parent[v]
    return v


@kernel
def forests(g: Graph, b: int, orders: Ints, parent: Ints, counts: Array) -> None:
    """counts[f] += how many of the forests that are grown by taking factors in these orders (n, F) have factor f in.

    A factor is taken where its variables are not connected yet, so that what is taken has no cycle.
    """
    for n in range(orders.shape[0]):
        for v in range(g.variables[b], g.variables[b + 1]):
            parent[v] = v
        for f in orders[n]:
            apart = True
            for i in range(g.slots[f], g.slots[f + 1]):
                for j in range(g.slots[f], i):
                    apart = apart and root(parent, g.scope[i]) != root(parent, g.scope[j])
            if apart:
                counts[f] += 1.0
                for i in range(g.slots[f], g.slots[f + 1]):
                    parent[root(parent, g.scope[i])] = root(parent, g.scope[g.slots[f]])
