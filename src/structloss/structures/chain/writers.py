"""What a path of states writes: the labels that each state emits, or CTC's, which drops repeats and blanks."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from structloss.automata import LossAutomaton
from structloss.automata.collapsed import CollapsedAutomaton
from structloss.losses import LocalLoss, MachineLoss
from structloss.losses.references import String


class Writer(ABC):
    """Turns a path of states into a string of labels."""

    @property
    @abstractmethod
    def num_labels(self) -> int:
        """How many labels strings are made of."""

    @property
    def one_each(self) -> bool:
        """Whether every state writes one label."""
        return False

    @abstractmethod
    def write(self, path: Sequence[int]) -> list[int]:
        """What one path writes."""

    @abstractmethod
    def code(self) -> list[int]:
        """All of it in integers, for `writer_of`."""

    @abstractmethod
    def machine(self, loss: MachineLoss | LocalLoss, reference: String, length: int, absolute: bool) -> LossAutomaton:
        """The machine that gives every path of `length` states the loss of what it writes."""


@dataclass(frozen=True)
class Emits(Writer):
    """State k writes strings[k]."""

    strings: tuple[tuple[int, ...], ...]

    @classmethod
    def checked(cls, emits: Sequence[Sequence[int]], states: int) -> Self:
        """From what a user gives, for so many states."""
        if len(emits) != states:
            raise ValueError(f"emits: got {len(emits)} strings, but wanted {states}, one for each state")
        strings = []
        for k, string in enumerate(emits):
            try:
                strings.append(tuple(operator.index(label) for label in string))
            except TypeError:
                raise TypeError(f"emits: emits[{k}] is {string!r:.60}, but wanted a sequence of integers") from None
            if min(strings[-1], default=0) < 0:
                raise ValueError(f"emits: emits[{k}] is {string!r:.60}, but labels are at least 0")
        return cls(tuple(strings))

    @property
    def num_labels(self) -> int:
        return 1 + max(label for string in (*self.strings, (0,)) for label in string)

    @property
    def one_each(self) -> bool:
        """Whether every state writes one label."""
        return all(len(string) == 1 for string in self.strings)

    def write(self, path: Sequence[int]) -> list[int]:
        return [label for k in path for label in self.strings[k]]

    def code(self) -> list[int]:
        return [0, *(x for string in self.strings for x in (len(string), *string))]

    def machine(self, loss: MachineLoss | LocalLoss, reference: String, length: int, absolute: bool) -> LossAutomaton:
        return loss.written(reference, self.num_labels, self.strings, length, absolute)


@dataclass(frozen=True)
class Collapse(Writer):
    """A path writes its labels, each run of equals once, without the blanks."""

    labels: int
    blank: int

    @property
    def num_labels(self) -> int:
        return self.labels

    def write(self, path: Sequence[int]) -> list[int]:
        before = [self.blank, *path]
        return [label for label, last in zip(path, before, strict=False) if label not in (last, self.blank)]

    def code(self) -> list[int]:
        return [1, self.labels, self.blank]

    def machine(self, loss: MachineLoss | LocalLoss, reference: String, length: int, absolute: bool) -> LossAutomaton:
        def make() -> LossAutomaton:
            machine = CollapsedAutomaton(loss.open(reference, self.labels, absolute), self.blank)
            return machine.levelled([[label] for label in range(self.labels)], length)

        if isinstance(loss, LocalLoss):
            return make()
        return loss.kept((self, reference.tobytes(), reference.shape, length, absolute), make)


def writer_of(code: Sequence[int]) -> Writer | None:
    """What `Writer.code` was made of; None of nothing."""
    if not code:
        return None
    kind, *rest = code
    if kind == 1:
        return Collapse(*rest)
    strings, at = [], 0
    while at < len(rest):
        strings.append(tuple(rest[at + 1 : at + 1 + rest[at]]))
        at += 1 + rest[at]
    return Emits(tuple(strings))
