"""Chunk F1, by seqeval's (and conlleval's) definition: a chunk counts where its type, begin and end are all right."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from structloss.losses.schemes import chunks


class ChunkScore(NamedTuple):
    """Of all chunks: precision, recall and F1, from 0 to 1."""

    precision: float
    recall: float
    f1: float


def chunk_score(predicted: Iterable[Sequence[str]], gold: Iterable[Sequence[str]]) -> ChunkScore:
    """Over all sentences."""
    right = ours = theirs = 0
    for y, r in zip(predicted, gold, strict=True):
        a, b = chunks(y), chunks(r)
        right, ours, theirs = right + len(a & b), ours + len(a), theirs + len(b)
    precision, recall = right / ours if ours else 0.0, right / theirs if theirs else 0.0
    return ChunkScore(precision, recall, 2 * precision * recall / (precision + recall) if right else 0.0)
