"""What a run leaves in its folder, and how one begins there: anew, resumed, or in another's place."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from structloss.training import checkpoints
from structloss.training.batches import is_first_process
from structloss.training.directory import MODEL_FILES, copy_model
from structloss.training.plan import Plan
from structloss.training.record import check_same
from structloss.training.task import DataError

RESULT = "result.json"
_FILES = (
    *MODEL_FILES, ".model.safetensors.next", RESULT, f"{checkpoints.FOLDER}/*.ckpt", "logs/metrics*.csv",
    "logs/hparams.yaml", "logs/events.out.tfevents.*",
)  # fmt: skip
_HALF_WRITTEN = (  # by somebody who was killed: a dot, a name and the process's number
    *(f".{name}.[0-9]*" for name in (*MODEL_FILES, ".model.safetensors.next", RESULT)),
    f"{checkpoints.FOLDER}/.step-*.ckpt.[0-9]*",
)
_say = logging.getLogger(__name__)


def begin(out: Path, plan: Plan, made: Mapping[str, Any]) -> Path | None:
    """Make the folder ready for a run of this record; the checkpoint that it goes on from, None if from the start.

    A folder that holds a run is an error unless that is resumed or overwritten, and so is resuming another run.
    """
    if not plan.resume:
        if is_first_process():
            make_room([out], out, plan)
        return None
    found = checkpoints.newest(out / checkpoints.FOLDER)
    if found is None:
        if is_first_process():
            _begin_instead(out)
        return None
    path, checkpoint = found
    check_same(path, checkpoint.get("made"), made)
    if is_first_process():
        for other in checkpoints.in_folder(path.parent):
            if other.name > path.name:  # is damaged
                other.unlink(missing_ok=True)
        for half in [path for pattern in _HALF_WRITTEN for path in out.glob(pattern)]:
            half.unlink(missing_ok=True)
        _keep_log(out / "logs")
        more = f" and {checkpoint['batches']} batches more" if checkpoint["batches"] else ""
        _say.info(f"{out}: goes on after epoch {len(checkpoint['history'])}{more}")
    return path


def make_room(folders: Iterable[Path], out: Path, plan: Plan) -> None:
    """Let a run begin anew in these folders of `out`: an error where one holds a run, unless that is to be overwritten.

    What is removed is what runs leave, and nothing else that may be there.
    """
    for folder in folders:
        if not plan.overwrite and next(_left_by_runs(folder), None) is not None:
            raise DataError(f"{out}: holds a run; --resume goes on with it, --overwrite begins anew in its place")
        for path in list(_left_by_runs(folder)):
            path.unlink()


def check_begin(plan: Plan) -> None:
    """An error where a run is to be resumed and overwritten."""
    if plan.resume and plan.overwrite:
        raise ValueError("--resume and --overwrite: got both, but wanted one of them")


def hand_over(source: Path, target: Path, was: Mapping[str, Any], made: Mapping[str, Any]) -> None:
    """Let a run of one record go on as one of another: what was learned so far is what that would have learned.

    The checkpoint says where it came from.
    """
    found = checkpoints.newest(source / checkpoints.FOLDER)
    if found is None:
        raise DataError(f"{source / checkpoints.FOLDER}: got no checkpoint, but {target.name} is to go on from there")
    path, checkpoint = found
    check_same(path, checkpoint.get("made"), was)
    for left in list(_left_by_runs(target)):
        left.unlink()
    copy_model(source, target)
    checkpoints.write(target / checkpoints.FOLDER, {**checkpoint, "made": dict(made), "begun": source.name})


def _begin_instead(out: Path) -> None:
    """Where there is nothing to resume, begin from the start; a model without its checkpoints is left alone."""
    for name in (RESULT, *MODEL_FILES):
        if (out / name).is_file():
            raise DataError(f"{out}: holds {name}, but no checkpoint to resume from; --overwrite begins anew")
    for path in list(_left_by_runs(out)):
        path.unlink()
    _say.warning(f"{out}: holds no checkpoint to resume from: begins from the start")


def _keep_log(folder: Path) -> None:
    """What was logged before: Lightning begins a new file in its place."""
    if (folder / "metrics.csv").is_file():
        number = 1 + len(list(folder.glob("metrics.*.csv")))
        (folder / "metrics.csv").rename(folder / f"metrics.{number}.csv")


def _left_by_runs(folder: Path) -> Iterator[Path]:
    for pattern in (*_FILES, *_HALF_WRITTEN):
        yield from folder.glob(pattern)
