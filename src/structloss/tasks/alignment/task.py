"""Forced alignment: when each of the given phones starts, trained on the tolerance that is reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from structloss.losses import BoundaryTolerance
from structloss.structures import Segmentation
from structloss.tasks.alignment.classifier import FrameNetwork, KernelClassifier
from structloss.tasks.alignment.feature_map import NAMES, Durations, Features, segmentation
from structloss.tasks.alignment.utterance import Utterance
from structloss.training.task import DataError, Defaults, Example, Task, TaskModel

TOLERANCES = (10, 20, 30, 40)  # milliseconds
ROUGH = torch.tensor([float(name in ("confidence", "duration")) for name in NAMES])  # weights of a rough aligner


# Weights start as a rough aligner's. At 0 all alignments have one score, and the first target of direct loss is the
# first of those without loss: every phone starts as early as that allows. And a step from 0, away from what is no
# alignment anybody would make, is longer than all later ones together.
_START = 3.0


@dataclass(frozen=True)
class Encoded:
    """An utterance with the numbers of its phones, and its features where the classifier does not learn any more."""

    utterance: Utterance
    phones: Tensor
    features: Features | None

    def __len__(self) -> int:
        return len(self.utterance.x)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Encoded":
        return self  # it never changes


class Aligner(TaskModel):
    """A frame classifier and the weights of the seven features.

    With `learns` = "weights" the classifier stays as it is, as in the paper; with "all" it learns through alignments.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.durations = Durations(**config["durations"])
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(config["scale"]))
        self.weights = nn.Parameter(_START * ROUGH)
        self.aggressiveness: float | None = None  # steps are passive-aggressive where it is set
        self.steps: Steps | None = None  # of the training that has just begun, of weights alone
        self._kept: dict[int, Encoded] = {}
        P, inputs = len(self.names), config["inputs"]
        self.classifier: FrameNetwork | KernelClassifier
        if config["classifier"] == "network":
            self.classifier = FrameNetwork(inputs, P, config["width"], config["context"], config["dropout"])
        else:
            self.classifier = KernelClassifier(inputs, P, config["landmarks"])

    @property
    def _learns_all(self) -> bool:
        return bool(self.config["learns"] == "all")

    def keep(self, examples: Sequence[Example]) -> None:
        """Encode examples once for all trainings of the weights, where the classifier learns no more."""
        self._kept = {} if self._learns_all else {id(e.x): self.encode(e) for e in examples}

    def encode(self, example: Example) -> Encoded:
        utterance: Utterance = example.x
        if (kept := self._kept.get(id(utterance))) is not None and kept.utterance is utterance:
            return kept
        unknown = [phone for phone in utterance.phones if phone not in self._numbers]
        if unknown:
            raise DataError(f"{example.where}: got the phone {unknown[0]!r}, which the training data lack")
        if len(utterance.x) < len(utterance.phones):
            raise DataError(
                f"{example.where}: got {len(utterance.phones)} phones for {len(utterance.x)} frames, but every phone "
                "needs one at least"
            )
        phones = torch.tensor([self._numbers[phone] for phone in utterance.phones])
        return Encoded(utterance, phones, None if self._learns_all else self._features(utterance, phones))

    def _features(self, utterance: Utterance, phones: Tensor) -> Features:
        if not self._learns_all:
            self.classifier.eval()
        with torch.set_grad_enabled(self._learns_all and torch.is_grad_enabled()):
            confidence = self.classifier(utterance.x[None])[0][:, phones].T
        return Features.of(utterance.x, confidence, utterance.phones, self.durations)

    def structure(self, encoded: Sequence[Encoded]) -> Segmentation:
        features = [e.features or self._features(e.utterance, e.phones) for e in encoded]
        return segmentation(self.weights / self.scale, features)

    def reference(self, example: Example) -> list[float]:
        return list(example.y)

    def named(self, labels: Sequence[int]) -> tuple[int, ...]:
        return tuple(labels)

    def optimizers(self, lr: float, l2: float, examples: int) -> list[torch.optim.Optimizer]:
        if self._learns_all:
            return super().optimizers(lr, l2, examples)
        self.steps = Steps(self.weights, lr, self.aggressiveness)
        return [self.steps]


