"""What every task offers: files in, a model that turns examples into structures, predictions out, and its metric."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from structloss.structures import Chain, Structure
from structloss.text import DataError as DataError


class UnknownLabelError(DataError):
    """A label that the training data lack."""


@dataclass(frozen=True)
class Example:
    """What a model reads, the answer (names of labels, mostly), and whatever writes both back as they were read."""

    x: Any
    y: tuple[Any, ...]
    source: Any
    where: str  # file and line, for errors
    places: tuple[str, ...] = ()  # file and line of each label, where it has one of its own


class TaskModel(nn.Module, ABC):
    """A network over the examples of one task. Its `config` is JSON; with it and the weights it is made again."""

    open_labels: ClassVar[bool] = False  # labels that training lacks are usual, and count as wrong

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.names: list[str] = config["labels"]
        self._numbers = {name: i for i, name in enumerate(self.names)}

    @abstractmethod
    def encode(self, example: Example) -> Any:
        """What `structure` reads of one example: made once, before training."""

    @abstractmethod
    def structure(self, encoded: Sequence[Any]) -> Structure:
        """The structure of a batch."""

    def structure_to_train(self, encoded: Sequence[Any]) -> Structure:
        """What the objective sees: of an ensemble, the structures of its parts, each of the whole batch, in a row."""
        return self.structure(encoded)

    def optimizers(self, lr: float, l2: float, examples: int) -> list[torch.optim.Optimizer]:
        """What trains it: l2 is the factor of |w|^2 / 2 beside the sum of the objective over all examples."""
        # The objective is a mean over the batch: so is its share of the penalty.
        return [torch.optim.Adam(self.parameters(), lr, weight_decay=l2 / examples)]

    def reference(self, example: Example) -> list[int] | list[float]:
        """The numbers of the answer's labels, or places."""
        for i, name in enumerate(example.y):
            if name not in self._numbers:
                where = example.places[i] if example.places else example.where
                raise UnknownLabelError(f"{where}: got the label {name!r}, which the training data lack")
        return [self._numbers[name] for name in example.y]

    def impossible(self, example: Example) -> str:
        """Why no output can agree with the answer, if that can be said before training; else empty."""
        return ""

    def best(self, structure: Any, k: int) -> tuple[Tensor, Tensor]:
        """The scores (k, B) of the k best answers, and outputs (k, B, ...) that say so."""
        found: tuple[Tensor, Tensor] = structure.topk(k)
        return found

    def times(self, output: Tensor) -> list[tuple[str, float, float]]:
        """The words of an output, each with the seconds at which it begins and ends."""
        raise ValueError(f"--times: a {type(self).__name__} has no words in time, but a recogniser of speech has")

    @property
    def state_names(self) -> list[str]:
        """What `--marginals` calls the states of a position: labels, unless states write something else."""
        return self.names

    def named(self, labels: Sequence[int]) -> tuple[Any, ...]:
        """The names of labels."""
        return tuple(self.names[k] for k in labels)

    def answers(self, structure: Any, outputs: Tensor) -> list[tuple[Any, ...]]:
        """What each of the outputs (B, ...) says: the names of the labels that it writes."""
        return [self.named(labels) for labels in structure.decode(outputs)]

    def states(self, structure: Any) -> tuple[Tensor, list[str]]:
        """For `--marginals`, how probable each state of a position is, (B, T, K), and what the states are called."""
        if not isinstance(structure, Chain):
            raise ValueError(f"--marginals: a {type(structure).__name__} has no positions of its answer to tell of")
        arcs = structure.marginals()
        return arcs.reshape(*arcs.shape[:2], -1, arcs.shape[-1]).sum(2), self.state_names


@dataclass(frozen=True)
class Defaults:
    """How to train a model, where nobody says otherwise."""

    lr: float
    l2: float = 1.0
    epochs: int = 20
    batch_size: int = 16
    patience: int = 5
    average: float = 0.0  # of the weights: see `Plan`, as for
    decays: bool = False  # the learning rate
    updates: int = 0  # of an epoch


class Task(ABC):
    """A kind of data: a model for it, how to train that, and its metrics."""

    name: ClassVar[str]
    metric: ClassVar[str]  # the one that is reported, stopped on and compared
    maximise: ClassVar[bool]
    settings: ClassVar[dict[str, Any]]  # of the model, with their defaults

    @abstractmethod
    def configure(self, examples: Sequence[Example], settings: dict[str, Any]) -> dict[str, Any]:
        """The config of a new model: settings, and vocabularies from the examples."""

    @abstractmethod
    def build(self, config: dict[str, Any]) -> TaskModel:
        """The model of a config."""

    @abstractmethod
    def evaluate(self, examples: Sequence[Example], predictions: Sequence[Sequence[Any]]) -> dict[str, float]:
        """The metrics, the task's own first."""

    @abstractmethod
    def defaults(self, settings: dict[str, Any]) -> Defaults:
        """How to train a model of these settings: of its config, as `configure` has made it."""


