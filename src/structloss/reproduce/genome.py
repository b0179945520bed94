"""Cortes 2018, section 6: artificial genome sequences, trained with cross-entropy and with Smith-Waterman.

The paper says: the data replicate Joachims et al. (2006); each example has native, homolog and decoy sequences of
length 50; the task is to predict a sequence that is the closest to native in terms of the Smith-Waterman alignment
score; cross-entropy reaches 42.73, the objective (1) with the Smith-Waterman loss 44.65, with a standard deviation of
0.35 over 10 random folds. It leaves open, and here is chosen:

- the alphabet: 4 letters, as genomes have;
- native: a Markov chain of order 1, so that there is more to learn than to copy. Its transitions are drawn from a
  Dirichlet distribution of parameter `concentration`;
- homolog: the native, each letter replaced by another one with probability `substitution`, lost with probability
  `indel`, and preceded by a random letter with probability `indel`; then cut or filled up at random to 50 letters;
- decoy: one more sequence of the same chain, which has nothing to do with the native;
- input and output: x is homolog and decoy, in this order; y is any sequence of 50 letters, the answer the best one;
- features: which letters homolog and decoy have up to `REACH` places to either side, the bigram of y, and whether a
  bigram of y stands in homolog or decoy at such an offset (Markovian of order 2, as in the paper's first experiment);
- the score: minus the loss of Figure 3(b), a match 2 and all else -1, so that 100 is perfect;
- the loss in training: the same, capped at `cap` above perfect, because the exact machine of 50 letters is too large;
- accuracy: the part of positions with the right letter;
- folds: each has a source, and examples for training, choosing and testing, of its own;
- training: cross-entropy and softmax-margin are smooth and convex, and L-BFGS finds their minimum, so that no step
  size has a part in their difference. The others start from cross-entropy's weights, and Adam takes steps that fall
  to 0 on all examples at once. The strength of regularisation is chosen on the examples for choosing, by the
  Smith-Waterman score.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import one_hot

from structloss.losses import SmithWaterman
from structloss.objectives import DirectLoss, Hinge, NegativeLogLikelihood, Objective, Risk, SoftmaxMargin
from structloss.structures.chain.chain import Chain

Letters = NDArray[np.int64]

ALPHABET, LENGTH, REACH = 4, 50, 2
CROSS_ENTROPY, SOFTMAX_MARGIN, HINGE, RISK, DIRECT = "cross-entropy", "softmax-margin", "hinge", "risk", "direct loss"
COPY, COPY_DECOY = "copy the homolog", "copy the decoy"  # nothing is trained
SMOOTH = (CROSS_ENTROPY, SOFTMAX_MARGIN)  # and convex
STRENGTHS = (0.03, 0.3)  # of |w|^2 / 2
PAPER = {CROSS_ENTROPY: 42.73, SOFTMAX_MARGIN: 44.65}


@dataclass(frozen=True)
class Setting:
    """The choices that are varied."""

    substitution: float = 0.05
    indel: float = 0.005
    concentration: float = 0.2
    train: int = 40
    cap: float = 10.0

    def __str__(self) -> str:
        noise = f"substitution {self.substitution:g}, indel {self.indel:g}, concentration {self.concentration:g}"
        return f"{noise}; {self.train} to train on; cap {self.cap:g}"


def others(main: Setting) -> list[Setting]:
    """Settings that differ from the main one in one choice each: noise, examples, source, cap."""
    return [
        replace(main, indel=0.0),
        replace(main, substitution=0.1),
        replace(main, concentration=0.5),
        replace(main, train=10),
        replace(main, cap=6.0),
        replace(main, cap=12.0),
    ]


@dataclass(frozen=True)
class Effort:
    """How many examples there are to choose and to test on, and how long training takes."""

    choose: int = 100
    test: int = 300
    iterations: int = 60  # of L-BFGS; it has mostly ended before
    steps: int = 60  # of Adam
    rate: float = 0.03
    strengths: Sequence[float] = STRENGTHS

    @classmethod
    def quick(cls) -> "Effort":
        """Enough to see that all of it runs."""
        return cls(choose=20, test=40, iterations=10, steps=10, strengths=(0.1,))


class Examples(NamedTuple):
    """Sequences (n, 50) of each kind."""

    native: Letters
    homolog: Letters
    decoy: Letters


class Inputs(NamedTuple):
    """What the model sees of homolog and decoy, and the native (n, 50)."""

    letters: Tensor  # (n, 50, offsets * (K + 1)), one-hot, the last letter of an offset: beyond an end
    pairs: Tensor  # (n, 50, K * K, offsets): whether the bigram ends there
    native: Tensor


class Outcome(NamedTuple):
    """What one method gave on the test examples of one fold, and the strength of regularisation that was chosen."""

    score: float
    accuracy: float
    strength: float | None = None


class Paired(NamedTuple):
    """The mean of differences over folds, its standard error, and in how many folds it is above 0."""

    mean: float
    error: float
    above: int

    @property
    def sign(self) -> int:
        """1 or -1 where the mean is more than two standard errors from 0, else 0."""
        return 0 if abs(self.mean) <= 2 * self.error else int(math.copysign(1, self.mean))


class Source:
    """Where the examples of a fold come from: see the choices above."""

    def __init__(self, setting: Setting, generator: np.random.Generator) -> None:
        for name in ("substitution", "indel"):
            value = getattr(setting, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: got {value!r}, but wanted a probability")
        self.setting, self.generator = setting, generator
        self.transitions = generator.dirichlet(np.full(ALPHABET, setting.concentration), ALPHABET)

    def sample(self, count: int) -> Examples:
        """So many examples."""
        native = self._natives(count)
        homolog = np.stack([self.mutated(sequence) for sequence in native])
        return Examples(native, homolog, self._natives(count))

    def _natives(self, count: int) -> Letters:
        letters = np.empty((count, LENGTH), np.int64)
        letters[:, 0] = self.generator.integers(0, ALPHABET, count)
        bounds = self.transitions.cumsum(1)[:, :-1]
        for t in range(1, LENGTH):
            letters[:, t] = (self.generator.random((count, 1)) > bounds[letters[:, t - 1]]).sum(1)
        return letters

    def mutated(self, native: Letters) -> Letters:
        """A homolog of one sequence."""
        draw, found = self.generator, []
        for letter in native.tolist():
            if draw.random() < self.setting.indel:
                found.append(int(draw.integers(0, ALPHABET)))
            if draw.random() < self.setting.indel:
                continue
            changed = draw.random() < self.setting.substitution
            found.append((letter + int(draw.integers(1, ALPHABET))) % ALPHABET if changed else letter)
        missing = max(0, LENGTH - len(found))
        return np.array(found[:LENGTH] + draw.integers(0, ALPHABET, missing).tolist(), np.int64)


def inputs(examples: Examples) -> Inputs:
    """Examples as the model reads them."""
    views = []
    for sequences in (examples.homolog, examples.decoy):
        padded = np.pad(sequences, ((0, 0), (REACH, REACH)), constant_values=ALPHABET)
        views += [padded[:, offset : offset + LENGTH] for offset in range(2 * REACH + 1)]
    letters = one_hot(torch.from_numpy(np.stack(views, 2)), ALPHABET + 1).float()  # (n, 50, offsets, K + 1)
    inside = letters[..., :ALPHABET]
    pairs = torch.einsum("ntoi,ntoj->ntijo", inside[:, :-1], inside[:, 1:]).flatten(2, 3)
    none = torch.zeros_like(pairs[:, :1])  # the first letter ends no bigram
    return Inputs(letters.flatten(2), torch.cat([none, pairs], 1), torch.from_numpy(examples.native))


class Model(nn.Module):
    """A chain of order 2 over the letters of y: w times the features above."""

    def __init__(self) -> None:
        super().__init__()
        offsets = 2 * (2 * REACH + 1)
        self.letters = nn.Parameter(torch.zeros(offsets * (ALPHABET + 1), ALPHABET))
        self.transitions = nn.Parameter(torch.zeros(ALPHABET, ALPHABET))
        self.pairs = nn.Parameter(torch.zeros(offsets))

    def forward(self, x: Inputs) -> Chain:
        n = len(x.native)
        after_first = (torch.arange(LENGTH) > 0).float()[:, None, None]
        potentials = (x.letters @ self.letters)[:, :, None, :] + after_first * self.transitions
        return Chain(potentials + (x.pairs @ self.pairs).reshape(n, LENGTH, ALPHABET, ALPHABET))

    def penalty(self) -> Tensor:
        """|w|^2 / 2."""
        return 0.5 * torch.stack([parameter.square().sum() for parameter in self.parameters()]).sum()


def minimum(objective: Objective, data: Inputs, strength: float, iterations: int) -> Model:
    """The weights at the minimum of a smooth objective + strength |w|^2 / 2."""
    model = Model()
    optimizer = torch.optim.LBFGS(
        model.parameters(), max_iter=iterations, history_size=20, line_search_fn="strong_wolfe"
    )

    def value() -> float:
        optimizer.zero_grad()
        found = objective(model(data), data.native) + strength * model.penalty()
        found.backward()
        return float(found.detach())

    optimizer.step(value)
    return model


def descend(objective: Objective, data: Inputs, strength: float, steps: int, rate: float, begin: Model) -> Model:
    """Weights where objective + strength |w|^2 / 2 is smaller than at those of `begin`."""
    model = Model()
    model.load_state_dict(begin.state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    falling = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        (objective(model(data), data.native) + strength * model.penalty()).backward()
        optimizer.step()
        falling.step()
    return model


def outcome(answer: Tensor, native: Tensor, strength: float | None = None) -> Outcome:
    """Mean Smith-Waterman score, exact, and the part of positions that are right."""
    score = -SmithWaterman()(answer, native).double().mean().item()
    return Outcome(score, (answer == native).double().mean().item(), strength)


def objectives(cap: float) -> dict[str, Objective]:
    """By name; those with a loss share its machines."""
    loss = SmithWaterman(cap=cap)
    return {
        CROSS_ENTROPY: NegativeLogLikelihood(),
        SOFTMAX_MARGIN: SoftmaxMargin(loss),
        HINGE: Hinge(loss),
        RISK: Risk(loss),
        DIRECT: DirectLoss(loss),
    }


def fold(setting: Setting, names: Sequence[str], effort: Effort, seed: int, number: int) -> dict[str, Outcome]:
    """Train on one fold under each objective named, choose the strength, and test. Same seed, number: same examples."""
    source = Source(setting, np.random.default_rng((seed, number)))
    test, choose, train = (source.sample(n) for n in (effort.test, effort.choose, setting.train))
    parts = {"test": inputs(test), "choose": inputs(choose), "train": inputs(train)}
    native = parts["test"].native
    found = {
        COPY: outcome(torch.from_numpy(test.homolog), native),
        COPY_DECOY: outcome(torch.from_numpy(test.decoy), native),
    }
    likely: dict[float, Model] = {}
    for name, objective in objectives(setting.cap).items():
        if name not in names and name != CROSS_ENTROPY:
            continue
        best, best_score = Outcome(math.nan, math.nan), -math.inf
        for strength in effort.strengths:
            if name in SMOOTH:
                model = minimum(objective, parts["train"], strength, effort.iterations)
            else:
                model = descend(objective, parts["train"], strength, effort.steps, effort.rate, likely[strength])
            if name == CROSS_ENTROPY:
                likely[strength] = model
            with torch.no_grad():
                held_out = outcome(model(parts["choose"]).argmax(), parts["choose"].native)
                if held_out.score > best_score:
                    best_score = held_out.score
                    best = outcome(model(parts["test"]).argmax(), native, strength)
        found[name] = best
    return found


def folds(
    setting: Setting, names: Sequence[str], effort: Effort, seed: int, count: int, say: Callable[[str], None]
) -> list[dict[str, Outcome]]:
    """What each fold gave."""
    results = []
    for number in range(count):
        results.append(fold(setting, names, effort, seed, number))
        told = ", ".join(f"{name} {one.score:.2f}" for name, one in results[-1].items() if one.strength is not None)
        say(f"{setting}; fold {number + 1} of {count}: {told}")
    return results


def paired(results: Sequence[Mapping[str, Outcome]], name: str, other: str = CROSS_ENTROPY) -> Paired:
    """The difference in score between two methods on the same folds."""
    differences = [result[name].score - result[other].score for result in results]
    error = stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else math.inf
    return Paired(fmean(differences), error, sum(d > 0 for d in differences))
