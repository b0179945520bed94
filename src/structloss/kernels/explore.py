"""The compiler for strings of any length: states of a deterministic machine, found one arc at a time.

As in `determinise`, a state is the set of positions where a path can be, each with its cost, and what can never be the
minimum is dropped; but as nobody says how many symbols are left, the bound must hold for all suffixes:

    b(q, p) = max( stop(q) - stop(p),  over moves and silent moves of p as in `determinise`, with b for both levels ),

the least solution of which is found by going up from -inf; what does not come to rest has no bound. States live in flat
arrays: the entries of state s, a position and a cost each, are those from entry_start[s] to entry_start[s + 1].
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_kernel
from structloss.kernels.determinise import UNIT, Acceptor, reduce_state
from structloss.kernels.types import Array, Ints


class Limits(NamedTuple):
    """What is known of an acceptor's positions, whatever string is left."""

    stop: Array  # (P,), the least cost to stop here or after silent moves
    completion: Array  # (P,), the least cost to stop after any string
    bound: Array  # (P, P): V_q <= V_p + bound[q, p] for every string; inf where nothing is known


class Store(NamedTuple):
    """The states that are known. Room for N states and E entries."""

    entry_start: Ints  # (N + 1,)
    position: Ints  # (E,)
    cost: Array  # (E,)
    final: Array  # (N,)
    next_state: Ints  # (N, C)
    weight: Array  # (N, C)
    table: Ints  # a power of two, at least 2 * N: a hash table of states, -1 where free


@exact_kernel
def silent_stops(a: Acceptor, out: Array) -> None:
    """out[p] = the least cost to stop without reading."""
    for p in range(a.start.shape[0] - 1, -1, -1):
        out[p] = a.stop[p]
        for i in range(a.silent_start[p], a.silent_start[p + 1]):
            out[p] = min(out[p], a.silent_cost[i] + out[a.silent_to[i]])


@exact_kernel
def open_completions(a: Acceptor, stop: Array, out: Array) -> bool:
    """out[p] = the least cost to stop after any string. False if there is none: a loop gains at every turn."""
    P, C = a.start.shape[0], a.move_start.shape[0]
    out[:] = stop
    for _ in range(P + 1):
        changed = False
        for p in range(P - 1, -1, -1):
            best = out[p]
            for c in range(C):
                for i in range(a.move_start[c, p], a.move_start[c, p + 1]):
                    best = min(best, a.move_cost[i] + out[a.move_to[i]])
            for i in range(a.silent_start[p], a.silent_start[p + 1]):
                best = min(best, a.silent_cost[i] + out[a.silent_to[i]])
            if best < out[p] - UNIT:
                out[p], changed = best, True
        if not changed:
            return True
    return False


@exact_kernel
def open_bounds(a: Acceptor, stop: Array, completion: Array, out: Array) -> None:
    """Fill out (P, P) with b(q, p), +inf where no bound was found."""
    P, C = a.start.shape[0], a.move_start.shape[0]
    for q in range(P):
        for p in range(P):
            if stop[p] == np.inf:
                out[q, p] = -np.inf
            else:
                out[q, p] = stop[q] - stop[p]  # inf where q cannot stop and p can
    answer, reach = np.empty(P), np.empty(P, np.int64)
    rounds = 0
    while True:
        changed = False
        for c in range(C):
            for r in range(P):
                if completion[r] == np.inf:
                    continue
                count = 0
                for p in range(P):
                    for m in range(a.move_start[c, p], a.move_start[c, p + 1]):
                        if a.move_to[m] == r:
                            reach[count] = p
                            count += 1
                            break
                if count == 0:
                    continue
                for q in range(P - 1, -1, -1):
                    best = np.inf
                    for v in range(a.move_start[c, q], a.move_start[c, q + 1]):
                        best = min(best, a.move_cost[v] + out[a.move_to[v], r])
                    for v in range(a.silent_start[q], a.silent_start[q + 1]):
                        best = min(best, a.silent_cost[v] + answer[a.silent_to[v]])
                    answer[q] = best
                for k in range(count):
                    p = reach[k]
                    for m in range(a.move_start[c, p], a.move_start[c, p + 1]):
                        if a.move_to[m] == r:
                            for q in range(P):
                                value = answer[q] - a.move_cost[m]
                                if value > out[q, p] + UNIT:
                                    out[q, p] = value if rounds <= 2 * P else np.inf
                                    changed = True
        for p in range(P - 1, -1, -1):
            for v in range(a.silent_start[p], a.silent_start[p + 1]):
                for q in range(P):
                    value = out[q, a.silent_to[v]] - a.silent_cost[v]
                    if value > out[q, p] + UNIT:
                        out[q, p] = value if rounds <= 2 * P else np.inf
                        changed = True
        rounds += 1
        if not changed:
            break
    if rounds > 2 * P:  # some bounds were given up: close what is left under the triangle inequality again
        for r in range(P):
            for q in range(P):
                for p in range(P):
                    out[q, p] = min(out[q, p], out[q, r] + out[r, p])


