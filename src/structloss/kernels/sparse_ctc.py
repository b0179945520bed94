"""The expected edit distance of what CTC writes, by the mass of few states, and a bound of what that can have cost.

Frames are normalised. An *entry* (s, last) of frame t holds the probability alpha of all paths so far that are in state
s of the loss machine and whose last frame is label `last`, or NONE if nothing can be repeated. Entries of one state are
a *group* of mass A. A frame leads from it

    by the blank to (s, NONE) with A p[blank];  by last itself, a repeat, from each entry to (s, last);
    by another label c to (step(s, c), c) with p[c] (A - alpha(s, c)).

What is too small to keep is not dropped but sent elsewhere, into an entry that is kept:

- the labels that a group does not follow one by one go together to (step(s, common), NONE), as common labels after
  which a blank comes: that costs wrong[c] of each, and again[c] if the next frame repeats it;
- their sum to (s, NONE), for `ignored`;
- a small entry to one that is kept: to (s, NONE) for repeat[last], which is paid if the next frame repeats it; to
  another state's for half the width of the interval in which V_x - V_y lies, its middle being added (`prices.apart`),
  and the same as before for last labels that differ.

Mass times price is what this can change the expected loss by: each path has a loss L' of its own, |L - L'| is at most
the sum of the prices that it paid, and the sums of both passes are those of L'. See docs/guide/sparse.md.
"""

import math
from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import helper, kernel
from structloss.kernels.ctc import normalise
from structloss.kernels.prices import Prices, Rows, apart, found, reach, rows_of
from structloss.kernels.sparse import FULL
from structloss.kernels.tables import longer
from structloss.kernels.types import OK, Array, Ints
from structloss.kernels.words import WordMachine

NONE = -1  # no last label
_STATE, _LAST, _GROUP, _REPEAT, _TARGET, _PARENT, _NEXT, _EDGE = range(8)  # columns of entries
_ALPHA, _SHIFT = range(2)
_CANDIDATES = 256  # labels that may be followed one by one at a frame
_BINS = 128  # of masses by their binary exponents


class Trellis(NamedTuple):
    """All entries, edges and groups, frame by frame."""

    entries: Ints  # (N, 8): state, last, group, the entry of the repeat, where it is sent, parent, next, edge of last
    mass: Array  # (N, 2): alpha, and what is added where it is sent
    edges: Ints  # (M, 2): label, entry
    edge_weight: Array  # (M, 1)
    groups: Ints  # (G, 5): state, first edge, end of the edges, the entry of the blank and of the rest (-1: none)
    group_mass: Array  # (G, 3): A, the weight of the rest and its probability
    first: Ints  # (T + 2,): where a frame's entries begin
    first_group: Ints  # (T + 1,)


