"""A semi-Markov structure as an explicit graph: the engine of what carries losses that read what it writes.

A node (t, j) is where a segment of label j - 1 ends and the next starts at frame t, j = 0 before the first. From there
an arc that writes k opens a segment, and an arc that writes nothing leads from the open segment to where it ends; the
longest come first, which makes ties lexicographic. There are T * K * (K + 1) + T * K * D arcs.
"""

import math

import numpy as np
import torch
from torch import Tensor

from structloss.structures.base import Found
from structloss.structures.graph.lattice import Lattice
from structloss.structures.segments.parts import Parts


def lattice_of(p: Parts) -> Lattice:
    """The lattice of these scores, which are differentiable, and of what is added; its paths are the ways to cut."""
    scores = _scores(p)
    key = (tuple(p.lengths.tolist()), *p.durations.shape[1:], p.opening.device)
    lattice = p.lattices.get(key, lambda: _build(p, scores)).with_scores(scores)
    for loss, strings, scale in p.added:
        lattice = lattice.augment(loss, strings, scale)
    return lattice


def log_partition(p: Parts) -> Tensor:
    """log Z, (B,)."""
    return lattice_of(p).log_partition()


def best(p: Parts, k: int) -> Found:
    """The labels that start at each frame of the k best ways (k, B, T), and whether there are so many (k, B)."""
    lattice = lattice_of(p)
    found = lattice._best(k)
    return found._replace(choices=marks_of(lattice._outputs(*found), p))


def draw(p: Parts, n: int, generator: torch.Generator | None) -> Found:
    """The labels that start at each frame of n ways (n, B, T), drawn by exp(score) / Z; whether there is any (B,)."""
    lattice = lattice_of(p)
    choices, exists = lattice._draw(n, generator)
    return Found(marks_of(lattice._outputs(choices, exists.expand(n, -1)), p), exists)


def _build(p: Parts, scores: Tensor) -> Lattice:
    D, K = p.durations.shape[1:]
    arcs, final = [], []
    for b, length in enumerate(p.lengths.tolist()):
        t, j, k = np.meshgrid(np.arange(length), np.arange(K + 1), np.arange(K), indexing="ij")
        first_open, dead = (length + 1) * (K + 1), (length + 1) * (K + 1) + length * K
        opening = np.stack([t * (K + 1) + j, first_open + t * K + k, k], -1)
        t, k, d = np.meshgrid(np.arange(length), np.arange(K), np.arange(D, 0, -1), indexing="ij")
        end = np.where(t + d <= length, (t + d) * (K + 1) + k + 1, dead)
        covering = np.stack([first_open + t * K + k, end, np.full_like(k, -1)], -1)
        arcs.append(np.concatenate([opening.reshape(-1, 3), covering.reshape(-1, 3)]))
        ends = [length * (K + 1) + j + 1 for j in range(K)] if length else [0]
        final.append(ends if length or float(p.final[b, 0]) > -math.inf else [])
    return Lattice(arcs, scores, final, num_labels=K)


def _scores(p: Parts) -> Tensor:
    """Those of all arcs, example after example."""
    batch, T, K = p.opening.shape
    D = p.durations.shape[1]
    opening = p.opening[:, :, None] + (0 if p.transitions is None else p.transitions[:, None])  # (B, T, K + 1, K)
    padded = torch.cat([p.frames, p.frames.new_zeros(batch, D, K)], 1)
    windows = padded.unfold(1, D, 1)[:, :T].cumsum(3)  # (B, T, K, D), of the first d + 1 frames
    covering = windows + p.durations.transpose(1, 2)[:, None]
    durations, ends = torch.arange(1, D + 1, device=p.lengths.device), torch.arange(T, device=p.lengths.device)
    last = (ends[:, None] + durations) == p.lengths[:, None, None]  # (B, T, D)
    covering = covering + torch.where(last[:, :, None], p.final[:, None, 1:, None], 0)
    forbidden = (durations < p.shortest) | (durations > p.limits[:, :, None])
    covering = torch.where(forbidden[:, :, None], -math.inf, covering).flip(3)
    rows = [part[b, :length].flatten() for b, length in enumerate(p.lengths.tolist()) for part in (opening, covering)]
    return torch.cat(rows) if rows else p.opening.new_zeros(0)


def marks_of(paths: Tensor, p: Parts) -> Tensor:
    """The marks (n, B, T) of paths (n, B, L)."""
    T, K = p.opening.shape[1:]
    opens = (paths >= 0) & (paths < (p.lengths * K * (K + 1))[:, None])
    starts = torch.where(opens, paths // (K * (K + 1)), T)
    marks = paths.new_full((*paths.shape[:2], T + 1), -1)
    return marks.scatter(2, starts, torch.where(opens, paths % K, -1))[:, :, :T]
