"""What every structure offers, written once: a batch of sets of outputs y, each y with a differentiable score.

A structure says how its outputs and the *choices* that its engine walks correspond, and hands the engine its scores.
Axes, checks, what is differentiated and what an empty set is worth are the same for all, and stand here.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from structloss.losses import Loss
from structloss.structures.certified import Certified
from structloss.structures.checks import as_outputs, check_count
from structloss.structures.tensors import expectation_of, times

W = TypeVar("W", contravariant=True)


class Found(NamedTuple):
    """What a search or a draw gives: choices (n, B, ...), and whether they are any, (n, B) or (B,)."""

    choices: Tensor
    exists: Tensor

    @classmethod
    def of(cls, rows: Sequence[Sequence[Sequence[int]]], k: int, width: int, device: torch.device) -> Self:
        """(k, B, width) and (k, B), of each example's choices, best first; -1 behind their ends."""
        choices, exists = torch.full((k, len(rows), width), -1), torch.zeros(k, len(rows), dtype=torch.bool)
        for b, own in enumerate(rows):
            exists[: len(own), b] = True
            for i, row in enumerate(own):
                choices[i, b, : len(row)] = torch.tensor(row, dtype=torch.int64)
        return cls(choices.to(device), exists.to(device))


class Engine(Protocol[W]):
    """What computes on the weighted sets `w` of a batch: compiled kernels, or tensor operations. Values are (B,)."""

    def log_partition(self, w: W, /) -> Tensor:
        """log Z, differentiable in the potentials."""

    def best(self, w: W, k: int, /) -> Found:
        """The k best, best first, of equals the lexicographically smallest first."""

    def draw(self, w: W, n: int, generator: torch.Generator | None, /) -> Found:
        """n of them, with probability exp(score) / Z."""


class NativeEngine(Engine[W], Protocol[W]):
    """Compiled kernels."""

    def expectation(self, p: W, f: W, /) -> Tensor:
        """E[score under f] (B,), drawn under p."""


class Strata(NamedTuple):
    """The best output at each value that a loss can take. V is the most values of any example."""

    losses: Tensor  # (V, B), ascending
    outputs: Tensor  # (V, B, ...)
    exists: Tensor  # (V, B), whether some output has this loss