@helper
def slot_of(state: int, last: int, entries: Ints, table: Ints, begin: int) -> int:
    """Where in the table the entry stands, or would; entries before `begin` are of earlier frames."""
    mask = np.uint64(table.shape[0] - 1)
    code = np.uint64(state) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(last + 1) * np.uint64(0xC2B2AE3D27D4EB4F)
    slot = (code ^ (code >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9) >> np.uint64(20) & mask
    while table[slot] >= begin and (entries[table[slot], _STATE] != state or entries[table[slot], _LAST] != last):
        slot = (slot + np.uint64(1)) & mask
    return int(slot)


@helper
def arrive(
    state: int, last: int, alpha: float, parent: int, entries: Ints, mass: Array, table: Ints, begin: int, count: Ints
) -> int:
    """The number of the entry, with so much more mass."""
    slot = slot_of(state, last, entries, table, begin)
    e = table[slot]
    if e < begin:
        e = count[0]
        count[0] += 1
        table[slot] = e
        entries[e, _STATE], entries[e, _LAST], entries[e, _TARGET], entries[e, _PARENT] = state, last, e, parent
        mass[e, _ALPHA], mass[e, _SHIFT] = 0.0, 0.0
    mass[e, _ALPHA] += alpha
    return int(e)


@helper
def candidates(
    p: Array, following: Array, blank: int, wrong: Array, again: Array, threshold: float, labels: Ints, price: Array,
    tail: Array, tail_mass: Array,
) -> int:  # fmt: skip
    """The labels whose price per mass is above the threshold, or a higher one if they are too many, dearest first.

    price[k]: p (wrong + next * again). tail[k], tail_mass[k]: the prices, the probabilities of all labels from k on.
    """
    C, room = p.shape[0], labels.shape[0]
    while True:
        n = 0
        for c in range(C):
            n += p[c] * (wrong[c] + again[c] * following[c]) > threshold
        if n < room:
            break
        threshold = max(4.0 * threshold, 1e-30)
    n, rest, rest_mass = 0, 0.0, 0.0
    for c in range(C):
        if c == blank:
            continue
        own = p[c] * (wrong[c] + again[c] * following[c])
        if own > threshold:
            k = n
            while k > 0 and price[k - 1] < own:
                price[k], labels[k] = price[k - 1], labels[k - 1]
                k -= 1
            price[k], labels[k] = own, c
            n += 1
        else:
            rest += own
            rest_mass += p[c]
    tail[n], tail_mass[n] = rest, rest_mass
    for k in range(n - 1, -1, -1):
        tail[k], tail_mass[k] = tail[k + 1] + price[k], tail_mass[k + 1] + p[labels[k]]
    return n


@helper
def forward(
    p: Array, length: int, blank: int, m: WordMachine, prices: Prices, tolerance: float, limit: int
) -> tuple[Trellis, float, int, int]:
    """The trellis, what was paid, how many entries were kept in all, and a status.

    Frame t may pay its share of what is left of the tolerance: half for edges, what is left of it for entries. More
    than `limit` entries are not kept, whatever it costs, and from `4 * limit` edges on groups are not followed label by
    label; nor to states that the machine has no place for. The last frame's entries are the end, and stay.
    """
    C = p.shape[1]
    _, _, _, common, class_of, wrong, again, repeat, stays, ignored, differs = prices
    rows, next_state, weights = rows_of(m, prices), m.next_state, m.weights
    crosses, onward, column = m.trie.crosses, m.trie.step, m.trie.column
    start, key, cost, cap, window, positions, _, deletion, _, place, _, lost, _, _ = rows
    entries, mass = np.zeros((256, 8), np.int64), np.zeros((256, 2))
    edges, edge_weight = np.zeros((256, 2), np.int64), np.zeros((256, 1))
    groups, group_mass = np.zeros((64, 5), np.int64), np.zeros((64, 3))
    first, first_group = np.zeros(length + 2, np.int64), np.zeros(length + 1, np.int64)
    count, table = np.zeros(3, np.int64), np.full(512, -1)  # entries, edges, groups
    group_of, own, edge_of = np.full(m.next_state.shape[0], -1), np.zeros(C), np.full(C, -1)
    labels, price = np.empty(min(C, _CANDIDATES) + 1, np.int64), np.empty(min(C, _CANDIDATES) + 1)
    tail, tail_mass = np.empty(labels.shape[0] + 1), np.empty(labels.shape[0] + 1)
    nothing, by_size, size = np.zeros(C), np.zeros(_BINS), np.zeros(_BINS, np.int64)
    arrive(0, NONE, 1.0, NONE, entries, mass, table, 0, count)
    first[1] = 1
    spent, active, status = 0.0, 0, OK
    for t in range(length):
        following = p[t + 1] if t + 1 < length else nothing
        share = max((tolerance - spent) / (length - t), 0.1 * tolerance / length)
        paid = 0.0
        n = candidates(p[t], following, blank, wrong, again, 0.1 * share / C, labels, price, tail, tail_mass)
        # Entries of one state are a group; its members stand in a list that goes through _NEXT.
        begin_group = count[2]
        first_group[t] = begin_group
        begin, end = first[t], first[t + 1]
        groups, group_mass = longer(groups, begin_group + end - begin), longer(group_mass, begin_group + end - begin)
        for e in range(begin, end):
            if entries[e, _TARGET] != e:
                continue
            s = entries[e, _STATE]
            g = group_of[s]
            if g < begin_group:
                g = count[2]
                count[2] += 1
                group_of[s], groups[g, 0], groups[g, 4], group_mass[g, 0] = g, s, NONE, 0.0
            entries[e, _GROUP], entries[e, _NEXT], groups[g, 4] = g, groups[g, 4], e
            group_mass[g, 0] += mass[e, _ALPHA]
        begin_edges = count[1]
        of_group = 0.5 * share / (count[2] - begin_group)
        for g in range(begin_group, count[2]):
            s, A, head, members, spare = groups[g, 0], group_mass[g, 0], groups[g, 4], 0, 0.0
            e = head
            while e >= 0:
                members += 1
                if entries[e, _LAST] >= 0:
                    own[entries[e, _LAST]] = mass[e, _ALPHA]
                e = entries[e, _NEXT]
            most = count[0] + members + n + 2
            entries, mass = longer(entries, most), longer(mass, most)
            edges, edge_weight = longer(edges, count[1] + n), longer(edge_weight, count[1] + n)
            if 2 * (most - end) > table.shape[0]:
                slots = table.shape[0]
                while slots < 4 * (most - end):
                    slots *= 2
                table = np.full(slots, -1)
                for e in range(end, count[0]):
                    table[slot_of(entries[e, _STATE], entries[e, _LAST], entries, table, end)] = e
            stay = arrive(s, NONE, A * p[t, blank], NONE, entries, mass, table, end, count)
            groups[g, 3], groups[g, 1] = stay, count[1]
            node, low, high = -2, 0, 0
            if lost >= 0:
                node = place[s, 1]
            else:
                low, high = reach(start, key, cost, cap, window, positions, deletion, s)
            e = head
            while e >= 0:  # repeats
                c = entries[e, _LAST]
                if c >= 0:
                    alpha = mass[e, _ALPHA] * p[t, c]
                    small = alpha * following[c] * (0.0 if node == lost and stays[c] else repeat[c])
                    if spare + small <= 0.25 * of_group:
                        spare += small
                        mass[stay, _ALPHA] += alpha
                        entries[e, _REPEAT] = stay
                    else:
                        entries[e, _REPEAT] = arrive(s, c, alpha, stay, entries, mass, table, end, count)
                e = entries[e, _NEXT]
            k, together, lumped = 0, 0.0, 0.0
            while k < n and spare + lumped + A * tail[k] > of_group and count[1] - begin_edges < 4 * limit:
                c = labels[k]
                k += 1
                symbol = class_of[c]
                if lost < 0:
                    usual = differs[symbol, high + 1] <= differs[symbol, low]
                else:
                    usual = crosses[symbol] == 0 and onward[node, column[symbol]] == lost
                if usual:  # here it is as a common one
                    symbol = common
                    small = A * p[t, c] * following[c] * again[c]
                    if spare + lumped + small <= 0.5 * of_group:
                        lumped += small
                        together += p[t, c]
                        continue
                others = A - own[c]
                if others <= 1e-15 * A:  # nothing but repeats
                    e = head
                    while entries[e, _LAST] != c:
                        e = entries[e, _NEXT]
                    to, weight = entries[e, _REPEAT], 0.0
                else:
                    state = next_state[s, symbol]
                    if state < 0:
                        state = found(m, s, symbol)
                    if state == FULL:
                        lumped += A * price[k - 1]
                        together += p[t, c]
                        continue
                    if state < 0:
                        status = state
                        break
                    weight = weights[s, symbol]
                    to = arrive(state, c, others * p[t, c], stay, entries, mass, table, end, count)
                edge_of[c] = count[1]
                edges[count[1], 0], edges[count[1], 1], edge_weight[count[1], 0] = c, to, weight
                count[1] += 1
            if status != OK:
                break
            lumped += A * tail[k]
            together += tail_mass[k]
            rest = A * together
            e = head
            while e >= 0:
                c = entries[e, _LAST]
                if c >= 0:
                    entries[e, _EDGE] = edge_of[c]
                    if edge_of[c] < 0:
                        rest -= mass[e, _ALPHA] * p[t, c]
                e = entries[e, _NEXT]
            groups[g, 4], group_mass[g, 1], group_mass[g, 2] = NONE, 0.0, together
            if rest > 0.0:
                state, small = FULL, 0.0 if node == lost else rest * ignored
                if spare + lumped + small > of_group:
                    state = next_state[s, common] if next_state[s, common] >= 0 else found(m, s, common)
                if state == FULL:
                    lumped += small
                    groups[g, 4] = stay
                    mass[stay, _ALPHA] += rest
                elif state < 0:
                    status = state
                    break
                else:
                    groups[g, 4] = arrive(state, NONE, rest, stay, entries, mass, table, end, count)
                    group_mass[g, 1] = weights[s, common]
            elif together > 0.0:
                groups[g, 4] = stay  # without mass: any value will do
            groups[g, 2] = count[1]
            paid += spare + lumped
            for i in range(groups[g, 1], count[1]):
                edge_of[edges[i, 0]] = -1
            e = head
            while e >= 0:
                if entries[e, _LAST] >= 0:
                    own[entries[e, _LAST]] = 0.0
                e = entries[e, _NEXT]
        if status != OK:
            break
        first[t + 2] = count[0]
        if t + 1 < length:
            room = share - paid
            paid += send(
                end, count[0], following, rows, prices, next_state, weights, room, limit, entries, mass, table, by_size,
                size,
            )  # fmt: skip
        spent += paid
        for e in range(end, count[0]):
            active += entries[e, _TARGET] == e
    first_group[length] = count[2]
    return Trellis(entries, mass, edges, edge_weight, groups, group_mass, first, first_group), spent, active, status


@helper
def bin_of(alpha: float) -> int:
    """A number that grows with the binary exponent of the mass."""
    return max(0, math.frexp(alpha)[1] + _BINS - 2) if alpha > 0.0 else 0


@helper
def send(
    begin: int, end: int, following: Array, rows: Rows, prices: Prices, next_state: Ints, weights: Array, room: float,
    limit: int, entries: Ints, mass: Array, table: Ints, by_size: Array, size: Ints,
) -> float:  # fmt: skip
    """Send the smallest entries of a frame to larger ones, for `room` in all, or until `limit` are left. What it cost.

    following (C,): the probabilities of the next frame.
    """
    class_of, repeat, stays, place, lost = prices.class_of, prices.repeat, prices.stays, rows.place, rows.lost
    top, kept = begin, end - begin
    for b in range(_BINS):
        by_size[b], size[b] = 0.0, 0
    for e in range(begin, end):
        alpha = mass[e, _ALPHA]
        if alpha > mass[top, _ALPHA]:
            top = e
        b = bin_of(alpha)
        by_size[b] += alpha
        size[b] += 1
    total, cut, last = 0.0, 0, bin_of(mass[top, _ALPHA])
    while cut < last and (total + by_size[cut] <= room or kept > limit):
        total += by_size[cut]
        kept -= size[cut]
        cut += 1
    forced, paid = total > room, 0.0
    for boundary in range(1 if forced else 2):  # whole bins, then of the next one what there is room for
        for e in range(begin, end):
            alpha = mass[e, _ALPHA]
            b = bin_of(alpha)
            if e == top or entries[e, _TARGET] != e or (b >= cut if boundary == 0 else b != cut):
                continue
            x, own = entries[e, _STATE], entries[e, _LAST]
            repeated = following[own] * repeat[own] if own >= 0 and not (stays[own] and place[x, 1] == lost) else 0.0
            best, target, shift = np.inf, NONE, 0.0
            if own >= 0:
                d = table[slot_of(x, NONE, entries, table, begin)]
                if d >= begin and entries[d, _TARGET] == d and bin_of(mass[d, _ALPHA]) > cut:
                    best, target = repeated, d
            for which in range(2):
                d = entries[e, _PARENT] if which == 0 else top
                if d < 0 or d == e or best <= 0.0 or entries[d, _TARGET] != d:
                    continue
                if d != top and bin_of(mass[d, _ALPHA]) <= cut:
                    continue
                y, other = entries[d, _STATE], entries[d, _LAST]
                up, down = apart(rows, x, y)
                price = 0.0
                if own != other and other < 0 and y != x and next_state[y, class_of[own]] == x:
                    rise = weights[y, class_of[own]]  # if the next frame is `own`, both are in x then
                    up, down = max(up, -rise), max(down, rise)
                elif own != other:
                    price = repeated
                    if other >= 0 and not (stays[other] and place[y, 1] == lost):
                        price += following[other] * repeat[other]
                price += 0.5 * (up + down)
                if price < best:
                    best, target, shift = price, d, 0.5 * (up - down)
            if target < 0 or (best * alpha > room - paid and not forced):
                continue
            paid += best * alpha
            entries[e, _TARGET], mass[e, _SHIFT] = target, shift
            mass[target, _ALPHA] += alpha
    return paid


@helper
def backward(trellis: Trellis, p: Array, length: int, blank: int, final: Array, out: Array) -> float:
    """E[L']; out (T, C) = its gradient p (E[L' | c at frame t] - E[L']), where there is room for it.

    V of an entry is the mean of what its paths go on to lose: that of its group, corrected by what its last label does
    otherwise. h(c), the sum over entries of alpha V after c, is the same for all labels that no group follows one by
    one.
    """
    entries, mass, edges, edge_weight, groups, group_mass, first, first_group = trellis
    value, mean = np.zeros(first[length + 1]), np.zeros(first_group[length])
    for e in range(first[length], first[length + 1]):
        value[e] = final[entries[e, _STATE]]
    extra = np.zeros(p.shape[1])
    for t in range(length - 1, -1, -1):
        for e in range(first[t + 1], first[t + 2]):
            target, shift = entries[e, _TARGET], mass[e, _SHIFT]
            if target != e:
                while entries[target, _TARGET] != target:
                    shift += mass[target, _SHIFT]
                    target = entries[target, _TARGET]
                value[e] = value[target] + shift
        for c in range(p.shape[1]):
            extra[c] = 0.0
        base, silent, total = 0.0, 0.0, 0.0
        for g in range(first_group[t], first_group[t + 1]):
            A, rest = group_mass[g, 0], 0.0
            if groups[g, 4] >= 0:
                rest = value[groups[g, 4]] + group_mass[g, 1]
            own = p[t, blank] * value[groups[g, 3]] + group_mass[g, 2] * rest
            silent += A * value[groups[g, 3]]
            base += A * rest
            for i in range(groups[g, 1], groups[g, 2]):
                c, v = edges[i, 0], value[edges[i, 1]] + edge_weight[i, 0]
                own += p[t, c] * v
                extra[c] += A * (v - rest)
            mean[g] = own
        for e in range(first[t], first[t + 1]):
            if entries[e, _TARGET] != e:
                continue
            g, c = entries[e, _GROUP], entries[e, _LAST]
            value[e] = mean[g]
            if c >= 0:
                v, i = 0.0, entries[e, _EDGE]
                if i >= 0:
                    v = value[edges[i, 1]] + edge_weight[i, 0]
                elif groups[g, 4] >= 0:
                    v = value[groups[g, 4]] + group_mass[g, 1]
                v = value[entries[e, _REPEAT]] - v
                value[e] += p[t, c] * v
                extra[c] += mass[e, _ALPHA] * v
            total += mass[e, _ALPHA] * value[e]
        if out.size:
            for c in range(p.shape[1]):
                out[t, c] = p[t, c] * (base + extra[c] - total)
            out[t, blank] = p[t, blank] * (silent - total)
    return float(value[0])


@kernel
def expected(
    scores: Array, length: int, blank: int, m: WordMachine, prices: Prices, tolerance: float, limit: int,
    g_scores: Array,
) -> tuple[float, float, int, int]:  # fmt: skip
    """E[loss] of one example, the bound of its error, the entries kept in all, and a status.

    g_scores (T, C), its gradient, where there is room for it. Time and memory: the entries that are kept, times the
    labels that each group follows, and T * C.
    """
    p, norm = np.empty((length, scores.shape[1])), np.empty(length)
    frames, status = normalise(scores, length, p, norm)
    if status != OK or frames == -np.inf:
        return 0.0, 0.0, 0, status
    trellis, bound, active, status = forward(p, length, blank, m, prices, tolerance, limit)
    if status != OK:
        return 0.0, 0.0, 0, status
    return backward(trellis, p, length, blank, m.final, g_scores), bound, active, status
