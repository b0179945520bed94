"""Which of six things does a picture show? Labels one by one, along a tree, or with a factor for every pair.

The same unary scores, three graphs. The full graph has loops, but only six variables: elimination is exact, and the
linear relaxation can be compared with it, in training and in use (McAllester 2010, section 4). The data (scene.npz) are
looked for in $STRUCTLOSS_DATA/graphs.
"""

import argparse
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch
from torch import Tensor, nn

import structloss as sl

NAMES = ("beach", "sunset", "fall foliage", "field", "mountain", "urban")
LOSS = sl.Hamming(normalize=True)


def tree_of(y: Tensor) -> list[tuple[int, int]]:
    """Chow and Liu's tree: the pairs of labels that tell most about each other, without a loop."""
    information = {}
    for a, b in itertools.combinations(range(y.shape[1]), 2):
        joint = torch.stack([((y[:, a] == i) & (y[:, b] == j)).double().mean() for i in (0, 1) for j in (0, 1)])
        joint = joint.reshape(2, 2) + 1e-9
        information[a, b] = float((joint * (joint / (joint.sum(1, keepdim=True) * joint.sum(0))).log()).sum())
    component, edges = list(range(y.shape[1])), []
    for a, b in sorted(information, key=lambda pair: -information[pair]):
        if component[a] != component[b]:
            old = component[b]
            component = [component[a] if c == old else c for c in component]
            edges.append((a, b))
    return edges


class Scenes(nn.Module):
    """Features (B, 294) to a graph over six labels; a pair's score does not depend on the picture."""

    def __init__(self, pairs: list[tuple[int, int]]) -> None:
        super().__init__()
        self.pairs = pairs
        self.labels = nn.Sequential(nn.Linear(294, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 12))
        self.tables = nn.Parameter(torch.zeros(len(pairs), 2, 2))

    def forward(self, x: Tensor, method: str = "exact") -> sl.FactorGraph:
        graph = sl.FactorGraphBuilder()
        graph.variables(self.labels(x).unflatten(1, (6, 2)))
        if self.pairs:
            graph.factors(self.pairs, self.tables.expand(len(x), -1, 2, 2))
        return graph.build(method=method)


def train(
    pairs: list[tuple[int, int]], objective: Callable[[int], sl.Objective], method: str, x: Tensor, y: Tensor,
    epochs: int, seed: int,
) -> Scenes:  # fmt: skip
    """A model after some epochs; the objective may depend on the epoch."""
    torch.manual_seed(seed)
    model = Scenes(pairs)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    for epoch in range(epochs):
        optimizer.param_groups[0]["weight_decay"] = 1e-4 if objective(epoch).norm_matters else 0.0
        for chosen in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            objective(epoch)(model(x[chosen], method), y[chosen]).backward()
            optimizer.step()
    return model.eval()


def held_out(model: Scenes, method: str, x: Tensor, y: Tensor) -> float:
    """The part of labels that are wrong, in percent."""
    with torch.no_grad():
        return 100 * LOSS(model(x, method).argmax(), y).mean().item()


def main() -> None:
    """Two tables: graphs side by side, and objectives under exact and relaxed inference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="draw the tree of labels into this file")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=1211, help="to train on")
    arguments = parser.parse_args()
    folder = os.environ.get("STRUCTLOSS_DATA", Path(__file__).parents[2] / "shared" / "data")
    data = {name: torch.from_numpy(x) for name, x in np.load(Path(folder) / "graphs" / "scene.npz").items()}
    x, y = data["X_train"][: arguments.pictures].float(), data["y_train"][: arguments.pictures].long()
    x_test, y_test = data["X_test"].float(), data["y_test"].long()
    tree, full = tree_of(y), list(itertools.combinations(range(6), 2))
    epochs, seeds = arguments.epochs, range(arguments.seeds)

    def row(name: str, pairs: list[tuple[int, int]], objective: Callable[[int], sl.Objective], method: str) -> None:
        models = [train(pairs, objective, method, x, y, epochs, seed) for seed in seeds]
        values = [held_out(model, method, x_test, y_test) for model in models]
        certified = [model(x_test, "lp").certificate().integral.double().mean().item() for model in models]
        deviation = stdev(values) if len(values) > 1 else 0.0
        print(f"{name:28} {fmean(values):6.2f} ± {deviation:.2f}   certified {fmean(certified):.3f}", flush=True)

    print("Hamming loss in percent, likelihood, exact inference")
    likelihood = sl.NegativeLogLikelihood()
    for name, pairs in (("independent", []), ("tree", tree), ("full", full)):
        row(name, pairs, lambda epoch: likelihood, "exact")
    print("Hamming loss in percent, full graph, trained and used with one inference")
    hinge = sl.Hinge(LOSS, scale=6.0)
    direct = sl.DirectLoss(LOSS, epsilon=30.0)  # the best of 1, 3, 10, 30 on a quarter of the training pictures
    for method in ("lp", "exact"):
        row(f"hinge, {method}", full, lambda epoch: hinge, method)
        # From zero all outputs are alike, and direct loss has nothing to go by: hinge comes first.
        row(f"direct, {method}", full, lambda epoch: hinge if epoch < epochs // 2 else direct, method)
    if arguments.out:
        draw(tree, arguments.out)


def draw(tree: list[tuple[int, int]], out: Path) -> None:
    """The labels on a circle, and the tree between them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), layout="constrained")
    axes = figure.add_subplot(aspect="equal")
    angles = torch.tensor([0.0, 0.8, 2.1, 2.9, 4.1, 5.3])  # so that no three lines meet
    places = torch.stack([angles.cos(), angles.sin()], 1).tolist()
    for a, b in tree:
        axes.plot(*zip(places[a], places[b], strict=True), color="#0072B2", zorder=1)
    for name, (left, up) in zip(NAMES, places, strict=True):
        axes.text(left, up, name, ha="center", va="center", bbox={"boxstyle": "round", "facecolor": "white"})
    axes.set(xlim=(-1.5, 1.5), ylim=(-1.3, 1.3))
    axes.set_axis_off()
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main()
