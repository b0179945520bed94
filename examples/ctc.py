"""A small recogniser, trained as CTC is and then on its expected label errors: a fifth of its transcripts are wrong."""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

import structloss as sl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, help="draw the label error rate over the steps into this file")
arguments = parser.parse_args()

LABELS, FEATURES = 10, 12  # label 0 is the blank
torch.manual_seed(0)
torch.set_num_threads(1)  # a model as small as this one is slower with more
sounds = torch.randn(LABELS, FEATURES)  # how each label sounds, in a world without noise


def speak(examples: int, wrong: int) -> tuple[Tensor, Tensor, list[list[int]]]:
    """Made-up frames (B, T, FEATURES), their lengths, and transcripts, the first few of which are wrong."""
    spoken = [torch.randint(1, LABELS, (int(n),)) for n in torch.randint(3, 8, (examples,))]
    frames = [sounds[labels.repeat_interleave(torch.randint(1, 5, labels.shape))] for labels in spoken]
    padded = nn.utils.rnn.pad_sequence(frames, batch_first=True)
    written = [torch.randint_like(y, 1, LABELS) if b < wrong else y for b, y in enumerate(spoken)]
    return padded + torch.randn_like(padded), torch.tensor([len(x) for x in frames]), [y.tolist() for y in written]


class Recogniser(nn.Module):
    """Frames and their lengths to CTC."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.gru = nn.GRU(FEATURES, width, batch_first=True, bidirectional=True)
        self.scores = nn.Linear(2 * width, LABELS)

    def forward(self, frames: Tensor, lengths: Tensor) -> sl.Structure:
        return sl.CTC(self.scores(self.gru(frames)[0]).log_softmax(2), lengths)


def error_rate() -> float:
    """Edits a label, on what has no wrong transcript and no part in training."""
    with torch.no_grad():
        return (sl.EditDistance()(model(*heard).decode(), spoken).sum() / sum(map(len, spoken))).item()


model, (*heard, spoken) = Recogniser(), speak(500, wrong=0)
likelihood, risk = sl.NegativeLogLikelihood(impossible="skip"), sl.Risk(sl.EditDistance(cap=3))
rates: list[tuple[int, float]] = []
for objective, steps, rate in ((likelihood, 300, 0.01), (likelihood, 100, 0.003), (risk, 100, 0.003)):
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for step in range(steps):
        if step % 50 == 0:
            rates.append((len(rates) * 50, error_rate()))
        *inputs, transcripts = speak(32, wrong=6)
        optimizer.zero_grad()
        objective(model(*inputs), transcripts).backward()
        optimizer.step()
    print(f"{steps} steps of {type(objective).__name__:21}  label error rate {error_rate():.1%}")

if arguments.out:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*rates, (len(rates) * 50, error_rate()), strict=True), "o-", markersize=3)
    axes.axvspan(400, 500, alpha=0.15, label="trained on the risk")
    axes.set(xlabel="step", ylabel="label error rate", ylim=(0, 0.5))  # before the first step it is nearly 1
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(arguments.out, dpi=110)
