"""The same model under several objectives and seeds, several at a time, each in a process of its own."""

import multiprocessing
import os
import queue
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Protocol

from structloss.objectives import NegativeLogLikelihood, Objective
from structloss.training.directory import file_name
from structloss.training.experiment import RESULT, Data, Result, how_made, run
from structloss.training.fit import CHECKPOINT, Plan
from structloss.training.task import Task

_own: tuple[Any, Task, Data]  # of a worker: the queue to the process that started it, and what it trains on


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
    alone. With `plan.resume`, runs that have ended are read and others go on after their last whole epoch.
    """
    spawn = multiprocessing.get_context("spawn")
    told: Any = spawn.Queue()
    results: dict[tuple[str, int], Result] = {}
    running: dict[Future[Result], tuple[str, int, list[Trial]]] = {}  # and the trials that go on from there
    with ProcessPoolExecutor(jobs, spawn, _start, (told, task, data)) as pool:

        def submit(trial: Trial, seed: int, own: Plan, then: list[Trial]) -> None:
            folder = folder_of(out, trial.name, seed)
            own = replace(own, seed=seed, progress=False)
            made = how_made(data, trial.config, trial.objective, own)
            ended = Result.read(folder, made) if plan.resume else None
            if ended is not None:
                finish(trial.name, seed, ended, then)
                return
            (folder / RESULT).unlink(missing_ok=True)
            work = pool.submit(_work, trial, folder, own)
            running[work] = trial.name, seed, then

        def finish(name: str, seed: int, result: Result, then: list[Trial]) -> None:
            results[name, seed] = result
            listener.end(name, seed, result)
            for trial in then:
                begun = folder_of(out, trial.name, seed)
                if not (plan.resume and (begun / CHECKPOINT).is_file()):
                    shutil.rmtree(begun, ignore_errors=True)
                    shutil.copytree(folder_of(out, name, seed), begun, ignore=shutil.ignore_patterns(RESULT, "logs"))
                submit(trial, seed, replace(plan, resume=True), [])

        try:
            for seed in seeds:
                for i, group in enumerate(_alike(trials) if plan.warm_up else []):
                    warm_up = Trial(f"warm-up-{i + 1}", group[0].config, NegativeLogLikelihood())
                    submit(warm_up, seed, replace(plan, stop_after=min(plan.warm_up, plan.epochs)), group)
                for trial in trials if not plan.warm_up else []:
                    submit(trial, seed, plan, [])
            while running:
                done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                _drain(told, listener)
                for future in done:
                    name, seed, then = running.pop(future)
                    finish(name, seed, future.result(), then)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    _drain(told, listener)
    return [Outcome(trial.name, [results[trial.name, seed] for seed in seeds]) for trial in trials]


def _alike(trials: Sequence[Trial]) -> list[list[Trial]]:
    """The trials of each config."""
    groups: list[list[Trial]] = []
    for trial in trials:
        group = next((group for group in groups if group[0].config == trial.config), None)
        if group is None:
            groups.append([trial])
        else:
            group.append(trial)
    return groups


def _drain(told: Any, listener: Listener) -> None:
    while True:
        try:
            listener.epoch(*told.get_nowait())
        except queue.Empty:
            return


def _start(told: Any, task: Task, data: Data) -> None:
    """What every worker gets once."""
    global _own
    import torch

    torch.set_num_threads(1)
    _own = told, task, data


def _work(trial: Trial, folder: Path, plan: Plan) -> Result:
    told, task, data = _own
    result = run(
        task, data, trial.config, trial.objective, folder, plan, lambda row: told.put((trial.name, plan.seed, row))
    )
    assert result is not None  # there is one process
    return result
