"""CRF loss, forward and backward: structloss against pytorch-crf and torch-struct, in one process on the same work.

    python benchmarks/chain.py [--seconds 3] [--json benchmarks/results/chain.json]

Answers (loss and gradients) are compared first, then the best of many interleaved runs gives each ratio.
"""

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch_struct import LinearChainCRF
from torchcrf import CRF

import structloss as sl

warnings.filterwarnings("ignore", message=".*arg_constraints.*")  # of torch-struct

Losses = dict[str, Callable[[], Tensor]]


def problem(B: int, T: int, K: int) -> tuple[Losses, dict[str, list[Tensor]]]:
    """The same mean negative log-likelihood from each library, and the tensors its gradient is taken in."""
    torch.manual_seed(0)
    emissions = torch.randn(B, T, K, requires_grad=True)
    labels = torch.randint(0, K, (B, T))
    layer = sl.ChainLayer(K)
    objective = sl.NegativeLogLikelihood()
    crf, mask = CRF(K, batch_first=True), torch.ones(B, T, dtype=torch.bool)
    with torch.no_grad():
        crf.transitions.copy_(layer.transitions)
        crf.start_transitions.copy_(layer.start)
        crf.end_transitions.copy_(layer.end)
    mine = [emissions, layer.transitions, layer.start, layer.end]

    def torch_struct() -> Tensor:
        # log_potentials[b, t, j, i] scores label i at t and j at t + 1; the ends go into the first and the last.
        scores = emissions[:, 1:, :, None] + layer.transitions.T
        first = (emissions[:, 0] + layer.start)[:, None, None, :] * (torch.arange(T - 1) == 0)[:, None, None]
        last = layer.end[None, None, :, None] * (torch.arange(T - 1) == T - 2)[:, None, None]
        dist = LinearChainCRF((scores + first + last).contiguous())
        return -dist.log_prob(LinearChainCRF.struct.to_parts(labels, K).type_as(emissions)).mean()

    losses = {
        "structloss": lambda: objective(layer(emissions), labels),
        "pytorch-crf": lambda: -crf(emissions, labels, mask, reduction="mean"),
        "torch-struct": torch_struct,
    }
    theirs = [emissions, crf.transitions, crf.start_transitions, crf.end_transitions]
    return losses, {"structloss": mine, "pytorch-crf": theirs, "torch-struct": mine}


def step(loss: Callable[[], Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Forward and backward."""
    value = loss()
    return [value.detach(), *torch.autograd.grad(value, inputs)]


def best_times(losses: Losses, inputs: dict[str, list[Tensor]], seconds: float) -> dict[str, float]:
    """The best of many runs of each, one after the other in turn, until each had its share of the seconds."""
    best = dict.fromkeys(losses, float("inf"))
    spent = dict.fromkeys(losses, 0.0)
    runs = dict.fromkeys(losses, 0)
    while any(spent[name] < seconds or runs[name] < 3 for name in losses):
        for name, loss in losses.items():
            if spent[name] >= seconds and runs[name] >= 3:
                continue
            start = time.perf_counter()
            step(loss, inputs[name])
            elapsed = time.perf_counter() - start
            best[name], spent[name], runs[name] = min(best[name], elapsed), spent[name] + elapsed, runs[name] + 1
    return best


def compare(B: int, T: int, K: int, seconds: float) -> dict[str, object]:
    losses, inputs = problem(B, T, K)
    ours = step(losses["structloss"], inputs["structloss"])
    for name in ("pytorch-crf", "torch-struct"):
        for mine, theirs in zip(ours, step(losses[name], inputs[name]), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    best = best_times(losses, inputs, seconds)
    ratios = {name: best[name] / best["structloss"] for name in losses}
    return {"B": B, "T": T, "K": K, "milliseconds": {n: 1e3 * t for n, t in best.items()}, "ratio": ratios}


MEMORY = """
import sys, torch, structloss as sl
B, T, K, dense = 8, 2000, 50, sys.argv[1] == "dense"
objective, labels = sl.NegativeLogLikelihood(), torch.zeros(B, T, dtype=torch.int64)

def loss(potentials, transitions):
    T = potentials.shape[1]
    chain = sl.Chain(potentials) if dense else sl.Chain.from_emissions(potentials, transitions)
    objective(chain, labels[:, :T]).backward()

def tensors(T):
    shape = (B, T, K, K) if dense else (B, T, K)
    return torch.zeros(shape, requires_grad=True), torch.zeros(K, K, requires_grad=True)

def status(field):  # of this process, in bytes (Linux)
    with open("/proc/self/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith(field))

loss(*tensors(20))  # compile, start threads
before = status("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # forget the peak so far, the compiler's
potentials, transitions = tensors(T)
loss(potentials, transitions)
print(potentials.numel() * 4, status("VmHWM") - before)
"""


def memory(kind: str) -> dict[str, object]:
    """Peak resident memory of the loss and its gradient, the potentials included, in a process of its own."""
    printed = subprocess.run([sys.executable, "-c", MEMORY, kind], capture_output=True, text=True, check=True).stdout
    potentials, peak = map(int, printed.split())
    return {"potentials": kind, "bytes": potentials, "peak bytes": peak, "ratio": peak / potentials}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each library may run in each setting")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/chain.json"))
    arguments = parser.parse_args()
    console = Console()
    speed = Table(
        "B", "T", "K", "library", "best ms", "times slower than structloss", title="CRF loss, forward + backward"
    )
    results = []
    for K in (10, 50):
        with console.status(f"K = {K}"):
            row = compare(32, 50, K, arguments.seconds)
        results.append(row)
        for name, milliseconds in row["milliseconds"].items():
            speed.add_row("32", "50", str(K), name, f"{milliseconds:.3f}", f"{row['ratio'][name]:.1f}")
    console.print(speed)
    peaks = [memory("dense"), memory("emissions")]
    table = Table("potentials", "MB", "peak MB", "ratio", title="Peak memory, B=8 T=2000 K=50, float32")
    for row in peaks:
        table.add_row(
            row["potentials"], f"{row['bytes'] / 1e6:.1f}", f"{row['peak bytes'] / 1e6:.1f}", f"{row['ratio']:.2f}"
        )
    console.print(table)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    temporary = arguments.json.with_suffix(".tmp")
    temporary.write_text(
        json.dumps(
            {"torch": torch.__version__, "threads": torch.get_num_threads(), "speed": results, "memory": peaks},
            indent=1,
        )
    )
    temporary.rename(arguments.json)
    console.print(f"wrote {arguments.json}")


if __name__ == "__main__":
    main()
