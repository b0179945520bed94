"""`structloss compare`: the same model under several objectives and seeds, in one table and on one page."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from structloss.cli import extras, options
from structloss.cli.extras import need
from structloss.cli.prepare import prepared
from structloss.cli.running import GO_ON, PROCESSES_GRACE, running

OBJECTIVES = ["nll", "softmax-margin", "hinge", "direct", "risk"]


def compare(
    context: typer.Context,
    task: options.TaskName,
    train: options.TrainFile = None,
    dev: options.DevFile = None,
    test: options.TestFile = None,
    out: Annotated[Path, typer.Option(help="Folder for index.html, results.json and the models.")] = Path("comparison"),
    objective: Annotated[
        list[str] | None,
        typer.Option(help=f"An objective; give it several times. By default {', '.join(OBJECTIVES)}."),
    ] = None,
    loss: options.LossName = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from --seed on.")] = 3,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; by default one a core.")] = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    lr: options.LearningRate = None,
    l2: options.L2 = None,
    patience: options.Patience = None,
    warm_up: options.WarmUp = None,
    init: options.Init = None,
    seed: options.Seed = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Keep runs that have ended, go on with others.")] = False,
    overwrite: options.Overwrite = False,
    checkpoint_seconds: options.CheckpointSeconds = options.CHECKPOINT_SECONDS,
    setting: options.Settings = None,
    unknown_labels: options.UnknownLabels = False,
    config: options.Config = None,
    progress: options.ShowProgress = True,
    quiet: options.Quiet = False,
    as_json: options.AsJson = False,
) -> None:
    """Train the same model under several objectives and seeds: one table, mean and deviation, and a page with curves.

    Example: `structloss compare g2p --train train.tsv --dev dev.tsv --objective nll --objective risk --seeds 3`
    """
    with running(GO_ON, PROCESSES_GRACE, quiet):
        need(f"structloss compare {task}", extras.OF_TASKS.get(task, ("train",)))
        ready = prepared(context, OBJECTIVES)
        from structloss.cli import comparison
        from structloss.files import write_text
        from structloss.training.compare import Trial, cores, num_epochs
        from structloss.training.compare import compare as run

        p = context.params
        trials = [Trial(name, ready.config, made) for name, made in ready.objectives.items()]
        numbers = range(p["seed"], p["seed"] + p["seeds"])
        silent = p["quiet"] or p["as_json"]
        total = num_epochs(trials, ready.plan, numbers)
        with comparison.EpochsBar(ready.task, total, p["progress"], silent) as bar:
            outcomes = run(ready.task, ready.data, trials, p["out"], ready.plan, numbers, p["jobs"] or cores(), bar)
        loss_name = p["loss"] or ready.task.loss
        title = f"{ready.task.name}: {Path(p['train']).name} under {len(trials)} objectives"
        about = (
            f"Trained on {len(ready.data.train)} examples of {Path(p['train']).name}, at most {ready.plan.epochs} "
            f"epochs of batches of {ready.plan.batch_size}; the loss is {loss_name}. The best epoch on dev is reported."
        )
        measured = comparison.as_json(outcomes, loss=loss_name, seeds=list(numbers))
        write_text(p["out"] / "results.json", measured)
        write_text(p["out"] / "index.html", comparison.as_page(ready.task, outcomes, title, about, ready.task.metric))
        if p["as_json"]:
            typer.echo(measured, nl=False)
        elif not p["quiet"]:
            Console().print(comparison.as_table(ready.task, outcomes, title, ready.task.metric))
            typer.echo(f"page: {p['out'] / 'index.html'} (and results.json; a model in each folder of runs)")
