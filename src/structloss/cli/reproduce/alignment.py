"""`structloss reproduce alignment`: McAllester 2010, Table 1."""

import random
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from structloss.cli import options, plots
from structloss.cli.prepare import said_plainly
from structloss.cli.reproduce import differences as figure
from structloss.cli.reproduce.show import show, start

if TYPE_CHECKING:
    from structloss.cli.reproduce.differences import Interval
    from structloss.reproduce.alignment import Table as Results
    from structloss.reproduce.finding import Grid
    from structloss.tasks.alignment.recordings import Speech

SEEN = ("festival-kal", "festival-slt-hts", "flite-slt", "flite-rms")
UNSEEN = "flite-awb"


def alignment(
    out: Annotated[Path, typer.Option(help="Folder for table, JSON, plot, models and the speech that is made.")] = Path(
        "out/alignment"
    ),
    timit: Annotated[Path | None, typer.Option(help="A TIMIT directory, to use instead of synthetic voices.")] = None,
    digits: Annotated[Path | None, typer.Option(help="The spoken digits (fsdd), to use instead.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from --seed on.")] = 3,
    hop: Annotated[float, typer.Option(help="Milliseconds from one frame to the next.")] = 10.0,
    classifier: Annotated[str, typer.Option(help="The paper's kernel, or network.")] = "kernel",
    epochs: Annotated[int, typer.Option(min=1, help="Of 50 updates, at most; each is followed by a look.")] = 8,
    noise: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="This share of the training's boundaries is moved, grossly.")
    ] = 0.0,
    quick: Annotated[bool, typer.Option("--quick", help="Little data, one seed: some minutes.")] = False,
    seed: options.Seed = 0,
) -> None:
    """McAllester 2010, Table 1: the part of boundaries within 10, 20, 30 and 40 ms, for each way to train.

    By default on voices of festival and flite: four are trained on, and sentences by them and by a fifth are tested.
    What is trained stays in the folder, and a run that was ended goes on from there; so do more seeds.

    Example: `structloss reproduce alignment --quick --out out/quick`
    """
    with said_plainly():
        plots.require_matplotlib()
        from structloss.reproduce import alignment as reproduction
        from structloss.reproduce.finding import Finding
        from structloss.tasks.alignment.utterance import Utterance

        say, begin = start(out), time.perf_counter()

        if timit is not None:
            train, tests = _timit(timit, seed)
        elif digits is not None:
            train, tests = _digits(digits, seed, 60 if quick else 600, 20 if quick else 300)
        else:
            train, tests = _voices(out / "speech", seed, quick, say)
        say(f"{len(train)} recordings to train on; to test on: " + ", ".join(f"{len(v)} {k}" for k, v in tests.items()))
        numbers = range(seed, seed + (1 if quick else seeds))
        known, generator = [Utterance.of(speech, hop) for speech in train], random.Random(seed)
        if noise:
            known = [reproduction.with_gross_errors(utterance, noise, generator) for utterance in known]
        results = reproduction.table(
            known, tests, out / "runs", numbers, hop,
            {"classifier": classifier}, min(epochs, 2) if quick else epochs, say, words=digits is not None,
        )  # fmt: skip
        corpus = "TIMIT" if timit else "spoken digits" if digits else "synthetic voices"
        finding = Finding(
            name="alignment", title=f"Forced alignment: {corpus}",
            paper="McAllester 2010, Table 1, on TIMIT, percent of boundaries within 10 / 20 / 30 / 40 ms: "
            + "; ".join(f"{name} {' / '.join(map(str, row))}" for name, row in reproduction.PAPER.items()) + ".",
            grids=[
                *(_grid(results, name, len(numbers)) for name in results.rows),
                *(_differences(results, name) for name in results.rows),
                _chosen(results),
            ],
            remarks=[
                f"Trained and tested on {corpus}, so the figures compare with each other, not with the paper's.",
                "Losses and tables compare frames with times, to the bit. Intervals are bootstraps over utterances.",
                *_without_times(results),
                *([f"{noise:.0%} of the training's boundaries were moved: a case that was looked for."] * bool(noise)),
            ],
            command=" ".join(
                ["structloss reproduce alignment", *_typed(timit, digits, seeds, classifier, epochs, noise, quick)]
            ),
            seconds=time.perf_counter() - begin,
            pictures={"alignment.png": "Percent more right than by the structural SVM, with 95 % intervals."},
        )  # fmt: skip
        data = asdict(results)
        show(finding, out, data, {"alignment.png": _plot(results)})