class Structure(ABC):
    """A batch of sets of outputs with scores. Values are tensors (B,), differentiable in the potentials.

    Two operations are closed over structures, and every objective is made of them: `augment` and `given`.
    Scores of -inf forbid an output; an empty set has log_partition and max -inf, with zero gradient. What there are
    several of comes first: `sample(n)`, `topk(k)`, `score` and `decode` speak (n, B, ...).

    A new structure writes what is marked abstract here. `marginals`, `expectation` (and so `entropy`, `kl` and
    `expected`) follow by differentiation where it gives its `_potentials`; `sample`, `topk` and `strata` are errors
    with a sentence until it offers them.
    """

    _output_axes: ClassVar[int] = 1  # of one output
    _only_native: ClassVar[frozenset[str]] = frozenset()  # operations that are so whatever engine is asked for
    _on_triton: frozenset[str] = frozenset()  # operations that the Triton engine has kernels for
    _made: ClassVar[tuple[str, ...]] = ()  # attributes that are made of the others when they are first asked for
    _only: Tensor | None = None  # the choices (B, ...) of the one output that is left, where a reference says all of it

    # --- What a structure writes -------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _potentials(self) -> tuple[Tensor, ...]:
        """What is differentiated: the scores of its parts first."""

    @abstractmethod
    def _with_potentials(self, potentials: tuple[Tensor, ...]) -> Self:
        """The same sets with other scores."""

    @property
    @abstractmethod
    def _batch(self) -> int:
        """B."""

    @abstractmethod
    def _choices(self, y: Tensor, name: str) -> Tensor:
        """What engines walk, (n, B, ...), of outputs (n, B, ...); an error for what is no output."""

    @abstractmethod
    def _score(self, choices: Tensor) -> Tensor:
        """The scores (n, B) of choices (n, B, ...), differentiable."""

    @abstractmethod
    def _best(self, k: int) -> Found:
        """The k best choices (k, B, ...), best first, and whether there are so many, (k, B)."""

    @abstractmethod
    def _log_partition(self) -> Tensor:
        """log Z, (B,)."""

    @abstractmethod
    def augment(self, loss: Loss, reference: Any, scale: float = 1.0) -> "Structure":
        """The same outputs, y scored by score(y) + scale * loss(y, reference). It is a structure again."""

    @abstractmethod
    def given(self, reference: Any) -> "Structure":
        """The outputs that agree with the reference, scored as they were."""

    def _outputs(self, choices: Tensor, exists: Tensor) -> Tensor:
        """Outputs (n, B, ...) of choices, -1 where there are none: exists (n, B). Unless it says otherwise the same."""
        return torch.where(exists[:, :, None], choices, -1)

    def _strings(self, y: Tensor) -> list[list[int]]:
        """What outputs (B, ...) write: unless it says otherwise, their labels."""
        return [[label for label in row if label >= 0] for row in y.tolist()]

    @property
    def _opaque(self) -> bool:
        """Whether its objective is one node of the graph that is being compiled: see `structures.compiled`."""
        return False

    def _draw(self, n: int, generator: torch.Generator | None) -> Found:
        """n choices (n, B, ...), and whether there is anything to draw from, (B,)."""
        raise NotImplementedError(f"sample: {type(self).__name__} cannot draw exactly, and does not pretend to")

    def _single(self) -> Tensor | None:
        """The choices (1, B, ...) of the one output that is left of each example."""
        return None if self._only is None else self._only[None]

    def _with(self, **changed: Any) -> Self:
        """The same but for some attributes."""
        structure = object.__new__(type(self))
        structure.__dict__.update(self.__dict__, **changed)
        for name in self._made:
            structure.__dict__.pop(name, None)
        return structure

    def _times(self, factor: float) -> Self:
        """The same outputs, y scored by factor * score(y); what -inf forbids stays forbidden."""
        return self._with_potentials(tuple(times(x, factor) for x in self._potentials))

    def _check_like(self, other: Self) -> None:
        """Raise unless both are about the same outputs."""
        if type(other) is not type(self):
            raise TypeError(f"other: got {type(other).__name__}, but wanted a {type(self).__name__}")
        if other.dtype != self.dtype:
            raise TypeError(f"other: got {other.dtype}, but wanted {self.dtype}")
        self._check_same(other)

    def _check_same(self, other: Self) -> None:
        """Raise unless another structure of this kind and precision has the same outputs."""
        mine, theirs = ((len(s), s._sizes() or [tuple(x.shape) for x in s._potentials]) for s in (self, other))
        if mine != theirs:
            raise ValueError(f"other: got {other!r}, but wanted the sizes of {self!r}")
        for own, wanted in zip(other._lengths, self._lengths, strict=True):
            if own is not wanted and not torch.compiler.is_compiling() and (own != wanted).any():
                raise ValueError("other: got other lengths, but two structures are compared over the same outputs")

    def _marginals(self) -> Tensor:
        """The gradient of log Z in the first of the potentials; 0 where there is no output."""
        recorded = torch.is_grad_enabled() and any(x.requires_grad for x in self._potentials)
        first, *rest = (self if recorded else self.detach())._potentials
        with torch.enable_grad():
            x = first if first.requires_grad else first.detach().requires_grad_()
            value = self._with_potentials((x, *rest))._log_partition()
            total = torch.where(value > -torch.inf, value, 0).sum() + x[:0].sum()
            return torch.autograd.grad(total, x, create_graph=recorded)[0]

    def _expectation(self, other: Self) -> Tensor:
        """The derivative of log Z in the direction of other's potentials."""

        def log_partition(scores: list[Tensor]) -> Tensor:
            return self._with_potentials(tuple(scores))._log_partition()

        return expectation_of(log_partition, self._potentials, other._potentials, None, self._batch)

    def _sizes(self) -> dict[str, object]:
        """What its `repr` says of it, but for the batch; what structures share that are about the same outputs."""
        return {}

    @property
    def _lengths(self) -> tuple[Tensor, ...]:
        """What else they share, for each example, (B,)."""
        return ()

    def _examples(self, index: Tensor) -> Self:
        """Those of these numbers, as a batch of their own."""
        raise NotImplementedError(f"a {type(self).__name__} cannot be taken apart; build one of the examples you want")

    def _strata(self, loss: Loss, reference: Any) -> Strata:
        """The best choices (V, B, ...) at each value of loss(y, reference)."""
        raise NotImplementedError(
            f"strata: {type(self).__name__} cannot tell its outputs apart by their loss, so SlackHinge is not for it"
        )

    # --- What every structure has ------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many examples there are, B."""
        return self._batch

    @property
    def device(self) -> torch.device:
        """Where its scores are."""
        return self._potentials[0].device

    @property
    def dtype(self) -> torch.dtype:
        """The precision of its scores."""
        return self._potentials[0].dtype

    def detach(self) -> Self:
        """The same structure, whose scores are not differentiated."""
        return self._with_potentials(tuple(x.detach() for x in self._potentials))

    def __repr__(self) -> str:
        sizes = [f"{name}={size}" for name, size in {"batch": self._batch, **self._sizes()}.items()]
        return f"{type(self).__name__}({', '.join(sizes)}, {self.dtype}, {self.device})"

    def __getitem__(self, examples: int | slice | Tensor) -> Self:
        """Some of the examples, as a batch of their own: a number, a slice, or a tensor of numbers or booleans.

        Example:
            >>> import torch, structloss as sl
            >>> len(sl.Chain(torch.zeros(5, 3, 2))[1:3])
            2
        """
        if isinstance(examples, int):
            if not -self._batch <= examples < self._batch:
                raise IndexError(f"example {examples} of {self._batch}")
            examples = slice(examples % self._batch, examples % self._batch + 1)
        return self._examples(torch.arange(self._batch, device=self.device)[examples])

    def _several(self, y: Tensor, name: str) -> tuple[Tensor, bool]:
        """Outputs (n, B, ...) from (B, ...) or (n, B, ...), and whether there were several of each."""
        y = as_outputs(y, name, self.device)
        if y.dim() not in (self._output_axes + 1, self._output_axes + 2):
            raise ValueError(
                f"{name}: got shape {tuple(y.shape)}, but wanted an output for each example, (B, ...), or several, "
                "(n, B, ...)"
            )
        several = y.dim() == self._output_axes + 2
        return y if several else y[None], several

    def score(self, y: Tensor) -> Tensor:
        """The score (B,) of outputs y (B, ...), or (n, B) of n outputs each, y (n, B, ...).

        A row of -1, which is what `argmax()` gives where there is no output, has -inf.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Chain(torch.tensor([[[0., 2.], [1., 0.]]])).score(torch.tensor([[1, 1]]))
            tensor([2.])
        """
        outputs, several = self._several(y, "y")
        value = self._score(self._choices(outputs, "y"))
        return value if several else value[0]

    def argmax(self) -> Tensor:
        """The best output (B, ...) of each example, the lexicographically smallest where several are best; -1: none."""
        with torch.no_grad():
            found = self._best(1)
            return self._outputs(found.choices, found.exists)[0]

    def max(self) -> Tensor:
        r"""The score (B,) of the best output. Its gradient is :math:`\phi(y)`, the count of potentials `argmax()` uses.

        Example:
            >>> import torch, structloss as sl
            >>> potentials = torch.tensor([[[0., 2.], [1., 0.]]], requires_grad=True)
            >>> sl.Chain(potentials).max().sum().backward(); potentials.grad
            tensor([[[0., 1.],
                     [1., 0.]]])
        """
        choices = self._single()
        if choices is None:
            with torch.no_grad():
                choices = self._best(1).choices
        return self._score(choices)[0]  # -inf, with zero gradient, where there is no output: then every score is

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The scores (k, B) and the outputs (k, B, ...) of the k best, best first, ties in lexicographic order; exact.

        Where there are fewer than k outputs: score -inf, and -1. The scores are differentiable.

        Example:
            >>> import torch, structloss as sl
            >>> scores, outputs = sl.Chain(torch.tensor([[[0., 2.], [1., 0.]]])).topk(2)
            >>> scores[:, 0], outputs[:, 0]
            (tensor([3., 2.]), tensor([[1, 0],
                    [1, 1]]))
        """
        check_count(k, "k")
        with torch.no_grad():
            found = self._best(k)
            outputs = self._outputs(found.choices, found.exists)
        return torch.where(found.exists, self._score(found.choices), -torch.inf), outputs

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n outputs of each example, (n, B, ...), drawn with probability exp(score(y)) / Z.

        Example:
            >>> import torch, structloss as sl
            >>> chain = sl.Chain(torch.tensor([[[0., 9.], [9., 0.]]]))
            >>> chain.sample(2, torch.Generator().manual_seed(0))
            tensor([[[1, 0]],
            <BLANKLINE>
                    [[1, 0]]])
        """
        check_count(n, "n")
        with torch.no_grad():
            choices, exists = self._draw(n, generator)
        if not exists.all():
            raise ValueError(f"sample: example {int((~exists).int().argmax())} has no output: every score is -inf")
        return self._outputs(choices, exists.expand(n, -1))

    def decode(self, y: Tensor | None = None) -> list[Any]:
        """The strings of labels that outputs y (B, ...) write, by default those of `argmax()`; of (n, B, ...), n lists.

        Example:
            >>> import torch, structloss as sl
            >>> scores = torch.tensor([[[0., 2., 0.], [1., 0., 0.], [0., 0., 3.]]])
            >>> sl.Chain(scores, emits=[[], [7], [8, 9]]).decode()
            [[7, 8, 9]]
        """
        outputs, several = self._several(self.argmax() if y is None else y, "y")
        written = [self._strings(one) for one in outputs]
        return written if several else written[0]

    def log_partition(self) -> Tensor:
        r""":math:`\log Z = \log \sum_y \exp(\text{score}(y))`, (B,).

        Example:
            >>> import torch, structloss as sl
            >>> sl.Chain(torch.zeros(2, 3, 4, 4), lengths=[3, 1]).log_partition()  # log 4**3, log 4
            tensor([4.1589, 1.3863])
        """
        choices = self._single()
        return self._log_partition() if choices is None else self._score(choices).squeeze(0)

    def marginals(self) -> Tensor:
        """The probability that y has each part: the gradient of log_partition in the parts' scores.

        What its parts are, and the shape, each structure says.
        """
        return self._marginals()

    def log_prob(self, y: Tensor) -> Tensor:
        """log P(y) = score(y) - log Z, (B,) or (n, B)."""
        return self.score(y) - self.log_partition()

    def entropy(self) -> Tensor:
        """H = log Z - E[score(y)], (B,), in nats."""
        return self.log_partition() - self._expectation(self)

    def kl(self, other: Self) -> Tensor:
        """KL(self || other) = E[log P(y) - log Q(y)], y drawn from self. (B,)"""
        return other.log_partition() - self.expectation(other) - self.entropy()

    def uniform(self) -> Self:
        """The same outputs, every one with score 0 (what -inf forbids stays forbidden)."""
        return self._times(0.0).detach()

    def tempered(self, temperature: float) -> Self:
        """The same outputs, y scored by score(y) / temperature.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Chain(torch.tensor([[[0., 2.]]])).tempered(2.0).max()
            tensor([1.])
        """
        return self._times(1 / temperature)

    def expectation(self, other: Self) -> Tensor:
        """E[other.score(y)], y drawn from self with probability exp(score(y)) / Z. (B,); 0 where self has no output.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Chain(torch.zeros(1, 1, 2)).expectation(sl.Chain(torch.tensor([[[1., 3.]]])))
            tensor([2.])
        """
        self._check_like(other)
        return self._expectation(other)

    def expected(self, loss: Loss, reference: Any, tolerance: float = 0.0) -> Tensor:
        """E[loss(y, reference)], y drawn from self: the risk. (B,); inf where some y is outside the loss.

        Exactly, or with a tolerance the value of `certified`, which not every structure has.
        """
        if tolerance:
            return self.certified(loss, reference, tolerance).value
        value = self.expectation(self.uniform().augment(loss, reference))
        return torch.where(value == -torch.inf, torch.inf, value)  # augment leaves outside, by -inf, what costs inf

    def certified(self, loss: Loss, reference: Any, tolerance: float) -> Certified:
        """The risk to within a tolerance, at the price of the states that matter, and the bound that was reached."""
        raise NotImplementedError(
            f"tolerance: a {type(self).__name__} has its risk exactly; only CTC, Chain and Lattice take one"
        )

    def strata(self, loss: Loss, reference: Any, lowest: bool = False) -> Strata:
        """The best output at each value of loss(y, reference), or the one of lowest score; exact.

        With V values, cost V times that of `argmax()`; an error where that is too much.

        Example:
            >>> import torch, structloss as sl
            >>> chain = sl.Chain(torch.tensor([[[0., 2.], [1., 0.]]]))
            >>> losses, outputs, _ = chain.strata(sl.Hamming(), torch.tensor([[0, 0]]))
            >>> losses[:, 0], outputs[:, 0]
            (tensor([0., 1., 2.]), tensor([[0, 0],
                    [1, 0],
                    [1, 1]]))
        """
        with torch.no_grad():
            found = (self.detach()._times(-1.0) if lowest else self)._strata(loss, reference)
            return found._replace(outputs=self._outputs(found.outputs, found.exists))
