"""Segments in tensor operations: any device, derivatives of any order.

The same recursions as the kernels, in logarithms, a frame of the whole batch at a time.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.structures.base import Found
from structloss.structures.segments.parts import Parts
from structloss.structures.segments.search import ranked
from structloss.structures.tensors import amax, logsumexp, mean, wide

Combine = Callable[[Tensor, int], Tensor]
Pick = Callable[[Tensor, int], Tensor]  # which of the last axis of values, at frame t


def expanded(p: Parts) -> Parts:
    """As all of this file reads it: in the precision of sums, transitions for each example, (B, K + 1, K)."""
    p = p.map(wide)
    if p.transitions is None:
        return p
    return p.replace(transitions=p.transitions.expand(p.opening.shape[0], *p.transitions.shape))


def ways_at(p: Parts, beta: list[Tensor], t: int) -> Tensor:
    """The score of each segment from frame t on and of what follows it, (B, durations, K)."""
    count = min(p.durations.shape[1], p.opening.shape[1] - t)
    segments = p.frames[:, t : t + count].cumsum(1) + p.durations[:, :count]
    if p.rates is None:
        following = torch.stack(beta[t + 1 : t + 1 + count], 1)[:, :, 0, 1:]
    else:
        following = torch.stack([beta[t + 1 + d][:, d, 1:] for d in range(count)], 1)
    durations = torch.arange(1, count + 1, device=segments.device)
    forbidden = (durations < p.shortest) | (durations > p.limits[:, t, None])
    return torch.where(forbidden[:, :, None], -math.inf, segments + following)


def nodes_of(p: Parts, ways: Tensor, t: int, combine: Combine) -> Tensor:
    """The sum or the maximum of the ways to go on from each node at frame t, (B, P, K + 1)."""
    if p.rates is not None:
        pairs = p.rates[..., : ways.shape[1]] + ways.transpose(1, 2)[:, :, None]  # (B, K, P, durations)
        found = p.opening[:, t, None] + combine(pairs, 3).transpose(1, 2)
    else:
        found = (p.opening[:, t] + combine(ways, 1))[:, None]
    if p.transitions is not None:
        return combine(p.transitions + found, 2)[:, None]
    return torch.cat([found, found.new_full((*found.shape[:2], 1), -math.inf)], 2)


def backward(p: Parts, combine: Combine) -> list[Tensor]:
    """Every frame's sum (logsumexp) or maximum (amax) over the ways to finish, (B, P, K + 1) each."""
    frames, pairs = p.opening.shape[1], p.num_nodes[1]
    final = p.final[:, None].expand(-1, pairs, -1)
    beta = [final] * (frames + 1)
    for t in range(frames, -1, -1):
        going = final if t == frames else nodes_of(p, ways_at(p, beta, t), t, combine)
        here = torch.where((t < p.lengths)[:, None, None], going, -math.inf)
        beta[t] = torch.where((p.lengths == t)[:, None, None], final, here)
    return beta


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    value = backward(expanded(p), logsumexp)[0][:, 0, 0]
    return torch.where(value > -math.inf, value, -math.inf).to(p.opening.dtype)  # with zero gradient


def shares(p: Parts, create_graph: bool) -> list[Tensor | None]:
    """The gradient of each example's log Z in each of the potentials, transitions (B, K + 1, K); 0 where Z is 0."""
    with torch.enable_grad():
        p = expanded(p)
        p = p.map(lambda x: x if create_graph and x.requires_grad else x.detach().requires_grad_())
        value = backward(p, logsumexp)[0][:, 0, 0]
        value = torch.where(value > -math.inf, value, 0)
        inputs = [x for x in p.potentials if x is not None]
        found = torch.autograd.grad(value.sum(), inputs, create_graph=create_graph, allow_unused=True)
    filled = iter([torch.zeros_like(x) if g is None else g for g, x in zip(found, inputs, strict=True)])
    return [None if x is None else next(filled) for x in p.potentials]


