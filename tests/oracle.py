"""Every quantity by enumeration of the outputs: the definitions, as the papers write them, and nothing clever.

Each function takes the scores s (n,) of all outputs of one example, in lexicographic order of the outputs, and where it
needs them their losses L (n,) and whether they agree with the reference, agree (n,).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from structloss import (
    DirectLoss,
    Hinge,
    Loss,
    NegativeLogLikelihood,
    Objective,
    Perceptron,
    RewardAugmented,
    Risk,
    SlackHinge,
    SoftmaxMargin,
)


def allowed(s: Tensor) -> Tensor:
    """A score of -inf forbids: such outputs are not there."""
    return s > -torch.inf


def log_partition(s: Tensor) -> Tensor:
    s = s[allowed(s)]
    return s.logsumexp(0) if len(s) else torch.tensor(-torch.inf, dtype=s.dtype)


def first_best(s: Tensor) -> int:
    """The index of the best output, of several the first."""
    values = s.detach().tolist()
    return values.index(max(values))


def best(s: Tensor) -> Tensor:
    return s[first_best(s)] if allowed(s).any() else torch.tensor(-torch.inf, dtype=s.dtype)


def probabilities(s: Tensor) -> Tensor:
    """P(y), with zeros for what is forbidden."""
    p = torch.zeros_like(s)
    p[allowed(s)] = s[allowed(s)].softmax(0)
    return p


def expectation(s: Tensor, f: Tensor) -> Tensor:
    """E[f(y)], y with probability exp(s(y)) / Z."""
    p = probabilities(s)
    mean = (p[p > 0] * f[p > 0]).sum()
    return mean if mean.isfinite() else mean.detach()  # its gradient would be NaN everywhere


def entropy(s: Tensor) -> Tensor:
    """In nats; -inf, the log of their number, where there are no outputs."""
    if not allowed(s).any():
        return torch.tensor(-torch.inf, dtype=s.dtype)
    p = probabilities(s)
    return -(p[p > 0] * p[p > 0].log()).sum()


def kl(s: Tensor, other: Tensor) -> Tensor:
    p, q = probabilities(s), probabilities(other)
    return (p[p > 0] * (p[p > 0].log() - q[p > 0].log())).sum()


def slack_hinge(s: Tensor, L: Tensor, agree: Tensor) -> Tensor:
    """Of several best outputs, that of least loss, then of highest score, then the first."""
    gold, inside = best(s[agree]), ~L.isinf()
    values = torch.where(inside, L, 0) * (1 + s - gold)
    candidates = [i for i in range(len(s)) if s[i] > -torch.inf and inside[i]]
    if not candidates:
        return torch.tensor(-torch.inf, dtype=s.dtype)
    if gold == -torch.inf:  # nothing to be better than
        return torch.tensor(torch.nan, dtype=s.dtype)
    return values[max(candidates, key=lambda i: (values[i].item(), -L[i].item(), s[i].item(), -i))]


def augmented(s: Tensor, L: Tensor, scale: float) -> Tensor:
    """What costs inf is outside the loss, and outside every sum and maximum with it."""
    return torch.where(L.isinf(), -torch.inf, s + scale * torch.where(L.isinf(), 0, L))


Definition = Callable[[Tensor, Tensor, Tensor], Tensor]


def objectives(loss: Loss) -> dict[str, tuple[Objective, Definition]]:
    """Each objective of the library beside its definition."""
    none = "none"
    return {
        "NegativeLogLikelihood": (
            NegativeLogLikelihood(reduction=none),
            lambda s, L, agree: log_partition(s) - log_partition(s[agree]),
        ),
        "SoftmaxMargin": (
            SoftmaxMargin(loss, scale=0.7, reduction=none),
            lambda s, L, agree: log_partition(augmented(s, L, 0.7)) - log_partition(s[agree]),
        ),
        "Perceptron": (Perceptron(reduction=none), lambda s, L, agree: best(s) - best(s[agree])),
        "Hinge": (
            Hinge(loss, scale=1.5, reduction=none),
            lambda s, L, agree: best(augmented(s, L, 1.5)) - best(s[agree]),
        ),
        "SlackHinge": (SlackHinge(loss, reduction=none), slack_hinge),
        "DirectLoss toward": (
            DirectLoss(loss, epsilon=0.5, reduction=none),
            lambda s, L, agree: (best(s) - best(augmented(s, L, -0.5))) / 0.5,
        ),
        "DirectLoss away": (
            DirectLoss(loss, epsilon=2.0, toward=False, reduction=none),
            lambda s, L, agree: (best(augmented(s, L, 2.0)) - best(s)) / 2.0,
        ),
        "Risk": (Risk(loss, reduction=none), lambda s, L, agree: expectation(s, L)),
        "RewardAugmented": (
            RewardAugmented(loss, temperature=0.8, reduction=none),
            lambda s, L, agree: log_partition(s) - expectation(augmented(torch.where(allowed(s), 0, s), L, -1.25), s),
        ),
    }
