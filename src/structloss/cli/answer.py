"""`structloss predict` and `evaluate`: a model's answers to one file, or to many on many cores."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from structloss.cli import options
from structloss.cli.prepare import said_plainly
from structloss.cli.running import PROCESSES_GRACE, running
from structloss.cli.train import print_metrics

Model = Annotated[Path, typer.Argument(help="The directory that `structloss train` wrote.")]
Files = Annotated[
    list[Path] | None, typer.Argument(help="Files in the format of the task; several go to several processes.")
]
WHOLE = "structloss: interrupted; what is written is whole, and --resume does the rest"


def evaluate(
    model: Model,
    data: Files,
    unknown_labels: options.UnknownLabels = False,
    as_json: options.AsJson = False,
    jobs: options.Jobs = None,
    cluster: options.Cluster = None,
) -> None:
    """Print how well a model does on a file with answers, or on each of several and on all of them.

    As in training, a label that the model does not know is an error, unless such are to be counted as wrong.

    Example: `structloss evaluate model test.txt`
    """
    with _answering(data):
        from structloss.tasks import TASKS
        from structloss.tasks.answers import evaluate_file
        from structloss.training.directory import load

        assert data
        rows: dict[str, dict[str, float]] = {}
        task, _ = load(model, TASKS)  # what is wrong with it is said once
        examples: list[Any] = []
        answers: list[Any] = []
        todo = [(str(path), (model.resolve(), path.resolve(), unknown_labels)) for path in data]
        found = {done.name: done for done in shown("evaluating", evaluate_file, todo, jobs, cluster)}
        for name, _ in todo:
            if found[name].error:
                raise ValueError(found[name].error)
            read, said, metrics = found[name].value
            rows[name if len(todo) > 1 else Path(name).name] = metrics
            examples += read
            answers += said
        if len(rows) > 1:
            rows["all"] = task.evaluate(examples, answers)
        if as_json:
            typer.echo(json.dumps(rows if len(todo) > 1 else next(iter(rows.values()))))
        else:
            print_metrics(rows)


def predict(
    model: Model,
    data: Annotated[list[Path] | None, typer.Argument(help="A file, or several; by default standard input.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to write; by default standard output. For several files a folder."),
    ] = None,
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
    jobs: options.Jobs = None,
    cluster: options.Cluster = None,
    resume: options.ResumeFiles = False,
) -> None:
    """Write a model's answers in the format that was read.

    Of several files, one that cannot be read stops no other: it is in failed.tsv of the folder, and said.

    Example: `structloss predict model new.txt -o tagged.txt`, `structloss predict model texts/*.txt -o tagged --jobs 8`
    """
    if data is not None and len(data) > 1:
        with _answering(data):
            _predict_many(model, data, out, (nbest, marginals, times), picture, jobs, cluster, resume)
        return
    with said_plainly():
        import tempfile

        from structloss.files import check_output, write_text
        from structloss.tasks import TASKS
        from structloss.tasks.answers import written
        from structloss.training.directory import load
        from structloss.training.task import nbest_answers

        path = data[0] if data else None
        if out is not None:
            check_output(out, path)
        if picture is not None:
            check_output(picture, path, out)
        task, loaded = load(model, TASKS)
        if path is None:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / "stdin"
                copy.write_bytes(sys.stdin.buffer.read())
                examples = task.read(copy, loaded.config)
        else:
            examples = task.read(path, loaded.config)
        found = nbest_answers(loaded, examples, nbest)
        if picture is not None:
            write_text(picture, task.draw(examples[0], found[0][0].names))
        text = written(task, loaded, examples, found, nbest, marginals, times)
        if out is None:
            sys.stdout.write(text)
        else:
            write_text(out, text)


def _predict_many(
    model: Path, data: Sequence[Path], out: Path | None, settings: tuple[int, bool, bool], picture: Path | None,
    jobs: int | None, cluster: str | None, resume: bool,
) -> None:  # fmt: skip
    from structloss.files import check_output
    from structloss.tasks import TASKS
    from structloss.tasks.answers import predict_file
    from structloss.training.directory import checksum_of, load

    if out is None or out.is_file():
        raise ValueError(f"--out: got {out or 'none'}, but wanted a folder for the answers to {len(data)} files")
    if picture is not None:
        raise ValueError(f"--picture: is of one file, but got {len(data)}")
    outs = {path.name: out / path.name for path in data}
    if len(outs) < len(data):
        raise ValueError("predict: got two files of one name, whose answers would be one file")
    out.mkdir(parents=True, exist_ok=True)
    for path in data:
        check_output(outs[path.name], *data)
    load(model, TASKS)  # what is wrong with it is said once
    todo = [(str(path), (model.resolve(), path.resolve(), outs[path.name].resolve(), *settings)) for path in data]
    results = many(
        "predicting", predict_file, todo, out, checksum_of(model), jobs, cluster, resume,
        {str(path): outs[path.name] for path in data},
    )  # fmt: skip
    if any(done.error for done in results):
        raise typer.Exit(1)


@contextmanager
def _answering(data: Sequence[Path] | None) -> Iterator[None]:
    if not data:
        raise typer.BadParameter("wanted a file with answers", param_hint="DATA")
    with running(WHOLE, PROCESSES_GRACE) if len(data) > 1 else said_plainly():
        yield


def shown(
    doing: str, function: Callable[..., Any], todo: Sequence[tuple[str, tuple[Any, ...]]], jobs: int | None,
    cluster: str | None,
) -> Iterator[Any]:  # fmt: skip
    """What comes of each file (`over_files`), with a bar where somebody looks."""
    from structloss.training.compare import cores
    from structloss.training.many import over_files

    console = Console(stderr=True)
    results = over_files(function, todo, jobs or cores(), cluster)
    yield from track(results, doing, len(todo), console=console, disable=len(todo) < 2 or not console.is_interactive)


def many(
    doing: str, function: Callable[..., Any], todo: Sequence[tuple[str, tuple[Any, ...]]], out: Path, made: str,
    jobs: int | None, cluster: str | None, resume: bool, outs: dict[str, Path],
) -> list[Any]:  # fmt: skip
    """Do all files that are not done, note each in the journal of `out`, and say what failed; the results.

    `failed.tsv` of the folder is the list of those that have.
    """
    from structloss.files import write_text
    from structloss.training.many import Journal

    journal = Journal(out, made, resume)
    left = [(name, arguments) for name, arguments in todo if name not in journal or not outs[name].is_file()]
    if len(left) < len(todo):
        typer.echo(f"{len(todo) - len(left)} of {len(todo)} files are done already", err=True)
    results, failed = [], {}
    for done in shown(doing, function, left, jobs, cluster):
        journal.add(done)
        results.append(done)
        if done.error:
            failed[done.name] = done.error
            said = f"structloss: {done.error}"
            Console(stderr=True, soft_wrap=True).print(said, style="red", markup=False, highlight=False)
    (out / "failed.tsv").unlink(missing_ok=True)
    if failed:
        write_text(
            out / "failed.tsv", "".join(f"{name}\t{' '.join(error.split())}\n" for name, error in failed.items())
        )
        typer.echo(f"{len(failed)} of {len(left)} files failed: {out / 'failed.tsv'}", err=True)
    return results
