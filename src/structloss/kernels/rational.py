"""The compiler for the probability semiring: states are vectors, found one arc at a time."""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_helper, exact_kernel
from structloss.kernels.tables import slot_of
from structloss.kernels.types import Array, Ints

UNIT = 1e-9  # of a vector's largest entry: what differs by less is equal


class Vectors(NamedTuple):
    """The states that are known, room for N of them: each is a vector, told apart by what can be seen of it."""

    vector: Array  # (N, P)
    begin: Ints  # (N + 1,): 0, 1, 2, ...
    key: Ints  # (N * (D + 1),): a unit, and the bits of the vector times the observable directions, counted in it
    table: Ints  # of states: see `tables.slot_of`


@exact_helper
def enter(v: Vectors, directions: Array, states: int) -> int:
    """The state that is seen like vector number `states`, the last: that one if there is no other."""
    P, D = directions.shape
    seen, largest = np.zeros(D), 1.0
    for p in range(P):
        x = v.vector[states, p]
        for i in range(D if x != 0.0 else 0):
            seen[i] += x * directions[p, i]
    for i in range(D):
        largest = max(largest, abs(seen[i]))
    power = np.ceil(np.log2(largest))
    unit, first = UNIT * 2.0**power, states * (D + 1)
    v.key[first] = np.int64(power)
    for i in range(D):
        v.key[first + 1 + i] = np.float64(np.floor(seen[i] / unit + 0.5)).view(np.int64)
    slot = slot_of(v.key, v.begin, D + 1, states, v.table, 0)
    if v.table[slot] < 0:
        v.table[slot] = states
    return int(v.table[slot])


@exact_kernel
def expand(
    matrices: Array, directions: Array, normalise: bool, v: Vectors, next_state: Ints, weights: Array, states: int,
    arc_state: Ints, arc_class: Ints, begin: int,
) -> tuple[int, int]:  # fmt: skip
    """Follow arcs from number `begin` on: matrices (C, P, P) move the vectors. Fills next_state and weights (N, C).

    With `normalise` a vector is divided by its largest entry, whose -log goes to the arc. Returns how many states there
    are then, and the first arc not followed. That is not the number of arcs when there is no room left.
    """
    P = directions.shape[0]
    if states == 0:  # the start is there, but not in the table
        enter(v, directions, 0)
        states = 1
    for k in range(begin, arc_state.shape[0]):
        state, c = arc_state[k], arc_class[k]
        if states + 1 >= v.begin.shape[0]:
            return states, k
        moved, largest = v.vector[states], 0.0
        moved[:] = 0.0
        for p in range(P):
            x = v.vector[state, p]
            for r in range(P if x != 0.0 else 0):
                moved[r] += x * matrices[c, p, r]
        for p in range(P):
            largest = max(largest, moved[p])
        weights[state, c] = 0.0
        if normalise and largest > 0.0:
            weights[state, c] = -np.log(largest)
            for p in range(P):
                moved[p] /= largest
        next_state[state, c] = enter(v, directions, states)
        states = max(states, next_state[state, c] + 1)
    return states, arc_state.shape[0]
