"""Train a task's model: Lightning's loop with early stopping on the task's own metric, checkpoints and resuming."""

import errno
import hashlib
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from structloss.objectives import ImpossibleError, NegativeLogLikelihood, Objective
from structloss.training import interruption
from structloss.training.batches import LengthBatches, is_first_process, nodes, world
from structloss.training.directory import save
from structloss.training.plan import Plan
from structloss.training.task import DataError, Example, Task, TaskModel, predict

try:
    import lightning
    from lightning.pytorch.callbacks import Callback, EarlyStopping, TQDMProgressBar, WeightAveraging
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("training needs Lightning: pip install 'structloss[train]'") from missing

from structloss.training import checkpoints, folder


class Training(lightning.LightningModule):
    """A task's model under an objective."""

    def __init__(
        self, task: Task, model: TaskModel, objective: Objective, train: Sequence[Example], dev: Sequence[Example],
        plan: Plan,
    ) -> None:  # fmt: skip
        super().__init__()
        self.task, self.model, self.objective, self.plan = task, model, objective, plan
        self._dev, self._likelihood = dev, NegativeLogLikelihood(impossible=objective.impossible)
        self._encoded = [(model.encode(example), model.reference(example), example.where) for example in train]
        self.automatic_optimization = False
        self._objective_sum, self._batches, self._skipped = 0.0, 0, 0
        self.history: list[dict[str, float]] = []

    def train_dataloader(self) -> Any:
        """Batches as lists of encoded examples."""
        sizes = [len(encoded) for encoded, _, _ in self._encoded]
        sampler = LengthBatches(sizes, self.plan.batch_size, self.plan.seed, self.plan.updates)
        return DataLoader(self._encoded, batch_sampler=sampler, collate_fn=list)  # type: ignore[arg-type]

    def val_dataloader(self) -> Any:
        """One step: the whole of the development set."""
        return DataLoader([0], batch_size=1)  # type: ignore[arg-type]

    def on_train_start(self) -> None:
        """Lightning does not call `on_train_epoch_start` where it goes on within an epoch."""
        loader: Any = self.trainer.train_dataloader
        loader.batch_sampler.set_place(self.current_epoch, self._batches)
        self.model.train()

    def on_train_epoch_start(self) -> None:
        loader: Any = self.trainer.train_dataloader
        loader.batch_sampler.set_place(self.current_epoch)
        self.model.train()

    def training_step(self, batch: list[tuple[Any, list[int], str]], batch_idx: int) -> None:
        # Dropout, too, does not depend on what was drawn before: the loader draws now and then.
        place = (self.plan.seed, self.current_epoch, batch_idx, world()[1])
        torch.manual_seed(int.from_bytes(hashlib.sha256(repr(place).encode()).digest()[:8]) >> 1)
        optimizers: Any = self.optimizers()
        optimizers = optimizers if isinstance(optimizers, list) else [optimizers]
        for optimizer in optimizers:
            optimizer.zero_grad()
            for group in optimizer.param_groups if self.plan.decays else ():
                past = (self.current_epoch + batch_idx / self.trainer.num_training_batches) / self.plan.epochs
                group["lr"] = self.plan.lr * (1 - past)
        warms_up = self.current_epoch < self.plan.warm_up
        objective = self._likelihood if warms_up else self.objective
        self._penalise(optimizers, objective)
        before = objective.skipped
        try:
            structure = self.model.structure_to_train([x for x, _, _ in batch])
            copies = len(structure) // len(batch)
            value: Tensor = objective(structure, [r for _, r, _ in batch] * copies)
        except ImpossibleError as error:
            raise DataError(f"{batch[error.example % len(batch)][2]}: {error}") from None
        self._skipped += (objective.skipped - before) // copies
        self.manual_backward(value)
        for optimizer in optimizers:
            optimizer.step(lambda: value)
        self._objective_sum += float(value.detach())
        self._batches += 1
        self.log("objective", value.detach(), prog_bar=True, on_step=True, on_epoch=False, batch_size=len(batch))

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """Examples stay as they are encoded."""
        return batch

    def validation_step(self, batch: Any, _: int) -> None:
        metrics = self.task.evaluate(self._dev, predict(self.model, self._dev))
        row = {f"dev_{name}": value for name, value in metrics.items()}
        if not self.trainer.sanity_checking:
            objective = self._objective_sum / max(1, self._batches)
            row |= self.objective.follow(metrics)
            if self.objective.impossible == "skip":
                row["skipped"] = float(self._skipped)
            self.history.append({"epoch": float(self.current_epoch), "train_objective": objective, **row})
            self.log("train_objective", objective)
            self._objective_sum, self._batches, self._skipped = 0.0, 0, 0
        self.log_dict(row, prog_bar=True, batch_size=1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["history"] = self.history
        checkpoint["batches"], checkpoint["objective_sum"] = self._batches, self._objective_sum
        checkpoint["skipped"] = self._skipped

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.history = checkpoint["history"]
        for row in self.history[-1:]:
            self.objective.follow({name.removeprefix("dev_"): value for name, value in row.items()})
        self._batches, self._objective_sum = checkpoint["batches"], checkpoint["objective_sum"]
        self._skipped = checkpoint["skipped"]

    def configure_optimizers(self) -> Any:
        """The model's own."""
        made = self.model.optimizers(self.plan.lr, self.plan.l2, len(self._encoded))
        self._penalties = [[group.get("weight_decay", 0.0) for group in optimizer.param_groups] for optimizer in made]
        return made

    def _penalise(self, optimizers: list[Any], objective: Objective) -> None:
        """The penalty is that of the objective that is trained on: the likelihood of a warm-up has its own."""
        wanted = self.plan.l2_asked or objective.norm_matters
        for optimizer, penalties in zip(optimizers, self._penalties, strict=True):
            for group, penalty in zip(optimizer.param_groups, penalties, strict=True):
                group["weight_decay"] = penalty if wanted else 0.0


class _SaveBest(Callback):
    """Keep the model directory at the best epoch so far, and tell of every epoch."""

    def __init__(self, folder: Path, on_epoch: Callable[[dict[str, float]], None] | None) -> None:
        self.folder, self.on_epoch = folder, on_epoch
        self.best: dict[str, float] | None = None

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.best = state_dict["best"]

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        # Before the weights' average is exchanged for the weights again: this callback comes first.
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        task, row = pl_module.task, pl_module.history[-1]
        key, sign = f"dev_{task.metric}", 1 if task.maximise else -1
        if self.best is None or sign * row[key] > sign * self.best[key]:
            self.best = row
            save(self.folder, task, pl_module.model, row)
        if self.on_epoch is not None:
            self.on_epoch({**row, "best": float(self.best is row)})


class _Stopping(EarlyStopping):
    """Stop where nothing gets better any more: of the objective that was asked for, which follows the warm-up."""

    def __init__(self, warm_up: int, **rest: Any) -> None:
        super().__init__(**rest)
        self._warm_up = warm_up

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Where Lightning checks."""
        if pl_module.current_epoch >= self._warm_up:
            super().on_train_epoch_end(trainer, pl_module)


@dataclass(frozen=True)
class _MovingAverage:
    """Exponential, and at first over a tenth of the steps so far. Counts, as of steps, stay what they are."""

    decay: float

    def __call__(self, average: Tensor, current: Tensor, steps: Tensor | int) -> Tensor:
        if not current.is_floating_point():
            return current
        return torch.lerp(current, average, min(self.decay, (1 + float(steps)) / (10 + float(steps))))


class _Averaging(WeightAveraging):
    """Evaluate the weights' average."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The average does not take the weights' place in the last checkpoint: a longer run may go on from there."""


def fit(
    task: Task, model: TaskModel, objective: Objective, train: Sequence[Example], dev: Sequence[Example], out: Path,
    plan: Plan, made: Mapping[str, Any], on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> list[dict[str, float]]:  # fmt: skip
    """Train, keep the best model in `out`, and return a row for each epoch; `on_epoch` has it as soon as it is there.

    `made` is the record of this run (`record_of`). With `plan.resume` it goes on from the last checkpoint in `out`.
    """
    folder.check_begin(plan)
    resumed = folder.begin(out, plan, made)
    # What it tells of hardware and products is of no use here.
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    lightning.seed_everything(plan.seed, verbose=False)
    if plan.devices > 1 and is_first_process():
        interruption.be_parent()
    training = Training(task, model, objective, train, dev, plan)
    monitor, mode = f"dev_{task.metric}", "max" if task.maximise else "min"
    callbacks: list[Callback] = [
        _SaveBest(out, on_epoch),
        checkpoints.Checkpoints(out / checkpoints.FOLDER, plan.checkpoint_seconds, made),
        _Stopping(plan.warm_up, monitor=monitor, mode=mode, patience=plan.patience),
    ]
    if plan.average:
        callbacks.append(_Averaging(avg_fn=_MovingAverage(plan.average)))
    if plan.progress:
        callbacks.append(TQDMProgressBar(leave=False))
    with interruption.held(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        trainer = lightning.Trainer(
            max_epochs=plan.stop_after or plan.epochs, accelerator="cpu", devices=plan.devices, num_nodes=nodes(),
            strategy="ddp" if plan.devices * nodes() > 1 else "auto", callbacks=callbacks,
            plugins=[checkpoints.CheckpointFiles()],
            logger=[kind(out, name="", version="logs") for kind in (CSVLogger, TensorBoardLogger)],
            enable_progress_bar=plan.progress, enable_model_summary=False, num_sanity_val_steps=0,
            log_every_n_steps=20, use_distributed_sampler=False,
        )  # fmt: skip
        try:
            trainer.fit(training, ckpt_path=resumed, weights_only=True)
        except OSError as error:
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error
            if cause.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            of = f"{error.filename}: " if error.filename else ""
            said = str(error) if cause is not error else f"{of}{error.strerror}"
            raise OSError(f"{said}; --resume goes on from the last checkpoint once there is some") from None
    return training.history
