"""The usual features of a token, in the manner of CRFsuite's examples: words, other columns, shapes, neighbours."""

import re
from collections.abc import Sequence

_SHAPES = ((re.compile("[A-Z]"), "A"), (re.compile("[a-z]"), "a"), (re.compile("[0-9]"), "0"))


def shape(word: str) -> str:
    """Capitals, small letters and digits as A, a and 0; runs shortened to two.

    Example:
        >>> from structloss.tasks.tagging.features import shape
        >>> shape("McAllester-2010")
        'AaAaa-00'
    """
    for pattern, letter in _SHAPES:
        word = pattern.sub(letter, word)
    return re.sub(r"(.)\1{2,}", r"\1\1", word)


def window(columns: Sequence[Sequence[str]], affixes: bool = True) -> list[list[str]]:
    """The features of each token of a sentence from its columns, the words first: (tokens, columns) of text.

    Words and their pairs within two places, other columns with their pairs and triples, and of the word itself its
    shape, and its first and last two and three letters.

    Example:
        >>> from structloss.tasks.tagging.features import window
        >>> window([["He", "PRP"], ["runs", "VBZ"]])[1][:3]
        ['w0=runs', 'w-1=He', 'w-1|w0=He|runs']
    """
    n = len(columns)
    words = ["<s2>", "<s1>", *(c[0] for c in columns), "</s1>", "</s2>"]
    others = [
        ["<s2>", "<s1>", *(c[i] for c in columns), "</s1>", "</s2>"] for i in range(1, len(columns[0]) if n else 1)
    ]
    result = []
    for t in range(n):
        a, b, w, d, e = words[t : t + 5]
        features = [f"w0={w}"]
        features += [f"w-1={b}", f"w-1|w0={b}|{w}"] if t > 0 else ["bos"]
        features += [f"w1={d}", f"w0|w1={w}|{d}"] if t < n - 1 else ["eos"]
        if t > 1:
            features.append(f"w-2={a}")
        if t < n - 2:
            features.append(f"w2={e}")
        for i, column in enumerate(others):
            p, q, x, y, z = column[t : t + 5]
            features += [
                f"{i}p-2={p}", f"{i}p-1={q}", f"{i}p0={x}", f"{i}p1={y}", f"{i}p2={z}",
                f"{i}p-2|-1={p}|{q}", f"{i}p-1|0={q}|{x}", f"{i}p0|1={x}|{y}", f"{i}p1|2={y}|{z}",
                f"{i}p-2|-1|0={p}|{q}|{x}", f"{i}p-1|0|1={q}|{x}|{y}", f"{i}p0|1|2={x}|{y}|{z}",
            ]  # fmt: skip
        if affixes:
            lower = w.lower()
            features += [f"s={shape(w)}", f"p2={lower[:2]}", f"p3={lower[:3]}", f"s2={lower[-2:]}", f"s3={lower[-3:]}"]
        result.append(features)
    return result
