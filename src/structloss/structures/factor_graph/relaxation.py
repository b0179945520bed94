"""The best answers of factor graphs, whole or relaxed, with their certificates; the dual method of the kernels."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.dual import Room
from structloss.kernels.relax import INFEASIBLE, INTEGRAL, NOT_CONVERGED, relax
from structloss.kernels.workers import run
from structloss.structures.base import Found
from structloss.structures.factor_graph.parts import Parts
from structloss.structures.rows import Floats, Ints


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

    mu: Floats
    labels: Ints  # (V,): the best assignment that was met; -1 where none is allowed
    certificate: Certificate
    lost: Tensor | None = None  # (B,): where no point was met that is allowed; None for nowhere

    def found(self, p: Parts) -> Found:
        """The outputs (1, B, N), and whether there are any, (1, B)."""
        outputs, exists = p.topology.outputs(self.labels[None]), self.certificate.dual > -torch.inf
        return Found(outputs.to(p.scores.device), exists[None].to(p.scores.device))

    def value(self, p: Parts) -> Tensor:
        """The bound (B,), at least the score of every output; its gradient is the solution."""
        mu = torch.from_numpy(self.mu).to(p.scores)
        value = p.summed(mu * torch.where((mu > 0) & (p.scores > -torch.inf), p.scores, 0)).to(p.scores.dtype)
        # The bound is closer to the relaxation's value than the solution is; the gradient is the solution's.
        bound = self.certificate.dual.to(value)
        possible = bound > -torch.inf
        return torch.where(possible, value + torch.where(possible, bound - value.detach(), 0), -torch.inf)


def place(p: Parts, labels: Ints, examples: NDArray[np.bool_], mu: Floats) -> None:
    """Let mu be an assignment (V,), in some of the examples (B,)."""
    t = p.topology
    mu[examples[t.owner]] = 0.0
    mu[t.places(labels.clip(0)[None])[0, examples[t.used_owner]]] = 1.0


def whole(p: Parts, labels: Ints, exists: NDArray[np.bool_]) -> Solution:
    """The solution that is an assignment (V,), the best one, of each example that has one."""
    mu, there = np.zeros(len(p.scores)), torch.from_numpy(exists)
    place(p, labels, exists, mu)
    with torch.no_grad():
        value = torch.where(there, p.score(labels.clip(0)[None])[0].cpu(), -torch.inf)
    yes = torch.ones_like(there)
    return Solution(mu, labels, Certificate(value, value, yes, torch.zeros_like(value), yes))


def _spans(p: Parts) -> tuple[Floats, Floats]:
    """For each example how far apart the scores of a variable or factor are in the mean; and the sum of their means.

    Only what is finite counts, and a mean of 0 is 1. The sum is the score to expect where all labels and cells that are
    allowed are equally probable.
    """
    scores, owner, begin = p.array, p.topology.used_owner, p.topology.begin[:-1]
    finite = scores > -np.inf
    count = np.add.reduceat(finite, begin, dtype=np.int64)
    apart = np.maximum.reduceat(scores, begin) - np.minimum.reduceat(np.where(finite, scores, np.inf), begin)
    mean = np.add.reduceat(np.where(finite, scores, 0.0), begin) / np.maximum(count, 1)
    spans = np.bincount(owner, np.where(count > 0, apart, 0.0), p.batch)
    spans = spans / np.bincount(owner, minlength=p.batch).clip(1)
    return np.where(spans > 0, spans, 1.0), np.bincount(owner, mean, p.batch).astype(np.float64)


def dual(p: Parts, tolerance: float, most: int) -> Solution:
    """Solve by the dual method to a relative gap of `tolerance`, or for at most so many sweeps."""
    g, s, scores = p.graph, p.topology.links, p.array
    labels, variables = int(g.labels[-1]), len(p.topology.sizes)
    others = np.zeros(len(scores)), np.zeros(labels), np.zeros(labels, np.int8), np.zeros(len(g.cells) - 1)
    room = Room._make((*np.zeros((6, int(s.messages[-1]))), *others))
    mu, trial = np.zeros((2, len(scores)))
    now, best = np.zeros(variables, np.int64), np.full(variables, -1)
    certificate, status = np.zeros((p.batch, 4)), np.zeros(p.batch, np.int64)
    run(
        relax, torch.get_num_threads(), p.batch, 100 * len(scores), g, s, scores, *_spans(p), tolerance, most, room, mu,
        trial, now, best, certificate, status,
    )  # fmt: skip
    primal, bound, met, violation = torch.from_numpy(certificate).unbind(1)
    place(p, best, status == INTEGRAL, mu)
    found = torch.from_numpy(status)
    unmet = ((met == -torch.inf) & (found != INFEASIBLE)).numpy()
    if unmet.any():
        best = np.where(unmet[p.topology.used_owner[:variables]], p.topology.most_probable(mu), best)
    integral = (found == INTEGRAL) | (found == INFEASIBLE)
    converged = found != NOT_CONVERGED
    lost = ~converged & (violation > tolerance)
    return Solution(mu, best, Certificate(primal, bound, integral, violation, converged), lost)
