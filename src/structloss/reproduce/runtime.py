"""Cortes 2018, Figure 5: the time that Q_w(z, s) takes as strings grow, by each method and under each loss.

As there: an alphabet of 10, the counts of all 100 bigrams as features, w drawn from a standard normal distribution and
the reference uniformly. A time is CPU seconds of one thread, from the reference to Q_w: every trial has a reference of
its own and begins with an empty cache, so our times contain the compilation of the machine.
"""

import importlib.util
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from structloss.automata import TooManyStatesError
from structloss.automata.automaton import MAX_STATES
from structloss.automata.openfst import Fst
from structloss.kernels.alignment import Gaps, Pairs
from structloss.losses import EditDistance, NGram, SmithWaterman
from structloss.losses.cache import clear_cache
from structloss.losses.edit import AlignmentLoss
from structloss.losses.machine import MachineLoss
from structloss.reproduce import gradients, transducers
from structloss.reproduce.enumeration import BIGRAM, EDIT, LOCAL, enumerate_strings
from structloss.structures.chain.chain import Chain

Floats = NDArray[np.float64]
Gradient = Callable[[Floats, list[int]], Floats]

ALPHABET = 10
THRESHOLDS = 1, 2, 3  # of the pruned pipeline
NAIVE, OPENFST, REDUCED, EXACT, CAPPED = "naive", "OpenFst", "OpenFst, reduced by hand", "structloss", "structloss, cap"
PRUNED = {f"{OPENFST}, threshold {k}": f"{EXACT}, threshold {k}" for k in THRESHOLDS}
# Whose Q_w of ours a method's must be, and how near. OpenFst's Python module hands every weight over with nine digits.
PARTNERS = {NAIVE: (EXACT, 1e-8), **{theirs: (mine, 1e-6) for theirs, mine in PRUNED.items()}}
PARTNERS |= {OPENFST: (EXACT, 1e-6), REDUCED: (EXACT, 1e-6)}


@dataclass(frozen=True)
class Plan:
    """Which lengths to measure, and when to stop; seconds are of CPU, so that a busy machine cuts no curve."""

    lengths: Sequence[int] = tuple(range(2, 31))
    trials: int = 125  # at a length, at most
    fewest: int = 3  # at a length, however slow they are
    point_seconds: float = 3.0  # after so long at one length, no more than the fewest trials
    trial_seconds: float = 60.0  # a curve ends where a trial is expected to take longer
    curve_seconds: float = 120.0  # and where its next point would not fit into what is left of this
    most_strings: int = 10**8  # that Grad-Naive goes through: l = 8, as in the paper

    @classmethod
    def quick(cls, trials: int) -> "Plan":
        """Some tens of seconds in all."""
        return cls((2, 3, 4, 5, 6, 8, 10, 14, 20, 30), min(trials, 5), 2, 0.3, 1.5, 3.0, 10**4)


@dataclass(frozen=True)
class Point:
    """Mean and deviation of the seconds that trials took at one length."""

    length: int
    trials: int
    mean: float
    deviation: float


@dataclass
class Curve:
    """The times of one method under one loss, and why there are none at greater lengths."""

    loss: str
    method: str
    points: list[Point] = field(default_factory=list)
    ended: str = ""
    spent: float = 0.0

    def at(self, length: int) -> Point | None:
        """The point at a length, if it was measured."""
        return next((point for point in self.points if point.length == length), None)

    @property
    def growth(self) -> "Growth":
        """How its times grow."""
        return growth([point.length for point in self.points], [point.mean for point in self.points])


class Growth(NamedTuple):
    """Least squares on the logarithm of time: t = a factor^l for curves that explode, t = a l^exponent for others."""

    factor: float
    exponent: float


@dataclass
class Results:
    """All curves; and for each other exact method, how often it was compared with ours, and the most it differed."""

    curves: list[Curve]
    compared: dict[str, int] = field(default_factory=dict)
    difference: dict[str, float] = field(default_factory=dict)

    def of(self, loss: str) -> list[Curve]:
        """The curves of one loss."""
        return [curve for curve in self.curves if curve.loss == loss]

    @property
    def losses(self) -> list[str]:
        """Their names, in order."""
        return list(dict.fromkeys(curve.loss for curve in self.curves))


