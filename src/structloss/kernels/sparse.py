"""A machine of edit distances beside a sum that goes only where its mass is: steps made when asked for, and prices.

V_s is the loss to go from state s, a function of the string that is left: the least a + V_p over the entries (p, a) of
s, at most the cap. For positions of an edit distance V_q <= V_p + between(q, p), the deletions or insertions that lead
from one to the other. Hence V_x <= V_y + max over entries (p, b) of y of (row_x(p) - b), where row_x(p) is the least
a + between(q, p) over the entries (q, a) of x, at most the cap: rows are told apart by their sup norm.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_helper
from structloss.kernels.determinise import States, expand, least_with
from structloss.kernels.subsumption import UNIT, Acceptor, Limits
from structloss.kernels.types import Array, Ints

NO_ROOM, FULL = -1, -2  # instead of a state


class EditMachine(NamedTuple):
    """The machine of an edit distance against one reference, as far as it is known, with room for more."""

    acceptor: Acceptor
    limits: Limits
    cap: float
    window: float
    absolute: bool
    states: States
    next_state: Ints  # (N, C), -1 where nobody has asked yet
    weights: Array  # (N, C)
    final: Array  # (N,)
    stop: Array  # (P,), of positions
    max_states: int  # no more are made
    number: Ints  # (1,), how many states are known


class EditCosts(NamedTuple):
    """What re-routing is paid by."""

    insertion: float
    deletion: float
    common: int  # the class of most labels
    wrong: Array  # (C,), at most so much does the loss change when a label of the class is taken for a common one
    differs: Ints  # (C, P), at how many of the first p positions the class costs something else than the common one
    class_of: Ints  # (K,)


@exact_helper
def step(m: EditMachine, state: int, c: int) -> int:
    """The state that class c leads to, found now if need be; NO_ROOM, or FULL where no more are made."""
    if m.next_state[state, c] < 0:
        if m.number[0] >= m.max_states:
            return FULL
        arc_state, arc_class, none = np.full(1, state), np.full(1, c), np.empty(0, np.int64)
        before = m.number[0]
        first = before * 0
        states, arc = expand(
            m.acceptor, m.limits, m.cap, m.window, m.absolute, m.states, m.next_state, m.weights, none, m.max_states,
            arc_state, arc_class, before, first,
        )  # fmt: skip
        m.number[0] = states
        least_with(m.states, np.arange(before, states), m.stop, m.cap, m.final[before:states])
        if arc == 0:
            return NO_ROOM
    return int(m.next_state[state, c])


@exact_helper
def reach(m: EditMachine, deletion: float, state: int) -> tuple[int, int]:
    """The first position of a state, and the last that deletions lead to before the cap or the window's end."""
    begin, key, cost, _ = m.states
    first, last, least = begin[state], begin[state + 1], np.inf
    for i in range(first, last):
        least = min(least, cost[i])
    limit, high, end = min(m.cap, least + m.window), -1, m.stop.shape[0] - 1
    for i in range(first, last):
        far = (limit - cost[i]) / deletion if deletion > 0.0 else np.inf
        high = max(high, end if far >= end else min(end, key[2 * i] + int(far)))
    return (int(key[2 * first]) if last > first else 0), int(high)


@exact_helper
def above(m: EditMachine, costs: EditCosts, x: int, y: int) -> float:
    """V_x is at most V_y plus this."""
    begin, key, cost, _ = m.states
    capped = m.cap < np.inf
    most = 0.0 if capped else -np.inf
    for i in range(begin[y], begin[y + 1]):
        row = m.cap
        for k in range(begin[x], begin[x + 1]):
            ahead = key[2 * i] - key[2 * k]
            row = min(row, cost[k] + (ahead * costs.deletion if ahead > 0 else -ahead * costs.insertion))
        most = max(most, row - cost[i])
    return most + UNIT  # by which costs that are taken for equal may differ
