"""McAllester 2010, Table 1: the part of boundaries within 10, 20, 30 and 40 ms, for each way to train an aligner."""

import itertools
import json
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch

from structloss.files import write_text
from structloss.losses import BoundaryTolerance
from structloss.tasks.alignment.flat_start import flat_start
from structloss.tasks.alignment.frontend import place_of
from structloss.tasks.alignment.recordings import Speech
from structloss.tasks.alignment.sphinx import Sphinx
from structloss.tasks.alignment.task import TOLERANCES, Aligner, Alignment
from structloss.tasks.alignment.train import Parts, Tried, candidates, choose, prepare
from structloss.tasks.alignment.utterance import Utterance, start_frames
from structloss.tasks.alignment.words import phones_of
from structloss.training.directory import file_name, load
from structloss.training.plan import Plan
from structloss.training.record import digest
from structloss.training.task import Example, predict

OFF_THE_SHELF, ROUGH = "pocketsphinx", "before training, by confidence and durations"
SVM, DIRECT = "structural SVM, steps of Keshet 2007", "direct loss, tau-alignment"
METHODS: dict[str, tuple[str, str]] = {  # objective and loss
    ROUGH: ("", ""),
    SVM: ("passive-aggressive", "insensitive:tau_ms=10"),
    DIRECT: ("direct", "tolerance:tau_ms=10"),
    "direct loss, tau-insensitive": ("direct", "insensitive:tau_ms=10"),
    f"{SVM}, tau-alignment": ("passive-aggressive", "tolerance:tau_ms=10"),
    "structural SVM, steps of size 1": ("hinge", "insensitive:tau_ms=10"),
    "structural SVM, steps of size 1, tau-alignment": ("hinge", "tolerance:tau_ms=10"),
    "perceptron": ("perceptron", "insensitive:tau_ms=10"),
    "direct loss away, tau-alignment": ("direct:toward=false", "tolerance:tau_ms=10"),
    "direct loss annealed, tau-alignment": ("annealed", "tolerance:tau_ms=10"),
}
WITHOUT_TIMES = ", trained without times"
PAPER = {  # Table 1, on TIMIT
    "Hosom (2009)": (79.30, 93.36, 96.74, 98.22),
    "Keshet (2007)": (80.0, 92.3, 96.4, 98.2),
    "direct loss, tau-alignment": (86.01, 94.08, 97.08, 98.44),
    "direct loss, tau-insensitive": (85.72, 94.21, 97.21, 98.60),
}
_RESAMPLED = 2000  # times, of a bootstrap


@dataclass(frozen=True)
class Run:
    """What one training gave: of each utterance, how many boundaries are right at each tolerance; and what was chosen.

    `chosen` is the objective that was best on the held-out part, after so many epochs of 50 updates, of whose updates
    the share `moved` was not zero; `tried` says how all of them did there.
    """

    right: list[list[int]]
    chosen: str = ""
    epochs: int = 0
    moved: float = 0.0
    tried: dict[str, float] = field(default_factory=dict)


@dataclass
class Table:
    """For each test set and each method, the runs of all seeds; and how many boundaries each utterance has."""

    rows: dict[str, dict[str, list[Run]]] = field(default_factory=dict)
    boundaries: dict[str, list[int]] = field(default_factory=dict)

    def add(self, test: str, method: str, run: Run) -> None:
        """What one run gave."""
        self.rows.setdefault(test, {}).setdefault(method, []).append(run)

    def percent(self, test: str, run: Run) -> list[float]:
        """Of all boundaries, at each tolerance."""
        total = sum(self.boundaries[test])
        return [100 * sum(row[t] for row in run.right) / total for t in range(len(TOLERANCES))]

    def summary(self, test: str, method: str, tolerance: int) -> tuple[float, float]:
        """Mean and deviation over the seeds, in percent."""
        values = [self.percent(test, run)[TOLERANCES.index(tolerance)] for run in self.rows[test][method]]
        return fmean(values), stdev(values) if len(values) > 1 else 0.0

    def difference(self, test: str, method: str, other: str, tolerance: int) -> tuple[float, float, float]:
        """How many percent more of the boundaries the one has right than the other, and a 95 % interval.

        The mean over the seeds; the interval is a bootstrap over utterances.
        """
        at, boundaries = TOLERANCES.index(tolerance), np.array(self.boundaries[test])
        a, b = (np.array([run.right for run in self.rows[test][name]])[:, :, at].mean(0) for name in (method, other))
        drawn = np.random.default_rng(0).integers(len(boundaries), size=(_RESAMPLED, len(boundaries)))
        found = 100 * (a - b)[drawn].sum(1) / boundaries[drawn].sum(1)
        low, high = np.quantile(found, (0.025, 0.975))
        return 100 * float((a - b).sum() / boundaries.sum()), float(low), float(high)


