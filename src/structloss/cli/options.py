"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from structloss.naming import LOSSES
from structloss.training.plan import Plan

CHECKPOINT_SECONDS = Plan().checkpoint_seconds

TaskName = Annotated[
    str,
    typer.Argument(
        help="tagging: CoNLL columns or CoNLL-U; g2p: words and phones; ocr: an npz of handwritten words; "
        "parsing: CoNLL-U; speech: recordings and transcripts."
    ),
]
TrainFile = Annotated[Path | None, typer.Option("--train", help="The file to train on.")]
DevFile = Annotated[Path | None, typer.Option("--dev", help="The file to stop on; by default every tenth example.")]
TestFile = Annotated[Path | None, typer.Option("--test", help="A file to evaluate the best model on.")]
LossName = Annotated[
    str | None,
    typer.Option(
        help=f"{', '.join(LOSSES)}, with settings as in edit:cap=5, or a transducer's file; the task's by default."
    ),
]
Epochs = Annotated[int | None, typer.Option(min=1, help="At most so many; by default what suits the model.")]
BatchSize = Annotated[int | None, typer.Option(min=1, help="By default what suits the model.")]
LearningRate = Annotated[float | None, typer.Option("--lr", help="Learning rate; by default the model's own.")]
L2 = Annotated[
    float | None,
    typer.Option(
        "--l2", min=0.0, help="The lecture's C: the factor of |w|^2 / 2; by default the model's, 0 for direct."
    ),
]
Patience = Annotated[
    int | None,
    typer.Option(min=1, help="Stop after so many epochs without a better dev metric; by default the task's."),
]
WarmUp = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Train the first so many epochs on the likelihood; by default two thirds for risk, else none, and none "
        "after --init.",
    ),
]
Init = Annotated[Path | None, typer.Option("--init", help="A model directory whose weights training begins with.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same numbers.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the model, such as model=bilstm or order=3.")
]
UnknownLabels = Annotated[
    bool, typer.Option("--unknown-labels", help="Count labels that training lacks as wrong, instead of stopping.")
]
Config = Annotated[Path | None, typer.Option(help="A JSON file with any of these options.")]
ShowProgress = Annotated[bool, typer.Option(help="Show a progress bar, where the output is a terminal.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but what goes wrong.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output instead of a table.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in --out.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Remove the run that --out holds, and begin anew.")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Files at a time; by default one a core.")]
Cluster = Annotated[
    str | None, typer.Option(help="The address of a dask scheduler whose workers do it, such as tcp://10.0.0.1:8786.")
]
ResumeFiles = Annotated[bool, typer.Option("--resume", help="Leave alone what this model has done in --out before.")]
CheckpointSeconds = Annotated[
    float, typer.Option(min=0.0, help="Write a checkpoint after so long within an epoch; after an epoch always.")
]
