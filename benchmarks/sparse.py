"""The expected edit distance of CTC to within a tolerance, against torch's ctc_loss on the same batch.

    python benchmarks/sparse.py [--quick] [--seconds 3] [--threads 1 2] [--json benchmarks/results/sparse.json]
    python benchmarks/sparse.py --growth [--out docs/images/sparse_growth.png]
    python benchmarks/sparse.py --graphs

Forward and backward from the log-probabilities, both in turn, the best of many; machines explored before. In one thread
processor time; in two the clock on the wall, which says little on a machine that has other things to do. The exact
product runs where it can (sure, cap 3): value and gradient must lie within the bound. --growth measures how time grows
with frames, labels of a reference, labels that there are, and the cap, on sure and on flat posteriors, and draws it.
--graphs has chains and a lattice.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import ctc_loss, one_hot

import posteriors
import structloss as sl
from structloss.cli.plots import require_matplotlib


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


def growing(quick: bool) -> dict[str, list[Setting]]:
    """By what grows, the settings on sure and flat posteriors in turn."""
    usual = (100, 20, 10, 3) if quick else (200, 40, 40, 5)  # frames, labels, labels of a reference, the cap
    values = {
        "frames": (0, (50, 100) if quick else (100, 200, 400, 800, 1600)),
        "labels of a reference": (2, (5, 10) if quick else (10, 20, 40, 80)),
        "labels that there are": (1, (10, 20) if quick else (10, 40, 160, 640)),
        "cap": (3, (2, 3) if quick else (1, 2, 3, 5, 7, 10)),
    }
    found: dict[str, list[Setting]] = {}
    for name, (place, numbers) in values.items():
        for number in numbers:
            *sizes, cap = (*usual[:place], number, *usual[place + 1 :])
            found.setdefault(name, []).extend(
                Setting(kind, *sizes, sl.EditDistance(cap=cap), 1e-2) for kind in ("sure", "flat")
            )
    return found


def measure(setting: Setting, B: int, seconds: float, threads: int) -> dict[str, object]:
    """Seconds of both, the bound, the states a frame, and where the exact product runs the error."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter  # of the processor: others may want it, too
    log_probs, references = getattr(posteriors, setting.kind)(B, setting.T, setting.C, setting.n)
    mine, theirs = log_probs.clone().requires_grad_(), log_probs.transpose(0, 1).contiguous().requires_grad_()
    labels, lengths = references.tolist(), ([setting.T] * B, [setting.n] * B)

    def certified() -> tuple[sl.Certified, Tensor]:
        found = sl.CTC(mine).certified(setting.loss, labels, setting.tolerance)
        return found, torch.autograd.grad(found.value.sum(), mine)[0]

    def peer() -> Tensor:
        return torch.autograd.grad(ctc_loss(theirs, references, *lengths, reduction="sum"), theirs)[0]

    start = clock()
    found, gradient = certified()
    first = clock() - start
    best, spent = {"certified": math.inf, "ctc_loss": math.inf}, 0.0
    while spent < 2 * seconds:
        for name, step in (("certified", certified), ("ctc_loss", peer)):
            start = clock()
            step()
            elapsed = clock() - start
            best[name], spent = min(best[name], elapsed), spent + elapsed
    machines = [setting.loss.open(r, setting.C, False).num_states for r in references.numpy()]
    result: dict[str, object] = {
        **{"kind": setting.kind, "T": setting.T, "C": setting.C, "n": setting.n, "loss": repr(setting.loss)},
        **{"threads": threads, "cap": setting.loss.cap},
        **{"tolerance": setting.tolerance, "target": setting.target, "risk": found.value.mean().item()},
        **{"bound": found.error_bound.max().item(), "active": found.active.mean().item()},
        **{"states": sum(machines) / B, "first": first, **best, "ratio": best["certified"] / best["ctc_loss"]},
    }
    if setting.kind == "sure" and setting.loss.cap == 3 and threads == 1 and setting.target is None and setting.n <= 40:
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


