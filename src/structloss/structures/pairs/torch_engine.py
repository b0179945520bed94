"""Alignments in tensor operations: any device, derivatives of any order. One anti-diagonal of all grids at a time."""

import math

import torch
from torch import Tensor

from structloss.structures.pairs.native_engine import best as best  # searches and draws are compiled, on the CPU
from structloss.structures.pairs.native_engine import draw as draw
from structloss.structures.pairs.parts import Parts
from structloss.structures.tensors import logsumexp, wide


def _plus(*terms: Tensor) -> Tensor:
    return logsumexp(torch.stack(terms), 0)


def _ahead(x: Tensor) -> Tensor:
    """What stands at i + 1, -inf after the last."""
    return torch.cat([x[:, 1:], torch.full_like(x[:, :1], -math.inf)], 1)


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,): the recursions of `kernels.pairs` for the cells (i, d - i) of each d, backwards."""
    match, x_open, x_extend, y_open, y_extend, constant = (wide(x) for x in p.potentials)
    _, N, M = match.shape
    match = torch.nn.functional.pad(match, (0, 1, 0, 1))
    x_open, x_extend, y_open, y_extend = (
        torch.nn.functional.pad(x, (0, 1)) for x in (x_open, x_extend, y_open, y_extend)
    )
    first, last = p.bounds
    i, n, m = torch.arange(N + 1, device=p.lengths.device), p.lengths[:, None], p.m[:, None]
    paired = in_x = in_y = following = torch.full_like(x_open, -math.inf)  # of d + 1; following: paired of d + 2
    ends = torch.where((i > last[:, None]) & (i <= n), 0.0, -math.inf).to(match)
    begins = []
    for d in range(N + M, -1, -1):
        j = d - i
        place, there = j.clamp(0, M), (i <= n) & (j >= 0) & (j <= m)
        pair = match[:, i, place] + _ahead(following)
        turn, after_y = (_plus(pair, y[:, place] + in_y) for y in (y_open, y_extend))
        ways = [_plus(turn, x + _ahead(in_x)) for x in (x_open, x_extend)] + [after_y]
        if p.local:
            ways[0] = _plus(ways[0], ends)
            begins.append(torch.where(there, pair, -math.inf))
        else:
            ways = [torch.where((i == n) & (j == m), 0.0, x) for x in ways]
        following = paired
        paired, in_x, in_y = (torch.where(there, x, -math.inf) for x in ways)
    if p.local:
        starts = _plus(*begins).masked_fill(i > first[:, None], -math.inf)
        empty = torch.where(last < 0, 0.0, -math.inf).to(match)
        value = logsumexp(torch.cat([starts, empty[:, None]], 1), 1)
    else:
        value = paired[:, 0]
    return torch.where(value > -math.inf, value + constant[:, 0], value).to(p.match.dtype)
