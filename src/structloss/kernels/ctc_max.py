r"""CTC: the best path to one string, and the best path by its score and scale times what a loss machine says of it.

The second is a search over product states, a state of the machine and the last frame's label, frame by frame. Scores
are relative to each frame's best, so that the rest of a path adds at most 0, and the machine at most gain[s]. Kept is
what may still come to the `bar`:

    score so far + gain[s] >= bar.

If the best path among what is kept comes to the bar, it is the best of all, however the bar was guessed. The label
before is left out of the arcs, as in sums: of the product states with one machine state, an arc that writes c begins at
the best or, where that has the last label c itself, the second best.

Then `best_path` fills in, from the last frame to the first, the best way to finish from each product state that was
kept, and reads the path off from the front, the smallest label first: of several best paths the lexicographically
smallest, as all of them were kept.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_helper, exact_kernel
from structloss.kernels.ctc import positions
from structloss.kernels.levels import status_of
from structloss.kernels.types import OK, Array, Ints

DONE, MISSING, NO_ROOM = 0, 1, 2  # what the search ends with
FRAME, ENTRIES, ARCS, GROUPS, STAMP, ASKED, EVER = range(7)  # where it is: places of `at`


class Trellis(NamedTuple):
    """What is kept: E product states, `entries`, and A arcs. Entries with one machine state at a frame are a group."""

    begin: Ints  # (T + 2,), the first entry of each frame
    state: Ints  # (E,)
    last: Ints  # (E,)
    score: Array  # (E,), of the best beginning; then of the best ending
    repeat: Ints  # (E,), the entry that the last label leads to once more, or -1
    group: Ints  # (E,), or -1 where nothing goes on
    arc_begin: Ints  # (E + 1,), the first arc of each group
    label: Ints  # (A,)
    to: Ints  # (A,), the entry of the next frame
    weight: Array  # (A,), scale times that of the machine


class Lookup(NamedTuple):
    """Room for finding the entries and the groups of a frame; what bears an older stamp is not there."""

    key: Ints  # (2**n,)
    entry: Ints  # (2**n,)
    stamp: Ints  # (2**n,)
    group: Ints  # (S,), of each machine state
    group_stamp: Ints  # (S,)
    state: Ints  # (E,), of each group of this frame
    best: Array  # (E,), its best score
    of_best: Ints  # (E,), the last label of that
    second: Array  # (E,)


class Open(NamedTuple):
    """What is known of a loss machine: arcs that nobody asked for lead to -1."""

    class_of: Ints  # (C,)
    next_state: Ints  # (S, classes)
    weights: Array  # (S, classes)
    final: Array  # (S,), inf is outside


@exact_kernel
def tops(scores: Array, lengths: Ints, top: Array, labels: Ints, status: Ints) -> None:
    """top (B, T) = the best score of each frame, labels (B, T) the first label that has it."""
    for b in range(lengths.shape[0]):
        for t in range(lengths[b]):
            for c in range(scores.shape[2]):
                status[b] = max(status[b], status_of(scores[b, t, c]))
                if c == 0 or scores[b, t, c] > top[b, t]:
                    top[b, t], labels[b, t] = scores[b, t, c], c


@exact_kernel
def loss_of(path: Ints, length: int, blank: int, machine: Open) -> tuple[float, bool]:
    """The loss of what a path writes, and whether all of the machine that this takes is known."""
    class_of, next_state, weights, final = machine
    s, last, total = 0, blank, 0.0
    for t in range(length):
        c = path[t]
        if c not in (blank, last):
            total += weights[s, class_of[c]]
            s = next_state[s, class_of[c]]
            if s < 0:
                return 0.0, False
        last = c
    return total + final[s], True


@exact_kernel
def aligned(
    worker: int, workers: int, scores: Array, lengths: Ints, references: Ints, begin: Ints, blank: int,
    labels: Ints, exists: Ints, status: Ints,
) -> None:  # fmt: skip
    """labels (B, T) = the best path that writes references[begin[b] : begin[b + 1]], and whether there is any (B,).

    best(t, j), the best way to finish from position j of the string with blanks, from the last frame to the first.
    Time and memory T * (2n + 1) an example.
    """
    C = scores.shape[2]
    for b in range(worker, lengths.shape[0], workers):
        length = lengths[b]
        for t in range(length):
            for c in range(C):
                status[b] = max(status[b], status_of(scores[b, t, c]))
        label, skip = positions(references[begin[b] : begin[b + 1]], blank, C)
        J = label.shape[0]
        if status[b] != OK or J == 0:
            continue
        best = np.full((length + 1, J + 2), -np.inf)  # two more, to which nothing leads
        best[length, J - 1] = 0.0
        if J > 1:
            best[length, J - 2] = 0.0
        for t in range(length - 1, -1, -1):
            after = best[t + 1]
            for j in range(max(0, J - 2 * (length - t) - 2), min(J, 2 * t + 1)):
                stay = scores[b, t, label[j]] + after[j]
                step = scores[b, t, label[j + 1]] + after[j + 1] if j + 1 < J else -np.inf
                leap = scores[b, t, label[j + 2]] + after[j + 2] if j + 2 < J and skip[j + 2] else -np.inf
                best[t, j] = max(stay, step, leap)
        if best[0, 0] == -np.inf:
            continue
        exists[b], j = 1, 0
        for t in range(length):
            top, chosen = -np.inf, j
            for i in range(j, min(J, j + 3)):
                if i == j + 2 and not skip[i]:
                    continue
                value = scores[b, t, label[i]] + best[t + 1, i]
                if value > top or (value == top and label[i] < label[chosen]):
                    top, chosen = value, i
            j = chosen
            labels[b, t] = label[j]


@exact_helper
def find(
    s: int, c: int, x: float, C: int, stamp: int, E: int, key: Ints, entry: Ints, stamps: Ints, state: Ints, last: Ints,
    score: Array,
) -> int:  # fmt: skip
    """The entry (s, c) of the next frame, whose score is at least x from now on; E, and a new one, if there is none."""
    wanted, mask = s * C + c, key.shape[0] - 1
    hashed = np.uint64(wanted) * np.uint64(0x9E3779B97F4A7C15)
    slot = np.int64(hashed >> np.uint64(20)) & mask
    while stamps[slot] == stamp and key[slot] != wanted:
        slot = (slot + 1) & mask
    if stamps[slot] != stamp:
        stamps[slot], key[slot], entry[slot] = stamp, wanted, E
        state[E], last[E], score[E] = s, c, x
        return E
    e = int(entry[slot])
    score[e] = max(score[e], x)
    return e


@exact_kernel
def search(
    scores: Array, top: Array, length: int, blank: int, machine: Open, scale: float, gain: Array, low: Array,
    slack: float, trellis: Trellis, lookup: Lookup, candidates: Ints, at: Ints, bar: Array, asked: Ints,
) -> int:  # fmt: skip
    """Go on from frame at[FRAME] to the last one, or to where arcs of the machine are missing, or room.

    gain and low (S,): at most, and about at least, what scale * loss still adds from each state on. bar (1,) rises to
    what a path is likely to have. asked (N, 2): the states and classes of the missing arcs. After both another call
    goes on at the same frame. Cost: groups and labels that may matter, frame by frame, and T * C.
    """
    class_of, next_state, weights, _ = machine
    begin, state, last, score, repeat, group, arc_begin, label, to, weight = trellis
    key, entry, stamps, group_of, group_stamp, group_state, best, of_best, second = lookup
    C, room, arc_room, half = scores.shape[1], state.shape[0], label.shape[0], key.shape[0] // 2
    while at[FRAME] < length:
        t, E, A, first_group = at[FRAME], at[ENTRIES], at[ARCS], at[GROUPS]
        for e in range(begin[t], begin[t + 1]):
            bar[0] = max(bar[0], score[e] + low[state[e]])
        need, groups, reach = bar[0] - slack, 0, -np.inf
        at[STAMP] += 1
        stamp = at[STAMP]
        for e in range(begin[t], begin[t + 1]):
            s, x = state[e], score[e]
            group[e], repeat[e] = -1, -1
            if x + gain[s] < need or x + gain[s] == -np.inf:
                continue
            reach = max(reach, x + gain[s])
            if group_stamp[s] != stamp:
                group_stamp[s], group_of[s], group_state[groups] = stamp, groups, s
                best[groups], of_best[groups], second[groups] = -np.inf, -1, -np.inf
                groups += 1
            g = group_of[s]
            group[e] = first_group + g
            if x > best[g]:
                second[g] = best[g]
                best[g], of_best[g] = x, last[e]
            elif x > second[g]:
                second[g] = x
        n, asking = 0, 0
        for c in range(C):
            x = scores[t, c] - top[t]
            if c != blank and x > -np.inf and reach + x >= need:
                candidates[n] = c
                n += 1
        from_blank = scores[t, blank] - top[t]
        for g in range(groups):
            s = group_state[g]
            if E + n + 1 > room or A + n + 1 > arc_room or E - begin[t + 1] + n + 1 > half:
                return NO_ROOM
            arc_begin[first_group + g] = A
            x = best[g] + from_blank
            if x + gain[s] >= need and x > -np.inf:
                label[A], weight[A] = blank, 0.0
                to[A] = find(s, blank, x, C, stamp, E, key, entry, stamps, state, last, score)
                E, A = max(E, to[A] + 1), A + 1
            for i in range(n):
                c = candidates[i]
                x = (second[g] if of_best[g] == c else best[g]) + (scores[t, c] - top[t])
                if x + gain[s] < need or x == -np.inf:
                    continue
                r, added = next_state[s, class_of[c]], scale * weights[s, class_of[c]]
                if r < 0:
                    if asking < asked.shape[0]:
                        asked[asking, 0], asked[asking, 1] = s, class_of[c]
                        asking += 1
                    continue
                if x + added + gain[r] < need or gain[r] == -np.inf:
                    continue
                label[A], weight[A] = c, added
                to[A] = find(r, c, x + added, C, stamp, E, key, entry, stamps, state, last, score)
                E, A = max(E, to[A] + 1), A + 1
        if asking:
            at[ASKED] = asking
            return MISSING
        for e in range(begin[t], begin[t + 1]):
            s, c = state[e], last[e]
            if group[e] < 0 or c == blank:
                continue
            x = score[e] + (scores[t, c] - top[t])
            if x + gain[s] < need or x == -np.inf:
                continue
            if room < E + 1 or E - begin[t + 1] + 1 > half:
                return NO_ROOM
            repeat[e] = find(s, c, x, C, stamp, E, key, entry, stamps, state, last, score)
            E = max(E, repeat[e] + 1)
        arc_begin[first_group + groups] = A
        begin[t + 2] = E
        at[FRAME], at[ENTRIES], at[ARCS], at[GROUPS] = t + 1, E, A, first_group + groups
    return DONE


@exact_kernel
def best_path(
    scores: Array, length: int, blank: int, final: Array, scale: float, trellis: Trellis, lookup: Lookup, path: Ints
) -> float:
    """path (T,) = the best one that was kept. Returns its score relative to the frames' best, -inf if there is none."""
    begin, state, last, score, repeat, group, arc_begin, label, to, weight = trellis
    _, _, _, _, _, _, best, of_best, second = lookup
    found = -np.inf
    for e in range(begin[length], begin[length + 1]):
        end = -np.inf if final[state[e]] == np.inf else scale * final[state[e]]
        found, score[e] = max(found, score[e] + end), end
    if found == -np.inf:
        return found
    for t in range(length - 1, -1, -1):
        first_group = np.int64(-1)  # of the frame
        done = np.int64(-1)
        for e in range(begin[t], begin[t + 1]):
            g = group[e]
            if g < 0:
                score[e] = -np.inf
                continue
            if first_group < 0:
                first_group = g
            i = g - first_group
            if i > done:
                done = i
                best[i], of_best[i], second[i] = -np.inf, -1, -np.inf
                for a in range(arc_begin[g], arc_begin[g + 1]):
                    x = scores[t, label[a]] + (weight[a] + score[to[a]])
                    if x > best[i]:
                        second[i] = best[i]
                        best[i], of_best[i] = x, label[a]
                    elif x > second[i]:
                        second[i] = x
            c = last[e]
            x = second[i] if c != blank and of_best[i] == c else best[i]
            if repeat[e] >= 0:
                x = max(x, scores[t, c] + score[repeat[e]])
            score[e] = x
    e = 0
    for t in range(length):
        g, highest, chosen, following = group[e], -np.inf, scores.shape[1], e
        if repeat[e] >= 0:
            highest, chosen, following = scores[t, last[e]] + score[repeat[e]], last[e], repeat[e]
        for a in range(arc_begin[g], arc_begin[g + 1]):
            c = label[a]
            x = scores[t, c] + (weight[a] + score[to[a]])
            if (x > highest or (x == highest and c < chosen)) and (c == blank or c != last[e]):
                highest, chosen, following = x, c, to[a]
        path[t], e = chosen, following
    return found
