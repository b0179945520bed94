"""Train a task's model: Lightning's loop with early stopping on the task's own metric, checkpoints and resuming."""

import hashlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from structloss.objectives import NegativeLogLikelihood, Objective
from structloss.training.directory import save
from structloss.training.task import Example, Task, TaskModel, predict

try:
    import lightning
    from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint, TQDMProgressBar, WeightAveraging
    from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("training needs Lightning: pip install 'structloss[train]'") from missing


CHECKPOINT = Path("checkpoints") / "last.ckpt"  # in a model directory


@dataclass(frozen=True)
class Plan:
    """How to train: at most `epochs`, of which this time only those up to `stop_after`.

    The first `warm_up` epochs train on the negative log-likelihood, whatever the objective: risk and direct loss have
    little to go by while all answers are about equally wrong. Where the learning rate `decays`, it falls evenly to 0
    over all `epochs`. With `average` above 0 the model that is evaluated and kept has the moving average of the
    weights: after n steps its decay is the smaller of `average` and (1 + n) / (10 + n), so that it forgets how training
    began.
    """

    epochs: int = 20
    batch_size: int = 16
    lr: float = 0.1
    l2: float = 1.0
    patience: int = 5
    average: float = 0.0
    decays: bool = False
    warm_up: int = 0
    stop_after: int | None = None
    seed: int = 0
    devices: int = 1
    resume: bool = False
    progress: bool = True


class LengthBatches(Sampler[list[int]]):
    """Examples of about one length together, in an order that seed and epoch decide, and shared out among processes.

    Which batch comes when does not depend on what was drawn before: a resumed run goes on as if nothing had happened.
    Every process takes its part of each batch, so that several see together what one would see alone.
    """

    def __init__(self, sizes: Sequence[int], batch_size: int, seed: int) -> None:
        self.sizes, self.batch_size, self.seed, self.epoch = sizes, batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the loop."""
        self.epoch = epoch

    def __len__(self) -> int:
        return -(-len(self.sizes) // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + self.epoch)
        noise = torch.rand(len(self.sizes), generator=generator).tolist()
        order = sorted(range(len(self.sizes)), key=lambda i: self.sizes[i] + 3 * noise[i])
        batches = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        world, rank = _world()
        for i in torch.randperm(len(batches), generator=generator).tolist():
            own = batches[i][rank::world]
            yield own or batches[i][:1]


def _world() -> tuple[int, int]:
    """How many processes train together, and which of them this is."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size(), torch.distributed.get_rank()
    return 1, 0


def _nodes() -> int:
    """How many machines torchrun has started this on; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", 1)) // int(
        os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("WORLD_SIZE", 1))
    )


def is_first_process() -> bool:
    """Whether this process is the one that speaks, of those that train together."""
    return _world()[1] == 0


class Training(lightning.LightningModule):
    """A task's model under an objective."""

    def __init__(
        self, task: Task, model: TaskModel, objective: Objective, train: Sequence[Example], dev: Sequence[Example],
        plan: Plan,
    ) -> None:  # fmt: skip
        super().__init__()
        self.task, self.model, self.objective, self.plan = task, model, objective, plan
        self._dev, self._likelihood = dev, NegativeLogLikelihood()
        self._encoded = [(model.encode(example), model.reference(example)) for example in train]
        self.automatic_optimization = False
        self._objective_sum, self._batches = 0.0, 0
        self.history: list[dict[str, float]] = []

    def train_dataloader(self) -> Any:
        """Batches as lists of encoded examples."""
        sizes = [len(encoded) for encoded, _ in self._encoded]
        sampler = LengthBatches(sizes, self.plan.batch_size, self.plan.seed)
        return DataLoader(self._encoded, batch_sampler=sampler, collate_fn=list)  # type: ignore[arg-type]

    def val_dataloader(self) -> Any:
        """One step: the whole of the development set."""
        return DataLoader([0], batch_size=1)  # type: ignore[arg-type]

    def on_train_epoch_start(self) -> None:
        loader: Any = self.trainer.train_dataloader
        loader.batch_sampler.set_epoch(self.current_epoch)
        self._objective_sum, self._batches = 0.0, 0
        self.model.train()

    def training_step(self, batch: list[tuple[Any, list[int]]], batch_idx: int) -> None:
        # Dropout, too, does not depend on what was drawn before: the loader draws now and then.
        place = (self.plan.seed, self.current_epoch, batch_idx, _world()[1])
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
        value: Tensor = objective(self.model.structure([x for x, _ in batch]), [r for _, r in batch])
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
            self.history.append({"epoch": float(self.current_epoch), "train_objective": objective, **row})
            self.log("train_objective", objective)
        self.log_dict(row, prog_bar=True, batch_size=1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["history"] = self.history

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.history = checkpoint["history"]

    def configure_optimizers(self) -> Any:
        """The model's own."""
        return self.model.optimizers(self.plan.lr, self.plan.l2, len(self._encoded))


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
            self.on_epoch(row)


@dataclass(frozen=True)
class _MovingAverage:
    """Exponential, and at first over a tenth of the steps so far."""

    decay: float

    def __call__(self, average: Tensor, current: Tensor, steps: Tensor | int) -> Tensor:
        return torch.lerp(current, average, min(self.decay, (1 + float(steps)) / (10 + float(steps))))


class _Averaging(WeightAveraging):
    """Evaluate the weights' average."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The average does not take the weights' place in the last checkpoint: a longer run may go on from there."""


def fit(
    task: Task, model: TaskModel, objective: Objective, train: Sequence[Example], dev: Sequence[Example], out: Path,
    plan: Plan, on_epoch: Callable[[dict[str, float]], None] | None = None,
) -> list[dict[str, float]]:  # fmt: skip
    """Train, keep the best model in `out`, and return a row for each epoch; `on_epoch` has it as soon as it is there.

    With `plan.resume` it goes on after the last whole epoch that `out` knows of.
    """
    last = out / CHECKPOINT
    resumes = plan.resume and last.is_file()
    # What it tells of hardware and products is of no use here.
    for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    lightning.seed_everything(plan.seed, verbose=False)
    training = Training(task, model, objective, train, dev, plan)
    monitor, mode = f"dev_{task.metric}", "max" if task.maximise else "min"
    callbacks: list[Callback] = [
        _SaveBest(out, on_epoch),
        ModelCheckpoint(dirpath=last.parent, save_last=True, save_top_k=0, enable_version_counter=False),
        EarlyStopping(monitor=monitor, mode=mode, patience=plan.patience),
    ]
    if plan.average:
        callbacks.append(_Averaging(avg_fn=_MovingAverage(plan.average)))
    if plan.progress:
        callbacks.append(TQDMProgressBar())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        trainer = lightning.Trainer(
            max_epochs=plan.stop_after or plan.epochs, accelerator="cpu", devices=plan.devices, num_nodes=_nodes(),
            strategy="ddp" if plan.devices * _nodes() > 1 else "auto", callbacks=callbacks,
            logger=[kind(out, name="", version="logs") for kind in (CSVLogger, TensorBoardLogger)],
            enable_progress_bar=plan.progress, enable_model_summary=False, num_sanity_val_steps=0,
            log_every_n_steps=20, use_distributed_sampler=False,
        )  # fmt: skip
        trainer.fit(training, ckpt_path=last if resumes else None, weights_only=True)
    return training.history
