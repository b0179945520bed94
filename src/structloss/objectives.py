"""A page of formulas: every objective, from a structure s, a reference r and a loss L.

No objective knows which structure or which loss it got. Each is a number to minimise, an `nn.Module` called as
`objective(structure, reference)`, and objectives are closed under + and a factor. The reference's own term is made
first: autograd then comes to it last, and adds its few entries to the gradient of the rest in place.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from structloss.losses import Loss
from structloss.structures import compiled
from structloss.structures.base import Structure
from structloss.structures.checks import check_scale, check_tolerance

__all__ = [
    "DirectLoss",
    "Hinge",
    "NegativeLogLikelihood",
    "Objective",
    "Perceptron",
    "RewardAugmented",
    "Risk",
    "SlackHinge",
    "SoftmaxMargin",
]

Reduction = Literal["mean", "sum", "none"]
Impossible = Literal["error", "skip"]


class ImpossibleError(ValueError):
    """An example whose objective is not finite: says why, and `example` is its number in the batch."""

    def __init__(self, sentence: str, example: int) -> None:
        super().__init__(sentence)
        self.example = example


class Objective(nn.Module):
    """A number to minimise.

    Args:
        reduction: over the batch, "mean", "sum", or "none" for the values (B,) as they are, infinite ones too.
        impossible: what to do, under a mean or a sum, with an example whose value is not finite, such as one whose
            reference has no output (labels that a transition forbids, a transcript longer than its frames): "error",
            which names it, or "skip", which leaves it out and counts it in `skipped`.

    Objectives can be added and multiplied by numbers. To write your own, write `values`.

    Example:
        >>> import torch, structloss as sl
        >>> objective = sl.Risk(sl.Hamming()) + 0.1 * sl.NegativeLogLikelihood()
        >>> objective(sl.Chain(torch.zeros(1, 3, 2)), torch.tensor([[0, 1, 1]]))  # 1.5 + 0.1 * log 8
        tensor(1.7079)
    """

    named: ClassVar[dict[str, type["Objective"]]] = {}  # those that have a name on the command line

    def __init_subclass__(cls, name: str = "", **rest: object) -> None:
        """`class Mine(Objective, name="mine")` can be asked for by its name."""
        super().__init_subclass__(**rest)
        if name:
            Objective.named[name] = cls

    def __init__(self, reduction: Reduction = "mean", impossible: Impossible = "error") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ValueError(f'reduction: got {reduction!r}, but wanted "mean", "sum" or "none"')
        if impossible not in ("error", "skip"):
            raise ValueError(f'impossible: got {impossible!r}, but wanted "error" or "skip"')
        self.reduction, self.impossible = reduction, impossible
        self.skipped = 0  # how many examples were left out so far
        self._number = compiled.register_object(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        cast(Any, super()).__setstate__(state)
        self._number = compiled.register_object(self)

    @abstractmethod
    def values(self, s: Structure, r: Any) -> Tensor:
        """The objective of each example, (B,)."""

    def forward(self, structure: Structure, reference: Any) -> Tensor:
        if not isinstance(structure, Structure):
            raise TypeError(f"structure: got {type(structure).__name__}, but wanted a Structure such as Chain")
        if structure._opaque:
            values = compiled.objective(cast(compiled.Flat, structure), reference, self._number)
        else:
            values = self.values(structure, reference)
        if self.reduction == "none":
            return values
        if self.impossible == "skip":
            finite = values.detach().isfinite()
            number, values = finite.sum(), torch.where(finite, values, 0)
            if not torch.compiler.is_compiling():
                self.skipped += len(finite) - int(number)
            return values.sum() / number.clamp(min=1) if self.reduction == "mean" else values.sum()
        result = values.mean() if self.reduction == "mean" and len(values) else values.sum()
        if not torch.compiler.is_compiling() and not math.isfinite(result.item()):
            self.check(values, structure, reference)
        return result

    def check(self, values: Tensor, s: Structure, r: Any) -> None:
        """Raise where one of the values (B,) is not finite, and an error was wanted."""
        wrong = ~values.detach().isfinite()
        if self.reduction != "none" and self.impossible == "error" and wrong.any():
            b = int(wrong.int().argmax())
            raise ImpossibleError(_why(b, values, s, r), b)

    def __mul__(self, factor: float) -> "WeightedSum":
        """This objective times a number."""
        if not isinstance(factor, int | float) or not math.isfinite(factor):
            raise ValueError(f"factor: got {factor!r}, but wanted a finite number")
        return WeightedSum([(factor * own, objective) for own, objective in self.terms])

    __rmul__ = __mul__

    def __add__(self, other: "Objective") -> "WeightedSum":
        """Both objectives added up."""
        return WeightedSum(self.terms + other.terms) if isinstance(other, Objective) else NotImplemented

    def __radd__(self, other: object) -> "Objective":
        """So that sum([...]) works, which begins with 0."""
        return self if other == 0 else NotImplemented

    def follow(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Let losses that follow what is reached on development data take their next weights, which are returned.

        Example:
            >>> import structloss as sl
            >>> sl.Hinge(sl.CorpusF1(["O", "B-PER", "I-PER"])).follow({"precision": 0.5, "recall": 0.5})
            {'miss': 1.5, 'false_alarm': 0.5}
        """
        weights: dict[str, float] = {}
        for part in self.modules():
            if isinstance(loss := getattr(part, "loss", None), Loss):
                following = loss.following(metrics)
                setattr(part, "loss", following)  # noqa: B010  # a module's attributes are tensors to the type checker
                weights |= following.weights
        return weights

    @property
    def terms(self) -> "list[tuple[float, Objective]]":
        """The objectives that it is the weighted sum of, with their factors."""
        return [(1.0, self)]

    @property
    def norm_matters(self) -> bool:
        """Whether a penalty on the norm of the weights means something, so that training has one unless told otherwise.

        Not to `DirectLoss` alone: the loss of the best output is the same for all multiples of the weights (McAllester
        2010, section 7).
        """
        return any(not isinstance(objective, DirectLoss) for _, objective in self.terms)

    @property
    def wants_warm_up(self) -> bool:
        """Whether it has little to go by while all outputs are about equally wrong, as `Risk` has."""
        return any(isinstance(objective, Risk) for _, objective in self.terms)

    def extra_repr(self) -> str:
        defaults = {"impossible": "error", "skipped": 0, "tolerance": 0.0}
        found = ("training", "error_bound")
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_") and k not in found}
        return ", ".join(f"{k}={v!r}" for k, v in settings.items() if defaults.get(k) != v or k not in defaults)


