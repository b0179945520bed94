"""A structure costs a page: one with a sum and a maximum only, and what the template makes of it.

Outputs are the dependency trees of n words, heads (B, n), 0 for the root. The sum is a determinant (the matrix-tree
theorem), the maximum is looked for among all trees: both right, neither fast.
"""

import itertools
from typing import Any, Self

import pytest
import torch
from torch import Tensor

import oracle
import structloss as sl
from structloss.losses.references import Positions, as_aligned
from structloss.structures.base import Found
from structloss.structures.checks import check_over


def trees(n: int) -> list[tuple[int, ...]]:
    """All heads (n,) under which every word reaches the root."""

    def reaches(heads: tuple[int, ...], word: int) -> bool:
        for _ in range(n):
            word = heads[word] - 1
            if word < 0:
                return True
        return False

    return [y for y in itertools.product(range(n + 1), repeat=n) if all(reaches(y, word) for word in range(n))]


class Trees(sl.Structure):
    """Scores (B, n, n + 1): that word d hangs on h."""

    def __init__(self, scores: Tensor) -> None:
        self.scores = scores
        self._positions = Positions(torch.full((len(scores),), scores.shape[1]), scores.shape[1])

    @property
    def _batch(self) -> int:
        return len(self.scores)

    @property
    def _potentials(self) -> tuple[Tensor, ...]:
        return (self.scores,)

    def _with_potentials(self, potentials: tuple[Tensor, ...]) -> Self:
        return type(self)(*potentials)

    def _choices(self, y: Tensor, name: str) -> Tensor:
        return y

    def _score(self, choices: Tensor) -> Tensor:
        return self.scores.expand(len(choices), -1, -1, -1).gather(3, choices[..., None]).sum((2, 3))

    def _log_partition(self) -> Tensor:
        weights = self.scores.exp()
        laplacian = torch.diag_embed(weights.sum(2)) - weights[:, :, 1:]
        return torch.linalg.slogdet(laplacian).logabsdet

    def _best(self, k: int) -> Found:
        if k > 1:
            raise NotImplementedError("topk: Trees has one best tree, and no search for the second")
        every = torch.tensor(trees(self.scores.shape[1]))
        values = self._score(every[:, None].expand(-1, self._batch, -1))
        return Found(every[values.argmax(0)][None], values.amax(0).isfinite()[None])

    def _strings(self, y: Tensor) -> list[list[int]]:
        return y.tolist()

    def _costs(self, loss: sl.Loss, reference: Any) -> Tensor:
        check_over(loss, "labels", self)
        heads = self.scores.shape[2]
        return loss.costs_of(as_aligned(reference, self._positions, heads), self._positions.lengths, heads, self.dtype)

    def augment(self, loss: sl.Loss, reference: Any, scale: float = 1.0) -> Self:
        return type(self)(self.scores + scale * self._costs(loss, reference))

    def given(self, reference: Any) -> Self:
        return type(self)(self.scores.masked_fill(self._costs(sl.Hamming(), reference) > 0, -torch.inf))


@pytest.mark.parametrize("partial", [False, True])
def test_every_objective_but_one(partial: bool) -> None:
    scores = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    every = torch.tensor(trees(3))
    assert len(every) == 4**2
    reference = torch.tensor([[0, 1, 1], [2, 0, 2]])
    if partial:
        reference[0, 1] = -100
    own = [scores[b].gather(1, every.T).sum(0) for b in range(2)]
    losses = [((every != r) & (r >= 0)).sum(1).double() for r in reference]
    agrees = [((every == r) | (r < 0)).all(1) for r in reference]
    for name, (objective, formula) in oracle.objectives(sl.Hamming()).items():
        if name == "SlackHinge":
            continue
        wanted = torch.stack([formula(*x) for x in zip(own, losses, agrees, strict=True)])
        found = objective(Trees(scores), reference)
        torch.testing.assert_close(found, wanted)
        gradients = [torch.autograd.grad(x.sum(), scores, retain_graph=True)[0] for x in (found, wanted)]
        torch.testing.assert_close(*gradients, msg=name)


def test_what_follows_by_differentiation() -> None:
    scores = torch.randn(1, 3, 4, dtype=torch.float64)
    every = torch.tensor(trees(3))
    own = scores[0].gather(1, every.T).sum(0)
    p = oracle.probabilities(own)
    wanted = torch.stack([(p[:, None] * (every == head)).sum(0) for head in range(4)], 1)
    torch.testing.assert_close(Trees(scores).marginals()[0], wanted)
    torch.testing.assert_close(Trees(scores).entropy()[0], oracle.entropy(own))
    other = torch.randn_like(scores)
    torch.testing.assert_close(Trees(scores).kl(Trees(other))[0], oracle.kl(own, other[0].gather(1, every.T).sum(0)))
    assert len(Trees(scores)) == 1
    assert Trees(scores).dtype == torch.float64


def test_what_it_cannot_do_is_one_sentence() -> None:
    s, reference = Trees(torch.zeros(1, 3, 4)), torch.tensor([[0, 1, 1]])
    for sentence, call in {
        "sample: Trees cannot draw exactly": lambda: s.sample(2),
        "topk: Trees has one best tree": lambda: s.topk(2),
        "strata: Trees cannot tell its outputs apart by their loss": lambda: sl.SlackHinge(sl.Hamming())(s, reference),
        "a Trees cannot be taken apart": lambda: s[0],
    }.items():
        with pytest.raises(NotImplementedError, match=sentence):
            call()
