"""What every structure offers: a batch of sets of outputs y, each y with a differentiable score.

A new structure writes the operations marked abstract here; everything else follows from them.
"""

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from structloss.losses import Loss


class Strata(NamedTuple):
    """The best output at each value that a loss can take. V is the most values of any example."""

    losses: Tensor  # (B, V), ascending
    outputs: Tensor  # (B, V, ...)
    exists: Tensor  # (B, V), whether some output has this loss


class Structure(ABC):
    """A batch of sets of outputs with scores. Values are tensors (B,), differentiable in the potentials.

    Two operations are closed over structures, and every objective is made of them: `augment` and `given`.
    Scores of -inf forbid an output; an empty set has log_partition and max -inf, with zero gradient.
    """

    @abstractmethod
    def score(self, y: Tensor) -> Tensor:
        """The score (B,) of one output each, or (n, B) of n outputs each."""

    @abstractmethod
    def argmax(self) -> Tensor:
        """The best output of each example, the lexicographically smallest where several are best."""

    @abstractmethod
    def decode(self, y: Tensor | None = None) -> list[list[int]]:
        """The strings of labels that outputs y (B, ...) write, by default those of `argmax()`."""

    @abstractmethod
    def log_partition(self) -> Tensor:
        """log Z = log of the sum over outputs y of exp(score(y)), (B,)."""

    @abstractmethod
    def marginals(self) -> Tensor:
        """The gradient of log_partition: the probability that y uses each potential."""

    @abstractmethod
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n outputs of each example, drawn with probability exp(score(y)) / Z."""

    @abstractmethod
    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The scores (B, k) and the outputs (B, k, ...) of the k best, best first; -inf where there are fewer."""

    @abstractmethod
    def augment(self, loss: Loss, reference: Any, scale: float = 1.0) -> Self:
        """The same outputs, y scored by score(y) + scale * loss(y, reference). It is a structure again."""

    @abstractmethod
    def given(self, reference: Any) -> Self:
        """The outputs that agree with the reference, scored as they were."""

    @abstractmethod
    def uniform(self) -> Self:
        """The same outputs, every one with score 0."""

    @abstractmethod
    def expectation(self, other: Self) -> Tensor:
        """E[other.score(y)], y drawn from self with probability exp(score(y)) / Z. (B,)"""

    @abstractmethod
    def strata(self, loss: Loss, reference: Any, lowest: bool = False) -> Strata:
        """The best output at each value of loss(y, reference), or the one of lowest score."""

    def max(self) -> Tensor:
        """The score (B,) of the best output. Its gradient counts the potentials that `argmax()` uses."""
        return self.score(self.argmax())

    def log_prob(self, y: Tensor) -> Tensor:
        """log P(y) = score(y) - log Z, (B,) or (n, B)."""
        return self.score(y) - self.log_partition()

    def entropy(self) -> Tensor:
        """H = log Z - E[score(y)], (B,), in nats."""
        return self.log_partition() - self.expectation(self)

    def kl(self, other: Self) -> Tensor:
        """KL(self || other) = E[log P(y) - log Q(y)], y drawn from self. (B,)"""
        return other.log_partition() - self.expectation(other) - self.entropy()

    def expected(self, loss: Loss, reference: Any) -> Tensor:
        """E[loss(y, reference)], y drawn from self: the risk. (B,); inf where some y is outside the loss."""
        value = self.expectation(self.uniform().augment(loss, reference))
        return torch.where(value == -torch.inf, torch.inf, value)  # augment leaves outside, by -inf, what costs inf
