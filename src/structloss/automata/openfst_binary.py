"""OpenFst's binary files of the types vector and const, read without OpenFst: nothing is believed that is not there."""

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.automata.openfst_text import check_size
from structloss.text import DataError

_MAGIC = 2125659606
_SYMBOLS_MAGIC = 2125658996
_HAS_INPUT_SYMBOLS, _HAS_OUTPUT_SYMBOLS, _IS_ALIGNED = 1, 2, 4
_ALIGNMENT = 16
_WEIGHTS = {"standard": "<f4", "log": "<f4", "log64": "<f8"}


class Machine(NamedTuple):
    """Weights are costs; labels are symbols, 0 being epsilon."""

    arc_type: str  # "standard", whose weights are tropical, "log" or "log64"
    start: int
    final: NDArray[np.float64]  # (states,), inf where a state is not final
    source: NDArray[np.int64]  # (arcs,), as the others
    target: NDArray[np.int64]
    reads: NDArray[np.int64]
    writes: NDArray[np.int64]
    weight: NDArray[np.float64]
    tables: tuple[dict[int, str] | None, dict[int, str] | None]  # the names of what it reads and of what it writes


def is_binary(path: Path) -> bool:
    """Whether a file begins as OpenFst's binary ones do."""
    with path.open("rb") as file:
        return file.read(4) == _MAGIC.to_bytes(4, "little")


def read(path: Path) -> Machine:
    """The machine of a file."""
    check_size(path)
    content = _Content(path)
    if content.number("<i", "first number") != _MAGIC:
        raise DataError(f"{path}: is no binary file of OpenFst")
    fst_type, arc_type = content.string("type"), content.string("type of arcs")
    if fst_type not in ("vector", "const"):
        raise DataError(
            f"{path}: got a machine of type {fst_type[:40]!r}, but wanted vector or const (fstconvert makes them)"
        )
    if arc_type not in _WEIGHTS:
        raise DataError(f"{path}: got arcs of type {arc_type[:40]!r}, but wanted {', '.join(_WEIGHTS)}")
    version, flags = content.number("<i", "version"), content.number("<i", "flags")
    content.number("<q", "properties")
    start, states, arcs = (content.number("<q", wanted) for wanted in ("start", "number of states", "number of arcs"))
    reads, writes = (content.symbols() if flags & flag else None for flag in (_HAS_INPUT_SYMBOLS, _HAS_OUTPUT_SYMBOLS))
    if fst_type == "vector":
        found = _vector(content, _WEIGHTS[arc_type], states)
    else:
        found = _const(content, _WEIGHTS[arc_type], states, arcs, version == 1 or bool(flags & _IS_ALIGNED))
    content.finish()
    machine = Machine(arc_type, start, *found, (reads, writes))
    _check(path, machine)
    return machine


_Found = tuple[
    NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]
]


def _vector(content: "_Content", weight: str, states: int) -> _Found:
    """State after state: its final weight, how many arcs it has, and these. Without a number, until the file ends."""
    kind = np.dtype([("reads", "<i4"), ("writes", "<i4"), ("weight", weight), ("target", "<i4")])
    head = struct.Struct("<fq" if weight == "<f4" else "<dq")
    if states != -1:
        content.check_room(states, head.size, "states")
    final: list[float] = []
    counts, arcs = [], [np.zeros(0, kind)]
    while len(final) < states or (states == -1 and not content.at_end):
        cost, count = content.numbers(head, "next state")
        final.append(cost)
        counts.append(count)
        if count:
            arcs.append(content.array(count, kind, "arcs"))
    return _joined(np.array(final), np.array(counts, np.int64), np.concatenate(arcs))


def _const(content: "_Content", weight: str, states: int, arcs: int, aligned: bool) -> _Found:
    """All states, with the places of their arcs, and then all arcs, as C++ lays them out in memory."""
    head = np.dtype([("final", weight), ("first", "<u4"), ("arcs", "<u4"), ("epsilons", "<u4", 2)])
    kind = np.dtype([("reads", "<i4"), ("writes", "<i4"), ("weight", weight), ("target", "<i4")], align=True)
    found = []
    for number, of, what in ((states, head, "states"), (arcs, kind, "arcs")):
        if aligned:
            content.align()
        found.append(content.array(number, of, what))
    counts = found[0]["arcs"].astype(np.int64)
    if not np.array_equal(counts.cumsum() - counts, found[0]["first"]) or counts.sum() != arcs:
        raise DataError(f"{content.path}: its arcs do not follow one another state by state")
    return _joined(found[0]["final"], counts, found[1])


