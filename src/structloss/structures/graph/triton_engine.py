"""Lattices by Triton kernels: sums, marginals, expectations and the best path; first derivatives.

In float64, as in the torch engine, which does the rest: several best paths and draws. NaN and +inf are not looked for,
as in all of the Triton engine.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from structloss.structures.base import Found
from structloss.structures.chain.triton_ops import Maybe, no_second_derivative, nothing_kept
from structloss.structures.graph import torch_engine
from structloss.structures.graph.packing import Packing, Weighted
from structloss.structures.rows import begins

OPERATIONS = frozenset(("log_partition", "marginals", "expectation", "argmax"))  # what there are kernels for
_BLOCKS = {"NB": 16, "AB": 16}  # nodes, or scores, times arcs of each at a time


class Plan(NamedTuple):
    """A packing of paths on a device: N nodes, A arcs, n scores."""

    cell_begin: Tensor  # (D * B + 1,)
    begins: Tensor  # (2, N + 2), where the arcs that leave each node begin, and those that enter it
    base: Tensor  # (2, A), their scores
    other: Tensor  # (2, A), the nodes that they lead to, and come from
    entering: Tensor  # (A,), the arcs by the nodes that they enter
    head: Tensor  # (A,), the node that each leaves
    score_begin: Tensor  # (n + 1,), where the arcs that have each score begin in `having`
    having: Tensor  # (A,)
    owner: Tensor  # (n,), the example of each score


def covers(p: Packing) -> bool:
    """Whether the kernels are for it: for paths, not for trees."""
    return p.num_arcs > 0 and len(p.packed.tails) == 1


def plan_of(w: Weighted[Packing]) -> Plan:
    """The plan of a packing, moved once to each device."""
    t, device = w.packing, w.scores.device

    def make() -> Plan:
        p, (tail,), nodes = t.packed, t.packed.tails, t.num_items + 1
        entering, having = np.argsort(tail, kind="stable"), np.argsort(p.number, kind="stable")
        leaving = begins(np.bincount(t.heads, minlength=nodes))
        arrays = (
            p.cell_begin, np.stack([leaving, begins(np.bincount(tail, minlength=nodes))]),
            np.stack([p.number, p.number[entering]]), np.stack([tail, t.heads[entering]]), entering, t.heads,
            begins(np.bincount(p.number, minlength=len(w.scores))), having,
        )  # fmt: skip
        return Plan._make([*(torch.from_numpy(x).to(device) for x in arrays), t.owner.to(device)])

    plan: Plan = t.plans.get(("triton", device), make)
    return plan


def _constant(w: Weighted[Packing]) -> Tensor:
    """What arcs score by themselves, (A,)."""
    constant = w.constant if w.constant.size else np.zeros(w.packing.num_arcs)
    return torch.from_numpy(constant).to(w.scores.device)


def _sum(w: Weighted[Packing], f: Weighted[Packing] | None) -> list[Tensor]:
    """log Z, and the mean under f, (B,) each, in float64."""
    plan, keep = plan_of(w), torch.is_grad_enabled()
    dscores, constants = (None, [_constant(w)]) if f is None else (f.scores, [_constant(w), _constant(f)])
    keep &= w.scores.requires_grad or (dscores is not None and dscores.requires_grad)
    found: list[Tensor] = graph_sum(w.scores, dscores, list(plan), constants, w.packing.batch, keep)
    return found


def log_partition(w: Weighted[Packing]) -> Tensor:
    """log Z, (B,)."""
    if not covers(w.packing):
        return torch_engine.log_partition(w)
    return _sum(w, None)[0].to(w.scores.dtype)


def expectation(w: Weighted[Packing], f: Weighted[Packing]) -> Tensor:
    """E[score of a path under f], the path drawn under w, of one topology. (B,)"""
    if not covers(w.packing):
        return torch_engine.expectation(w, f)
    value, mean, *_ = _sum(w, f)
    mean = torch.where(mean == -torch.inf, -torch.inf, mean)  # without a gradient
    return torch.where(value == -torch.inf, 0, mean).to(w.scores.dtype)


def best(w: Weighted[Packing], k: int) -> Found:
    """The scores that the best path uses (1, B, L), -1 after an end; several are the torch engine's."""
    if k > 1 or not covers(w.packing):
        return torch_engine.best(w, k)
    plan, p = plan_of(w), w.packing
    value, path = graph_best(w.scores.detach(), list(plan), [_constant(w)], p.batch, p.longest)
    return Found(path[None], (value > -torch.inf)[None])


def draw(w: Weighted[Packing], n: int, generator: torch.Generator | None) -> Found:
    """n paths: the torch engine's."""
    return torch_engine.draw(w, n, generator)


# --- Operators of torch ----------------------------------------------------------------------------------------------


