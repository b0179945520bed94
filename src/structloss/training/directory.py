"""Model directories: config.json, model.safetensors and metrics.json; no pickle, and nothing half-written."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from structloss.files import write_text
from structloss.training.task import DataError, Task, TaskModel

T = TypeVar("T", bound=Task)

VERSION = 1
_MOST_BYTES = 1 << 30


def file_name(text: str) -> str:
    """A name for a folder from what people call things.

    Example:
        >>> file_name("direct:epsilon=0.5")
        'direct-epsilon=0.5'
    """
    return "".join(c if c.isalnum() or c in ".=-" else "-" for c in text)


def save(folder: Path, task: Task, model: TaskModel, metrics: Mapping[str, Any]) -> None:
    """Write a model directory; files that are there are replaced one by one, whole."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".model.safetensors.{os.getpid()}"
    save_file({name: x.contiguous() for name, x in model.state_dict().items()}, temporary)
    temporary.rename(folder / "model.safetensors")
    config = {"structloss": VERSION, "task": task.name, "model": model.config}
    write_text(folder / "config.json", json.dumps(config, ensure_ascii=False))
    write_text(folder / "metrics.json", json.dumps(dict(metrics), indent=1))


def load(folder: Path, tasks: Mapping[str, T]) -> tuple[T, TaskModel]:
    """Read a model directory, or a `DataError` that names the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    config_path, weights_path = folder / "config.json", folder / "model.safetensors"
    for path in (config_path, weights_path):
        if not path.is_file():
            raise DataError(f"{path}: is not there, but a model directory has it")
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f"{path}: has {path.stat().st_size} bytes, more than {_MOST_BYTES}")
    try:
        config = json.loads(config_path.read_text(encoding="utf-8"))
        task = tasks[config["task"]]
        model = task.build(config["model"])
    except json.JSONDecodeError as error:
        raise DataError(f"{config_path}, line {error.lineno}: is no JSON ({error.msg})") from None
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{config_path}, line 1: is no model's config ({error!r})") from None
    try:
        model.load_state_dict(load_file(weights_path))
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{weights_path}: does not hold the weights of this model ({reason})") from None
    check_weights(model, weights_path)
    return task, model.eval()


def check_weights(model: TaskModel, path: Path) -> None:
    """Raise a `DataError` that names the file if one of the weights read from it is NaN."""
    for name, x in model.state_dict().items():
        if x.is_floating_point() and x.isnan().any():
            raise DataError(f"{path}: {name} has NaN, but wanted numbers")
