"""Machines that compare the chunks of a string with a reference's, position by position."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.automata.automaton import LossAutomaton
from structloss.automata.open import ExplicitAutomaton, Floats, Ints, OpenAutomaton
from structloss.kernels import chunks as kernels

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
    return Tracker(*kernels.track(kind, begins, closes, reference, num_labels, every))


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
