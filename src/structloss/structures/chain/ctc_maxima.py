"""The best path of CTC with a loss: a search that leaves out what is proved not to be the best (`kernels.ctc_max`)."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from structloss.automata import OpenAutomaton
from structloss.automata.automaton import SMALLER, TooManyStatesError
from structloss.automata.open import Floats, Ints
from structloss.kernels import ctc_max
from structloss.kernels.ctc_max import Lookup, Open, Trellis
from structloss.kernels.types import Array
from structloss.kernels.workers import map_in_threads, run
from structloss.losses.references import String
from structloss.structures.base import Found
from structloss.structures.chain.native_engine import raise_for


def best_aligned(scores: Array, lengths: Ints, references: Sequence[String], blank: int) -> Found:
    """The best path (1, B, T) that writes each reference, whose labels are all known."""
    batch, frames, _ = scores.shape
    begin = np.cumsum([0, *map(len, references)]).astype(np.int64)
    labels, exists, status = np.zeros((batch, frames), np.int64), np.zeros(batch, np.int64), np.zeros(batch, np.int64)
    joined = np.concatenate([*references, np.zeros(0, np.int64)])
    steps = batch * frames * (6 + 6 * max(map(len, references), default=0))
    threads = torch.get_num_threads()
    run(ctc_max.aligned, threads, batch, steps, scores, lengths, joined, begin, blank, labels, exists, status)
    raise_for(status)
    return Found(torch.from_numpy(labels)[None], torch.from_numpy(exists > 0)[None])


def best_labels(scores: Array, lengths: Ints) -> Found:
    """The best path (1, B, T) without a loss: the first best label of each frame."""
    top, labels, status = np.zeros(scores.shape[:2]), np.zeros(scores.shape[:2], np.int64), np.zeros(len(lengths), int)
    ctc_max.tops(scores, lengths, top, labels, status)
    raise_for(status)
    return Found(torch.from_numpy(labels)[None], torch.from_numpy((top > -np.inf).all(1))[None])


def best(scores: Array, lengths: Ints, machines: Sequence[OpenAutomaton], scale: float, blank: int) -> Found:
    """The best path (1, B, T) by score + scale * loss, the lexicographically smallest of several."""
    batch, frames, C = scores.shape
    top, labels, status = np.zeros((batch, frames)), np.zeros((batch, frames), np.int64), np.zeros(batch, np.int64)
    ctc_max.tops(scores, lengths, top, labels, status)
    raise_for(status)
    workers = max(1, min(torch.get_num_threads(), batch))

    def found(worker: int) -> list[bool]:
        search, result = _Search(frames, C, scale, blank), []
        for b in range(worker, batch, workers):
            with machines[b].held:
                result.append(search.best(machines[b], scores[b, : lengths[b]], top[b, : lengths[b]], labels[b]))
        return result

    exists = np.zeros(batch, bool)
    for worker, own in enumerate(map_in_threads(found, range(workers), workers)):
        exists[worker::workers] = own
    return Found(torch.from_numpy(labels)[None], torch.from_numpy(exists)[None])


def known(machine: OpenAutomaton) -> Open:
    """What is known of a machine, as kernels read it."""
    return Open(machine.class_of, machine.next_state, machine.weights, machine.final)


def loss_of(machine: OpenAutomaton, path: NDArray[np.int64], length: int, blank: int) -> float:
    """The loss of what a path writes."""
    with machine.held:
        loss, complete = ctc_max.loss_of(path, length, blank, known(machine))
    if complete:
        return float(loss)
    own = path[:length]
    before = np.concatenate([[blank], own])[:length]
    return machine.weight(own[(own != before) & (own != blank)].tolist())


def add_losses(
    machines: Sequence[OpenAutomaton], scale: float, blank: int, lengths: Ints, labels: Ints, value: Floats
) -> None:
    """Add scale * loss to the value (n, B) of paths (n, B, T), -inf where what they write is outside."""
    for n, paths in enumerate(labels):
        for b, path in enumerate(paths):
            if value[n, b] > -np.inf:
                loss = loss_of(machines[b], path, int(lengths[b]), blank)
                value[n, b] = -np.inf if loss == math.inf else value[n, b] + scale * loss


class _Search:
    """Room for one search after another."""

    def __init__(self, frames: int, num_labels: int, scale: float, blank: int) -> None:
        self.scale, self.blank = scale, blank
        self._candidates, self._asked = np.zeros(num_labels, np.int64), np.zeros((1 << 12, 2), np.int64)
        self._at, self._begin = np.zeros(7, np.int64), np.zeros(frames + 2, np.int64)
        self._make_room(1 << 14, 1 << 15, 64)

    def _make_room(self, entries: int, arcs: int, states: int) -> None:
        """Larger arrays; what was found so far is lost."""
        self._entries, self._arcs, self._states = entries, arcs, states
        place, number = np.zeros(entries, np.int64), np.zeros(entries)
        self._trellis = Trellis(
            self._begin, place.copy(), place.copy(), number.copy(), place.copy(), place.copy(),
            np.zeros(entries + 1, np.int64), np.zeros(arcs, np.int64), np.zeros(arcs, np.int64), np.zeros(arcs),
        )  # fmt: skip
        size = 1 << (entries - 1).bit_length()
        slots, of_states = np.zeros(size, np.int64), np.zeros(states, np.int64)
        self._lookup = Lookup(
            slots, slots.copy(), slots.copy(), of_states, of_states.copy(), place, number, place.copy(), number.copy()
        )

    def best(self, machine: OpenAutomaton, scores: Array, top: Array, path: NDArray[np.int64]) -> bool:
        """path (T,), which is each frame's best label, becomes the best path; whether there is any."""
        length, greedy = len(top), path.copy()
        if length and top.min() == -np.inf:
            return False
        loss = loss_of(machine, greedy, length, self.blank)
        bar = -math.inf if loss == math.inf else self.scale * loss
        least, most = machine.losses_within(length)
        guess = True
        while True:
            size = sum(abs(x) for x in (least[0], most[0], loss) if math.isfinite(x)) * abs(self.scale)
            slack = 1e-15 * (length + 10) * (float(np.abs(top).sum()) + size)
            reached = self._forward(machine, scores, top, np.array([bar]), slack, guess)
            found = ctc_max.best_path(
                scores, length, self.blank, machine.final, self.scale, self._trellis, self._lookup, path
            )
            if found >= reached - slack or reached == -math.inf:
                return bool(found > -math.inf)
            bar, guess = float(found), False  # a path's own value: what is found now is proved

    def _forward(
        self, machine: OpenAutomaton, scores: Array, top: Array, bar: Array, slack: float, guess: bool
    ) -> float:
        """Fill the trellis with all paths that come to the bar, and return where it is in the end."""
        length, t, at = len(top), self._trellis, self._at
        at[:] = 0, 1, 0, 0, at[ctc_max.STAMP], 0, 0
        t.begin[:2], t.state[0], t.last[0], t.score[0] = (0, 1), 0, self.blank, 0.0
        bounds = self._bounds(machine, length, guess)
        while True:
            if len(machine.final) > self._states:
                self._lookup = self._lookup._replace(
                    group=np.zeros(len(machine.final), np.int64), group_stamp=np.zeros(len(machine.final), np.int64)
                )
                self._states = len(machine.final)
            status = ctc_max.search(
                scores, top, length, self.blank, known(machine), self.scale, *bounds, slack, self._trellis,
                self._lookup, self._candidates, at, bar, self._asked,
            )  # fmt: skip
            if status == ctc_max.DONE:
                return float(bar[0])
            if status == ctc_max.NO_ROOM:
                limit = machine.max_states * scores.shape[1]
                if self._entries > limit:
                    raise TooManyStatesError(
                        f"max_states: the search for the best path passed {limit} states; {SMALLER}"
                    )
                self._more_room()
                continue
            asked = self._asked[: at[ctc_max.ASKED]]
            machine.follow(asked[:, 0].copy(), asked[:, 1].copy())
            bounds = self._bounds(machine, length, guess)

    def _more_room(self) -> None:
        """Twice the room; what was found so far stays."""
        old, stamp = self._trellis, self._at[ctc_max.STAMP]
        self._make_room(2 * self._entries, 2 * self._arcs, self._states)
        for new, was in zip(self._trellis[1:], old[1:], strict=True):
            new[: len(was)] = was
        self._at[ctc_max.STAMP] = stamp

    def _bounds(self, machine: OpenAutomaton, length: int, guess: bool) -> tuple[Floats, Floats]:
        """Of each state the most that scale * loss can still add; and the least, or -inf where nothing is guessed."""
        least, most = machine.losses_within(length)
        outside = least == math.inf
        high, low = (most, least) if self.scale > 0 else (least, most)
        if self.scale == 0:
            gain = np.where(outside, -math.inf, 0.0)
            return gain, np.full(len(gain), -math.inf)
        gain = np.where(outside, -math.inf, self.scale * np.where(outside, 0.0, high))
        floor = np.where(outside, -math.inf, self.scale * np.where(outside, 0.0, low))
        return gain, floor if guess else np.full(len(gain), -math.inf)
