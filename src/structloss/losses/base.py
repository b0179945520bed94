"""What every loss offers."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeAlias

from torch import Tensor

from structloss.losses.numbers import check_number
from structloss.losses.references import Labels

Terms: TypeAlias = "list[tuple[float, Loss]]"


class Loss(ABC):
    """L(y, r): what the answer y costs against the reference r. Call it on a batch, get one number for each example.

    Losses are of two kinds, each closed under + and a factor: a `LocalLoss` adds to the scores of a structure, a
    `MachineLoss` reads the string that an output writes. A sum of both kinds is a machine.

    Example:
        >>> import structloss as sl
        >>> sum([sl.Hamming(), 2 * sl.Hamming()])([[0, 1]], [[0, 2]])
        tensor([3.])
    """

    reads_strings: ClassVar[bool]  # whether it is a MachineLoss
    named: ClassVar[dict[str, type["Loss"]]] = {}  # those that have a name on the command line
    objective: ClassVar[str] = "softmax-margin"  # what trains on it where nobody says

    def __init_subclass__(cls, name: str = "", **rest: object) -> None:
        """`class Mine(MachineLoss, name="mine")` can be asked for by its name."""
        super().__init_subclass__(**rest)
        if name:
            Loss.named[name] = cls

    @abstractmethod
    def __call__(self, y: Labels, reference: Labels, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        """The losses (B,) of answers y against references, by the loss's own definition.

        Args:
            y: labels (B, T), or (n, B, T) for n answers to each reference (the result is then (n, B)), or a list of
                label sequences. Negative labels are no labels, as `argmax()` and `sample()` return them.
            reference: labels (B, U), where what is negative at the end of a row is padding and -100 inside is unknown;
                a list of label sequences; or sets of labels (B, U, K).
            lengths: which positions of y count, and of a reference as wide as y: (B,), or a mask (B, T); by default
                those that have a label.
        """

    def following(self, metrics: Mapping[str, float]) -> "Loss":
        """What to train on next, from the metrics that were reached on development data: itself, mostly."""
        return self

    @property
    def weights(self) -> dict[str, float]:
        """What follows the metrics, by name: a training log has it beside them."""
        return {}

    @property
    def terms(self) -> Terms:
        """The losses that it is the weighted sum of, with their factors."""
        return [(1.0, self)]

    @abstractmethod
    def _sum(self, terms: Terms) -> "Loss":
        """The weighted sum of losses, of which this one is the kind."""

    def __mul__(self, factor: float) -> "Loss":
        """This loss times a number."""
        number = check_number(factor, "factor")
        return self._sum([(number * own, loss) for own, loss in self.terms])

    __rmul__ = __mul__

    def __add__(self, other: "Loss") -> "Loss":
        """Both losses added up."""
        if not isinstance(other, Loss):
            return NotImplemented
        kind = other if other.reads_strings else self
        return kind._sum(self.terms + other.terms)

    def __radd__(self, other: object) -> "Loss":
        """So that sum([...]) works, which begins with 0."""
        return self if other == 0 else NotImplemented


def shown(terms: Terms) -> str:
    """A weighted sum as it is written."""
    return " + ".join(f"{factor:g} * {loss!r}" for factor, loss in terms)