def run(
    quick: bool, seconds: float, console: Console, threads: Sequence[int] = (1, 2), growth: bool = False
) -> list[dict[str, object]]:
    """Measures all settings, or how they grow, and prints them."""
    before, B = torch.get_num_threads(), 4 if quick or growth else 16
    wanted = [setting for one in growing(quick).values() for setting in one] if growth else settings(quick)
    rows = [row for number in threads for row in measured(wanted, B, seconds, number, console)]
    torch.set_num_threads(before)
    table = Table(
        "setting", "threads", "bound", "states", "risk", "ms", "ratio", "wanted", "exact ms", "value off",
        "gradient off",
    )  # fmt: skip
    table.title = f"The risk to within a tolerance, B={B}, states a frame, times torch's ctc_loss"
    for row in rows:
        loss = row["loss"].rpartition(", ")[2].rstrip(")")
        off = (f"{row[name]:.1e}" if name in row else "" for name in ("value off", "gradient off"))
        table.add_row(
            f"{row['kind']} T={row['T']} C={row['C']} n={row['n']} {loss} {row['tolerance']:g}", str(row["threads"]),
            f"{row['bound']:.1e}", f"{row['active']:.1f}", f"{row['risk']:.3f}", f"{1e3 * row['certified']:.1f}",
            f"{row['ratio']:.2f}", f"{row['target'] or ''}", f"{1e3 * row['exact']:.0f}" if "exact" in row else "",
            *off,
        )  # fmt: skip
    Console(width=150).print(table)
    return rows


def measured(
    wanted: list[Setting], B: int, seconds: float, threads: int, console: Console
) -> Iterator[dict[str, object]]:
    """One after the other."""
    for setting in wanted:
        with console.status(f"{setting.kind}, {setting.loss}, tolerance {setting.tolerance}"):
            yield measure(setting, B, seconds, threads)


def graphs(seconds: float) -> None:
    """Chains and a lattice, exactly and to within a tolerance, beside the likelihood: processor time in one thread."""
    torch.set_num_threads(1)
    generator, B = torch.Generator().manual_seed(0), 16
    cap, window, band = sl.EditDistance(cap=5), sl.EditDistance(window=3), sl.EditDistance(window=3, band=4)

    def scored(T: int, K: int) -> tuple[list[list[int]], Tensor]:
        """References, and scores (B, T, K) that favour them but for a tenth."""
        labels = torch.randint(0, K, (B, T), generator=generator)
        wrong = torch.rand(B, T, generator=generator) < 0.1
        said = torch.where(wrong, torch.randint(0, K, (B, T), generator=generator), labels)
        scores = torch.randn(B, T, K, generator=generator) + 6 * one_hot(said, K)
        return labels.tolist(), scores.requires_grad_()

    (labels, scores), transitions = scored(50, 10), torch.randn(10, 10, generator=generator)
    (states, spelt), emits = scored(13, 40), [[], *([k] for k in range(38)), [3, 7]]
    (heard, arcs), places = scored(100, 5), range(100)
    links = [[t, t + 1, int(k)] for t in places for k in torch.randperm(40, generator=generator)[:5]]
    phones = [[label for k in row for label in emits[k]] for row in states]
    words = [[links[5 * t + k][2] for t, k in enumerate(row)] for row in heard]
    cases = {
        "chain of order 2, T=50, 10 labels": (
            lambda: sl.Chain.from_emissions(scores, transitions), scores, labels, (cap, None), (cap, 0.1),
            (window, 0.1),
        ),
        "chain that emits, T=13, 40 states": (
            lambda: sl.Chain(spelt, emits=emits), spelt, phones, (cap, None), (band, None), (window, 0.1),
            (window, 0.01),
        ),
        "lattice, 100 places of 5 arcs": (
            lambda: sl.Lattice([links] * B, arcs.flatten(), num_labels=40), arcs, words, (cap, None), (window, 0.1),
            (window, 0.01),
        ),
    }  # fmt: skip
    table = Table("structure", "loss", "tolerance", "risk", "bound", "states", "ms", "ms, likelihood")
    for name, (make, leaf, references, *wanted) in cases.items():

        def timed(value: Callable[[], Tensor], leaf: Tensor = leaf) -> float:
            value()  # finds the states of machines
            best, end = math.inf, time.process_time() + seconds
            while best == math.inf or time.process_time() < end:
                start = time.process_time()
                torch.autograd.grad(value().sum(), leaf)
                best = min(best, time.process_time() - start)
            return 1e3 * best

        s = make()
        likelihood = timed(lambda s=s, r=references: s.log_partition() - s.given(r).log_partition())
        for loss, tolerance in wanted:
            shown = repr(loss).partition("deletion=1.0, ")[2].rstrip(")")
            if tolerance is None:
                run = lambda s=s, r=references, loss=loss: s.expected(loss, r)  # noqa: E731
                found = [f"{run().mean():.3f}", "", ""]
            else:
                run = lambda s=s, r=references, loss=loss, x=tolerance: s.certified(loss, r, x).value  # noqa: E731
                one = s.certified(loss, references, tolerance)
                found = [f"{one.value.mean():.3f}", f"{one.error_bound.max():.2g}", f"{one.active.mean():.1f}"]
            table.add_row(name, shown, str(tolerance or "exact"), *found, f"{timed(run):.1f}", f"{likelihood:.1f}")
    Console(width=140).print(table)


