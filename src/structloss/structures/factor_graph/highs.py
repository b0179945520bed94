"""The local polytope's linear program, and its integer program, by HiGHS: the reference for the dual method."""

from typing import Any

import numpy as np
import torch

from structloss.structures.factor_graph.parts import Floats, Ints, Parts
from structloss.structures.factor_graph.relaxation import Certificate, Solution

try:
    import scipy.sparse as sparse
    from scipy.optimize import Bounds, LinearConstraint, milp
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("HiGHS comes with scipy: pip install 'structloss[graph]'") from missing


def unknowns(p: Parts, b: int) -> Ints:
    """Which scores are those of example b: its labels, then its cells."""
    g = p.graph
    ends = (g.labels[g.variables[b : b + 2]], g.cells[g.factors[b : b + 2]])
    return np.concatenate([np.arange(*x) for x in ends])


def program(p: Parts, b: int) -> tuple[Any, Floats]:
    """Constraints of example b: each variable's labels add up to 1, and each factor's cells to its variables' labels.

    Returns the matrix, which has a column for each of its `unknowns`, and the right-hand side.
    """
    g, s = p.graph, p.topology.links
    own = unknowns(p, b)
    v, w, f, h = *g.variables[b : b + 2], *g.factors[b : b + 2]
    slots = np.arange(g.slots[f], g.slots[h])
    sizes, counts = np.diff(s.messages)[slots], np.diff(g.cells)[s.factor[slots]]
    messages = np.arange(sizes.sum())
    variable = np.repeat(np.arange(w - v), np.diff(g.labels[v : w + 1]))
    # One row for each message: the cells with that label, without the label itself.
    slot = np.repeat(np.arange(len(slots)), counts)
    cell = np.arange(len(slot)) - (np.cumsum(counts) - counts)[slot]
    begin = np.cumsum(sizes) - sizes
    entry = begin[slot] + cell // s.inner[slots][slot] % sizes[slot]
    label = messages + np.repeat(g.labels[g.scope[slots]] - g.labels[v] - begin, sizes)
    cell = cell + (g.cells[s.factor[slots]] - g.cells[f] + g.labels[w] - g.labels[v])[slot]
    rows = np.concatenate([variable, w - v + entry, w - v + messages])
    columns = np.concatenate([np.arange(len(variable)), cell, label])
    values = np.concatenate([np.ones(len(variable) + len(entry)), -np.ones(len(messages))])
    matrix = sparse.csc_matrix((values, (rows, columns)), (w - v + len(messages), len(own)))
    return matrix, np.repeat([1.0, 0.0], [w - v, len(messages)])


def solve(p: Parts, integral: bool) -> Solution:
    """Every example's program, one after the other; the bound is that of HiGHS."""
    g, t, scores = p.graph, p.topology, p.array
    mu, best = np.zeros(len(scores)), np.full(len(t.sizes), -1)
    primal, bound = np.full(p.batch, -np.inf), np.full(p.batch, -np.inf)
    whole = np.ones(p.batch, bool)
    sizes = np.append(t.sizes, np.diff(g.cells))
    for b in range(p.batch):
        own, variables = unknowns(p, b), range(g.variables[b], g.variables[b + 1])
        if not len(own):
            primal[b] = bound[b] = 0.0
            continue
        # Gaps are relative to the objective: each variable and each factor is scored from its own best.
        count = g.labels[variables.stop] - g.labels[variables.start]
        extents = sizes[t.used_owner == b]
        tops = np.maximum.reduceat(scores[own], np.cumsum(extents) - extents)
        if (tops == -np.inf).any():
            continue
        possible, offset = scores[own] > -np.inf, float(tops.sum())
        matrix, right = program(p, b)
        found = milp(
            np.where(possible, np.repeat(tops, extents) - scores[own], 0.0),
            constraints=LinearConstraint(matrix, right, right), bounds=Bounds(0, possible.astype(float)),
            integrality=np.where(np.arange(len(own)) < count, 1, 0) if integral else None,
            options={"mip_rel_gap": 0.0},
        )  # fmt: skip
        if found.status == 2:
            continue
        if found.x is None:
            raise RuntimeError(f"HiGHS found no solution of example {b}: {found.message}")
        mu[own] = np.clip(found.x, 0, 1)
        primal[b] = offset - found.fun
        dual = getattr(found, "mip_dual_bound", None)
        bound[b] = primal[b] if dual is None or not integral else max(offset - dual, primal[b])
        whole[b] = bool((np.abs(mu[own] - mu[own].round())[:count] < 1e-6).all())
        for v in variables:
            best[v] = int(mu[g.labels[v] : g.labels[v + 1]].argmax())
    arrays = primal, bound, whole, np.zeros(p.batch), np.ones(p.batch, bool)
    return Solution(mu, best, Certificate(*(torch.from_numpy(x) for x in arrays)))
