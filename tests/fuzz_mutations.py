"""Ways to damage a file: bits, bytes, pieces, numbers; the same generator gives the same file again."""

import random
import re
import struct
from collections.abc import Callable, Sequence

MOST_BYTES = 1 << 18  # of a damaged file: readers must be quick, whatever it says

_NUMBER = re.compile(rb"[-+]?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?")
_NUMBERS = (
    b"0", b"-1", b"1", b"nan", b"inf", b"-inf", b"1e999", b"-1e999", b"1e-999", b"1_0", b"0x10", b"007", b"1.5", b"",
    b"2147483647", b"2147483648", b"-2147483649", b"4294967296", b"9223372036854775807", b"18446744073709551616",
    b"99999999", b"1" + b"0" * 400, "\N{ARABIC-INDIC DIGIT THREE}".encode(), b"true", b"null",
)  # fmt: skip
_PIECES = (
    b"\0", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"\r", b"\n", b"\r\n", b"\n\n", b"\t", b" ", b"#", b"# ", b"#\n",
    b'"', b"\\", b"'", b",", b":", b"-", b".", b"=", "\N{NO-BREAK SPACE}".encode(), "\N{LINE SEPARATOR}".encode(),
    "\N{COMBINING ACUTE ACCENT}".encode(), "\N{ZERO WIDTH JOINER}".encode(), b"\xed\xa0\x80", b"\xc3", b"[" * 2000,
    b"{" * 2000, b"[" * 100_000, b'{"a":' * 20_000, b"(" * 5000, b"\n" * 3000, b"a" * 70_000,
)  # fmt: skip
_WORDS = tuple(
    struct.pack(kind, value)
    for kind, values in (
        ("<i", (0, -1, 1, 2**31 - 1, -(2**31), 65536)),
        ("<q", (0, -1, 1, 2**63 - 1, -(2**63), 2**32, 2**40)),
        ("<f", (float("nan"), float("inf"), float("-inf"), 1e38)),
        ("<d", (float("nan"), float("inf"), float("-inf"), 1e308)),
    )
    for value in values
)

Mutation = Callable[[bytearray, random.Random, Sequence[bytes]], None]


def damaged(content: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """A file with one to four things wrong; `others` are files to splice it with."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 2, 3, 4))):
        draw.choice(_MUTATIONS)(changed, draw, others)
        del changed[MOST_BYTES:]
    return bytes(changed)


def _slice(content: bytearray, draw: random.Random) -> slice:
    """Some of a file, mostly little."""
    begin = draw.randint(0, len(content))
    size = draw.choice((1, 4, 16, 64, len(content)))
    return slice(begin, begin + draw.randint(0, size))


def _flip_bits(content: bytearray, draw: random.Random, others: Sequence[bytes]) -> None:
    for _ in range(draw.randint(1, 8) if content else 0):
        content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


def _change_bytes(content: bytearray, draw: random.Random, others: Sequence[bytes]) -> None:
    for _ in range(draw.randint(1, 4) if content else 0):
        content[draw.randrange(len(content))] = draw.choice((0, 255, draw.randrange(256)))


def _truncate(content: bytearray, draw: random.Random, others: Sequence[bytes]) -> None:
    del content[draw.randint(0, len(content)) :]


def _delete(content: bytearray, draw: random.Random, others: Sequence[bytes]) -> None:
    del content[_slice(content, draw)]


def _insert(content: bytearray, draw: random.Random, others: Sequence[bytes]) -> None:
    place = draw.randint(0, len(content))
    content[place:place] = draw.choice((draw.choice(_PIECES), draw.randbytes(draw.randint(1, 16))))


def _overwrite_word(content: bytearray, draw: random.Random, others: Sequence[bytes]) -> None:
    word = draw.choice(_WORDS)
    place = draw.randint(0, len(content))
    content[place : place + len(word)] = word


def _duplicate(content: bytearray, draw: random.Random, others: Sequence[bytes]) -> None:
    piece = content[_slice(content, draw)]
    place = draw.randint(0, len(content))
    content[place:place] = piece * draw.choice((1, 1, 2, 10, 1000))


def _splice(content: bytearray, draw: random.Random, others: Sequence[bytes]) -> None:
    other = draw.choice(others)
    content[draw.randint(0, len(content)) :] = other[draw.randint(0, len(other)) :]


def _change_a_number(content: bytearray, draw: random.Random, others: Sequence[bytes]) -> None:
    numbers = [match.span() for match in _NUMBER.finditer(content[:20_000])]
    if numbers:
        begin, end = draw.choice(numbers)
        content[begin:end] = draw.choice(_NUMBERS)


_MUTATIONS: tuple[Mutation, ...] = (
    _flip_bits, _change_bytes, _truncate, _delete, _insert, _overwrite_word, _duplicate, _splice, _change_a_number,
    _change_a_number,
)  # fmt: skip