class WeightedSum(Objective):
    r"""A weighted sum of objectives, :math:`\sum_i f_i O_i(s, r)`. Write it with `*` and `+`."""

    def __init__(self, terms: list[tuple[float, Objective]]) -> None:
        first = terms[0][1]
        super().__init__(first.reduction, first.impossible)
        for _, objective in terms:
            if (objective.reduction, objective.impossible) != (first.reduction, first.impossible):
                raise ValueError(
                    f"reduction: got {first.reduction!r} and {objective.reduction!r}, impossible: {first.impossible!r} "
                    f"and {objective.impossible!r}, but the terms of a sum want the same"
                )
        self.factors = [factor for factor, _ in terms]
        self.objectives = nn.ModuleList(objective for _, objective in terms)

    @property
    def terms(self) -> list[tuple[float, Objective]]:
        return [(f, o) for f, o in zip(self.factors, self.objectives, strict=True) if isinstance(o, Objective)]

    def values(self, s: Structure, r: Any) -> Tensor:
        (factor, objective), *rest = self.terms
        total = factor * objective.values(s, r)
        for factor, objective in rest:
            total = total + factor * objective.values(s, r)
        return total

    def __repr__(self) -> str:
        return " + ".join(f"{factor:g} * {objective!r}" for factor, objective in self.terms)


def _why(b: int, values: Tensor, s: Structure, r: Any) -> str:
    """What is wrong with example b, whose value is not finite."""
    with torch.no_grad():
        if s.max()[b] == -torch.inf:
            return f"structure: example {b} has no output: every score is -inf"
        if s.given(r).max()[b] == -torch.inf:
            return (
                f"reference: no output of example {b} agrees with its reference: a label, a transition or a length is "
                'forbidden; impossible="skip" leaves such examples out'
            )
        return f"objective: example {b} has the value {float(values[b])}: some output is outside the loss"


class NegativeLogLikelihood(Objective, name="nll"):
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


