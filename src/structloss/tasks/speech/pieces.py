"""Pieces of words, learned by byte pair encoding: what often stands together becomes one label."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

MARK = "\u2581"  # begins a word, as sentencepiece writes it

Pair = tuple[str, str]


def learn(texts: Iterable[str], number: int) -> tuple[list[str], list[Pair]]:
    """At most so many pieces, and the pairs that were merged, in order.

    A word is the mark and its characters; in each round the most frequent pair of neighbours, of equals the first by
    its characters, becomes a piece. Characters are pieces however few are wanted.

    Example:
        >>> learn(["so so sofa"], 6)
        (['a', 'f', 'o', 's', 'so', '\u2581'], [('s', 'o')])
    """
    counts = Counter(word for text in texts for word in text.split())
    words, frequency = [(MARK, *word) for word in counts], list(counts.values())
    pieces = {piece for word in words for piece in word}
    pairs: Counter[Pair] = Counter()
    within: dict[Pair, set[int]] = defaultdict(set)
    for i, word in enumerate(words):
        for pair in pairwise(word):
            pairs[pair] += frequency[i]
            within[pair].add(i)
    merges: list[Pair] = []
    while len(pieces) < number and pairs:
        best = max(pairs, key=lambda pair: (pairs[pair], [-ord(c) for c in "".join(pair)]))
        merges.append(best)
        pieces.add("".join(best))
        for i in sorted(within.pop(best)):
            for pair in pairwise(words[i]):
                pairs[pair] -= frequency[i]
            words[i] = _merged(words[i], best)
            for pair in pairwise(words[i]):
                pairs[pair] += frequency[i]
                within[pair].add(i)
        pairs = +pairs
    return sorted(pieces), merges


def cut(text: str, merges: dict[Pair, int]) -> list[str]:
    """The pieces of a text: in each word the merge that was learned first is done first.

    Example:
        >>> cut("so so", {("\u2581", "s"): 0})
        ['\u2581s', 'o', '\u2581s', 'o']
    """
    found: list[str] = []
    for word in text.split():
        pieces: Sequence[str] = (MARK, *word)
        while known := [pair for pair in pairwise(pieces) if pair in merges]:
            pieces = _merged(pieces, min(known, key=merges.__getitem__))
        found.extend(pieces)
    return found


def _merged(pieces: Sequence[str], pair: Pair) -> tuple[str, ...]:
    """With every occurrence of a pair as one piece, from the left."""
    found: list[str] = []
    i = 0
    while i < len(pieces):
        joined = tuple(pieces[i : i + 2]) == pair
        found.append("".join(pair) if joined else pieces[i])
        i += 2 if joined else 1
    return tuple(found)
