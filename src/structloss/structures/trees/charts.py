"""Charts of spans as packed forests: trees whose spans have labels, and derivations of a grammar."""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.structures.rows import Ints
from structloss.structures.trees.packed import Forests, build


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


@lru_cache(maxsize=4)
def of_grammar(lengths: tuple[int, ...], width: int, symbols: int, parts: int) -> Chart:
    """An item for each span with a symbol, of which the first have rules and the last `parts` are of single words.

    Rules are numbered (a * K + l) * K + r of K symbols, then come the roots; a word is told by its bracket.
    """
    inner = symbols - parts
    parts_of = [_grammar_of_length(n, width, symbols, inner, b) for b, n in enumerate(lengths)]
    none = np.zeros(0, np.int64)
    code, rule = (np.concatenate([none, *(own[i] for own in parts_of)]) for i in (1, 2))
    return Chart(build([own[0] for own in parts_of]), code, rule)


def _grammar_of_length(n: int, width: int, symbols: int, inner: int, b: int) -> tuple[Ints, Ints, Ints]:
    """The arcs (A, 3) of example b, of n words, what they write (A,) and their rules (A,)."""
    found: list[list[Ints]] = []

    def item(i: Any, j: Any, symbol: Any) -> Any:
        return 1 + (i * n + j) * symbols + symbol

    def add(*columns: Any) -> None:  # head, left, right, what it writes, rule
        found.append([x.reshape(-1) for x in np.broadcast_arrays(*columns)])

    if n == 0:
        add([0], -1, -1, -1, -1)
    roots, words, place = np.arange(inner), np.arange(inner, symbols), np.arange(n)[:, None]
    if n > 1:
        add(0, item(0, n - 1, roots), -1, -1, inner * symbols**2 + roots)
    add(item(place, place, words), -1, -1, (b * width * width + place * (width + 1)) * symbols + words, -1)
    rules = np.stack([x.reshape(-1) for x in np.mgrid[:inner, :symbols, :symbols]])
    for i in range(n):
        for j in range(i + 1, n):
            k = np.arange(i, j)[:, None]
            at, which = (((rules[1] >= inner) == (k == i)) & ((rules[2] >= inner) == (k + 1 == j))).nonzero()
            head, left, right = rules[:, which]
            code, rule = ((b * width + i) * width + j) * symbols + head, (head * symbols + left) * symbols + right
            add(item(i, j, head), item(i, i + at, left), item(i + at + 1, j, right), code, rule)
    columns = [np.concatenate(x) for x in zip(*found, strict=True)]
    return np.stack(columns[:3], 1), columns[3], columns[4]
