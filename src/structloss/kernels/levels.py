"""What every chain kernel reads: the scores of one level of one example.

A chain of order q over K labels has at level t the *history* h, the last q - 1 labels as a number in base K, oldest
first, 0 <= h < H = K**(q-1). The arc (h, y) leads to the history (h * K + y) mod H. At level t only the first
min(H, K**t) histories exist: before the first position history axes take index 0.

    score(t, h, y) = unary[t, y] + start[y] (t = 0) + end[y] (t = length - 1) + table[t, h, y]
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import kernel
from structloss.kernels.types import LARGEST, NOT_A_NUMBER, OK, PLUS_INFINITY, Array, Ints


class Potentials(NamedTuple):
    """The scores of a batch of chains. An absent array has size 0."""

    unary: Array  # (B, T, K)
    table: Array  # (B, T, H, K), or (1, 1, H, K) when shared; absent for order 1
    start: Array  # (K,)
    end: Array  # (K,)
    lengths: Ints  # (B,)
    pinned: Ints  # (B, T): the only label allowed, or negative where every label is
    shared: bool  # the table is the same everywhere, and added where the whole history exists (t >= q - 1)
    order: int


@kernel
def num_labels(p: Potentials) -> int:
    """K."""
    return int(max(p.unary.shape[2], p.table.shape[3]))


@kernel
def num_histories(p: Potentials) -> int:
    """H = K**(q-1)."""
    return int(max(1, p.table.shape[2]))


@kernel
def num_positions(p: Potentials) -> int:
    """T."""
    return int(max(p.unary.shape[1], p.table.shape[1]))


@kernel
def num_rows(p: Potentials, t: int) -> int:
    """How many histories exist at level t: min(H, K**t)."""
    return num_histories(p) if t >= p.order - 1 else num_labels(p) ** t


@kernel
def fill_unary(p: Potentials, b: int, t: int, length: int, out: Array) -> None:
    """out[y] = unary + start + end at level t of example b, -inf for labels that a pin forbids. Cost K."""
    K = out.shape[0]
    if p.unary.size:
        for y in range(K):
            out[y] = p.unary[b, t, y]
    else:
        for y in range(K):
            out[y] = 0.0
    if t == 0 and p.start.size:
        for y in range(K):
            out[y] += p.start[y]
    if t == length - 1 and p.end.size:
        for y in range(K):
            out[y] += p.end[y]
    if p.pinned.size and p.pinned[b, t] >= 0:
        for y in range(K):
            if y != p.pinned[b, t]:
                out[y] = -np.inf


@kernel
def fill_unaries(p: Potentials, b: int, length: int, out: Array) -> None:
    """out[t] = what fill_unary gives for each level t: one call an example, since passing p costs 50 ns."""
    K = out.shape[1]
    if p.unary.size:
        for t in range(length):
            for y in range(K):
                out[t, y] = p.unary[b, t, y]
    else:
        out[:length] = 0.0
    if length and p.start.size:
        for y in range(K):
            out[0, y] += p.start[y]
    if length and p.end.size:
        for y in range(K):
            out[length - 1, y] += p.end[y]
    if p.pinned.size:
        for t in range(length):
            if p.pinned[b, t] >= 0:
                for y in range(K):
                    if y != p.pinned[b, t]:
                        out[t, y] = -np.inf


@kernel
def has_table(p: Potentials, t: int) -> bool:
    """Whether the table scores level t."""
    return p.table.size > 0 and (not p.shared or t >= p.order - 1)


@kernel
def table_at(p: Potentials, b: int, t: int) -> Array:
    """The (H, K) scores of level t of example b."""
    level: Array = p.table[0, 0] if p.shared else p.table[b, t]
    return level


@kernel
def status_of(score: float) -> int:
    """Whether a score is a number of at most LARGEST, or -inf."""
    return NOT_A_NUMBER if score != score else PLUS_INFINITY if score > LARGEST else OK


@kernel
def fill_scores(p: Potentials, b: int, t: int, length: int, rows: int, unary: Array, out: Array) -> int:
    """out[h, y] = score(t, h, y) for h < rows; `unary` (K,) is overwritten. Returns a status. Cost rows * K."""
    fill_unary(p, b, t, length, unary)
    K, status = unary.shape[0], OK
    for y in range(K):
        status = max(status, status_of(unary[y]))
    if not has_table(p, t):
        for h in range(rows):
            for y in range(K):
                out[h, y] = unary[y]
        return status
    table = table_at(p, b, t)
    for h in range(rows):
        for y in range(K):
            status = max(status, status_of(table[h, y]))
            out[h, y] = unary[y] + table[h, y]
    return status


@kernel
def fill_row(p: Potentials, b: int, t: int, length: int, h: int, out: Array) -> None:
    """out[y] = score(t, h, y) for one history. Cost K."""
    fill_unary(p, b, t, length, out)
    if has_table(p, t):
        table = table_at(p, b, t)
        for y in range(out.shape[0]):
            out[y] += table[h, y]
