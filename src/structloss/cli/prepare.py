"""From the options of a command that trains to a task, its data and a plan."""

import json
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from structloss.objectives import Objective
    from structloss.training.experiment import Data
    from structloss.training.plan import Plan
    from structloss.training.task import FileTask

_PATHS = ("train", "dev", "test", "out", "init")
_PLANNED = ("lr", "l2", "epochs", "batch_size", "patience")  # options that stand above a task's own defaults


class Debugging:
    """Whether `--debug` was given."""

    wanted = False


@contextmanager
def said_plainly() -> Iterator[None]:
    """What is wrong with somebody's file or option is one line, and exit code 2.

    Any other error is a mistake of ours, and is not dressed up: one line that says so, and exit code 1. `--debug` shows
    the traceback of either.
    """
    try:
        yield
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if Debugging.wanted:
            raise
        ours = not _is_said(error)
        text = f"a mistake in structloss itself, {type(error).__name__}: {error}" if ours else str(error)
        if isinstance(error, OSError) and error.strerror and error.filename:
            text = f"{error.filename}: {error.strerror}"
        if ours:
            text += "; structloss --debug ... shows where, and a report of it is welcome"
        Console(stderr=True, soft_wrap=True).print(f"structloss: {text}", style="red", markup=False, highlight=False)
        raise typer.Exit(1 if ours else 2) from None


def _is_said(error: Exception) -> bool:
    """Whether somebody wrote a sentence for it: a `raise` of this package, or the operating system's own."""
    if isinstance(error, OSError | ModuleNotFoundError):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1]
    within = Path(__file__).parents[1] in Path(last.filename).parents
    return within and (last.line or "").startswith("raise ")


@dataclass(frozen=True)
class Prepared:
    """All that is needed to train: the config is that of a new model."""

    task: "FileTask"
    data: "Data"
    config: dict[str, Any]
    objectives: "dict[str, Objective]"
    plan: "Plan"


def prepared(context: typer.Context, objectives: Sequence[str] = ()) -> Prepared:
    """Read the files, and find what is wrong with files and options before anything is trained or written.

    Where neither the command line nor --config names an objective, those given here are taken.
    """
    _take_config(context)
    p = context.params
    from structloss.naming import default_objective, objective_of
    from structloss.tasks import TASKS
    from structloss.training.experiment import Data, begin_as
    from structloss.training.plan import Plan

    if p["task"] not in TASKS:
        raise ValueError(f"task: got {p['task']!r}, but wanted one of {', '.join(TASKS)}")
    if p["train"] is None:
        raise ValueError("--train: wanted the file to train on")
    task = TASKS[p["task"]]
    trained = _trained(task, p["init"])
    settings = _settings(
        {**task.settings, **{k: trained[k] for k in task.settings if k in trained}}, p["setting"] or []
    )
    named = p["objective"] or objectives or default_objective(p["loss"])
    names = [named] if isinstance(named, str) else list(named)
    if len(set(names)) < len(names):
        raise ValueError(f"--objective: got {', '.join(names)}, but wanted each of them once")
    for name in names:
        objective_of(name, p["loss"] or task.loss, ["O"])  # what is wrong with it is said before files are read
    data = Data.read(task, p["train"], p["dev"], p["test"])
    config = {**trained, **settings} if trained else task.configure(data.train, settings)
    made = {name: objective_of(name, p["loss"] or task.loss, config["labels"]) for name in names}
    model = task.build(config)
    if trained:
        begin_as(model, task, p["init"])
    if any(objective.impossible == "error" for objective in made.values()):
        data.check_possible(model)
    if not p["unknown_labels"]:
        data.check_labels(model)
    plan = {**asdict(task.defaults(config)), **{key: p[key] for key in _PLANNED if p[key] is not None}}
    plan["l2_asked"] = p["l2"] is not None
    plan["warm_up"] = p["warm_up"]
    if p["warm_up"] is None:
        wanted = p["init"] is None and any(objective.wants_warm_up for objective in made.values())
        plan["warm_up"] = warm_up_of(plan["epochs"]) if wanted else 0
    own = {key: p[key] for key in ("seed", "resume", "overwrite", "checkpoint_seconds")}
    return Prepared(task, data, config, made, Plan(**plan, **own, init=str(p["init"] or "")))


def warm_up_of(epochs: int) -> int:
    """How many of the epochs train on the likelihood before an objective that wants a warm-up."""
    return 2 * epochs // 3


def _trained(task: "FileTask", folder: Path | None) -> dict[str, Any]:
    """The config of the model that training begins with, nothing where there is none."""
    from structloss.tasks import TASKS
    from structloss.training.directory import load

    if folder is None:
        return {}
    found, model = load(folder, TASKS)
    if found is not task:
        raise ValueError(f"--init: {folder} is a model for {found.name}, but wanted one for {task.name}")
    return model.config


def _settings(settings: dict[str, Any], given: Sequence[str]) -> dict[str, Any]:
    """The model's settings, with those given as key=value."""
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


def _take_config(context: typer.Context) -> None:
    """Take from the JSON file of --config what the command line leaves at its default, as if it stood there."""
    path = context.params["config"]
    if path is None:
        return
    options = {option.name: option for option in context.command.params}
    for key, value in _read_config(path).items():
        name = "setting" if key == "set" else key.replace("-", "_")
        if name not in context.params:
            raise ValueError(f"{path}: got {key!r}, which is no option of structloss {context.info_name}")
        source: Any = context.get_parameter_source(name)
        if value is None or source is None or source.name != "DEFAULT":
            continue
        several = bool(getattr(options[name], "multiple", False))
        texts = [_as_typed(one, path, key) for one in (value if several and isinstance(value, list) else [value])]
        try:
            taken = options[name].process_value(context, texts if several else texts[0])
        except typer.BadParameter as error:
            raise ValueError(f"{path}: {error.format_message()}") from None
        context.params[name] = Path(taken) if name in _PATHS else taken


def _read_config(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: is no JSON ({error.msg})") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: is no JSON of options ({error})") from None
    if not isinstance(read, dict):
        raise ValueError(f"{path}, line 1: got {type(read).__name__}, but wanted an object of options")
    return read


def _as_typed(value: Any, path: Path, key: str) -> str:
    """A value as one would type it."""
    if isinstance(value, dict | list):
        raise ValueError(f"{path}: got {key!r} with {value!r:.60}, but wanted one value")
    return str(value)
