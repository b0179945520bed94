"""The chain in tensor operations: any device, derivatives of any order.

The same recursions as the kernels, in logarithms, one level of the whole batch at a time.
"""

import math

import torch
from torch import Tensor

from structloss.structures.chain_parts import Parts


def logsumexp(x: Tensor, dim: int) -> Tensor:
    """log of the sum of exp; -inf, with zero gradient, where everything is -inf (torch's own gives NaN there)."""
    top = x.detach().amax(dim, keepdim=True)
    top = torch.where(torch.isfinite(top), top, 0)
    total = (x - top).exp().sum(dim)
    positive = total > 0
    return torch.where(positive, torch.where(positive, total, 1).log() + top.squeeze(dim), -math.inf)


def check(p: Parts) -> None:
    """Raise if a potential that matters is NaN or +inf."""
    if torch.compiler.is_compiling():
        return
    for t, level in enumerate(levels(p)):
        wrong = (level.isnan() | level.isposinf()).flatten(1).any(1)
        if wrong.any():
            b = int(wrong.int().argmax())
            found = "NaN" if level[b].isnan().any() else "+inf"
            raise ValueError(f"potentials: example {b} has {found} at position {t}, but wanted numbers or -inf")


def levels(p: Parts) -> list[Tensor]:
    """The scores of each level, (B, rows, K) with rows = min(H, K**t); zeros beyond a length."""
    K, H, T = p.num_labels, p.num_histories, p.num_positions
    batch, like = p.lengths.shape[0], p.any_potential
    unary = like.new_zeros(batch, T, K) if p.unary is None else torch.where(p.within[:, :, None], p.unary, 0)
    positions = torch.arange(T, device=like.device)
    if p.start is not None:
        unary = torch.where(((positions == 0) & p.within)[:, :, None], unary + p.start, unary)
    if p.end is not None:
        unary = torch.where((positions == p.lengths[:, None] - 1)[:, :, None], unary + p.end, unary)
    if p.pinned is not None:
        labels = torch.arange(K, device=like.device)
        allowed = (p.pinned[:, :, None] < 0) | (p.pinned[:, :, None] == labels) | ~p.within[:, :, None]
        unary = torch.where(allowed, unary, -math.inf)
    result = []
    for t in range(T):
        level = unary[:, t, None, :]
        rows = min(H, K**t)
        if p.table is None or (p.shared and t < p.order - 1):
            level = level.expand(batch, rows, K)
        elif p.shared:
            level = level + torch.where((t < p.lengths)[:, None, None], p.table, 0)
        else:
            level = level + torch.where((t < p.lengths)[:, None, None], p.table[:, t, :rows], 0)
        result.append(level)
    return result