class SoftmaxMargin(Objective, name="softmax-margin"):
    r"""Cortes 2018, eq. (1): :math:`\log \sum_y \exp(L(y, r) + s(y) - s(r))`, an upper bound of the loss.

    The gradient of its first term is Cortes' :math:`Q_w(z, s)`, `s.augment(L, r).marginals()`.

    Example:
        >>> import torch, structloss as sl
        >>> sl.SoftmaxMargin(sl.Hamming())(sl.Chain(torch.zeros(1, 1, 2)), torch.tensor([[0]]))
        tensor(1.3133)
    """

    def __init__(
        self, loss: Loss, scale: float = 1.0, reduction: Reduction = "mean", impossible: Impossible = "error"
    ) -> None:
        super().__init__(reduction, impossible)
        check_scale(scale)
        self.loss, self.scale = _loss(loss), scale

    def values(self, s: Structure, r: Any) -> Tensor:
        gold = s.given(r).log_partition()
        return s.augment(self.loss, r, self.scale).log_partition() - gold


class Perceptron(Objective, name="perceptron"):
    r"""The structured perceptron, :math:`\max_y s(y) - s(r)` (the lecture; McAllester 2010, eq. 4).

    Example:
        >>> import torch, structloss as sl
        >>> sl.Perceptron()(sl.Chain(torch.tensor([[[1., 3.]]])), torch.tensor([[0]]))
        tensor(2.)
    """

    def values(self, s: Structure, r: Any) -> Tensor:
        return s.max() - s.given(r).max()


class Hinge(Objective, name="hinge"):
    r"""The margin-rescaled structural SVM, :math:`\max_y [L(y, r) + s(y)] - s(r)` (McAllester 2010, eq. 5).

    Example:
        >>> import torch, structloss as sl
        >>> sl.Hinge(sl.Hamming())(sl.Chain(torch.tensor([[[1., 3.]]])), torch.tensor([[0]]))
        tensor(3.)
    """

    def __init__(
        self, loss: Loss, scale: float = 1.0, reduction: Reduction = "mean", impossible: Impossible = "error"
    ) -> None:
        super().__init__(reduction, impossible)
        check_scale(scale)
        self.loss, self.scale = _loss(loss), scale

    def values(self, s: Structure, r: Any) -> Tensor:
        return s.augment(self.loss, r, self.scale).max() - s.given(r).max()


class SlackHinge(Objective, name="slack-hinge"):
    r"""The slack-rescaled structural SVM, :math:`\max_y L(y, r) (1 + s(y) - s(r))` (Tsochantaridis et al. 2005).

    Found exactly: among the outputs of one loss value the best is the one with the highest score (the lowest, where the
    loss is negative, as Smith-Waterman's is).

    Example:
        >>> import torch, structloss as sl
        >>> sl.SlackHinge(sl.Hamming())(sl.Chain(torch.tensor([[[1., 3.]]])), torch.tensor([[0]]))
        tensor(3.)
    """

    def __init__(self, loss: Loss, reduction: Reduction = "mean", impossible: Impossible = "error") -> None:
        super().__init__(reduction, impossible)
        self.loss = _loss(loss)

    def values(self, s: Structure, r: Any) -> Tensor:
        strata, gold = s.strata(self.loss, r), s.given(r).max()
        with torch.no_grad():
            if (strata.losses < 0).any():
                low = s.strata(self.loss, r, lowest=True).outputs
                negative = (strata.losses < 0).reshape(*strata.losses.shape, *(1,) * (low.dim() - 2))
                strata = strata._replace(outputs=torch.where(negative, low, strata.outputs))
            slack = 1 + s.score(strata.outputs) - gold  # (V, B)
            best = torch.where(strata.exists, strata.losses * slack, -math.inf)
            first = (best == best.amax(0)).int().argmax(0)  # of several, the one of least loss
        batch = torch.arange(len(first), device=first.device)
        value = strata.losses[first, batch] * (1 + s.score(strata.outputs[first, batch]) - gold)
        return torch.where(strata.exists.any(0), value, -math.inf)


