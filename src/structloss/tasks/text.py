"""Lines of text files that somebody hands in: bounded, decoded, numbered."""

import gzip
from collections.abc import Iterator
from pathlib import Path

from structloss.training.task import DataError

_LONGEST_LINE = 1 << 20  # no token has a megabyte


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file, gzipped or not, from 1 on."""
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        number = 0
        while True:
            try:
                line = file.readline(_LONGEST_LINE + 1)
            except (OSError, EOFError) as error:
                raise DataError(f"{path}, line {number + 1}: cannot be read ({error})") from error
            if not line:
                return
            number += 1
            if len(line) > _LONGEST_LINE:
                raise DataError(f"{path}, line {number}: is longer than {_LONGEST_LINE} bytes, but wanted one token")
            try:
                yield number, line.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise DataError(f"{path}, line {number}: is not UTF-8 ({error.reason} at byte {error.start})") from None
