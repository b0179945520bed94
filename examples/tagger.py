"""A BiLSTM tagger trained on the edit distance itself, exactly, and not on a stand-in for it."""

import argparse
from pathlib import Path

import torch
from torch import nn

import structloss as sl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, help="draw the edit distance over the steps into this file")
arguments = parser.parse_args()


class Tagger(nn.Module):
    """Words (B, T) to a chain over labels."""

    def __init__(self, words: int, labels: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.emissions, self.chain = nn.Linear(2 * width, labels), sl.ChainLayer(labels)

    def forward(self, words: torch.Tensor) -> sl.Chain:
        return self.chain(self.emissions(self.lstm(self.embed(words))[0]))


words = torch.randint(0, 20, (64, 15), generator=torch.Generator().manual_seed(0))
labels = (words.cumsum(1) // 7) % 5  # what a label is depends on all words before it
loss, curves = sl.EditDistance(cap=5), {}
for objective in (sl.SoftmaxMargin(loss), sl.NegativeLogLikelihood()):
    torch.manual_seed(0)
    model, name = Tagger(words=20, labels=5), type(objective).__name__
    optimizer, curves[name] = torch.optim.Adam(model.parameters(), lr=0.01), []
    for step in range(61):
        curves[name].append(loss(model(words).argmax(), labels).mean().item())
        if step % 20 == 0:
            print(f"{name:21}  step {step:3}  edit distance {curves[name][-1]:.2f}")
        optimizer.zero_grad()
        objective(model(words), labels).backward()
        optimizer.step()

if arguments.out:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        axes.plot(curve, label=name)
    axes.set(xlabel="step", ylabel="mean edit distance", ylim=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(arguments.out, dpi=110)
