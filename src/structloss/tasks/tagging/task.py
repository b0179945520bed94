"""Tagging: a label for each token of a sentence, from files in columns."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from structloss.structures import Chain, ChainLayer
from structloss.tasks.sparse import FeatureIndex, RowAdagrad, SparseLinear, SparseTokens
from structloss.tasks.tagging import conll
from structloss.tasks.tagging.chunks import chunk_score
from structloss.tasks.tagging.features import window
from structloss.tasks.vocabulary import Vocabulary, frequent
from structloss.training.task import DataError, Defaults, Example, FileTask, TaskModel, check_settings

MODELS = ("sparse", "bilstm")
_RANGES = {"order": (1, 4), "min_count": (1, 1 << 30), "width": (1, 4096), "dropout": (0.0, 0.99)}


class SparseTagger(TaskModel):
    """Window features, weights for each label, and a chain: the CRF of the textbooks."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.index = FeatureIndex(config["features"])
        self.emissions = SparseLinear(max(1, len(self.index)), len(self.names))
        self.chain = ChainLayer(len(self.names), config["order"])
        for parameter in self.chain.parameters():
            nn.init.zeros_(parameter)

    def encode(self, example: Example) -> SparseTokens:
        return self.index.tokens(window(example.x))

    def structure(self, encoded: Sequence[SparseTokens]) -> Chain:
        lengths = [len(x) for x in encoded]
        chain: Chain = self.chain(self.emissions(SparseTokens.padded(encoded)), lengths)
        return chain

    def optimizers(self, lr: float, l2: float, examples: int) -> list[torch.optim.Optimizer]:
        # The objective is a mean over the batch: so is its share of the penalty, and AdaGrad does not mind the factor.
        return [RowAdagrad(self.parameters(), lr, l2 / examples)]


class BiLSTMTagger(TaskModel):
    """Words and their letters' ends embedded, a bidirectional LSTM, and a chain."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        width, K = config["width"], len(self.names)
        self._vocabulary = Vocabulary(config["columns"])
        self.embed = nn.ModuleList([nn.Embedding(size, width) for size in self._vocabulary.sizes])
        self.lstm = nn.LSTM(width * len(self.embed), width, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(config["dropout"])
        self.emissions, self.chain = nn.Linear(2 * width, K), ChainLayer(K, config["order"])

    def encode(self, example: Example) -> Tensor:
        return self._vocabulary.numbers(_columns(example.x))

    def structure(self, encoded: Sequence[Tensor]) -> Chain:
        lengths = [len(x) for x in encoded]
        padded = nn.utils.rnn.pad_sequence(list(encoded), batch_first=True)
        inputs = torch.cat([embed(padded[:, :, i]) for i, embed in enumerate(self.embed)], 2)
        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(inputs), torch.tensor(lengths), batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        chain: Chain = self.chain(self.emissions(self.dropout(states)), lengths)
        return chain


def _columns(tokens: Sequence[Sequence[str]]) -> list[list[str]]:
    """The words in small letters, their last three letters, and the other columns as they are."""
    return [[token[0].lower(), token[0][-3:], *token[1:]] for token in tokens]


class Tagging(FileTask):
    """CoNLL columns or CoNLL-U. The label is the last column (UPOS in CoNLL-U), the others are read.

    `f1` is that of chunks where labels are IOB; elsewhere every token is a chunk of its own, and it is the accuracy.
    """

    name = "tagging"
    metric = "f1"
    maximise = True
    loss = "hamming"
    settings: ClassVar[dict[str, Any]] = {
        "model": "sparse",
        "order": 2,
        "min_count": 1,
        "width": 64,
        "dropout": 0.3,
    }

    def read(self, path: Path, config: dict[str, Any] | None = None) -> list[Example]:
        examples = []
        for sentence in conll.read(path):
            places = tuple(f"{path}, line {number}" for number in sentence.numbers)
            column, width = label_column(sentence), sentence.layout.width
            inputs = [1] if sentence.layout.conllu else list(range(column))
            if config is None and not inputs:
                got = sentence.tokens[0][0][:40]
                raise DataError(
                    f"{places[0]}: got {got!r} alone, but wanted columns between spaces or tabs, the label last"
                )
            if config is not None and len(inputs) != config["inputs"]:
                if sentence.layout.conllu or width != config["inputs"]:
                    raise DataError(
                        f"{places[0]}: got {width} columns, but the model reads {config['inputs']}, and a label or none"
                    )
                inputs, column = list(range(width)), width  # there are no labels
            x = tuple(tuple(token[i] for i in inputs) for token in sentence.tokens)
            y = tuple(sentence.column(column)) if column < width else ()
            examples.append(Example(x, y, sentence, places[0], places))
        return examples

    def configure(self, examples: Sequence[Example], settings: dict[str, Any]) -> dict[str, Any]:
        check_settings(settings, MODELS, _RANGES)
        labels = sorted({label for example in examples for label in example.y})
        config: dict[str, Any] = {**settings, "labels": labels, "inputs": len(examples[0].x[0])}
        if settings["model"] == "sparse":
            config["features"] = FeatureIndex.of((window(e.x) for e in examples), settings["min_count"]).names
        else:
            rows = (row for example in examples for row in _columns(example.x))
            config["columns"] = frequent(rows, settings["min_count"])
        return config

    def defaults(self, settings: dict[str, Any]) -> Defaults:
        return Defaults(lr=0.1 if settings["model"] == "sparse" else 0.005)

    def build(self, config: dict[str, Any]) -> TaskModel:
        check_settings(config, MODELS, _RANGES)
        return SparseTagger(config) if config["model"] == "sparse" else BiLSTMTagger(config)

    def evaluate(self, examples: Sequence[Example], predictions: Sequence[Sequence[str]]) -> dict[str, float]:
        gold = [example.y for example in examples]
        for example, y in zip(examples, gold, strict=True):
            if len(y) != len(example.x):
                raise DataError(f"{example.where}: got no labels to compare answers with")
        tokens = sum(map(len, gold))
        right = sum(a == b for y, r in zip(predictions, gold, strict=True) for a, b in zip(y, r, strict=True))
        accuracy = right / tokens if tokens else 1.0
        if not any(label.startswith(("B-", "I-")) for y in gold for label in y):
            return {"f1": accuracy, "accuracy": accuracy}  # every token a chunk: precision, recall and F1 are the same
        score = chunk_score(predictions, gold)
        return {"f1": score.f1, "accuracy": accuracy, "precision": score.precision, "recall": score.recall}

    def write(
        self, example: Example, prediction: Sequence[str], marginals: Sequence[str] | None = None
    ) -> Iterable[str]:
        column = label_column(example.source) if example.y else example.source.layout.width
        return conll.written(example.source, {column: prediction}, marginals)


def label_column(sentence: conll.Sentence) -> int:
    """Where the labels stand."""
    return 3 if sentence.layout.conllu else sentence.layout.width - 1
