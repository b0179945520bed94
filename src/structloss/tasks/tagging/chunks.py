"""Chunk F1, by seqeval's (and conlleval's) definition: a chunk counts where its type, begin and end are all right."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class ChunkScore(NamedTuple):
    """Of all chunks: precision, recall and F1, from 0 to 1."""

    precision: float
    recall: float
    f1: float


def chunks(labels: Sequence[str]) -> set[tuple[str, int, int]]:
    """(type, begin, end) of each chunk of IOB labels (B-X, I-X, O); I-X after another type or O begins one.

    Example:
        >>> from structloss.tasks.tagging.chunks import chunks
        >>> sorted(chunks(["B-NP", "I-NP", "O", "I-VP", "B-VP"]))
        [('NP', 0, 2), ('VP', 3, 4), ('VP', 4, 5)]
    """
    found, begin, kind = set(), 0, ""
    for t, label in enumerate([*labels, "O"]):
        prefix, _, name = label.partition("-")
        inside = prefix in ("B", "I", "E", "S")
        if kind and not (prefix in ("I", "E") and name == kind):
            found.add((kind, begin, t))
            kind = ""
        if inside and (not kind or prefix in ("B", "S")):
            begin, kind = t, name
    return found


def chunk_score(predicted: Iterable[Sequence[str]], gold: Iterable[Sequence[str]]) -> ChunkScore:
    """Over all sentences."""
    right = ours = theirs = 0
    for y, r in zip(predicted, gold, strict=True):
        a, b = chunks(y), chunks(r)
        right, ours, theirs = right + len(a & b), ours + len(a), theirs + len(b)
    precision, recall = right / ours if ours else 0.0, right / theirs if theirs else 0.0
    return ChunkScore(precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0)
