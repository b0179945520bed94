"""McAllester 2010, Theorem 1: the update of direct loss is the gradient of the expected loss, as epsilon goes to 0."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

import torch
from torch import Tensor

from structloss.objectives import DirectLoss, Hinge, Objective
from structloss.reproduce.boundary import loss_gradient, update
from structloss.reproduce.mixture import Mixture

LEVEL = 0.95
EPSILONS = (2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.0025)
JUDGED = 3  # of the smallest epsilons
SIDES = {"toward": 1.0, "away": -1.0}  # the sign of epsilon in (11)


def noisy_world() -> tuple[Mixture, Tensor]:
    """Three labels that overlap, at unequal costs, and weights w (15,) in general position."""
    places = torch.tensor([[1.0, 0.0], [-0.5, 0.9], [-0.5, -0.9]], dtype=torch.float64)
    labels = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    a, b = places[labels[:, 0]], places[labels[:, 1]]
    probabilities = torch.tensor([0.15, 0.12, 0.06, 0.1, 0.14, 0.09, 0.12, 0.05, 0.17], dtype=torch.float64)
    costs = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 1.0], [3.0, 1.0, 0.0]], dtype=torch.float64)
    W = [1.1, 0.4, -0.7, 0.8, -0.3, -1.0]
    A = [0.4, -0.2, 0.1, -0.5, 0.2, 0.3, 0.9, 0.25, -0.35]
    means = torch.stack([a[:, 0], a[:, 1] + b[:, 0], b[:, 1]], 1)
    return Mixture(probabilities, labels, means, costs), torch.tensor([*W, *A], dtype=torch.float64)


def weight_names(mixture: Mixture) -> list[str]:
    """What the numbers of w are called: W[label, place in the window] and A[label, next label]."""
    K = range(mixture.num_labels)
    return [*(f"W[{k},{i}]" for k in K for i in (0, 1)), *(f"A[{j},{k}]" for j in K for k in K)]


@dataclass(frozen=True)
class Truth:
    """The left-hand side of (10), the gradient (d,) of the expected loss, and three checks of it that should be 0."""

    loss: float  # the expected loss itself
    gradient: Tensor
    refinement: float  # the largest change of a component with nodes twice as far apart
    slope: float  # along the gradient, from a central difference of the integrated loss, minus the gradient's length
    radial: float  # along w, where the loss cannot change


def truth(mixture: Mixture, w: Tensor, step: float, width: float = 0.05) -> Truth:
    """The gradient with nodes `step` apart, and its checks.

    The central difference is over `width` to both sides, of integrals with nodes three times as far apart.
    """
    gradient, coarse = (loss_gradient(mixture, w, cell) for cell in (step, 2 * step))
    direction = gradient / gradient.norm()
    lower, loss, upper = (mixture.expected_loss(w + shift * direction, 3 * step) for shift in (-width, 0, width))
    return Truth(
        loss,
        gradient,
        (gradient - coarse).abs().max().item(),
        (upper - lower) / (2 * width) - gradient.norm().item(),
        (gradient @ w / w.norm()).item(),
    )


@dataclass(frozen=True)
class Estimate:
    """The right-hand side of (10) at one epsilon: mean and standard error over batches, (d,); and integrated, (d,)."""

    side: str
    epsilon: float
    mean: Tensor
    error: Tensor
    integrated: Tensor


def estimates(
    mixture: Mixture, w: Tensor, batches: int, size: int, step: float, seed: int,
    say: Callable[[str], None], epsilons: Sequence[float] = EPSILONS,
) -> list[Estimate]:  # fmt: skip
    """Measure the gradient of the library's DirectLoss at every epsilon, on `batches` times `size` fresh examples."""
    generator = torch.Generator().manual_seed(seed)
    cells = [(side, epsilon) for side in SIDES for epsilon in epsilons]
    sums = torch.zeros(len(cells), len(w), dtype=w.dtype)
    squares = torch.zeros_like(sums)
    w = w.detach().requires_grad_()
    for batch in range(batches):
        x, y = mixture.sample(size, generator)
        chain = mixture.chain(x, w)
        for i, (side, epsilon) in enumerate(cells):
            objective = DirectLoss(mixture.loss, epsilon, toward=side == "toward")
            (gradient,) = torch.autograd.grad(objective(chain, y), w, retain_graph=True)
            sums[i] += gradient
            squares[i] += gradient.square()
        if (batch + 1) % max(1, batches // 5) == 0:
            say(f"{(batch + 1) * size} of {batches * size} examples, each at {len(cells)} epsilons")
    means = sums / batches
    errors = ((squares / batches - means.square()).clamp(min=0) / (batches - 1)).sqrt()
    return [
        Estimate(side, epsilon, mean, error, update(mixture, w, SIDES[side] * epsilon, step))
        for (side, epsilon), mean, error in zip(cells, means, errors, strict=True)
    ]


@dataclass(frozen=True)
class Verdict:
    """How many estimated components lie within their band about a gradient; the bands hold together at LEVEL."""

    inside: int
    count: int
    quantile: float  # half a band's width, in standard errors
    worst: float  # the largest distance, in standard errors


def verdict(found: Sequence[Estimate], wanted: Sequence[Tensor]) -> Verdict:
    """Compare all components of all estimates at once, by Bonferroni: each band has level 1 - (1 - LEVEL) / count.

    Components that never differ from what is wanted by more than rounding, such as those of unused weights, count too.
    """
    count = sum(len(one.mean) for one in found)
    quantile = NormalDist().inv_cdf(1 - (1 - LEVEL) / (2 * count))
    away = torch.cat([(one.mean - g).abs() / one.error.clamp(min=1e-12) for one, g in zip(found, wanted, strict=True)])
    return Verdict(int((away <= quantile).sum()), count, quantile, away.max().item())


def smallest(found: Sequence[Estimate]) -> list[Estimate]:
    """The estimates at the JUDGED smallest epsilons, of both sides."""
    chosen = sorted({one.epsilon for one in found})[:JUDGED]
    return [one for one in found if one.epsilon in chosen]


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


def trained(mixture: Mixture, objective: Objective, steps: int, seed: int, rate: float = 0.3, size: int = 32) -> Tensor:
    """Stochastic gradient descent, updates (7) and (8): one loop for every objective; the mean of its second half.

    The start is random and small, the rate falls like one over the root of the number of steps.
    """
    generator = torch.Generator().manual_seed(seed)
    w = 0.3 * torch.randn(mixture.num_weights, generator=generator, dtype=torch.float64)
    mean = torch.zeros_like(w)
    for t in range(steps):
        x, y = mixture.sample(size, generator)
        w = w.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(objective(mixture.chain(x, w), y), w)
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
