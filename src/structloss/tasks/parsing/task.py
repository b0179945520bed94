"""Parsing: the dependency tree of a sentence, with relations, from CoNLL-U."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from structloss.structures import Chain, DependencyTree, Structure
from structloss.structures.trees.parts import arcs_between
from structloss.tasks.parsing import treebank
from structloss.tasks.parsing.drawing import drawn
from structloss.tasks.parsing.network import Network
from structloss.tasks.parsing.treebank import Arc
from structloss.tasks.tagging.features import shape
from structloss.tasks.vocabulary import Vocabulary, frequent
from structloss.training.task import DataError, Defaults, Example, FileTask, TaskModel, check_settings

MODELS = ("bilstm",)
_RANGES = {
    "width": (1, 1024), "layers": (1, 8), "dropout": (0.0, 0.99), "min_count": (1, 1 << 30), "projective": (0, 1),
    "tags": (0, 1), "tree": (0, 1),
}  # fmt: skip


class Parser(TaskModel):
    """A network that scores the arcs between all words of a sentence, and trees over them."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._vocabulary = Vocabulary(config["columns"])
        sizes = [len(column) for column in config["columns"]]
        self.network = Network(sizes, config["width"], config["layers"], config["dropout"], len(self.names))

    def encode(self, example: Example) -> Tensor:
        return self._vocabulary.numbers(_features(example, self.config["tags"]))

    def structure(self, encoded: Sequence[Tensor]) -> DependencyTree:
        return DependencyTree(self.network(encoded), [len(x) for x in encoded], bool(self.config["projective"]))

    def structure_to_train(self, encoded: Sequence[Tensor]) -> Structure:
        """Without `tree`, each word's arc by itself: what agrees with no tree counts as much as what does."""
        if self.config["tree"]:
            return self.structure(encoded)
        scores, lengths = self.network(encoded), torch.tensor([len(x) for x in encoded])
        within = arcs_between(torch.arange(scores.shape[1]) < lengths[:, None])
        return Chain(scores.masked_fill(~within[..., None], -math.inf).flatten(2), lengths)

    def optimizers(self, lr: float, l2: float, examples: int) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(self.parameters(), lr, betas=(0.9, 0.95), weight_decay=l2 / examples, fused=True)]

    def reference(self, example: Example) -> list[int]:
        _features(example, self.config["tags"])  # what it lacks is said before anything is trained
        for place, (_, name) in zip(example.places, example.y, strict=False):
            if name not in self._numbers:
                raise DataError(f"{place}: got the relation {name!r}, which the training data lack")
        return [head * len(self.names) + self._numbers[name] for head, name in example.y]

    def answers(self, structure: DependencyTree, outputs: Tensor) -> list[tuple[Arc, ...]]:
        return [tuple(self._named(arc) for arc in row if arc >= 0) for row in outputs.tolist()]

    def _named(self, arc: int) -> Arc:
        head, relation = divmod(arc, len(self.names))
        return head, self.names[relation]

    def states(self, structure: DependencyTree) -> tuple[Tensor, list[str]]:
        """Of each word its arcs, as column DEPS of CoNLL-U writes them: 2:nsubj."""
        found = structure.marginals().flatten(2)
        return found, [f"{head}:{name}" for head, name in map(self._named, range(found.shape[2]))]


def _features(example: Example, tags: bool) -> list[list[str]]:
    """Of each word: small letters, shape, first three letters, last two and three; and its tag, if that is read."""
    rows = []
    for place, (word, tag) in zip(example.places, example.x, strict=True):
        if tags and tag in ("", "_"):
            raise DataError(f"{place}, column {treebank.TAG + 1} (UPOS): got {tag!r}, but the model reads tags")
        lower = word.lower()
        rows.append([lower, shape(word), lower[:3], lower[-2:], lower[-3:], *([tag] if tags else [])])
    return rows


class Parsing(FileTask):
    """CoNLL-U. `las` is the part of words whose head and universal relation are right, `uas` that of right heads."""

    name = "parsing"
    metric = "las"
    maximise = True
    loss = "hamming"
    settings: ClassVar[dict[str, Any]] = {
        "model": "bilstm",
        "width": 200,
        "layers": 2,
        "dropout": 0.33,
        "min_count": 2,
        "projective": 0,
        "tags": 0,
        "tree": 1,
    }

    def read(self, path: Path, config: dict[str, Any] | None = None) -> list[Example]:
        examples = []
        for sentence in treebank.read(path):
            y = treebank.arcs(sentence, path, wanted=config is None)
            places = tuple(f"{path}, line {number}" for number in sentence.numbers)
            x = tuple((token[1], token[treebank.TAG]) for token in sentence.tokens)
            examples.append(Example(x, y, sentence, places[0], places))
        return examples

    def configure(self, examples: Sequence[Example], settings: dict[str, Any]) -> dict[str, Any]:
        check_settings(settings, MODELS, _RANGES)
        rows = (row for example in examples for row in _features(example, settings["tags"]))
        names = frequent(rows, settings["min_count"])
        labels = sorted({relation for example in examples for _, relation in example.y})
        return {**settings, "labels": labels, "columns": names}

    def defaults(self, settings: dict[str, Any]) -> Defaults:
        return Defaults(lr=0.004, l2=0.0, epochs=20, batch_size=32, patience=10, average=0.998, decays=True)

    def build(self, config: dict[str, Any]) -> TaskModel:
        check_settings(config, MODELS, _RANGES)
        return Parser(config)

    def evaluate(self, examples: Sequence[Example], predictions: Sequence[Sequence[Arc]]) -> dict[str, float]:
        for example in examples:
            if not example.y:
                raise DataError(f"{example.where}: got no heads to compare answers with")
        las, uas = treebank.attachment(predictions, [example.y for example in examples])
        return {"las": las, "uas": uas}

    def write(
        self, example: Example, prediction: Sequence[Arc], marginals: Sequence[str] | None = None
    ) -> Iterable[str]:
        return treebank.written(example.source, prediction, marginals)

    def draw(self, example: Example, prediction: Sequence[Arc]) -> str:
        return drawn([word for word, _ in example.x], prediction)
