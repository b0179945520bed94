"""`structloss demo`: the same small model trained under each objective, on sequences generated on the spot."""

import copy
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import Tensor, nn

import structloss as sl
from structloss.cli import plots

LABELS = 8
SHORTEST, LONGEST = 8, 20
SEQUENCES = 400
BATCH = 32
LEARNING_RATE = 0.01
EPSILON = 0.3
TEMPERATURE = 0.3


class Sequences(NamedTuple):
    """A set of labelled sequences. Beyond a length features are 0 and labels -1."""

    features: Tensor  # (N, LONGEST, LABELS)
    labels: Tensor  # (N, LONGEST)
    lengths: Tensor  # (N,)


class Epoch(NamedTuple):
    """One pass over the training data: how long it took, and the percentage of held-out positions wrong after it."""

    seconds: float
    wrong: float


@dataclass
class Run:
    """What became of the model under one objective."""

    objective: str
    seconds: float = 0.0
    curve: list[float] = field(default_factory=list)

    @property
    def wrong(self) -> float:
        """The percentage of held-out positions wrong after the last epoch."""
        return self.curve[-1]


class Tagger(nn.Module):
    """A chain whose emissions come from one hidden layer over a window of three positions."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.emissions = nn.Sequential(
            nn.Conv1d(LABELS, hidden, kernel_size=3, padding=1), nn.ReLU(), nn.Conv1d(hidden, LABELS, kernel_size=1)
        )
        self.chain = sl.ChainLayer(LABELS)

    def forward(self, features: Tensor, lengths: Tensor) -> sl.Chain:
        chain: sl.Chain = self.chain(self.emissions(features.transpose(1, 2)).transpose(1, 2), lengths)
        return chain


def objectives() -> dict[str, sl.Objective]:
    """Every objective of the library, on the Hamming loss, under the name that the table shows."""
    loss = sl.Hamming()
    return {
        "NegativeLogLikelihood": sl.NegativeLogLikelihood(),
        "SoftmaxMargin": sl.SoftmaxMargin(loss),
        "Perceptron": sl.Perceptron(),
        "Hinge": sl.Hinge(loss),
        "SlackHinge": sl.SlackHinge(loss),
        f"DirectLoss, epsilon {EPSILON}": sl.DirectLoss(loss, EPSILON),
        "Risk": sl.Risk(loss),
        f"RewardAugmented, temperature {TEMPERATURE}": sl.RewardAugmented(loss, TEMPERATURE),
    }


def draw_transitions(generator: torch.Generator) -> Tensor:
    """The probability of each next label, (LABELS, LABELS): 0.6 for one label, 0.3 for another, the rest for any.

    Both are permutations, so that all labels are equally frequent in the long run.
    """
    likely, possible = (torch.eye(LABELS)[torch.randperm(LABELS, generator=generator)] for _ in range(2))
    return 0.6 * likely + 0.3 * possible + 0.1 / LABELS


def draw_sequences(count: int, transitions: Tensor, generator: torch.Generator) -> Sequences:
    """Sequences of a hidden Markov chain whose symbols tell a label from its twin, 2i from 2i + 1, 7 times in 10.

    Features are the symbol's indicator plus Gaussian noise.
    """
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count,), generator=generator)
    labels = torch.randint(LABELS, (count, LONGEST), generator=generator)
    for t in range(1, LONGEST):
        labels[:, t] = torch.multinomial(transitions[labels[:, t - 1]], 1, generator=generator)[:, 0]
    symbols = labels ^ (torch.rand(labels.shape, generator=generator) < 0.3).long()
    noise = 0.4 * torch.randn(count, LONGEST, LABELS, generator=generator)
    within = torch.arange(LONGEST) < lengths[:, None]
    features = (torch.eye(LABELS)[symbols] + noise) * within[:, :, None]
    return Sequences(features, torch.where(within, labels, -1), lengths)


def draw_model(seed: int) -> Tagger:
    """A model with random weights; torch's own generator is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Tagger()


def percent_wrong(model: Tagger, data: Sequences) -> float:
    """The Hamming loss of the best outputs, as a percentage of all positions."""
    with torch.no_grad():
        answers = model(data.features, data.lengths).argmax()
    return 100 * float(sl.Hamming()(answers, data.labels, data.lengths).sum()) / int(data.lengths.sum())


def train(
    model: Tagger, objective: sl.Objective, data: Sequences, held_out: Sequences, epochs: int, seed: int
) -> Iterator[Epoch]:
    """Train the model in place with Adam, in an order that depends on the seed alone."""
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        start = time.perf_counter()
        for batch in torch.split(torch.randperm(len(data.lengths), generator=generator), BATCH):
            optimizer.zero_grad()
            objective(model(data.features[batch], data.lengths[batch]), data.labels[batch]).backward()
            optimizer.step()
        yield Epoch(time.perf_counter() - start, percent_wrong(model, held_out))


