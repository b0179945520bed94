"""Labels that mark chunks, B-PER, I-PER, O and the like: what their names say, and the chunks of a sequence of them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.losses.numbers import check_names

BEGINS, CLOSES = ("B", "S", "U"), ("E", "S", "L", "U")
PREFIXES = ("B", "I", "E", "S", "L", "U")


@lru_cache(maxsize=1024)
def split_label(label: str) -> tuple[str, str]:
    """The prefix and the type of a label; "O" where it marks no chunk.

    Example:
        >>> from structloss.losses.schemes import split_label
        >>> split_label("B-PER"), split_label("O"), split_label("NOUN")
        (('B', 'PER'), ('O', ''), ('O', ''))
    """
    prefix, _, kind = label.partition("-")
    return (prefix, kind) if prefix in PREFIXES else ("O", "")


def chunks(labels: Sequence[str]) -> set[tuple[str, int, int]]:
    """(type, begin, end) of each chunk, end exclusive: conlleval's definition, and seqeval's without `mode="strict"`.

    A chunk begins at B and at S, and at I or E of a type that is not open. It is open after B and I, and goes on as
    long as I or E of its type follow. BILOU's L and U are read as E and S.

    Example:
        >>> from structloss.losses.schemes import chunks
        >>> sorted(chunks(["B-NP", "I-NP", "O", "I-VP", "B-VP"]))
        [('NP', 0, 2), ('VP', 3, 4), ('VP', 4, 5)]
    """
    found, begin, opened = set(), 0, None
    for t, label in enumerate([*labels, "O"]):
        prefix, kind = split_label(label)
        if opened is not None and (prefix == "O" or prefix in BEGINS or kind != opened):
            found.add((opened, begin, t))
            opened = None
        if opened is None and prefix != "O":
            begin, opened = t, kind
        if prefix in CLOSES and opened is not None:
            found.add((opened, begin, t + 1))
            opened = None
    return found


class Tags(NamedTuple):
    """What the names of K labels say, (K,) each."""

    kind: NDArray[np.int64]  # the number of the type, -1 for O
    begins: NDArray[np.bool_]  # B, S, U: a chunk begins here, whatever comes before
    closes: NDArray[np.bool_]  # E, S, L, U: it ends here, whatever follows

    @classmethod
    def of(cls, labels: Sequence[str]) -> "Tags":
        """Of labels that are all O, or a prefix, a hyphen and a type (or a prefix alone)."""
        check_names(labels)
        parts = [split_label(label) for label in labels]
        for label, (prefix, _) in zip(labels, parts, strict=True):
            if prefix == "O" and label != "O":
                raise ValueError(
                    f"labels: got {label!r}, but wanted O, or one of {', '.join(PREFIXES)} with a type, as in B-PER"
                )
        kinds = {kind: i for i, kind in enumerate(dict.fromkeys(kind for prefix, kind in parts if prefix != "O"))}
        return cls(
            np.array([-1 if prefix == "O" else kinds[kind] for prefix, kind in parts], np.int64),
            np.array([prefix in BEGINS for prefix, _ in parts], np.bool_),
            np.array([prefix in CLOSES for prefix, _ in parts], np.bool_),
        )