def _following(beta: Tensor, rows: int, K: int) -> Tensor:
    """beta(t + 1, h') (B, states, ...) laid out by the arc (h, y) that leads there: (B, rows, K, ...)."""
    if beta.shape[1] == 1:
        return beta[:, None].expand(-1, rows, K, *beta.shape[2:])
    blocks = beta.reshape(beta.shape[0], beta.shape[1] // K, K, *beta.shape[2:])  # (B, blocks, K, ...)
    repeats = rows // blocks.shape[1]
    return blocks.repeat(1, repeats, *(1,) * (blocks.dim() - 2))


def backward(p: Parts, scores: list[Tensor]) -> list[Tensor]:
    """log beta(t, h), (B, rows) for each level, the last one zeros."""
    K, H, T = p.num_labels, p.num_histories, p.num_positions
    beta = p.any_potential.new_zeros(p.lengths.shape[0], min(H, K**T))
    result = [beta]
    for t in range(T - 1, -1, -1):
        level = scores[t]
        beta = logsumexp(level + _following(beta, level.shape[1], K), 2)
        beta = torch.where((t < p.lengths)[:, None], beta, 0)
        result.append(beta)
    return result[::-1]


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    check(p)
    return backward(p, levels(p))[0][:, 0]


def marginals(p: Parts, create_graph: bool) -> Tensor:
    """The probability of each arc, (B, T, H, K)."""
    check(p)
    K, H = p.num_labels, p.num_histories
    if not p.num_positions:
        return p.any_potential.new_zeros(p.lengths.shape[0], 0, H, K)
    with torch.enable_grad():
        scores = levels(p)
        if not create_graph:
            scores = [level.detach() for level in scores]
        scores = [level if level.requires_grad else level.detach().requires_grad_() for level in scores]
        value = backward(p, scores)[0][:, 0]
        value = torch.where(value > -math.inf, value, 0)
        arcs = torch.autograd.grad(value.sum(), scores, create_graph=create_graph, allow_unused=True)
    full = []
    for t, (arc, level) in enumerate(zip(arcs, scores, strict=True)):
        arc = torch.zeros_like(level) if arc is None else torch.where((t < p.lengths)[:, None, None], arc, 0)
        full.append(torch.cat([arc, arc.new_zeros(arc.shape[0], H - arc.shape[1], K)], 1))
    return torch.stack(full, 1)


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score of y under f], y drawn from p; arcs of probability 0 add nothing. (B,)"""
    arcs = marginals(p, create_graph=torch.is_grad_enabled())
    check(f)
    total = p.any_potential.new_zeros(p.lengths.shape[0])
    for t, level in enumerate(levels(f)):
        arc = arcs[:, t, : level.shape[1]]
        total = total + (arc * torch.where(arc > 0, level, 0)).sum((1, 2))
    return total


def score(p: Parts, y: Tensor) -> Tensor:
    """The score of each output y (n, B, T): (n, B)."""
    K, H = p.num_labels, p.num_histories
    total = p.any_potential.new_zeros(y.shape[:2])
    history = y.new_zeros(y.shape[:2])
    y = torch.where(p.within, y, 0)
    batch = torch.arange(y.shape[1], device=y.device)
    for t, level in enumerate(levels(p)):
        total = total + level[batch, history, y[:, :, t]]  # zeros beyond a length
        history = (history * K + y[:, :, t]) % H
    if not torch.compiler.is_compiling() and total.isnan().any():
        check(p)
    return torch.where(total > -math.inf, total, -math.inf)


def _first_best(values: Tensor) -> Tensor:
    """The smallest index along the last axis that attains the maximum (torch.argmax promises no order)."""
    indices = torch.arange(values.shape[-1], device=values.device)
    return torch.where(values == values.amax(-1, keepdim=True), indices, values.shape[-1]).amin(-1)


def argmax(p: Parts) -> tuple[Tensor, Tensor]:
    """The best output (B, T), and whether there is any (B,)."""
    check(p)
    K, H, T = p.num_labels, p.num_histories, p.num_positions
    scores = levels(p)
    best = [p.any_potential.new_zeros(p.lengths.shape[0], min(H, K**T))]
    for t in range(T - 1, -1, -1):
        level = (scores[t] + _following(best[-1], scores[t].shape[1], K)).amax(2)
        best.append(torch.where((t < p.lengths)[:, None], level, 0))
    best = best[::-1]
    batch = torch.arange(p.lengths.shape[0], device=p.lengths.device)
    history, labels = torch.zeros_like(p.lengths), []
    for t in range(T):
        level = scores[t][batch, history] + _following(best[t + 1], scores[t].shape[1], K)[batch, history]
        label = _first_best(level)
        labels.append(label)
        history = (history * K + label) % H
    exists = best[0][:, 0] > -math.inf
    if not labels:
        return p.lengths.new_zeros(p.lengths.shape[0], 0), exists
    return torch.where(exists[:, None], torch.stack(labels, 1), 0), exists


def topk(p: Parts, k: int) -> Tensor:
    """The k best outputs (B, k, T), best first, -1 where there are fewer."""
    check(p)
    K, H, T = p.num_labels, p.num_histories, p.num_positions
    scores, batch = levels(p), p.lengths.shape[0]
    best = p.any_potential.new_full((batch, min(H, K**T), k), -math.inf)
    best[:, :, 0] = 0
    first, via = best[:1, :1], []
    for t in range(T - 1, -1, -1):
        rows = scores[t].shape[1]
        candidates = scores[t][..., None] + _following(best, rows, K)  # (B, rows, K, k)
        values, order = candidates.flatten(2).sort(dim=2, descending=True, stable=True)
        inside = (t < p.lengths)[:, None, None]
        best = torch.where(inside, values[:, :, :k], first)
        via.append(order[:, :, :k])
        if rows * K >= H and not inside.any():
            via[-1] = torch.zeros_like(via[-1])
    rank = torch.arange(k, device=p.lengths.device).expand(batch, k)
    exists = best[:, 0] > -math.inf
    history, labels = torch.zeros_like(rank), []
    index = torch.arange(batch, device=p.lengths.device)[:, None]
    for t in range(T):
        choice = via[T - 1 - t][index, history, rank]
        label = choice // k
        inside = (t < p.lengths)[:, None]
        rank = torch.where(inside, choice % k, rank)
        labels.append(torch.where(exists & inside, label, -1))
        history = (history * K + label) % H
    return torch.stack(labels, 2) if labels else rank.new_zeros(batch, k, 0)


def sample(p: Parts, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (n, B, T) by inverting P(y | h) at uniforms (n, B, T), and whether there is any (B,)."""
    check(p)
    K, H = p.num_labels, p.num_histories
    scores = levels(p)
    beta = backward(p, scores)
    batch = torch.arange(p.lengths.shape[0], device=p.lengths.device)
    history = p.lengths.new_zeros(uniforms.shape[:2])
    labels = []
    for t, level in enumerate(scores):
        arcs = level + _following(beta[t + 1], level.shape[1], K)
        probability = arcs[batch, history].softmax(-1).double()  # (n, B, K)
        before = probability.cumsum(-1) - probability
        taken = (probability > 0) & (before <= uniforms[:, :, t, None])
        label = torch.where(taken, torch.arange(K, device=taken.device), 0).amax(-1)
        labels.append(label)
        history = (history * K + label) % H
    exists = beta[0][:, 0] > -math.inf
    return (torch.stack(labels, 2) if labels else history.new_zeros(*uniforms.shape)), exists


