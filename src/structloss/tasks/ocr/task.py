"""OCR: handwritten words, letter by letter."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from structloss.structures import Chain, ChainLayer
from structloss.tasks.ocr import letters
from structloss.training.task import Defaults, Example, FileTask, TaskModel, check_settings

MODELS = ("linear", "mlp", "cnn")
_RANGES = {"order": (1, 4), "width": (1, 4096), "dropout": (0.0, 0.99), "window": (0, 8)}


class LetterReader(TaskModel):
    """What each letter's pixels say, also to its neighbours if `window` is above 0, and a chain.

    The linear model weighs the pixels themselves; the others first make `width` numbers of them.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.window: int = config["window"]
        self.features, size = _features(config["model"], config["width"], config["dropout"])
        self.emissions = nn.Linear((2 * self.window + 1) * size, len(self.names))
        self.chain = ChainLayer(len(self.names), config["order"])
        for parameter in (*self.emissions.parameters(), *self.chain.parameters()):
            nn.init.zeros_(parameter)

    def encode(self, example: Example) -> Tensor:
        return torch.from_numpy(example.x)

    def structure(self, encoded: Sequence[Tensor]) -> Chain:
        lengths = [len(x) for x in encoded]
        found = self.features(torch.cat(list(encoded)).to(self.emissions.weight.dtype))
        padded = nn.utils.rnn.pad_sequence(found.split(lengths), batch_first=True)
        if self.window:
            T, wide = padded.shape[1], nn.functional.pad(padded, (0, 0, self.window, self.window))
            padded = torch.cat([wide[:, i : i + T] for i in range(2 * self.window + 1)], 2)
        chain: Chain = self.chain(self.emissions(padded), lengths)
        return chain

    def optimizers(self, lr: float, l2: float, examples: int) -> list[torch.optim.Optimizer]:
        # The objective is a mean over the batch: so is its share of the penalty.
        kind = torch.optim.Adagrad if self.config["model"] == "linear" else torch.optim.Adam
        return [kind(self.parameters(), lr, weight_decay=l2 / examples)]


def _features(model: str, width: int, dropout: float) -> tuple[nn.Module, int]:
    """What makes numbers of the pixels (N, 128) of letters, and how many."""
    if model == "linear":
        return nn.Identity(), letters.PIXELS
    if model == "mlp":
        layers = [nn.Linear(letters.PIXELS, width), nn.ReLU(), nn.Dropout(dropout)]
        return nn.Sequential(*layers), width
    return nn.Sequential(
        nn.Unflatten(1, (1, letters.HEIGHT, letters.WIDTH)),
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(dropout), nn.Linear(32 * letters.PIXELS // 4, width), nn.ReLU(), nn.Dropout(dropout),
    ), width  # fmt: skip


class Ocr(FileTask):
    """An npz of handwritten words; behind its name and a colon stand the folds to take: 1, 1-9 or all-but-1."""

    name = "ocr"
    metric = "letters"
    maximise = True
    loss = "hamming"
    settings: ClassVar[dict[str, Any]] = {"model": "linear", "order": 2, "width": 128, "dropout": 0.3, "window": 0}

    def read(self, path: Path, config: dict[str, Any] | None = None) -> list[Example]:
        return [Example(word.pixels, tuple(word.letters), None, word.where) for word in letters.read(path)]

    def configure(self, examples: Sequence[Example], settings: dict[str, Any]) -> dict[str, Any]:
        config = {**settings, "labels": list(letters.ALPHABET)}
        check_settings(config, MODELS, _RANGES)
        return config

    def defaults(self, settings: dict[str, Any]) -> Defaults:
        return Defaults(lr=0.1 if settings["model"] == "linear" else 0.002)

    def build(self, config: dict[str, Any]) -> TaskModel:
        check_settings(config, MODELS, _RANGES)
        return LetterReader(config)

    def evaluate(self, examples: Sequence[Example], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
        pairs = [(tuple(y), example.y) for example, y in zip(examples, predictions, strict=True)]
        total = sum(len(r) for _, r in pairs)
        right = sum(a == b for y, r in pairs for a, b in zip(y, r, strict=True))
        return {
            "letters": right / total if total else 1.0,
            "words": sum(y == r for y, r in pairs) / len(pairs) if pairs else 1.0,
        }

    def write(
        self, example: Example, prediction: Sequence[str], marginals: Sequence[str] | None = None
    ) -> Iterable[str]:
        return ["".join(prediction) + ("" if marginals is None else "\t" + " ".join(marginals))]