def table(
    train: Sequence[Utterance], tests: Mapping[str, Sequence[Speech]], out: Path, seeds: Sequence[int], hop_ms: float,
    settings: dict[str, str], epochs: int, say: Callable[[str], None], words: bool = False,
) -> Table:  # fmt: skip
    """Train under every method from every seed, and evaluate on every test set. The split, too, depends on the seed.

    Then once more, by direct loss, as if nobody knew when phones start: from what a flat start finds, unless segments
    are `words`. What is known stays in `out`, and a table that was ended goes on from there.
    """
    result, task = Table(), Alignment()
    known = {phone for utterance in train for phone in utterance.phones}
    examples: dict[str, list[Example]] = {}
    for name, speech in tests.items():
        spoken = [one for one in speech if known.issuperset(one.segments.phones)]
        if len(spoken) < len(speech):
            say(f"{name}: {len(speech) - len(spoken)} recordings with phones that training lacks are left out")
        examples[name] = task.examples([Utterance.of(one, hop_ms) for one in spoken])
        result.boundaries[name] = [len(example.y) - 1 for example in examples[name]]
        result.add(name, OFF_THE_SHELF, Run(_right(examples[name], off_the_shelf(spoken, words, hop_ms))))
        say(f"{OFF_THE_SHELF}, {name}: {_shown(result, name, OFF_THE_SHELF)}")
    corpora = {"": (train, METHODS)}
    if not words:
        corpora[WITHOUT_TIMES] = (flat_start(train, say=say), {DIRECT: METHODS[DIRECT]})
    for seed, (told, (utterances, methods)) in itertools.product(seeds, corpora.items()):
        parts, own = Parts.of(utterances, seed), out / f"seed{seed}{file_name(told)}"
        sizes = f"{len(parts.classifier)} recordings for the classifier, {len(parts.weights)} for the weights"
        held = f"{len(parts.held)} held out with {sum(len(u.phones) - 1 for u in parts.held)} boundaries"
        say(f"seed {seed}{told}: {sizes}, {held}")
        of = digest([parts, settings, epochs, methods, examples])
        found = _kept(own / "runs.json", of)
        plan = Plan(seed=seed, overwrite=True, progress=False)
        model: Aligner | None = None
        for method, (objective, loss) in methods.items():
            if method not in found:
                if model is None:
                    model = prepare(parts, settings, own, plan, say)
                    begun = {key: value.clone() for key, value in model.state_dict().items()}
                tried = [Tried("", 0.0, 0, 0.0)]
                if objective:
                    folder = own / file_name(method)
                    tried = choose(model, parts, candidates(objective), loss, folder, epochs, plan, say)
                    model.load_state_dict(load(folder, {task.name: task})[1].state_dict())
                held_out = {one.objective: one.held_out for one in tried}
                chosen = (tried[0].objective, tried[0].epochs, tried[0].moved, held_out)
                found[method] = {n: Run(_right(rows, predict(model, rows)), *chosen) for n, rows in examples.items()}
                model.load_state_dict(begun)
                kept = {name: {n: asdict(run) for n, run in runs.items()} for name, runs in found.items()}
                own.mkdir(parents=True, exist_ok=True)
                write_text(own / "runs.json", json.dumps({"of": of, "runs": kept}))
            for name, run in found[method].items():
                result.add(name, method + told, run)
                say(f"{method}{told}, seed {seed}, {name}: {_shown(result, name, method + told)}")
    return result


def _kept(file: Path, of: str) -> dict[str, dict[str, Run]]:
    """What methods came to on each test set in an earlier table of the same data and settings."""
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    runs = kept["runs"] if kept.get("of") == of else {}
    return {method: {name: Run(**run) for name, run in own.items()} for method, own in runs.items()}


def with_gross_errors(utterance: Utterance, share: float, generator: random.Random) -> Utterance:
    """The recording with a share of its boundaries moved to anywhere between those before and after."""
    times = [*utterance.times, len(utterance.x) * utterance.hop_ms / 1000]
    for n in range(1, len(times) - 1):
        if generator.random() < share:
            times[n] = generator.uniform(times[n - 1], times[n + 1])
    return replace(
        utterance, times=tuple(times[:-1]), starts=start_frames(times[:-1], utterance.hop_ms, len(utterance.x))
    )


def _shown(result: Table, test: str, method: str) -> str:
    return " / ".join(f"{value:.2f}" for value in result.percent(test, result.rows[test][method][-1]))


def _right(examples: Sequence[Example], found: Sequence[Sequence[float] | None]) -> list[list[int]]:
    """How many boundaries of each example are right at each tolerance; none where nothing was found."""
    rows = []
    for example, places in zip(examples, found, strict=True):
        losses = [BoundaryTolerance(tau_ms=tolerance, frame_ms=example.x.hop_ms) for tolerance in TOLERANCES]
        if places is None:
            rows.append([0] * len(losses))
            continue
        distances = (torch.tensor(places, dtype=torch.float64) - torch.tensor(example.y, dtype=torch.float64)).abs()[1:]
        rows.append([len(distances) - int(loss.penalty(distances).sum()) for loss in losses])
    return rows


def off_the_shelf(speech: Sequence[Speech], words: bool = False, hop_ms: float = 10.0) -> list[list[float] | None]:
    """Where pocketsphinx has segments start, in frames; None where it finds no alignment.

    Segments are phones, or `words`, which the dictionary pronounces.
    """
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(partial(_sphinx_starts, words=words), speech))
    return [starts and [place_of(start, hop_ms) for start in starts] for starts in found]


def _sphinx_starts(speech: Speech, words: bool) -> list[float] | None:
    names = speech.segments.phones
    pronounced = [phones_of(name, speech.name)[1:-1] if words else (name,) for name in names]  # without silences
    starts = Sphinx().starts(speech.samples, [phone for phones in pronounced for phone in phones])
    first = itertools.accumulate([0, *(len(phones) for phones in pronounced[:-1])])
    return None if starts is None else [starts[i] for i in first]
