"""G1 and G2: which of eleven sequences is the closest to the native? The homolog and ten decoys; exact, uncapped.

A candidate is scored by local alignments with the native: a weight for every pair of letters and one for gaps, which
are what is trained. The answer is the candidate of the highest score, of the best alignment or of the sum of all.
"""

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from structloss.objectives import DirectLoss, Hinge, NegativeLogLikelihood, Objective, Risk, SoftmaxMargin
from structloss.reproduce.genome.sequences import Examples, Joachims, closeness
from structloss.reproduce.genome.training import (
    CROSS_ENTROPY,
    DIRECT,
    HINGE,
    RISK,
    SOFTMAX_MARGIN,
    STRENGTHS,
    Listed,
    Outcome,
    descend,
    minimum,
)
from structloss.structures.chain.chain import Chain
from structloss.structures.pairs.alignment import Alignment

TOLD_CLOSEST = "cross-entropy, told the closest"
HOMOLOG, UNTRAINED, CLOSEST = "always the homolog", "Smith-Waterman itself", "the closest of them"
EPSILONS = (0.03, 0.1, 0.3, 1.0)
LEARNED = (CROSS_ENTROPY, TOLD_CLOSEST, SOFTMAX_MARGIN, RISK, HINGE, DIRECT)


@dataclass(frozen=True)
class Choosing:
    """One experiment: from where, how many to train, choose and test on, and what is trained how long."""

    source: Joachims = field(default_factory=Joachims)
    train: int = 40
    alignments: Literal["best", "all"] = "best"
    methods: tuple[str, ...] = (CROSS_ENTROPY, TOLD_CLOSEST, SOFTMAX_MARGIN)
    strengths: tuple[float, ...] = STRENGTHS
    choose: int = 200
    test: int = 500
    steps: int = 50
    rate: float = 0.1

    def __str__(self) -> str:
        alignments = "all" if self.alignments == "all" else "the best"
        return f"{self.source}; {self.train} to train on; a candidate scores by {alignments} of its alignments"

    def fold(self, seed: int, number: int) -> dict[str, Outcome]:
        """Train under each objective, choose the strength or epsilon, and test. The same numbers: the same examples."""
        generator = np.random.default_rng((seed, number))
        test, choose, train = (Problems(self.source.sample(n, generator)) for n in (self.test, self.choose, self.train))
        found = {
            HOMOLOG: test.outcome(torch.zeros_like(test.closest)),
            CLOSEST: test.outcome(test.closest),
        }
        likely: Aligner | None = None
        for method in self.methods:
            best, model, kept = -np.inf, Aligner(self.source.letters, self.alignments), 0.0
            for chosen in EPSILONS if method == DIRECT else self.strengths:
                own = self._trained(method, chosen, train, likely)
                score = choose.outcome(own.answers(choose)).score
                if score > best:
                    best, model, kept = score, own, chosen
            likely = model if method == CROSS_ENTROPY else likely
            found[method] = test.outcome(model.answers(test))._replace(chosen=kept)
        return found

    def _trained(self, method: str, chosen: float, train: "Problems", likely: "Aligner | None") -> "Aligner":
        """Direct loss goes on from cross-entropy's weights, and has no penalty: the loss does not see their length."""
        model, loss = Aligner(self.source.letters, self.alignments), Listed(-train.scores)
        objectives: dict[str, Objective] = {
            SOFTMAX_MARGIN: SoftmaxMargin(loss), RISK: Risk(loss), HINGE: Hinge(loss),
            DIRECT: DirectLoss(loss, chosen if method == DIRECT else 1.0),
        }  # fmt: skip
        objective = objectives.get(method, NegativeLogLikelihood())
        reference = (train.closest if method == TOLD_CLOSEST else torch.zeros_like(train.closest))[:, None]
        strength, rate = chosen, self.rate
        if method == DIRECT:
            assert likely is not None
            model.load_state_dict(likely.state_dict())
            strength, rate = 0.0, self.rate / 3
        train_by = minimum if self.alignments == "all" else partial(descend, rate=rate)
        train_by(model, lambda: objective(model(train), reference), strength, self.steps)
        return model


class Problems:
    """Natives and their candidates, and how close these are."""

    def __init__(self, examples: Examples) -> None:
        self.native, self.candidates = (torch.from_numpy(x) for x in examples)
        self.scores = torch.from_numpy(closeness(*examples))  # (n, k)

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """Each native beside each of its candidates, (n k, l) both."""
        return self.native[:, None].expand(self.candidates.shape).flatten(0, 1), self.candidates.flatten(0, 1)

    @cached_property
    def closest(self) -> Tensor:
        """The number of the closest candidate, (n,); of several the first."""
        return self.scores.argmax(1)

    def outcome(self, answers: Tensor) -> Outcome:
        """What answers (n,) are worth."""
        score = self.scores.gather(1, answers[:, None])[:, 0]
        best = score == self.scores.amax(1)
        return Outcome(*(x.double().mean().item() for x in (score, answers == 0, best)))


class Aligner(nn.Module):
    """Scores of candidates by local alignments, as a chain of one position whose labels are the candidates."""

    def __init__(self, letters: int, alignments: Literal["best", "all"]) -> None:
        super().__init__()
        self.alignments = alignments
        # At 0 all alignments are alike: letters like themselves, a little, so that there is a best one.
        self.pairs = nn.Parameter(0.1 * torch.eye(letters, dtype=torch.float64))
        self.gap = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, problems: Problems) -> Chain:
        native, others = problems.pairs
        if self.alignments == "all":
            scores = self._aligned(native, others).log_partition()
        else:  # what the best alignments count is small, and so is the way back to the weights
            with torch.no_grad():
                partners = self._aligned(native, others).argmax()
            scores = self._score(native, others, partners)
        return Chain(scores.reshape(len(problems.native), 1, -1))

    def _aligned(self, native: Tensor, others: Tensor) -> Alignment:
        return Alignment(self.pairs[native[:, :, None], others[:, None]], self.gap, mode="local")

    def _score(self, native: Tensor, others: Tensor, partners: Tensor) -> Tensor:
        """Of local alignments (n, l): the weights of their pairs, and that of gaps for each letter left out between."""
        paired = partners >= 0
        weights = torch.where(paired, self.pairs[native, others.gather(1, partners.clamp(min=0))], 0.0)
        inside = (paired.cumsum(1) > 0) & (paired.flip(1).cumsum(1).flip(1) > 0)
        first = torch.where(paired, partners, partners.shape[1]).amin(1)
        spans = inside.sum(1) + torch.where(inside.any(1), partners.amax(1) - first + 1, 0)
        return weights.sum(1) + self.gap * (spans - 2 * paired.sum(1))

    def answers(self, problems: Problems) -> Tensor:
        """The candidate of the highest score, (n,)."""
        with torch.no_grad():
            found: Tensor = self(problems).argmax()[:, 0]
        return found