def _run_sum(
    scores: Tensor, dscores: Maybe, plan: list[Tensor], constants: list[Tensor], batch: int, keep: bool
) -> list[Tensor]:
    from structloss.kernels.triton.graph import sweep
    from structloss.kernels.triton.launching import launch

    p, dual, ways = Plan(*plan), dscores is not None, 2 if keep else 1
    _, _, found, dfound = _sum_shapes(scores, dscores, plan, constants, batch, keep)
    N, A = found.shape[1] - 1, p.head.shape[0]
    for x in (found, dfound) if dual else (found,):
        x[0, N] = 0.0
        x[1:, :batch] = 0.0
    own, *more = [torch.stack([x, x[p.entering]]) for x in constants]
    scores, dscores = scores.contiguous(), (scores if dscores is None else dscores).contiguous()
    launch(
        sweep, (batch, ways), scores, dscores, p.cell_begin, p.begins, p.base, p.other, own, more[0] if dual else own,
        found, dfound, batch, (p.cell_begin.shape[0] - 1) // batch, N, A, DUAL=dual, **_BLOCKS,
    )  # fmt: skip
    return [*(x[0, :batch].clone() for x in (found, dfound if dual else found)), found, dfound]


def _sum_shapes(
    scores: Tensor, dscores: Maybe, plan: list[Tensor], constants: list[Tensor], batch: int, keep: bool
) -> list[Tensor]:
    nodes, dual = plan[1].shape[1] - 1, dscores is not None
    rows = 2 if keep else 1
    shapes = ((batch,), (batch,), (rows, nodes), (rows if dual else 0, nodes))
    return [scores.new_empty(shape, dtype=torch.float64) for shape in shapes]


def _run_gradient(
    g: Tensor, scores: Tensor, dscores: Maybe, plan: list[Tensor], constants: list[Tensor], kept: list[Tensor]
) -> list[Tensor]:
    from structloss.kernels.triton.graph import gradient
    from structloss.kernels.triton.launching import launch

    p, dual, (found, dfound) = Plan(*plan), dscores is not None, kept
    into = [torch.empty_like(scores, dtype=torch.float64) for _ in range(1 + dual)]
    constant, dconstant = constants[0], constants[-1]
    n, scores = scores.shape[0], scores.contiguous()
    along = scores if dscores is None else dscores.contiguous()
    launch(
        gradient, (-(-n // _BLOCKS["NB"]),), g.contiguous(), scores, along, p.score_begin, p.having, p.owner, p.other,
        p.head, constant, dconstant, found, dfound, into[0], into[-1], n, found.shape[1] - 1, DUAL=dual, **_BLOCKS,
    )  # fmt: skip
    return [x.to(scores.dtype) for x in into]


def _gradient_shapes(g: Tensor, scores: Tensor, dscores: Maybe, *_: Any) -> list[Tensor]:
    return [torch.empty_like(scores) for _ in range(1 if dscores is None else 2)]


def _run_best(
    scores: Tensor, plan: list[Tensor], constants: list[Tensor], batch: int, longest: int
) -> tuple[Tensor, Tensor]:
    from structloss.kernels.triton.graph import best
    from structloss.kernels.triton.launching import launch

    p, nodes = Plan(*plan), plan[1].shape[1] - 1
    found, via = scores.new_zeros(nodes, dtype=torch.float64), p.head.new_full((nodes,), -1)
    path = p.head.new_empty(batch, longest)
    launch(
        best, (batch,), scores.contiguous(), p.cell_begin, p.begins, p.base, p.other, constants[0], found, via, path,
        batch, (p.cell_begin.shape[0] - 1) // batch, longest, **_BLOCKS,
    )  # fmt: skip
    return found[:batch].clone(), path


def _best_shapes(
    scores: Tensor, plan: list[Tensor], constants: list[Tensor], batch: int, longest: int
) -> tuple[Tensor, Tensor]:
    return scores.new_empty(batch, dtype=torch.float64), plan[0].new_empty(batch, longest)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    scores, dscores, plan, constants, _, _ = inputs
    ctx.save_for_backward(scores, dscores, *plan, *constants, *output[2:])


def _backward(ctx: Any, gradients: list[Maybe]) -> Any:
    scores, dscores, *rest = ctx.saved_tensors
    tables = len(Plan._fields)
    plan, constants, kept = rest[:tables], rest[tables:-2], rest[-2:]
    g, found = gradients[0 if dscores is None else 1], [None, None]
    if g is not None:
        found = [*graph_gradient(g, scores, dscores, plan, constants, kept), None]
    return found[0], found[1], [None] * tables, [None] * len(constants), None, None


_TABLES = "Tensor[] plan, Tensor[] constants"
graph_sum: Any = torch.library.custom_op(
    "structloss::graph_sum", _run_sum, mutates_args=(),
    schema=f"(Tensor scores, Tensor? dscores, {_TABLES}, int batch, bool keep) -> Tensor[]",
)  # fmt: skip
graph_gradient: Any = torch.library.custom_op(
    "structloss::graph_gradient", _run_gradient, mutates_args=(),
    schema=f"(Tensor g, Tensor scores, Tensor? dscores, {_TABLES}, Tensor[] kept) -> Tensor[]",
)  # fmt: skip
graph_best: Any = torch.library.custom_op(
    "structloss::graph_best", _run_best, mutates_args=(),
    schema=f"(Tensor scores, {_TABLES}, int batch, int longest) -> (Tensor, Tensor)",
)  # fmt: skip
graph_sum.register_fake(_sum_shapes)
graph_sum.register_autograd(_backward, setup_context=_setup)
graph_gradient.register_fake(_gradient_shapes)
graph_gradient.register_autograd(no_second_derivative, setup_context=nothing_kept)
graph_best.register_fake(_best_shapes)
