"""Label a snake's ten cells from head to tail: grids whose edges are scored from what both cells look like.

Every image is a grid of its own size, every pair of neighbours a factor. Inference is the linear relaxation, which says
of each image whether its answer is the best one. The data (snakes.npz) are looked for in $STRUCTLOSS_DATA/graphs.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import structloss as sl

LABELS = 11
COLOURS = torch.tensor([[0, 0, 255], [0, 255, 255], [255, 0, 0], [255, 255, 0], [0, 255, 0]], dtype=torch.uint8)
Image = tuple[Tensor, Tensor]  # what stands around each cell (H, W, 45), and the labels (H * W,)


def read(file: Path, part: str) -> list[Image]:
    """The images of a part: for each cell the colours of it and of its eight neighbours, one number each."""
    data, images, at = np.load(file), [], 0
    for height, width in data[f"{part}_shapes"].astype(int):
        cells = slice(at, at := at + height * width)
        pixels = torch.from_numpy(data[f"{part}_pixels"][cells]).reshape(height, width, 1, 3)
        colours = (pixels == COLOURS).all(3).float()
        padded = nn.functional.pad(colours, (0, 0, 1, 1, 1, 1))
        around = [padded[i : i + height, j : j + width] for i in range(3) for j in range(3)]
        images.append((torch.cat(around, 2), torch.from_numpy(data[f"{part}_labels"][cells].astype(np.int64))))
    return images


class Snakes(nn.Module):
    """Images to a factor graph. Edges see the direction alone, or what stands around both their cells."""

    def __init__(self, edges: str) -> None:
        super().__init__()
        self.edges = edges
        self.cell = nn.Linear(45, LABELS)
        self.right, self.down = (nn.Linear(90 if edges == "input" else 1, LABELS**2) for _ in range(2))
        for layer in (self.cell, self.right, self.down):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def pairs(self, a: Tensor, b: Tensor, layer: nn.Linear) -> Tensor:
        """Scores (H, W, 11, 11) of neighbours a and b."""
        seen = torch.cat([a, b], 2) if self.edges == "input" else a.new_ones(*a.shape[:2], 1)
        return layer(seen).unflatten(2, (LABELS, LABELS))

    def forward(self, images: list[Tensor]) -> sl.FactorGraph:
        graph = sl.FactorGraphBuilder()
        graph.grid(
            [self.cell(x) for x in images],
            [self.pairs(x[:, :-1], x[:, 1:], self.right) for x in images],
            [self.pairs(x[:-1], x[1:], self.down) for x in images],
        )
        return graph.build(method="lp", tolerance=1e-3)


def evaluate(model: Snakes, images: list[Image]) -> tuple[float, float]:
    """The part of cells that are right, and of images whose answer is certified to be the best."""
    with torch.no_grad():
        graph = model([x for x, _ in images])
        right = sum(int((torch.tensor(y) == r).sum()) for y, (_, r) in zip(graph.decode(), images, strict=True))
        return right / sum(len(r) for _, r in images), graph.certificate().integral.double().mean().item()


def train(
    edges: str, objective: sl.Objective, images: list[Image], test: list[Image], epochs: int, seed: int
) -> tuple[Snakes, list[float]]:
    """A model after some epochs, and how well it did after each on the test images."""
    torch.manual_seed(seed)
    model, curve = Snakes(edges), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, epochs)
    for epoch in range(epochs):
        for chosen in torch.randperm(len(images)).split(10):
            batch = [images[i] for i in chosen]
            optimizer.zero_grad()
            objective(model([x for x, _ in batch]), [r for _, r in batch]).backward()
            optimizer.step()
        schedule.step()
        accuracy, certified = evaluate(model, test)
        curve.append(accuracy)
        print(f"{edges} edges, epoch {epoch + 1:2}: accuracy {accuracy:.4f}, certified {certified:.2f}", flush=True)
    return model, curve


def main() -> None:
    """Train with both kinds of edges, and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="draw accuracies and an answer into this file")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--images", type=int, default=200, help="to train on")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    data = os.environ.get("STRUCTLOSS_DATA", Path(__file__).parents[2] / "shared" / "data")
    file = Path(data) / "graphs" / "snakes.npz"
    images, test = read(file, "train")[: arguments.images], read(file, "test")
    curves = {}
    for edges in ("directional", "input"):
        begin = time.perf_counter()
        model, curves[edges] = train(edges, sl.Hinge(sl.Hamming()), images, test, arguments.epochs, arguments.seed)
        print(f"{edges} edges: {curves[edges][-1]:.4f} of the cells after {time.perf_counter() - begin:.0f} s")
    if arguments.out:
        draw(curves, model, test[0], arguments.out)


def draw(curves: dict[str, list[float]], model: Snakes, image: Image, out: Path) -> None:
    """Accuracy after each epoch, and the answer for one image."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[2, 1])
    for edges, curve in curves.items():
        left.plot(range(1, len(curve) + 1), curve, label=f"{edges} edges")
    left.set(xlabel="epoch", ylabel="test cells right")
    left.legend(frameon=False)
    with torch.no_grad():
        answer = model([image[0]]).argmax()[0].reshape(image[0].shape[:2])
    right.imshow(answer, cmap="viridis")
    for (i, j), label in np.ndenumerate(answer.numpy()):
        if label:
            right.text(j, i, str(label), ha="center", va="center", color="white" if label < 7 else "black")
    right.set_axis_off()
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main()
