"""What is missed and what is made up, each at its price, where an answer is a set of things that are right or wrong."""

from typing import Self

from structloss.losses.local import LocalLoss
from structloss.losses.numbers import check_at_least_zero


class Errors(LocalLoss):
    """How much of the reference the answer lacks, and how much it has that the reference lacks."""

    def __init__(self, miss: float = 1.0, false_alarm: float = 1.0) -> None:
        self.miss = check_at_least_zero(miss, "miss")
        self.false_alarm = check_at_least_zero(false_alarm, "false_alarm")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(miss={self.miss:g}, false_alarm={self.false_alarm:g})"

    @classmethod
    def with_f1(cls, f1: float) -> Self:
        """The errors whose least is the highest F1, where F1 has come to `f1` (0 to 1): 1 - F/2 and F/2.

        Example:
            >>> import structloss as sl
            >>> sl.BracketErrors.with_f1(0.8)
            BracketErrors(miss=0.6, false_alarm=0.4)
        """
        if not 0 <= f1 <= 1:
            raise ValueError(f"f1: got {f1!r}, but wanted a number from 0 to 1")
        return cls(1 - f1 / 2, f1 / 2)
