"""Sums over trees with their gradients: structloss against torch-struct, in one process on the same scores.

    python benchmarks/trees.py [--quick] [--seconds 3] [--json benchmarks/results/trees.json]

Answers (sums and gradients) are compared before times are printed: CPU time in one thread, the least of many runs.
--quick is a small run, and leaves the figure of the guide, how time grows with the words, as it is.
"""

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch_struct import DependencyCRF, NonProjectiveDependencyCRF, TreeCRF

import structloss as sl
from structloss.cli.plots import require_matplotlib

warnings.filterwarnings("ignore", message=".*arg_constraints.*")  # of torch-struct

FIGURE = Path(__file__).parent.parent / "docs" / "images" / "trees_growth.png"
Step = Callable[[], tuple[Tensor, Tensor]]  # log Z of the batch, and its gradient in the scores


def step(scores: Tensor, log_partition: Callable[[Tensor], Tensor]) -> Step:
    """Forward and backward."""
    x = scores.clone().requires_grad_()

    def run() -> tuple[Tensor, Tensor]:
        value = log_partition(x)
        return value.detach(), torch.autograd.grad(value.sum(), x)[0]

    return run


def by_head(scores: Tensor) -> Tensor:
    """As torch-struct has them: (B, head, word), those of the root on the diagonal."""
    arcs = scores[:, :, 1:].transpose(1, 2)
    root = torch.eye(arcs.shape[1], dtype=torch.bool)
    return torch.where(root, scores[:, :, :1], arcs)


def kinds(B: int, T: int, dtype: torch.dtype) -> dict[str, dict[str, Step]]:
    """The same sums from both libraries."""
    torch.manual_seed(0)
    arcs, spans = torch.randn(B, T, T + 1, dtype=dtype), torch.randn(B, T, T, 1, dtype=dtype)
    both: dict[str, tuple[Tensor, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
        "projective dependency trees": (
            arcs,
            lambda x: sl.DependencyTree(x).log_partition(),
            lambda x: DependencyCRF(by_head(x), multiroot=False).partition,
        ),
        "all dependency trees": (
            arcs,
            lambda x: sl.DependencyTree(x, projective=False).log_partition(),
            lambda x: NonProjectiveDependencyCRF(by_head(x), multiroot=False).partition,
        ),
        "binary trees": (
            spans,
            lambda x: sl.ConstituencyTree(x).log_partition(),
            lambda x: TreeCRF(x).partition,
        ),
    }
    return {
        name: {"structloss": step(scores, ours), "torch-struct": step(scores, theirs)}
        for name, (scores, ours, theirs) in both.items()
    }


def best_times(steps: dict[str, Step], seconds: float) -> dict[str, float]:
    """The least CPU time of many runs of each, in turn, until each had its share of the seconds."""
    best, spent, runs = dict.fromkeys(steps, math.inf), dict.fromkeys(steps, 0.0), dict.fromkeys(steps, 0)
    while waiting := [name for name in steps if spent[name] < seconds or runs[name] < 3]:
        for name in waiting:
            start = time.process_time()
            steps[name]()
            elapsed = time.process_time() - start
            best[name], spent[name], runs[name] = min(best[name], elapsed), spent[name] + elapsed, runs[name] + 1
    return best


def compare(B: int, T: int, seconds: float) -> dict[str, dict[str, float]]:
    """Times in float32, after values and gradients were found close: torch-struct adds 1e-5 to a matrix of its own."""
    for steps in kinds(B, T, torch.float32).values():
        for mine, theirs in zip(*(run() for run in steps.values()), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    return {name: best_times(steps, seconds) for name, steps in kinds(B, T, torch.float32).items()}


def growth(lengths: list[int], seconds: float) -> dict[str, list[float]]:
    """The times of ours, B = 4."""
    rows = [
        {k: best_times({k: v["structloss"]}, seconds)[k] for k, v in kinds(4, T, torch.float32).items()}
        for T in lengths
    ]
    return {name: [row[name] for row in rows] for name in rows[0]}


def draw(lengths: list[int], times: dict[str, list[float]], path: Path) -> None:
    """Times over words, both logarithmic."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6))
    axes = figure.subplots()
    for name, values in times.items():
        axes.loglog(lengths, [1e3 * x for x in values], "o-", label=name)
    axes.loglog(
        lengths, [1e3 * times["binary trees"][0] * (T / lengths[0]) ** 3 for T in lengths], ":", c="gray", label="T³"
    )
    axes.set_xlabel("words")
    axes.set_ylabel("CPU ms, sum and gradient, B = 4")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110, bbox_inches="tight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each library may run in each setting")
    parser.add_argument("--quick", action="store_true", help="a small run")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/trees.json"))
    arguments = parser.parse_args()
    B, T = (4, 10) if arguments.quick else (16, 30)
    torch.set_num_threads(1)
    results = compare(B, T, 0.2 if arguments.quick else arguments.seconds)
    table = Table("trees", "structloss ms", "torch-struct ms", "times", title=f"CPU time, B={B} T={T}, float32")
    for name, best in results.items():
        ours, theirs = (1e3 * best[library] for library in ("structloss", "torch-struct"))
        table.add_row(name, f"{ours:.2f}", f"{theirs:.2f}", f"{theirs / ours:.1f}")
    console = Console()
    console.print(table)
    lengths = [10, 20] if arguments.quick else [10, 20, 40, 80, 160]
    times = growth(lengths, 0.1 if arguments.quick else 0.5)
    for name, values in times.items():
        slope = np.polyfit(np.log(lengths), np.log(values), 1)[0]
        shown = ", ".join(f"{n} words {1e3 * x:.2f} ms" for n, x in zip(lengths, values, strict=True))
        console.print(f"{name}: {shown}; exponent {slope:.2f}")
    if not arguments.quick:
        draw(lengths, times, FIGURE)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(
        json.dumps({"B": B, "T": T, "seconds": results, "lengths": lengths, "growth": times}, indent=1)
    )
    console.print(f"wrote {arguments.json}")


if __name__ == "__main__":
    main()
