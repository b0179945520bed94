"""McAllester 2010, section 1: a convex relaxation has its minimum elsewhere. The hinge and direct loss, trained."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import torch
from torch import Tensor

from structloss.objectives import DirectLoss, Hinge, Objective
from structloss.reproduce.boundary import loss_gradient
from structloss.reproduce.mixture import Mixture


def far_world(wrong: float = 0.15) -> Mixture:
    """Two labels; a part of the inputs lies far on the wrong side, and no chain can have both it and the rest right.

    The hinge pays for how far they are, the loss only for how many.
    """
    labels = torch.cartesian_prod(torch.arange(2), torch.arange(2))
    a, b = (2.0 * labels.double() - 1).unbind(1)
    places = torch.stack([a, (a + b) / 2, b], 1)
    means = torch.cat([1.5 * places, -6.0 * places[3:]])
    probabilities = torch.tensor([*[(1 - wrong) / 4] * 4, wrong], dtype=torch.float64)
    return Mixture(probabilities, torch.cat([labels, labels[3:]]), means, 1 - torch.eye(2, dtype=torch.float64))


def trained(
    mixture: Mixture, objective: Objective, steps: int, seed: int, rate: float = 0.3, size: int = 32,
    start: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Stochastic gradient descent, updates (7) and (8): one loop for every objective; the mean of its second half.

    The start, where none is given, is random and small; the rate falls like one over the root of the number of steps.
    """
    generator = torch.Generator().manual_seed(seed)
    w = 0.3 * torch.randn(mixture.num_weights, generator=generator, dtype=torch.float64)
    w = w if start is None else start
    mean = torch.zeros_like(w)
    for t in range(steps):
        x, y = mixture.sample(size, generator)
        w = w.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(mixture.structure(x, w), y), w)
        w = w.detach() - rate / math.sqrt(1 + t / 50) * gradient
        if 2 * t >= steps:
            mean += w
    return mean / (steps - (steps + 1) // 2)


def descended(mixture: Mixture, w: Tensor, steps: int, step: float) -> Tensor:
    """Gradient descent on the integrated expected loss itself, from w: what a training could reach from there."""
    for _ in range(steps):
        w = w / w.norm()
        w = w - 0.2 * loss_gradient(mixture, w, step)
    return w


def objectives(mixture: Mixture, epsilon: float = 0.3) -> dict[str, Objective]:
    """The hinge, and direct loss on both sides."""
    return {
        "hinge": Hinge(mixture.loss),
        "direct loss, toward": DirectLoss(mixture.loss, epsilon),
        "direct loss, away": DirectLoss(mixture.loss, epsilon, toward=False),
    }


@dataclass(frozen=True)
class Outcome:
    """What trainings from several seeds came to: the weights, the expected loss (2) and the expected hinge (5)."""

    weights: list[list[float]]
    losses: list[float]
    hinges: list[float]


def outcome(mixture: Mixture, weights: Sequence[Tensor], step: float) -> Outcome:
    """Integrate both at every w."""
    return Outcome(
        [w.tolist() for w in weights],
        [mixture.expected_loss(w, step) for w in weights],
        [mixture.expected_hinge(w, step) for w in weights],
    )


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and deviation."""
    return fmean(values), stdev(values) if len(values) > 1 else 0.0
