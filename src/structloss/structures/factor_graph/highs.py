"""The local polytope's linear program, and its integer program, by HiGHS: the reference for the dual method."""

from typing import Any

import numpy as np
import torch

from structloss.structures.factor_graph.parts import Parts
from structloss.structures.factor_graph.relaxation import Certificate, Solution
from structloss.structures.rows import Floats

try:
    import scipy.sparse as sparse
    from scipy.optimize import Bounds, LinearConstraint, milp
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("HiGHS comes with scipy: pip install 'structloss[graph]'") from missing


def program(p: Parts) -> tuple[Any, Floats]:
    """Constraints: each variable's labels add up to 1, and each factor's cells to its variables' labels.

    Returns the matrix, which has a column for each score, and the right-hand side.
    """
    variables, (label, message, cell) = len(p.topology.sizes), p.topology.entries
    variable, messages = np.repeat(np.arange(variables), p.topology.sizes), np.arange(len(label))
    # One row for each message: the cells with that label, without the label itself.
    rows = np.concatenate([variable, variables + message, variables + messages])
    columns = np.concatenate([np.arange(len(variable)), cell, label])
    values = np.concatenate([np.ones(len(variable) + len(cell)), -np.ones(len(messages))])
    matrix = sparse.csc_matrix((values, (rows, columns)), (variables + len(messages), len(p.scores)))
    return matrix, np.repeat([1.0, 0.0], [variables, len(messages)])


def solve(p: Parts, integral: bool) -> Solution:
    """Every example's program, one after the other; the bound is that of HiGHS."""
    t, mu, best = p.topology, np.zeros(len(p.scores)), np.full(len(p.topology.sizes), -1)
    primal, bound = np.full((2, p.batch), -np.inf)
    whole = np.ones(p.batch, bool)
    for b in range(p.batch):
        one = p.examples(np.array([b]))
        scores, begin, labels = one.array, one.topology.begin, int(one.graph.labels[-1])
        if not len(scores):
            primal[b] = bound[b] = 0.0
            continue
        # Gaps are relative to the objective: each variable and each factor is scored from its own best.
        tops = np.maximum.reduceat(scores, begin[:-1])
        if (tops == -np.inf).any():
            continue
        possible, offset = scores > -np.inf, float(tops.sum())
        matrix, right = program(one)
        found = milp(
            np.where(possible, np.repeat(tops, np.diff(begin)) - scores, 0.0),
            constraints=LinearConstraint(matrix, right, right), bounds=Bounds(0, possible.astype(float)),
            integrality=np.where(np.arange(len(scores)) < labels, 1, 0) if integral else None,
            options={"mip_rel_gap": 0.0},
        )  # fmt: skip
        if found.status == 2:
            continue
        if found.x is None:
            raise RuntimeError(f"HiGHS found no solution of example {b}: {found.message}")
        own = np.clip(found.x, 0, 1)
        mu[t.owner == b] = own
        primal[b] = offset - found.fun
        dual = getattr(found, "mip_dual_bound", None)
        bound[b] = primal[b] if dual is None or not integral else max(offset - dual, primal[b])
        whole[b] = bool((np.abs(own - own.round())[:labels] < 1e-6).all())
        best[p.graph.variables[b] : p.graph.variables[b + 1]] = one.topology.most_probable(own)
    arrays = primal, bound, whole, np.zeros(p.batch), np.ones(p.batch, bool)
    return Solution(mu, best, Certificate(*(torch.from_numpy(x) for x in arrays)))
