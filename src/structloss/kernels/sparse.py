"""A machine of edit distances beside a sum that goes only where its mass is: steps are made when asked for."""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_helper
from structloss.kernels.determinise import States, expand, least_with
from structloss.kernels.subsumption import Acceptor, Limits
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