def _joined(final: NDArray[Any], counts: NDArray[np.int64], arcs: NDArray[np.void]) -> _Found:
    source = np.repeat(np.arange(len(final)), counts)
    target, reads, writes = (arcs[name].astype(np.int64) for name in ("target", "reads", "writes"))
    with np.errstate(invalid="ignore"):  # numbers that are none are refused by whoever wants the machine
        return final.astype(np.float64), source, target, reads, writes, arcs["weight"].astype(np.float64)


def _check(path: Path, machine: Machine) -> None:
    states = len(machine.final)
    if not 0 <= machine.start < states:
        raise DataError(f"{path}: got the start {machine.start}, but it has {states} states")
    for target in (machine.target.min(initial=0), machine.target.max(initial=0)):
        if not 0 <= target < states:
            raise DataError(f"{path}: got an arc to state {target}, but it has {states} states")
    label = min(machine.reads.min(initial=0), machine.writes.min(initial=0))
    if label < 0:
        raise DataError(f"{path}: got an arc with the symbol {label}, but wanted at least 0")


class _Content:
    """The bytes of a file, from the first on; to want more of them than there are is an error that names the file."""

    def __init__(self, path: Path) -> None:
        self.path, self._bytes, self._place = path, path.read_bytes(), 0

    @property
    def at_end(self) -> bool:
        return self._place == len(self._bytes)

    def check_room(self, number: int, size: int, what: str) -> None:
        """Raise unless so many things of so many bytes can follow."""
        if not 0 <= number * size <= len(self._bytes) - self._place:
            raise DataError(
                f"{self.path}: says it has {number} {what} from byte {self._place} on, but has {len(self._bytes)} bytes"
            )

    def numbers(self, kind: struct.Struct, what: str) -> tuple[Any, ...]:
        """The next numbers."""
        if self._place + kind.size > len(self._bytes):
            raise DataError(f"{self.path}: ends at byte {len(self._bytes)}, before its {what}")
        self._place += kind.size
        return kind.unpack_from(self._bytes, self._place - kind.size)

    def number(self, kind: str, what: str) -> int:
        """The next whole number."""
        return int(self.numbers(struct.Struct(kind), what)[0])

    def string(self, what: str) -> str:
        """The next string, after its length."""
        length = self.number("<i", what)
        self.check_room(length, 1, f"bytes of a {what}")
        self._place += length
        return self._bytes[self._place - length : self._place].decode("utf-8", "replace")

    def array(self, number: int, kind: np.dtype[np.void], what: str) -> NDArray[np.void]:
        """So many rows."""
        self.check_room(number, kind.itemsize, what)
        rows: NDArray[np.void] = np.frombuffer(self._bytes, kind, number, self._place) if number else np.zeros(0, kind)
        self._place += number * kind.itemsize
        return rows

    def align(self) -> None:
        """Pass over what fills up to a multiple of sixteen bytes."""
        padding = -self._place % _ALIGNMENT
        self.check_room(padding, 1, "bytes of padding")
        self._place += padding

    def symbols(self) -> dict[int, str]:
        """A symbol table: the names of numbers."""
        if self.number("<i", "symbol table") != _SYMBOLS_MAGIC:
            raise DataError(f"{self.path}: got no symbol table at byte {self._place - 4}, but says it has one")
        self.string("table's name")
        self.number("<q", "next symbol")
        table = {}
        for _ in range(self.number("<q", "number of symbols")):
            name = self.string("symbol")
            table[self.number("<q", "symbol's number")] = name
        return table

    def finish(self) -> None:
        """Raise if anything follows."""
        if not self.at_end:
            raise DataError(f"{self.path}: goes on after its last arc, at byte {self._place}")
