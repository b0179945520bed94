"""The expected loss of what the paths of a graph write, by the mass of few states, and a bound of what that can cost.

An arc has the probability share[a] to be taken where a path has come to its head, so that forward sums are
probabilities. An *entry* (n, s) holds the probability alpha of all beginnings that come to node n and leave the loss
machine in state s; and `lost`, alpha times the mean of what these have lost so far. As in `sparse_ctc`, what is too
small to keep is sent elsewhere, within the node, so that the structure's own probabilities stay as they are:

- a small entry to a larger one of its node, for half the width of the interval in which V_x - V_y lies, its middle
  being added (`prices.apart`);
- along an arc that an entry hardly takes, as if it were in the state of the largest of its node, for the same.

Each path has a loss L' of its own then, |L - L'| is at most the sum of the prices it paid, and mass times price is the
mean of that. The gradient in the score of an arc is the covariance of L' with its being taken: docs/guide/sparse.md.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import helper, kernel
from structloss.kernels.forest import Packed, Weights, fill_shares
from structloss.kernels.prices import Prices, apart, found, rows_of
from structloss.kernels.sparse import FULL
from structloss.kernels.tables import longer
from structloss.kernels.types import OK, Array, Ints
from structloss.kernels.words import WordMachine

_NODE, _STATE, _NEXT, _TARGET, _SENT = range(5)  # columns of entries
_ALPHA, _LOST, _SHIFT, _VALUE, _PRICE = range(5)  # the last: alpha times the price of going as the largest does
_TARGETS = 2  # of a node's largest entries, one of which a small one is sent to
_ENOUGH = 4  # entries in a row for which there was no room: larger ones are not tried
_FEWEST = 8  # entries that a node keeps at least, whatever the limit is


class Room(NamedTuple):
    """Of a batch of graphs, to work in: of nodes (N,), of arcs (A,)."""

    mass: Array  # (N + 1,), the probability of coming to a node
    share: Array  # (A,)
    ending: Array  # (N,), the probability of ending in a node
    begin: Ints  # (N,), the first of its arcs that does not end there
    head: Ints  # (N,), the entry of a node that came last, -1: none; they go on through _NEXT
    sent: Ints  # (N,), the entry that was sent last; they go on through _SENT
    edge: Ints  # (A,), the first of an arc's edges, that of all who go as the largest does
    hardly: Array  # (N,), times an arc's share _PRICE is at most this where an entry goes as the largest does
    label: Ints  # (A,)


@helper
def slot_of(node: int, state: int, entries: Ints, table: Ints) -> int:
    """Where in the table the entry stands, or would."""
    mask = np.uint64(table.shape[0] - 1)
    code = np.uint64(node) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(state + 1) * np.uint64(0xC2B2AE3D27D4EB4F)
    slot = (code ^ (code >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(20) & mask
    while table[slot] >= 0 and (entries[table[slot], _NODE] != node or entries[table[slot], _STATE] != state):
        slot = (slot + np.uint64(1)) & mask
    return int(slot)


@helper
def arrive(
    node: int, state: int, alpha: float, lost: float, entries: Ints, mass: Array, table: Ints, head: Ints, count: Ints
) -> int:
    """The number of the entry, with so much more mass."""
    slot = slot_of(node, state, entries, table)
    e = table[slot]
    if e < 0:
        e = count[0]
        count[0] += 1
        table[slot] = e
        entries[e, _NODE], entries[e, _STATE], entries[e, _NEXT], entries[e, _TARGET] = node, state, head[node], e
        mass[e, _ALPHA], mass[e, _LOST], head[node] = 0.0, 0.0, e
    mass[e, _ALPHA] += alpha
    mass[e, _LOST] += lost
    return int(e)


@helper
def follow(m: WordMachine, prices: Prices, state: int, label: int) -> tuple[int, float, float]:
    """Where a label leads, what that weighs, and its price where no more states are made: it is then left out."""
    if label < 0:
        return state, 0.0, 0.0
    c = prices.class_of[label]
    to = m.next_state[state, c]
    if to < 0:
        to = found(m, state, c)
    if to == FULL:
        return state, 0.0, prices.wrong[label] + prices.ignored
    return int(to), m.weights[state, c] if to >= 0 else 0.0, 0.0


@kernel
def expected(
    b: int, batch: int, g: Packed, w: Weights, r: Room, m: WordMachine, prices: Prices, tolerance: float, limit: int,
    offset: int, g_scores: Array,
) -> tuple[float, float, int, int]:  # fmt: skip
    """E[loss] of example b, the bound of its error, the entries kept in all, and a status.

    g_scores (n_b,), its gradient, where there is room for it. A node may pay its share of what is left of the
    tolerance, half of that by its mass and half as one of the nodes that are left: one half for entries, the rest for
    arcs. Time and memory: the entries that are kept times their arcs, little for those that are hardly taken.
    """
    cells = g.cell_begin.shape[0] - 1
    share, ending, head, sent, none = r.share, r.ending, r.head, r.sent, r.head.shape[0]
    fill_shares(g, w, b, batch, r.mass, share)
    if r.mass[b] == -np.inf:
        return 0.0, 0.0, 0, OK
    total, nodes = 0.0, 0
    for cell in range(b, cells, batch):
        for n in range(g.cell_begin[cell], g.cell_begin[cell + 1]):
            r.mass[n], head[n], sent[n], r.begin[n], ending[n] = 0.0, -1, -1, g.arc_begin[n], 0.0
            if r.begin[n] < g.arc_begin[n + 1] and g.tails[0, r.begin[n]] == none:
                ending[n] = share[r.begin[n]]
                r.begin[n] += 1
    r.mass[b] = 1.0
    for cell in range(b, cells, batch):
        for n in range(g.cell_begin[cell], g.cell_begin[cell + 1]):
            first, last = r.begin[n], g.arc_begin[n + 1]
            if r.mass[n] > 0.0 and last > first:
                total += r.mass[n]
                nodes += 1
            for a in range(first, last):
                r.mass[g.tails[0, a]] += r.mass[n] * share[a]
    rows = rows_of(m, prices)
    entries, mass, count = np.zeros((256, 5), np.int64), np.zeros((256, 5)), np.zeros(1, np.int64)
    table = np.full(1024, -1)
    edges, weight, number = np.zeros((256, 1), np.int64), np.zeros((256, 1)), 0
    arrive(b, 0, 1.0, 0.0, entries, mass, table, head, count)
    spent, value, active = 0.0, 0.0, 0
    for cell in range(b, cells, batch):
        most = max(_FEWEST, limit // max(1, g.cell_begin[cell + 1] - g.cell_begin[cell]))
        for n in range(g.cell_begin[cell], g.cell_begin[cell + 1]):
            first, last, size, e = r.begin[n], g.arc_begin[n + 1], 0, head[n]
            while e >= 0:
                size += 1
                value += ending[n] * (mass[e, _LOST] + mass[e, _ALPHA] * m.final[entries[e, _STATE]])
                e = entries[e, _NEXT]
            if size == 0 or last == first or r.mass[n] <= 0.0:
                active += size
                continue
            room = max(0.0, tolerance - spent) * 0.5 * (min(1.0, r.mass[n] / max(total, r.mass[n])) + 1.0 / nodes)
            total -= r.mass[n]
            nodes -= 1
            # Small entries go to larger ones.
            members, sizes = np.empty(size, np.int64), np.empty(size)
            e, i = head[n], 0
            while e >= 0:
                members[i], sizes[i] = e, mass[e, _ALPHA]
                e, i = entries[e, _NEXT], i + 1
            order, kept, paid, failed = np.argsort(sizes), size, 0.0, 0
            for i in range(size - 1):
                if failed == _ENOUGH and kept <= most:
                    break
                e = members[order[i]]
                alpha, price, target, shift = mass[e, _ALPHA], np.inf, -1, 0.0
                for j in range(max(i + 1, size - _TARGETS), size):
                    d = members[order[j]]
                    up, down = apart(rows, entries[e, _STATE], entries[d, _STATE])
                    if 0.5 * (up + down) < price:
                        price, target, shift = 0.5 * (up + down), d, 0.5 * (up - down)
                failed += 1
                if paid + price * alpha <= 0.5 * room or kept > most:
                    failed = 0
                    paid += price * alpha
                    kept -= 1
                    entries[e, _TARGET], entries[e, _SENT], mass[e, _SHIFT], sent[n] = target, sent[n], shift, e
                    mass[target, _ALPHA] += alpha
                    mass[target, _LOST] += mass[e, _LOST] + alpha * shift
            active += kept
            # Along arcs that they hardly take, entries go as the largest does.
            top, e = members[order[size - 1]], head[n]
            while e >= 0:
                if entries[e, _TARGET] == e:
                    up, down = apart(rows, entries[e, _STATE], entries[top, _STATE])
                    mass[e, _SHIFT] = 0.5 * (up - down)
                    mass[e, _PRICE] = mass[e, _ALPHA] * 0.5 * (up + down) if e != top else 0.0
                e = entries[e, _NEXT]
            left, price = max(0.0, room - paid), np.inf
            r.hardly[n] = 256.0 * left / (kept * (last - first))  # at 1 all would fit
            while price > left:
                r.hardly[n] *= 0.25
                price, e = 0.0, head[n]
                while e >= 0:
                    for a in range(first, last if entries[e, _TARGET] == e else first):
                        own = share[a] * mass[e, _PRICE]
                        price += own if own <= r.hardly[n] else 0.0
                    e = entries[e, _NEXT]
            new = (kept + 1) * (last - first)
            edges, weight = longer(edges, number + new), longer(weight, number + new)
            entries, mass = longer(entries, count[0] + new), longer(mass, count[0] + new)
            if 2 * (count[0] + new) > table.shape[0]:
                slots = table.shape[0]
                while slots < 4 * (count[0] + new):
                    slots *= 2
                table = np.full(slots, -1)
                for e in range(count[0]):
                    table[slot_of(entries[e, _NODE], entries[e, _STATE], entries, table)] = e
            for a in range(first, last):
                r.edge[a] = number
                if share[a] == 0.0:
                    continue
                number += 1
                e, alpha, lost = head[n], 0.0, 0.0  # of all who go as the largest does
                while e >= 0:
                    if entries[e, _TARGET] == e:
                        if share[a] * mass[e, _PRICE] <= r.hardly[n]:
                            paid += share[a] * mass[e, _PRICE]
                            alpha += mass[e, _ALPHA]
                            lost += mass[e, _LOST] + mass[e, _ALPHA] * mass[e, _SHIFT]
                        else:
                            to, added, price = follow(m, prices, entries[e, _STATE], r.label[a])
                            if to < 0:
                                return 0.0, 0.0, 0, to
                            own = share[a] * mass[e, _ALPHA]
                            paid += own * price
                            edges[number, 0], weight[number, 0] = arrive(
                                g.tails[0, a], to, own, share[a] * mass[e, _LOST] + own * added, entries, mass, table,
                                head, count,
                            ), added  # fmt: skip
                            number += 1
                    e = entries[e, _NEXT]
                to, added, price = follow(m, prices, entries[top, _STATE], r.label[a])
                if to < 0:
                    return 0.0, 0.0, 0, to
                paid += share[a] * alpha * price
                edges[r.edge[a], 0], weight[r.edge[a], 0] = arrive(
                    g.tails[0, a], to, share[a] * alpha, share[a] * (lost + alpha * added), entries, mass, table, head,
                    count,
                ), added  # fmt: skip
            spent += paid
    for cell in range(cells - batch + b, -1, -batch):
        for n in range(g.cell_begin[cell], g.cell_begin[cell + 1]):
            go_back(n, value, g, r, entries, mass, edges, weight, m.final, offset, g_scores)
    return value, spent, active, OK


@helper
def go_back(
    n: int, mean: float, g: Packed, r: Room, entries: Ints, mass: Array, edges: Ints, weight: Array, final: Array,
    offset: int, g_scores: Array,
) -> None:  # fmt: skip
    """V of a node's entries, the mean of what their paths go on to lose; and the gradient in its arcs' scores."""
    e, here, end = r.head[n], 0.0, r.begin[n]
    if e >= 0 and r.mass[n] > 0.0:
        end = g.arc_begin[n + 1]
    while e >= 0:
        if entries[e, _TARGET] == e:
            mass[e, _VALUE] = r.ending[n] * final[entries[e, _STATE]]
            here += mass[e, _ALPHA]
        e = entries[e, _NEXT]
    for a in range(r.begin[n], end):
        if r.share[a] == 0.0:
            continue
        i, taken, e = r.edge[a], 0.0, r.head[n]
        together = weight[i, 0] + mass[edges[i, 0], _VALUE]
        while e >= 0:
            if entries[e, _TARGET] == e:
                ahead = together + mass[e, _SHIFT]
                if r.share[a] * mass[e, _PRICE] > r.hardly[n]:
                    i += 1
                    ahead = weight[i, 0] + mass[edges[i, 0], _VALUE]
                mass[e, _VALUE] += r.share[a] * ahead
                taken += mass[e, _LOST] + mass[e, _ALPHA] * ahead
            e = entries[e, _NEXT]
        if g_scores.size:
            g_scores[g.number[a] - offset] = r.share[a] * (taken - here * mean)
    e = r.sent[n]
    while e >= 0:
        mass[e, _VALUE] = mass[e, _SHIFT] + mass[entries[e, _TARGET], _VALUE]
        e = entries[e, _SENT]
