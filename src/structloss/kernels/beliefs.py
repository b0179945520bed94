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
from structloss.kernels.elimination import Graph
from structloss.kernels.graph_messages import Slots, forbid
from structloss.kernels.types import Array, Ints


@kernel
def fill_totals(g: Graph, s: Slots, b: int, unary: Array, rho: Array, m: Array, total: Array) -> None:
    """total = log n, its largest entry 0."""
    for v in range(g.variables[b], g.variables[b + 1]):
        top = -np.inf
        for x in range(g.labels[v + 1] - g.labels[v]):
            value = unary[g.labels[v] + x]
            for i in range(s.begin[v], s.begin[v + 1]):
                at = s.of[i]
                value += rho[s.factor[at]] * m[s.messages[at] + x]
            total[g.labels[v] + x] = value
            top = max(top, value)
        if top > -np.inf:
            for x in range(g.labels[v], g.labels[v + 1]):
                total[x] -= top


@kernel
def fill_cells(g: Graph, s: Slots, f: int, tables: Array, rho: Array, m: Array, total: Array, out: Array) -> float:
    """out = log of the belief of factor f's cells, not normalised. Returns the largest."""
    top = -np.inf
    for c in range(g.cells[f + 1] - g.cells[f]):
        value = tables[g.cells[f] + c] / rho[f]
        for at in range(g.slots[f], g.slots[f + 1]):
            i = s.entry[s.cells[at] + c]
            label = total[g.labels[g.scope[at]] + i - s.messages[at]]
            value += label - m[i] if label > -np.inf else -np.inf
        out[g.cells[f] + c] = value
        top = max(top, value)
    return top


@kernel
def propagate(
    worker: int, workers: int, g: Graph, s: Slots, unary: Array, tables: Array, rho: Array, damping: float,
    tolerance: float, most: int, allowed: Ints, open_: Ints, m: Array, total: Array, belief: Array, cells: Array,
    value: Array, residual: Array,
) -> None:  # fmt: skip
    """Messages until they change by less than the tolerance; beliefs, the value, and how much they changed last.

    Ints that no cell of some factor allows get the score -inf in `unary`.
    """
    sizes = 1
    for v in range(g.labels.shape[0] - 1):
        sizes = max(sizes, g.labels[v + 1] - g.labels[v])
    sums, tops = np.empty(sizes), np.empty(sizes)
    for b in range(worker, value.shape[0], workers):
        residual[b], value[b] = np.inf, -np.inf
        if not forbid(g, s, b, unary, tables, allowed, open_):
            residual[b] = 0.0
            continue
        for x in range(g.labels[g.variables[b]], g.labels[g.variables[b + 1]]):
            unary[x] = unary[x] if allowed[x] else -np.inf
        for _ in range(most):
            change = 0.0
            fill_totals(g, s, b, unary, rho, m, total)
            for f in range(g.factors[b], g.factors[b + 1]):
                top = fill_cells(g, s, f, tables, rho, m, total, cells)
                if top == -np.inf:
                    continue
                for at in range(g.slots[f], g.slots[f + 1]):
                    begin, size = s.messages[at], s.messages[at + 1] - s.messages[at]
                    sums[:size], tops[:size] = 0.0, -np.inf
                    for c in range(g.cells[f + 1] - g.cells[f]):
                        x = s.entry[s.cells[at] + c] - begin
                        tops[x] = max(tops[x], cells[g.cells[f] + c])
                    for c in range(g.cells[f + 1] - g.cells[f]):
                        x = s.entry[s.cells[at] + c] - begin
                        if tops[x] > -np.inf:
                            sums[x] += np.exp(cells[g.cells[f] + c] - tops[x])
                    highest = -np.inf
                    for x in range(size):
                        label = total[g.labels[g.scope[at]] + x]
                        if label > -np.inf and sums[x] > 0:
                            sums[x] = tops[x] + np.log(sums[x]) - (label - m[begin + x])
                            highest = max(highest, sums[x])
                        else:
                            sums[x] = -np.inf
                    for x in range(size):
                        if sums[x] > -np.inf:
                            new = damping * m[begin + x] + (1 - damping) * (sums[x] - highest)
                            change = max(change, abs(new - m[begin + x]))
                            m[begin + x] = new
            residual[b] = change
            if change < tolerance:
                break
        fill_totals(g, s, b, unary, rho, m, total)
        value[b] = bethe(g, s, b, unary, tables, rho, m, total, belief, cells)


@kernel
def bethe(
    g: Graph, s: Slots, b: int, unary: Array, tables: Array, rho: Array, m: Array, total: Array, belief: Array,
    cells: Array,
) -> float:  # fmt: skip
    """The value, and the beliefs of labels and cells."""
    value = 0.0
    for f in range(g.factors[b], g.factors[b + 1]):
        top = fill_cells(g, s, f, tables, rho, m, total, cells)
        if top == -np.inf:
            return -np.inf
        norm = 0.0
        for c in range(g.cells[f], g.cells[f + 1]):
            cells[c] = np.exp(cells[c] - top)
            norm += cells[c]
        for c in range(g.cells[f], g.cells[f + 1]):
            cells[c] /= norm
            if cells[c] > 0:
                value += cells[c] * tables[c] - rho[f] * cells[c] * np.log(cells[c])
    for v in range(g.variables[b], g.variables[b + 1]):
        norm, weight = 0.0, 1.0
        for i in range(s.begin[v], s.begin[v + 1]):
            weight -= rho[s.factor[s.of[i]]]
        for x in range(g.labels[v], g.labels[v + 1]):
            belief[x] = np.exp(total[x])
            norm += belief[x]
        if norm == 0:
            return -np.inf
        for x in range(g.labels[v], g.labels[v + 1]):
            belief[x] /= norm
            if belief[x] > 0:
                value += belief[x] * unary[x] - weight * belief[x] * np.log(belief[x])
    return value


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
                    a, c = g.scope[i], g.scope[j]
                    while parent[a] != a:
                        a = parent[a]
                    while parent[c] != c:
                        c = parent[c]
                    apart = apart and a != c
            if apart:
                counts[f] += 1.0
                root = g.scope[g.slots[f]]
                while parent[root] != root:
                    root = parent[root]
                for i in range(g.slots[f], g.slots[f + 1]):
                    a = g.scope[i]
                    while parent[a] != a:
                        a = parent[a]
                    parent[a] = root
