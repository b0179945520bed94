"""The same model under several objectives and seeds, several at a time, each in a process of its own."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Protocol

from structloss.objectives import NegativeLogLikelihood, Objective
from structloss.training import checkpoints
from structloss.training.directory import file_name
from structloss.training.experiment import Data, Result, run
from structloss.training.folder import check_begin, hand_over, make_room
from structloss.training.plan import Plan
from structloss.training.processes import Processes
from structloss.training.record import Record, record_of
from structloss.training.task import Task

SHOWN = ("results.json", "index.html", "curves.png", "names.png")  # what is made of a comparison, or a demo

_own: tuple[Task, Data]  # of a process that trains: what it trains on


@dataclass(frozen=True)
class Trial:
    """One candidate: its name in tables, its model's config and its objective."""

    name: str
    config: Mapping[str, Any]
    objective: Objective


@dataclass(frozen=True)
class Outcome:
    """What became of a candidate, a result for each seed."""

    name: str
    results: list[Result]

    def values(self, part: str, metric: str) -> list[float]:
        """One metric on dev or test, of every seed."""
        return [result.metrics[part][metric] for result in self.results]

    def summary(self, part: str, metric: str) -> tuple[float, float]:
        """Its mean over the seeds and its deviation, 0 of a single seed."""
        values = self.values(part, metric)
        return fmean(values), stdev(values) if len(values) > 1 else 0.0


class Listener(Protocol):
    """Who is told how a comparison goes on."""

    def epoch(self, name: str, seed: int, row: dict[str, float]) -> None:
        """One epoch of a run has ended."""

    def end(self, name: str, seed: int, result: Result) -> None:
        """A run has ended."""


def num_epochs(trials: Sequence[Trial], plan: Plan, seeds: Sequence[int]) -> int:
    """How many epochs a comparison has at most, all runs together."""
    warm_up = min(plan.warm_up, plan.epochs)
    return len(seeds) * (len(trials) * (plan.epochs - warm_up) + len(_alike(trials)) * warm_up)


def cores() -> int:
    """How many processes can run at a time."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def folder_of(out: Path, name: str, seed: int) -> Path:
    """Where a candidate is trained from a seed."""
    return out / "runs" / f"{file_name(name)}-seed{seed}"


def compare(
    task: Task, data: Data, trials: Sequence[Trial], out: Path, plan: Plan, seeds: Sequence[int], jobs: int,
    listener: Listener,
) -> list[Outcome]:  # fmt: skip
    """Train every trial from every seed, `jobs` of them at a time, each with one thread.

    Trials of one config share their warm-up: it is trained once a seed, and each goes on from there, as it would have
    alone. With `plan.resume`, runs that have ended are read and others go on from their last checkpoints.
    """
    check_begin(plan)
    if not plan.resume:
        make_room(sorted((out / "runs").glob("*/")), out, plan)
    for name in SHOWN if plan.overwrite else ():  # of what is removed
        (out / name).unlink(missing_ok=True)
    results: dict[tuple[str, int], Result] = {}
    followers: dict[tuple[str, int], list[Trial]] = {}  # of a warm-up: who goes on from there

    def record(trial: Trial, seed: int) -> Record:
        return record_of(task, data.described, trial.config, trial.objective, replace(plan, seed=seed))

    with Processes(jobs, _start, (task, data)) as pool:

        def submit(trial: Trial, seed: int, own: Plan) -> None:
            folder = folder_of(out, trial.name, seed)
            ended = Result.read(folder, record(trial, seed)) if plan.resume else None
            if ended is not None:
                finish(trial, seed, ended)
            else:
                own = replace(own, seed=seed, progress=False, overwrite=False)
                pool.submit((trial, seed), _work, trial, folder, own)

        def finish(trial: Trial, seed: int, result: Result) -> None:
            results[trial.name, seed] = result
            listener.end(trial.name, seed, result)
            for follower in followers.get((trial.name, seed), []):
                begun = folder_of(out, follower.name, seed)
                if not checkpoints.in_folder(begun / checkpoints.FOLDER):
                    source = folder_of(out, trial.name, seed)
                    hand_over(source, begun, record(trial, seed), record(follower, seed))
                submit(follower, seed, replace(plan, resume=True))

        for seed in seeds:
            for i, group in enumerate(_alike(trials) if plan.warm_up else []):
                likelihood = NegativeLogLikelihood(impossible=group[0].objective.impossible)
                warm_up = Trial(f"warm-up-{i + 1}", group[0].config, likelihood)
                followers[warm_up.name, seed] = group
                submit(warm_up, seed, replace(plan, stop_after=min(plan.warm_up, plan.epochs)))
            for trial in trials if not plan.warm_up else []:
                submit(trial, seed, plan)
        for told in pool.told():
            trial, seed = told.key
            if told.ended:
                finish(trial, seed, told.value)
            else:
                listener.epoch(trial.name, seed, told.value)
    return [Outcome(trial.name, [results[trial.name, seed] for seed in seeds]) for trial in trials]


def _alike(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The trials whose warm-up is the same: of each config, and what it does with impossible examples."""
    groups: list[list[Trial]] = []
    for trial in trials:
        for group in groups:
            if (group[0].config, group[0].objective.impossible) == (trial.config, trial.objective.impossible):
                group.append(trial)
                break
        else:
            groups.append([trial])
    return groups


def _start(task: Task, data: Data) -> None:
    """What every process gets once."""
    global _own
    import torch

    torch.set_num_threads(1)
    _own = task, data


def _work(tell: Callable[[dict[str, float]], None], trial: Trial, folder: Path, plan: Plan) -> Result:
    task, data = _own
    result = run(task, data, trial.config, trial.objective, folder, plan, tell)
    assert result is not None  # there is one process
    return result
