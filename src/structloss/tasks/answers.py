"""A model's answers to files: written in the format that was read, or judged."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from structloss.files import write_text
from structloss.training.directory import checksum_of, load
from structloss.training.task import (
    Answer,
    Example,
    FileTask,
    TaskModel,
    check_answers,
    nbest_answers,
    predict,
    written_marginals,
)


def written(
    task: FileTask, model: TaskModel, examples: Sequence[Example], found: Sequence[Sequence[Answer]],
    nbest: int = 1, marginals: bool = False, times: bool = False,
) -> str:  # fmt: skip
    """The answers found (`nbest_answers`) to examples, with one more column of marginals or of the times of words."""
    known = written_marginals(model, examples) if marginals else [None] * len(examples)
    lines: list[str] = []
    for example, row, answers in zip(examples, known, found, strict=True):
        for answer in answers:
            if nbest > 1:
                lines.append(f"# probability = {answer.probability:.6g}")
            if times:
                row = [f"{word}:{begin:g}-{end:g}" for word, begin, end in model.times(answer.output)]
            lines.extend(task.write(example, answer.names, row))
    return "\n".join(lines) + "\n"


@lru_cache(maxsize=2)
def _loaded(folder: Path, checksum: str) -> tuple[FileTask, TaskModel]:
    """A model in a process that answers many files: read once."""
    from structloss.tasks import TASKS

    return load(folder, TASKS)


def predict_file(folder: Path, path: Path, out: Path, nbest: int, marginals: bool, times: bool) -> None:
    """Write the answers of the model of a directory to one file."""
    task, model = _loaded(folder, checksum_of(folder))
    examples = task.read(path, model.config)
    write_text(out, written(task, model, examples, nbest_answers(model, examples, nbest), nbest, marginals, times))


def evaluate_file(
    folder: Path, path: Path, unknown_labels: bool
) -> tuple[list[Example], list[tuple[Any, ...]], Mapping[str, float]]:
    """The examples of a file, what the model of a directory answers, and how good that is."""
    task, model = _loaded(folder, checksum_of(folder))
    examples = task.read(path, model.config)
    if not unknown_labels:
        check_answers(model, examples)
    answers = predict(model, examples)
    return examples, answers, task.evaluate(examples, answers)
