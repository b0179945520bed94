"""Losses as machines: structloss against OpenFst's pipeline of the paper, and against a plain CRF.

    python benchmarks/losses.py [--quick] [--json benchmarks/results/losses.json]

Answers are compared before times are printed. --quick leaves out the long OpenFst runs.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torchcrf import CRF

import structloss as sl
from structloss.reproduce.gradients import grad_reduced, grad_tropical
from structloss.reproduce.transducers import counted_ngrams, edit_transducer


def best_of(run: Callable[[], object], seconds: float) -> float:
    """The best time of as many runs as the seconds allow, at least one."""
    best, spent = math.inf, 0.0
    while spent < seconds or best == math.inf:
        start = time.perf_counter()
        run()
        elapsed = time.perf_counter() - start
        best, spent = min(best, elapsed), spent + elapsed
    return best


def softmax_margin() -> tuple[float, float]:
    """Seconds of a training step under the capped edit distance, machines cached, and of pytorch-crf's plain loss."""
    torch.manual_seed(0)
    B, T, K = 32, 50, 10
    emissions, labels = torch.randn(B, T, K, requires_grad=True), torch.randint(0, K, (B, T))
    layer, crf = sl.ChainLayer(K), CRF(K, batch_first=True)
    mask = torch.ones(B, T, dtype=torch.bool)
    objective = sl.SoftmaxMargin(sl.EditDistance(cap=5))
    inputs, theirs = [emissions, *layer.parameters()], [emissions, *crf.parameters()]

    def ours() -> None:
        torch.autograd.grad(objective(layer(emissions), labels), inputs)

    def peer() -> None:
        torch.autograd.grad(-crf(emissions, labels, mask, reduction="mean"), theirs)

    ours(), peer()
    mine, other = math.inf, math.inf
    for _ in range(8):  # in turn, so that both meet the same noise
        mine, other = min(mine, best_of(ours, 0.3)), min(other, best_of(peer, 0.3))
    return mine, other


def compiling() -> float:
    """Seconds to compile the machine of one reference of 50 symbols, in one thread."""
    reference = np.random.default_rng(0).integers(0, 10, 50)
    loss = sl.EditDistance(cap=5)
    return best_of(lambda: loss.compile(reference, 10, 50, False), 1.0)


def q_of(potentials: np.ndarray, loss: sl.Loss, reference: list[int]) -> np.ndarray:
    """Q_w, from the reference to the marginals, nothing cached."""
    sl.clear_cache()
    chain = sl.Chain(torch.from_numpy(potentials)[None])
    return chain.augment(loss, [reference]).marginals()[0].numpy()


def exact_edit(length: int) -> tuple[float, float]:
    """Seconds for Q_w under the exact edit distance, ours and OpenFst's."""
    generator = np.random.default_rng(0)
    potentials, reference = generator.standard_normal((length, 10, 10)), generator.integers(0, 10, length).tolist()
    loss = sl.EditDistance()
    start = time.perf_counter()
    theirs = grad_tropical(potentials, reference, edit_transducer(10, 1, 1, 1))
    elapsed = time.perf_counter() - start
    np.testing.assert_allclose(q_of(potentials, loss, reference), theirs, atol=1e-8)
    return best_of(lambda: q_of(potentials, loss, reference), 1.0), elapsed


def bigram(length: int) -> tuple[float, float]:
    """Seconds for Q_w under the bigram loss, ours and OpenFst's from the machine reduced by hand."""
    generator = np.random.default_rng(0)
    potentials, reference = generator.standard_normal((length, 10, 10)), generator.integers(0, 10, length).tolist()
    loss = sl.NGram(2, smoothing=0)
    start = time.perf_counter()
    theirs = grad_reduced(potentials, counted_ngrams(reference, 10, 2))
    elapsed = time.perf_counter() - start
    np.testing.assert_allclose(q_of(potentials, loss, reference), theirs, atol=1e-8)
    return best_of(lambda: q_of(potentials, loss, reference), 1.0), elapsed


STEP = """
import sys, time, torch, structloss as sl
B, T, K = map(int, sys.argv[1:])
torch.manual_seed(0)

def status(field):
    with open("/proc/self/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith(field))

def step(T):
    emissions, layer = torch.randn(B, T, K, requires_grad=True), sl.ChainLayer(K)
    objective, labels = sl.SoftmaxMargin(sl.EditDistance(cap=5)), torch.randint(0, K, (B, T))
    objective(layer(emissions), labels).backward()  # compiles the machines
    start = time.perf_counter()
    objective(layer(emissions), labels).backward()
    return time.perf_counter() - start

step(10)
before = status("VmRSS")
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
seconds = min(step(T) for _ in range(3))
print(seconds, status("VmHWM") - before)
"""


def long_step(B: int, T: int, K: int) -> tuple[float, int]:
    """Seconds of a step with cached machines, and peak bytes, in a process of its own."""
    printed = subprocess.run(
        [sys.executable, "-c", STEP, str(B), str(T), str(K)], capture_output=True, text=True, check=True
    )
    seconds, peak = printed.stdout.split()
    return float(seconds), int(peak)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave out the long OpenFst runs")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/losses.json"))
    arguments = parser.parse_args()
    console, results = Console(), {}
    table = Table("work", "ours", "peer", "times faster", title="Losses as machines")

    def row(work: str, mine: float, other: float) -> None:
        table.add_row(work, f"{1e3 * mine:.2f} ms", f"{1e3 * other:.1f} ms", f"{other / mine:.1f}")

    mine, other = softmax_margin()
    row("SoftmaxMargin(EditDistance(cap=5)), B=32 T=50 K=10 / plain pytorch-crf", mine, other)
    results["softmax margin"] = {"ours": mine, "pytorch-crf": other}

    seconds = compiling()
    table.add_row("compiling EditDistance(cap=5), 50 symbols, one core", f"{1e3 * seconds:.2f} ms", "", "")
    results["compiling"] = seconds

    length = 8 if arguments.quick else 12
    mine, other = exact_edit(length)
    row(f"exact edit-distance Q_w, l={length}, 10 symbols / OpenFst", mine, other)
    results["exact edit"] = {"length": length, "ours": mine, "openfst": other}

    mine, other = bigram(30)
    row("bigram Q_w, l=30 / OpenFst from a machine reduced by hand", mine, other)
    results["bigram"] = {"ours": mine, "openfst": other}
    console.print(table)

    growth = Table("T", "ms a step", "peak MB", title="SoftmaxMargin(EditDistance(cap=5)), B=8 K=10")
    lengths = [100, 200, 400, 800, 1600]
    steps = [long_step(8, T, 10) for T in lengths]
    for T, (seconds, peak) in zip(lengths, steps, strict=True):
        growth.add_row(str(T), f"{1e3 * seconds:.2f}", f"{peak / 1e6:.1f}")
    exponents = [np.polyfit(np.log(lengths), np.log([s[i] for s in steps]), 1)[0] for i in (0, 1)]
    console.print(growth)
    console.print(f"time grows with exponent {exponents[0]:.2f}, memory with {exponents[1]:.2f}")
    results["growth"] = {"T": lengths, "seconds": [s for s, _ in steps], "bytes": [p for _, p in steps]}

    seconds, peak = long_step(8, 1000, 40)
    console.print(f"B=8 T=1000 K=40: {1e3 * seconds:.0f} ms a step, peak {peak / 1e6:.0f} MB")
    results["T=1000 K=40"] = {"seconds": seconds, "bytes": peak}
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    temporary = arguments.json.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1))
    temporary.rename(arguments.json)
    console.print(f"wrote {arguments.json}")


if __name__ == "__main__":
    main()
