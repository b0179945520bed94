"""The local polytope's linear program, and its integer program, by HiGHS: the reference for the dual method."""

from typing import Any

import numpy as np
import torch

from structloss.structures.factor_graph.parts import Parts
from structloss.structures.factor_graph.relaxation import Certificate, Solution

try:
    import scipy.sparse as sparse
    from scipy.optimize import Bounds, LinearConstraint, milp
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("HiGHS comes with scipy: pip install 'structloss[graph]'") from missing


def program(p: Parts, b: int) -> tuple[Any, Any]:
    """Constraints of example b: each variable's labels add up to 1, and each factor's cells to its variables' labels.

    The unknowns are its labels, then its cells. Returns the matrix and the right-hand side.
    """
    g, s = p.graph, p.topology.links
    v, w, f, h = g.variables[b], g.variables[b + 1], g.factors[b], g.factors[b + 1]
    label0, labels = g.labels[v], g.labels[w] - g.labels[v]
    slot0, slot1, cell0 = g.slots[f], g.slots[h], g.cells[f]
    message0, messages = s.messages[slot0], s.messages[slot1] - s.messages[slot0]
    variable = np.repeat(np.arange(w - v), np.diff(g.labels[v : w + 1]))
    ones = sparse.csr_matrix((np.ones(labels), (variable, np.arange(labels))), (w - v, labels + g.cells[h] - cell0))
    # One row for each message: the cells with that label, without the label itself.
    entry = s.entry[s.cells[slot0] : s.cells[slot1]] - message0
    counts = np.diff(s.cells[slot0 : slot1 + 1])
    cell = np.arange(len(entry)) - np.repeat(s.cells[slot0:slot1] - s.cells[slot0], counts)
    cell = cell + np.repeat(g.cells[s.factor[slot0:slot1]] - cell0, counts) + labels
    sizes = np.diff(s.messages[slot0 : slot1 + 1])
    label = np.arange(messages) - np.repeat(s.messages[slot0:slot1] - message0, sizes)
    label = label + np.repeat(g.labels[g.scope[slot0:slot1]] - label0, sizes)
    rows = np.concatenate([entry, np.arange(messages)])
    columns = np.concatenate([cell, label])
    values = np.concatenate([np.ones(len(entry)), -np.ones(messages)])
    ties = sparse.csr_matrix((values, (rows, columns)), (messages, labels + g.cells[h] - cell0))
    return sparse.vstack([ones, ties]).tocsc(), np.concatenate([np.ones(w - v), np.zeros(messages)])


def solve(p: Parts, integral: bool) -> Solution:
    """Every example's program, one after the other; the bound is that of HiGHS."""
    g, (unary, tables) = p.graph, p.arrays
    mu, mu_tables, best = np.zeros(len(unary)), np.zeros(len(tables)), np.full(len(p.topology.sizes), -1)
    primal, bound = np.full(p.batch, -np.inf), np.full(p.batch, -np.inf)
    whole = np.ones(p.batch, bool)
    for b in range(p.batch):
        own, cells = (slice(g.labels[g.variables[b]], g.labels[g.variables[b + 1]]),
                      slice(g.cells[g.factors[b]], g.cells[g.factors[b + 1]]))  # fmt: skip
        scores = np.concatenate([unary[own], tables[cells]])
        possible = scores > -np.inf
        if not len(scores):
            primal[b] = bound[b] = 0.0
            continue
        matrix, right = program(p, b)
        # Gaps are relative to the objective: each variable and each factor is scored from its own best.
        variables, factors = slice(g.variables[b], g.variables[b + 1]), slice(g.factors[b], g.factors[b + 1])
        count = own.stop - own.start
        starts = np.concatenate([g.labels[variables] - own.start, g.cells[factors] - cells.start + count])
        tops = np.maximum.reduceat(scores, starts)
        if (tops == -np.inf).any():
            continue
        offset = float(tops.sum())
        scores = scores - np.repeat(tops, np.diff(np.append(starts, len(scores))))
        found = milp(
            np.where(possible, -scores, 0.0), constraints=LinearConstraint(matrix, right, right),
            bounds=Bounds(0, possible.astype(float)),
            integrality=np.where(np.arange(len(scores)) < count, 1, 0) if integral else None,
            options={"mip_rel_gap": 0.0},
        )  # fmt: skip
        if found.status == 2:
            continue
        if found.x is None:
            raise RuntimeError(f"HiGHS found no solution of example {b}: {found.message}")
        mu[own], mu_tables[cells] = np.clip(found.x[:count], 0, 1), np.clip(found.x[count:], 0, 1)
        primal[b] = offset - found.fun
        dual = getattr(found, "mip_dual_bound", None)
        bound[b] = primal[b] if dual is None or not integral else max(offset - dual, primal[b])
        whole[b] = bool((np.abs(mu[own] - mu[own].round()) < 1e-6).all())
        for v in range(g.variables[b], g.variables[b + 1]):
            best[v] = int(mu[g.labels[v] : g.labels[v + 1]].argmax())
    arrays = primal, bound, whole, np.zeros(p.batch), np.ones(p.batch, bool)
    return Solution(mu, mu_tables, best, Certificate(*(torch.from_numpy(x) for x in arrays)))
