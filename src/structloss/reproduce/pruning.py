"""Cortes 2018, section 6: how small pruning makes Det(M) of the edit distance, and what it and a cap make of Q_w.

The paper's pruning drops arcs that are on no path within a threshold of the best; strings beyond it can be left, where
each of their arcs is on a path of another string. A loss with a threshold leaves out exactly the strings beyond.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from structloss.automata import LossAutomaton, TooManyStatesError
from structloss.automata.openfst import Fst, openfst
from structloss.losses import EditDistance, SmithWaterman
from structloss.losses.machine import MachineLoss
from structloss.reproduce import gradients, transducers
from structloss.reproduce.runtime import ALPHABET, THRESHOLDS, draw, ours

Floats = NDArray[np.float64]

_ROUNDING = 1e-6  # of costs that OpenFst adds up


@dataclass(frozen=True)
class Machines:
    """Det(M) of the edit distance under one threshold, by OpenFst with its pruning and by ours."""

    threshold: float
    length: int
    openfst_states: int
    openfst_seconds: float
    openfst_strings: int
    states: int
    seconds: float
    strings: int  # within the threshold
    shared: int  # strings within it that both have, at the same loss


def machines(length: int, seed: int, say: Callable[[str], None]) -> list[Machines]:
    """For each threshold, the machines against the reference of `runtime.draw`'s first trial, and what they accept."""
    _, reference = draw(length, seed, 0)
    edit = transducers.factored_edit_transducer(ALPHABET, 1, 1, 1)
    found = []
    for threshold in THRESHOLDS:
        loss, string = EditDistance(threshold=threshold), np.array(reference)
        start = time.process_time()
        mine = loss.compile(string, ALPHABET, length, absolute=True)
        seconds = time.process_time() - start
        start = time.process_time()
        fst = gradients.determinised(length, ALPHABET, reference, "standard", *edit, threshold=threshold)
        theirs = time.process_time() - start
        every, shared = accepted(fst, mine, threshold)
        found.append(
            Machines(
                threshold, length, fst.num_states(), theirs, every, mine.num_states, seconds, strings(mine), shared
            )
        )
        say(f"threshold {threshold}, l = {length}: OpenFst {fst.num_states()} states, ours {mine.num_states}")
    return found


def strings(machine: LossAutomaton) -> int:
    """How many strings a machine accepts."""
    labels, ends = np.bincount(machine.class_of, minlength=machine.next_state.shape[1]), machine.offsets
    count = [int(x) for x in np.isfinite(machine.last)]
    for t in range(machine.length - 1, -1, -1):
        rows = machine.next_state[ends[t] : ends[t + 1]]
        count = [sum(int(n) * count[q] for n, q in zip(labels, row, strict=True)) for row in rows]
    return count[0]


def accepted(fst: Fst, machine: LossAutomaton, most: float) -> tuple[int, int]:
    """How many strings a deterministic machine of OpenFst accepts; how many cost at most `most`, and as much here.

    Both read the same strings step by step: a state of OpenFst's, what was spent, and a place of ours.
    """
    arcs = {q: [(a.ilabel - 1, float(a.weight), a.nextstate) for a in fst.arcs(q)] for q in fst.states()}
    final = {q: float(fst.final(q)) for q in fst.states()}
    to_end = [float(w) for w in openfst().shortestdistance(fst, reverse=True)]
    every, joint = {fst.start(): 1}, {(fst.start(), 0.0, 0): 1}
    for t in range(machine.length):
        following: dict[int, int] = {}
        for q, count in every.items():
            for _, _, target in arcs[q]:
                following[target] = following.get(target, 0) + count
        every = following
        pairs: dict[tuple[int, float, int], int] = {}
        for (q, spent, place), count in joint.items():
            row = machine.next_state[machine.offsets[t] + place]
            for label, weight, target in arcs[q]:
                total = round(spent + weight, 6)
                if total + to_end[target] <= most + _ROUNDING:
                    key = target, total, int(row[machine.class_of[label]])
                    pairs[key] = pairs.get(key, 0) + count
        joint = pairs
    same = (
        count
        for (q, spent, place), count in joint.items()
        if spent + final[q] <= most + _ROUNDING and abs(spent + final[q] - machine.last[place]) <= _ROUNDING
    )
    return sum(count for q, count in every.items() if final[q] < np.inf), sum(same)


@dataclass(frozen=True)
class Error:
    """How far Q_w is from the exact one, in the mean over trials: see `moved`."""

    loss: str
    kind: str  # "threshold" or "cap"
    limit: float
    length: int
    mean: float

    @property
    def method(self) -> str:
        """The threshold or cap as a table and a picture name it."""
        return f"{self.kind} {self.limit:g}"


def moved(exact: Floats, found: Floats) -> float:
    """The share of a position's weight that stands at other labels: half the sum of |difference|, the mean over s."""
    return float(np.abs(exact - found).sum() / 2 / len(exact))


LIMITS = 1, 2, 3, 6  # of thresholds and of caps


def errors(lengths: Sequence[int], trials: int, seed: int, say: Callable[[str], None]) -> list[Error]:
    """The error of each threshold and cap at each length, until the exact machine is too large."""
    kinds: dict[str, Callable[..., MachineLoss]] = {"edit distance": EditDistance, "Smith-Waterman": SmithWaterman}
    found = []
    for loss, kind in kinds.items():
        for length in lengths:
            examples = [draw(length, seed, trial) for trial in range(trials)]
            try:
                exact = [ours(kind(max_states=100_000))(*example) for example in examples]
            except TooManyStatesError:
                break
            for name in ("threshold", "cap"):
                for limit in LIMITS:
                    gradient = ours(kind(**{name: limit}))
                    values = [moved(q, gradient(*example)) for q, example in zip(exact, examples, strict=True)]
                    found.append(Error(loss, name, limit, length, fmean(values)))
            say(f"{loss}, l = {length}: errors of thresholds and caps")
    return found
