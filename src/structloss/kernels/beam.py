"""How much all endings of an output can still add up to: upper bounds for the states that a beam would drop.

level (T, H, K) are a chain's scores, histories as in `levels`; what comes out is in logarithms. The loss to go from
position p of an acceptor is V_p, a minimum over paths.
"""

import numpy as np

from structloss.kernels.compile import exact_helper, exact_kernel
from structloss.kernels.determinise import States
from structloss.kernels.subsumption import Acceptor, silent_stops, worst_completions
from structloss.kernels.types import Array, Ints


@exact_helper
def best_answers(a: Acceptor, worst: Array) -> Acceptor:
    """The acceptor with one move for each class and position: that with the best worst case, worst (P,) afterwards.

    The silent moves before it are part of it. It costs inf where there is none.
    """
    C, P = a.move_start.shape[0], a.start.shape[0]
    begin, to, cost = np.zeros((C, P + 1), np.int64), np.zeros(C * P, np.int64), np.full(C * P, np.inf)
    for c in range(C):
        value, begin[c, P] = np.full(P, np.inf), (c + 1) * P
        for p in range(P - 1, -1, -1):
            own = c * P + p
            begin[c, p] = own
            for i in range(a.move_start[c, p], a.move_start[c, p + 1]):
                if a.move_cost[i] + worst[a.move_to[i]] < value[p]:
                    value[p], cost[own], to[own] = a.move_cost[i] + worst[a.move_to[i]], a.move_cost[i], a.move_to[i]
            for i in range(a.silent_start[p], a.silent_start[p + 1]):
                s, w = a.silent_to[i], a.silent_cost[i]
                if w + value[s] < value[p]:
                    value[p], cost[own], to[own] = w + value[s], w + cost[c * P + s], to[c * P + s]
    return Acceptor(a.start, a.stop, begin, to, cost, np.zeros(P + 1, np.int64), a.silent_to[:0], a.silent_cost[:0])


@exact_kernel
def endings(a: Acceptor, class_of: Ints, level: Array, rows: Ints, scale: float, out: Array) -> None:
    """out[t, h, p] >= log of the sum over endings y of exp(score(y) + scale * V_p(y)).

    For scale at least 0: V_p is at most what one path costs, the one that answers every symbol by the move with the
    best worst case. Below 0: exp(scale * V_p) is the largest over paths, and so at most the sum over all of them.
    """
    (T, H, K), P = level.shape, a.start.shape[0]
    worst, stop = np.empty((T + 1, P)), np.empty(P)
    worst_completions(a, T, worst)
    silent_stops(a, stop)
    for p in range(P if scale < 0 else 0):
        stop[p] = a.stop[p]
    for t in range(T, -1, -1):
        moves = a if scale < 0 else best_answers(a, worst[max(0, T - t - 1)])
        for h in range(rows[t]):
            for p in range(P - 1, -1, -1):
                total = scale * stop[p] if t == T else -np.inf
                for y in range(K if t < T else 0):
                    c = class_of[y]
                    for i in range(moves.move_start[c, p], moves.move_start[c, p + 1]):
                        if level[t, h, y] > -np.inf and moves.move_cost[i] < np.inf:
                            following = out[t + 1, (h * K + y) % H, moves.move_to[i]]
                            added = level[t, h, y] + scale * moves.move_cost[i] + following
                            total = np.logaddexp(total, added)
                        elif level[t, h, y] > -np.inf and scale >= 0:
                            total = np.inf
                for i in range(moves.silent_start[p], moves.silent_start[p + 1]):
                    total = np.logaddexp(total, scale * moves.silent_cost[i] + out[t, h, moves.silent_to[i]])
                out[t, h, p] = total


@exact_kernel
def endings_of_states(s: States, states: Ints, endings: Array, scale: float, out: Array) -> None:
    """out[i, h] from endings (H, P): the least over the entries of a state for scale at least 0, else their sum."""
    for i in range(states.shape[0]):
        first, last = s.begin[states[i]], s.begin[states[i] + 1]
        for h in range(out.shape[1]):
            total = np.inf if scale >= 0 else -np.inf
            for k in range(first, last):
                value = scale * s.cost[k] + endings[h, s.key[2 * k]]
                total = min(total, value) if scale >= 0 else np.logaddexp(total, value)
            out[i, h] = total
