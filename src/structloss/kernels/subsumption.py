"""Which positions of a weighted acceptor are of use, and which are useless beside another: exact subsumption.

An acceptor has positions p, costs to start and to stop at p, for each symbol class moves p -> p' at a cost, and moves
that read nothing (`silent`), which only go to higher positions. The loss of a string is the least cost of its paths.

Let V_p be the cheapest way to finish from p, a function of the symbols that are left. If V_q <= V_p + b for all of
them, then p at cost c_p is useless beside q at cost c_q <= c_p - b: it can never be the minimum. Such a bound
b(t, q, p) comes from a game in which q answers every move of p, by induction from the last level:

    b(t, q, p) = max( over silent moves p -> r of cost w:       b(t, q, r) - w,
                      over classes a and moves p -> r of cost w:  answer(t, a, q, r) - w ),
    answer(t, a, q, r) = min( over moves q -> s on a of cost v:  v + b(t + 1, s, r),
                              over silent moves q -> s of cost v:  v + answer(t, a, s, r) ).

It obeys the triangle inequality, so that all drops can be made at once, ties going to the lower position. Where nobody
says how many symbols are left, the bound must hold for all suffixes:

    b(q, p) = max( stop(q) - stop(p),  over moves and silent moves of p as above, with b for both levels ),

the least solution of which is found by going up from -inf; what does not come to rest has no bound.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_helper, exact_kernel
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


class Limits(NamedTuple):
    """What is known of an acceptor's positions at each of L levels, or at one that stands for strings of any length.

    n is the most positions of use that a level has.
    """

    completion: Array  # (L, P), the least cost to finish; inf where nothing does
    place: Ints  # (L, P), which of the positions of use each one is, -1 where it is of none
    alive: Ints  # (L, n), these positions
    counts: Ints  # (L,), how many they are
    ordinary: Ints  # (L, C), 1 where a class moves from all of them as the last class does: it need not be followed
    bound: Array  # (L, n, n): b(q, p) of the positions of use; inf where nothing is known


@exact_helper
def complete(a: Acceptor, first: int, last: int, after: Array, out: Array) -> bool:
    """Lower out[p] to what it costs to read one symbol, any of the classes from first to last, and then `after`.

    Also to what it costs to move silently and then `out`. Whether anything was lowered.
    """
    _, _, move_start, move_to, move_cost, silent_start, silent_to, silent_cost = a
    changed = False
    for p in range(out.shape[0] - 1, -1, -1):
        best = out[p]
        for c in range(first, last):
            for i in range(move_start[c, p], move_start[c, p + 1]):
                best = min(best, move_cost[i] + after[move_to[i]])
        for i in range(silent_start[p], silent_start[p + 1]):
            best = min(best, silent_cost[i] + out[silent_to[i]])
        changed = changed or best < out[p] - UNIT
        out[p] = best
    return changed


@exact_kernel
def silent_stops(a: Acceptor, out: Array) -> None:
    """out[p] = the least cost to stop without reading."""
    for p in range(out.shape[0]):
        out[p] = a.stop[p]
    complete(a, 0, 0, out, out)


@exact_kernel
def completions(a: Acceptor, out: Array) -> bool:
    """out[p] = the least cost to stop after any string. False if there is none: a loop gains at every turn."""
    silent_stops(a, out)
    rounds, most = 0, len(out)
    while complete(a, 0, a.move_start.shape[0], out, out) and rounds <= most:
        rounds += 1
    return rounds <= most


@exact_helper
def any_symbol(a: Acceptor) -> Acceptor:
    """The acceptor with one class, which moves as the cheapest of all."""
    start, stop, move_start, move_to, move_cost, silent_start, silent_to, silent_cost = a
    C, P = move_start.shape[0], start.shape[0]
    begin, to, cost = np.zeros((1, P + 1), np.int64), np.empty(move_to.shape[0], np.int64), np.empty(move_to.shape[0])
    where, count = np.full(P, -1), 0
    for p in range(P):
        for c in range(C):
            for i in range(move_start[c, p], move_start[c, p + 1]):
                r = move_to[i]
                if where[r] < begin[0, p]:
                    where[r], to[count], cost[count] = count, r, np.inf
                    count += 1
                cost[where[r]] = min(cost[where[r]], move_cost[i])
        begin[0, p + 1] = count
    return Acceptor(start, stop, begin, to, cost, silent_start, silent_to, silent_cost)


@exact_kernel
def positions_of_use(
    a: Acceptor, cap: float, completion: Array, place: Ints, alive: Ints, counts: Ints, ordinary: Ints
) -> None:
    """Fill in the limits of strings of length T: completion, place, alive (T + 1, P), counts, ordinary (T + 1, C).

    Of use is a position that some string passes at level t on a path of total cost below the cap.
    """
    start, _, move_start, move_to, move_cost, silent_start, silent_to, silent_cost = a
    cheapest = any_symbol(a)
    _, _, any_start, any_to, any_cost, _, _, _ = cheapest
    P, C, T = start.shape[0], move_start.shape[0], counts.shape[0] - 1
    silent_stops(a, completion[T])
    for t in range(T - 1, -1, -1):
        completion[t] = np.inf
        complete(cheapest, 0, 1, completion[t + 1], completion[t])
    cost, following = np.empty(P), np.empty(P)
    for p in range(P):
        cost[p] = start[p]
    for t in range(T + 1):
        ordinary[t] = 1
        ordinary[t, C - 1] = 0
        following[:] = np.inf
        for p in range(P):
            if not cost[p] + completion[t, p] < cap - UNIT:
                continue
            alive[t, counts[t]], place[t, p] = p, counts[t]
            counts[t] += 1
            for i in range(silent_start[p], silent_start[p + 1]):
                cost[silent_to[i]] = min(cost[silent_to[i]], cost[p] + silent_cost[i])
            for i in range(any_start[0, p], any_start[0, p + 1]):
                following[any_to[i]] = min(following[any_to[i]], cost[p] + any_cost[i])
            for c in range(C - 1):
                shift, end = move_start[C - 1, p] - move_start[c, p], move_start[c, p + 1]
                if end + shift != move_start[C - 1, p + 1]:
                    ordinary[t, c] = 0
                    continue
                for m in range(move_start[c, p], end):
                    if move_to[m] != move_to[m + shift] or move_cost[m] != move_cost[m + shift]:
                        ordinary[t, c] = 0
        cost, following = following, cost


@exact_helper
def answer_moves(
    a: Acceptor, alive: Ints, count: int, ordinary: Ints, place: Ints, place_after: Ints, after: Array, slack: float,
    given_up: bool, answer: Array, out: Array,
) -> bool:  # fmt: skip
    """Raise out (n, n), the bounds b(q, p) of the positions alive[:count], to what answers every move of p.

    after (n', n'): the bounds of the next level, whose positions stand at place_after. answer (n, n'): room for it.
    Returns whether anything rose by more than `slack`; what still rises when it is `given_up` has no bound.
    """
    _, _, move_start, move_to, move_cost, silent_start, silent_to, silent_cost = a
    rose = False
    for c in range(move_start.shape[0]):
        if ordinary[c]:
            continue
        for j in range(count - 1, -1, -1):
            q = alive[j]
            for k in range(after.shape[0]):
                answer[j, k] = np.inf
            for v in range(move_start[c, q], move_start[c, q + 1]):
                s = place_after[move_to[v]]
                if s >= 0:
                    for k in range(after.shape[0]):
                        answer[j, k] = min(answer[j, k], move_cost[v] + after[s, k])
            for v in range(silent_start[q], silent_start[q + 1]):
                s = place[silent_to[v]]
                if s >= 0:
                    for k in range(after.shape[0]):
                        answer[j, k] = min(answer[j, k], silent_cost[v] + answer[s, k])
        for i in range(count):
            p = alive[i]
            for m in range(move_start[c, p], move_start[c, p + 1]):
                r = place_after[move_to[m]]
                for j in range(count if r >= 0 else 0):
                    value = answer[j, r] - move_cost[m]
                    if value > out[j, i] + slack:
                        out[j, i], rose = np.inf if given_up else value, True
    for i in range(count - 1, -1, -1):
        p = alive[i]
        for v in range(silent_start[p], silent_start[p + 1]):
            s = place[silent_to[v]]
            for j in range(count if s >= 0 else 0):
                value = out[j, s] - silent_cost[v]
                if value > out[j, i] + slack:
                    out[j, i], rose = np.inf if given_up else value, True
    return rose


@exact_kernel
def level_bounds(a: Acceptor, limits: Limits) -> None:
    """Fill in limits.bound[t, j, i] = b(t, q, p) for the positions of use q = alive[t, j] and p = alive[t, i]."""
    completion, place, alive, counts, ordinary, out = limits
    T, answer = counts.shape[0] - 1, np.empty(out.shape[1:])
    for i in range(counts[T]):
        for j in range(counts[T]):
            out[T, j, i] = completion[T, alive[T, j]] - completion[T, alive[T, i]]
    for t in range(T - 1, -1, -1):
        out[t] = -np.inf
        answer_moves(
            a, alive[t], counts[t], ordinary[t], place[t], place[t + 1], out[t + 1], 0.0, False, answer, out[t]
        )


@exact_kernel
def open_bounds(a: Acceptor, stop: Array, alive: Ints, place: Ints, ordinary: Ints, out: Array) -> None:
    """Fill out (n, n) with b(q, p) of the positions alive (n,), +inf where no bound was found."""
    n = alive.shape[0]
    for i in range(n):
        for j in range(n):
            out[j, i] = -np.inf if stop[alive[i]] == np.inf else stop[alive[j]] - stop[alive[i]]
    answer, rounds = np.empty((n, n)), 0
    while answer_moves(a, alive, n, ordinary, place, place, out, UNIT, rounds > 2 * n, answer, out):
        rounds += 1
    if rounds > 2 * n:  # some bounds were given up: close what is left under the triangle inequality again
        for r in range(n):
            for q in range(n):
                for p in range(n):
                    out[q, p] = min(out[q, p], out[q, r] + out[r, p])


@exact_kernel
def worst_completions(a: Acceptor, length: int, out: Array) -> None:
    """out[m, p] = at most so much does it cost to finish from p with m symbols left, whatever they are.

    The game in which an adversary names one symbol after another: an upper bound of the worst string's cost.
    """
    silent_stops(a, out[0])
    answer = np.empty(out.shape[1])
    for m in range(1, length + 1):
        out[m] = -np.inf
        for c in range(a.move_start.shape[0]):
            answer[:] = np.inf
            complete(a, c, c + 1, out[m - 1], answer)
            for p in range(out.shape[1]):
                out[m, p] = max(out[m, p], answer[p])
