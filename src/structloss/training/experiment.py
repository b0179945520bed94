"""One experiment: a task's data, a model, an objective; trained, and the best of its epochs evaluated."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from structloss.files import write_text
from structloss.objectives import Objective
from structloss.training.batches import is_first_process
from structloss.training.directory import load
from structloss.training.fit import fit
from structloss.training.folder import RESULT
from structloss.training.plan import Plan
from structloss.training.record import Record, check_same, described, record_of
from structloss.training.task import DataError, Example, FileTask, Task, TaskModel, check_answers, predict


@dataclass(frozen=True)
class Data:
    """What to train on, to stop on and to report on."""

    train: Sequence[Example]
    dev: Sequence[Example]
    test: Sequence[Example] = ()

    @classmethod
    def read(cls, task: FileTask, train: Path, dev: Path | None, test: Path | None) -> "Data":
        """From files. Without `dev`, every tenth example of the training file is kept for it."""
        examples = task.read(train)
        held = task.read(dev) if dev else examples[::10]
        if dev is None:
            examples = [example for i, example in enumerate(examples) if i % 10]
        if not examples:
            raise ValueError(f"{train}: got too few examples to keep some for --dev")
        return cls(examples, held, task.read(test) if test else ())

    @cached_property
    def described(self) -> dict[str, str]:
        """As the record of a run has it."""
        return described({"train": self.train, "dev": self.dev, "test": self.test})

    def check_labels(self, model: TaskModel) -> None:
        """Labels that the training data lack are an error before anything is trained, not after an hour."""
        held = (*self.dev, *self.test)
        check_answers(model, held)
        for example in held:
            _check_possible(model, example)

    def check_possible(self, model: TaskModel) -> None:
        """Answers of training examples that no output can agree with are an error before anything is trained."""
        for example in self.train:
            model.reference(example)
            _check_possible(model, example)


def _check_possible(model: TaskModel, example: Example) -> None:
    reason = model.impossible(example)
    if reason:
        raise DataError(f"{example.where}: {reason}")


@dataclass(frozen=True)
class Result:
    """What became of it: a row for each epoch, the metrics of the best model on dev and test, and the time it took."""

    history: list[dict[str, float]]
    metrics: dict[str, dict[str, float]]
    seconds: float
    made: Record = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, made: Record) -> "Result | None":
        """That of a run that has ended in this folder; a `DataError` where it was made otherwise."""
        path = folder / RESULT
        if not path.is_file():
            return None
        try:
            result = cls(**json.loads(path.read_text(encoding="utf-8")))
        except (ValueError, TypeError, RecursionError):
            raise DataError(f"{path}: is damaged; --overwrite begins anew") from None
        check_same(path, result.made, made)
        return result


def begin_as(model: TaskModel, task: Task, folder: Path) -> None:
    """Give a model the weights of one that was trained before."""
    _, trained = load(folder, {task.name: task})
    try:
        model.load_state_dict(trained.state_dict())
    except RuntimeError as error:
        raise DataError(f"{folder}: is a model of other sizes ({str(error).splitlines()[-1].strip()})") from None


def run(
    task: Task, data: Data, config: Mapping[str, Any], objective: Objective, out: Path, plan: Plan,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> Result | None:  # fmt: skip
    """Train a model of `config` in the folder `out`, and write its result there; None in processes that only help.

    `on_epoch` is called with the row of each epoch.
    """
    begin = time.perf_counter()
    torch.manual_seed(plan.seed)
    made = record_of(task, data.described, config, objective, plan)
    model = task.build(dict(config))
    if plan.init:
        begin_as(model, task, Path(plan.init))
    history = fit(task, model, objective, data.train, data.dev, out, plan, made, on_epoch)
    if not is_first_process():
        return None
    _, best = load(out, {task.name: task})
    parts = {"dev": data.dev, "test": data.test} if data.test else {"dev": data.dev}
    metrics = {name: task.evaluate(examples, predict(best, examples)) for name, examples in parts.items()}
    result = Result(history, metrics, time.perf_counter() - begin, made)
    write_text(out / RESULT, json.dumps(asdict(result), indent=1))
    return result