class DirectLoss(Objective, name="direct"):
    r"""McAllester 2010: the loss of the best output itself, through the difference of two inferred outputs.

    .. math:: \text{toward: } \tfrac1\epsilon [\max_y s(y) - \max_y (s(y) - \epsilon L(y, r))] \qquad
              \text{away: } \tfrac1\epsilon [\max_y (s(y) + \epsilon L(y, r)) - \max_y s(y)]

    Its gradient is the update (8), :math:`(\phi(y_w) - \phi(y_{direct})) / \epsilon`, exactly.

    Args:
        loss: L.
        epsilon: a number, or a schedule: a function of the training step t = 1, 2, ..., such as
            `lambda t: t**-0.5` (McAllester 2010, section 7). A step is a call in training mode; the count is a buffer,
            `step`, saved with the model.
        toward: toward a better output, or away from a worse one.

    Example:
        >>> import torch, structloss as sl
        >>> sl.DirectLoss(sl.Hamming(), epsilon=4.)(sl.Chain(torch.tensor([[[1., 3.]]])), torch.tensor([[0]]))
        tensor(0.5000)
    """

    step: Tensor

    def __init__(
        self,
        loss: Loss,
        epsilon: float | Callable[[int], float] = 1.0,
        toward: bool = True,
        reduction: Reduction = "mean",
        impossible: Impossible = "error",
    ) -> None:
        super().__init__(reduction, impossible)
        self.loss, self.toward = _loss(loss), toward
        self.epsilon = epsilon if callable(epsilon) else _positive(epsilon, "epsilon")
        if callable(epsilon):
            self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def values(self, s: Structure, r: Any) -> Tensor:
        epsilon = self.epsilon
        if callable(epsilon):
            self.step += int(self.training and not compiled.repeats())
            epsilon = _positive(float(epsilon(max(1, int(self.step)))), "epsilon")
        if self.toward:
            return (s.max() - s.augment(self.loss, r, -epsilon).max()) / epsilon
        return (s.augment(self.loss, r, epsilon).max() - s.max()) / epsilon


class Risk(Objective, name="risk"):
    r"""Minimum risk: the expected loss :math:`E[L(y, r)]`, exactly.

    y is drawn with probability :math:`\exp(s(y) / \text{temperature}) / Z`.

    Args:
        loss: L.
        temperature: of the distribution that y is drawn from.
        tolerance: how far a value may be from the exact one, for `EditDistance` and `WordErrors` on CTC, where it costs
            little more than the CTC loss, on chains and on lattices. Each value of the last call is within
            `error_bound` (B,) of the exact one, and each component of its gradient within error_bound / temperature;
            with a window the bound is one-sided, and none of the gradient: see `CTC.certified`. 0 is exact.

    Example:
        >>> import torch, structloss as sl
        >>> sl.Risk(sl.Hamming())(sl.Chain(torch.zeros(1, 3, 2)), torch.tensor([[0, 1, 1]]))
        tensor(1.5000)
    """

    def __init__(
        self,
        loss: Loss,
        reduction: Reduction = "mean",
        impossible: Impossible = "error",
        temperature: float = 1.0,
        tolerance: float = 0.0,
    ) -> None:
        super().__init__(reduction, impossible)
        self.loss, self.temperature = _loss(loss), _positive(temperature, "temperature")
        self.tolerance = check_tolerance(tolerance)
        self.error_bound: Tensor | None = None

    def values(self, s: Structure, r: Any) -> Tensor:
        s = s if self.temperature == 1 else s.tempered(self.temperature)
        if self.tolerance == 0:
            return s.expected(self.loss, r)
        found = s.certified(self.loss, r, self.tolerance)
        self.error_bound = found.error_bound
        return found.value


class RewardAugmented(Objective, name="reward"):
    r"""Reward-augmented maximum likelihood (Norouzi et al. 2016), exactly, without sampling.

    .. math:: \log Z - E_{y \sim \exp(-L(y, r) / \text{temperature})}[s(y)]

    Example:
        >>> import torch, structloss as sl
        >>> sl.RewardAugmented(sl.Hamming())(sl.Chain(torch.zeros(1, 3, 2)), torch.tensor([[0, 1, 1]]))
        tensor(2.0794)
    """

    def __init__(
        self, loss: Loss, temperature: float = 1.0, reduction: Reduction = "mean", impossible: Impossible = "error"
    ) -> None:
        super().__init__(reduction, impossible)
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