@exact_kernel
def limits_of(a: Acceptor) -> tuple[Limits, bool]:
    """What is known of the acceptor's positions; False if some loop gains at every turn."""
    P = a.start.shape[0]
    stop, completion, bound = np.empty(P), np.empty(P), np.full((P, P), np.inf)
    silent_stops(a, stop)
    sound = open_completions(a, stop, completion)
    if sound:
        open_bounds(a, stop, completion, bound)
    return Limits(stop, completion, bound), sound


@exact_kernel
def edit_limits(a: Acceptor, insertion: float, deletion: float) -> Limits:
    """Those of an edit distance whose costs are not negative, in closed form.

    From an earlier position one may delete what lies between; from a later one, insert what the other reads there.
    """
    P = a.start.shape[0]
    stop, completion, bound = np.empty(P), np.empty(P), np.empty((P, P))
    silent_stops(a, stop)
    open_completions(a, stop, completion)
    for q in range(P):
        for p in range(P):
            bound[q, p] = (p - q) * deletion if q < p else (q - p) * insertion
    return Limits(stop, completion, bound)


@exact_kernel
def slot_of(s: Store, place: Ints, cost: Array, count: int) -> int:
    """Where in the table the state with these entries stands, or where it would."""
    code = np.uint64(1469598103934665603)
    for i in range(count):
        code = (code ^ np.uint64(place[i])) * np.uint64(1099511628211)
        code = (code ^ np.uint64(np.int64(np.round(cost[i] / UNIT)))) * np.uint64(1099511628211)
    size = s.table.shape[0]
    slot = np.int64((code ^ (code >> np.uint64(29))) & np.uint64(size - 1))
    while s.table[slot] >= 0:
        state = s.table[slot]
        first = s.entry_start[state]
        if s.entry_start[state + 1] - first == count:
            same = True
            for i in range(count):
                if s.position[first + i] != place[i] or np.round(s.cost[first + i] / UNIT) != np.round(cost[i] / UNIT):
                    same = False
                    break
            if same:
                return int(slot)
        slot = (slot + 1) & (size - 1)
    return int(slot)


@exact_kernel
def settle(
    a: Acceptor, limits: Limits, cap: float, reached: Array, low: int, place: Ints, cost: Array, among: Array,
    limit: Array, drop: Ints,
) -> tuple[int, float]:  # fmt: skip
    """From costs (P,), inf below `low`, to the entries of a state: go on silently, drop what is useless.

    Returns how many entries are left in place and cost, and the least cost. `reached` is inf again.
    """
    P, count = a.start.shape[0], 0
    for p in range(low, P):
        if reached[p] == np.inf:
            continue
        worst = cap - limits.completion[p] if limits.completion[p] < np.inf else -np.inf
        if reached[p] < worst - UNIT:
            for i in range(a.silent_start[p], a.silent_start[p + 1]):
                reached[a.silent_to[i]] = min(reached[a.silent_to[i]], reached[p] + a.silent_cost[i])
            place[count], cost[count], limit[count] = p, reached[p], worst
            count += 1
        reached[p] = np.inf
    bound = among[:count, :count]
    for j in range(count):
        for i in range(count):
            bound[j, i] = limits.bound[place[j], place[i]]
    least = reduce_state(cost, count, bound, limit, drop)
    kept = 0
    for i in range(count):
        if cost[i] < np.inf:
            place[kept], cost[kept] = place[i], cost[i]
            kept += 1
    return kept, least


