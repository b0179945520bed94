"""Segments by compiled kernels: CPU tensors in and out, values and first derivatives."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels import segments, segments_gradient
from structloss.kernels.workers import run
from structloss.structures import derivatives
from structloss.structures.base import Found
from structloss.structures.derivatives import Arrays, Solved
from structloss.structures.segments.parts import Parts
from structloss.structures.segments.search import ranked


def _run(kernel: Callable[..., None], p: Parts, passes: int, *args: Any) -> None:
    """Run a kernel on the examples of p, in as many threads as `passes` over its segments are worth."""
    batch, longest, states = p.durations.shape
    before = longest if p.rates is not None else 1 if p.transitions is None else 1 + states // longest
    steps = passes * batch * p.opening.shape[1] * states * longest * before
    run(kernel, torch.get_num_threads(), batch, steps, *args)


def _solve(p: Parts) -> derivatives.Solve:
    """log Z and its gradients, of potentials real or complex."""

    def solve(potentials: Arrays, needs: Sequence[bool]) -> Solved:
        dual = potentials[0] is not None and np.iscomplexobj(potentials[0])
        s = p.segments(potentials, np.complex128) if dual else p.arrays
        value = np.empty(len(s.lengths), s.final.dtype)
        scores: tuple[NDArray[Any], ...] = s[:6]
        own = [
            np.zeros(x.shape if needed else (len(value), *x.shape[1:-1], 0), value.dtype)
            for x, needed in zip(scores, needs, strict=True)
        ]
        gradients = segments.Segments._make([*own, *s[6:]])
        _run(segments_gradient.log_partition, p, 12 if dual else 5, s, any(needs), value, gradients)
        return value, own

    return solve


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    return derivatives.known(_solve(p), p.potentials)


def expectation(p: Parts, f: Parts) -> Tensor:
    """E[score under f], of what is drawn under p; both have rates, or neither. (B,)"""
    return derivatives.expectation(_solve(p), p.potentials, f.potentials)


def strata(p: Parts, levels: segments.Levels | None) -> Found:
    """The states that start at each frame of the best ways (V, B, T), -1 where none does; whether there are any (V, B).

    One for each value of a loss, or without levels the best of all.
    """
    most = 1 if levels is None else levels.following.shape[2]
    return _walks(p, most, levels, None, most)


def draw(p: Parts, n: int, generator: torch.Generator | None) -> Found:
    """The states that start at each frame of n ways (n, B, T), drawn by exp(score) / Z; whether there is any (B,)."""
    found = _walks(p, 4, None, p.uniforms(n, generator).numpy(), n)
    return Found(found.choices, found.exists[0])


def _walks(p: Parts, passes: int, levels: segments.Levels | None, uniforms: NDArray[Any] | None, n: int) -> Found:
    (batch, frames, _), most = p.opening.shape, n if uniforms is None else 1
    value, marks = np.empty((most, batch)), torch.full((n, batch, frames), -1)
    _run(segments.walks, p, passes, p.arrays, levels, uniforms, value, marks.numpy())
    return Found(marks, torch.from_numpy(value > -np.inf))


def best(p: Parts, k: int) -> Found:
    """The states that start at each frame of the k best ways (k, B, T), and whether there are so many (k, B)."""
    if k == 1:
        return strata(p, None)
    nodes = np.empty((p.opening.shape[0], *p.num_nodes))
    _run(segments.completions, p, 1, p.arrays, nodes)
    return ranked(p, nodes, k)
