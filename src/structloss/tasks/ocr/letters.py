"""Files of handwritten words: the pixels of every letter, and which letters are a word of which fold.

An npz of four arrays: `bits` (letters, 16), the 16 x 8 pixels of each letter as `np.packbits` packs them; `labels`
(letters,), 0 for a to 25 for z; `lengths` (words,), how many letters each word has; and `folds` (words,).
"""

import re
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from structloss.text import DataError

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
HEIGHT, WIDTH = 16, 8
PIXELS = HEIGHT * WIDTH

_KEYS = ("bits", "labels", "lengths", "folds")
_MOST_BYTES = 1 << 25  # of one array: two million letters
_LONGEST_WORD = 1 << 10
_FOLDS = re.compile(r"(all-but-)?([0-9]{1,6})(?:-([0-9]{1,6}))?")


@dataclass(frozen=True)
class Word:
    """The pixels of a word's letters, what they are, and where it stands in which file, from word 1 on."""

    pixels: NDArray[np.uint8]  # (letters, 128), 0 or 1
    letters: str
    where: str


def read(path: Path | str) -> list[Word]:
    """The words of a file, or of some folds of it: `letters.npz:1`, `letters.npz:1-9` or `letters.npz:all-but-1`."""
    file, selection = _split(Path(path))
    bits, labels, lengths, folds = _arrays(file)
    chosen = np.arange(len(folds)) if selection is None else _choose(file, selection, folds)
    begin = np.concatenate([np.zeros(1, np.int64), lengths.cumsum()])
    words = []
    for i in chosen.tolist():
        here = slice(begin[i], begin[i + 1])
        written = "".join(ALPHABET[k] for k in labels[here].tolist())
        words.append(Word(np.unpackbits(bits[here], axis=1), written, f"{file}, word {i + 1}"))
    return words


def _split(path: Path) -> tuple[Path, str | None]:
    """The file, and what its name says after a colon. A file that has the whole name is meant itself."""
    name, colon, selection = path.name.rpartition(":")
    whole = path.is_file() or not (name and colon)
    file = path if whole else path.with_name(name)
    if not file.is_file():
        raise DataError(f"{file}: is not there, but wanted an npz of handwritten words")
    return file, None if whole else selection


def _choose(file: Path, selection: str, folds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which words a selection of folds takes."""
    match = _FOLDS.fullmatch(selection)
    if match is None:
        raise DataError(f"{file}: got the folds {selection!r}, but wanted such as 1, 1-9 or all-but-1")
    first, last = int(match[2]), int(match[3] or match[2])
    if first > last:
        raise DataError(f"{file}: got the folds {selection!r}, but wanted the lower one first")
    known = np.unique(folds)
    for fold in (first, last):
        if fold not in known:
            raise DataError(f"{file}: got fold {fold}, but it has {_listed(known)}")
    inside = (folds >= first) & (folds <= last)
    chosen: NDArray[np.int64] = np.flatnonzero(~inside if match[1] else inside)
    if not len(chosen):
        raise DataError(f"{file}: got the folds {selection!r}, which leave no word")
    return chosen


def _listed(known: NDArray[np.int64]) -> str:
    """The folds of a file in a few words."""
    if len(known) == 1:
        return f"only fold {known[0]}"
    if len(known) == known[-1] - known[0] + 1:
        return f"folds {known[0]} to {known[-1]}"
    return "folds " + ", ".join(map(str, known[:20])) + (", ..." if len(known) > 20 else "")


def _arrays(file: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The four arrays, which agree with each other."""
    with _broken(file), zipfile.ZipFile(file) as archive:
        missing = [key for key in _KEYS if f"{key}.npy" not in archive.namelist()]
        if missing:
            found = ", ".join(name.removesuffix(".npy") for name in archive.namelist()[:10]) or "nothing"
            raise DataError(f"{file}: got {found}, but wanted an npz with {', '.join(_KEYS)}")
        bits, labels, lengths, folds = (_array(file, archive, key) for key in _KEYS)
    letters, words = len(bits) if bits.ndim else 0, len(lengths) if lengths.ndim else 0
    wanted = {"bits": (letters, PIXELS // 8), "labels": (letters,), "lengths": (words,), "folds": (words,)}
    for key, array in zip(_KEYS, (bits, labels, lengths, folds), strict=True):
        if array.shape != wanted[key]:
            raise DataError(f"{file}, {key}: got the shape {array.shape}, but wanted {wanted[key]}")
    if bits.dtype != np.uint8:
        raise DataError(f"{file}, bits: got {bits.dtype}, but wanted uint8, each a row of {WIDTH} pixels")
    if not words:
        raise DataError(f"{file}, lengths: got no word at all")
    labels = _within(file, "labels", labels, 0, len(ALPHABET) - 1)
    lengths = _within(file, "lengths", lengths, 1, _LONGEST_WORD)
    folds = _within(file, "folds", folds, 0, 999_999)
    if lengths.sum() != letters:
        raise DataError(f"{file}, lengths: got words of {lengths.sum()} letters together, but bits has {letters}")
    return bits.astype(np.uint8, copy=False), labels, lengths, folds


def _array(file: Path, archive: zipfile.ZipFile, key: str) -> NDArray[np.integer[Any]]:
    """One array of whole numbers. Its size is looked at before anything is read, and a pickle never is."""
    member = archive.getinfo(f"{key}.npy")
    if member.file_size > _MOST_BYTES:
        raise DataError(f"{file}, {key}: has {member.file_size} bytes, more than {_MOST_BYTES}")
    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise DataError(f"{file}, {key}: got version {version} of the npy format, but wanted 1.0 or 2.0")
        header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers that Python 2 wrote are read too
            shape, by_columns, dtype = header(stream)
        if dtype.kind not in "iu":
            raise DataError(f"{file}, {key}: got {dtype}, but wanted whole numbers")
        content = stream.read()
    array: NDArray[np.integer[Any]] = np.frombuffer(content, dtype)
    return array.reshape(shape, order="F" if by_columns else "C")


def _within(file: Path, key: str, array: NDArray[np.integer[Any]], low: int, high: int) -> NDArray[np.int64]:
    """The array as int64, if its numbers are what they should be."""
    for number in (int(array.min()), int(array.max())):
        if not low <= number <= high:
            raise DataError(f"{file}, {key}: got {number}, but wanted numbers from {low} to {high}")
    return array.astype(np.int64)


@contextmanager
def _broken(file: Path) -> Iterator[None]:
    """Whatever is wrong with a zip or an array in it is an error that names the file."""
    try:
        yield
    except DataError:
        raise
    except (
        zipfile.BadZipFile, zlib.error, tokenize.TokenError, SyntaxError, EOFError, OSError, RuntimeError, ValueError
    ) as error:  # fmt: skip
        raise DataError(f"{file}: cannot be read as an npz ({error})") from error
