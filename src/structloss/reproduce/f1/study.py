"""All of it: five sets, names that are dear, labels that are wrong, and a network; every training kept in a folder."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from structloss.reproduce.f1 import counts, methods
from structloss.reproduce.f1.bootstrap import Interval, interval, mean_f1, resampled
from structloss.reproduce.f1.data import CHUNKS, NAMES, TaggedSet
from structloss.reproduce.f1.experiment import Bench, Method, Metric, Result, dev_choice, first_part

Results = dict[str, dict[str, Result]]  # by set and method


@dataclass(frozen=True)
class Effort:
    """How much is trained."""

    passes: tuple[int, ...] = (8, 16)
    neural_passes: tuple[int, ...] = (8, 10, 12, 14, 16)
    flips: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3)
    noisy: tuple[str, ...] = ("danish", "swedish")  # the sets whose labels are flipped
    neural: tuple[str, ...] = ("danish",)
    small: tuple[str, ...] = (CHUNKS,)  # the sets with fewer settings to choose from
    resamples: int = 10_000
    most: int | None = None  # sentences of each file

    @classmethod
    def quick(cls) -> "Effort":
        """Enough to see that all of it runs."""
        return cls((2,), (1,), (0.0, 0.3), ("danish",), ("danish",), (*NAMES, CHUNKS), 200, 150)


@dataclass(frozen=True)
class Study:
    """What each part gave."""

    linear: Results
    dear: Results
    noisy: dict[float, Results]
    neural: Results
    chosen: dict[str, str] = field(default_factory=dict)  # by set: the natural method that held-out sentences chose


@dataclass(frozen=True)
class Versus:
    """F1 minus that of the likelihood with a tuned bias, on the same test sentences."""

    sets: dict[str, dict[str, Interval]]  # by method and set
    means: dict[str, Interval]  # by method, over the sets of names


def dear_cost(table: "np.typing.NDArray[np.int64]") -> "np.typing.NDArray[np.float64]":
    """Minus what errors cost where a missed name costs ten times a false alarm."""
    return -counts.cost(table, methods.DEAR)


def run(
    sets: Mapping[str, TaggedSet], folder: Path, seeds: tuple[int, ...], effort: Effort, say: Callable[[str], None]
) -> Study:
    """Train whatever the folder lacks."""
    bench = Bench(folder, effort.passes, seeds, say)
    names = {name: data for name, data in sets.items() if name != CHUNKS}
    linear = {name: bench.run(data, methods.rows(name in effort.small), counts.f1) for name, data in sets.items()}
    dear = {name: bench.run(data, methods.dear_names(), dear_cost) for name, data in names.items()}
    noisy: dict[float, Results] = {}
    for part in effort.flips:
        flipping = replace(bench, flips=part)
        some = {name: first_part(data) for name, data in names.items() if name in effort.noisy}
        noisy[part] = _each(flipping, some, methods.robust(), counts.f1)
    small = {name: first_part(data) for name, data in names.items() if name in effort.neural}
    neural = _each(replace(bench, passes=effort.neural_passes), small, methods.neural(), counts.f1)
    rows = {name: methods.rows(name in effort.small) for name in sets}
    chosen = {name: dev_choice(linear[name], rows[name]) for name in sets}
    return Study(linear, dear, noisy, neural, chosen)


def _each(bench: Bench, sets: Mapping[str, TaggedSet], rows: list[Method], metric: Metric) -> Results:
    return {name: bench.run(data, rows, metric) for name, data in sets.items()}


CHOSEN = "what dev chooses of these"


def versus(results: Results, chosen: Mapping[str, str], seed: int, resamples: int) -> Versus:
    """Every method against the likelihood with a tuned bias; `CHOSEN` is what each set's held-out part chose."""
    generator = np.random.default_rng(seed)
    tables = {name: {m: r.test for m, r in rows.items()} for name, rows in results.items()}
    for name, which in chosen.items():
        tables[name][CHOSEN] = tables[name][which]
    listed = list(next(iter(tables.values())))
    sets: dict[str, dict[str, Interval]] = {m: {} for m in listed}
    values, samples = [], []
    for name, rows in tables.items():
        there = [m for m in listed if m in rows]
        drawn = resampled([rows[m] for m in there], generator, resamples)
        drawn -= drawn[:, [there.index(methods.BIASED)]]
        value = np.array([mean_f1(rows[m]) - mean_f1(rows[methods.BIASED]) for m in there])
        for i, m in enumerate(there):
            sets[m][name] = interval(float(value[i]), drawn[:, i])
        if name != CHUNKS:
            values.append(value)
            samples.append(drawn)
    means = {}
    if values:
        value, drawn = np.mean(values, axis=0), np.mean(samples, axis=0)
        means = {m: interval(float(value[i]), drawn[:, i]) for i, m in enumerate(listed)}
    return Versus(sets, means)
