"""Speech recognition: log-mel frames, a small network, and CTC over characters or pieces of words."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from structloss.losses import EditDistance
from structloss.structures import CTC
from structloss.tasks.alignment.frontend import frame_count, log_mel, seconds_of
from structloss.tasks.speech import corpus, pieces
from structloss.tasks.speech.network import STRIDES, Network, frames_left, varied
from structloss.tasks.speech.search import best_strings
from structloss.training.task import DataError, Defaults, Example, FileTask, TaskModel, check_settings

MODELS = ("gru", "lstm")
_BINS = 40
_FLOOR = 14.0  # nats below the loudest band of an utterance, where silence begins
_LONGEST = 60_000  # frames
_LOUDEST = 1e6  # also of those who write 16 bits as they are
_RANGES = {
    "width": (8, 4096), "layers": (1, 16), "dropout": (0.0, 0.99), "subsample": (1, max(STRIDES)), "speed": (0.0, 1.0),
    "pitch": (0.0, 1.0), "masks": (0, 16), "pieces": (0, 1 << 16),
}  # fmt: skip


@dataclass(frozen=True)
class Encoded:
    """The frames of an utterance (T, bins), and how many of them its transcript needs at least."""

    x: Tensor
    least: int

    def __len__(self) -> int:
        return len(self.x)


class Recogniser(TaskModel):
    """A network that scores labels and the blank, the last one, for every few frames, and CTC over them."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._merges = {(a, b): i for i, (a, b) in enumerate(config["merges"])}
        self.network = Network(
            config["model"], _BINS, config["width"], config["layers"], config["subsample"], config["dropout"],
            len(self.names) + 1,
        )  # fmt: skip

    def encode(self, example: Example) -> Encoded:
        least = self._needed(example) * self.config["subsample"] if example.y else 1
        return Encoded(example.x, min(least, len(example.x)))

    def structure(self, encoded: Sequence[Encoded]) -> CTC:
        c = self.config
        frames = [varied(e.x, c["speed"], c["pitch"], c["masks"], e.least) if self.training else e.x for e in encoded]
        lengths = torch.tensor([len(x) for x in frames])
        scores, lengths = self.network(nn.utils.rnn.pad_sequence(frames, batch_first=True), lengths)
        return CTC(scores.log_softmax(2), lengths, blank=len(self.names))

    def _labels(self, example: Example) -> list[str]:
        """The labels of its transcript, also those that training lacks."""
        return pieces.cut("".join(example.y), self._merges) if self.config["pieces"] else list(example.y)

    def _needed(self, example: Example) -> int:
        """Frames of a transcript: one a label, and one for the blank between two equal ones."""
        labels = self._labels(example)
        return len(labels) + sum(a == b for a, b in pairwise(labels))

    def reference(self, example: Example) -> list[int]:
        labels = self._labels(example)
        for label in labels:
            if label not in self._numbers:
                raise DataError(f"{example.where}: got the character {label!r}, which the training data lack")
        return [self._numbers[label] for label in labels]

    def impossible(self, example: Example) -> str:
        left, needed = frames_left(len(example.x), self.config["subsample"]), self._needed(example)
        if needed <= left:
            return ""
        return (
            f"got a transcript whose {len(self._labels(example))} labels need {needed} frames, but its recording has "
            f"{left} of {10 * self.config['subsample']} ms"
        )

    def named(self, labels: Sequence[int]) -> tuple[str, ...]:
        return tuple(_spelled([self.names[k] for k in labels]))

    def best(self, structure: CTC, k: int) -> tuple[Tensor, Tensor]:
        """The strings of `best_strings`, each with the best of its paths."""
        scores, strings = best_strings(structure, len(self.names), k)
        return scores, torch.stack([structure.given(row).argmax() for row in strings])

    def times(self, output: Tensor) -> list[tuple[str, float, float]]:
        """Each word of a path (T',) with the seconds at which its first label begins and its last one ends."""
        found: list[tuple[list[str], int, int]] = []
        before, new = -1, True
        for t, k in enumerate(output.tolist()):
            if 0 <= k < len(self.names):
                name = self.names[k].replace(pieces.MARK, corpus.BOUNDARY)
                new |= name.startswith(corpus.BOUNDARY) and k != before
                if name != corpus.BOUNDARY:
                    if new:
                        found.append(([], t, t))
                    written, begin, _ = found[-1]
                    found[-1] = ([*written, *name.strip()] if k != before else written, begin, t + 1)
                    new = False
            before = k
        step = seconds_of(self.config["subsample"])
        return [("".join(word), round(begin * step, 2), round(end * step, 2)) for word, begin, end in found]


