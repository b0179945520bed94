"""Checkpoints: after every epoch and now and then within one, each whole or not there, the last two kept."""

import hashlib
import io
import logging
import pickle
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from structloss.files import write_bytes
from structloss.training import interruption
from structloss.training.task import DataError

FOLDER = "checkpoints"  # in a model directory
_KEPT = 2
_NAME = re.compile(r"step-(\d+)-([0-9a-f]{16})\.ckpt")  # the number of steps, and the checksum of the file
_say = logging.getLogger(__name__)


class CheckpointFiles(CheckpointIO):
    """How Lightning writes and reads checkpoints: torch's files, whose names hold their checksums."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write one into a folder, and remove those that are not among the last two any more."""
        folder, file = Path(path), io.BytesIO()
        torch.save(checkpoint, file)
        content = file.getvalue()
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / f"step-{checkpoint['global_step']:09d}-{_checksum(content)}.ckpt", content)
        for old in in_folder(folder)[_KEPT:]:
            old.unlink(missing_ok=True)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Read one without ever unpickling what is not a number or a name."""
        return read(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        """Remove one."""
        Path(path).unlink(missing_ok=True)


def in_folder(folder: Path) -> list[Path]:
    """The checkpoints of a folder, the newest first."""
    return sorted((path for path in folder.glob("*.ckpt") if _NAME.fullmatch(path.name)), reverse=True)


def read(path: Path) -> dict[str, Any]:
    """One checkpoint, or a `DataError` where it is not whole."""
    content = path.read_bytes()
    named = _NAME.fullmatch(path.name)
    if named is None or named[2] != _checksum(content):
        raise DataError(f"{path}: is damaged")
    try:
        checkpoint: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError):
        raise DataError(f"{path}: is no checkpoint") from None
    return checkpoint


def newest(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest that is whole, None where there is none at all, and a `DataError` where all are damaged."""
    found = in_folder(folder)
    for path in found:
        try:
            return path, read(path)
        except DataError as error:
            if path != found[-1]:
                _say.warning(f"{error}: the one before it is taken")
    if found:
        raise DataError(
            f"{folder}: none of the checkpoints there is whole, so nothing can be resumed; --overwrite begins anew"
        )
    return None


def write(folder: Path, checkpoint: dict[str, Any]) -> None:
    """Write one into a folder."""
    CheckpointFiles().save_checkpoint(checkpoint, folder)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


class Checkpoints(Checkpoint):
    """Write one before the first step, after every epoch, every so many seconds within one, and when a signal comes.

    Lightning calls it after all other callbacks: what they know of an epoch or a batch is in the checkpoint.
    """

    def __init__(self, folder: Path, seconds: float, made: Mapping[str, Any]) -> None:
        self.folder, self.seconds, self.made = folder, seconds, dict(made)
        self._last, self._begun = 0.0, ""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Before the first step: what cannot be written is said now, and not after an hour."""
        interruption.listen_again()  # Lightning has its own handler: in several processes it disturbs their order
        if trainer.global_step == 0:
            self._save(trainer)
        self._last = time.monotonic()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Within an epoch; not after its last batch, which the evaluation follows."""
        if batch_idx + 1 >= trainer.num_training_batches:
            return
        stops = _agreed(trainer, interruption.requested())
        if stops or _agreed(trainer, time.monotonic() - self._last >= self.seconds):
            self._save(trainer)
            interruption.stop_if_requested(stops)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """After an epoch, its evaluation, and the decision whether to stop."""
        self._save(trainer)
        interruption.stop_if_requested(_agreed(trainer, interruption.requested()))

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A checkpoint knows what made it, whose run it went on from, and whether it was to stop."""
        checkpoint["made"], checkpoint["begun"] = self.made, self._begun
        checkpoint["stops"] = bool(trainer.should_stop)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """A run that had stopped for want of anything better does not go on."""
        trainer.should_stop, self._begun = checkpoint["stops"], checkpoint["begun"]

    def _save(self, trainer: Any) -> None:
        trainer.save_checkpoint(self.folder, weights_only=False)
        self._last = time.monotonic()


def _agreed(trainer: Any, wish: bool) -> bool:
    """Whether any of the processes that train together wishes so: they act at the same batch."""
    return bool(trainer.strategy.reduce_boolean_decision(wish, all=False)) if trainer.world_size > 1 else wish
