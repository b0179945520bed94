"""Machines that compare the chunks of a string with a reference's, position by position."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.automata.automaton import LossAutomaton
from structloss.automata.open import ExplicitAutomaton, Floats, Ints, OpenAutomaton

Bools = NDArray[np.bool_]


class Tracker(NamedTuple):
    """A deterministic machine that counts: of the reference's chunks those that are right, of the string's all.

    Row t is before label t; rows n and n + 1, behind a reference of n labels, lead to row n + 1. The slots of a row say
    what matters of the labels so far: that no chunk is open that matters (0); the type of the one that is open (1, 2,
    ...); and in the last slot, that it is the reference's so far, which began where this one did and has its type.
    """

    class_of: Ints  # (K,)
    there: Bools  # (n + 2, S), which slots there are
    target: Ints  # (n + 2, S, C), the slot of the next row that a class leads to
    right: Ints  # (n + 2, S, C), how many chunks end rightly by that
    made: Bools  # (n + 2, S, C), whether a chunk begins; only where all types are told apart
    ends: Bools  # (n + 2, S), whether a right one ends where the string does
    chunks: int  # of the reference

    def levelled(self, weights: Floats, final: Floats) -> LossAutomaton:
        """For strings as long as the reference, from weights (n + 2, S, C) and final weights (n + 2, S)."""
        there = self.there[:-1]
        place = np.cumsum(there, 1) - 1
        rows = np.arange(1, len(there))[:, None, None]
        next_state = np.zeros((*there.shape, self.target.shape[2]), np.int32)
        next_state[:-1] = place[rows, self.target[:-2]]
        offsets = np.concatenate([[0], np.cumsum(there.sum(1))]).astype(np.int64)
        return LossAutomaton(self.class_of, next_state[there], weights[:-1][there], final[:-1][there], offsets)

    @property
    def flat(self) -> tuple[Ints, Ints, Bools, Bools]:
        """As a machine for strings of any length: next, right and made (N, C), ends (N,), of N = (n + 2) * S states."""
        rows, S, C = self.target.shape
        following = np.minimum(np.arange(1, rows + 1), rows - 1)[:, None, None] * S + self.target
        return following.reshape(-1, C), self.right.reshape(-1, C), self.made.reshape(-1, C), self.ends.reshape(-1)


def track(kind: Ints, begins: Bools, closes: Bools, reference: Ints, num_labels: int, every: bool) -> Tracker:
    """The tracker of one reference. Cost: its length times slots and classes; S = 3, or 2 more than there are types.

    Args:
        kind, begins, closes: of each label, as `losses.schemes.Tags` has them.
        reference: labels (n,); where they are negative, and beyond the end, every label is read as O.
        num_labels: how many of the labels strings are made of.
        every: tell all types apart, so that `made` is right; otherwise only those that begin next in the reference.
    """
    n, types = len(reference), int(kind.max(initial=-1)) + 1
    shown = np.where(reference >= 0, reference, 0)
    own = np.where(reference >= 0, kind[shown], -1)  # the reference's types
    begun, closed = begins[shown], closes[shown]
    open_before = np.concatenate([[-1], np.where(closed, -1, own)[:-1]])[:n]
    starts = (own >= 0) & (begun | (own != open_before))
    goes_on = np.concatenate([(own >= 0) & ~starts, [False]])[1:] if n else np.zeros(0, np.bool_)

    # Of each row: the type that begins there, that of the label before it, and whether that was its chunk's last.
    starting, before = np.full(n + 2, -1), np.full(n + 2, -1)
    last, ended = np.zeros(n + 2, np.bool_), np.zeros(n + 2, np.bool_)
    starting[:n], before[1 : n + 1] = np.where(starts, own, -1), own
    last[:n] = (own >= 0) & ~goes_on
    ended[1:] = last[:-1]
    hidden = np.ones(n + 2, np.bool_)
    hidden[:n] = reference < 0

    # Labels that act alike are one class.
    if not every:
        known = np.zeros(types + 1, np.bool_)
        known[own] = True
        kind = np.where(known[kind], kind, -1)
    codes = np.where(kind < 0, 0, 4 * kind + 2 * begins + closes + 4)[:num_labels]
    used = np.zeros(int(codes.max(initial=0)) + 1, np.bool_)
    used[codes] = True
    codes, class_of = used.nonzero()[0], (np.cumsum(used) - 1)[codes]
    label_kind, label_begins, label_closes = codes // 4 - 1, codes // 2 % 2 == 1, codes % 2 == 1

    # Of each row and slot the type that is open, of each row and class what is read.
    S = types + 2 if every else 3
    tracked = np.broadcast_to(np.arange(types), (n + 2, types)) if every else starting[:, None]
    opened = np.concatenate([np.full((n + 2, 1), -1), tracked, before[:, None]], 1)
    there = np.concatenate([np.ones((n + 2, 1), np.bool_), tracked >= 0, before[:, None] >= 0], 1)
    there[0, 1:] = False
    ours = np.zeros((1, S, 1), np.bool_)
    ours[:, -1] = True
    read = np.where(hidden[:, None], -1, label_kind)[:, None, :]
    goes_on = (read >= 0) & ~label_begins & (read == opened[:, :, None])
    made = (read >= 0) & ~goes_on
    at_end, at_last = ended[:, None, None], last[:, None, None]
    agrees = (made & (read == starting[:, None, None])) | (ours & ~at_end & goes_on)
    right = (ours & at_end & ~goes_on).astype(np.int64) + (agrees & at_last & label_closes)
    left_open = np.where(label_closes, -1, read)
    if every:
        slot = left_open + 1
    else:
        slot = ((left_open >= 0) & (left_open == np.append(starting[1:], -1)[:, None, None])).astype(np.int64)
    target = np.where(agrees & ~label_closes, S - 1, slot)
    ends = ours[:, :, 0] & ended[:, None]
    return Tracker(class_of.astype(np.int64), there, target, right, made, ends, int(starts.sum()))


class CountingAutomaton(OpenAutomaton):
    """A tracker with its counts: a state is one of its own, and how many chunks are right and made so far.

    Args:
        tracker: what is counted.
        value: the loss, of right, made and the reference's number of chunks, which stands in final weights alone.
        max_states: raise `TooManyStatesError` rather than have more.
    """

    def __init__(self, tracker: Tracker, value: Callable[[Ints, Ints, int], Floats], max_states: int) -> None:
        super().__init__(tracker.class_of, tracker.target.shape[2], max_states)
        self._next, self._right, self._made, self._ends = tracker.flat
        self._chunks, self._value = tracker.chunks, value
        self._counts = np.zeros((3, 0), np.int64)  # of each state the tracker's, right and made
        self._keys, self._order = np.zeros(0, np.int64), np.zeros(0, np.int64)  # sorted, and whose they are
        self._enter(np.zeros((3, 1), np.int64))

    @property
    def num_bytes(self) -> int:
        return super().num_bytes + self._counts.nbytes + self._keys.nbytes + self._order.nbytes

    def _enter(self, counts: Ints) -> Ints:
        """The states of these counts (3, m), new ones among them."""
        node, right, made = counts
        keys = (node * (self._chunks + 1) + right << 32) + made
        found, first, which = np.unique(keys, return_index=True, return_inverse=True)
        place = np.searchsorted(self._keys, found)
        known = place < len(self._keys)
        known[known] = self._keys[place[known]] == found[known]
        states = np.empty(len(found), np.int64)
        states[known] = self._order[place[known]]
        new = counts[:, first[~known]]
        total = self.num_states + new.shape[1]
        if new.shape[1]:
            self._check_size(total)
            self._grow(total)
            states[~known] = np.arange(self.num_states, total)
            ended = new[1] + self._ends[new[0]]
            self.final[self.num_states : total] = self._value(ended, new[2], self._chunks)
            self._counts = np.concatenate([self._counts, new], 1)
            self._keys = np.concatenate([self._keys, found[~known]])
            self._order = np.concatenate([self._order, states[~known]])
            ranks = np.argsort(self._keys)
            self._keys, self._order = self._keys[ranks], self._order[ranks]
            self.num_states = total
        return states[which.reshape(-1)]

    def _expand(self, states: Ints, classes: Ints) -> None:
        node, right, made = self._counts[:, states]
        self.next_state[states, classes] = self._enter(
            np.stack([self._next[node, classes], right + self._right[node, classes], made + self._made[node, classes]])
        )


def weighed(tracker: Tracker, weights: Floats, final: Floats) -> ExplicitAutomaton:
    """The machine for strings of any length, from weights (n + 2, S, C) and final weights (n + 2, S)."""
    next_state = tracker.flat[0]
    return ExplicitAutomaton(tracker.class_of, next_state, weights.reshape(next_state.shape), final.reshape(-1))