def growth(lengths: Sequence[int], seconds: Sequence[float]) -> Growth:
    """How time grows with length, from the longer half of the points: shorter ones are all overhead.

    At least three points are used, all of them where there are no more; of fewer than two there is no growth (NaN).
    """
    if len(lengths) < 2:
        return Growth(math.nan, math.nan)
    first = min(len(lengths) // 2, max(0, len(lengths) - 3))
    x, y = np.array(lengths[first:], float), np.log(seconds[first:])
    return Growth(math.exp(np.polyfit(x, y, 1)[0]), float(np.polyfit(np.log(x), y, 1)[0]))


def draw(length: int, seed: int, trial: int) -> tuple[Floats, list[int]]:
    """Potentials (length, 10, 10) and a reference. The first position has no bigram, and potentials of 0."""
    generator = np.random.default_rng((seed, length, trial))
    potentials = np.tile(generator.standard_normal((ALPHABET, ALPHABET)), (length, 1, 1))
    potentials[0] = 0.0
    return potentials, generator.integers(0, ALPHABET, length).tolist()


def ours(loss: MachineLoss) -> Gradient:
    """Q_w as the marginals of the augmented chain, no machine kept from before."""

    def gradient(potentials: Floats, reference: list[int]) -> Floats:
        clear_cache()
        chain = Chain(torch.from_numpy(potentials)[None])
        found: Floats = chain.augment(loss, [reference]).marginals()[0].numpy()
        return found

    return gradient


def naive(loss: MachineLoss) -> Gradient:
    """Grad-Naive, compiled; a string of infinite loss is outside the sum."""

    def gradient(potentials: Floats, reference: list[int]) -> Floats:
        wanted, Q = np.array(reference), np.zeros_like(potentials)
        if isinstance(loss, AlignmentLoss):
            kind = EDIT if isinstance(loss, EditDistance) else LOCAL
            pairs, gaps = loss.pairs, loss.gaps
        else:
            kind, gaps = BIGRAM, Gaps(0.0, 0.0, 0.0, 0.0)
            pairs = Pairs(0.0, 0.0, np.zeros((ALPHABET, ALPHABET)))
            np.add.at(pairs.table, (wanted[:-1], wanted[1:]), 1.0)
        enumerate_strings(potentials, wanted[:, None], kind, pairs, gaps, Q)
        return Q

    return gradient


def methods() -> dict[str, dict[str, Gradient]]:
    """For each loss, the methods; those that need OpenFst only where it is installed."""
    exact = {"edit distance": EditDistance(), "Smith-Waterman": SmithWaterman(), "bigram": NGram(2, smoothing=0)}
    capped: dict[str, EditDistance | SmithWaterman] = {
        "edit distance": EditDistance(cap=5), "Smith-Waterman": SmithWaterman(cap=6)
    }  # fmt: skip
    fst = _openfst() if has_openfst() else {}
    found = {}
    for name, loss in exact.items():
        found[name] = {EXACT: ours(loss), NAIVE: naive(loss)}
        if name in capped:
            found[name][f"{CAPPED} {capped[name].cap:g}"] = ours(capped[name])
            for k, mine in zip(THRESHOLDS, PRUNED.values(), strict=True):
                found[name][mine] = ours(type(capped[name])(threshold=k))
        found[name] |= fst.get(name, {})
    return found


def has_openfst() -> bool:
    """Whether pynini's wheel is installed."""
    return importlib.util.find_spec("pywrapfst") is not None


def _pruned(u: Sequence[Fst], threshold: float, p: Floats, r: list[int]) -> Floats:
    return gradients.grad_tropical(p, r, *u, threshold=threshold)


def _openfst() -> dict[str, dict[str, Gradient]]:
    """The paper's pipeline; for bigrams also from a machine that was reduced before it is determinised."""
    edit = transducers.factored_edit_transducer(ALPHABET, 1, 1, 1)
    local = transducers.smith_waterman_transducer(ALPHABET, -2, 1, 1, 1)
    bigram = transducers.squared(transducers.ngram_transducer(ALPHABET, 2))

    def tropical(*u: Fst) -> dict[str, Gradient]:
        found: dict[str, Gradient] = {OPENFST: lambda p, r: gradients.grad_tropical(p, r, *u)}
        for k, name in zip(THRESHOLDS, PRUNED, strict=True):
            found[name] = partial(_pruned, u, k)
        return found

    return {
        "edit distance": tropical(*edit),
        "Smith-Waterman": tropical(local),
        "bigram": {
            OPENFST: lambda p, r: gradients.grad_rational(p, r, *bigram),
            REDUCED: lambda p, r: gradients.grad_reduced(p, transducers.counted_ngrams(r, ALPHABET, 2)),
        },
    }


def measure(plan: Plan, seed: int, say: Callable[[str], None]) -> Results:
    """Every method under every loss, in one thread, until its curve ends. Raises where Q_w is not ours."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        available = methods()
        for ways in available.values():
            for gradient in ways.values():
                for length in (2, 3):
                    gradient(*draw(length, seed, plan.trials))  # compiles the kernels
        results = Results([Curve(loss, method) for loss, ways in available.items() for method in ways])
        for loss, ways in available.items():
            for length in plan.lengths:
                _measure_length(results, loss, ways, length, plan, seed)
                times = ((curve.method, curve.at(length)) for curve in results.of(loss))
                say(f"{loss}, l = {length}: " + "; ".join(f"{m} {shown(p.mean)}" for m, p in times if p is not None))
        return results
    finally:
        torch.set_num_threads(threads)


def _measure_length(results: Results, loss: str, ways: dict[str, Gradient], length: int, plan: Plan, seed: int) -> None:
    answers: dict[str, list[Floats]] = {}  # of each method, of each trial
    for curve in results.of(loss):
        curve.ended = curve.ended or _ends(curve, length, plan)
        if curve.ended:
            continue
        begin = time.process_time()
        try:
            found, seconds = _trials(ways[curve.method], length, plan, seed)
        except TooManyStatesError:
            curve.ended = f"more than {MAX_STATES} states at l = {length}"
            continue
        answers[curve.method] = found
        if curve.method in PARTNERS:
            mine = answers.get(PARTNERS[curve.method][0], [])
            _compare(results, curve.method, mine, found, f"{curve.method}, {loss}, l = {length}")
        deviation = stdev(seconds) if len(seconds) > 1 else 0.0
        curve.points.append(Point(length, len(seconds), fmean(seconds), deviation))
        curve.spent += time.process_time() - begin


def _trials(gradient: Gradient, length: int, plan: Plan, seed: int) -> tuple[list[Floats], list[float]]:
    """Q_w and CPU seconds of each trial."""
    answers: list[Floats] = []
    seconds: list[float] = []
    begin = time.process_time()
    while len(seconds) < plan.trials:
        if len(seconds) >= plan.fewest and time.process_time() - begin > plan.point_seconds:
            break
        example = draw(length, seed, len(seconds))
        start = time.process_time()
        answers.append(gradient(*example))
        seconds.append(time.process_time() - start)
    return answers, seconds


def _compare(results: Results, method: str, ours: list[Floats], theirs: list[Floats], what: str) -> None:
    for a, b in zip(ours, theirs, strict=False):  # the slower one ran fewer trials
        difference = float(np.abs(a - b).max())
        most = PARTNERS[method][1]
        if not difference <= most:
            raise ValueError(f"Q_w: {what}: got {difference:.1e} from ours, but wanted at most {most}")
        results.compared[method] = results.compared.get(method, 0) + 1
        results.difference[method] = max(results.difference.get(method, 0.0), difference)


def _ends(curve: Curve, length: int, plan: Plan) -> str:
    """Why this curve has no point at this length, or nothing. The next time is expected from the last two."""
    if curve.method == NAIVE and ALPHABET**length > plan.most_strings:
        return f"more than {plan.most_strings} strings at l = {length}"
    if len(curve.points) < 2:
        return ""
    before, last = curve.points[-2:]
    rate = max(1.0, last.mean / before.mean) ** (1 / (last.length - before.length))
    expected = last.mean * rate ** (length - last.length)
    if expected > plan.trial_seconds:
        return f"about {expected:.0f} s a trial expected at l = {length}"
    if curve.spent + plan.fewest * expected > plan.curve_seconds:
        return f"{plan.curve_seconds:.0f} s were over before l = {length}"
    return ""


def shown(seconds: float) -> str:
    """A time with its unit."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
