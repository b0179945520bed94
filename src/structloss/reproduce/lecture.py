"""The lecture: structural SVM, CRF and structured perceptron are one loop with different losses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from structloss.losses import Hamming
from structloss.objectives import Hinge, NegativeLogLikelihood, Objective, Perceptron, SlackHinge, SoftmaxMargin
from structloss.structures import Chain, ChainLayer

NUM_LABELS, NUM_WORDS = 6, 60
LOSS = Hamming()
OBJECTIVES: dict[str, Objective] = {
    "perceptron": Perceptron(),
    "structural SVM": Hinge(LOSS),
    "slack rescaling": SlackHinge(LOSS),
    "CRF": NegativeLogLikelihood(),
    "softmax-margin": SoftmaxMargin(LOSS),
}
UNREGULARISED = ("perceptron",)  # the lecture's has no |w|^2 / 2


@dataclass(frozen=True)
class Sentences:
    """Words (B, T) and their labels (B, T), padded with 0, and lengths (B,)."""

    words: Tensor
    labels: Tensor
    lengths: Tensor

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, chosen: Tensor) -> "Sentences":
        return Sentences(self.words[chosen], self.labels[chosen], self.lengths[chosen])


class Language:
    """A hidden Markov model: labels that follow each other with habits, and words that several labels share."""

    def __init__(self, generator: torch.Generator) -> None:
        self.follow = (2.0 * torch.randn(NUM_LABELS, NUM_LABELS, generator=generator)).softmax(1)
        self.speak = (3.2 * torch.randn(NUM_LABELS, NUM_WORDS, generator=generator)).softmax(1)

    def sentences(self, count: int, generator: torch.Generator) -> Sentences:
        """So many sentences of 5 to 12 words."""
        lengths = torch.randint(5, 13, (count,), generator=generator)
        label = torch.randint(NUM_LABELS, (count,), generator=generator)
        labels, words = [], []
        for _ in range(12):
            labels.append(label)
            words.append(torch.multinomial(self.speak[label], 1, generator=generator)[:, 0])
            label = torch.multinomial(self.follow[label], 1, generator=generator)[:, 0]
        within = torch.arange(12) < lengths[:, None]
        return Sentences(torch.stack(words, 1) * within, torch.stack(labels, 1) * within, lengths)


class Tagger(nn.Module):
    """score(x, y): a number for each word with each label, and for each label after another (the lecture's factors)."""

    def __init__(self) -> None:
        super().__init__()
        self.emissions = nn.Embedding(NUM_WORDS, NUM_LABELS)
        self.chain = ChainLayer(NUM_LABELS)
        nn.init.uniform_(self.emissions.weight, -0.1, 0.1)

    def forward(self, sentences: Sentences) -> Chain:
        """The structure of every sentence."""
        chain: Chain = self.chain(self.emissions(sentences.words), sentences.lengths)
        return chain


@dataclass(frozen=True)
class Margins:
    r"""For each sentence, its margin, its loss-rescaled margin, and its slack.

    .. math:: \min_{y \ne r} [s(r) - s(y)], \quad \min_{y \ne r} [s(r) - s(y) - L(y, r)], \quad
              \xi = \max_y [s(y) + L(y, r)] - s(r)
    """

    margin: list[float]
    rescaled: list[float]
    slack: list[float]


@dataclass(frozen=True)
class Run:
    """One training: after every epoch the mean objective, and the wrong labels in train and held out, in percent."""

    objective: list[float]
    train: list[float]
    held_out: list[float]
    before: Margins
    after: Margins


def train(
    objective: Objective, sentences: Sentences, held_out: Sentences, epochs: int, decay: float, seed: int,
    size: int = 16, rate: float = 0.5,
) -> Run:  # fmt: skip
    """The lecture's loop: shuffle, and for each batch the gradient of an objective and a step. The rate falls to 0.

    Args:
        objective: the only thing that differs from one method to the next.
        sentences, held_out: to train on, and to evaluate on.
        epochs: passes over the sentences.
        decay: the factor of |w|^2 / 2 beside the mean of the objective, 1 / (C n) in the lecture's terms.
        seed: of the start and of the order.
        size: sentences in a batch.
        rate: the first step's.
    """
    torch.manual_seed(seed)
    model = Tagger()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay)
    fall = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 1 / epochs, epochs)
    before = margins(model(sentences), sentences.labels)
    curves: list[tuple[float, float, float]] = []
    for _ in range(epochs):
        for chosen in torch.randperm(len(sentences)).split(size):
            batch = sentences[chosen]
            optimizer.zero_grad()
            objective(model(batch), batch.labels).backward()
            optimizer.step()
        fall.step()
        with torch.no_grad():
            chain = model(sentences)
            value = objective(chain, sentences.labels).item()
            curves.append((value, wrong(chain, sentences), wrong(model(held_out), held_out)))
    after = margins(model(sentences), sentences.labels)
    values, own, others = (list(curve) for curve in zip(*curves, strict=True))
    return Run(values, own, others, before, after)


