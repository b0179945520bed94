"""McAllester 2010, Theorem 1: the update of direct loss is the gradient of the expected loss, as epsilon goes to 0."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from structloss.objectives import DirectLoss
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
        chain = mixture.structure(x, w)
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