def _typed(
    timit: Path | None, digits: Path | None, seeds: int, classifier: str, epochs: int, noise: float, quick: bool
) -> list[str]:
    given = {
        "--timit DIR": timit, "--digits DIR": digits, f"--seeds {seeds}": seeds != 3,
        f"--classifier {classifier}": classifier != "kernel",
        f"--epochs {epochs}": epochs != 8, f"--noise {noise:g}": noise, "--quick": quick,
    }  # fmt: skip
    return [text for text, wanted in given.items() if wanted]


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

    sizes = (30, 8, 20) if quick else (150, 40, 160)
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


def _grid(results: "Results", name: str, seeds: int) -> "Grid":
    from structloss.reproduce.finding import Grid
    from structloss.tasks.alignment.task import TOLERANCES

    rows = []
    for method, runs in results.rows[name].items():
        cells = [results.summary(name, method, tolerance) for tolerance in TOLERANCES]
        rows.append([method, *(f"{m:.2f} ± {d:.2f}" if len(runs) > 1 else f"{m:.2f}" for m, d in cells)])
    caption = f"Boundaries placed right, {name} (percent of {sum(results.boundaries[name])}; seeds: {seeds})"
    return Grid(caption, ["trained by", *(f"within {tolerance} ms" for tolerance in TOLERANCES)], rows)


def _intervals(results: "Results", name: str) -> "dict[str, list[Interval]]":
    """Whether others beat the structural SVM, at the tolerance that they were trained on and beyond."""
    from structloss.reproduce.alignment import OFF_THE_SHELF, SVM
    from structloss.tasks.alignment.task import TOLERANCES

    others = [method for method in results.rows[name] if method not in (OFF_THE_SHELF, SVM)]
    return {method: [results.difference(name, method, SVM, at) for at in TOLERANCES] for method in others}


def _differences(results: "Results", name: str) -> "Grid":
    from structloss.reproduce.alignment import SVM
    from structloss.reproduce.finding import Grid
    from structloss.tasks.alignment.task import TOLERANCES

    rows = [
        [method, *(f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]" for mean, low, high in found)]
        for method, found in _intervals(results, name).items()
    ]
    caption = f"Percent more than the {SVM}, {name}, with 95 % intervals"
    return Grid(caption, ["trained by", *(f"within {tolerance} ms" for tolerance in TOLERANCES)], rows)


def _chosen(results: "Results") -> "Grid":
    """What the held-out recordings chose, and which share of the updates moved the weights."""
    from structloss.reproduce.finding import Grid

    rows = []
    for method, runs in next(iter(results.rows.values())).items():
        if runs[0].chosen:
            moved = " ".join(f"{100 * run.moved:.0f}" for run in runs)
            rows.append(
                [method, ", ".join(run.chosen for run in runs), " ".join(str(50 * r.epochs) for r in runs), moved]
            )
    return Grid(
        "Chosen on held-out recordings, for each seed", ["trained by", "chosen", "updates", "not zero, %"], rows
    )


def _without_times(results: "Results") -> list[str]:
    """What is lost where nobody says when phones start, beside the aligner that knows nothing of these recordings."""
    from structloss.reproduce.alignment import DIRECT, OFF_THE_SHELF, WITHOUT_TIMES

    told = []
    for name in results.rows if DIRECT + WITHOUT_TIMES in next(iter(results.rows.values())) else ():
        cells = []
        for other in (OFF_THE_SHELF, DIRECT):
            mean, low, high = results.difference(name, DIRECT + WITHOUT_TIMES, other, 20)
            cells.append(f"{mean:+.2f} [{low:+.2f}, {high:+.2f}] percent against {other}")
        told.append(f"Trained without times, {name}, within 20 ms: {', '.join(cells)}.")
    return told


def _plot(results: "Results") -> bytes:
    from structloss.reproduce.alignment import SVM
    from structloss.tasks.alignment.task import TOLERANCES

    return figure.differences({name: _intervals(results, name) for name in results.rows}, TOLERANCES, SVM)
