"""One training: a recipe on a part of a set with a seed, what it answers in many ways, and the file that keeps it."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.files import write_bytes
from structloss.losses import ChunkErrors, CorpusF1, Hamming, Loss
from structloss.naming import objective_of
from structloss.objectives import NegativeLogLikelihood, Objective
from structloss.reproduce.f1 import counts
from structloss.reproduce.f1.data import Numbers, Part, TaggedSet
from structloss.reproduce.f1.learners import BiLSTM, Learner, Linear
from structloss.reproduce.f1.posteriors import best_chunks, chunk_posteriors

BIASES = tuple(0.25 * i for i in range(-4, 21))  # against O: what is taken from its score at each token
THRESHOLDS = (0.04, 0.06, 1 / 11, 0.12, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55)
ARGMAX = ("bias", 0.0)

Decoder = tuple[str, float]  # ("bias", against O) or ("mbr", threshold of a chunk's probability)


@dataclass(frozen=True)
class Recipe:
    """How to train: everything that is chosen on held-out sentences but the number of passes and the decoder."""

    objective: str  # as the command line has it
    loss: str = ""  # "f1"; "hamming", what a missed token costs; "errors", what a missed chunk costs
    miss: float = 1.0
    C: float = 1.0
    warm_up: int = 0  # passes of likelihood before
    model: str = "linear"

    def __str__(self) -> str:
        parts = [self.objective, {"": "", "f1": "F1"}.get(self.loss, f"{self.loss} {self.miss:g}"), f"C {self.C:g}"]
        return ", ".join(filter(None, parts))

    @property
    def key(self) -> str:
        """For a file's name."""
        text = f"{self.model}-{self.objective}-{self.loss}-{self.miss:g}-C{self.C:g}-w{self.warm_up}"
        return text.replace(":", "_").replace("=", "")

    def loss_of(self, labels: Sequence[str], reached: float | None) -> Loss:
        """What it is about. Costs of chunks add up to 2, as those of F1 do."""
        if self.loss == "f1":
            return CorpusF1(labels, reached=0.5 if reached is None else reached)
        if self.loss == "errors":
            return ChunkErrors(labels, 2 * self.miss / (1 + self.miss), 2 / (1 + self.miss))
        return Hamming.weighted(labels, miss=self.miss) if self.loss == "hamming" and self.miss != 1 else Hamming()

    def objective_of(self, labels: Sequence[str], reached: float | None) -> Objective:
        """With reduction "sum"."""
        objective = objective_of(self.objective, self.loss_of(labels, reached))
        objective.reduction = "sum"
        return objective


class Cell(NamedTuple):
    """Counts of chunks after each pass that was looked at, by each decoder."""

    passes: tuple[int, ...]
    decoders: list[Decoder]
    held: NDArray[np.int64]  # (passes, decoders, 5), of all held-out sentences
    test: NDArray[np.int64]  # (passes, decoders, n, 5), of each test sentence; n = 0 where it was not asked for

    def write(self, file: Path) -> None:
        """As npz."""
        content = BytesIO()
        kinds, values = zip(*self.decoders, strict=True)
        np.savez_compressed(
            content, passes=self.passes, kinds=kinds, values=values, held=self.held, test=self.test.astype(np.uint16)
        )
        write_bytes(file, content.getvalue())

    @classmethod
    def read(cls, file: Path) -> "Cell":
        """What `write` wrote."""
        with np.load(file, allow_pickle=False) as x:
            decoders = [(str(k), float(v)) for k, v in zip(x["kinds"], x["values"], strict=True)]
            passes = tuple(int(p) for p in x["passes"])
            return cls(passes, decoders, x["held"].astype(np.int64), x["test"].astype(np.int64))


def answers(learner: Learner, data: TaggedSet, sentences: Numbers, decoders: Sequence[Decoder]) -> NDArray[np.int64]:
    """The labels of all tokens of the sentences, by each decoder, (decoders, N)."""
    found: list[list[NDArray[np.int64]]] = [[] for _ in decoders]
    outside = data.labels.index("O")
    for emissions, lengths in learner.batches(sentences):
        posteriors = None
        for rows, (kind, value) in zip(found, decoders, strict=True):
            if kind == "bias":
                against = emissions.clone()
                against[:, :, outside] -= value
                best = learner.layer(against, lengths).argmax().numpy()
                rows.append(best[best >= 0])
            else:
                if posteriors is None:
                    posteriors = chunk_posteriors(learner.layer(emissions, lengths), data.labels)
                rows += best_chunks(posteriors, lengths.numpy(), value, data.labels)
    return np.stack([np.concatenate([np.zeros(0, np.int64), *rows]) for rows in found])


def counted(learner: Learner, data: TaggedSet, sentences: Numbers, decoders: Sequence[Decoder]) -> NDArray[np.int64]:
    """(decoders, n, 5) of the sentences."""
    gold, sizes = data.gold(sentences), data.corpus.sizes[sentences]
    found = answers(learner, data, sentences, decoders)
    return np.stack([counts.of_sentences(y, gold, sizes, data.tags) for y in found])


def train(
    data: TaggedSet, part: Part, recipe: Recipe, seed: int, passes: Sequence[int], decoders: Sequence[Decoder],
    test: bool, reached: float | None = None, clean: TaggedSet | None = None,
) -> Cell:  # fmt: skip
    """Train on a part, and count what is answered on held-out and test sentences after some of the passes.

    F1's weights follow what is reached on the held-out sentences, or stay with what is given. Answers are compared with
    the labels of the `clean` set.
    """
    clean = clean or data
    learner: Learner = (
        Linear(data, part.train, recipe.C, seed) if recipe.model == "linear" else BiLSTM(data, part.train, seed)
    )
    objective, likelihood = recipe.objective_of(data.labels, reached), NegativeLogLikelihood(reduction="sum")
    held, tested = [], []
    for p in range(1, max(passes) + 1):
        learner.learn(likelihood if p <= recipe.warm_up else objective)
        if recipe.loss == "f1" and reached is None:
            _follow(objective, learner, clean, part.held)
        if p in passes:
            with learner.answering():
                held.append(counted(learner, clean, part.held, decoders).sum(1))
                tested.append(counted(learner, clean, clean.test if test else clean.test[:0], decoders))
    return Cell(tuple(sorted(passes)), list(decoders), np.stack(held), np.stack(tested))


def _follow(objective: Objective, learner: Learner, data: TaggedSet, held: Numbers) -> None:
    with Learner.answering(learner):
        right, made, wanted = counted(learner, data, held, [ARGMAX])[0].sum(0)[:3].tolist()
    objective.follow({"precision": right / max(1, made), "recall": right / max(1, wanted)})
