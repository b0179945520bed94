"""What every dense kernel reads: a chain, and a machine that runs along with it.

A chain of order q over K labels has at level t the *history* h, the last q - 1 labels as a number in base K, oldest
first, 0 <= h < H = K**(q-1). The arc (h, y) leads to the history (h * K + y) mod H. At level t only the first
min(H, K**t) histories exist: before the first position history axes take index 0.

    score(t, h, y) = unary[t, y] + start[y] (t = 0) + end[y] (t = length - 1) + table[t, h, y]

The states of the product at level t are pairs of a history h and a machine state s; label y leads from (h, s) to
((h * K + y) mod H, next(s, class of y)) and scores what the chain gives it plus the machine's weight. The machine is
deterministic, so every output has one path. A plain chain is a chain times a machine of one state and no weights.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import helper, kernel
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


class Machines(NamedTuple):
    """Levelled deterministic machines, one for each example, M = B, or one for all of them, M = 1."""

    class_of: Ints  # (M, T, K), the symbol class of each label; (M, 1, K) where it is the same at all levels
    num_classes: Ints  # (M,), C
    next_state: Ints  # flat; of state s and class c at level t: entry arc_begin[i, t] + c * sizes[i, t] + s
    weight: Array  # flat likewise; of size 0 where all weights are 0
    arc_begin: Ints  # (M, T + 1)
    sizes: Ints  # (M, T + 1), how many states a level has, S
    final: Array  # (M, most states of a last level): of the last level's states, -inf where none may end


@helper
def shape_of(p: Potentials) -> tuple[int, int, int]:
    """T, H = K**(q-1) and K."""
    (_, positions, labels), (_, tabled, histories, columns) = p.unary.shape, p.table.shape
    return max(positions, tabled), max(1, histories), max(labels, columns)


@helper
def num_rows(p: Potentials, t: int) -> int:
    """How many histories exist at level t: min(H, K**t)."""
    _, H, K = shape_of(p)
    return H if t >= p.order - 1 else K**t


@helper
def has_table(p: Potentials, t: int) -> bool:
    """Whether the table scores level t."""
    return p.table.size > 0 and (not p.shared or t >= p.order - 1)


@helper
def table_at(p: Potentials, b: int, t: int) -> Array:
    """The (H, K) scores of level t of example b."""
    level: Array = p.table[0, 0] if p.shared else p.table[b, t]
    return level


@helper
def fill_unaries(p: Potentials, b: int, length: int, out: Array) -> None:
    """out[t, y] = unary + start + end of each level, -inf for labels that a pin forbids. Cost L * K."""
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


@helper
def status_of(score: float) -> int:
    """Whether a score is a number of at most LARGEST, or -inf."""
    return NOT_A_NUMBER if score != score else PLUS_INFINITY if score > LARGEST else OK


@helper
def fill_scores(p: Potentials, b: int, t: int, rows: int, unary: Array, out: Array) -> int:
    """out[h, y] = score(t, h, y) for h < rows, from what `fill_unaries` gave. Returns a status. Cost rows * K."""
    K, status = unary.shape[1], OK
    for y in range(K):
        status = max(status, status_of(unary[t, y].real))
    if not has_table(p, t):
        for h in range(rows):
            for y in range(K):
                out[h, y] = unary[t, y]
        return status
    table = table_at(p, b, t)
    for h in range(rows):
        for y in range(K):
            status = max(status, status_of(table[h, y].real))
            out[h, y] = unary[t, y] + table[h, y]
    return status


@helper
def machine_of(m: Machines, b: int) -> int:
    """The number of the machine of example b."""
    return int(min(b, m.sizes.shape[0] - 1))


@helper
def classes_at(m: Machines, i: int, t: int) -> Ints:
    """The class of each label at level t, (K,)."""
    classes: Ints = m.class_of[i, min(t, m.class_of.shape[1] - 1)]
    return classes


@helper
def arc_of(m: Machines, i: int, t: int, s: int, y: int) -> int:
    """The place of the arc of label y from state s of level t."""
    return int(m.arc_begin[i, t] + classes_at(m, i, t)[y] * m.sizes[i, t] + s)


@helper
def weight_at(weight: Array, arc: int) -> float:
    """The weight of an arc."""
    return weight[arc] if weight.size else 0.0


@helper
def fill_begins(m: Machines, i: int, length: int, out: Ints) -> int:
    """out[t] = how many states come before level t when all levels stand in one array. Returns the most of a level."""
    total = most = 0
    for t in range(length + 1):
        out[t] = total
        total, most = total + m.sizes[i, t], max(most, m.sizes[i, t])
    return most


@helper
def largest_machine(m: Machines, lengths: Ints) -> tuple[int, int, int]:
    """The most states of any machine, the most of any level, and the most arcs of any level."""
    states, widest, arcs = 1, 1, 1
    for b in range(lengths.shape[0]):
        i, total = machine_of(m, b), 0
        for t in range(lengths[b] + 1):
            total += m.sizes[i, t]
            widest = max(widest, m.sizes[i, t])
        arcs = max(arcs, widest * m.num_classes[i])
        states = max(states, total)
    return states, widest, arcs


@kernel
def walk(m: Machines, lengths: Ints, y: Ints, out: Array) -> None:
    """Add to out (n, B) the total weight of the machine's path for each output y (n, B, T)."""
    for n in range(y.shape[0]):
        for b in range(y.shape[1]):
            i, total, s = machine_of(m, b), 0.0, 0
            for t in range(lengths[b]):
                arc = arc_of(m, i, t, s, y[n, b, t])
                total += weight_at(m.weight, arc)
                s = m.next_state[arc]
            out[n, b] += total + m.final[i, s]
