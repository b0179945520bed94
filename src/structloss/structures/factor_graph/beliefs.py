"""Sums of factor graphs by belief propagation, plain or tree-reweighted."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels import beliefs
from structloss.kernels.workers import run
from structloss.structures.derivatives import known
from structloss.structures.factor_graph.parts import Floats, Parts

_FORESTS = 100  # orders of factors from which random spanning forests are grown
_MOST = 2_000  # rounds
_DAMPING = 0.3  # without it messages on loops may swing for ever


def weights(p: Parts, reweighted: bool) -> Floats:
    """rho: 1 for every factor, or the part of random spanning forests that it is in, at least one of each."""
    g = p.graph
    count = len(g.cells) - 1
    if not reweighted:
        return np.ones(count)
    rho, parent, random = np.zeros(count), np.empty(len(p.topology.sizes), np.int64), np.random.default_rng(0)
    for b in range(p.batch):
        own = np.arange(g.factors[b], g.factors[b + 1])
        if len(own):
            orders = [random.permutation(own) for _ in range(_FORESTS)]
            # And one forest for each factor that no other has.
            beliefs.forests(g, b, np.stack(orders), parent, rho)
            rare = own[rho[own] == 0]
            more = np.stack([[f, *own[own != f]] for f in rare]) if len(rare) else np.empty((0, len(own)), np.int64)
            beliefs.forests(g, b, more, parent, rho)
            rho[own] /= len(orders) + len(more)
    return rho


def propagate(p: Parts, tolerance: float, reweighted: bool) -> tuple[Floats, Floats]:
    """The value (B,), and the beliefs of labels and cells, flat as the scores are."""
    t, scores = p.topology, p.array
    labels, value, residual = int(p.graph.labels[-1]), np.empty(p.batch), np.empty(p.batch)
    belief = np.zeros(len(scores))
    run(
        beliefs.propagate, torch.get_num_threads(), p.batch, 100 * len(scores), p.graph, t.links, scores,
        weights(p, reweighted), _DAMPING, tolerance, _MOST, np.zeros(labels, np.int8),
        np.zeros((4, int(t.links.messages[-1]))), np.zeros(labels), belief, np.zeros(len(scores)), value, residual,
    )  # fmt: skip
    if (residual > tolerance).any():
        b = int((residual > tolerance).argmax())
        raise RuntimeError(
            f"bp: the messages of example {b} still change by {residual[b]:.2g} after {_MOST} rounds; "
            f"a larger tolerance is reached sooner{'' if reweighted else ', and reweighted=True converges more often'}"
        )
    return value, belief


def log_partition(p: Parts, tolerance: float, reweighted: bool) -> Tensor:
    """The approximation of log Z, (B,). At a fixed point its gradient is the beliefs."""

    def solve(_: Sequence[Any], wanted: Sequence[bool]) -> tuple[Floats, list[NDArray[Any] | None]]:
        value, belief = propagate(p, tolerance, reweighted)
        return value, [belief]

    return known(solve, [p.scores.cpu()], torch.from_numpy(p.topology.owner)).to(p.scores.device)