def marginals(p: Parts) -> Tensor:
    """The probability that a segment of each state starts at each frame, (B, T, K)."""
    found = shares(p, torch.is_grad_enabled())[0]
    assert found is not None
    return found.to(p.opening.dtype)


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score under f], of what is drawn under p; what has probability 0 adds nothing. (B,)"""
    pairs = zip(shares(p, torch.is_grad_enabled()), expanded(f).potentials, strict=True)
    terms = [(share, value) for share, value in pairs if share is not None and value is not None]
    return mean(terms, terms[0][0].new_zeros(p.opening.shape[0])).to(p.opening.dtype)


def walk(p: Parts, beta: list[Tensor], combine: Combine, n: int, pick_state: Pick, pick_duration: Pick) -> Tensor:
    """n ways through the nodes of each example: the states that start at each frame (n, B, T), -1 where none does."""
    batch, frames, states = p.opening.shape
    b = torch.arange(batch, device=p.lengths.device).expand(n, batch)
    due, node, pair = torch.zeros_like(b), torch.zeros_like(b), torch.zeros_like(b)
    going, labels = beta[0][:, 0, 0] > -math.inf, torch.full((n, batch, frames), -1, device=b.device)
    for t in range(frames):
        here = (due == t) & going & (t < p.lengths)
        ways, state = ways_at(p, beta, t), node.clamp(max=states - 1)
        if p.transitions is not None:
            state = pick_state(p.transitions[b, node] + p.opening[:, t] + combine(ways, 1), t)
        values = ways[b, :, state]  # (n, B, durations)
        if p.rates is not None:
            values = values + p.rates[b, state, pair, : values.shape[2]]
        duration = pick_duration(values, t)
        labels[..., t] = torch.where(here, state, -1)
        due, node = torch.where(here, t + 1 + duration, due), torch.where(here, state + 1, node)
        pair = torch.where(here, duration, pair) if p.rates is not None else pair
    return labels


def first_best(values: Tensor, t: int) -> Tensor:
    """The smallest index along the last axis that attains the maximum."""
    return (values == values.amax(-1, keepdim=True)).int().argmax(-1)


def last_best(values: Tensor, t: int) -> Tensor:
    """The largest index along the last axis that attains the maximum."""
    return values.shape[-1] - 1 - first_best(values.flip(-1), t)


def argmax(p: Parts, longest_first: bool) -> tuple[Tensor, Tensor]:
    """The state that starts at each frame of the best way (B, T), -1 where none does; whether there is any (B,)."""
    p = expanded(p)
    best = backward(p, amax)
    labels = walk(p, best, amax, 1, first_best, last_best if longest_first else first_best)[0]
    return labels, best[0][:, 0, 0] > -math.inf


def completions(p: Parts) -> NDArray[np.float64]:
    """The best score of a way to finish from each node, (B, T + 1, P, K + 1)."""
    best: NDArray[np.float64] = torch.stack(backward(expanded(p), amax), 1).cpu().numpy()
    return best


def sample(p: Parts, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The states that start at each frame of ways drawn at uniforms (n, B, T, 2); whether there is any (B,)."""
    p = expanded(p)
    beta = backward(p, logsumexp)

    def drawn_at(place: int) -> Pick:
        def pick(values: Tensor, t: int) -> Tensor:
            probability = values.softmax(-1).double()
            before = probability.cumsum(-1) - probability
            taken = (probability > 0) & (before <= uniforms[:, :, t, place, None])
            return torch.where(taken, torch.arange(taken.shape[-1], device=taken.device), 0).amax(-1)

        return pick

    labels = walk(p, beta, logsumexp, uniforms.shape[0], drawn_at(0), drawn_at(1))
    return labels, beta[0][:, 0, 0] > -math.inf


def best(p: Parts, k: int) -> Found:
    """The states that start at each frame of the k best ways (k, B, T), and whether there are so many (k, B)."""
    if k == 1:
        marks, exists = argmax(p, p.longest_first)
        return Found(marks[None], exists[None])
    return ranked(p, completions(p), k)


def draw(p: Parts, n: int, generator: torch.Generator | None) -> Found:
    """The states that start at each frame of n ways (n, B, T), drawn by exp(score) / Z; whether there is any (B,)."""
    shape = (n, *p.opening.shape[:2], 2)
    return Found(*sample(p, torch.rand(shape, generator=generator, device=p.opening.device, dtype=torch.float64)))
