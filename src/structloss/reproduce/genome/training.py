"""What every configuration shares: how weights are trained and chosen, and what is reported."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import NamedTuple

import torch
from torch import Tensor, nn

from structloss.losses.local import LocalLoss
from structloss.losses.references import Labels

CROSS_ENTROPY, SOFTMAX_MARGIN, HINGE, RISK, DIRECT = "cross-entropy", "softmax-margin", "hinge", "risk", "direct loss"
STRENGTHS = (0.02, 0.2)  # of |w|^2 / 2


class Listed(LocalLoss):
    """What each entry of a list costs: a chain of one position, whose labels number the entries.

    Args:
        costs: (B, n) of the lists that are trained on.
    """

    over = "labels"

    def __init__(self, costs: Tensor) -> None:
        self.costs = costs

    def __call__(self, y: Labels, reference: Labels, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        return self.costs.gather(1, torch.as_tensor(y))[:, 0]

    def costs_of(self, reference: Tensor, lengths: Tensor, choices: int, dtype: torch.dtype) -> Tensor:
        return self.costs[:, None].to(dtype)


class Outcome(NamedTuple):
    """What one method gave on the test examples of one fold."""

    score: float  # Smith-Waterman, the mean
    accuracy: float  # the part that is right: the homolog chosen; or the positions with the native's letter
    closest: float = math.nan  # the part where nothing in the list is closer to the native
    beyond: float = math.nan  # the share of the model's mass whose loss a cap would not tell apart
    chosen: float | None = None  # the strength of regularisation, or epsilon


class Paired(NamedTuple):
    """The mean of differences over folds, its standard error, and in how many folds it is above 0."""

    mean: float
    error: float
    above: int

    @property
    def sign(self) -> int:
        """1 or -1 where the mean is more than two standard errors from 0, else 0."""
        return 0 if abs(self.mean) <= 2 * self.error else int(math.copysign(1, self.mean))


Folds = Sequence[Mapping[str, Outcome]]


def paired(folds: Folds, name: str, other: str = CROSS_ENTROPY) -> Paired:
    """The difference in score between two methods on the same folds."""
    differences = [fold[name].score - fold[other].score for fold in folds]
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    return Paired(fmean(differences), error, sum(d > 0 for d in differences))


def descend(model: nn.Module, value: Callable[[], Tensor], strength: float, steps: int, rate: float) -> None:
    """Make value() + strength |w|^2 / 2 small, by Adam with steps that fall to 0, on all examples at once."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (value() + strength * penalty(model)).backward()
        optimizer.step()
        falling.step()


def minimum(model: nn.Module, value: Callable[[], Tensor], strength: float, steps: int) -> None:
    """The same by L-BFGS, for what is smooth: there is no step size."""
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=steps, history_size=20, line_search_fn="strong_wolfe")

    def closure() -> float:
        optimizer.zero_grad()
        found = value() + strength * penalty(model)
        found.backward()
        return float(found.detach())

    optimizer.step(closure)


def penalty(model: nn.Module) -> Tensor:
    """|w|^2 / 2."""
    return torch.stack([w.square().sum() for w in model.parameters()]).sum() / 2
