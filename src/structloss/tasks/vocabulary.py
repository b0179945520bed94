"""The tokens of columns, numbered: those that are frequent enough in training, and 0 for any other."""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

Row = Sequence[str]  # one token a column


class Vocabulary:
    """Of each column the names of its tokens 1, 2, ..."""

    def __init__(self, columns: Sequence[Sequence[str]]) -> None:
        self._numbers = [{name: i + 1 for i, name in enumerate(column)} for column in columns]

    @property
    def sizes(self) -> list[int]:
        """How many numbers each column has, with 0."""
        return [len(numbers) + 1 for numbers in self._numbers]

    def numbers(self, rows: Sequence[Row]) -> Tensor:
        """Those of the tokens (T, columns)."""
        found = [[own.get(token, 0) for own, token in zip(self._numbers, row, strict=True)] for row in rows]
        return torch.tensor(found)


def frequent(rows: Iterable[Row], least: int) -> list[list[str]]:
    """Of each column the tokens that it has so many times, in the order in which they come first."""
    counts: list[Counter[str]] = []
    for row in rows:
        counts = counts or [Counter() for _ in row]
        for count, token in zip(counts, row, strict=True):
            count[token] += 1
    return [[token for token, n in count.items() if n >= least] for count in counts]