class FileTask(Task):
    """A task whose examples come from one file each, and are written back as they were read."""

    loss: ClassVar[str]  # what it trains on by default

    @abstractmethod
    def read(self, path: Path, config: dict[str, Any] | None = None) -> list[Example]:
        """The examples of a file, or a `DataError` that names it and the line.

        With the config of a model that is to answer them, what it does not read may be missing: the answers.
        """

    @abstractmethod
    def write(
        self, example: Example, prediction: Sequence[Any], marginals: Sequence[str] | None = None
    ) -> Iterable[str]:
        """The lines of an example with another answer, in the format it was read in.

        With what is known of each position's marginals, as `written_marginals` has it, in one more column.
        """

    def draw(self, example: Example, prediction: Sequence[Any]) -> str:
        """An answer as a picture, SVG."""
        raise ValueError(f"--picture: {self.name} has no trees to draw, but parsing has")


def check_settings(config: dict[str, Any], models: Sequence[str], ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raise a ValueError for a model of another name, or a setting beyond its range."""
    if config["model"] not in models:
        raise ValueError(f"model: got {config['model']!r}, but wanted {', '.join(models[:-1])} or {models[-1]}")
    for key, (low, high) in ranges.items():
        if not low <= config[key] <= high:
            raise ValueError(f"{key}: got {config[key]!r}, but wanted {low} to {high}")


def check_answers(model: TaskModel, examples: Sequence[Example]) -> None:
    """A `DataError` for what is wrong with answers to evaluate on; labels that training lacks may be only spoken of."""
    unknown: list[str] = []
    for example in examples:
        try:
            model.reference(example)
        except UnknownLabelError as error:
            if not model.open_labels:
                raise
            unknown.append(str(error))
    if unknown:
        others = f", as are {len(unknown) - 1} more like it" if len(unknown) > 1 else ""
        logging.getLogger(__name__).warning(f"{unknown[0]}: counted as wrong{others}")


def predict(model: TaskModel, examples: Sequence[Example], batch_size: int = 64) -> list[tuple[Any, ...]]:
    """The best answer of each example."""
    model.eval()
    encoded = [model.encode(example) for example in examples]
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))  # little of a batch is padding
    found: list[tuple[Any, ...]] = [()] * len(encoded)
    with torch.no_grad():
        for i in range(0, len(order), batch_size):
            batch = order[i : i + batch_size]
            structure = model.structure([encoded[j] for j in batch])
            for j, answer in zip(batch, model.answers(structure, structure.argmax()), strict=True):
                found[j] = answer
    return found


class Answer(NamedTuple):
    """An answer, its probability, and the best output that says so."""

    probability: float
    names: tuple[str, ...]
    output: Tensor


def nbest_answers(model: TaskModel, examples: Sequence[Example], k: int, batch_size: int = 64) -> list[list[Answer]]:
    """The k best answers of each example with their probabilities, best first; several paths of one answer are one."""
    model.eval()
    result: list[list[Answer]] = []
    with torch.no_grad():
        for i in range(0, len(examples), batch_size):
            structure = model.structure([model.encode(example) for example in examples[i : i + batch_size]])
            scores, outputs = model.best(structure, k)
            probabilities = (scores - structure.log_partition()).exp()  # (k, B)
            answers = [model.answers(structure, y) for y in outputs]
            for b, row in enumerate(probabilities.T.tolist()):
                merged: dict[tuple[str, ...], Answer] = {}
                for rank, probability in enumerate(row):
                    if probability > 0 or rank == 0:
                        names = answers[rank][b]
                        known = merged.get(names, Answer(0.0, names, outputs[rank, b]))
                        merged[names] = known._replace(probability=known.probability + probability)
                result.append(sorted(merged.values(), key=lambda answer: -answer.probability))
    return result


def written_marginals(model: TaskModel, examples: Sequence[Example], batch_size: int = 64) -> list[list[str]]:
    """For each position its states with their probabilities, "B-NP:0.93,O:0.07": those above 0.001, best first."""
    model.eval()
    result = []
    with torch.no_grad():
        for i in range(0, len(examples), batch_size):
            structure: Any = model.structure([model.encode(example) for example in examples[i : i + batch_size]])
            states, names = model.states(structure)
            for length, rows in zip(structure.lengths.tolist(), states, strict=True):
                probabilities, order = rows[:length].sort(dim=1, descending=True, stable=True)
                result.append(
                    [
                        ",".join(f"{names[k]}:{p:.3f}" for p, k in zip(*row, strict=True) if p > 1e-3)
                        for row in zip(probabilities.tolist(), order.tolist(), strict=True)
                    ]
                )
    return result
