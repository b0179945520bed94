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
from structloss.kernels.forest import Packed, Ways, Weights
from structloss.kernels.forest import best as best_paths
from structloss.kernels.types import Array
from structloss.kernels.workers import map_in_threads, run
from structloss.losses.references import String
from structloss.structures.base import Found
from structloss.structures.chain.native_engine import raise_for
from structloss.structures.rows import begins, ranges

_MOST_BELOW = 1e4  # the best path; what is further below is searched without a bar


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
                found = search.best(machines[b], scores[b, : lengths[b]], top[b, : lengths[b]], labels[b])
                result.append(found > -math.inf)
        return result

    exists = np.zeros(batch, bool)
    for worker, own in enumerate(map_in_threads(found, range(workers), workers)):
        exists[worker::workers] = own
    return Found(torch.from_numpy(labels)[None], torch.from_numpy(exists)[None])


def several(scores: Array, lengths: Ints, machines: Sequence[OpenAutomaton], scale: float, blank: int, k: int) -> Found:
    """The k best paths (k, B, T) by score + scale * loss, best first, ties in lexicographic order."""
    (batch, frames, C), rows = scores.shape, []
    top, labels, status = np.zeros((batch, frames)), np.zeros((batch, frames), np.int64), np.zeros(batch, np.int64)
    ctc_max.tops(scores, lengths, top, labels, status)
    raise_for(status)
    search = _Search(frames, C, scale, blank)
    for b, length in enumerate(lengths):
        with machines[b].held:
            rows.append(search.several(machines[b], scores[b, :length], top[b, :length], labels[b, :length], k))
    return Found.of(rows, k, frames, torch.device("cpu"))


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

    def best(self, machine: OpenAutomaton, scores: Array, top: Array, path: NDArray[np.int64]) -> float:
        """path (T,), which is each frame's best label, becomes the best path.

        What it is worth above the scores of those labels, -inf where there is none.
        """
        length, greedy = len(top), path.copy()
        if length and top.min() == -np.inf:
            return -math.inf
        loss = loss_of(machine, greedy, length, self.blank)
        bar = -math.inf if loss == math.inf else self.scale * loss
        slack, guess = self._slack(machine, top, loss), True
        while True:
            reached = self._forward(machine, scores, top, np.array([bar]), slack, guess)
            found = ctc_max.best_path(
                scores, length, self.blank, machine.final, self.scale, self._trellis, self._lookup, path
            )
            if found >= reached - slack or reached == -math.inf:
                return float(found)
            bar, guess = float(found), False  # a path's own value: what is found now is proved

    def _slack(self, machine: OpenAutomaton, top: Array, loss: float = 0.0) -> float:
        """What sums of so many scores and losses may be off by."""
        least, most = machine.losses_within(len(top))
        size = sum(abs(x) for x in (least[0], most[0], loss) if math.isfinite(x)) * abs(self.scale)
        return float(1e-15 * (len(top) + 10) * (np.abs(top).sum() + size))

    def several(
        self, machine: OpenAutomaton, scores: Array, top: Array, path: NDArray[np.int64], k: int
    ) -> list[list[int]]:
        """The k best paths, best first.

        All paths that come to a bar are kept, so that those found above it are the best. The bar is lowered until there
        are k, and once more to where the last of them is.
        """
        best = self.best(machine, scores, top, path.copy())
        if best == -math.inf:
            return []
        slack, gap = self._slack(machine, top), 1.0
        bar = best - gap
        while True:
            self._forward(machine, scores, top, np.array([bar]), slack, guess=False)
            paths, worth = self._listed(machine, scores, k)
            if bar == -math.inf or (len(paths) == k and worth - top.sum() >= bar):
                return paths
            gap *= 4
            bar = worth - float(top.sum()) if len(paths) == k else best - gap if gap < _MOST_BELOW else -math.inf

    def _listed(self, machine: OpenAutomaton, scores: Array, k: int) -> tuple[list[list[int]], float]:
        """The k best of the paths that were kept, and what the last of them is worth: the trellis is a graph."""
        length, C, t = len(scores), scores.shape[1], self._trellis
        begin = t.begin[: length + 2].copy()
        inner, E = int(begin[length]), int(begin[length + 1])
        frame, group = np.repeat(np.arange(length), np.diff(begin[: length + 1])), t.group[:inner]
        counts = np.where(group >= 0, t.arc_begin[group + 1] - t.arc_begin[group], 0)
        head, arc = np.repeat(np.arange(inner), counts), ranges(t.arc_begin[group], counts)
        kept = (t.label[arc] == self.blank) | (t.label[arc] != t.last[head])  # another label, or a blank
        again = np.flatnonzero((group >= 0) & (t.repeat[:inner] >= 0))
        final = machine.final[t.state[inner:E]]
        ends = np.flatnonzero(final < math.inf)  # by arcs that lead to no node, E
        head = np.concatenate([head[kept], again, inner + ends])
        label = np.concatenate([t.label[arc[kept]], t.last[again], np.full(len(ends), -1)])
        order = np.argsort(head * (C + 1) + label, kind="stable")
        head, label = head[order], label[order]
        tail = np.concatenate([t.to[arc[kept]], t.repeat[again], np.full(len(ends), E)])[order]
        weight = np.concatenate([t.weight[arc[kept]], np.zeros(len(again)), self.scale * final[ends]])[order]
        own, reads = np.zeros(len(head)), label >= 0
        own[reads] = scores[frame[head[reads]], label[reads]]
        number, root = np.arange(len(head)), np.zeros(1, np.int64)
        graph = Packed(begin, root, begins(np.bincount(head, minlength=E)), tail[None], number, number[:0])
        score, via, rank = np.empty((E + 1, k)), np.empty((E + 1, k), np.int64), np.empty((E + 1, k, 2), np.int64)
        score[E], score[E, 0] = -math.inf, 0.0
        paths, exists = np.full((1, k, 1, length + 1), -1), np.zeros((1, k, 1), bool)
        best_paths(0, 1, graph, Weights(weight, own), root[None], Ways(score, via, rank), paths, exists)
        found = [label[row[:-1]].tolist() for row, there in zip(paths[0, :, 0], exists[0, :, 0], strict=True) if there]
        return found, float(score[0, len(found) - 1]) if found else -math.inf

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
