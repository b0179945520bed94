"""`structloss train`, `predict` and `evaluate`: the lecture's learning loop on somebody's own files."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from structloss.cli import extras, options
from structloss.cli.epochs import EpochLines
from structloss.cli.extras import need
from structloss.cli.prepare import prepared, said_plainly
from structloss.cli.running import GO_ON, running
from structloss.naming import OBJECTIVES

Data = Annotated[Path, typer.Argument(help="A file in the format of the task.")]
Model = Annotated[Path, typer.Argument(help="The directory that `structloss train` wrote.")]


def train(
    context: typer.Context,
    task: options.TaskName,
    train: options.TrainFile = None,
    dev: options.DevFile = None,
    test: options.TestFile = None,
    out: Annotated[Path, typer.Option(help="The model directory to write.")] = Path("model"),
    objective: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(OBJECTIVES)}, with settings as in direct:epsilon=1, or a sum such as risk+0.1*nll. By "
            "default nll, and what suits the loss where --loss names one."
        ),
    ] = None,
    loss: options.LossName = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.LearningRate = None,
    l2: options.L2 = None,
    patience: options.Patience = None,
    warm_up: options.WarmUp = 0,
    init: options.Init = None,
    seed: options.Seed = 0,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    checkpoint_seconds: options.CheckpointSeconds = options.CHECKPOINT_SECONDS,
    devices: Annotated[int, typer.Option(min=1, help="Processes that share each batch, on this machine.")] = 1,
    setting: options.Settings = None,
    unknown_labels: options.UnknownLabels = False,
    config: options.Config = None,
    progress: options.ShowProgress = True,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a model on your own files, on the objective and the loss you name.

    Example: `structloss train tagging --train train.txt --dev dev.txt --out model --objective softmax-margin`
    """
    with running(GO_ON, quiet=quiet):
        need(f"structloss train {task}", extras.OF_TASKS.get(task, ("train",)))
        ready = prepared(context)
        from structloss.training.experiment import run

        p = context.params
        silent = p["quiet"] or p["as_json"]
        plan = replace(ready.plan, devices=p["devices"], progress=p["progress"] and not silent and sys.stderr.isatty())
        tell = None if silent else EpochLines(ready.task, plan)
        objective = next(iter(ready.objectives.values()))
        result = run(ready.task, ready.data, ready.config, objective, p["out"], plan, tell)
        if result is None:
            return
        if p["as_json"]:
            typer.echo(json.dumps({"model": str(p["out"]), **asdict(result)}))
        elif not p["quiet"]:
            print_metrics(result.metrics)
            _print_end(p["out"], p["test"] or p["dev"], p["train"])


def _print_end(out: Path, evaluated: Path | None, trained: Path) -> None:
    """The files that were written, and what to type next."""
    from structloss.training.checkpoints import FOLDER
    from structloss.training.directory import MODEL_FILES
    from structloss.training.folder import RESULT

    typer.echo(f"model: {out} ({', '.join(MODEL_FILES)}; {RESULT}, logs, {FOLDER})")
    new = "FOLDER" if trained.is_dir() else f"new{''.join(trained.suffixes[-1:])}"
    typer.echo(f"next: structloss predict {out} {new}")
    if evaluated is not None:
        typer.echo(f"      structloss evaluate {out} {evaluated}")


def print_metrics(rows: dict[str, dict[str, float]]) -> None:
    """A table, in percent."""
    table = Table("", *next(iter(rows.values())))
    for name, metrics in rows.items():
        table.add_row(name, *(f"{100 * value:.2f}" for value in metrics.values()))
    Console().print(table)


def evaluate(
    model: Model,
    data: Data,
    unknown_labels: options.UnknownLabels = False,
    as_json: options.AsJson = False,
) -> None:
    """Print how well a model does on a file with answers.

    As in training, a label that the model does not know is an error, unless such are to be counted as wrong.

    Example: `structloss evaluate model test.txt`
    """
    with said_plainly():
        from structloss.tasks import TASKS
        from structloss.training.directory import load
        from structloss.training.task import predict as answers

        task, loaded = load(model, TASKS)
        examples = task.read(data, loaded.config)
        for example in () if unknown_labels else examples:
            loaded.reference(example)
        metrics = task.evaluate(examples, answers(loaded, examples))
        if as_json:
            typer.echo(json.dumps(metrics))
        else:
            print_metrics({data.name: metrics})


def predict(
    model: Model,
    data: Annotated[Path | None, typer.Argument(help="A file; by default standard input.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write; by default standard output.")] = None,
    nbest: Annotated[int, typer.Option(min=1, help="Write the K best answers, with their probabilities.")] = 1,
    marginals: Annotated[
        bool, typer.Option("--marginals", help="Write in one more column how probable each position's states are.")
    ] = False,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw the first sentence's tree into this file, SVG: parsing.")
    ] = None,
    times: Annotated[
        bool,
        typer.Option("--times", help="Write in one more column when each word begins and ends, in seconds: speech."),
    ] = False,
) -> None:
    """Write a model's answers in the format that was read.

    Example: `structloss predict model new.txt -o tagged.txt`
    """
    with said_plainly():
        import tempfile

        from structloss.files import check_output, write_text
        from structloss.tasks import TASKS
        from structloss.training.directory import load
        from structloss.training.task import nbest_answers, written_marginals

        if out is not None:
            check_output(out, data)
        if picture is not None:
            check_output(picture, data, out)
        task, loaded = load(model, TASKS)
        if data is None:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / "stdin"
                copy.write_bytes(sys.stdin.buffer.read())
                examples = task.read(copy, loaded.config)
        else:
            examples = task.read(data, loaded.config)
        known = written_marginals(loaded, examples) if marginals else [None] * len(examples)
        lines: list[str] = []
        found = nbest_answers(loaded, examples, nbest)
        if picture is not None:
            write_text(picture, task.draw(examples[0], found[0][0].names))
        for example, row, answers in zip(examples, known, found, strict=True):
            for answer in answers:
                if nbest > 1:
                    lines.append(f"# probability = {answer.probability:.6g}")
                if times:
                    row = [f"{word}:{begin:g}-{end:g}" for word, begin, end in loaded.times(answer.output)]
                lines.extend(task.write(example, answer.names, row))
        text = "\n".join(lines) + "\n"
        if out is None:
            sys.stdout.write(text)
        else:
            write_text(out, text)
