"""The best dependency tree of all: Chu and Liu (1965), Edmonds (1967), by growing paths (Gabow et al. 1986).

Each word takes its best head; where that closes a cycle, the cycle becomes one node, whose arcs are worth what they are
above those that they replace. Cost T**2, and that again for each arc that might make an equal tree smaller.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import exact_helper, exact_kernel
from structloss.kernels.types import Array, Ints

TREE, CYCLE, ROOTS, CROSSING = 0, 1, 2, 3
_NEXT, _ON_PATH, _DONE = 0, 1, 2


class Room(NamedTuple):
    """Nodes 0 to n, and those that cycles become; each is entered by one arc, from h to the word d of it."""

    into: Array  # (2n, n + 1), the best arc from each word (or the root) into each node
    via: Ints  # (2n, n + 1), the word that this arc leads to
    worth: Array  # (2n,), of the arc that enters
    h: Ints  # (2n,)
    parent: Ints  # (2n,), the cycle it is part of, or 0
    state: Ints  # (2n,)
    path: Ints  # (2n,)
    outer: Ints  # (n + 1,), the outermost node that each word is in


@exact_helper
def arborescence(worth: Array, n: int, single_root: bool, room: Room, heads: Ints) -> float:
    """heads[d] of the best tree under worth[d, h], and its score; -inf where there is none.

    With a single root any word is a better head than the root: so the root has as few words as can be.
    """
    into, via, entering, chosen, parent, state, path, outer = room
    for d in range(n + 1):
        outer[d], parent[d], state[d] = d, 0, _NEXT
        for h in range(n + 1):
            into[d, h], via[d, h] = worth[d, h], d
    state[0], count = _DONE, n + 1
    for start in range(1, n + 1):
        c, depth = outer[start], 0
        while state[c] != _DONE:
            best, value = -1, -np.inf
            for h in range(1, n + 1):
                if outer[h] != c and into[c, h] > value:
                    best, value = h, into[c, h]
            if into[c, 0] > value and (best < 0 or not single_root):
                best, value = 0, into[c, 0]
            if best < 0:
                return -np.inf
            chosen[c], entering[c], state[c], path[depth] = best, value, _ON_PATH, c
            depth += 1
            c = outer[best]
            if state[c] == _DONE:  # so does all of the path reach the root
                for i in range(depth):
                    state[path[i]] = _DONE
                c = outer[start]
            elif state[c] == _ON_PATH:  # a cycle becomes node `count`
                for h in range(n + 1):
                    into[count, h] = -np.inf
                parent[count], state[count], m = 0, _NEXT, -1
                while m != c:
                    depth -= 1
                    m = path[depth]
                    parent[m], state[m] = count, _DONE
                    for h in range(n + 1):
                        if into[m, h] - entering[m] > into[count, h]:
                            into[count, h], via[count, h] = into[m, h] - entering[m], via[m, h]
                for d in range(1, n + 1):
                    if parent[outer[d]] == count:
                        outer[d] = count
                c, count = count, count + 1
    for c in range(count - 1, 0, -1):  # whose arc another one replaced is marked as on a path
        if state[c] != _ON_PATH:
            d = via[c, chosen[c]]
            heads[d], m = chosen[c], d
            while m != c:
                state[m], m = _ON_PATH, parent[m]
    total, roots = 0.0, 0
    for d in range(1, n + 1):
        total += worth[d, heads[d]]
        roots += heads[d] == 0
    return -np.inf if single_root and roots > 1 else total


@exact_helper
def is_tight(worth: Array, d: int, h: int, room: Room) -> bool:
    """Whether the arc from h to d may be in a best tree: it is worth the arcs that enter all nodes around d, not h."""
    reduced, m = worth[d, h], d
    if reduced == -np.inf or d == h:
        return False
    size = abs(reduced)
    while m > 0:
        c = h
        while c > 0 and c != m:
            c = room.parent[c]
        if c == m:
            break
        reduced -= room.worth[m]
        size = max(size, abs(room.worth[m]))
        m = room.parent[m]
    return bool(reduced >= -1e-9 * size)


@exact_kernel
def best(worker: int, workers: int, scores: Array, lengths: Ints, single_root: bool, trees: Ints, exists: Ints) -> None:
    """trees (B, T) = the arcs, h * R + r of each word, of the best tree; of several the lexicographically smallest.

    exists (B,): whether there is one. Where an arc to a smaller head may be in a tree that is as good, the best tree
    with it is found, and taken where it is.
    """
    size, labels = scores.shape[2], scores.shape[3]
    arcs, worth, trial = np.zeros((size, size), np.int64), np.empty((size, size)), np.empty((size, size))
    heads, other, tight = np.zeros(size, np.int64), np.zeros(size, np.int64), np.zeros((size, size), np.int64)
    room = Room(
        np.empty((2 * size, size)), np.zeros((2 * size, size), np.int64), np.empty(2 * size),
        np.zeros(2 * size, np.int64), np.zeros(2 * size, np.int64), np.zeros(2 * size, np.int64),
        np.zeros(2 * size, np.int64), np.zeros(size, np.int64),
    )  # fmt: skip
    for b in range(worker, lengths.shape[0], workers):
        n = lengths[b]
        for d in range(1, n + 1):
            for h in range(n + 1):
                worth[d, h], arcs[d, h] = -np.inf, h * labels
                for r in range(labels if h != d else 0):
                    if scores[b, d - 1, h, r] > worth[d, h]:
                        worth[d, h], arcs[d, h] = scores[b, d - 1, h, r], h * labels + r
        total = arborescence(worth, n, single_root, room, heads)
        exists[b] = total > -np.inf
        if not exists[b]:
            continue
        for d in range(1, n + 1):
            for h in range(n + 1):
                trial[d, h], tight[d, h] = worth[d, h], is_tight(worth, d, h, room)
        for d in range(1, n + 1):
            for h in range(n + 1):
                trial[d, h] = -np.inf
            for h in range(heads[d]):
                if tight[d, h]:
                    trial[d, h] = worth[d, h]
                    if arborescence(trial, n, single_root, room, other) >= total:
                        for i in range(1, n + 1):
                            heads[i] = other[i]
                        break
                    trial[d, h] = -np.inf
            trial[d, heads[d]] = worth[d, heads[d]]
        for d in range(n):
            trees[b, d] = arcs[d + 1, heads[d + 1]]


@exact_kernel
def first_fault(heads: Ints, lengths: Ints, single_root: bool, projective: bool) -> tuple[int, int, int]:
    """The example, the word and what is wrong there with heads (N, T), negative where unknown; or TREE."""
    for b in range(heads.shape[0]):
        root = -1
        for d in range(lengths[b]):
            if heads[b, d] == 0 and single_root:
                if root >= 0:
                    return b, d + 1, ROOTS
                root = d
            h, steps = heads[b, d], 0
            while h > 0 and steps <= lengths[b]:
                h, steps = heads[b, h - 1], steps + 1
            if steps > lengths[b]:
                return b, d + 1, CYCLE
        for d in range(lengths[b] if projective else 0):
            for e in range(lengths[b]):
                if heads[b, d] >= 0 and heads[b, e] >= 0:
                    low, high = min(d + 1, heads[b, d]), max(d + 1, heads[b, d])
                    first, last = min(e + 1, heads[b, e]), max(e + 1, heads[b, e])
                    if low < first < high < last:
                        return b, max(d, e) + 1, CROSSING
    return 0, 0, TREE
