"""How much all endings of an output can still add up to: upper bounds for the states that a beam would drop.

level (T, H, K) are a chain's scores, histories as in `levels`; what comes out is in logarithms. The loss to go from
position p of an acceptor is V_p, a minimum over paths.
"""

import numpy as np

from structloss.kernels.compile import exact_kernel
from structloss.kernels.determinise import States
from structloss.kernels.subsumption import Acceptor, silent_stops, worst_completions
from structloss.kernels.types import Array, Ints


@exact_kernel
def endings_along_a_strategy(a: Acceptor, class_of: Ints, level: Array, rows: Ints, scale: float, out: Array) -> None:
    """out[t, h, p] >= log of the sum over endings y of exp(score(y) + scale * V_p(y)), scale at least 0.

    V_p is at most what one path costs: the one that answers every symbol by the move with the best worst case.
    """
    (T, H, K), P, C = level.shape, a.start.shape[0], a.move_start.shape[0]
    worst = np.empty((T + 1, P))
    worst_completions(a, T, worst)
    stop, cost, to = np.empty(P), np.empty((C, P)), np.empty((C, P), np.int64)
    silent_stops(a, stop)
    value = np.empty((C, P))
    for h in range(rows[T]):
        for p in range(P):
            out[T, h, p] = scale * stop[p]
    for t in range(T - 1, -1, -1):
        for c in range(C):
            for p in range(P - 1, -1, -1):
                value[c, p], cost[c, p], to[c, p] = np.inf, np.inf, 0
                for i in range(a.move_start[c, p], a.move_start[c, p + 1]):
                    if a.move_cost[i] + worst[T - t - 1, a.move_to[i]] < value[c, p]:
                        value[c, p] = a.move_cost[i] + worst[T - t - 1, a.move_to[i]]
                        cost[c, p], to[c, p] = a.move_cost[i], a.move_to[i]
                for i in range(a.silent_start[p], a.silent_start[p + 1]):
                    s = a.silent_to[i]
                    if a.silent_cost[i] + value[c, s] < value[c, p]:
                        value[c, p] = a.silent_cost[i] + value[c, s]
                        cost[c, p], to[c, p] = a.silent_cost[i] + cost[c, s], to[c, s]
        for h in range(rows[t]):
            for p in range(P):
                total = -np.inf
                for y in range(K):
                    c = class_of[y]
                    if level[t, h, y] > -np.inf:
                        if cost[c, p] == np.inf:
                            total = np.inf
                        else:
                            following = out[t + 1, (h * K + y) % H, to[c, p]]
                            total = np.logaddexp(total, level[t, h, y] + scale * cost[c, p] + following)
                out[t, h, p] = total


@exact_kernel
def endings_along_all_paths(a: Acceptor, class_of: Ints, level: Array, rows: Ints, scale: float, out: Array) -> None:
    """The same, scale below 0: exp(scale * V_p) is the largest over paths, and so at most their sum."""
    (T, H, K), P = level.shape, a.start.shape[0]
    for t in range(T, -1, -1):
        for h in range(rows[t]):
            for p in range(P - 1, -1, -1):
                total = -np.inf
                if t == T:
                    total = scale * a.stop[p]
                for y in range(K if t < T else 0):
                    c = class_of[y]
                    if level[t, h, y] > -np.inf:
                        for i in range(a.move_start[c, p], a.move_start[c, p + 1]):
                            following = out[t + 1, (h * K + y) % H, a.move_to[i]]
                            total = np.logaddexp(total, level[t, h, y] + scale * a.move_cost[i] + following)
                for i in range(a.silent_start[p], a.silent_start[p + 1]):
                    total = np.logaddexp(total, scale * a.silent_cost[i] + out[t, h, a.silent_to[i]])
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