class Steps(torch.optim.Optimizer):
    """Steps of lr times the gradient, or with C as long as would bring the objective to 0 were it linear, but of at
    most C times the gradient.

    It counts the steps, and those that moved anything.
    """

    def __init__(self, weights: nn.Parameter, lr: float, C: float | None = None) -> None:
        super().__init__([weights], {"lr": lr, "C": C})
        self.taken = self.moved = 0

    def step(self, closure: Any) -> None:  # type: ignore[override]
        value = float(closure().detach())
        for group in self.param_groups:
            for weights in group["params"]:
                squared = float(weights.grad.square().sum())
                self.taken += 1
                if squared > 0:
                    self.moved += 1
                    length = group["lr"] if group["C"] is None else min(group["C"], value / squared)
                    weights.data -= length * weights.grad


def feature_scale(model: Aligner, examples: Sequence[Example]) -> Tensor:
    """How large differences of each feature (7,) are: between rough alignments and the references of examples.

    The root of their mean square. A rough alignment is one by the classifier's confidence and the durations alone.
    """
    model.eval()
    with torch.no_grad():
        features = [model._features(e.x, model.encode(e).phones) for e in examples]
        references = torch.stack([f.at(e.x.starts) for f, e in zip(features, examples, strict=True)])
        deviation = references.std(0, correction=0).clamp(min=1e-3)
        found = [y for f in features for y in segmentation(ROUGH / deviation, [f]).decode()]
        differences = torch.stack([f.at(y) for f, y in zip(features, found, strict=True)]) - references
    return torch.maximum(differences.square().mean(0).sqrt(), 0.01 * deviation)


class Alignment(Task):
    """Recordings with their phones. The metrics are the parts of boundaries within 10, 20, 30 and 40 ms.

    They are what `BoundaryTolerance` counts, to the bit: both compare frames with times, which lie between frames.
    """

    name = "alignment"
    metric = "10ms"
    maximise = True
    settings: ClassVar[dict[str, Any]] = {
        "classifier": "network",
        "learns": "weights",
        "width": 192,
        "context": 5,
        "dropout": 0.2,
        "landmarks": 500,
    }

    @staticmethod
    def examples(utterances: Sequence[Utterance]) -> list[Example]:
        """Each recording with where its phones start, in frames, between which times may lie."""
        return [Example(u, u.places, u, u.name) for u in utterances]

    def configure(self, examples: Sequence[Example], settings: dict[str, Any]) -> dict[str, Any]:
        utterances = [example.x for example in examples]
        return {
            **settings,
            "labels": sorted({phone for u in utterances for phone in u.phones}),
            "inputs": utterances[0].x.shape[1],
            "hop_ms": utterances[0].hop_ms,
            "durations": Durations.of(utterances).to_json(),
            "scale": [1.0] * 7,
        }

    def defaults(self, settings: dict[str, Any]) -> Defaults:
        if settings["learns"] == "all":
            return Defaults(lr=0.001, l2=0.0, epochs=10, batch_size=4, patience=4)
        return Defaults(lr=1.0, l2=0.0, epochs=40, batch_size=1, patience=8, average=0.99, updates=50)

    def build(self, config: dict[str, Any]) -> TaskModel:
        return Aligner(config)

    def evaluate(self, examples: Sequence[Example], predictions: Sequence[Sequence[Any]]) -> dict[str, float]:
        distances = [
            (torch.tensor(y[1:], dtype=torch.float64) - torch.tensor(example.y[1:], dtype=torch.float64)).abs()
            for example, y in zip(examples, predictions, strict=True)
        ]
        found = {}
        for tolerance in TOLERANCES:
            losses = [BoundaryTolerance(tau_ms=tolerance, frame_ms=example.x.hop_ms) for example in examples]
            off = [loss.penalty(distance) for loss, distance in zip(losses, distances, strict=True)]
            found[f"{tolerance}ms"] = 1 - torch.cat(off).mean().item()
        return found
