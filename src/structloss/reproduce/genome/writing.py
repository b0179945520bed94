"""G3 to G5: the answer is any string of fifty letters, of which the model sees a homolog and has few features.

The exact machine of fifty letters is too large, so that the loss is seen without a cap on lists only: strings that the
model draws, or its best ones, renewed as it learns. Beside these the capped loss, exactly.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from structloss.losses import Loss, SmithWaterman
from structloss.objectives import NegativeLogLikelihood, Objective, Risk, SoftmaxMargin
from structloss.reproduce.genome.sequences import Examples, Joachims, Markov
from structloss.reproduce.genome.training import CROSS_ENTROPY, RISK, SOFTMAX_MARGIN, Listed, Outcome, descend, minimum
from structloss.structures.chain.chain import Chain

COPY = "copy the homolog"
NBEST, CAPPED = "softmax-margin, best strings", "softmax-margin, capped"
Objectives = Callable[[Loss], Objective]


@dataclass(frozen=True)
class Writing:
    """One experiment; `features` is what a letter has to do with the homolog's: a weight for each pair, or one weight.

    The other features are the bigrams of the answer.
    """

    source: Joachims | Markov = field(default_factory=Joachims)
    train: int = 20
    features: Literal["pairs", "copies"] = "pairs"
    cap: float = 6.0
    listed: int = 100  # strings to an example
    renewed: int = 10  # steps between lists
    strengths: tuple[float, ...] = (0.003, 0.03, 0.3)
    choose: int = 100
    test: int = 300
    steps: int = 60
    rate: float = 0.1
    exact: bool = False  # short strings: the loss itself in place of lists and cap

    def __str__(self) -> str:
        features = "a weight for each pair of letters" if self.features == "pairs" else "one weight for copies"
        return f"{self.source}; {self.train} to train on; bigrams and {features}"

    def fold(self, seed: int, number: int) -> dict[str, Outcome]:
        """Train under each objective, choose the strength, and test. The same numbers: the same examples."""
        generator, draws = np.random.default_rng((seed, number)), torch.Generator().manual_seed(number)
        test, choose, train = (Strings(self.source.sample(n, generator)) for n in (self.test, self.choose, self.train))
        loss, capped = SmithWaterman(), SmithWaterman(cap=self.cap)
        whole: dict[str, Objective] = {CROSS_ENTROPY: NegativeLogLikelihood()}
        lists: dict[str, tuple[Objectives, Literal["best", "drawn"]]] = {}
        if self.exact:
            whole |= {SOFTMAX_MARGIN: SoftmaxMargin(loss), RISK: Risk(loss), CAPPED: SoftmaxMargin(capped)}
        else:
            whole[CAPPED] = SoftmaxMargin(capped)
            lists = {SOFTMAX_MARGIN: (SoftmaxMargin, "drawn"), RISK: (Risk, "drawn"), NBEST: (SoftmaxMargin, "best")}
        found = {COPY: test.outcome(test.homolog)}
        for method in (*whole, *lists):
            best, model, kept = -math.inf, Writer(self.source.letters, self.features), 0.0
            for strength in self.strengths:
                own = Writer(self.source.letters, self.features)
                if method in whole:
                    minimum(own, partial(_whole, own, train, whole[method]), strength, self.steps)
                else:
                    value = Renewed(own, train, self, *lists[method], draws)
                    descend(own, value, strength, self.steps, self.rate)
                score = choose.outcome(own.answers(choose)).score
                if score > best:
                    best, model, kept = score, own, strength
            outcome = test.outcome(model.answers(test))
            found[method] = outcome._replace(beyond=self._beyond(model, test, draws), chosen=kept)
        return found

    def _beyond(self, model: "Writer", test: "Strings", draws: torch.Generator) -> float:
        """The share of the model's mass that a cap above perfect does not tell apart, from ten draws an example."""
        with torch.no_grad():
            losses = SmithWaterman()(model(test).sample(10, draws), test.native)
            perfect = SmithWaterman()(test.native, test.native)
        return (losses >= perfect + self.cap).double().mean().item()


def _whole(model: "Writer", strings: "Strings", objective: Objective) -> Tensor:
    found: Tensor = objective(model(strings), strings.native)
    return found


class Strings:
    """Natives and their homologs, (n, l) both."""

    def __init__(self, examples: Examples) -> None:
        self.native, self.homolog = (
            torch.from_numpy(examples.native),
            torch.from_numpy(examples.candidates[:, 0].copy()),
        )

    def outcome(self, answers: Tensor) -> Outcome:
        """What answers (n, l) are worth."""
        score = -SmithWaterman()(answers, self.native).double().mean().item()
        return Outcome(score, (answers == self.native).double().mean().item())


class Writer(nn.Module):
    """A chain over the letters of the answer: its bigrams, and what each letter has to do with the homolog's."""

    def __init__(self, letters: int, features: Literal["pairs", "copies"]) -> None:
        super().__init__()
        self.letters = letters
        self.own = nn.Parameter(torch.zeros((letters, letters) if features == "pairs" else ()))
        self.bigrams = nn.Parameter(torch.zeros(letters, letters))

    def forward(self, strings: Strings) -> Chain:
        table = self.own if self.own.dim() else self.own * torch.eye(self.letters)
        return Chain.from_emissions(table[strings.homolog], self.bigrams)

    def answers(self, strings: Strings) -> Tensor:
        """The best strings, (n, l)."""
        with torch.no_grad():
            found: Tensor = self(strings).argmax()
        return found


class Renewed:
    """An objective over the reference and a list of other strings, as a chain of one position that numbers them.

    The best strings score what the model says. Strings that were drawn from an earlier model p stand for all: each of
    k scores :math:`s(y) - \\log p(y) - \\log k`, so that the list's sum is that over all strings, in expectation.
    """

    def __init__(
        self, model: Writer, strings: Strings, setting: Writing, objective: Objectives,
        kind: Literal["best", "drawn"], draws: torch.Generator,
    ) -> None:  # fmt: skip
        self.model, self.strings, self.setting, self.draws = model, strings, setting, draws
        self.make, self.kind, self.step = objective, kind, 0

    def __call__(self) -> Tensor:
        chain, native = self.model(self.strings), self.strings.native
        if self.step % self.setting.renewed == 0:
            self._renew(chain)
        self.step += 1
        others = torch.where(self.known, -math.inf, chain.score(self.listed) - self.proposed)  # (k, B)
        entries = torch.cat([chain.score(native)[None], others]).T
        found: Tensor = self.objective(Chain(entries[:, None]), torch.zeros(len(native), 1, dtype=torch.int64))
        return found

    @torch.no_grad()
    def _renew(self, chain: Chain) -> None:
        native, k = self.strings.native, self.setting.listed
        if self.kind == "best":
            self.listed, self.proposed = chain.topk(k)[1], torch.zeros(())
        else:
            self.listed = chain.sample(k, self.draws)
            self.proposed = chain.log_prob(self.listed) + math.log(k)
        self.known = (self.listed == native).all(2)
        loss = SmithWaterman()
        costs = torch.cat([loss(native, native)[None], loss(self.listed, native)]).T
        self.objective = self.make(Listed(costs))
