"""CTC to convergence, then as many updates again under each objective, for several people kept apart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from structloss.losses import WordErrors
from structloss.naming import objective_of
from structloss.objectives import NegativeLogLikelihood, Objective, Risk
from structloss.reproduce.f1.bootstrap import Interval, interval
from structloss.reproduce.wer.gradients import Gap, gap
from structloss.reproduce.wer.lists import ListRisk
from structloss.reproduce.wer.people import Sizes, data
from structloss.tasks.speech.task import Speech, counts
from structloss.training.directory import file_name, load
from structloss.training.experiment import Data, Result, run
from structloss.training.plan import Plan
from structloss.training.processes import Processes
from structloss.training.record import record_of
from structloss.training.task import predict

CONVERGED, ON, WORDS = "CTC, converged", "CTC, trained on", "exact risk, words"
# The risks over all strings: objective and loss as the command line has them.
EXACT = {"words": ("risk", "words:cap=3"), "labels": ("risk:tolerance=0.3", "edit:window=3")}
_GAPS = ""  # what is measured and not trained
Counts = NDArray[np.int64]  # (n, 4): word errors, words, errors in characters, characters


@dataclass(frozen=True)
class Effort:
    """How much is trained."""

    sizes: Sizes = field(default_factory=Sizes)
    settings: Mapping[str, Any] = field(default_factory=lambda: {"width": 96, "layers": 1, "subsample": 4})
    epochs: int = 24  # of CTC, from nothing to convergence
    more: int = 4  # of each objective from there
    lr: float = 0.004
    rate: float = 0.001  # with which they are trained on
    share: float = 0.1  # of the likelihood beside a risk
    lists: tuple[int, ...] = (4, 8, 16)
    drawn: int = 8  # hypotheses that are drawn, in a list of their own
    exact: Mapping[str, tuple[str, str]] = field(default_factory=lambda: dict(EXACT))
    gaps: int = 64  # utterances on which gradients are compared
    resamples: int = 10_000

    @classmethod
    def quick(cls) -> "Effort":
        """Enough to see that all of it runs."""
        small = {"width": 16, "layers": 1, "subsample": 4}
        return cls(Sizes(16, 4, 6), small, epochs=1, more=1, lists=(4,), drawn=2, gaps=4, resamples=100)


@dataclass(frozen=True)
class Outcome:
    """What became of one training."""

    epoch: int  # the best one on dev
    dev: dict[str, float]
    test: Counts
    seconds: float


@dataclass(frozen=True)
class Study:
    """What was found: by method, an outcome for each seed; and how far gradients are apart, by part and list."""

    outcomes: dict[str, list[Outcome]]
    gaps: dict[tuple[str, str], list[Gap]]


def objectives(labels: Sequence[str], effort: Effort) -> dict[str, Objective]:
    """Every way to train on, by its name in the table."""
    likelihood, words, blank = NegativeLogLikelihood(), WordErrors(labels), len(labels)
    risks: dict[str, Objective] = {}
    for name, named in effort.exact.items():
        risk = objective_of(*named, labels)
        kind = "certified" if getattr(risk, "tolerance", 0.0) else "exact"
        risks[f"{kind} risk, {name}"] = risk
    risks |= {f"{k}-best risk, words": ListRisk(words, k, blank) for k in effort.lists}
    risks[f"{effort.drawn} drawn, words"] = ListRisk(words, effort.drawn, blank, "drawn")
    return {ON: likelihood, **{name: risk + effort.share * likelihood for name, risk in risks.items()}}


def run_all(
    folder: Path, out: Path, seeds: Sequence[int], effort: Effort, jobs: int, say: Callable[[str], None]
) -> Study:
    """Train what the folder lacks, so many runs at a time."""
    names, outcomes = [CONVERGED], dict[tuple[str, int], Outcome]()
    gaps: dict[tuple[str, str], list[Gap]] = {}
    with Processes(jobs, _start, (folder, out, effort)) as pool:
        for seed in seeds:
            pool.submit((CONVERGED, seed), _train, CONVERGED, seed)
        for told in pool.told():
            name, seed = told.key
            if name == _GAPS:
                for key, found in told.value.items():
                    gaps.setdefault(key, []).append(found)
                continue
            outcome, others = told.value
            outcomes[name, seed] = outcome
            wer, cer = (f"{100 * outcome.dev[m]:.2f}" for m in ("wer", "cer"))
            say(f"{name}, seed {seed}: dev WER {wer}, CER {cer}, epoch {outcome.epoch}, {outcome.seconds:.0f} seconds")
            if len(outcomes) == len(seeds):  # all have converged
                names += others
                for other in (*others, _GAPS):
                    for own in seeds:
                        pool.submit((other, own), _gaps if other == _GAPS else _train, other, own)
    return Study({name: [outcomes[name, seed] for seed in seeds] for name in names}, gaps)


class _Own:
    """What a process that trains has."""

    folder: Path
    out: Path
    effort: Effort
    data: dict[int, Data]


def _start(folder: Path, out: Path, effort: Effort) -> None:
    torch.set_num_threads(1)
    _Own.folder, _Own.out, _Own.effort, _Own.data = folder, out, effort, {}


def _data(seed: int) -> Data:
    """The utterances of a seed, read once."""
    if seed not in _Own.data:
        _Own.data[seed] = data(_Own.folder, seed, _Own.effort.sizes)
    return _Own.data[seed]


def _where(name: str, seed: int) -> Path:
    return _Own.out / f"{file_name(name)}-seed{seed}"


def _train(tell: Callable[[Any], None], name: str, seed: int) -> tuple[Outcome, list[str]]:
    """One training, or what a folder has of it already; and what can be trained from there."""
    task, effort, own = Speech(), _Own.effort, _data(seed)
    config = task.configure(own.train, {**task.settings, **effort.settings})
    made = objectives(config["labels"], effort)
    plan = Plan(**asdict(task.defaults(config)))
    plan = replace(plan, seed=seed, epochs=effort.epochs, patience=effort.epochs, lr=effort.lr, progress=False)
    if name != CONVERGED:
        base = str(_where(CONVERGED, seed))
        plan = replace(plan, epochs=effort.more, patience=effort.more, lr=effort.rate, init=base)
    objective, out = made.get(name, NegativeLogLikelihood()), _where(name, seed)
    result = Result.read(out, record_of(task, own.described, config, objective, plan))
    if result is None:
        begun = any(out.glob("checkpoints/*.ckpt"))
        result = run(task, own, config, objective, out, replace(plan, resume=begun))
    assert result is not None  # there is one process
    _, model = load(out, {task.name: task})
    best = min(result.history, key=lambda row: row["dev_wer"])
    table = counts(own.test, predict(model, own.test))
    return Outcome(1 + int(best["epoch"]), result.metrics["dev"], table, result.seconds), list(made)


def _gaps(tell: Callable[[Any], None], name: str, seed: int) -> dict[tuple[str, str], Gap]:
    """The gradients of lists against the exact one, at the converged CTC, in words: by part and list."""
    own, effort = _data(seed), _Own.effort
    _, model = load(_where(CONVERGED, seed), {"speech": Speech()})
    exact, blank = objective_of(*effort.exact["words"], model.names), len(model.names)
    assert isinstance(exact, Risk)
    torch.manual_seed(seed)
    lists = {f"{k}-best": ListRisk(exact.loss, k, blank) for k in (1, *effort.lists, 4 * max(effort.lists))}
    lists[f"{effort.drawn} drawn"] = ListRisk(exact.loss, effort.drawn, blank, "drawn")
    parts = {"training": own.train[: effort.gaps], "dev": own.dev[: effort.gaps]}
    return {
        (part, name): gap(model, examples, objective, exact)
        for part, examples in parts.items()
        for name, objective in lists.items()
    }


def rates(tables: Sequence[Counts]) -> tuple[float, float]:
    """WER and CER in percent, the mean over seeds."""
    sums = np.array([table.sum(0) for table in tables], float)
    return float(100 * (sums[:, 0] / sums[:, 1]).mean()), float(100 * (sums[:, 2] / sums[:, 3]).mean())


def against(study: Study, baseline: str, seed: int, times: int) -> dict[str, tuple[Interval, Interval]]:
    """WER and CER of every method minus those of one, percent: utterances resampled, in pairs, within each seed."""
    generator = np.random.default_rng(seed)
    names = list(study.outcomes)
    drawn = np.zeros((times, len(names), 2))
    seeds = len(study.outcomes[baseline])
    for i in range(seeds):
        tables = np.stack([study.outcomes[name][i].test for name in names], 1).astype(float)  # (n, methods, 4)
        n = len(tables)
        weights = generator.multinomial(n, np.full(n, 1 / n), times)
        sums = np.einsum("tn,nmc->tmc", weights, tables, optimize=True)
        drawn += 100 * sums[..., 0::2] / sums[..., 1::2] / seeds
    drawn -= drawn[:, [names.index(baseline)]]
    zero = rates([o.test for o in study.outcomes[baseline]])
    found = {}
    for j, name in enumerate(names):
        value = rates([o.test for o in study.outcomes[name]])
        wer, cer = (interval(value[c] - zero[c], drawn[:, j, c]) for c in (0, 1))
        found[name] = (wer, cer)
    return found
