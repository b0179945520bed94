"""CTC: exact Hinge, DirectLoss and Perceptron of the edit distance against torch's ctc_loss, forward and backward.

    python benchmarks/ctc_maxima.py [--caps 3 5] [--large] [--seconds 3] [--threads 1]

The posteriors are made up: sure in four frames of five, in the others with a tenth or two on three other labels; and
noisy, with some of everything. First is the step that finds the states of the machines, later ones have them.
"""

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import ctc_loss

import structloss as sl


def posteriors(B: int, T: int, U: int, C: int, noise: float) -> tuple[Tensor, Tensor]:
    """log_probs (B, T, C) along an alignment of random targets (B, U)."""
    g = np.random.default_rng(0)
    p, targets = np.full((B, T, C), 1e-7), g.integers(1, C, (B, U))
    for b in range(B):
        width, gap = g.integers(1, 4, U), g.integers(0, 2, U)
        gap[1:] = np.maximum(gap[1:], targets[b, 1:] == targets[b, :-1])
        at, stretch, path = 0.0, T / (width + gap).sum(), np.zeros(T, np.int64)
        for u in range(U):
            at += gap[u] * stretch
            path[int(at) : max(int(at) + 1, int(at + width[u] * stretch))] = targets[b, u]
            at += width[u] * stretch
        for t in range(T):
            share = 0.999 if g.random() < 0.8 else g.uniform(0.7, 0.95)
            p[b, t, g.integers(0, C, 3)] += g.dirichlet([1, 1, 1]) * (1 - share)
            p[b, t, path[t]] += share
    scores = torch.tensor(p).log()
    return (scores + noise * torch.randn(scores.shape)).log_softmax(2).float(), torch.tensor(targets)


def timed(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def rows(log_probs: Tensor, targets: Tensor, caps: list[int], seconds: float) -> list[tuple[str, ...]]:
    """Of each objective its value, the milliseconds of a first and of a later step, and the ratio to torch's."""
    mine, theirs = log_probs.clone().requires_grad_(), log_probs.transpose(0, 1).contiguous().requires_grad_()
    references, (B, T, _) = targets.tolist(), log_probs.shape
    lengths, sizes = torch.full((B,), T), torch.full((B,), targets.shape[1])
    losses = [sl.EditDistance(cap=cap) for cap in caps]
    objectives = [
        o for loss in losses for o in (sl.Hinge(loss), sl.DirectLoss(loss), sl.DirectLoss(loss, toward=False))
    ]

    def peer() -> None:
        torch.autograd.grad(ctc_loss(theirs, targets, lengths, sizes, reduction="sum"), theirs)

    def step(objective: sl.Objective) -> float:
        value = objective(sl.CTC(mine), references)
        torch.autograd.grad(value, mine)
        return value.item()

    found = []
    for objective in (*objectives, sl.Perceptron()):
        sl.clear_cache()
        first, best, end = timed(lambda o=objective: step(o)), [math.inf, math.inf], time.perf_counter() + seconds
        while time.perf_counter() < end:
            best = [min(best[0], timed(peer)), min(best[1], timed(lambda o=objective: step(o)))]
        loss, toward = getattr(objective, "loss", None), getattr(objective, "toward", None)
        named = type(objective).__name__
        named += "" if loss is None else f", cap {loss.cap:g}"
        named += "" if toward is None else ", toward" if toward else ", away"
        milliseconds = (f"{1e3 * x:.1f}" for x in (best[0], first, best[1]))
        found.append((named, f"{step(objective):.3f}", *milliseconds, f"{best[1] / best[0]:.2f}"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--caps", type=int, nargs="+", default=[5])
    parser.add_argument("--large", action="store_true", help="B=16 T=500 C=1000 U=80 too")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each objective")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for B, T, U, C in [(16, 200, 40, 40), *([(16, 500, 80, 1000)] if args.large else [])]:
        for kind, noise in (("sure", 0.0), ("noisy", 2.0)):
            torch.manual_seed(0)
            log_probs, targets = posteriors(B, T, U, C, noise)
            rows(log_probs[:1, :10], targets[:1, :2], args.caps, 0.0)  # compiles
            table = Table(title=f"{kind}, B={B} T={T} C={C} U={U}, threads {args.threads}")
            for name in ("objective", "value", "torch ctc_loss, ms", "first, ms", "later, ms", "ratio"):
                table.add_column(name, overflow="fold")
            for row in rows(log_probs, targets, args.caps, args.seconds):
                table.add_row(*row)
            Console(width=130).print(table)


if __name__ == "__main__":
    main()
