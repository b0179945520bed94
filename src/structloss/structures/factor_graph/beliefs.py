"""Sums of factor graphs by belief propagation, plain or tree-reweighted."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels import beliefs
from structloss.kernels.workers import run
from structloss.structures.derivatives import apply, guard
from structloss.structures.factor_graph.native_engine import weighed
from structloss.structures.factor_graph.parts import Parts

_FORESTS = 100
_MOST = 2_000
_DAMPING = 0.3  # without it messages on loops may swing for ever


def weights(p: Parts, reweighted: bool) -> NDArray[np.float64]:
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


def propagate(p: Parts, tolerance: float, reweighted: bool) -> tuple[NDArray[np.float64], ...]:
    """The value (B,), the beliefs of labels and cells, flat as the scores are."""
    s, (unary, tables) = p.topology.links, p.arrays
    value, residual = np.empty(p.batch), np.empty(p.batch)
    messages = int(s.messages[-1])
    belief, cells = np.zeros(len(unary)), np.zeros(len(tables))
    run(
        beliefs.propagate, torch.get_num_threads(), p.batch, 100 * len(tables), p.graph, s, unary.copy(), tables,
        weights(p, reweighted), _DAMPING, tolerance, _MOST, np.zeros(len(unary), np.int64),
        np.zeros(messages, np.int64), np.zeros(messages), np.zeros(len(unary)), belief, cells, value, residual,
    )  # fmt: skip
    if (residual > tolerance).any():
        b = int((residual > tolerance).argmax())
        raise RuntimeError(
            f"bp: the messages of example {b} still change by {residual[b]:.2g} after {_MOST} rounds; "
            f"a larger tolerance is reached sooner{'' if reweighted else ', and reweighted=True converges more often'}"
        )
    return value, belief, cells


class _LogPartition(torch.autograd.Function):
    """At a fixed point the gradient of the value is the beliefs."""

    @staticmethod
    def forward(ctx: Any, unary: Tensor, tables: Tensor, p: Parts, tolerance: float, reweighted: bool) -> Tensor:
        value, *ctx.found = propagate(p, tolerance, reweighted)
        ctx.parts = p
        ctx.save_for_backward(unary, tables)
        return torch.from_numpy(value).to(unary)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.no_grad():
            result = weighed(g, ctx.parts, ctx.found)
        return *guard(result, ctx.saved_tensors), None, None, None


def log_partition(p: Parts, tolerance: float, reweighted: bool) -> Tensor:
    """The approximation of log Z, (B,)."""
    return apply(_LogPartition, p.unary, p.tables, p, tolerance, reweighted)
