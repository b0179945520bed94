"""The compiler: a weighted acceptor over the tropical semiring becomes deterministic.

A state of the deterministic machine is the set of positions where a path of the string so far can be, each with its
cost: Det(M) of Cortes 2018. What can never be the minimum is dropped: see `subsumption`.

With a cap, costs stay absolute, and a position whose cost and cheapest completion reach the cap is dropped too; what
is left with no position at all has the cap as its loss. Without one, a state's least cost is moved to the arc that
leads there. With a window, positions that cost so much more than the least one are forgotten; it wants silent moves and
bounds b that are not negative, so that what is dropped is never the least, and answers for nothing that is kept.

The states of strings of one length stand in levels, each with its own limits, and are all found at once; those of
strings of any length are found one arc at a time. Arrays of a NamedTuple are unpacked before a loop: taking one out
counts its references, which costs as much as the loop.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_kernel
from structloss.kernels.subsumption import UNIT, Acceptor, Limits
from structloss.kernels.tables import slot_of
from structloss.kernels.types import Array, Ints


class States(NamedTuple):
    """The states that are known, room for N of them and E entries: those of state s are from begin[s] to begin[s + 1].

    An entry is a position and its cost, by which, in whole units, states are told apart.
    """

    begin: Ints  # (N + 1,)
    key: Ints  # (2 * E,): of each entry the position, and the bits of its cost in units
    cost: Array  # (E,)
    table: Ints  # of states: see `tables.slot_of`


@exact_kernel
def expand(
    a: Acceptor, limits: Limits, cap: float, window: float, absolute: bool, s: States, next_state: Ints, weights: Array,
    offsets: Ints, max_states: int, arc_state: Ints, arc_class: Ints, states: int, arc: int,
) -> tuple[int, int]:  # fmt: skip
    """Follow arcs from number `arc` on. Returns how many states there are then, and the first arc not followed.

    Number -1 stands for the start, which leads to state 0. For strings of any length (offsets is empty) number i is
    the arc of arc_state[i] and arc_class[i]. For strings of length T those of all states are followed, level by level:
    offsets (T + 2,) says where a level's states begin, and next_state is counted from there; a state's arcs go from its
    last class to its first. It stops early when the room does not suffice, or with more than max_states.

    next_state, weights (N, C): where a class leads, and the cost moved there, if costs do not stay `absolute`.
    """
    start, _, move_start, move_to, move_cost, silent_start, silent_to, silent_cost = a
    completion, place, _, _, ordinary, bound = limits
    begin, key, cost, table = s
    P, C, T = start.shape[0], move_start.shape[0], offsets.shape[0] - 2
    here, here_cost, reading = np.empty(P, np.int64), np.empty(P), 0  # the entries of a state, and of which
    at, at_cost, drop = np.empty(P, np.int64), np.empty(P), np.empty(P, np.int64)  # those of the state it leads to
    reached, size = np.full(P, np.inf), 0
    t = -1
    while arc >= 0 and (t < 0 or (T >= 0 and offsets[t + 1] * C <= arc)):
        t += 1
    while t < (T if T >= 0 else 1):
        after, first = (t + 1, offsets[t + 1]) if T >= 0 else (0, 0)
        end = 0 if t < 0 else first * C if T >= 0 else arc_state.shape[0]
        unfolded, most = -1, np.inf
        while arc < end:
            state, c = 0, 0
            if t >= 0:
                state, c = (arc // C, C - 1 - arc % C) if T >= 0 else (arc_state[arc], arc_class[arc])
                if ordinary[t, c]:
                    next_state[state, c] = next_state[state, C - 1]
                    if not absolute:
                        weights[state, c] = weights[state, C - 1]
                    arc += 1
                    continue
            if states + 1 >= begin.shape[0] or begin[states] + P > cost.shape[0]:
                return states, arc
            low, high = P, -1
            if t < 0:
                low, high = 0, P - 1
                for p in range(P):
                    reached[p] = start[p]
            elif state != unfolded:  # what was dropped because it follows silently is there again
                reading, unfolded, most = 0, state, np.inf
                for i in range(begin[state], begin[state + 1]):
                    p = key[2 * i]
                    reached[p], low, high = cost[i], min(low, p), max(high, p)
                    most = min(most, cost[i] + window)
                p = low
                while p <= high:
                    x = reached[p]
                    reached[p] = np.inf
                    if x + completion[t, p] < cap - UNIT and x < most - UNIT:
                        here[reading], here_cost[reading] = p, x
                        reading += 1
                        for i in range(silent_start[p], silent_start[p + 1]):
                            r = silent_to[i]
                            reached[r], high = min(reached[r], x + silent_cost[i]), max(high, r)
                    p += 1
                low, high = P, -1
            for i in range(reading if t >= 0 else 0):
                for m in range(move_start[c, here[i]], move_start[c, here[i] + 1]):
                    r = move_to[m]
                    reached[r] = min(reached[r], here_cost[i] + move_cost[m])
                    low, high = min(low, r), max(high, r)
            size, least, p = 0, np.inf, low
            while p <= high:
                x = reached[p]
                reached[p] = np.inf
                if x + completion[after, p] < cap - UNIT and place[after, p] >= 0:
                    at[size], at_cost[size] = p, x
                    least, size = min(least, float(x)), size + 1
                    for i in range(silent_start[p], silent_start[p + 1]):
                        r = silent_to[i]
                        reached[r], high = min(reached[r], x + silent_cost[i]), max(high, r)
                p += 1
            for i in range(size):  # drop what is useless; of two that each make the other so, the lower one stays
                drop[i], p, j = at_cost[i] >= least + window - UNIT, place[after, at[i]], 0
                while j < size and not drop[i]:
                    q = place[after, at[j]]
                    margin = at_cost[i] - at_cost[j] - bound[after, q, p]
                    if margin > -UNIT and j != i:
                        mutual = at_cost[j] - at_cost[i] - bound[after, p, q] > -UNIT
                        drop[i] = margin > UNIT or j < i or not mutual
                    j += 1
            moved, last = 0.0 if absolute or t < 0 or size == 0 else least, begin[states]
            for i in range(size):
                if not drop[i]:
                    cost[last], key[2 * last] = at_cost[i] - moved, at[i]
                    key[2 * last + 1] = np.float64(np.floor(cost[last] / UNIT + 0.5)).view(np.int64)
                    last += 1
            begin[states + 1] = last
            slot = slot_of(key, begin, 2, states, table, first)
            if table[slot] < first:
                table[slot] = states
                states += 1
            if t >= 0:
                next_state[state, c] = table[slot] - first
                if not absolute:
                    weights[state, c] = moved
            arc += 1
            if states > max_states:
                return states, arc
        t += 1
        if T >= 0:
            offsets[t + 1] = states
    return states, arc


@exact_kernel
def least_with(s: States, states: Ints, value: Array, cap: float, out: Array) -> None:
    """out[i] = the least cost + value[p] over the entries of states[i], at most the cap."""
    begin, key, cost, _ = s
    for i in range(states.shape[0]):
        out[i] = cap
        for k in range(begin[states[i]], begin[states[i] + 1]):
            out[i] = min(out[i], cost[k] + value[key[2 * k]])
