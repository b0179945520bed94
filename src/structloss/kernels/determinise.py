"""The compiler: a weighted acceptor over the tropical semiring becomes deterministic, with exact subsumption.

An acceptor has positions p, costs to start and to stop at p, for each symbol class moves p -> p' at a cost, and moves
that read nothing (`silent`), which only go to higher positions. The loss of a string is the least cost of its paths. A
state of the deterministic machine is the set of positions where such a path can be, each with its cost: Det(M) of
Cortes 2018.

Most of a set is useless. Let V_p be the cheapest way to finish from p, a function of the symbols that are left. If
V_q <= V_p + b for all of them, then (p, c_p) can be dropped whenever c_q + b <= c_p: it can never be the minimum. Such
a bound b(t, q, p) comes from a game in which q answers every move of p, by induction from the last level:

    b(t, q, p) = max( over silent moves p -> r of cost w:       b(t, q, r) - w,
                      over classes a and moves p -> r of cost w:  answer(t, a, q, r) - w ),
    answer(t, a, q, r) = min( over moves q -> s on a of cost v:  v + b(t + 1, s, r),
                              over silent moves q -> s of cost v:  v + answer(t, a, s, r) ).

It obeys the triangle inequality, so that all drops can be made at once, ties going to the lower position.

With a cap, costs stay absolute, and a position whose cost and cheapest completion reach the cap is dropped too; what
is left with no position at all has the cap as its loss. Without one, a state's least cost is moved to the arc that
leads there.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_kernel
from structloss.kernels.types import Array, Ints

UNIT = 1e-9  # costs that differ by less are equal


class Acceptor(NamedTuple):
    """A weighted acceptor. Moves of class a from p: those from move_start[a, p] to move_start[a, p + 1]."""

    start: Array  # (P,), inf where no path starts
    stop: Array  # (P,), inf where none ends
    move_start: Ints  # (C, P + 1)
    move_to: Ints  # (M,)
    move_cost: Array  # (M,)
    silent_start: Ints  # (P + 1,)
    silent_to: Ints  # (N,), higher than where it comes from
    silent_cost: Array  # (N,)


@exact_kernel
def close(a: Acceptor, costs: Array) -> None:
    """Let paths go on silently: costs (P,) become the least over all silent moves."""
    for p in range(a.start.shape[0]):
        if costs[p] < np.inf:
            for i in range(a.silent_start[p], a.silent_start[p + 1]):
                costs[a.silent_to[i]] = min(costs[a.silent_to[i]], costs[p] + a.silent_cost[i])


@exact_kernel
def completions(a: Acceptor, length: int, out: Array) -> None:
    """out[t, p] = the least cost to finish from p with length - t symbols left, over all strings."""
    P = a.start.shape[0]
    for t in range(length, -1, -1):
        for p in range(P - 1, -1, -1):
            best = a.stop[p] if t == length else np.inf
            if t < length:
                for c in range(a.move_start.shape[0]):
                    for i in range(a.move_start[c, p], a.move_start[c, p + 1]):
                        best = min(best, a.move_cost[i] + out[t + 1, a.move_to[i]])
            for i in range(a.silent_start[p], a.silent_start[p + 1]):
                best = min(best, a.silent_cost[i] + out[t, a.silent_to[i]])
            out[t, p] = best


@exact_kernel
def alive_positions(a: Acceptor, length: int, cap: float, completion: Array, alive: Ints, counts: Ints) -> None:
    """alive[t, :counts[t]] = the positions at level t that some string passes on a path of total cost below the cap."""
    P = a.start.shape[0]
    costs, following = a.start.copy(), np.empty(P)
    for t in range(length + 1):
        close(a, costs)
        counts[t] = 0
        for p in range(P):
            if costs[p] + completion[t, p] < cap - UNIT:
                alive[t, counts[t]] = p
                counts[t] += 1
            else:
                costs[p] = np.inf
        following[:] = np.inf
        for p in range(P):
            if costs[p] < np.inf and t < length:
                for c in range(a.move_start.shape[0]):
                    for i in range(a.move_start[c, p], a.move_start[c, p + 1]):
                        following[a.move_to[i]] = min(following[a.move_to[i]], costs[p] + a.move_cost[i])
        costs[:] = following


@exact_kernel
def bounds(a: Acceptor, length: int, alive: Ints, counts: Ints, completion: Array, out: Array) -> None:
    """out[t, j, i] = b(t, q, p) for the alive positions q = alive[t, j] and p = alive[t, i]."""
    P, C = a.start.shape[0], a.move_start.shape[0]
    place, place_next = np.full(P, -1), np.full(P, -1)
    answer = np.empty(P)
    for t in range(length, -1, -1):
        n, following = counts[t], counts[min(t + 1, length)]
        place[:] = -1
        for j in range(n):
            place[alive[t, j]] = j
        if t == length:
            for i in range(n):
                for j in range(n):
                    out[t, j, i] = completion[t, alive[t, j]] - completion[t, alive[t, i]]
        else:
            out[t, :n, :n] = -np.inf
            for c in range(C):
                for k in range(following):  # r = alive[t + 1, k]
                    r = alive[t + 1, k]
                    answered = False
                    for i in range(n):
                        p = alive[t, i]
                        for m in range(a.move_start[c, p], a.move_start[c, p + 1]):
                            if a.move_to[m] != r:
                                continue
                            if not answered:
                                for j in range(n - 1, -1, -1):
                                    q, best = alive[t, j], np.inf
                                    for v in range(a.move_start[c, q], a.move_start[c, q + 1]):
                                        s = place_next[a.move_to[v]]
                                        if s >= 0:
                                            best = min(best, a.move_cost[v] + out[t + 1, s, k])
                                    for v in range(a.silent_start[q], a.silent_start[q + 1]):
                                        s = place[a.silent_to[v]]
                                        if s >= 0:
                                            best = min(best, a.silent_cost[v] + answer[s])
                                    answer[j] = best
                                answered = True
                            for j in range(n):
                                out[t, j, i] = max(out[t, j, i], answer[j] - a.move_cost[m])
            for i in range(n - 1, -1, -1):
                p = alive[t, i]
                for v in range(a.silent_start[p], a.silent_start[p + 1]):
                    s = place[a.silent_to[v]]
                    if s >= 0:
                        for j in range(n):
                            out[t, j, i] = max(out[t, j, i], out[t, j, s] - a.silent_cost[v])
        place_next[:] = place


@exact_kernel
def reduce_state(vector: Array, count: int, bound: Array, limit: Array, drop: Ints) -> float:
    """Drop what is useless from vector (count,), in place, and return the least cost left, inf if nothing is.

    limit[i] is the least cost at which position i is of no use. Of two positions that each make the other useless the
    lower one stays.
    """
    least = np.inf
    for i in range(count):
        if vector[i] >= limit[i] - UNIT:
            vector[i] = np.inf
        least = min(least, vector[i])
    for i in range(count):
        drop[i] = 0
        if vector[i] == np.inf:
            continue
        for j in range(count):
            if j != i and vector[j] < np.inf:
                margin = vector[i] - vector[j] - bound[j, i]
                mutual = vector[j] - vector[i] - bound[i, j] > -UNIT
                if margin > UNIT or (margin > -UNIT and (j < i or not mutual)):
                    drop[i] = 1
                    break
    for i in range(count):
        if drop[i]:
            vector[i] = np.inf
    return least


@exact_kernel
def find_or_add(key: Ints, count: int, keys: Ints, table: Ints, first: int, total: int) -> int:
    """The state of this level (they start at `first`) with this key, or `total`, a new one, entered into the table."""
    code = np.uint64(1469598103934665603)
    for i in range(count):
        code = (code ^ np.uint64(key[i])) * np.uint64(1099511628211)
    size = table.shape[0]
    slot = np.int64((code ^ (code >> np.uint64(29))) & np.uint64(size - 1))
    while table[slot] >= first:
        state, same = table[slot], True
        for i in range(count):
            if keys[state - first, i] != key[i]:
                same = False
                break
        if same:
            return int(state)
        slot = (slot + 1) & (size - 1)
    table[slot] = total
    return total


@exact_kernel
def like_the_last(a: Acceptor, alive: Ints, count: int, out: Ints) -> None:
    """out[c] = 1 where class c moves from every alive position as the last class does: it need not be followed."""
    last = a.move_start.shape[0] - 1
    for c in range(last + 1):
        out[c] = 1 if c != last else 0
        for i in range(count if c != last else 0):
            p = alive[i]
            begin, other = a.move_start[c, p], a.move_start[last, p]
            n = a.move_start[c, p + 1] - begin
            if n != a.move_start[last, p + 1] - other:
                out[c] = 0
                break
            for m in range(n):
                if a.move_to[begin + m] != a.move_to[other + m] or a.move_cost[begin + m] != a.move_cost[other + m]:
                    out[c] = 0
            if out[c] == 0:
                break


@exact_kernel
def determinise(
    a: Acceptor, length: int, cap: float, absolute: bool, max_states: int,
    completion: Array, alive: Ints, counts: Ints, bound: Array,
) -> tuple[Ints, Array, Array, Ints, int]:  # fmt: skip
    """The levelled deterministic machine for strings of one length.

    Returns next (N, C), the place of a state among those of the next level; weight (N, C), the cost moved to that arc;
    final (N,), the loss left at a state of the last level; offsets (length + 2,), where each level's states begin; and
    -1, or, if there came to be more than max_states, the level where that happened. State 0 is the start.
    """
    C, P = a.move_start.shape[0], a.start.shape[0]
    width = 1
    for t in range(length + 1):
        width = max(width, counts[t])
    room, level_room = 64, 64
    next_state, weight = np.zeros((room, C), np.int32), np.zeros((room, C))
    final = np.zeros(room)
    offsets = np.zeros(length + 2, np.int64)
    keys, keys_next = np.empty((level_room, width), np.int64), np.empty((level_room, width), np.int64)
    costs, costs_next = np.empty((level_room, width)), np.empty((level_room, width))
    table = np.full(256, -1)
    place = np.full(P, -1)
    vector, limit, key, drop = np.empty(width), np.empty(width), np.empty(width, np.int64), np.empty(width, np.int64)
    reached, ordinary = np.empty(P), np.empty(C, np.int64)

    # The one state of level 0.
    reached[:] = a.start
    close(a, reached)
    for i in range(counts[0]):
        vector[i] = reached[alive[0, i]]
        limit[i] = cap - completion[0, alive[0, i]]
    base = reduce_state(vector, counts[0], bound[0], limit, drop)
    base = 0.0 if absolute or base == np.inf else base
    for i in range(counts[0]):
        costs[0, i] = vector[i] - base
    total, count = 1, 1
    offsets[1] = 1
    for t in range(length):
        following = counts[t + 1]
        place[:] = -1
        for i in range(following):
            place[alive[t + 1, i]] = i
            limit[i] = cap - completion[t + 1, alive[t + 1, i]]
        like_the_last(a, alive[t], counts[t], ordinary)
        first, found = total, 0
        for s in range(count):
            state = offsets[t] + s
            for i in range(counts[t]):  # what was dropped because it follows silently is there again
                reached[alive[t, i]] = costs[s, i]
            for i in range(counts[t]):
                p = alive[t, i]
                if reached[p] < np.inf:
                    for v in range(a.silent_start[p], a.silent_start[p + 1]):
                        r = a.silent_to[v]
                        reached[r] = min(reached[r], reached[p] + a.silent_cost[v])
                costs[s, i] = reached[p]
            for c in range(C - 1, -1, -1):
                if ordinary[c]:
                    next_state[state, c] = next_state[state, C - 1]
                    weight[state, c] = weight[state, C - 1]
                    continue
                reached[:] = np.inf
                for i in range(counts[t]):
                    if costs[s, i] < np.inf:
                        p = alive[t, i]
                        for m in range(a.move_start[c, p], a.move_start[c, p + 1]):
                            r = a.move_to[m]
                            if place[r] >= 0:
                                reached[r] = min(reached[r], costs[s, i] + a.move_cost[m])
                for i in range(following):
                    p = alive[t + 1, i]
                    if reached[p] < np.inf:
                        for v in range(a.silent_start[p], a.silent_start[p + 1]):
                            r = a.silent_to[v]
                            reached[r] = min(reached[r], reached[p] + a.silent_cost[v])
                    vector[i] = reached[p]
                least = reduce_state(vector, following, bound[t + 1], limit, drop)
                moved = 0.0 if absolute or least == np.inf else least
                if t == 0:
                    moved += base
                for i in range(following):
                    vector[i] -= moved - (base if t == 0 else 0.0)
                    key[i] = np.int64(np.round(vector[i] / UNIT)) if vector[i] < np.inf else np.int64(-(1 << 62))
                if found * 4 > table.shape[0]:
                    table = np.full(4 * table.shape[0], -1)
                    for k in range(found):
                        find_or_add(keys_next[k], following, keys_next, table, first, first + k)
                target = find_or_add(key, following, keys_next, table, first, first + found)
                next_state[state, c] = target - first
                weight[state, c] = moved
                if target == first + found:
                    if found + 1 >= keys_next.shape[0]:
                        keys_next, costs_next = grown_labels(keys_next), grown(costs_next)
                    keys_next[found, :following] = key[:following]
                    costs_next[found, :following] = vector[:following]
                    found += 1
                    total += 1
                    if total > max_states:
                        return next_state[:1], weight[:1], final[:1], offsets, t + 1
                    if total >= next_state.shape[0]:
                        next_state, weight, final = grown_places(next_state), grown(weight), grown_row(final)
        keys, keys_next = keys_next, keys
        costs, costs_next = costs_next, costs
        if keys_next.shape[0] < keys.shape[0]:
            keys_next, costs_next = np.empty(keys.shape, np.int64), np.empty(costs.shape)
        count = found
        offsets[t + 1], offsets[t + 2] = first, total
    for s in range(count):
        best = cap
        for i in range(counts[length]):
            best = min(best, costs[s, i] + completion[length, alive[length, i]])
        final[offsets[length] + s] = best + (base if length == 0 else 0.0)
    return next_state[:total], weight[:total], final[:total], offsets, -1


@exact_kernel
def grown(x: Array) -> Array:
    """Twice the rows."""
    out = np.zeros((2 * x.shape[0], x.shape[1]))
    out[: x.shape[0]] = x
    return out


@exact_kernel
def grown_labels(x: Ints) -> Ints:
    """Twice the rows."""
    out = np.zeros((2 * x.shape[0], x.shape[1]), np.int64)
    out[: x.shape[0]] = x
    return out


@exact_kernel
def grown_places(x: Ints) -> Ints:
    """Twice the rows."""
    out = np.zeros((2 * x.shape[0], x.shape[1]), np.int32)
    out[: x.shape[0]] = x
    return out


@exact_kernel
def grown_row(x: Array) -> Array:
    """Twice the entries."""
    out = np.zeros(2 * x.shape[0])
    out[: x.shape[0]] = x
    return out


@exact_kernel
def compile_tropical(
    a: Acceptor, length: int, cap: float, absolute: bool, max_states: int
) -> tuple[Ints, Array, Array, Ints, int]:
    """All of it: completions, alive positions, bounds, machine. See `determinise` for what comes back."""
    P = a.start.shape[0]
    completion = np.empty((length + 1, P))
    completions(a, length, completion)
    alive, counts = np.empty((length + 1, P), np.int64), np.empty(length + 1, np.int64)
    alive_positions(a, length, cap, completion, alive, counts)
    width = 1
    for t in range(length + 1):
        width = max(width, counts[t])
    bound = np.empty((length + 1, width, width))
    bounds(a, length, alive, counts, completion, bound)
    return determinise(a, length, cap, absolute, max_states, completion, alive, counts, bound)
