r"""The gradient of a chain's expected loss, as an integral over the boundaries between outputs.

Between the outputs z and s lies a piece of the plane where both are the best. Moving w moves it, and the loss jumps
there; for x of density f (McAllester 2010, (22) to (26), with a layer of no width):

.. math:: \nabla_w E[L(y, y_w(x))] = \sum_{z < s} \int_{z, s \text{ best}} E[L(y, z) - L(y, s) \mid x]
          \frac{\phi(x, z) - \phi(x, s)}{|\nabla_x (s_w(x, z) - s_w(x, s))|} f(x) \, dx

In the plane one direction is integrated exactly, and the other summed on a grid.
"""

import math
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from structloss.reproduce.mixture import Mixture, bell, grid, interval

_ORDER = 8  # of the quadrature over epsilon


def loss_gradient(mixture: Mixture, w: Tensor, step: float, epsilon: float = 0.0) -> Tensor:
    """The gradient (d,) of E[L(y, y_w(x))]; with epsilon the same integral over the boundaries of y_w(x, y, epsilon).

    Args:
        mixture: where x and y come from.
        w: (d,), in general position: no two outputs whose scores differ by a constant.
        step: from node to node.
        epsilon: the loss's factor in (11).
    """
    vectors, constants = mixture.scores(w.detach())
    losses = mixture.losses()
    heights = constants - epsilon * losses  # (M, n)
    moments, masses = torch.zeros_like(vectors), torch.zeros_like(constants)
    for z, s in combinations(range(len(vectors)), 2):
        normal = vectors[z] - vectors[s]
        length = normal.norm()
        if length == 0:
            raise ValueError(f"w: outputs {z} and {s} have scores that differ by a constant, but wanted w without such")
        along, across = _basis(normal / length)
        gap = (heights[:, z] - heights[:, s]) / length  # (M,): the plane is normal . x / length + gap = 0
        foot = -gap[:, None] * normal / length  # (M, 3): its point nearest to 0
        distance = mixture.means @ normal / length + gap
        nodes = grid(mixture.means @ along, step)  # (N,)
        low, high = _piece(vectors[z] - vectors, heights[:, [z]] - heights, foot, along, across, nodes, (z, s))
        mass, moment = interval(low, high, mixture.means @ across)  # (N, M)
        jump = mixture.probabilities * (losses[:, z] - losses[:, s]) * bell(distance) / length
        weight = torch.where(low < high, step * jump * bell(nodes[:, None] - mixture.means @ along), 0)
        mass, moment = weight * mass, weight * moment
        x = mass.sum(0) @ foot + (mass.sum(1) @ nodes) * along + moment.sum() * across  # (3,)
        for output, sign in ((z, 1.0), (s, -1.0)):
            moments[output] += sign * x
            masses[output] += sign * mass.sum()
    # phi is the gradient of the score: of vectors . x + constants, with x and 1 integrated.
    w = w.detach().requires_grad_()
    vectors, constants = mixture.scores(w)
    return torch.autograd.grad((vectors * moments).sum() + (constants * masses).sum(), w)[0]


def update(mixture: Mixture, w: Tensor, epsilon: float, step: float) -> Tensor:
    r"""The right-hand side of (10) before its limit, (d,); away from the loss where epsilon is negative.

    .. math:: \frac{1}{\epsilon} E[\phi(x, y_w(x)) - \phi(x, y_w(x, y, \epsilon))]
              = \frac{1}{\epsilon} \int_0^\epsilon \text{loss\_gradient}(w, \epsilon') \, d\epsilon'
    """
    places, weights = np.polynomial.legendre.leggauss(_ORDER)
    parts = [
        weight / 2 * loss_gradient(mixture, w, step, epsilon * (1 + place) / 2)
        for place, weight in zip(places.tolist(), weights.tolist(), strict=True)
    ]
    return torch.stack(parts).sum(0)


def _basis(normal: Tensor) -> tuple[Tensor, Tensor]:
    """Two unit vectors that span the plane with this unit normal.

    They are turned away from the axes: sides of a piece often run along those, and would make the sum over nodes jump.
    """
    far = torch.eye(3, dtype=normal.dtype)[normal.abs().argmin()]
    first = torch.linalg.cross(normal, far)
    first = first / first.norm()
    second = torch.linalg.cross(normal, first)
    return math.cos(1) * first + math.sin(1) * second, math.cos(1) * second - math.sin(1) * first


def _piece(
    ahead: Tensor, head_start: Tensor, foot: Tensor, along: Tensor, across: Tensor, nodes: Tensor, pair: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """From where to where, across the plane, a pair of outputs beats the others: (N, M) both.

    Args:
        ahead: (n, 3), the pair's vector minus each output's.
        head_start: (M, n), the same of the heights.
        foot, along, across: the plane.
        nodes: (N,), where along it.
        pair: the two outputs, which do not count.
    """
    others = [k for k in range(len(ahead)) if k not in pair]
    slopes = ahead[others] @ across  # (k,)
    start = foot @ ahead[others].T + head_start[:, others]  # (M, k)
    lead = start + nodes[:, None, None] * (ahead[others] @ along)  # (N, M, k)
    crossing = -lead / torch.where(slopes == 0, 1, slopes)
    low = torch.where(slopes > 0, crossing, -math.inf).amax(-1)
    high = torch.where(slopes < 0, crossing, math.inf).amin(-1)
    never = ((slopes == 0) & (lead < 0)).any(-1)
    return torch.where(never, math.inf, low), high
