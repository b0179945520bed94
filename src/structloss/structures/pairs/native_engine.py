"""Alignments by compiled kernels: values and first derivatives of CPU tensors, and all searches and draws."""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels import pairs
from structloss.kernels.workers import run
from structloss.structures import derivatives
from structloss.structures.base import Found
from structloss.structures.derivatives import Arrays, Solved
from structloss.structures.pairs.parts import Parts, scores_of


def _run(kernel: Callable[..., None], p: Parts, passes: int, *args: Any) -> None:
    """Run a kernel on the examples of p, in as many threads as `passes` over its cells are worth."""
    batch, n, m = p.match.shape
    run(kernel, torch.get_num_threads(), batch, 20 * passes * batch * (n + 1) * (m + 1), *args)


def _solve(p: Parts) -> derivatives.Solve:
    """log Z and its gradients, of potentials real or complex."""

    def solve(potentials: Arrays, needs: Sequence[bool]) -> Solved:
        scores = scores_of([x for x in potentials if x is not None])
        value, own = np.empty(len(p.lengths), scores.match.dtype), scores
        if any(needs):
            own = pairs.Scores._make(np.zeros(x.shape, x.dtype) for x in scores)
        _run(pairs.log_partition, p, 3 if any(needs) else 1, scores, p.sizes, any(needs), value, own)
        return value, own

    return solve


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    return derivatives.known(_solve(p), p.potentials)


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score under f], of what is drawn under p. (B,)"""
    return derivatives.expectation(_solve(p), p.potentials, f.potentials)


def strata(p: Parts, following: NDArray[np.int16] | None) -> Found:
    """The partners (V, B, N) of the best alignments, one at each value of a loss; whether there are any (V, B).

    following (B, N, V, M + 1): see `kernels.pairs.walks`; without it the best of all.
    """
    most = 1 if following is None else following.shape[2]
    return _walks(p, following, most, torch.zeros((most, p.match.shape[0], 0), dtype=torch.float64))


def draw(p: Parts, n: int, generator: torch.Generator | None) -> Found:
    """The partners (n, B, N) of n alignments, drawn by exp(score) / Z; whether there is any (B,)."""
    batch, N, M = p.match.shape
    device = p.match.device
    uniforms = torch.rand((n, batch, N + M + 1), generator=generator, device=device, dtype=torch.float64)
    found = _walks(p, None, 1, uniforms.cpu())
    return Found(found.choices, found.exists[0])


def _walks(p: Parts, following: NDArray[np.int16] | None, most: int, uniforms: Tensor) -> Found:
    batch, N, _ = p.match.shape
    value, partners = np.empty((most, batch)), torch.full((len(uniforms), batch, N), -1)
    _run(pairs.walks, p, most, p.scores, p.sizes, following, most, uniforms.numpy(), value, partners.numpy())
    device = p.match.device
    return Found(partners.to(device), torch.from_numpy(value > -np.inf).to(device))


def best(p: Parts, k: int) -> Found:
    """The partners (k, B, N) of the k best alignments, and whether there are so many (k, B)."""
    if k == 1:
        return strata(p, None)
    batch, N, M = p.match.shape
    scores, sizes, partners = p.scores, p.sizes, []
    for b in range(batch):
        ways = np.empty((N + 1, M + 1)), np.empty((N + 1, M + 1)), np.empty(N + 1)
        pairs.best_ways(scores, sizes, b, *ways)
        partners.append(_best_of(scores, sizes, b, *ways, k))
    return Found.of(partners, k, N, p.match.device)


Node = tuple[int, bool, bool]  # what of y comes next, whether in a run of x, whether all so far is outside


def _best_of(
    s: pairs.Scores, sizes: pairs.Sizes, b: int, paired: NDArray[Any], in_x: NDArray[Any], before: NDArray[Any], k: int
) -> list[tuple[int, ...]]:
    """The partners of the k best alignments of example b, best first, of equals the lexicographically smallest first.

    `paired`, `in_x` and `before` are the best scores of ways to finish, so that what is taken off the heap is always
    the beginning of one of the k: at most k times n of them are looked at, each for m partners.
    """
    n, m, local, found = int(sizes.n[b]), int(sizes.m[b]), sizes.local, list[tuple[int, ...]]()
    total = float(before[0] if local else paired[0, 0])
    heap: list[tuple[float, tuple[int, ...], float, Node]] = [(-total, (), 0.0, (0, False, local))]
    while heap and len(found) < k and heap[0][0] < np.inf:
        _, partners, score, (j, running, outside) = heapq.heappop(heap)
        i = len(partners)
        if i == n:
            found.append(partners)
            continue
        options: list[tuple[float, tuple[int, ...], float, Node]] = []
        gap = 0.0 if outside else float((s.x_extend if running else s.x_open)[b, i])
        if not outside or i < sizes.first[b]:
            finish = float(before[i + 1] if outside else in_x[i + 1, j])
            options.append((-(score + gap + finish), (*partners, -1), score + gap, (j, True, outside)))
        if local and not outside and not running and i > sizes.last[b]:  # it ends
            options.append((-score, (*partners, *[-1] * (n - i)), score, (m, False, False)))
        runs = np.zeros(m - j)  # of y, before each partner
        if not outside:
            runs[1:] = s.y_open[b, j : j + 1].sum() + np.append(0.0, s.y_extend[b, j + 1 : m].cumsum())[: m - j - 1]
        scores = score + runs + s.match[b, i, j:m]
        bounds = scores + paired[i + 1, j + 1 : m + 1]
        for c in np.argsort(-bounds, kind="stable")[:k].tolist():
            options.append((-float(bounds[c]), (*partners, j + c), float(scores[c]), (j + c + 1, False, False)))
        for option in options:
            if option[0] < np.inf:
                heapq.heappush(heap, option)
    return found
