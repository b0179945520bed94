"""Packed forests in text: a line for each arc."""

import math
from pathlib import Path

import numpy as np

from structloss.structures.rows import Ints
from structloss.structures.trees.packed import heights
from structloss.text import DataError, columns, numbered_lines

_LARGEST = 1e30  # sums of larger ones may be no numbers in float32


def read(text: str | Path, name: str) -> tuple[Ints, list[float], list[str]]:
    """The arcs (n, 3), their scores (n,) and the items' names of lines `head -> tail tail : score`.

    The head of the first line is item 0, the root. Every error names the line.
    """
    if not isinstance(text, str | Path):
        raise TypeError(f"{name}: got {type(text).__name__}, but wanted a text or a Path")
    lines = numbered_lines(text) if isinstance(text, Path) else enumerate(text.split("\n"), 1)
    name = str(text) if isinstance(text, Path) else name
    number: dict[str, int] = {}
    arcs, scores, of_line = [], [], []
    for i, line in lines:
        words = columns(line)
        if not words:
            continue
        head, *rest = words
        tails, score = rest[1:], "0"
        if len(tails) > 1 and tails[-2] == ":":
            tails, score = tails[:-2], tails[-1]
        if not rest or rest[0] != "->" or len(tails) > 2 or ":" in tails:
            raise DataError(f"{name}, line {i}: got {line.strip()!r:.60}, but wanted `head -> tail tail : score`")
        try:
            scores.append(float(score))
        except ValueError:
            scores.append(math.nan)
        if not scores[-1] <= _LARGEST:
            raise DataError(f"{name}, line {i}: the score is {score!r:.60}, but wanted at most {_LARGEST:g}, or -inf")
        arcs.append([number.setdefault(item, len(number)) for item in (head, *tails)] + [-1] * (2 - len(tails)))
        of_line.append(i)
    if not arcs:
        raise DataError(f"{name}: got no line at all, but wanted a forest")
    rows = np.array(arcs, np.int64)
    _, loop = heights(rows, len(number))
    if loop >= 0:
        raise DataError(
            f"{name}, line {of_line[loop]}: the item {list(number)[arcs[loop][0]]} is below itself, a cycle"
        )
    return rows, scores, list(number)
