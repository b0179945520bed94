"""McAllester 2010, Table 1: the part of boundaries within 10, 20, 30 and 40 ms, for each way to train an aligner."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev

import torch

from structloss.tasks.alignment.recordings import Speech
from structloss.tasks.alignment.sphinx import Sphinx
from structloss.tasks.alignment.task import TOLERANCES, Alignment
from structloss.tasks.alignment.train import Parts, candidates, choose, prepare
from structloss.tasks.alignment.utterance import Utterance
from structloss.tasks.alignment.words import phones_of
from structloss.training.directory import file_name, load
from structloss.training.plan import Plan
from structloss.training.task import predict

METHODS: dict[str, tuple[str, str]] = {  # objective and loss
    "perceptron": ("perceptron", "insensitive:tau_ms=10"),
    "structural SVM, steps of Keshet 2007": ("passive-aggressive", "insensitive:tau_ms=10"),
    "structural SVM, steps of size 1": ("hinge", "insensitive:tau_ms=10"),
    "direct loss, tau-alignment": ("direct", "tolerance:tau_ms=10"),
    "direct loss, tau-insensitive": ("direct", "insensitive:tau_ms=10"),
}
OFF_THE_SHELF = "pocketsphinx"
PAPER = {  # Table 1, on TIMIT
    "Hosom (2009)": (79.30, 93.36, 96.74, 98.22),
    "Keshet (2007)": (80.0, 92.3, 96.4, 98.2),
    "direct loss, tau-alignment": (86.01, 94.08, 97.08, 98.44),
    "direct loss, tau-insensitive": (85.72, 94.21, 97.21, 98.60),
}


@dataclass
class Table:
    """For each test set and each method, the metrics of every seed; and how many boundaries there are."""

    rows: dict[str, dict[str, list[dict[str, float]]]] = field(default_factory=dict)
    boundaries: dict[str, int] = field(default_factory=dict)

    def add(self, test: str, method: str, metrics: dict[str, float]) -> None:
        """What one run gave."""
        self.rows.setdefault(test, {}).setdefault(method, []).append(metrics)

    def summary(self, test: str, method: str, tolerance: int) -> tuple[float, float]:
        """Mean and deviation over the seeds, in percent."""
        values = [100 * metrics[f"{tolerance}ms"] for metrics in self.rows[test][method]]
        return fmean(values), stdev(values) if len(values) > 1 else 0.0

    def difference(self, test: str, method: str, other: str, tolerance: int) -> tuple[float, float]:
        """How many percent more of the boundaries the one has right than the other: mean and error over seeds."""
        pairs = zip(self.rows[test][method], self.rows[test][other], strict=True)
        values = [100 * (a[f"{tolerance}ms"] - b[f"{tolerance}ms"]) for a, b in pairs]
        return fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def table(
    train: Sequence[Utterance], tests: Mapping[str, Sequence[Speech]], out: Path, seeds: Sequence[int], hop_ms: float,
    settings: dict[str, str], epochs: int, say: Callable[[str], None], words: bool = False,
) -> Table:  # fmt: skip
    """Train under every method from every seed, and evaluate on every test set. The split, too, depends on the seed."""
    result, task = Table(), Alignment()
    known = {phone for utterance in train for phone in utterance.phones}
    spoken: dict[str, list[Speech]] = {}
    for name, speech in tests.items():
        spoken[name] = [one for one in speech if known.issuperset(one.segments.phones)]
        if len(spoken[name]) < len(speech):
            say(f"{name}: {len(speech) - len(spoken[name])} recordings with phones that training lacks are left out")
    examples = {name: task.examples([Utterance.of(s, hop_ms) for s in rows]) for name, rows in spoken.items()}
    for name, rows in examples.items():
        result.boundaries[name] = sum(len(example.y) - 1 for example in rows)
    for name, speech in spoken.items():
        result.add(name, OFF_THE_SHELF, off_the_shelf(speech, words))
        say(f"{OFF_THE_SHELF}, {name}: {_shown(result.rows[name][OFF_THE_SHELF][-1])}")
    for seed in seeds:
        parts = Parts.of(train, seed)
        plan = Plan(seed=seed, overwrite=True, progress=False)
        begun = prepare(parts, settings, out / f"seed{seed}", plan, say)
        for method, (objective, loss) in METHODS.items():
            folder = out / f"seed{seed}" / file_name(method)
            choose(copy.deepcopy(begun), parts, candidates(objective), loss, folder, epochs, plan, say)
            _, model = load(folder, {task.name: task})
            for name, rows in examples.items():
                result.add(name, method, task.evaluate(rows, predict(model, rows)))
                say(f"{method}, seed {seed}, {name}: {_shown(result.rows[name][method][-1])}")
    return result


def _shown(metrics: dict[str, float]) -> str:
    return " / ".join(f"{100 * value:.2f}" for value in metrics.values())


def off_the_shelf(speech: Sequence[Speech], words: bool = False) -> dict[str, float]:
    """How well pocketsphinx places boundaries; where it finds no alignment, all of them are wrong.

    Segments are phones, or `words`, which the dictionary pronounces.
    """
    find = partial(_sphinx_starts, words=words)
    errors: list[float] = []
    with ThreadPoolExecutor(2) as pool:
        for one, starts in zip(speech, pool.map(find, speech), strict=True):
            times = one.segments.starts
            errors += (
                [abs(a - b) for a, b in zip(starts, times, strict=True)][1:] if starts else [1.0] * (len(times) - 1)
            )
    found = torch.tensor(errors, dtype=torch.float64)
    return {f"{t}ms": (found <= t / 1000 + 1e-9).double().mean().item() for t in TOLERANCES}


def _sphinx_starts(speech: Speech, words: bool) -> list[float] | None:
    names = speech.segments.phones
    pronounced = [phones_of(name, speech.name)[1:-1] if words else (name,) for name in names]  # without silences
    starts = Sphinx().starts(speech.samples, [phone for phones in pronounced for phone in phones])
    first = accumulate([0, *(len(phones) for phones in pronounced[:-1])])
    return None if starts is None else [starts[i] for i in first]
