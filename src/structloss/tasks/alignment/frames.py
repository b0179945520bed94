"""The frame classifier as a task of its own: every frame's phone, cross-entropy being the chain's of order 1."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, ClassVar

from torch import Tensor, nn

from structloss.structures import Chain
from structloss.tasks.alignment.classifier import FrameNetwork
from structloss.tasks.alignment.utterance import Utterance
from structloss.training.task import Defaults, Example, Task, TaskModel


class FrameTagger(TaskModel):
    """The network that an aligner then takes over."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.network = FrameNetwork(
            config["inputs"], len(self.names), config["width"], config["context"], config["dropout"]
        )

    def encode(self, example: Example) -> Tensor:
        x: Tensor = example.x
        return x

    def structure(self, encoded: Sequence[Tensor]) -> Chain:
        padded = nn.utils.rnn.pad_sequence(list(encoded), batch_first=True)
        return Chain.from_emissions(self.network(padded), lengths=[len(x) for x in encoded])


class Frames(Task):
    """Utterances, a phone for each frame; `accuracy` is the part of frames that are right."""

    name = "frames"
    metric = "accuracy"
    maximise = True
    settings: ClassVar[dict[str, Any]] = {"width": 192, "context": 5, "dropout": 0.2}

    @staticmethod
    def examples(utterances: Sequence[Utterance]) -> list[Example]:
        """Every frame with its phone."""
        return [Example(u.x, u.frame_phones(), u, u.name) for u in utterances]

    def configure(self, examples: Sequence[Example], settings: dict[str, Any]) -> dict[str, Any]:
        labels = sorted({phone for example in examples for phone in example.y})
        return {**settings, "labels": labels, "inputs": examples[0].x.shape[1]}

    def defaults(self, settings: dict[str, Any]) -> Defaults:
        return Defaults(lr=0.002, l2=0.0, epochs=8, batch_size=8, patience=3, average=0.99, decays=True)

    def build(self, config: dict[str, Any]) -> TaskModel:
        return FrameTagger(config)

    def evaluate(self, examples: Sequence[Example], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
        gold = [phone for example in examples for phone in example.y]
        right = sum(a == b for a, b in zip(gold, chain.from_iterable(predictions), strict=True))
        return {"accuracy": right / max(1, len(gold))}
