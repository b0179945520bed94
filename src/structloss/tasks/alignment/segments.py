"""Phones with the times at which they start and end."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from structloss.tasks.alignment.phones import SILENCE
from structloss.text import DataError

LONGEST = 1e5  # seconds: more than a day is no recording
_ROUNDING = 1e-4  # seconds: times that differ by less are one time
_SHORTEST_SILENCE = 0.02  # seconds that may follow the last phone without being a silence of their own

_BLANKS = " \t\r\n"  # around a name they are no part of it; other spaces are letters

Interval = tuple[float, float, str, str]  # start and end in seconds, the phone, and where that is written


@dataclass(frozen=True)
class Segments:
    """Phones that follow each other without gaps: phone k lasts from boundaries[k] to boundaries[k + 1] seconds.

    The first starts at 0, and every one lasts longer than nothing.

    >>> segments = Segments(("sil", "ah"), (0.0, 0.25, 0.4))
    >>> segments.starts, segments.duration
    ((0.0, 0.25), 0.4)
    """

    phones: tuple[str, ...]
    boundaries: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "phones", tuple(self.phones))
        object.__setattr__(self, "boundaries", tuple(float(boundary) for boundary in self.boundaries))
        if not self.phones or len(self.boundaries) != len(self.phones) + 1:
            raise ValueError(
                f"boundaries: got {len(self.boundaries)} for {len(self.phones)} phones, but wanted one more than phones"
            )
        if self.boundaries[0] != 0.0:
            raise ValueError(f"boundaries: got {self.boundaries[0]} first, but wanted 0.0")
        if not all(a < b for a, b in pairwise(self.boundaries)) or not self.boundaries[-1] <= LONGEST:
            raise ValueError(f"boundaries: wanted increasing seconds up to {LONGEST:g}")
        if not all(phone.strip(_BLANKS) for phone in self.phones):
            raise ValueError("phones: got an empty name")

    def __len__(self) -> int:
        return len(self.phones)

    def __iter__(self) -> Iterator[tuple[float, float, str]]:
        """Start, end and phone of each segment."""
        return zip(self.boundaries[:-1], self.boundaries[1:], self.phones, strict=True)

    @property
    def starts(self) -> tuple[float, ...]:
        """When each phone starts."""
        return self.boundaries[:-1]

    @property
    def ends(self) -> tuple[float, ...]:
        """When each phone ends."""
        return self.boundaries[1:]

    @property
    def duration(self) -> float:
        """When the last phone ends."""
        return self.boundaries[-1]

    @classmethod
    def from_intervals(cls, intervals: Iterable[Interval], file: str) -> "Segments":
        """Intervals in the order of time; a gap between them, or before the first, is silence.

        An overlap, an interval that ends before it starts, or none at all is a `DataError` that says where.
        """
        phones: list[str] = []
        boundaries = [0.0]
        for start, end, phone, where in intervals:
            name = phone.strip(_BLANKS) or SILENCE
            last = boundaries[-1]
            if not (math.isfinite(start) and math.isfinite(end) and 0 <= start < end <= LONGEST):
                raise DataError(f"{where}: got {name!r} from {start:g} to {end:g} seconds")
            if start < last - _ROUNDING or end <= last:
                before = repr(phones[-1]) if phones else "the recording"
                raise DataError(f"{where}: got {name!r} from {start:g} seconds on, but {before} ends at {last:g}")
            if start > last + _ROUNDING and name != SILENCE:
                if phones and phones[-1] == SILENCE:
                    boundaries[-1] = start
                else:
                    phones.append(SILENCE)
                    boundaries.append(start)
            phones.append(name)
            boundaries.append(end)
        if not phones:
            raise DataError(f"{file}: got no phone at all")
        return cls(tuple(phones), tuple(boundaries))

    def renamed(self, names: Mapping[str, str]) -> "Segments":
        """Each phone under another name; one that `names` lacks is a KeyError. Silences that meet become one."""
        return Segments(tuple(names[phone] for phone in self.phones), self.boundaries).with_silences_joined()

    def with_silences_joined(self) -> "Segments":
        """The same with neighbouring silences as one: nothing can be heard where one ends and the other starts."""
        kept = [k for k, name in enumerate(self.phones) if k == 0 or name != SILENCE or self.phones[k - 1] != SILENCE]
        return Segments(tuple(self.phones[k] for k in kept), (*(self.boundaries[k] for k in kept), self.duration))

    def until(self, seconds: float) -> "Segments":
        """The same for a recording that ends at `seconds`.

        What comes after the last phone is silence; less than 20 ms of it belongs to the phone. A last phone that ends
        later than the recording is cut; one that starts later is a ValueError.
        """
        if seconds <= self.boundaries[-2]:
            raise ValueError(
                f"seconds: the recording ends at {seconds:g}, but {self.phones[-1]!r} starts at {self.boundaries[-2]:g}"
            )
        if seconds - self.duration >= _SHORTEST_SILENCE and self.phones[-1] != SILENCE:
            return Segments((*self.phones, SILENCE), (*self.boundaries, seconds))
        return Segments(self.phones, (*self.boundaries[:-1], seconds))
