"""Which strings of phones a letter may stand for, learned from words and their phones by EM."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

Phones = tuple[str, ...]
_PRIOR = 0.05  # of a letter that writes one phone more or fewer than one, before anything is known
_UNSEEN = 1e-9
ROUNDS = 4  # of EM
Word = tuple[Sequence[str], Phones]  # letters and phones
Counts = dict[tuple[str, Phones], float]  # how often a letter writes a string


def inventory(
    words: Sequence[Word], longest: int = 2, min_count: int = 1, rounds: int = ROUNDS
) -> tuple[list[Phones], Counts]:
    r"""The strings that letters write, most frequent first: a set from which every word can still be written.

    With them, how often each letter writes each of them, on average over all cuts.

    A word's phones are cut into one string of 0 to `longest` phones for each letter. EM on
    :math:`p(\text{strings} \mid \text{letters}) = \prod_t p(s_t \mid x_t)`, from uniform cuts on, finds what usually
    belongs to what; then strings that the best cuts use fewer than `min_count` times go, unless a word needs them.
    A word with more phones per letter than `longest` raises it for itself alone.

    Cost: letters times phones times `longest` for each word and round.

    Example:
        >>> strings, counts = inventory([("ab", ("A", "B")), ("b", ("B",)), ("abh", ("A", "B"))], min_count=2)
        >>> strings, round(counts["h", ()], 2)
        ([('B',), ('A',), ()], 1.0)
    """
    spans = [span_of(word, longest) for word in words]
    probability: Counts = {}
    for _ in range(rounds):
        counts = counted(words, spans, probability)
        totals: dict[str, float] = defaultdict(float)
        for (letter, _), count in counts.items():
            totals[letter] += count
        probability = {key: max(count / totals[key[0]], _UNSEEN) for key, count in counts.items()}
    used = Counter(
        string
        for (letters, phones), span in zip(words, spans, strict=True)
        for string in _best(letters, phones, span, probability)
    )
    kept = {string for string, count in used.items() if count >= min_count}
    for (letters, phones), span in zip(words, spans, strict=True):
        if not _can_write(len(letters), phones, kept):
            kept.update(_best(letters, phones, span, probability))
    strings = sorted(kept, key=lambda string: (-used[string], string))
    counts = counted(words, spans, {key: p for key, p in probability.items() if key[1] in kept})
    return strings, {key: count for key, count in counts.items() if key[1] in kept}


def span_of(word: Word, longest: int) -> int:
    """How many phones a letter of a word may write: `longest`, or more where the word could not be written else."""
    letters, phones = word
    return max(longest, -(-len(phones) // max(1, len(letters))))


def counted(words: Sequence[Word], spans: Sequence[int], probability: Counts) -> Counts:
    """How often each letter writes each string, on average over all cuts, all words together."""
    counts: Counts = defaultdict(float)
    for (letters, phones), span in zip(words, spans, strict=True):
        for key, count in _expected(letters, phones, span, probability).items():
            counts[key] += count
    return counts


def _cells(letters: Sequence[str], phones: Phones, span: int) -> Iterator[tuple[int, int, int]]:
    """Letter t writes phones i to j, in an order in which a forward sum may visit them."""
    T, S = len(letters), len(phones)
    for t in range(T):
        for i in range(max(0, S - span * (T - t)), min(S, span * t) + 1):
            for j in range(i, min(i + span, S) + 1):
                yield t, i, j


def _weights(
    letters: Sequence[str], phones: Phones, span: int, probability: Counts
) -> dict[tuple[int, int, int], float]:
    """What each cell is worth; before the first round all the same."""
    if not probability:
        return {(t, i, j): _PRIOR ** abs(j - i - 1) for t, i, j in _cells(letters, phones, span)}
    return {(t, i, j): probability.get((letters[t], phones[i:j]), _UNSEEN) for t, i, j in _cells(letters, phones, span)}


def _expected(letters: Sequence[str], phones: Phones, span: int, probability: Counts) -> Counts:
    """How often each letter writes each string, on average over all cuts of one word: forward-backward.

    Nothing of a word so long and so improbable that its probability is 0 in floating point.
    """
    weights = _weights(letters, phones, span, probability)
    forward: dict[tuple[int, int], float] = {(0, 0): 1.0}
    for (t, i, j), w in weights.items():
        forward[t + 1, j] = forward.get((t + 1, j), 0.0) + w * forward.get((t, i), 0.0)
    end = (len(letters), len(phones))
    backward: dict[tuple[int, int], float] = {end: 1.0}
    for (t, i, j), w in reversed(weights.items()):
        backward[t, i] = backward.get((t, i), 0.0) + w * backward.get((t + 1, j), 0.0)
    total = forward.get(end, 0.0)
    counts: Counts = defaultdict(float)
    for (t, i, j), w in weights.items():
        share = forward.get((t, i), 0.0) * w * backward.get((t + 1, j), 0.0)
        if share and total:
            counts[letters[t], phones[i:j]] += share / total
    return counts


def _best(letters: Sequence[str], phones: Phones, span: int, probability: Counts) -> list[Phones]:
    """The strings of the most probable cut."""
    value: dict[tuple[int, int], float] = {(0, 0): 0.0}
    begin: dict[tuple[int, int], int] = {}
    for (t, i, j), w in _weights(letters, phones, span, probability).items():
        worth = value.get((t, i), -math.inf) + math.log(w)
        if worth > value.get((t + 1, j), -math.inf):
            value[t + 1, j], begin[t + 1, j] = worth, i
    strings: list[Phones] = []
    j = len(phones)
    for t in range(len(letters), 0, -1):
        i = begin[t, j]
        strings.append(phones[i:j])
        j = i
    return strings[::-1]


def _can_write(letters: int, phones: Phones, strings: set[Phones]) -> bool:
    """Whether so many strings of a set make the phones."""
    longest = max(map(len, strings), default=0)
    reached = {0}
    for _ in range(letters):
        reached = {j for i in reached for j in range(i, min(i + longest, len(phones)) + 1) if phones[i:j] in strings}
    return len(phones) in reached
