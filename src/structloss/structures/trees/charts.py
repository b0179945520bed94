"""Charts of spans as packed forests: trees whose spans have labels, and derivations of a grammar."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.structures.trees.packed import Forests, Ints, build


class Chart(NamedTuple):
    """Forests of a batch: arc a scores span[a] and rule[a] of a flat tensor each, and writes span[a]; -1: nothing."""

    forests: Forests
    span: Ints  # (A,), of spans (B, T, T, K)
    rule: Ints  # (A,)


def _starts(length: int) -> NDArray[np.int64]:
    """All spans (i, j) of a sentence, i <= j, the whole of it first."""
    spans = np.stack(np.triu_indices(length), 1)
    return spans[np.argsort(spans[:, 0] - spans[:, 1], kind="stable")]


@lru_cache(maxsize=16)
def of_labels(lengths: tuple[int, ...], width: int, labels: int) -> Chart:
    """An item for each span, whose arcs are its labels, and one below it: where its parts meet."""
    arcs, codes = [], []
    for b, n in enumerate(lengths):
        spans = _starts(n)
        number = np.full((n + 1, n + 1), -1)
        number[tuple(spans.T)] = np.arange(len(spans))
        i, j = np.repeat(spans, labels, 0).T
        item = number[i, j]
        named = np.stack([item, np.where(i < j, len(spans) + item, -1), np.full_like(item, -1)], 1)
        split = np.concatenate([np.zeros((0, 3), np.int64), *(
            np.stack([np.full(j - i, len(spans) + number[i, j]), number[i, i:j], number[i + 1 : j + 1, j]], 1)
            for i, j in spans.tolist()
        )])  # fmt: skip
        code = ((b * width + i) * width + j) * labels + np.tile(np.arange(labels), len(spans))
        if n == 0:
            named, code = np.array([[0, -1, -1]]), np.array([-1])
        arcs.append(np.concatenate([named, split]))
        codes.append(np.concatenate([code, np.full(len(split), -1)]))
    span = np.concatenate([np.zeros(0, np.int64), *codes])
    return Chart(build(arcs), span, np.full_like(span, -1))
