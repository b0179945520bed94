"""Minimum risk for a decoder that writes one label after the other: over a list of what it would write."""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import structloss as sl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, help="draw the label error rate over the steps into this file")
arguments = parser.parse_args()

LABELS, LONGEST, K = 8, 9, 6  # label 0 ends a string and is what the decoder reads first; hypotheses in a list
torch.manual_seed(0)
torch.set_num_threads(1)  # a model as small as this one is slower with more


def made(examples: int, wrong: int) -> tuple[list[Tensor], list[list[int]]]:
    """Strings as they are heard, each label one to three times, a tenth of them misheard; and as they are written down.

    The first few are written down wrong.
    """
    spoken = [torch.randint(1, LABELS, (int(n),)) for n in torch.randint(2, 6, (examples,))]
    heard = [labels.repeat_interleave(torch.randint(1, 4, labels.shape)) for labels in spoken]
    heard = [torch.where(torch.rand(x.shape) < 0.1, torch.randint_like(x, 1, LABELS), x) for x in heard]
    written = [torch.randint_like(y, 1, LABELS) if b < wrong else y for b, y in enumerate(spoken)]
    return heard, [y.unique_consecutive().tolist() for y in written]


class Writer(nn.Module):
    """An encoder, and a decoder that attends to it and reads what it has written."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.letters, self.before = nn.Embedding(LABELS, width), nn.Embedding(LABELS, width)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.decoder, self.next = nn.GRU(width, width, batch_first=True), nn.Linear(2 * width, LABELS)

    def read(self, heard: list[Tensor]) -> tuple[Tensor, Tensor]:
        """What the encoder says, (B, T, width), and where there is nothing, (B, 1, T)."""
        padded = nn.utils.rnn.pad_sequence(heard, batch_first=True)
        return self.encoder(self.letters(padded))[0], (padded == 0)[:, None]

    def forward(self, memory: Tensor, nothing: Tensor, before: Tensor, state: Tensor | None = None):
        """Log-probabilities of the label after each of `before` (B, U), and the decoder's state."""
        hidden, state = self.decoder(self.before(before), state)
        attention = (hidden @ memory.transpose(1, 2)).masked_fill(nothing, -torch.inf).softmax(2)
        return self.next(torch.cat([hidden, attention @ memory], 2)).log_softmax(2), state

    def score(self, read: tuple[Tensor, Tensor], strings: list[list[int]]) -> Tensor:
        """log P(string), (B,), differentiable."""
        rows = [torch.tensor([0, *string, 0]) for string in strings]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        following = padded[:, 1:]
        chosen = self(*read, padded[:, :-1].clamp(0))[0].gather(2, following.clamp(0)[..., None])[..., 0]
        return (chosen * (following >= 0)).sum(1)

    @torch.no_grad()
    def beam(self, read: tuple[Tensor, Tensor], k: int) -> list[list[list[int]]]:
        """About the k most probable strings of each example, best first."""
        memory, nothing = (x.repeat_interleave(k, 0) for x in read)
        B = len(memory) // k
        scores = torch.tensor([0.0] + [-torch.inf] * (k - 1)).repeat(B, 1)
        labels, state, ended = torch.zeros(B * k, 1, dtype=torch.int64), None, torch.zeros(B * k, dtype=torch.bool)
        for _ in range(LONGEST):
            found, state = self(memory, nothing, labels[:, -1:], state)
            stays = torch.tensor([0.0] + [-torch.inf] * (LABELS - 1))  # after the end comes nothing else
            found = torch.where(ended[:, None], stays, found[:, 0])
            scores, best = (scores[..., None] + found.view(B, k, -1)).flatten(1).topk(k)
            from_ = (best // LABELS + k * torch.arange(B)[:, None]).flatten()
            labels = torch.cat([labels[from_], (best % LABELS).flatten()[:, None]], 1)
            state, ended = state[:, from_], ended[from_] | (labels[:, -1] == 0)
        return [[[y for y in row if y] for row in rows] for rows in labels.view(B, k, -1).tolist()]


def error_rate() -> float:
    """Edits a label, on what has no wrong transcript and no part in training."""
    return (
        sl.EditDistance()([rows[0] for rows in model.beam(model.read(heard), K)], right).sum() / sum(map(len, right))
    ).item()


def objective(kind: str, inputs: list[Tensor], written: list[list[int]]) -> Tensor:
    """The likelihood, or the expected edits over a list of hypotheses and a tenth of the likelihood."""
    read = model.read(inputs)
    likelihood = -model.score(read, written).mean()
    if kind == "likelihood":
        return likelihood
    lists = model.beam(read, K)  # nothing outside the list is seen: this risk, unlike that of CTC or a Chain, is biased
    scores = torch.stack([model.score(read, [rows[i] for rows in lists]) for i in range(K)], 1)
    return sl.Risk(sl.EditDistance())(sl.Lattice.nbest(lists, scores, LABELS), written) + 0.1 * likelihood


model, (heard, right) = Writer(), made(400, wrong=0)
rates: list[tuple[int, float]] = []
for kind, steps, rate in (("likelihood", 500, 0.005), ("likelihood", 100, 0.002), ("risk of a list", 100, 0.002)):
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(steps):
        if step % 50 == 0:
            rates.append((len(rates) * 50, error_rate()))
        optimizer.zero_grad()
        objective(kind, *made(32, wrong=6)).backward()
        optimizer.step()
    print(f"{steps} steps of the {kind:15} label error rate {error_rate():.1%}")

if arguments.out:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*rates, (len(rates) * 50, error_rate()), strict=True), "o-", markersize=3)
    axes.axvspan(600, 700, alpha=0.15, label="trained on the risk of a list")
    axes.set(xlabel="step", ylabel="label error rate", ylim=(0, 0.6))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(arguments.out, dpi=110)
