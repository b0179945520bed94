"""`structloss align`: find when each phone of a recording starts, with a model trained on a tolerance."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console
from rich.progress import track

from structloss.cli import options
from structloss.cli.answer import WHOLE, many
from structloss.cli.prepare import said_plainly
from structloss.cli.running import GO_ON, PROCESSES_GRACE, running
from structloss.cli.train import print_metrics

app = typer.Typer(help="Find when each phone of a recording starts.", no_args_is_help=True, rich_markup_mode=None)

T = TypeVar("T")

Folder = Annotated[
    Path, typer.Argument(help="A folder of recordings, each with a TextGrid, .lab, .phn or .segs beside it.")
]
Dictionary = Annotated[
    Path | None,
    typer.Option(help="How the words of texts are pronounced: lines of a word and its phones. By default English."),
]
LabUnit = Annotated[
    str | None,
    typer.Option(help="What times of a .lab are in: 100ns, samples, ms or seconds. By default what its numbers tell."),
]


@app.command()
def train(
    data: Annotated[
        Path,
        typer.Argument(
            help="A folder of recordings, each with a TextGrid, .lab, .phn or .segs beside it, or all with a .txt only."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The model directory to write.")] = Path("aligner"),
    test: Annotated[Path | None, typer.Option(help="Another such folder, to evaluate the model on.")] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="perceptron, hinge, direct, direct:toward=false, softmax-margin, annealed, passive-aggressive, ..."
        ),
    ] = "direct",
    loss: Annotated[str, typer.Option(help="tolerance:tau_ms=10 or insensitive:tau_ms=10.")] = "tolerance:tau_ms=10",
    epsilon: Annotated[
        list[float] | None,
        typer.Option(help="Of direct loss; of several the best on held-out data is taken; by default 1.1 to 35."),
    ] = None,
    hop: Annotated[float, typer.Option(help="Milliseconds from one frame to the next.")] = 10.0,
    classifier: Annotated[str, typer.Option(help="network, or the paper's kernel.")] = "network",
    learns: Annotated[
        str, typer.Option(help="weights: the seven alone, as in the paper; all: the network too.")
    ] = "weights",
    dictionary: Dictionary = None,
    phones: Annotated[bool, typer.Option("--phones", help="Texts without times are of phones, not of words.")] = False,
    lab_unit: LabUnit = None,
    epochs: Annotated[
        int | None,
        typer.Option(min=1, help="At most so many looks at the held-out part: one in 50 updates, 40 by default."),
    ] = None,
    seed: options.Seed = 0,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    checkpoint_seconds: options.CheckpointSeconds = options.CHECKPOINT_SECONDS,
) -> None:
    """Train an aligner on recordings whose phones have times, or on recordings and texts alone.

    Where no recording of the folder has times, but a text of its phones or words, they are found from a flat start.

    Example: `structloss align train corpus/train --test corpus/test --out aligner`
    """
    with running(GO_ON):
        from structloss.tasks.alignment import train as training
        from structloss.tasks.alignment.apply import Reading, read_model
        from structloss.tasks.alignment.flat_start import flat_start
        from structloss.tasks.alignment.recordings import in_folder, untimed_in_folder
        from structloss.tasks.alignment.task import Alignment
        from structloss.tasks.alignment.utterance import Utterance
        from structloss.training.plan import Plan
        from structloss.training.task import predict

        console = Console(stderr=True)
        plan = Plan(
            seed=seed, resume=resume, overwrite=overwrite, checkpoint_seconds=checkpoint_seconds, progress=False
        )
        training.make_ready(out, plan)
        reading = Reading(dictionary, lab_unit, phones)

        def shown(found: Sequence[T], folder: Path) -> Iterable[T]:
            return track(found, f"reading {folder}", console=console, disable=not console.is_interactive)

        def read(folder: Path) -> list[Utterance]:
            return [Utterance.of(recording.read(), hop) for recording in shown(in_folder(folder, lab_unit), folder)]

        def say(text: str) -> None:
            console.print(text, highlight=False)

        untimed = untimed_in_folder(data)
        if untimed:
            say(f"{data}: no recording has times, {len(untimed)} have a text: a flat start finds when phones start")
        known = [reading.untimed(one, hop) for one in shown(untimed, data)] if untimed else read(data)
        tests = read(test) if test else []
        if untimed:
            known = flat_start(known, say=say)
            say("what follows is measured against the times that were found, not against anybody's")
        parts = training.Parts.of(known, seed)
        settings = {"classifier": classifier, "learns": learns}
        model = training.prepare(parts, settings, out, plan, say)
        training.choose(model, parts, training.candidates(objective, epsilon or ()), loss, out, epochs, plan, say)
        best, task = read_model(out), Alignment()
        held = "held out, times that were found" if untimed else "held out"
        examples = {held: task.examples(parts.held), **({"test": task.examples(tests)} if tests else {})}
        print_metrics({name: task.evaluate(rows, predict(best, rows)) for name, rows in examples.items()})
        typer.echo(f"model: {out}")


@app.command()
def apply(
    model: Annotated[Path, typer.Argument(help="The directory that `structloss align train` wrote.")],
    audio: Annotated[Path, typer.Argument(help="A recording, or a folder of them.")],
    transcript: Annotated[
        Path, typer.Argument(help="Its phones or words, or a folder of such files of the same names.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The TextGrid (.lab, .phn) to write, or a folder.")],
    picture: Annotated[
        Path | None,
        typer.Option(
            help="A PNG of one recording's spectrogram with its boundaries, and the transcript's if it has times."
        ),
    ] = None,
    dictionary: Dictionary = None,
    lab_unit: LabUnit = None,
    jobs: options.Jobs = None,
    cluster: options.Cluster = None,
    resume: options.ResumeFiles = False,
) -> None:
    """Align recordings with what is said in them.

    A transcript is a text of the model's phones, or else of words, which the dictionary turns into phones. What is
    wrong with one file of a folder stops no other: it is in failed.tsv of the folder that is written, and said.

    Example: `structloss align apply aligner speech.wav speech.txt -o speech.TextGrid`
    """
    with running(WHOLE, PROCESSES_GRACE):
        import time
        from dataclasses import replace

        from structloss.files import check_output
        from structloss.tasks.alignment.apply import Reading, align_file, jobs_of, read_model
        from structloss.tasks.alignment.words import pronunciations
        from structloss.training.directory import checksum_of
        from structloss.training.record import digest

        if not audio.is_dir():
            check_output(out, audio, transcript)
        if picture is not None:
            if audio.is_dir():
                raise ValueError("--picture: is of one recording, but got a folder")
            check_output(picture, audio, transcript, out)
        reading = Reading(None if dictionary is None else dictionary.resolve(), lab_unit)
        if dictionary is not None:
            pronunciations(reading.dictionary)  # what is wrong with it, too, is said once
        todo = jobs_of(audio, transcript, out, reading)
        read_model(model)  # what is wrong with it is said here, and not by every process
        begin = time.perf_counter()
        if not audio.is_dir():
            align_file(model, todo[0])
        else:
            files = {
                str(job.audio): replace(
                    job, audio=job.audio.resolve(), transcript=job.transcript.resolve(), out=job.out.resolve()
                )
                for job in todo
            }
            calls = [(name, (model.resolve(), job)) for name, job in files.items()]
            outs = {name: job.out for name, job in files.items()}
            made = digest([checksum_of(model), dictionary and dictionary.read_bytes(), lab_unit])
            results = many("aligning", align_file, calls, out, made, jobs, cluster, resume, outs)
            spent, seconds = time.perf_counter() - begin, sum(done.value or 0.0 for done in results)
            failed = sum(bool(done.error) for done in results)
            pace = f", {spent / seconds:.4f} seconds for each of theirs" if seconds else ""
            typer.echo(f"aligned {len(results) - failed} of {len(results)} recordings in {spent:.1f} s{pace}")
            if failed:
                raise typer.Exit(1)
        if picture is not None:
            _draw(audio, transcript, out, picture, lab_unit)


def _draw(recording: Path, transcript: Path, out: Path, picture: Path, lab_unit: str | None) -> None:
    """What was found, and where the transcript has times, what should have been found."""
    from structloss.cli import plots
    from structloss.files import write_bytes
    from structloss.tasks.alignment import audio, transcripts

    rows = {"found": list(transcripts.read(out))}
    if transcript.suffix.lower() in transcripts.SUFFIXES:
        rows = {"transcript": list(transcripts.read(transcript, lab_unit=lab_unit)), **rows}
    write_bytes(picture, plots.alignment(audio.read(recording), audio.RATE, rows))
    typer.echo(f"picture: {picture}")


@app.command()
def evaluate(
    model: Annotated[Path, typer.Argument(help="The directory that `structloss align train` wrote.")],
    data: Folder,
    lab_unit: LabUnit = None,
) -> None:
    """Print which part of the boundaries is within 10, 20, 30 and 40 ms.

    Example: `structloss align evaluate aligner corpus/test`
    """
    with said_plainly():
        from structloss.tasks.alignment.apply import read_model
        from structloss.tasks.alignment.recordings import in_folder
        from structloss.tasks.alignment.task import Alignment
        from structloss.tasks.alignment.utterance import Utterance
        from structloss.training.task import predict

        loaded, task = read_model(model), Alignment()
        examples = task.examples([Utterance.of(r.read(), loaded.config["hop_ms"]) for r in in_folder(data, lab_unit)])
        print_metrics({data.name: task.evaluate(examples, predict(loaded, examples))})
