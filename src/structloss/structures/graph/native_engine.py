"""The lattice by compiled kernels: CPU tensors in and out, values and first derivatives."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structloss.kernels import lattice
from structloss.kernels.types import EMPTY
from structloss.kernels.workers import run
from structloss.structures.base import Found
from structloss.structures.derivatives import NoSecondDerivative, apply, guard
from structloss.structures.graph.topology import Floats, Topology, Weighted


def _run(kernel: Callable[..., None], w: Weighted, passes: int, *args: Any) -> None:
    """Run a kernel on the examples of w, in as many threads as `passes` over its arcs are worth."""
    steps = passes * (5 * w.topology.num_arcs + 10 * w.topology.num_nodes)
    run(kernel, torch.get_num_threads(), w.topology.batch, steps, w.topology.graph, w.arrays, *args)


def _room(w: Weighted) -> tuple[Floats, Floats, Floats]:
    """beta (N,), share (A,), ending (N,)."""
    nodes = w.topology.num_nodes
    return np.empty(nodes), np.empty(w.topology.num_arcs), np.empty(nodes)


def _tensor(value: Floats, like: Tensor) -> Tensor:
    """Sums are made in float64 and returned in the scores' own precision."""
    return torch.from_numpy(value).to(like.dtype)


def _of_arcs(g: Tensor, topology: Topology) -> Tensor:
    """What comes for each example, (B,), for each of its arcs, (sum n_b,)."""
    return g.repeat_interleave(torch.from_numpy(topology.sizes))


def _fill_log_partition(w: Weighted, gradient: bool) -> tuple[Floats, Floats]:
    """log Z (B,) and, where wanted, the probability of each arc (sum n_b,)."""
    value, found = np.empty(w.topology.batch), np.zeros(w.topology.num_scores if gradient else 0)
    _run(lattice.log_partition, w, 3 if gradient else 2, gradient, *_room(w), value, found)
    return value, found


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, w: Weighted) -> Tensor:
        value, found = _fill_log_partition(w, ctx.needs_input_grad[0])
        ctx.found, ctx.topology = _tensor(found, scores), w.topology
        ctx.save_for_backward(scores)
        return _tensor(value, scores)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.no_grad():
            result = ctx.found * _of_arcs(g, ctx.topology)
        return *guard([result], ctx.saved_tensors), None


def log_partition(w: Weighted) -> Tensor:
    """log Z, (B,)."""
    return apply(_LogPartition, w.scores, w)


def marginals(w: Weighted) -> Tensor:
    """The probability of each arc, (sum n_b,)."""
    found = _tensor(_fill_log_partition(w, True)[1], w.scores)
    if torch.is_grad_enabled() and w.scores.requires_grad:
        return apply(NoSecondDerivative, found, w.scores)
    return found


class _Expectation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, others: Tensor, w: Weighted, f: Weighted) -> Tensor:
        gradient, size = any(ctx.needs_input_grad), w.topology.num_scores
        value, in_scores, in_others = np.zeros(w.topology.batch), np.zeros(size), np.zeros(size)
        mean = np.empty(w.topology.num_nodes)
        _run(lattice.expectation, w, 5, f.arrays, gradient, *_room(w), mean, value, in_scores, in_others)
        ctx.found, ctx.topology = (_tensor(in_scores, scores), _tensor(in_others, scores)), w.topology
        ctx.save_for_backward(scores, others)
        return _tensor(value, scores)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.no_grad():
            weights = _of_arcs(g, ctx.topology)
            found = [
                x * weights if needed else None for x, needed in zip(ctx.found, ctx.needs_input_grad[:2], strict=True)
            ]
        return *guard(found, ctx.saved_tensors), None, None


def expectation(w: Weighted, f: Weighted) -> Tensor:
    """E[score of a path under f], the path drawn under w, of one topology. (B,)"""
    return apply(_Expectation, w.scores, f.scores, w, f)


def completions(w: Weighted) -> Floats:
    """The best score of a way to end from each node, (N,)."""
    best = np.empty(w.topology.num_nodes)
    _run(lattice.completions, w, 1, w.topology.batch, best)
    return best


def argmax(w: Weighted) -> tuple[Tensor, Tensor]:
    """The scores that the best path uses (B, L), -1 after its end, and whether there is any (B,)."""
    t = w.topology
    paths, status = torch.full((t.batch, t.num_levels - 1), -1), np.zeros(t.batch, np.int64)
    _run(lattice.argmax, w, 1, np.empty(t.num_nodes), paths.numpy(), status)
    return paths, torch.from_numpy(status != EMPTY)


def topk(w: Weighted, k: int) -> tuple[Tensor, Tensor]:
    """The scores that the k best paths use (B, k, L), -1 after an end, and whether there are so many (B, k)."""
    t = w.topology
    paths, exists = torch.full((t.batch, k, t.num_levels - 1), -1), torch.zeros(t.batch, k, dtype=torch.bool)
    size = (t.num_nodes, k)
    best, via, rank = np.empty(size), np.empty(size, np.int64), np.empty(size, np.int64)
    _run(lattice.topk, w, k, best, via, rank, paths.numpy(), exists.numpy())
    return paths, exists


def sample(w: Weighted, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The scores that paths drawn at uniforms (n, B, L) use, -1 after an end, and whether there is any (B,)."""
    paths, status = torch.full(uniforms.shape, -1), np.zeros(w.topology.batch, np.int64)
    _run(lattice.sample, w, 2 + uniforms.shape[0] // 4, *_room(w), uniforms.numpy(), paths.numpy(), status)
    return paths, torch.from_numpy(status != EMPTY)


def best(w: Weighted, k: int) -> Found:
    """The scores that the k best paths use (k, B, L), -1 after an end, and whether there are so many (k, B)."""
    if k == 1:
        paths, exists = argmax(w)
        return Found(paths[None], exists[None])
    paths, exists = topk(w, k)
    return Found(paths.transpose(0, 1), exists.T)


def draw(w: Weighted, n: int, generator: torch.Generator | None) -> Found:
    """The scores that n paths use (n, B, L), drawn with probability exp(score) / Z, and whether there is any (B,)."""
    shape = (n, w.topology.batch, w.topology.num_levels - 1)
    return Found(*sample(w, torch.rand(shape, generator=generator, device=w.scores.device, dtype=torch.float64)))
