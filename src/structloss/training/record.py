"""What made a run, as keys and values: two runs of one record are the same run."""

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from structloss import __version__
from structloss.losses import Loss
from structloss.objectives import Objective
from structloss.training.directory import checksum_of
from structloss.training.plan import Plan
from structloss.training.task import DataError, Example, Task

Record = dict[str, Any]

_NOT_OF_THE_RUN = ("resume", "overwrite", "progress", "stop_after", "checkpoint_seconds")  # of a plan
_VERSIONS = ("structloss", "torch")
_SHOWN = 120  # characters of a value


def described(parts: Mapping[str, Sequence[Example]]) -> dict[str, str]:
    """Examples as a record has them: by what a model reads and answers, not by the file they came from."""
    return {name: f"{len(part)} examples, {digest([(e.x, e.y) for e in part])}" for name, part in parts.items()}


def record_of(
    task: Task, examples: Mapping[str, str], config: Mapping[str, Any], objective: Objective, plan: Plan
) -> Record:
    """The record of a run: its task, examples (`described`), model, objective and loss, plan, and what runs it.

    What is too large to be read is there by its checksum.
    """
    settings = {f"model {key}": value if _is_short(value) else digest(value) for key, value in sorted(config.items())}
    planned = {key: value for key, value in asdict(plan).items() if key not in _NOT_OF_THE_RUN}
    planned |= {"init": checksum_of(Path(init))} if (init := planned.pop("init")) else {}
    return {
        "task": task.name,
        **examples,
        **settings,
        "objective": f"{' '.join(repr(objective).split())}, {digest(objective)}",
        **planned,
        "structloss": __version__,
        "torch": str(torch.__version__),
    }


def differences(was: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    """What differs between two records, as "key: was this, is that"; versions aside.

    Example:
        >>> differences({"lr": 0.1, "seed": 0}, {"lr": 0.5, "seed": 0})
        ['lr: was 0.1, is 0.5']
    """
    keys = [*was, *(key for key in made if key not in was)]
    return [
        f"{key}: was {_shown(was, key)}, is {_shown(made, key)}"
        for key in keys
        if key not in _VERSIONS and (key not in was or key not in made or was[key] != made[key])
    ]


def check_same(where: Path, was: Any, made: Mapping[str, Any]) -> None:
    """A `DataError` that lists what differs, where a file is of another run; other versions are only spoken of."""
    if not isinstance(was, Mapping):
        raise DataError(f"{where}: does not say what made it, so it cannot be resumed; --overwrite begins anew")
    found = differences(was, made)
    if found:
        raise DataError(
            f"{where}: is of another run, so it cannot be resumed ({'; '.join(found)}); --overwrite begins anew"
        )
    for name in _VERSIONS:
        if was.get(name) != made.get(name):
            logging.getLogger(__name__).warning(
                f"{where}: was made with {name} {was.get(name)}, and goes on with {made.get(name)}: "
                "it may end otherwise than it would have"
            )


def digest(value: Any) -> str:
    """A checksum of what a value holds: equal values have equal ones, wherever and whenever they were made.

    Example:
        >>> digest(["a", 1, None]) == digest(["a", 1, None])
        True
        >>> digest([1, 2]) == digest([12])
        False
    """
    found = hashlib.sha256()
    for piece in _pieces(value):
        found.update(piece)
    return found.hexdigest()[:16]


def _pieces(value: Any) -> Iterator[bytes]:
    if value is None or isinstance(value, (bool, int, float, str, bytes, Path)):
        yield f"{type(value).__name__}{value!r};".encode("utf-8", "surrogatepass")
    elif isinstance(value, torch.Tensor):
        yield from _pieces(value.detach().cpu().numpy())
    elif isinstance(value, np.ndarray):
        yield f"array{value.dtype.str}{value.shape};".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif isinstance(value, Mapping):
        yield f"mapping{len(value)};".encode()
        for key in sorted(value, key=repr):
            yield from _pieces(key)
            yield from _pieces(value[key])
    elif isinstance(value, (Sequence, set, frozenset)):
        yield f"sequence{len(value)};".encode()
        for item in value if isinstance(value, Sequence) else sorted(value, key=repr):
            yield from _pieces(item)
    else:
        yield f"{type(value).__module__}.{type(value).__qualname__};".encode()
        yield from _pieces(_content(value))


def _content(value: Any) -> dict[str, Any]:
    """What makes an object what it is: not what it has cached."""
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, (Loss, Objective)):
        return {key: item for key, item in vars(value).items() if not key.startswith("_") and key != "training"}
    shown = repr(value)
    return {} if " at 0x" in shown else {"shown": shown}


def _is_short(value: Any) -> bool:
    return type(value) in (type(None), bool, int, float, str)


def _shown(record: Mapping[str, Any], key: str) -> str:
    if key not in record:
        return "not there"
    text = str(record[key])
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 30]} ... {text[-25:]}"
