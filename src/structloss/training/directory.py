"""Model directories: config.json, model.safetensors and metrics.json, written as one; no pickle."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from structloss.files import rename, write_bytes
from structloss.training.task import DataError, Task, TaskModel

T = TypeVar("T", bound=Task)

VERSION = 2
CONFIG, WEIGHTS, METRICS = "config.json", "model.safetensors", "metrics.json"
MODEL_FILES = (CONFIG, WEIGHTS, METRICS)
_NEXT = ".model.safetensors.next"  # new weights, until the config that has their checksum is there
_MOST_BYTES = 1 << 30


def file_name(text: str) -> str:
    """A name for a folder from what people call things.

    Example:
        >>> file_name("direct:epsilon=0.5")
        'direct-epsilon=0.5'
    """
    return "".join(c if c.isalnum() or c in ".=-" else "-" for c in text)


def save(folder: Path, task: Task, model: TaskModel, metrics: Mapping[str, Any]) -> None:
    """Write a model directory as one: whoever reads it at any moment finds the old model or the new one, whole.

    The new weights are written beside the old; the config, which has their checksum, is renamed over the old one, and
    from then on the new model is the one that is there; then the weights take their name.
    """
    from safetensors.torch import save as to_bytes

    weights = to_bytes({name: x.contiguous() for name, x in model.state_dict().items()})
    said = {"structloss": VERSION, "task": task.name, "model": model.config, "metrics": dict(metrics)}
    content = json.loads(json.dumps(said))  # as it will be read
    _write(folder, {**content, "checksum": _checksum(content, weights)}, weights)


def copy_model(source: Path, target: Path) -> None:
    """Write the model of one directory into another, as one."""
    config, weights = _read(source)
    _write(target, config, weights)


def _write(folder: Path, config: dict[str, Any], weights: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _end_writing(folder)
    write_bytes(folder / _NEXT, weights)
    write_bytes(folder / CONFIG, json.dumps(config, ensure_ascii=False).encode())
    rename(folder / _NEXT, folder / WEIGHTS)
    write_bytes(folder / METRICS, json.dumps(config["metrics"], indent=1).encode())


def _end_writing(folder: Path) -> None:
    """Where somebody was killed between the new config and the new weights, give these their name."""
    if not (folder / _NEXT).is_file():
        return
    try:
        config = _read_config(folder / CONFIG)
    except DataError:
        return
    if _checksum(config, (folder / _NEXT).read_bytes()) == config.get("checksum"):
        rename(folder / _NEXT, folder / WEIGHTS)


def _checksum(config: Mapping[str, Any], weights: bytes) -> str:
    """What ties a config to its weights."""
    content = {key: value for key, value in config.items() if key != "checksum"}
    found = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    found.update(weights)
    return found.hexdigest()


def checksum_of(folder: Path) -> str:
    """What ties the config of a model directory to its weights: no two models have the same."""
    return str(_read_config(folder / CONFIG).get("checksum"))


def load(folder: Path, tasks: Mapping[str, T]) -> tuple[T, TaskModel]:
    """Read a model directory, or a `DataError` that names the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load as from_bytes

    config, weights = _read(folder)
    try:
        task = tasks[config["task"]]
        model = task.build(config["model"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{folder / CONFIG}, line 1: is no model's config ({error!r})") from None
    try:
        model.load_state_dict(from_bytes(weights))
    except (SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{folder / WEIGHTS}: does not hold the weights of this model ({reason})") from None
    check_weights(model, folder / WEIGHTS)
    return task, model.eval()


def _read(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The config of a model directory, and the weights that it was written with."""
    config = _read_config(folder / CONFIG)
    if not isinstance(config.get("checksum"), str):
        raise DataError(f"{folder / CONFIG}, line 1: is no model's config (it has no checksum of its weights)")
    _check_size(folder / WEIGHTS, needed=not (folder / _NEXT).is_file())
    for name in (WEIGHTS, _NEXT):
        if (folder / name).is_file() and _check_size(folder / name):
            weights = (folder / name).read_bytes()
            if _checksum(config, weights) == config["checksum"]:
                return config, weights
    raise DataError(
        f"{folder / WEIGHTS}: does not hold the weights that {CONFIG} was written with: "
        "one of the two is damaged, was changed or is of another model"
    )


def _read_config(path: Path) -> dict[str, Any]:
    _check_size(path)
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: is no JSON ({error.msg})") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not UTF-8") from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}: is no model's config ({error})") from None
    if not isinstance(config, dict):
        raise DataError(f"{path}, line 1: is no model's config (it is {type(config).__name__})")
    return config


def _check_size(path: Path, needed: bool = True) -> bool:
    if not path.is_file():
        if needed:
            raise DataError(f"{path}: is not there, but a model directory has it")
        return False
    if path.stat().st_size > _MOST_BYTES:
        raise DataError(f"{path}: has {path.stat().st_size} bytes, more than {_MOST_BYTES}")
    return True


def check_weights(model: TaskModel, path: Path) -> None:
    """Raise a `DataError` that names the file if one of the weights read from it is NaN."""
    for name, x in model.state_dict().items():
        if x.is_floating_point() and x.isnan().any():
            raise DataError(f"{path}: {name} has NaN, but wanted numbers")