@exact_kernel
def enter(s: Store, limits: Limits, cap: float, place: Ints, cost: Array, count: int, states: int) -> int:
    """The state with these entries; `states`, a new one, where there is none yet."""
    slot = slot_of(s, place, cost, count)
    if s.table[slot] >= 0:
        return int(s.table[slot])
    first, final = s.entry_start[states], cap
    for i in range(count):
        s.position[first + i], s.cost[first + i] = place[i], cost[i]
        final = min(final, cost[i] + limits.stop[place[i]])
    s.entry_start[states + 1] = first + count
    s.final[states] = final
    s.table[slot] = states
    return states


@exact_kernel
def add_start(a: Acceptor, limits: Limits, cap: float, s: Store) -> None:
    """Enter state 0."""
    P = a.start.shape[0]
    place, cost, limit, drop = np.empty(P, np.int64), np.empty(P), np.empty(P), np.empty(P, np.int64)
    count, _ = settle(a, limits, cap, a.start.copy(), 0, place, cost, np.empty((P, P)), limit, drop)
    s.entry_start[0] = 0
    enter(s, limits, cap, place, cost, count, 0)


@exact_kernel
def rehash(s: Store, states: int) -> None:
    """Enter all states into an empty table."""
    for state in range(states):
        first, last = s.entry_start[state], s.entry_start[state + 1]
        slot = slot_of(s, s.position[first:last], s.cost[first:last], last - first)
        s.table[slot] = state


@exact_kernel
def expand_tropical(
    a: Acceptor, limits: Limits, cap: float, absolute: bool, s: Store, states: int, arc_state: Ints,
    arc_class: Ints, begin: int,
) -> tuple[int, int]:  # fmt: skip
    """Follow the arcs from number `begin` on. Returns how many states there are then, and the first arc not followed.

    That is not the number of arcs when the store has no room left.
    """
    P = a.start.shape[0]
    place, cost, limit, drop = np.empty(P, np.int64), np.empty(P), np.empty(P), np.empty(P, np.int64)
    among, here, reached = np.empty((P, P)), np.full(P, np.inf), np.full(P, np.inf)
    for k in range(begin, arc_state.shape[0]):
        state, c = arc_state[k], arc_class[k]
        if states + 1 >= s.final.shape[0] or s.entry_start[states] + P > s.position.shape[0]:
            return states, k
        low, lowest = P, P
        for i in range(s.entry_start[state], s.entry_start[state + 1]):
            here[s.position[i]] = s.cost[i]
            low = min(low, s.position[i])
        for p in range(low, P):  # what was dropped because it follows silently is there again
            if here[p] == np.inf:
                continue
            if not absolute or here[p] + limits.completion[p] < cap - UNIT:
                for i in range(a.silent_start[p], a.silent_start[p + 1]):
                    here[a.silent_to[i]] = min(here[a.silent_to[i]], here[p] + a.silent_cost[i])
                for m in range(a.move_start[c, p], a.move_start[c, p + 1]):
                    r = a.move_to[m]
                    reached[r] = min(reached[r], here[p] + a.move_cost[m])
                    lowest = min(lowest, r)
            here[p] = np.inf
        count, least = settle(a, limits, cap, reached, lowest, place, cost, among, limit, drop)
        moved = 0.0 if absolute or least == np.inf else least
        for i in range(count):
            cost[i] -= moved
        target = enter(s, limits, cap, place, cost, count, states)
        states = max(states, target + 1)
        s.next_state[state, c], s.weight[state, c] = target, moved
    return states, arc_state.shape[0]


