"""`structloss reproduce`: the papers' figures and tables."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from structloss.cli import options, plots
from structloss.cli.prepare import said_plainly

if TYPE_CHECKING:
    from structloss.reproduce.alignment import Table as Results
    from structloss.tasks.alignment.recordings import Speech

app = typer.Typer(help="The papers' figures and tables.", no_args_is_help=True, rich_markup_mode="markdown")

SEEN = ("festival-kal", "festival-slt-hts", "flite-slt", "flite-rms")
UNSEEN = "flite-awb"


@app.callback()
def _reproduce() -> None:
    pass


@app.command()
def alignment(
    out: Annotated[Path, typer.Option(help="Folder for table, JSON, plot, models and the speech that is made.")] = Path(
        "out/alignment"
    ),
    timit: Annotated[Path | None, typer.Option(help="A TIMIT directory, to use instead of synthetic voices.")] = None,
    digits: Annotated[Path | None, typer.Option(help="The spoken digits (fsdd), to use instead.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from --seed on.")] = 3,
    hop: Annotated[float, typer.Option(help="Milliseconds from one frame to the next.")] = 10.0,
    classifier: Annotated[str, typer.Option(help="network, or the paper's kernel.")] = "network",
    epochs: Annotated[int, typer.Option(min=1, help="Of each training of the weights.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Little data, one seed: some minutes.")] = False,
    seed: options.Seed = 0,
) -> None:
    """McAllester 2010, Table 1: the part of boundaries within 10, 20, 30 and 40 ms, for each way to train.

    By default on voices of festival and flite: four are trained on, and sentences by them and by a fifth are tested.

    Example: `structloss reproduce alignment --quick --out out/quick`
    """
    with said_plainly():
        plots.require_matplotlib()
        from structloss.reproduce import alignment as reproduction
        from structloss.tasks.alignment.utterance import Utterance
        from structloss.training.directory import write_bytes, write_text

        console = Console(stderr=True)

        def say(text: str) -> None:
            console.print(text, highlight=False)

        if timit is not None:
            train, tests = _timit(timit, seed)
        elif digits is not None:
            train, tests = _digits(digits, seed, 60 if quick else 600, 20 if quick else 300)
        else:
            train, tests = _voices(out / "speech", seed, quick, say)
        say(f"{len(train)} recordings to train on; to test on: " + ", ".join(f"{len(v)} {k}" for k, v in tests.items()))
        numbers = range(seed, seed + (1 if quick else seeds))
        results = reproduction.table(
            [Utterance.of(speech, hop) for speech in train], tests, out / "runs", numbers, hop,
            {"classifier": classifier}, epochs, say, sphinx=digits is None,
        )  # fmt: skip
        for name in results.rows:
            Console().print(_as_table(results, name, len(numbers)))
        write_text(out / "results.json", json.dumps({"rows": results.rows, "boundaries": results.boundaries}, indent=1))
        write_bytes(out / "alignment.png", _plot(results))
        for name in ("results.json", "alignment.png"):
            typer.echo(f"Wrote {out / name}")


def _voices(
    folder: Path, seed: int, quick: bool, say: Callable[[str], None]
) -> "tuple[list[Speech], dict[str, list[Speech]]]":
    """Sentences by four voices, other sentences by them, and by a fifth."""
    from structloss.tasks.alignment.sentences import sentences
    from structloss.tasks.alignment.synthesis import synthesise

    def made(name: str, voices: "tuple[str, ...]", count: int, own_seed: int) -> "list[Speech]":
        speech = []
        for voice in voices:
            result = synthesise(sentences(count, own_seed), voice, folder / name / voice)
            say(f"{name}: {len(result.recordings)} sentences by {voice}, {len(result.dropped)} dropped")
            speech += [recording.read() for recording in result.recordings]
        return speech

    sizes = (30, 8, 20) if quick else (300, 130, 500)
    train = made("train", SEEN, sizes[0], 3 * seed + 1)
    return train, {
        "voices it knows": made("test", SEEN, sizes[1], 3 * seed + 2),
        "another voice": made("unseen", (UNSEEN,), sizes[2], 3 * seed + 3),
    }


def _digits(folder: Path, seed: int, train: int, test: int) -> "tuple[list[Speech], dict[str, list[Speech]]]":
    from structloss.tasks.alignment import digits

    return (
        digits.utterances(folder, train, seed, digits.TRAIN),
        {"other people": digits.utterances(folder, test, seed + 1, digits.TEST)},
    )


def _timit(folder: Path, seed: int) -> "tuple[list[Speech], dict[str, list[Speech]]]":
    from structloss.tasks.alignment import timit

    parts = timit.parts(folder, seed)
    train = [r.read() for r in (*parts.classifier, *parts.alignment, *parts.holdout)]
    return train, {"TIMIT's test set": [r.read() for r in parts.test]}


def _as_table(results: "Results", name: str, seeds: int) -> Table:
    from structloss.tasks.alignment.task import TOLERANCES

    table = Table(title=f"Boundaries placed right, {name} (percent of {results.boundaries[name]}; seeds: {seeds})")
    table.add_column("trained by")
    for tolerance in TOLERANCES:
        table.add_column(f"within {tolerance} ms", justify="right")
    for method, runs in results.rows[name].items():
        cells = [results.summary(name, method, tolerance) for tolerance in TOLERANCES]
        table.add_row(method, *(f"{m:.2f} ± {d:.2f}" if len(runs) > 1 else f"{m:.2f}" for m, d in cells))
    return table


def _plot(results: "Results") -> bytes:
    from structloss.tasks.alignment.task import TOLERANCES

    panels = {
        name: {m: [results.summary(name, m, t) for t in TOLERANCES] for m in rows}
        for name, rows in results.rows.items()
    }
    return plots.tolerances(panels, TOLERANCES)
