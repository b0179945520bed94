"""Forced alignment: when each of the given phones starts, trained on the tolerance that is reported."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from structloss.structures import Segmentation
from structloss.tasks.alignment.classifier import FrameNetwork, KernelClassifier
from structloss.tasks.alignment.feature_map import Durations, Features, segmentation
from structloss.tasks.alignment.frontend import seconds_of
from structloss.tasks.alignment.utterance import Utterance
from structloss.training.task import DataError, Defaults, Example, Task, TaskModel

TOLERANCES = (10, 20, 30, 40)  # milliseconds


@dataclass(frozen=True)
class Encoded:
    """An utterance with the numbers of its phones, and its features where the classifier does not learn any more."""

    utterance: Utterance
    phones: Tensor
    features: Features | None

    def __len__(self) -> int:
        return len(self.utterance.x)


class Aligner(TaskModel):
    """A frame classifier and the weights of the seven features.

    With `learns` = "weights" the classifier stays as it is, as in the paper; with "all" it learns through alignments.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.durations = Durations(**config["durations"])
        self.scale: Tensor
        self.register_buffer("scale", torch.tensor(config["scale"]))
        self.weights = nn.Parameter(torch.zeros(7))
        self.aggressiveness: float | None = None  # steps are passive-aggressive where it is set
        P, inputs = len(self.names), config["inputs"]
        self.classifier: FrameNetwork | KernelClassifier
        if config["classifier"] == "network":
            self.classifier = FrameNetwork(inputs, P, config["width"], config["context"], config["dropout"])
        else:
            self.classifier = KernelClassifier(inputs, P, config["landmarks"])

    @property
    def _learns_all(self) -> bool:
        return bool(self.config["learns"] == "all")

    def encode(self, example: Example) -> Encoded:
        utterance: Utterance = example.x
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

    def reference(self, example: Example) -> list[int]:
        return list(example.y)

    def named(self, labels: Sequence[int]) -> tuple[int, ...]:
        return tuple(labels)

    def optimizers(self, lr: float, l2: float, examples: int) -> list[torch.optim.Optimizer]:
        if self._learns_all:
            return [torch.optim.Adam(self.parameters(), lr, weight_decay=l2 / examples)]
        if self.aggressiveness is not None:
            return [PassiveAggressiveSteps(self.weights, self.aggressiveness)]
        return [torch.optim.SGD([self.weights], lr)]


class PassiveAggressiveSteps(torch.optim.Optimizer):
    """Steps along the gradient that would bring the objective to 0 were it linear, and of at most C times it."""

    def __init__(self, weights: nn.Parameter, C: float) -> None:
        super().__init__([weights], {"C": C})

    def step(self, closure: Any) -> None:  # type: ignore[override]
        value = float(closure().detach())
        for group in self.param_groups:
            for weights in group["params"]:
                squared = float(weights.grad.square().sum())
                if squared > 0:
                    weights.data -= min(group["C"], value / squared) * weights.grad


def feature_scale(model: Aligner, examples: Sequence[Example]) -> Tensor:
    """The deviation of each feature (7,) over the alignments of examples."""
    model.eval()
    with torch.no_grad():
        rows = torch.stack([model._features(e.x, model.encode(e).phones).at(e.x.starts) for e in examples])
    return rows.std(0, correction=0).clamp(min=1e-3)


class Alignment(Task):
    """Recordings with their phones. The metrics are the parts of boundaries within 10, 20, 30 and 40 ms."""

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
        """Each recording with the frames its phones start at."""
        return [Example(u, u.starts, u, u.name) for u in utterances]

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
        return Defaults(lr=1.0, l2=0.0, epochs=10, batch_size=1, patience=3)

    def build(self, config: dict[str, Any]) -> TaskModel:
        return Aligner(config)

    def evaluate(self, examples: Sequence[Example], predictions: Sequence[Sequence[Any]]) -> dict[str, float]:
        errors = torch.tensor(
            [
                abs(seconds_of(frame, example.x.hop_ms) - time)
                for example, y in zip(examples, predictions, strict=True)
                for frame, time in zip(y[1:], example.x.times[1:], strict=True)
            ],
            dtype=torch.float64,
        )
        within = [(errors <= tolerance / 1000 + 1e-9).double().mean().item() for tolerance in TOLERANCES]
        return {f"{tolerance}ms": part for tolerance, part in zip(TOLERANCES, within, strict=True)}