def _spelled(labels: Sequence[str]) -> str:
    """What labels write: words, one space between two of them."""
    return corpus.BOUNDARY.join("".join(labels).replace(pieces.MARK, corpus.BOUNDARY).split())


class Speech(FileTask):
    """Recordings and transcripts. `wer` is the edit distance in words over their number; `cer` that in characters."""

    name = "speech"
    metric = "wer"
    maximise = False
    loss = "words:cap=3"
    settings: ClassVar[dict[str, Any]] = {
        "model": "gru",
        "width": 128,
        "layers": 2,
        "dropout": 0.2,
        "subsample": 3,
        "speed": 0.1,
        "pitch": 0.1,
        "masks": 2,
        "pieces": 0,
    }

    def read(self, path: Path, config: dict[str, Any] | None = None) -> list[Example]:
        entries = corpus.read(path, transcribed=config is None)
        return [Example(_frames(entry), tuple(entry.text or ""), entry.name, entry.where) for entry in entries]

    def configure(self, examples: Sequence[Example], settings: dict[str, Any]) -> dict[str, Any]:
        texts = ["".join(example.y) for example in examples]
        if settings["pieces"]:
            labels, merges = pieces.learn(texts, settings["pieces"])
        else:
            labels, merges = sorted({character for text in texts for character in text}), []
        config = {**settings, "labels": labels, "merges": [list(pair) for pair in merges]}
        check_settings(config, MODELS, _RANGES)
        return config

    def defaults(self, settings: dict[str, Any]) -> Defaults:
        return Defaults(lr=0.002, l2=0.0, epochs=40, batch_size=16, patience=12, average=0.99, decays=True)

    def build(self, config: dict[str, Any]) -> TaskModel:
        check_settings(config, MODELS, _RANGES)
        return Recogniser(config)

    def evaluate(self, examples: Sequence[Example], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
        word_errors, words, errors, characters = counts(examples, predictions).sum(0).tolist()
        return {"wer": word_errors / max(1, words), "cer": errors / max(1, characters)}

    def write(
        self, example: Example, prediction: Sequence[str], marginals: Sequence[str] | None = None
    ) -> Iterable[str]:
        more = "" if marginals is None else "\t" + " ".join(marginals)
        return [f"{example.source}\t{''.join(prediction)}{more}"]


def counts(examples: Sequence[Example], predictions: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """Of each utterance its word errors, its words, the errors in characters and its characters: (n, 4)."""
    for example in examples:
        if not example.y:
            raise DataError(f"{example.where}: got no transcript, but wanted some to count errors")
    table = np.zeros((len(examples), 4), np.int64)
    for column, units in ((0, str.split), (2, list)):
        pairs = [(units("".join(y)), units("".join(e.y))) for e, y in zip(examples, predictions, strict=True)]
        names = {name: i for i, name in enumerate(sorted({name for pair in pairs for side in pair for name in side}))}
        y, r = ([[names[name] for name in pair[side]] for pair in pairs] for side in (0, 1))
        if pairs:
            table[:, column] = EditDistance()(y, r).numpy()
            table[:, column + 1] = [len(row) for row in r]
    return table


def _frames(entry: corpus.Entry) -> Tensor:
    samples = entry.samples()
    if frame_count(len(samples)) > _LONGEST:
        raise DataError(
            f"{entry.where}: got a recording longer than {_LONGEST // 6000} minutes; cut it into utterances"
        )
    if np.abs(samples).max() > _LOUDEST:
        raise DataError(f"{entry.where}: got samples up to {np.abs(samples).max():g}, but wanted them within [-1, 1]")
    return frames(samples)


def frames(samples: NDArray[np.float32]) -> Tensor:
    """Log-mel energies (T, bins) of an utterance, of mean 0 and variance 1 in each band; a band without sound is 0."""
    x = log_mel(samples, _BINS).astype(np.float64)
    x = np.maximum(x, x.max() - _FLOOR)
    deviation = x.std(0)
    deviation[deviation < 1e-4] = np.inf
    return torch.from_numpy(((x - x.mean(0)) / deviation).astype(np.float32))
