"""Alignments of pairs: structloss against torch-struct, tensor operations, and parasail.

    python benchmarks/pairs.py [--quick] [--seconds 3] [--json benchmarks/results/pairs.json]

Sum and gradient, float32, of pairs of N positions; answers are compared before times are printed. Tensor operations
are our own torch engine, anti-diagonal by anti-diagonal. torch-struct's AlignmentCRF multiplies banded matrices by
genbmm, an extension that does not run on CPUs: here it gets a stand-in of tensor operations, which multiplies blocks by
BLAS, and is compared with the recursion that it stands for. Its sum has three scores a cell and counts a path for every
order of gaps. Of parasail it is the score of the best alignment, beside a SmithWaterman.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import parasail
import torch
import torch_struct
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import pad

import structloss as sl

warnings.filterwarnings("ignore", message=".*arg_constraints.*")  # of torch-struct

Step = Callable[[], object]


def windows(x: Tensor, size: int, step: int) -> Tensor:
    """(m, n, ...) to (m, (n - size) / step + 1, size, ...)."""
    starts = torch.arange(0, x.shape[1] - size + 1, step)
    return x.index_select(1, (starts[:, None] + torch.arange(size)).flatten()).unflatten(1, (len(starts), size))


def skewed(rows: Tensor) -> Tensor:
    """(..., n, w) to (..., n, n + w - 1): each row one place further right than the one before it."""
    n, w = rows.shape[-2:]
    return pad(rows, (0, n)).flatten(-2)[..., : n * (n + w - 1)].unflatten(-1, (n, n + w - 1))


def straightened(rows: Tensor, w: int) -> Tensor:
    """What `skewed` made (..., n, w) of."""
    n = rows.shape[-2]
    return pad(rows.flatten(-2), (0, n)).unflatten(-1, (n, n + w))[..., :w]


@dataclass
class BandedMatrix:
    """genbmm's, of tensor operations: data[b, i, k] is the entry (i, i + k - lu) of matrices in logarithms."""

    data: Tensor  # (m, n, lu + ld + 1)
    lu: int
    ld: int
    fill: float

    def _padded(self, *sides: int) -> Tensor:
        return pad(self.data, sides, value=self.fill)

    def transpose(self) -> "BandedMatrix":
        n, w = self.data.shape[1:]
        k = torch.arange(w)
        index = ((torch.arange(n)[:, None] + k) * w + w - 1 - k).flatten()
        data = self._padded(0, 0, self.ld, self.lu).flatten(1).index_select(1, index).reshape(self.data.shape)
        return BandedMatrix(data, self.ld, self.lu, self.fill)

    def col_shift(self, t: int) -> "BandedMatrix":
        data = self._padded(0, 0, max(-t, 0), max(t, 0))[:, max(t, 0) :][:, : self.data.shape[1]]
        return replace(self, data=data, lu=self.lu - t, ld=self.ld + t)

    def band_shift(self, t: int) -> "BandedMatrix":
        data = self._padded(max(-t, 0), max(t, 0))[:, :, max(t, 0) :][:, :, : self.data.shape[2]]
        return replace(self, data=data, lu=self.lu + t, ld=self.ld - t)

    def band_pad(self, t: int) -> "BandedMatrix":
        return replace(self, data=self._padded(t, t), lu=self.lu + t, ld=self.ld + t)

    def multiply_log(self, other: "BandedMatrix") -> "BandedMatrix":
        """These matrices times the transposes of the others, block by block, by BLAS."""
        n, width = self.data.shape[1:]
        lu, ld = self.lu + other.ld, self.ld + other.lu
        size = min(n, 1 << max(8, width - 1).bit_length())
        tops = [x.data.amax(2, keepdim=True) for x in (self, other)]
        left, right = ((x.data - top).exp() for x, top in zip((self, other), tops, strict=True))
        left = skewed(left.unflatten(1, (n // size, size)))
        right = skewed(windows(pad(right, (0, 0, lu, ld)), size + lu + ld, size))
        right = right[..., lu + other.lu - self.lu :][..., : left.shape[-1]]
        sums = straightened(left @ right.transpose(2, 3), lu + ld + 1).flatten(1, 2)
        of_rows = windows(pad(tops[1], (0, 0, lu, ld), value=self.fill)[..., 0], lu + ld + 1, 1)
        value = torch.where(sums > 0, sums, 1).log() + tops[0] + of_rows
        return BandedMatrix(torch.where(sums > 0, value, self.fill), lu, ld, self.fill)


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


def by_torch_struct(x: Tensor) -> Tensor:
    """The sum over paths to the last cell, of scores (B, N, M, 3) of coming from left, across, above."""
    stand_in = SimpleNamespace(BandedMatrix=BandedMatrix)
    for name in ("alignment", "semirings.semirings"):
        sys.modules[f"torch_struct.{name}"].__dict__.update(genbmm=stand_in, has_genbmm=True)
    value: Tensor = torch_struct.AlignmentCRF(x).partition
    return value


def by_cells(x: Tensor) -> Tensor:
    """The same, cell by cell."""
    sums = {(0, 0): x[:, 0, 0, 1]}
    for i in range(x.shape[1]):
        for j in range(x.shape[2]):
            ways = [((i, j - 1), 0), ((i - 1, j - 1), 1), ((i - 1, j), 2)]
            into = [sums[cell] + x[:, i, j, how] for cell, how in ways if cell in sums]
            if into:
                sums[i, j] = torch.stack(into).logsumexp(0)
    return sums[x.shape[1] - 1, x.shape[2] - 1]


def peer(n: int) -> Step:
    """torch-struct's sum for one pair with its gradient, after a look at both."""
    scores = torch.randn(1, n, n, 3, generator=torch.Generator().manual_seed(0))

    def step(log_partition: Callable[[Tensor], Tensor], scores: Tensor) -> tuple[Tensor, Tensor]:
        x = scores.requires_grad_()
        value = log_partition(x)
        return value.detach(), torch.autograd.grad(value.sum(), x)[0]

    for theirs, cells in zip(step(by_torch_struct, scores), step(by_cells, scores.double()), strict=True):
        torch.testing.assert_close(theirs, cells.float(), rtol=1e-4, atol=1e-4)
    return lambda: step(by_torch_struct, scores)


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
    pairs = {name: spent / batch for name, spent in best_times(steps, seconds).items()}
    pairs |= best_times({"torch-struct without genbmm": peer(n)}, seconds)
    results = {"sum, gradient": pairs}
    scored = values(60 if arguments.quick else 300)
    assert len({step() for step in scored.values()}) == 1
    results["value"] = best_times(dict(scored), seconds / 3)

    console = Console()
    table = Table("work", "who", "CPU ms a pair", "times structloss")
    for work, times in results.items():
        for name, spent in times.items():
            table.add_row(work, name, f"{1e3 * spent:.3f}", f"{spent / times['structloss']:.2f}")
    console.print(f"B={batch} N=M={n}, float32, one thread; values: {60 if arguments.quick else 300} labels")
    console.print(table)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"batch": batch, "n": n, "seconds": results}, indent=2))