def draw(path: Path, names: Sequence[str], rows: list[dict[str, object]]) -> None:
    """A panel for each thing that grows: the time for an example, hollow where the bound is above the tolerance."""
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    figure = Figure(figsize=(11, 3.4), dpi=110, layout="constrained")
    for axes, name, key in zip(figure.subplots(1, len(names), sharey=True), names, ("T", "n", "C", "cap"), strict=True):
        for kind, colour in (("sure", "#0072B2"), ("flat", "#D55E00")):
            own = [row for row in rows if row["grows"] == name and row["kind"] == kind]
            x, times = [row[key] for row in own], [250 * row["certified"] for row in own]
            axes.plot(x, times, color=colour, linewidth=1.6, label=f"risk, {kind} posteriors")
            held = [row["bound"] <= row["tolerance"] * 1.01 for row in own]
            axes.scatter(x, times, s=26, zorder=3, edgecolors=colour, facecolors=[colour if h else "w" for h in held])
        axes.plot(x, [250 * row["ctc_loss"] for row in own], "--", color="#555555", label="torch's ctc_loss")
        axes.set(xscale="log", yscale="log", xlabel=name)
        axes.set_xticks(x, [f"{value:g}" for value in x])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("ms for an example, with gradient")
    figure.axes[0].legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small, some seconds")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each may run in each setting")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--growth", action="store_true", help="how time grows, in one thread, instead")
    parser.add_argument("--graphs", action="store_true", help="chains and a lattice instead")
    parser.add_argument("--out", type=Path, default=Path("docs/images/sparse_growth.png"), help="its picture")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/sparse.json"))
    arguments = parser.parse_args()
    seconds = min(arguments.seconds, 0.5) if arguments.quick else arguments.seconds
    if arguments.graphs:
        graphs(seconds)
        return
    threads = [1] if arguments.growth else arguments.threads
    rows = run(arguments.quick, seconds, Console(), threads, arguments.growth)
    if arguments.growth:
        grows = growing(arguments.quick)
        for row, name in zip(rows, (name for name, own in grows.items() for _ in own), strict=True):
            row["grows"] = name
        if not arguments.quick:
            draw(arguments.out, list(grows), rows)
            print(f"wrote {arguments.out}")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
