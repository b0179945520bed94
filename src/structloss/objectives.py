"""A page of formulas: every objective, from a structure s, a reference r and a loss L.

No objective knows which structure or which loss it got. Each is a number to minimise, an `nn.Module` called as
`objective(structure, reference)`. The reference's own term is made first: autograd then comes to it last, and adds its
few entries to the gradient of the rest in place.
"""

import math
from abc import abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor, nn

from structloss.losses import Loss
from structloss.structures.base import Structure
from structloss.structures.checks import check_scale

Reduction = Literal["mean", "sum", "none"]


class Objective(nn.Module):
    """A number to minimise. `reduction` over the batch: "mean", "sum", or "none" for the values (B,)."""

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f'reduction: got {reduction!r}, but wanted "mean", "sum" or "none"')
        self.reduction = reduction

    @abstractmethod
    def values(self, s: Structure, r: Any) -> Tensor:
        """The objective of each example, (B,)."""

    def forward(self, structure: Structure, reference: Any) -> Tensor:
        if not isinstance(structure, Structure):
            raise TypeError(f"structure: got {type(structure).__name__}, but wanted a Structure such as Chain")
        values = self.values(structure, reference)
        if self.reduction == "mean":
            return values.mean()
        return values.sum() if self.reduction == "sum" else values

    def extra_repr(self) -> str:
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "training"}
        return ", ".join(f"{k}={v!r}" for k, v in settings.items())


class NegativeLogLikelihood(Objective):
    r"""The CRF's objective, :math:`\log Z - \log Z_r`: minus the log-probability of the reference.

    With a partial reference (label -100: unknown) or a latent structure, of all outputs that agree with it.

    Example:
        >>> import torch, structloss as sl
        >>> sl.NegativeLogLikelihood()(sl.Chain(torch.zeros(1, 3, 2)), torch.tensor([[0, 1, 1]]))
        tensor(2.0794)
    """

    def values(self, s: Structure, r: Any) -> Tensor:
        gold = s.given(r).log_partition()
        return s.log_partition() - gold


