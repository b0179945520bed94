"""The expected edit distance of CTC to within a tolerance, against torch's ctc_loss on the same batch.

    python benchmarks/sparse.py [--quick] [--seconds 3] [--json benchmarks/results/sparse.json]

In one thread, forward and backward from the log-probabilities, processor time, both in turn, the best of many;
machines explored before. The exact product runs where it can (sure, cap 3): value and gradient must lie within the
bound.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import ctc_loss

import posteriors
import structloss as sl


class Setting(NamedTuple):
    """Which posteriors, of T frames, C labels and n in a reference; which loss; how exact."""

    kind: str
    T: int
    C: int
    n: int
    loss: sl.EditDistance
    tolerance: float
    target: float | None = None  # times ctc_loss


def settings(quick: bool) -> list[Setting]:
    """All of them."""
    cap, window = (lambda k: sl.EditDistance(cap=k)), sl.EditDistance(window=3)
    if quick:
        return [Setting("sure", 50, 20, 10, cap(3), 1e-2), Setting("sure", 50, 20, 10, window, 1e-2)]
    small, large = (200, 40, 40), (500, 1000, 80)
    return [
        *(Setting("sure", *small, cap(3), tolerance) for tolerance in (1e-2, 1e-3)),
        Setting("sure", *small, cap(5), 1e-3, 2.5),
        Setting("sure", *small, window, 1e-3),
        Setting("trained", *small, cap(5), 1e-2),
        Setting("trained", *small, window, 0.1, 4.0),
        Setting("trained", *small, window, 1e-2, 10.0),
        Setting("sure", *large, cap(5), 1e-3, 1.2),
        Setting("trained", *large, cap(5), 1e-2),
        Setting("trained", *large, window, 0.1, 7.0),
    ]


def measure(setting: Setting, B: int, seconds: float) -> dict[str, object]:
    """Seconds of both, the bound, the states a frame, and where the exact product runs the error."""
    log_probs, references = getattr(posteriors, setting.kind)(B, setting.T, setting.C, setting.n)
    mine, theirs = log_probs.clone().requires_grad_(), log_probs.transpose(0, 1).contiguous().requires_grad_()
    labels, lengths = references.tolist(), ([setting.T] * B, [setting.n] * B)

    def certified() -> tuple[sl.Certified, Tensor]:
        found = sl.CTC(mine).certified(setting.loss, labels, setting.tolerance)
        return found, torch.autograd.grad(found.value.sum(), mine)[0]

    def peer() -> Tensor:
        return torch.autograd.grad(ctc_loss(theirs, references, *lengths, reduction="sum"), theirs)[0]

    start = time.process_time()
    found, gradient = certified()
    first = time.process_time() - start
    best, spent = {"certified": math.inf, "ctc_loss": math.inf}, 0.0
    while spent < 2 * seconds:
        for name, step in (("certified", certified), ("ctc_loss", peer)):
            start = time.process_time()  # of the processor: others may want it, too
            step()
            elapsed = time.process_time() - start
            best[name], spent = min(best[name], elapsed), spent + elapsed
    machines = [setting.loss.open(r, setting.C, False).num_states for r in references.numpy()]
    result: dict[str, object] = {
        **{"kind": setting.kind, "T": setting.T, "C": setting.C, "loss": repr(setting.loss)},
        **{"tolerance": setting.tolerance, "target": setting.target, "risk": found.value.mean().item()},
        **{"bound": found.error_bound.max().item(), "active": found.active.mean().item()},
        **{"states": sum(machines) / B, "first": first, **best, "ratio": best["certified"] / best["ctc_loss"]},
    }
    if setting.kind == "sure" and setting.loss.cap == 3:
        start = time.process_time()
        exact = sl.CTC(leaf := log_probs.double().requires_grad_()).expected(setting.loss, labels)
        (wanted,) = torch.autograd.grad(exact.sum(), leaf)
        result["exact"] = time.process_time() - start
        result["value off"] = (found.value.double() - exact).abs().max().item()
        result["gradient off"] = (gradient.double() - wanted).abs().max().item()
        bound = found.error_bound.double()
        assert ((found.value.double() - exact).abs() <= bound).all()
        assert ((gradient.double() - wanted).abs().amax((1, 2)) <= bound).all()
    return result


def run(quick: bool, seconds: float, console: Console) -> list[dict[str, object]]:
    """Measures all settings in one thread, and prints them."""
    threads, B = torch.get_num_threads(), 4 if quick else 16
    torch.set_num_threads(1)
    rows = list(measured(settings(quick), B, seconds, console))
    torch.set_num_threads(threads)
    table = Table(
        "setting", "bound", "states", "risk", "ms", "ratio", "wanted", "exact ms", "value off", "gradient off"
    )
    table.title = f"The risk to within a tolerance, B={B}, states a frame, times torch's ctc_loss, one thread"
    for row in rows:
        loss = row["loss"].rpartition(", ")[2].rstrip(")")
        off = (f"{row[name]:.1e}" if name in row else "" for name in ("value off", "gradient off"))
        table.add_row(
            f"{row['kind']} T={row['T']} C={row['C']} {loss} {row['tolerance']:g}", f"{row['bound']:.1e}",
            f"{row['active']:.1f}", f"{row['risk']:.3f}", f"{1e3 * row['certified']:.1f}", f"{row['ratio']:.2f}",
            f"{row['target'] or ''}", f"{1e3 * row['exact']:.0f}" if "exact" in row else "", *off,
        )  # fmt: skip
    Console(width=140).print(table)
    return rows


def measured(wanted: list[Setting], B: int, seconds: float, console: Console) -> Iterator[dict[str, object]]:
    """One after the other."""
    for setting in wanted:
        with console.status(f"{setting.kind}, {setting.loss}, tolerance {setting.tolerance}"):
            yield measure(setting, B, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, some seconds")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each may run in each setting")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/sparse.json"))
    arguments = parser.parse_args()
    rows = run(arguments.quick, min(arguments.seconds, 0.5) if arguments.quick else arguments.seconds, Console())
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