def compare(epochs: int, seed: int, progress: Progress) -> list[Run]:
    """Train a copy of one model under each objective."""
    generator = torch.Generator().manual_seed(seed)
    transitions = draw_transitions(generator)
    data, held_out = (draw_sequences(SEQUENCES, transitions, generator) for _ in range(2))
    model = draw_model(seed)
    candidates = objectives()
    task = progress.add_task("", total=len(candidates) * epochs)
    runs = []
    for name, objective in candidates.items():
        progress.update(task, description=name)
        # One batch first, on a copy: compiling a kernel is no part of the training time.
        one_batch = Sequences(*(x[:BATCH] for x in data))
        next(train(copy.deepcopy(model), objective, one_batch, held_out, 1, seed))
        run = Run(name)
        for epoch in train(copy.deepcopy(model), objective, data, held_out, epochs, seed):
            run.seconds += epoch.seconds
            run.curve.append(epoch.wrong)
            progress.update(task, advance=1, description=f"{name}: {epoch.wrong:.1f} % wrong")
        if progress.disable:
            progress.console.print(f"{name}: {run.wrong:.1f} % wrong, {run.seconds:.1f} s")
        runs.append(run)
    return runs


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: so small a model gains from no more, and the number of cores changes no sum."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def progress_bar(console: Console) -> Progress:
    """A bar that disappears when all is done; disabled where the console cannot redraw a line."""
    columns = (TextColumn("{task.description:<48}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_interactive)


def as_table(runs: list[Run], title: str) -> Table:
    """The runs as a table, the best marked."""
    table = Table(title=title, caption="* lowest loss")
    table.add_column("objective")
    table.add_column("training seconds", justify="right")
    table.add_column("held-out Hamming loss\n(% of positions wrong)", justify="right")
    best = min(run.wrong for run in runs)
    for run in runs:
        is_best = run.wrong == best
        mark = "*" if is_best else " "
        table.add_row(
            run.objective, f"{run.seconds:.2f}", f"{run.wrong:.2f} {mark}", style="bold green" if is_best else None
        )
    return table


def as_json(runs: list[Run], epochs: int, seed: int) -> bytes:
    """The table as JSON, with the curves and what is needed to repeat them."""
    rows = [
        {
            "objective": run.objective,
            "training_seconds": run.seconds,
            "held_out_hamming_percent": run.wrong,
            "held_out_hamming_percent_by_epoch": run.curve,
        }
        for run in runs
    ]
    results = {"structloss": sl.__version__, "seed": seed, "epochs": epochs, "results": rows}
    return (json.dumps(results, indent=2) + "\n").encode()


def write_together(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write every file under a temporary name, and only when all are complete rename them."""
    temporary = {folder / name: folder / f".{name}.part" for name in contents}
    try:
        for name, content in contents.items():
            temporary[folder / name].write_bytes(content)
        for path, part in temporary.items():
            part.replace(path)
    finally:
        for part in temporary.values():
            part.unlink(missing_ok=True)
    return list(temporary)


def prepare_folder(folder: Path) -> None:
    """Make the folder, and see before any training that files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".structloss.part"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise typer.BadParameter(f"cannot write to {folder}: {error.strerror}", param_hint="'--out'") from error


def leave(message: str) -> typer.Exit:
    """Print what went wrong; the exception to raise."""
    typer.echo(f"Error: {message}", err=True)
    return typer.Exit(1)


def demo(
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder for curves.png and results.json; made if missing.")
    ] = Path("out/demo"),
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training data under each objective.")] = 30,
    seed: Annotated[
        int, typer.Option(min=0, max=2**32 - 1, help="Of the data, the first weights and the order of the batches.")
    ] = 0,
) -> None:
    """Train the same small model under each objective, and compare.

    The data are made up on the spot: 400 sequences to train on and 400 held out, of 8 to 20 positions with 8 labels.
    A label's observation is easily taken for another's; its neighbours help. All objectives start from the same
    weights and see the same batches. Training time counts neither compilation nor evaluation. The same seed gives the
    same losses.

    Example: structloss demo --epochs 10 --seed 1 --out out/quick
    """
    try:
        plots.require_matplotlib()
    except ModuleNotFoundError as error:
        raise leave(str(error)) from error
    prepare_folder(out)
    with one_thread(), progress_bar(Console(stderr=True)) as progress:
        runs = compare(epochs, seed, progress)
    Console().print(as_table(runs, f"The same model under each objective (epochs: {epochs}, seed: {seed})"))
    curves = plots.learning_curves(
        {run.objective: run.curve for run in runs},
        title="The same model under each objective, on held-out data",
        y_label="Hamming loss (% of positions wrong)",
    )
    try:
        written = write_together(out, {"curves.png": curves, "results.json": as_json(runs, epochs, seed)})
    except OSError as error:
        raise leave(f"cannot write to {out}: {error.strerror}") from error
    for path in written:
        typer.echo(f"Wrote {path}")
