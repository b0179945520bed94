r"""A small world where the expected loss of a chain can be integrated: inputs from Gaussians, two labels to find.

An input x is three numbers. A chain of two positions looks at them through a window of two, with weights W and A:

.. math:: s_w(x, y) = W_{y_1} \cdot (x_1, x_2) + W_{y_2} \cdot (x_2, x_3) + A_{y_1 y_2}

So each output's score is linear in x. Along :math:`x_2` the scores are lines; each output is the best on one interval,
whose Gaussian mass is known. What is left, over :math:`x_1` and :math:`x_3`, is summed on a grid.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from structloss.losses import Hamming
from structloss.structures.base import Structure
from structloss.structures.chain.chain import Chain

_REACH = 7.0  # beyond so many deviations a Gaussian has 3e-12 of its mass
_NODES = 4096  # integrated at a time


@dataclass(frozen=True)
class Mixture:
    """Pairs (x, y): a component is drawn, x about its mean with covariance I, and y is the component's label pair.

    Args:
        probabilities: (M,), of the components.
        labels: (M, 2), below K.
        means: (M, 3).
        costs: (K, K), of answering j where the reference has i: the loss is their sum over the two positions.
    """

    probabilities: Tensor
    labels: Tensor
    means: Tensor
    costs: Tensor

    @property
    def num_labels(self) -> int:
        """How many labels there are, K."""
        return self.costs.shape[0]

    @property
    def num_weights(self) -> int:
        """How many weights a chain has, d = 2 K + K K."""
        return self.num_states * (2 + self.num_states)

    @property
    def num_states(self) -> int:
        """How many states the chain has: its labels."""
        return self.num_labels

    @property
    def loss(self) -> Hamming:
        """L(y, r), for the library's objectives."""
        return Hamming(self.costs)

    def sample(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Inputs (count, 3) and their labels (count, 2)."""
        component = torch.multinomial(self.probabilities, count, replacement=True, generator=generator)
        noise = torch.randn(count, 3, generator=generator, dtype=self.means.dtype)
        return self.means[component] + noise, self.labels[component]

    def structure(self, x: Tensor, w: Tensor) -> Structure:
        """The library's chain with these weights, for inputs (B, 3)."""
        return Chain.from_emissions(*self.parts(x, w))

    def parts(self, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The chain's emissions (B, 2, K) and transitions (K, K)."""
        W, A = self.split(w)
        return torch.stack([x[:, :2], x[:, 1:]], 1) @ W.T, A

    def split(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """W (K, 2) and A (K, K) from w (d,)."""
        K = self.num_states
        return w[: 2 * K].reshape(K, 2), w[2 * K :].reshape(K, K)

    def expected_loss(self, w: Tensor, step: float) -> float:
        """E[L(y, y_w(x))], McAllester 2010 (2), with nodes this far apart."""

        def integrand(nodes: Tensor) -> Tensor:
            slopes, heights = self._lines(nodes, w)
            mass, _ = _parts(slopes, heights[:, None], self.means[:, 1])
            return (mass * self.losses()).sum(2)

        return self._integrated(integrand, step)

    def expected_hinge(self, w: Tensor, step: float) -> float:
        """The margin-rescaled hinge, McAllester 2010 (5): E[max over z of s_w(x, z) + L(y, z)] - E[s_w(x, y)]."""

        def integrand(nodes: Tensor) -> Tensor:
            slopes, heights = self._lines(nodes, w)
            raised = heights[:, None] + self.losses()
            mass, moment = _parts(slopes, raised, self.means[:, 1])
            return (raised * mass + slopes * moment).sum(2)

        if type(self) is not Mixture:
            raise NotImplementedError("expected_hinge: only where every output is a label pair")
        vectors, constants = self.scores(w)
        own = self.labels[:, 0] * self.num_labels + self.labels[:, 1]
        reference = (self.probabilities * ((vectors[own] * self.means).sum(1) + constants[own])).sum()
        return self._integrated(integrand, step) - reference.item()

    def scores(self, w: Tensor) -> tuple[Tensor, Tensor]:
        """The score of output y = (a, b), number a K + b, is vectors[y] . x + constants[y]: (n, 3) and (n,)."""
        (W, A), K = self.split(w), self.num_states
        first, second = W.repeat_interleave(K, 0), W.repeat(K, 1)
        return torch.stack([first[:, 0], first[:, 1] + second[:, 0], second[:, 1]], 1), A.reshape(-1)

    def losses(self) -> Tensor:
        """L of every output against every component's labels, (M, n)."""
        first, second = self.costs_of_states()[self.labels].unbind(1)
        return (first[:, :, None] + second[:, None, :]).flatten(1)

    def costs_of_states(self) -> Tensor:
        """What each state costs where the reference has a label, (K, K)."""
        return self.costs

    def _lines(self, nodes: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """Scores as lines in x_2: their slopes (n,), and their heights at x_2 = 0 (N, n)."""
        vectors, constants = self.scores(w)
        return vectors[:, 1], nodes @ vectors[:, [0, 2]].T + constants

    def _integrated(self, integrand: Callable[[Tensor], Tensor], step: float) -> float:
        """The expectation of what is given for nodes (N, 2) of x_1 and x_3 and each component: (N, M)."""
        sides = [grid(self.means[:, i], step) for i in (0, 2)]
        total = 0.0
        for nodes in torch.cartesian_prod(*sides).split(_NODES):
            squares = (nodes[:, None] - self.means[:, [0, 2]]).square().sum(2)
            density = self.probabilities * torch.exp(-squares / 2) / (2 * math.pi)
            total += (density * integrand(nodes)).sum().item()
        return total * step**2


def grid(means: Tensor, step: float) -> Tensor:
    """Midpoints of cells as wide as `step`, over all that Gaussians about these means reach."""
    return torch.arange(means.min().item() - _REACH + step / 2, means.max().item() + _REACH, step, dtype=means.dtype)


def _parts(slopes: Tensor, heights: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """The mass of N(mean, 1) where each line is the highest, and its first moment there: (N, M, n) both.

    Args:
        slopes: (n,).
        heights: (N, M or 1, n), at 0.
        means: (M,).
    """
    steeper = slopes[:, None] - slopes  # (n, n): line i minus line j
    higher = heights[..., None] - heights[..., None, :]
    crossing = -higher / torch.where(steeper == 0, 1, steeper)
    below = torch.where(steeper > 0, crossing, -math.inf).amax(-1)
    above = torch.where(steeper < 0, crossing, math.inf).amin(-1)
    # Of parallel lines only the highest counts, of equal ones the first.
    number = torch.arange(len(slopes), device=slopes.device)
    hidden = (steeper == 0) & ((higher < 0) | ((higher == 0) & (number[:, None] > number)))
    best = (below < above) & ~hidden.any(-1)
    mass, moment = interval(below, above, means[:, None])
    return torch.where(best, mass, 0), torch.where(best, moment, 0)


def interval(low: Tensor, high: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """The mass of N(mean, 1) from low to high, and its first moment there."""
    mass = torch.special.ndtr(high - mean) - torch.special.ndtr(low - mean)
    return mass, mean * mass + bell(low - mean) - bell(high - mean)


def bell(x: Tensor) -> Tensor:
    """The density of N(0, 1)."""
    return torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)
