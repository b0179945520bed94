"""Tagged sentences with names: read once, numbered, and cut into what is trained, chosen and tested on."""

from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.estimators.corpus import Corpus
from structloss.losses.schemes import Tags, chunks
from structloss.tasks.sparse import FeatureIndex
from structloss.tasks.tagging import conll
from structloss.tasks.tagging.features import window
from structloss.text import DataError

NAMES, CHUNKS = ("danish", "swedish", "croatian", "portuguese"), "conll2000"
FEW = 500  # names in dev: with fewer, settings are chosen by cross-validation over train and dev

Numbers = NDArray[np.int64]


class Part(NamedTuple):
    """The numbers of sentences to train on, and of those that are held out to choose by (none: all is chosen)."""

    train: Numbers
    held: Numbers


@dataclass(frozen=True)
class TaggedSet:
    """All sentences of a set in one corpus. Features that training sentences lack keep the weight 0."""

    name: str
    labels: tuple[str, ...]
    columns: list[tuple[tuple[str, ...], ...]]  # of each token but the label
    corpus: Corpus
    parts: list[Part]  # train and dev, or the folds of cross-validation
    everything: Numbers  # what the models that are tested are trained on
    test: Numbers

    @property
    def crossed(self) -> bool:
        """Whether settings are chosen by cross-validation."""
        return len(self.parts) > 1

    @property
    def final(self) -> Part:
        """To train the models that are tested: all but test, or train where dev chooses."""
        return Part(self.everything, np.zeros(0, np.int64)) if self.crossed else self.parts[0]

    @cached_property
    def tags(self) -> Tags:
        """What the labels say."""
        return Tags.of(self.labels)

    def gold(self, sentences: Numbers) -> Numbers:
        """The labels of these sentences, one after the other."""
        assert self.corpus.labels is not None
        begin, sizes = self.corpus.begin[sentences], self.corpus.sizes[sentences]
        places = np.concatenate([np.zeros(0, np.int64), *map(np.arange, begin, begin + sizes)])
        return np.asarray(self.corpus.labels[places])


def files_of(folder: Path, name: str) -> dict[str, Path]:
    """Where the files of a set are; CoNLL-2000 has no dev."""
    if name == CHUNKS:
        return {part: folder / name / f"{part}.txt" for part in ("train", "test")}
    return {part: folder / "uner" / f"{name}-{part}.txt" for part in ("train", "dev", "test")}


def available(folder: Path) -> list[str]:
    """The sets whose files are in a folder."""
    found = [name for name in (*NAMES, CHUNKS) if all(file.exists() for file in files_of(folder, name).values())]
    if not found:
        raise DataError(
            f"data: got {folder}, but wanted a folder with uner/LANGUAGE-train.txt, -dev.txt and -test.txt "
            f"(LANGUAGE: {', '.join(NAMES)}; Universal NER, token and IOB2 label between tabs), or conll2000/train.txt "
            "and test.txt"
        )
    return found


def read(folder: Path, name: str, folds: int = 3, most: int | None = None) -> TaggedSet:
    """A set; `most` sentences of each file, if there are more."""
    sentences = {part: conll.read(file)[:most] for part, file in files_of(folder, name).items()}
    labels = {part: [s.column(-1) for s in group] for part, group in sentences.items()}
    columns = [tuple(token[:-1] for token in s.tokens) for group in sentences.values() for s in group]
    names = tuple(sorted(set(chain.from_iterable(chain.from_iterable(map(iter, labels.values()))))))
    gold = list(chain.from_iterable(labels.values()))
    numbers = {label: k for k, label in enumerate(names)}
    flat = np.fromiter((numbers[label] for row in gold for label in row), np.int64)
    _, tokens = FeatureIndex.read([window(x) for x in columns])
    corpus = Corpus(tokens, np.fromiter(map(len, columns), np.int64), flat)
    test = np.arange(len(columns) - len(sentences["test"]), len(columns))
    everything = np.arange(len(columns) - len(test))
    return TaggedSet(name, names, columns, corpus, _parts(labels, everything, folds), everything, test)


def _parts(labels: dict[str, list[list[str]]], everything: Numbers, folds: int) -> list[Part]:
    """Train and dev where dev has enough names; a tenth held out where there is none; else folds."""
    if "dev" not in labels:
        held = everything[::10]
        return [Part(np.setdiff1d(everything, held), held)]
    if sum(len(chunks(row)) for row in labels["dev"]) >= FEW:
        return [Part(*np.split(everything, [len(labels["train"])]))]
    return [Part(np.setdiff1d(everything, everything[k::folds]), everything[k::folds]) for k in range(folds)]


def flipped(data: TaggedSet, part: float, seed: int) -> TaggedSet:
    """The set with this part of the labels replaced by others, at random.

    It is for training: held-out and test sentences are compared with the labels of the set as it was.
    """
    assert data.corpus.labels is not None
    generator = np.random.default_rng((seed, 17))
    labels = data.corpus.labels.copy()
    changed = generator.random(len(labels)) < part
    labels[changed] = (labels[changed] + generator.integers(1, len(data.labels), changed.sum())) % len(data.labels)
    corpus = Corpus(data.corpus.features, data.corpus.sizes, labels)
    return TaggedSet(data.name, data.labels, data.columns, corpus, data.parts, data.everything, data.test)
