"""The objectives as functions of the margin: one position, two labels, and a loss of 1 for the wrong one."""

import argparse
from pathlib import Path

import torch

import structloss as sl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, help="draw the curves into this file")
arguments = parser.parse_args()

margin = torch.linspace(-3, 3, 241)  # by how much the right label's score is above the wrong one's
structure = sl.Chain(torch.stack([margin, torch.zeros_like(margin)], 1)[:, None])  # 241 examples, 1 position, 2 labels
reference, loss = torch.zeros(len(margin), 1, dtype=torch.long), sl.Hamming()
curves = {
    "NegativeLogLikelihood": sl.NegativeLogLikelihood("none"),
    "SoftmaxMargin": sl.SoftmaxMargin(loss, reduction="none"),
    "Perceptron": sl.Perceptron("none"),
    "Hinge": sl.Hinge(loss, reduction="none"),
    "SlackHinge": sl.SlackHinge(loss, "none"),
    "DirectLoss, epsilon 1": sl.DirectLoss(loss, 1.0, reduction="none"),
    "Risk": sl.Risk(loss, "none"),
    "RewardAugmented": sl.RewardAugmented(loss, 1.0, "none"),
}
values = {name: objective(structure, reference) for name, objective in curves.items()}
wrong = loss(structure.argmax(), reference)
for name, value in values.items():
    above = "an upper bound of the loss" if (value >= wrong - 1e-6).all() else "below the loss somewhere"
    print(f"{name:22} at margin -2: {value[40]:.2f}, at 2: {value[200]:.2f}; {above}")

if arguments.out:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    for axes, names in zip(figure.subplots(1, 2, sharey=True), (list(values)[:4], list(values)[4:]), strict=True):
        axes.plot(margin, wrong, color="black", linewidth=1, label="the loss itself")
        for name in names:
            axes.plot(margin, values[name], "--" if name == "SlackHinge" else "-", label=name)
        axes.set(xlabel="margin of the right label", ylim=(-0.1, 4))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(arguments.out, dpi=110)
