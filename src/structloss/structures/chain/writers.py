"""What a path of states writes: the labels that each state emits, or CTC's, which drops repeats and blanks.

Both kinds of writer say how many labels strings are made of (`num_labels`), whether every state writes one of them
(`one_each`), what a path writes (`write`), the machine that gives every path of a length the loss of what it writes
(`machine`), and all of themselves in integers (`code`, for `writer_of`).
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Self, TypeAlias

from structloss.automata import LossAutomaton
from structloss.automata.collapsed import CollapsedAutomaton
from structloss.losses import LocalLoss, MachineLoss
from structloss.losses.references import String


@dataclass(frozen=True)
class Emits:
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
        return all(len(string) == 1 for string in self.strings)

    def write(self, path: Sequence[int]) -> list[int]:
        return [label for k in path for label in self.strings[k]]

    def code(self) -> list[int]:
        return [0, *(x for string in self.strings for x in (len(string), *string))]

    def machine(self, loss: MachineLoss | LocalLoss, reference: String, length: int, absolute: bool) -> LossAutomaton:
        return loss.written(reference, self.num_labels, self.strings, length, absolute)


@dataclass(frozen=True)
class Collapse:
    """A path writes its labels, each run of equals once, without the blanks."""

    num_labels: int
    blank: int
    one_each: ClassVar[bool] = False

    def write(self, path: Sequence[int]) -> list[int]:
        before = [self.blank, *path]
        return [label for label, last in zip(path, before, strict=False) if label not in (last, self.blank)]

    def code(self) -> list[int]:
        return [1, self.num_labels, self.blank]

    def machine(self, loss: MachineLoss | LocalLoss, reference: String, length: int, absolute: bool) -> LossAutomaton:
        def make() -> LossAutomaton:
            machine = CollapsedAutomaton(loss.open(reference, self.num_labels, absolute), self.blank)
            return machine.levelled([[label] for label in range(self.num_labels)], length)

        if isinstance(loss, LocalLoss):
            return make()
        return loss.kept((self, reference.tobytes(), reference.shape, length, absolute), make)


Writer: TypeAlias = Emits | Collapse


def writer_of(code: Sequence[int]) -> Writer | None:
    """What `code` was made of; None of nothing."""
    if not code:
        return None
    kind, *rest = code
    if kind == 1:
        return Collapse(*rest)
    left = iter(rest)
    return Emits(tuple(tuple(islice(left, length)) for length in left))
