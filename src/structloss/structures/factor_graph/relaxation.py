"""The best answers of factor graphs, whole or relaxed, with their certificates; the dual method of the kernels."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels import local_polytope
from structloss.kernels.graph_messages import Room
from structloss.kernels.local_polytope import INFEASIBLE, INTEGRAL, NOT_CONVERGED
from structloss.kernels.workers import run
from structloss.structures.factor_graph.parts import Parts

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Certificate:
    """How good an answer is, for each example (B,).

    No output scores more than `dual`, and the solution, which may be fractional, has the value `primal`; `gap` is how
    far they are apart. Where `integral`, the solution is an output, and the best one up to the gap. `violation` is the
    probability that a fractional solution gives to forbidden cells of tables: 0, but for rounding, where none is -inf.
    Such cells are not counted in `primal`, which may then be above `dual`. `converged` says whether the gap that was
    asked for was reached, by a solution that gives at most as much to forbidden cells.
    """

    primal: Tensor
    dual: Tensor
    integral: Tensor
    violation: Tensor
    converged: Tensor

    @property
    def gap(self) -> Tensor:
        """|dual - primal|; 0 where there is no output at all, inf where the solution is not allowed."""
        gap = torch.where(self.dual.isfinite(), (self.dual - self.primal).abs(), 0)
        return torch.where(~self.converged & (self.violation > 0), torch.inf, gap)


@dataclass(frozen=True)
class Solution:
    """The probability of each label and of each cell, flat as the scores are, and the outputs near it."""

    unary: Floats  # (L,)
    tables: Floats  # (C,)
    labels: NDArray[np.int64]  # (V,): the best assignment that was met; -1 where none is allowed
    certificate: Certificate

    def value(self, p: Parts) -> Tensor:
        """The bound (B,), at least the score of every output; its gradient is the solution."""
        shares = [torch.from_numpy(x).to(y) for x, y in ((self.unary, p.unary), (self.tables, p.tables))]
        scores = [
            torch.where((x > 0) & (y > -torch.inf), y, 0) for x, y in zip(shares, (p.unary, p.tables), strict=True)
        ]
        value = p.summed(*(x * y for x, y in zip(shares, scores, strict=True)))
        # The bound is closer to the relaxation's value than the solution is; the gradient is the solution's.
        bound = self.certificate.dual.to(value)
        possible = bound > -torch.inf
        return torch.where(possible, value + torch.where(possible, bound - value.detach(), 0), -torch.inf)


def whole(p: Parts, labels: NDArray[np.int64], exists: NDArray[np.bool_]) -> Solution:
    """The solution that is an assignment (V,), the best one, of each example that has one."""
    t, chosen = p.topology, labels.clip(0)[None]
    owners = t.variable_owner, t.factor_owner
    unary, tables = (np.zeros(x.shape) for x in p.arrays)
    for share, place, owner in zip((unary, tables), t.places(chosen), owners, strict=True):
        share[place[0, exists[owner]]] = 1.0
    there = torch.from_numpy(exists)
    with torch.no_grad():
        value = torch.where(there, p.score(chosen)[0].cpu(), -torch.inf)
    yes = torch.ones_like(there)
    return Solution(unary, tables, labels, Certificate(value, value, yes, torch.zeros_like(value), yes))


def dual(p: Parts, tolerance: float, most: int) -> Solution:
    """Solve by the dual method to a relative gap of `tolerance`, or for at most so many sweeps."""
    s, (unary, tables) = p.topology.links, p.arrays
    edges, labels, variables = int(s.messages[-1]), len(unary), len(p.topology.sizes)
    M, A, absorbed, scale, before = (np.zeros(edges) for _ in range(5))
    room = Room(
        M, A, absorbed, scale, np.zeros(len(tables)), np.zeros(len(p.graph.cells) - 1), np.zeros(labels),
        np.zeros(labels, np.int8), np.zeros(edges, np.int8), before,
    )  # fmt: skip
    mu, mu_tables, trial, trial_tables = (np.zeros(n) for n in (labels, len(tables)) * 2)
    now, best = np.zeros(variables, np.int64), np.full(variables, -1)
    certificate, status = np.zeros((p.batch, 4)), np.zeros(p.batch, np.int64)
    run(
        local_polytope.relax, torch.get_num_threads(), p.batch, 100 * len(tables), p.graph, s, unary, tables, tolerance,
        most, room, mu, mu_tables, trial, trial_tables, np.zeros(edges), now, best, certificate, status,
    )  # fmt: skip
    primal, bound, met, violation = torch.from_numpy(certificate).unbind(1)
    found = torch.from_numpy(status)
    for b in ((met == -torch.inf) & (found != INFEASIBLE)).nonzero()[:, 0].tolist():  # no output was met
        for v in range(p.graph.variables[b], p.graph.variables[b + 1]):
            best[v] = mu[p.graph.labels[v] : p.graph.labels[v + 1]].argmax()
    return Solution(
        mu, mu_tables, best,
        Certificate(primal, bound, (found == INTEGRAL) | (found == INFEASIBLE), violation, found != NOT_CONVERGED),
    )  # fmt: skip
