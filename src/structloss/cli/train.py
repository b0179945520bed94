"""`structloss train`: the lecture's learning loop on somebody's own files."""

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
from structloss.cli.prepare import prepared
from structloss.cli.running import GO_ON, running
from structloss.naming import OBJECTIVES


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
    warm_up: options.WarmUp = None,
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
        [trained] = ready.objectives.values()
        result = run(ready.task, ready.data, ready.config, trained, p["out"], plan, tell)
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
