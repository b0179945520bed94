"""A recurrent network over the last q labels, trained on the edit distance: what a longer memory is worth."""

import argparse
from pathlib import Path

import torch

import structloss as sl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, help="draw the edit distance over the steps into this file")
arguments = parser.parse_args()

# What a label is depends on the two before it; each is seen through noise.
LABELS, LENGTH, SEEN = 4, 20, 0.55
generator = torch.Generator().manual_seed(0)
labels = torch.zeros(400, LENGTH, dtype=torch.int64)
for t in range(LENGTH):
    surprise = torch.rand(400, generator=generator) < 0.15
    before, long_before = (labels[:, t - k] if t >= k else torch.zeros(400, dtype=torch.int64) for k in (1, 2))
    labels[:, t] = (before + 2 * long_before + surprise + (t < 2) * torch.randint(4, (400,), generator=generator)) % 4
clear = torch.rand(labels.shape, generator=generator) < SEEN
inputs = torch.nn.functional.one_hot(
    torch.where(clear, labels, torch.randint(LABELS, labels.shape, generator=generator)), LABELS
).float()
train, test = slice(0, 200), slice(200, 400)

loss, curves = sl.EditDistance(cap=6), {}
for order in (1, 2, 3):
    torch.manual_seed(0)
    layer = sl.RecurrentLayer(LABELS, inputs=LABELS, order=order, hidden=16)
    optimizer, objective = torch.optim.Adam(layer.parameters(), lr=0.02), sl.SoftmaxMargin(loss, scale=0.5)
    curve = curves[f"q = {order}"] = []
    for step in range(81):
        if step % 20 == 0:
            with torch.no_grad():
                answers = layer(inputs[test]).argmax()
            curve.append((step, sl.EditDistance()(answers, labels[test]).mean().item()))
        optimizer.zero_grad()
        objective(layer(inputs[train]), labels[train]).backward()
        optimizer.step()
    print(f"q = {order}: edit distance on {len(labels[test])} new sequences {curve[-1][1]:.2f} of {LENGTH}")

if arguments.out:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.add_subplot()
    for name, curve in curves.items():
        axes.plot(*zip(*curve, strict=True), label=name, marker="o")
    axes.set(xlabel="step", ylabel="mean edit distance", ylim=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(arguments.out, dpi=110)