@exact_kernel
def worst_completions(a: Acceptor, length: int, out: Array) -> None:
    """out[m, p] = at most so much does it cost to finish from p with m symbols left, whatever they are.

    The game in which an adversary names one symbol after another: an upper bound of the worst string's cost.
    """
    P, C = a.start.shape[0], a.move_start.shape[0]
    silent_stops(a, out[0])
    answer = np.empty(P)
    for m in range(1, length + 1):
        out[m] = -np.inf
        for c in range(C):
            for p in range(P - 1, -1, -1):
                best = np.inf
                for i in range(a.move_start[c, p], a.move_start[c, p + 1]):
                    best = min(best, a.move_cost[i] + out[m - 1, a.move_to[i]])
                for i in range(a.silent_start[p], a.silent_start[p + 1]):
                    best = min(best, a.silent_cost[i] + answer[a.silent_to[i]])
                answer[p] = best
                out[m, p] = max(out[m, p], best)


@exact_kernel
def least_with(s: Store, states: Ints, value: Array, out: Array) -> None:
    """out[i] = the least cost + value[p] over the entries of states[i]."""
    for i in range(states.shape[0]):
        out[i] = np.inf
        for k in range(s.entry_start[states[i]], s.entry_start[states[i] + 1]):
            out[i] = min(out[i], s.cost[k] + value[s.position[k]])


class Vectors(NamedTuple):
    """The states of a machine that counts: each is a vector, told apart by what can be seen of it."""

    vector: Array  # (N, P)
    seen: Array  # (N, D): vector times the observable directions
    next_state: Ints  # (N, C)
    weight: Array  # (N, C)
    table: Ints  # a power of two, at least 2 * N: a hash table of states, -1 where free


@exact_kernel
def vector_slot(v: Vectors, seen: Array) -> int:
    """Where in the table the state that is seen like this stands, or where it would."""
    largest = 1.0
    for i in range(seen.shape[0]):
        largest = max(largest, abs(seen[i]))
    unit = UNIT * 2.0 ** np.ceil(np.log2(largest))
    code = np.uint64(1469598103934665603)
    for i in range(seen.shape[0]):
        code = (code ^ np.uint64(np.int64(np.round(seen[i] / unit)))) * np.uint64(1099511628211)
    size = v.table.shape[0]
    slot = np.int64((code ^ (code >> np.uint64(29))) & np.uint64(size - 1))
    while v.table[slot] >= 0:
        same = True
        for i in range(seen.shape[0]):
            if np.round(v.seen[v.table[slot], i] / unit) != np.round(seen[i] / unit):
                same = False
                break
        if same:
            return int(slot)
        slot = (slot + 1) & (size - 1)
    return int(slot)


@exact_kernel
def look(vector: Array, directions: Array, out: Array) -> None:
    """out (D,) = vector (P,) times directions (P, D)."""
    out[:] = 0.0
    for p in range(vector.shape[0]):
        if vector[p] != 0.0:
            for i in range(out.shape[0]):
                out[i] += vector[p] * directions[p, i]


@exact_kernel
def rehash_vectors(v: Vectors, states: int) -> None:
    """Enter all states into an empty table."""
    for state in range(states):
        v.table[vector_slot(v, v.seen[state])] = state


@exact_kernel
def expand_rational(
    matrices: Array, directions: Array, normalise: bool, v: Vectors, states: int, arc_state: Ints, arc_class: Ints,
    begin: int,
) -> tuple[int, int]:  # fmt: skip
    """As `expand_tropical`, for vectors that matrices (C, P, P) move.

    With `normalise` a vector is divided by its largest entry, whose -log goes to the arc.
    """
    P, D = directions.shape
    moved, seen = np.empty(P), np.empty(D)
    for k in range(begin, arc_state.shape[0]):
        state, c = arc_state[k], arc_class[k]
        if states + 1 >= v.vector.shape[0]:
            return states, k
        moved[:] = 0.0
        for p in range(P):
            x = v.vector[state, p]
            if x != 0.0:
                for r in range(P):
                    moved[r] += x * matrices[c, p, r]
        weight = 0.0
        if normalise:
            largest = moved.max()
            if largest > 0.0:
                weight = -np.log(largest)
                for p in range(P):
                    moved[p] /= largest
        look(moved, directions, seen)
        slot = vector_slot(v, seen)
        if v.table[slot] < 0:
            v.vector[states], v.seen[states], v.table[slot] = moved, seen, states
            states += 1
        v.next_state[state, c], v.weight[state, c] = v.table[slot], weight
    return states, arc_state.shape[0]
