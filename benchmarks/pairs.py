"""Alignments of pairs: structloss against torch-struct, tensor operations, and parasail.

    python benchmarks/pairs.py [--quick] [--seconds 3] [--json benchmarks/results/pairs.json]

Sum and gradient, float32, B pairs of N positions; answers are compared before times are printed. torch-struct's
AlignmentCRF needs genbmm, a CUDA extension: where that cannot be imported a line says so. Tensor operations are our own
torch engine, anti-diagonal by anti-diagonal. Of parasail it is the score of the best alignment, beside a SmithWaterman.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import parasail
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import structloss as sl

Step = Callable[[], object]


def best_times(steps: dict[str, Step], seconds: float) -> dict[str, float]:
    """The least CPU time of many runs of each, in turn, until each had its share of the seconds."""
    best, spent = dict.fromkeys(steps, float("inf")), dict.fromkeys(steps, 0.0)
    while waiting := [name for name in steps if spent[name] < seconds]:
        for name in waiting:
            start = time.process_time()
            steps[name]()
            elapsed = time.process_time() - start
            best[name], spent[name] = min(best[name], elapsed), spent[name] + elapsed
    return best


def sums(batch: int, n: int) -> dict[str, Callable[[], tuple[Tensor, Tensor]]]:
    """The same log-partition with its gradient in the scores of pairs."""
    match = torch.randn(batch, n, n, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def step(engine: str) -> tuple[Tensor, Tensor]:
        with sl.engine(engine):  # type: ignore[arg-type]
            value = sl.Alignment(match, -2.0, -0.5).log_partition()
            return value.detach(), torch.autograd.grad(value.sum(), match)[0]

    return {"structloss": lambda: step("native"), "tensor operations": lambda: step("torch")}


def torch_struct(batch: int, n: int) -> Step:
    """The sum of torch-struct, which counts a path for every order of gaps, with its gradient."""
    from torch_struct import AlignmentCRF

    scores = torch.randn(batch, n, n, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def step() -> Tensor:
        return torch.autograd.grad(AlignmentCRF(scores).partition.sum(), scores)[0]

    step()
    return step


def values(n: int) -> dict[str, Callable[[], float]]:
    """The score of the best local alignment of two strings with affine gaps."""
    generator = np.random.default_rng(0)
    strings = [generator.integers(0, 4, n) for _ in range(2)]
    texts = ["".join("ACGT"[i] for i in s) for s in strings]
    matrix = parasail.matrix_create("ACGT", 2, -1)
    loss = sl.SmithWaterman(gap_open=4, gap_extend=1)
    return {
        "structloss": lambda: -loss.distance(*strings),
        "parasail, scalar": lambda: float(parasail.sw(*texts, 4, 1, matrix).score),
        "parasail, SIMD": lambda: float(parasail.sw_striped_16(*texts, 4, 1, matrix).score),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small run")
    parser.add_argument("--seconds", type=float, default=3.0, help="of CPU time for each")
    parser.add_argument("--json", type=Path, help="write the times into this file")
    arguments = parser.parse_args()
    batch, n = (2, 40) if arguments.quick else (8, 200)
    seconds = 0.1 if arguments.quick else arguments.seconds
    torch.set_num_threads(1)

    steps: dict[str, Step] = {}
    own = sums(batch, n)
    (value, gradient), (other, other_gradient) = (step() for step in own.values())
    torch.testing.assert_close(value, other, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(gradient, other_gradient, rtol=1e-4, atol=1e-5)
    steps |= own
    absent = ""
    try:
        steps["torch-struct"] = torch_struct(batch, n)
    except NameError as error:
        absent = f"torch-struct's AlignmentCRF does not run here: {error}"
    results = {"sum and gradient": best_times(steps, seconds)}
    scored = values(60 if arguments.quick else 300)
    assert len({step() for step in scored.values()}) == 1
    results["value of one pair"] = best_times(dict(scored), seconds / 3)

    console = Console()
    table = Table("work", "who", "CPU ms", "times structloss")
    for work, times in results.items():
        for name, spent in times.items():
            table.add_row(work, name, f"{1e3 * spent:.3f}", f"{spent / times['structloss']:.2f}")
    console.print(f"B={batch} N=M={n}, float32, one thread; values: {60 if arguments.quick else 300} labels")
    console.print(table)
    if absent:
        console.print(absent)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"batch": batch, "n": n, "seconds": results}, indent=2))
