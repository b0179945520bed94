"""Text files that somebody hands in: bounded, decoded, their lines numbered and cut into columns."""

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

_LONGEST_LINE = 1 << 20  # no token has a megabyte
_EXPANSION = 100  # text is compressed to a tenth, and hardly ever to a hundredth
_ALWAYS_ALLOWED = 1 << 24  # bytes of any gzipped file
_MARK = b"\xef\xbb\xbf"  # the byte order mark
_COLUMN = re.compile("[^ \t]+")


class DataError(ValueError):
    """A file that cannot be read as what it should be: says which, and at which line.

    Example:
        >>> from structloss.text import DataError
        >>> str(DataError("a.txt, line 3: got 2 columns, but line 1 has 3"))
        'a.txt, line 3: got 2 columns, but line 1 has 3'
    """


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file in UTF-8, gzipped or not, from 1 on; LF, CRLF and CR end a line, and nothing else does.

    A byte order mark is dropped, and nothing else is changed.
    """
    with path.open("rb") as file, gzip.open(file) if path.suffix == ".gz" else file as content:
        most = max(_EXPANSION * path.stat().st_size, _ALWAYS_ALLOWED) if content is not file else None
        stream = io.TextIOWrapper(content, encoding="latin-1")  # a character a byte, whose universal newlines we want
        number, seen = 0, 0
        while True:
            try:
                encoded = stream.readline(_LONGEST_LINE + 1).encode("latin-1")
            except (OSError, EOFError, zlib.error) as error:
                raise DataError(f"{path}, line {number + 1}: cannot be read ({error})") from error
            if not encoded or (number == 0 and encoded == _MARK):
                return
            number, seen = number + 1, seen + len(encoded)
            if len(encoded) > _LONGEST_LINE:
                raise DataError(f"{path}, line {number}: is longer than {_LONGEST_LINE} bytes, but wanted one token")
            if most is not None and seen > most:
                raise DataError(f"{path}, line {number}: expands to more than {most} bytes, but wanted a text")
            yield number, _decoded(encoded, path, number)


def _decoded(encoded: bytes, path: Path, number: int) -> str:
    if number == 1 and encoded.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path}, line 1: is UTF-16, but wanted UTF-8")
    if b"\0" in encoded:
        raise DataError(f"{path}, line {number}: has a byte that is 0, but wanted text in UTF-8")
    try:
        return encoded.removesuffix(b"\n").decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}, line {number}: is not UTF-8 ({error.reason} at byte {error.start})") from None


def columns(line: str) -> list[str]:
    """What stands between spaces and tabs; any other space is part of a column.

    Example:
        >>> from structloss.text import columns
        >>> columns(" 1\\u00a0000 CD\\tB-NP ")
        ['1\\xa0000', 'CD', 'B-NP']
    """
    return _COLUMN.findall(line)
