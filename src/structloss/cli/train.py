"""`structloss train`, `predict` and `evaluate`: the lecture's learning loop on somebody's own files."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

Data = Annotated[Path, typer.Argument(help="A file in the format of the task.")]
Model = Annotated[Path, typer.Argument(help="The directory that `structloss train` wrote.")]


@contextmanager
def said_plainly() -> Iterator[None]:
    """What is wrong with somebody's file or option is one line, and exit code 2."""
    try:
        yield
    except (ValueError, TypeError, FileNotFoundError, ModuleNotFoundError) as error:
        Console(stderr=True, soft_wrap=True).print(f"structloss: {error}", style="red", markup=False, highlight=False)
        raise typer.Exit(2) from None


def _settings(task: Any, given: Sequence[str]) -> dict[str, Any]:
    """The model's settings, with those given as key=value."""
    settings = dict(task.settings)
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or key not in settings:
            raise ValueError(f"--set: got {item!r}, but wanted key=value with a key of {', '.join(settings)}")
        kind = type(settings[key])
        try:
            settings[key] = kind(value)
        except ValueError:
            raise ValueError(f"--set: got {item!r}, but {key} is {kind.__name__}") from None
    return settings


def _options(context: typer.Context, config: Path | None) -> None:
    """Take from a JSON file what the command line leaves at its default."""
    if config is None:
        return
    try:
        read = json.loads(config.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{config}, line {error.lineno}: is no JSON ({error.msg})") from None
    for key, value in read.items():
        name = key.replace("-", "_")
        if name not in context.params:
            raise ValueError(f"{config}: got {key!r}, which is no option of structloss train")
        source: Any = context.get_parameter_source(name)
        if source is not None and source.name == "DEFAULT":
            context.params[name] = Path(value) if name in ("train", "dev", "test", "out") else value


def train(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="tagging: CoNLL columns or CoNLL-U; ocr: an npz of handwritten words.")],
    train: Annotated[Path | None, typer.Option(help="The file to train on.")] = None,
    dev: Annotated[Path | None, typer.Option(help="The file to stop on; by default every tenth example.")] = None,
    test: Annotated[Path | None, typer.Option(help="A file to evaluate the best model on.")] = None,
    out: Annotated[Path, typer.Option(help="The model directory to write.")] = Path("model"),
    objective: Annotated[
        str,
        typer.Option(help="nll, softmax-margin, perceptron, hinge, slack-hinge, direct:epsilon=1, risk, reward."),
    ] = "nll",
    loss: Annotated[
        str | None, typer.Option(help="hamming, edit:cap=5, ngram:n=2, smith-waterman, or a transducer's file.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 20,
    batch_size: Annotated[int, typer.Option(min=1)] = 16,
    lr: Annotated[float | None, typer.Option(help="Learning rate; by default the model's own.")] = None,
    l2: Annotated[float, typer.Option(min=0.0, help="The lecture's C: the factor of |w|^2 / 2.")] = 1.0,
    patience: Annotated[int, typer.Option(min=1, help="Stop after so many epochs without a better dev metric.")] = 5,
    seed: Annotated[int, typer.Option(help="The same seed gives the same numbers.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on after the last whole epoch in --out.")] = False,
    devices: Annotated[int, typer.Option(min=1, help="Processes that share each batch, on this machine.")] = 1,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the model, such as model=bilstm or order=3.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A JSON file with any of these options.")] = None,
    progress: Annotated[bool, typer.Option(help="Show a progress bar.")] = True,
) -> None:
    """Train a model on your own files, on the objective and the loss you name.

    Example: `structloss train tagging --train train.txt --dev dev.txt --out model --objective softmax-margin`
    """
    with said_plainly():
        _options(context, config)
        p = context.params
        import torch

        from structloss.naming import objective_of
        from structloss.tasks import TASKS
        from structloss.training.directory import load
        from structloss.training.fit import Plan, fit, is_first_process
        from structloss.training.task import predict

        if task not in TASKS:
            raise ValueError(f"task: got {task!r}, but wanted one of {', '.join(TASKS)}")
        if p["train"] is None:
            raise ValueError("--train: wanted the file to train on")
        kind = TASKS[task]
        settings = _settings(kind, p["setting"] or [])
        made = objective_of(p["objective"], p["loss"] or kind.loss)
        examples = kind.read(p["train"])
        held = kind.read(p["dev"]) if p["dev"] else examples[::10]
        if p["dev"] is None:
            examples = [example for i, example in enumerate(examples) if i % 10]
        if not examples:
            raise ValueError(f"{p['train']}: got too few examples to keep some for --dev")
        tests = kind.read(p["test"]) if p["test"] else []
        torch.manual_seed(p["seed"])
        new = kind.build(kind.configure(examples, settings))
        for example in (*held, *tests):
            new.reference(example)  # labels that training lacks are an error now, not after an hour
        plan = Plan(
            p["epochs"], p["batch_size"], kind.learning_rate(settings) if p["lr"] is None else p["lr"], p["l2"],
            p["patience"], p["seed"], p["devices"], p["resume"], p["progress"],
        )  # fmt: skip
        fit(kind, new, made, examples, held, p["out"], plan)
        if not is_first_process():
            return
        _, best = load(p["out"], TASKS)
        rows = {"dev": kind.evaluate(held, predict(best, held))}
        if tests:
            rows["test"] = kind.evaluate(tests, predict(best, tests))
        _print(rows)
        typer.echo(f"model: {p['out']}")


def _print(rows: dict[str, dict[str, float]]) -> None:
    table = Table("", *next(iter(rows.values())))
    for name, metrics in rows.items():
        table.add_row(name, *(f"{100 * value:.2f}" for value in metrics.values()))
    Console().print(table)


def evaluate(
    model: Model,
    data: Data,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print how well a model does on a file with answers.

    Example: `structloss evaluate model test.txt`
    """
    with said_plainly():
        from structloss.tasks import TASKS
        from structloss.training.directory import load
        from structloss.training.task import predict as answers

        task, loaded = load(model, TASKS)
        examples = task.read(data)
        metrics = task.evaluate(examples, answers(loaded, examples))
        if as_json:
            typer.echo(json.dumps(metrics))
        else:
            _print({data.name: metrics})


def predict(
    model: Model,
    data: Annotated[Path | None, typer.Argument(help="A file; by default standard input.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write; by default standard output.")] = None,
    nbest: Annotated[int, typer.Option(min=1, help="Write the K best answers, with their probabilities.")] = 1,
) -> None:
    """Write a model's answers in the format that was read.

    Example: `structloss predict model new.txt -o tagged.txt`
    """
    with said_plainly():
        import tempfile

        from structloss.tasks import TASKS
        from structloss.training.directory import load, write_text
        from structloss.training.task import nbest_answers

        task, loaded = load(model, TASKS)
        if data is None:
            with tempfile.TemporaryDirectory() as folder:
                copy = Path(folder) / "stdin"
                copy.write_bytes(sys.stdin.buffer.read())
                examples = task.read(copy)
        else:
            examples = task.read(data)
        lines: list[str] = []
        for example, answers in zip(examples, nbest_answers(loaded, examples, nbest), strict=True):
            for probability, answer in answers:
                if nbest > 1:
                    lines.append(f"# probability = {probability:.6g}")
                lines.extend(task.write(example, answer))
        text = "\n".join(lines) + "\n"
        if out is None:
            sys.stdout.write(text)
        else:
            write_text(out, text)
