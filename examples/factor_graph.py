"""The lecture's graph: two labels, three networks, and why a margin should ask how wrong an answer is.

y1 and y2 have three labels each; one network scores y1, one y2, one both. The perceptron stops as soon as the right
answer wins, however closely. The structural SVM wants it to win by the number of labels that the other answer has
wrong: partial credit, in the lecture's words.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import structloss as sl

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, help="draw the scores of all nine answers into this file")
arguments = parser.parse_args()

x, gold = torch.tensor([[1.0, -0.5, 2.0, 0.3]]), torch.tensor([[2, 1]])


def networks() -> nn.ModuleList:
    """One for each factor."""
    torch.manual_seed(0)
    return nn.ModuleList([nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, n)) for n in (3, 3, 9)])


def graph_of(n1: nn.Module, n2: nn.Module, n12: nn.Module) -> sl.FactorGraph:
    """The graph, as the model reads."""
    g = sl.FactorGraphBuilder()
    y1 = g.variable(n1(x))
    y2 = g.variable(n2(x))
    g.factor((y1, y2), n12(x).unflatten(1, (3, 3)))
    return g.build()


objectives = {"perceptron": sl.Perceptron(), "structural SVM": sl.Hinge(sl.Hamming())}
answers = torch.cartesian_prod(torch.arange(3), torch.arange(3))
wrong = (answers != gold).sum(1)
scores = {}
for name, objective in {"before": None, **objectives}.items():
    model = networks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(200 if objective else 0):
        optimizer.zero_grad()
        objective(graph_of(*model), gold).backward()
        optimizer.step()
    with torch.no_grad():
        g = graph_of(*model)
        scores[name] = g.score(answers[:, None])[:, 0] - g.score(gold)
    for count in (1, 2):
        best = float(scores[name][wrong == count].max())
        print(f"{name:14} the best answer with {count} wrong is {-best:5.2f} below the right one")

if arguments.out:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, (name, values) in zip(figure.subplots(1, len(scores), sharey=True), scores.items(), strict=True):
        colours = [("#009E73", "#E69F00", "#D55E00")[int(n)] for n in wrong]
        axes.bar(range(9), values, color=colours)
        axes.bar([int(i) for i in (wrong == 0).nonzero()], [0.05], color="#009E73")
        axes.set_xticks(range(9), [f"{a}{b}" for a, b in answers.tolist()])
        axes.set_title(name, loc="left")
        axes.set_xlabel("y1 y2")
        for margin in (1, 2):
            axes.axhline(-margin, color="0.6", linewidth=0.8, linestyle=":")
    figure.axes[0].set_ylabel("score minus that of the right answer")
    figure.savefig(arguments.out, dpi=120)
