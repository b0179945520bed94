"""How many chunks are right, made and wanted: of sentences, and what F1 and costs they make."""

import numpy as np
from numpy.typing import NDArray

from structloss.losses.schemes import Tags

RIGHT, MADE, WANTED, TOKENS_RIGHT, TOKENS = range(5)  # chunks: right, of the answer, of the reference; and tokens


def _chunks(y: NDArray[np.int64], first: NDArray[np.bool_], tags: Tags) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Where chunks begin in labels (N,) of sentences one after the other, and, there, where they end."""
    kind = tags.kind[y]
    before = np.roll(kind, 1)
    open_before = ~first & ~np.roll(tags.closes[y], 1) & (before == kind)
    begins = (kind >= 0) & (tags.begins[y] | ~open_before)
    goes_on = (kind >= 0) & ~begins
    stops = np.append(np.flatnonzero(~goes_on), len(y))
    return begins, stops[np.searchsorted(stops, np.arange(len(y)), side="right")]


def of_sentences(
    found: NDArray[np.int64], wanted: NDArray[np.int64], sizes: NDArray[np.int64], tags: Tags
) -> NDArray[np.int64]:
    """The counts of each sentence, (n, 5), from labels (N,) of sentences of these sizes one after the other.

    Example:
        >>> import numpy as np
        >>> from structloss.losses.schemes import Tags
        >>> from structloss.reproduce.f1.counts import of_sentences
        >>> tags = Tags.of(["O", "B-PER", "I-PER"])
        >>> of_sentences(np.array([1, 2, 0, 1]), np.array([1, 0, 0, 1]), np.array([2, 2]), tags).tolist()
        [[0, 1, 1, 1, 2], [1, 1, 1, 2, 2]]
    """
    first = np.zeros(len(found), np.bool_)
    filled = sizes[sizes > 0]
    first[filled.cumsum() - filled] = True
    sentence = np.repeat(np.arange(len(sizes)), sizes)
    (ours, our_end), (theirs, their_end) = (_chunks(y, first, tags) for y in (found, wanted))
    every = np.ones(len(found), np.bool_)
    right = ours & theirs & (our_end == their_end) & (tags.kind[found] == tags.kind[wanted])
    return np.stack(
        [np.bincount(sentence[x], minlength=len(sizes)) for x in (right, ours, theirs, found == wanted, every)], 1
    )


def f1(counts: NDArray[np.integer | np.floating]) -> NDArray[np.float64]:
    """F1 of counts (..., 5), from 0 to 1: 2 right / (made + wanted), and 0 where nothing is right."""
    x = np.asarray(counts, np.float64)
    return np.asarray(2 * x[..., RIGHT] / np.maximum(x[..., MADE] + x[..., WANTED], 1e-9))


def cost(counts: NDArray[np.integer | np.floating], miss: float, false_alarm: float = 1.0) -> NDArray[np.float64]:
    """What chunks that are missed and made up cost, of counts (..., 5)."""
    x = np.asarray(counts, np.float64)
    return np.asarray(miss * (x[..., WANTED] - x[..., RIGHT]) + false_alarm * (x[..., MADE] - x[..., RIGHT]))


def accuracy(counts: NDArray[np.integer | np.floating]) -> NDArray[np.float64]:
    """The part of tokens that are right, of counts (..., 5)."""
    x = np.asarray(counts, np.float64)
    return np.asarray(x[..., TOKENS_RIGHT] / np.maximum(x[..., TOKENS], 1))