class SoftmaxMargin(Objective):
    r"""Cortes 2018, eq. (1): :math:`\log \sum_y \exp(L(y, r) + s(y) - s(r))`, an upper bound of the loss.

    The gradient of its first term is Cortes' :math:`Q_w(z, s)`, `s.augment(L, r).marginals()`.

    Example:
        >>> import torch, structloss as sl
        >>> sl.SoftmaxMargin(sl.Hamming())(sl.Chain(torch.zeros(1, 1, 2)), torch.tensor([[0]]))
        tensor(1.3133)
    """

    def __init__(self, loss: Loss, scale: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        check_scale(scale)
        self.loss, self.scale = _loss(loss), scale

    def values(self, s: Structure, r: Any) -> Tensor:
        gold = s.given(r).log_partition()
        return s.augment(self.loss, r, self.scale).log_partition() - gold


class Perceptron(Objective):
    r"""The structured perceptron, :math:`\max_y s(y) - s(r)` (the lecture; McAllester 2010, eq. 4).

    Example:
        >>> import torch, structloss as sl
        >>> sl.Perceptron()(sl.Chain(torch.tensor([[[1., 3.]]])), torch.tensor([[0]]))
        tensor(2.)
    """

    def values(self, s: Structure, r: Any) -> Tensor:
        return s.max() - s.given(r).max()


class Hinge(Objective):
    r"""The margin-rescaled structural SVM, :math:`\max_y [L(y, r) + s(y)] - s(r)` (McAllester 2010, eq. 5).

    Example:
        >>> import torch, structloss as sl
        >>> sl.Hinge(sl.Hamming())(sl.Chain(torch.tensor([[[1., 3.]]])), torch.tensor([[0]]))
        tensor(3.)
    """

    def __init__(self, loss: Loss, scale: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        check_scale(scale)
        self.loss, self.scale = _loss(loss), scale

    def values(self, s: Structure, r: Any) -> Tensor:
        return s.augment(self.loss, r, self.scale).max() - s.given(r).max()


class SlackHinge(Objective):
    r"""The slack-rescaled structural SVM, :math:`\max_y L(y, r) (1 + s(y) - s(r))` (Tsochantaridis et al. 2005).

    Found exactly: among the outputs of one loss value the best is the one with the highest score (the lowest, where the
    loss is negative, as Smith-Waterman's is).

    Example:
        >>> import torch, structloss as sl
        >>> sl.SlackHinge(sl.Hamming())(sl.Chain(torch.tensor([[[1., 3.]]])), torch.tensor([[0]]))
        tensor(3.)
    """

    def __init__(self, loss: Loss, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.loss = _loss(loss)

    def values(self, s: Structure, r: Any) -> Tensor:
        strata, gold = s.strata(self.loss, r), s.given(r).max()
        with torch.no_grad():
            if (strata.losses < 0).any():
                low = s.strata(self.loss, r, lowest=True).outputs
                negative = (strata.losses < 0).reshape(*strata.losses.shape, *(1,) * (low.dim() - 2))
                strata = strata._replace(outputs=torch.where(negative, low, strata.outputs))
            slack = 1 + s.score(strata.outputs.transpose(0, 1)).T - gold[:, None]  # (B, V)
            best = torch.where(strata.exists, strata.losses * slack, -math.inf)
            first = (best == best.amax(1, keepdim=True)).int().argmax(1)  # of several, the one of least loss
        batch = torch.arange(len(first), device=first.device)
        value = strata.losses[batch, first] * (1 + s.score(strata.outputs[batch, first]) - gold)
        return torch.where(strata.exists.any(1), value, -math.inf)


class DirectLoss(Objective):
    r"""McAllester 2010: the loss of the best output itself, through the difference of two inferred outputs.

    .. math:: \text{toward: } \tfrac1\epsilon [\max_y s(y) - \max_y (s(y) - \epsilon L(y, r))] \qquad
              \text{away: } \tfrac1\epsilon [\max_y (s(y) + \epsilon L(y, r)) - \max_y s(y)]

    Its gradient is the update (8), :math:`(\phi(y_w) - \phi(y_{direct})) / \epsilon`, exactly.

    Example:
        >>> import torch, structloss as sl
        >>> sl.DirectLoss(sl.Hamming(), epsilon=4.)(sl.Chain(torch.tensor([[[1., 3.]]])), torch.tensor([[0]]))
        tensor(0.5000)
    """

    def __init__(self, loss: Loss, epsilon: float = 1.0, toward: bool = True, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.loss, self.epsilon, self.toward = _loss(loss), _positive(epsilon, "epsilon"), toward

    def values(self, s: Structure, r: Any) -> Tensor:
        if self.toward:
            return (s.max() - s.augment(self.loss, r, -self.epsilon).max()) / self.epsilon
        return (s.augment(self.loss, r, self.epsilon).max() - s.max()) / self.epsilon


class Risk(Objective):
    r"""Minimum risk: the expected loss :math:`E[L(y, r)]`, y drawn with probability exp(s(y)) / Z, exactly.

    Example:
        >>> import torch, structloss as sl
        >>> sl.Risk(sl.Hamming())(sl.Chain(torch.zeros(1, 3, 2)), torch.tensor([[0, 1, 1]]))
        tensor(1.5000)
    """

    def __init__(self, loss: Loss, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.loss = _loss(loss)

    def values(self, s: Structure, r: Any) -> Tensor:
        return s.expected(self.loss, r)


class RewardAugmented(Objective):
    r"""Reward-augmented maximum likelihood (Norouzi et al. 2016), exactly, without sampling.

    .. math:: \log Z - E_{y \sim \exp(-L(y, r) / \text{temperature})}[s(y)]

    Example:
        >>> import torch, structloss as sl
        >>> sl.RewardAugmented(sl.Hamming())(sl.Chain(torch.zeros(1, 3, 2)), torch.tensor([[0, 1, 1]]))
        tensor(2.0794)
    """

    def __init__(self, loss: Loss, temperature: float = 1.0, reduction: Reduction = "mean") -> None:
        super().__init__(reduction)
        self.loss, self.temperature = _loss(loss), _positive(temperature, "temperature")

    def values(self, s: Structure, r: Any) -> Tensor:
        return s.log_partition() - s.uniform().augment(self.loss, r, -1 / self.temperature).expectation(s)


def _loss(loss: Loss) -> Loss:
    if not isinstance(loss, Loss):
        raise TypeError(f"loss: got {loss!r}, but wanted a loss such as Hamming()")
    return loss


def _positive(value: float, name: str) -> float:
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name}: got {value!r}, but wanted a finite number above 0")
    return value
