"""Dependency trees in CoNLL-U: checked as they are read, written back, and compared as CoNLL 2018 did."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from structloss.kernels.arborescence import CYCLE, first_fault
from structloss.tasks.tagging import conll
from structloss.text import DataError

HEAD, RELATION, TAG = 6, 7, 3  # columns, counted from 0
_NUMBER = re.compile("[0-9]{1,9}")

Arc = tuple[int, str]  # the head of a word, 0 for the root and else a word counted from 1, and the relation to it


def read(path: Path) -> list[conll.Sentence]:
    """The sentences of a file in CoNLL-U."""
    sentences = conll.read(path)
    if not sentences[0].layout.conllu:
        number, width = sentences[0].numbers[0], sentences[0].layout.width
        raise DataError(f"{path}, line {number}: got {width} columns, but wanted CoNLL-U, ten between tabs")
    return sentences


def arcs(sentence: conll.Sentence, path: Path, wanted: bool) -> tuple[Arc, ...]:
    """The tree of a sentence; none where every head is _ and no tree is wanted."""
    written, n = sentence.column(HEAD), len(sentence.tokens)
    if not wanted and all(head == "_" for head in written):
        return ()
    where = [f"{path}, line {number}, column {HEAD + 1} (HEAD)" for number in sentence.numbers]
    for place, head in zip(where, written, strict=True):
        if not _NUMBER.fullmatch(head) or int(head) > n:
            raise DataError(f"{place}: got {head[:40]!r}, but wanted 0 for the root, or a word from 1 to {n}")
    heads = [int(head) for head in written]
    _, word, fault = first_fault(np.array([heads]), np.array([n]), True, False)
    if fault == CYCLE:
        raise DataError(f"{where[word - 1]}: word {word} does not reach the root from its head {heads[word - 1]}")
    if fault:
        raise DataError(f"{where[word - 1]}: word {word} is a second one on the root, but wanted one")
    for number, relation in zip(sentence.numbers, sentence.column(RELATION), strict=True):
        if relation in ("", "_"):
            place = f"{path}, line {number}, column {RELATION + 1} (DEPREL)"
            raise DataError(f"{place}: got {relation!r}, but wanted a relation")
    return tuple(zip(heads, sentence.column(RELATION), strict=True))


def written(sentence: conll.Sentence, tree: Sequence[Arc], more: Sequence[str] | None = None) -> Iterable[str]:
    """The lines of a sentence with another tree; all other columns, comments and lines as they were."""
    heads, relations = [str(head) for head, _ in tree], [relation for _, relation in tree]
    return conll.written(sentence, {HEAD: heads, RELATION: relations}, more)


def attachment(predicted: Iterable[Sequence[Arc]], gold: Iterable[Sequence[Arc]]) -> tuple[float, float]:
    """LAS and UAS as CoNLL 2018 counts them where words are given: of all words, punctuation too.

    A word is right for LAS if its head is and its relation, of which what follows a colon does not count.

    Example:
        >>> attachment([[(2, "nsubj:pass"), (0, "root")]], [[(2, "nsubj"), (1, "root")]])
        (0.5, 0.5)
    """
    words = labelled = unlabelled = 0
    for y, r in zip(predicted, gold, strict=True):
        for (head, relation), (right, name) in zip(y, r, strict=True):
            words += 1
            unlabelled += head == right
            labelled += head == right and universal(relation) == universal(name)
    return (labelled / words, unlabelled / words) if words else (1.0, 1.0)


def universal(relation: str) -> str:
    """A relation without its subtype.

    Example:
        >>> universal("nsubj:pass")
        'nsubj'
    """
    return relation.partition(":")[0]