def wrong(chain: Chain, sentences: Sentences) -> float:
    """Labels of the best outputs that are wrong, in percent: the Hamming loss over all positions."""
    losses = LOSS(chain.argmax(), sentences.labels, sentences.lengths)
    return 100 * losses.sum().item() / int(sentences.lengths.sum())


def margins(chain: Chain, labels: Tensor) -> Margins:
    """Of every example of a batch."""
    with torch.no_grad():
        gold = chain.given(labels).max()
        slack = Hinge(LOSS, reduction="none")(chain, labels)
        found: list[list[float]] = []
        for structure in (chain, chain.augment(LOSS, labels)):
            scores, outputs = structure.topk(2)
            own = LOSS(outputs[0], labels, chain.lengths) == 0
            found.append((gold - torch.where(own, scores[1], scores[0])).tolist())
    margin, rescaled = found
    return Margins(margin, rescaled, slack.tolist())


def run_all(
    sizes: tuple[int, int], epochs: int, decay: float, seeds: Sequence[int], say: Callable[[str], None]
) -> dict[str, list[Run]]:
    """Every objective from every seed, on (train, held-out) sentences; the language, too, depends on the seed."""
    runs: dict[str, list[Run]] = {name: [] for name in OBJECTIVES}
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        language = Language(generator)
        sentences, held_out = (language.sentences(size, generator) for size in sizes)
        for name, objective in OBJECTIVES.items():
            own = 0.0 if name in UNREGULARISED else decay
            runs[name].append(train(objective, sentences, held_out, epochs, own, seed))
            say(f"{name}, seed {seed}: {runs[name][-1].held_out[-1]:.2f} % of held-out labels wrong")
    return runs


def along_margin(loss: float, scores: Tensor) -> dict[str, Tensor]:
    """Every objective of a model with two outputs and weights w = (m, 0), at each margin m = s(r) - s(y); L(y, r)=loss.

    The label 0 is right, the label 1 is not.
    """
    costs = torch.tensor([[0.0, loss], [loss, 0.0]])
    priced = Hamming(costs)
    chain = Chain(torch.stack([scores, torch.zeros_like(scores)], 1)[:, None])  # (B, 1, 2)
    reference = torch.zeros(len(scores), 1, dtype=torch.int64)
    curves: dict[str, Objective] = {
        "perceptron": Perceptron("none"),
        "structural SVM": Hinge(priced, reduction="none"),
        "slack rescaling": SlackHinge(priced, "none"),
        "CRF": NegativeLogLikelihood("none"),
        "softmax-margin": SoftmaxMargin(priced, reduction="none"),
    }
    own = priced(chain.argmax(), reference)
    return {"the loss itself": own, **{name: objective(chain, reference) for name, objective in curves.items()}}