def strata(p: Parts, next_stratum: Tensor, cost_class: Tensor, sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The best score (B, V) and output (B, V, T) of each stratum of level 0: see `kernels.chain_max.strata`."""
    check(p)
    K, H, T, V = p.num_labels, p.num_histories, p.num_positions, next_stratum.shape[2]
    scores, B = levels(p), p.lengths.shape[0]
    batch = torch.arange(B, device=p.lengths.device)
    first = p.any_potential.new_full((B, V, 1), -math.inf)
    first[:, 0] = 0
    best = [first.expand(B, V, min(H, K**T))]

    def arcs(t: int, following: Tensor) -> tuple[Tensor, Tensor]:
        """score + best(t + 1, ...) of each (v, h, y), (B, V, rows, K), and the strata that follow, (B, V, K)."""
        rows = scores[t].shape[1]
        then = next_stratum[:, t].gather(2, cost_class[:, t, None].expand(B, V, K))  # (B, V, K)
        beyond = _following(following.transpose(1, 2), rows, K).permute(0, 1, 2, 3)  # (B, rows, K, V)
        index = then.clamp(min=0).permute(0, 2, 1)[:, None].expand(B, rows, K, V)
        value = scores[t][..., None] + beyond.gather(3, index)
        value = torch.where((then >= 0).permute(0, 2, 1)[:, None], value, -math.inf)
        return value.permute(0, 3, 1, 2), then

    for t in range(T - 1, -1, -1):
        value, _ = arcs(t, best[-1])
        inside = (t < p.lengths)[:, None, None]
        best.append(torch.where(inside, value.amax(3), first))
    best = best[::-1]
    stratum = torch.arange(V, device=p.lengths.device).expand(B, V)
    history, labels = torch.zeros_like(stratum), []
    for t in range(T):
        value, then = arcs(t, best[t + 1])
        label = _first_best(value[batch[:, None], stratum, history])  # (B, V)
        labels.append(label)
        stratum = then[batch[:, None], stratum, label].clamp(min=0)
        history = (history * K + label) % H
    return best[0][:, :, 0], torch.stack(labels, 2) if labels else history.new_zeros(B, V, 0)
