"""CTC: structloss against torch's ctc_loss, the exact risk against that over n-best lists, and the certified one.

    python benchmarks/lattice.py [--quick] [--seconds 3] [--json benchmarks/results/lattice.json]

Answers are compared before times are printed. --quick is a small run, and leaves the figure of the guide as it is.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import ctc_loss, one_hot

import sparse
import structloss as sl
from structloss.cli.plots import require_matplotlib

Step = Callable[[], tuple[Tensor, Tensor]]  # a value, and the gradient (B, T, C) in the log-probabilities


def best_times(steps: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The best of many runs of each, one after the other in turn, until each had its share of the seconds."""
    best, spent, runs = dict.fromkeys(steps, math.inf), dict.fromkeys(steps, 0.0), dict.fromkeys(steps, 0)
    while waiting := [name for name in steps if spent[name] < seconds or runs[name] < 3]:
        for name in waiting:
            start = time.perf_counter()
            steps[name]()
            elapsed = time.perf_counter() - start
            best[name], spent[name], runs[name] = min(best[name], elapsed), spent[name] + elapsed, runs[name] + 1
    return best


# The CTC loss.


def likelihoods(log_probs: Tensor, targets: Tensor) -> dict[str, Step]:
    """The same sum of negative log-likelihoods with its gradient, from log_probs (B, T, C) and targets (B, n)."""
    objective = sl.NegativeLogLikelihood(reduction="sum")
    mine = log_probs.clone().requires_grad_()
    theirs = log_probs.transpose(0, 1).contiguous().requires_grad_()  # (T, B, C), as torch wants it
    lengths, sizes = (torch.full((len(targets),), x.shape[1]) for x in (log_probs, targets))

    def structloss() -> tuple[Tensor, Tensor]:
        value = objective(sl.CTC(mine), targets)
        return value.detach(), torch.autograd.grad(value, mine)[0]

    def peer() -> tuple[Tensor, Tensor]:
        value = ctc_loss(theirs, targets, lengths, sizes, reduction="sum")
        return value.detach(), torch.autograd.grad(value, theirs)[0].transpose(0, 1)

    return {"structloss": structloss, "torch": peer}


def against_torch(B: int, T: int, C: int, n: int, seconds: float) -> dict[str, object]:
    """Times in float32, in float64 the difference, and the errors of both in float32 against float64."""
    torch.manual_seed(0)
    log_probs, targets = torch.randn(B, T, C, dtype=torch.float64).log_softmax(2), torch.randint(1, C, (B, n))
    truth, check = (step() for step in likelihoods(log_probs, targets).values())
    for mine, theirs in zip(truth, check, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    steps = likelihoods(log_probs.float(), targets)
    errors = {name: largest_errors(step(), truth) for name, step in steps.items()}
    threads, times = torch.get_num_threads(), []
    for used in sorted({threads, 1}, reverse=True):
        torch.set_num_threads(used)
        best = best_times(steps, seconds)
        times.append({"threads": used, "seconds": best, "ratio": best["structloss"] / best["torch"]})
    torch.set_num_threads(threads)
    return {
        **{"B": B, "T": T, "C": C, "targets": n, "times": times},
        **{"float64 difference": largest_errors(check, truth), "float32 error": errors},
    }


def largest_errors(found: tuple[Tensor, Tensor], truth: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Of the value relative to it; of the gradient, whose entries are at most 1 in size, absolute."""
    value = ((found[0].double() - truth[0]) / truth[0]).abs().item()
    return {"value": value, "gradient": (found[1].double() - truth[1]).abs().max().item()}


def exact_objectives(B: int, T: int, C: int, n: int, seconds: float) -> dict[str, float]:
    """Seconds of the exact objectives on the same work, value and gradient, machines cached."""
    torch.manual_seed(0)
    log_probs, targets = torch.randn(B, T, C).log_softmax(2).requires_grad_(), torch.randint(1, C, (B, n))
    objectives = [objective(sl.EditDistance(cap=cap)) for cap in (1, 2, 3) for objective in (sl.Risk, sl.SoftmaxMargin)]

    def step(objective: sl.Objective) -> None:
        torch.autograd.grad(objective(sl.CTC(log_probs), targets), log_probs)

    for objective in objectives:
        step(objective)  # compiles the machines
    named = {f"{type(o).__name__}(EditDistance(cap={o.loss.cap}))": partial(step, o) for o in objectives}
    return best_times(named, seconds / 3)


# The risk.


def recognisers(examples: int, T: int, C: int, n: int, bump: float) -> tuple[Tensor, list[list[int]]]:
    """log_probs (examples, T, C) of noise and a bump along an alignment of random references of n labels each."""
    torch.manual_seed(0)
    references = torch.randint(1, C, (examples, n))
    paths = torch.zeros(examples, T, dtype=torch.int64)
    for path, reference in zip(paths, references, strict=True):
        path[2 * torch.randperm(T // 2)[:n].sort().values] = reference  # with a blank between any two
    noise = torch.randn(examples, T, C, dtype=torch.float64)
    return (noise + bump * one_hot(paths, C)).log_softmax(2), references.tolist()


def exact_risk(log_probs: Tensor, references: list[list[int]]) -> Tensor:
    """(examples,), nothing cached."""
    return sl.Risk(sl.EditDistance(cap=3), reduction="none")(sl.CTC(log_probs), references)


def listed(log_probs: Tensor, k: int) -> tuple[Tensor, list[list[tuple[int, ...]]]]:
    """The probabilities (examples, k) of the k best paths, and the strings that they write."""
    scores, paths = (x.transpose(0, 1) for x in sl.CTC(log_probs).topk(k))
    labels = paths.numpy()
    before = np.concatenate([np.zeros_like(labels[:, :, :1]), labels[:, :, :-1]], 2)
    kept = (labels != before) & (labels > 0)
    return scores.exp(), [
        [tuple(labels[e, i, kept[e, i]].tolist()) for i in range(k)] for e in range(len(labels))
    ]  # what ctc.decode() gives, for all paths at once


def path_risk(log_probs: Tensor, references: list[list[int]], k: int) -> Tensor:
    """The risk over the k best paths, their probabilities renormalised; each different string is compared once."""
    probabilities, strings = listed(log_probs, k)
    risks = []
    for p, own, reference in zip(probabilities.tolist(), strings, references, strict=True):
        weights: dict[tuple[int, ...], float] = {}
        for string, weight in zip(own, p, strict=True):
            weights[string] = weights.get(string, 0.0) + weight
        risks.append(losses(weights, reference) @ np.array(list(weights.values())) / sum(weights.values()))
    return torch.tensor(risks, dtype=torch.float64)


def string_risk(log_probs: Tensor, references: list[list[int]], k: int) -> Tensor:
    """The same over the strings of these paths, each with the probability of all its paths."""
    return string_risk_and_mass(log_probs, references, k)[0]


def string_risk_and_mass(log_probs: Tensor, references: list[list[int]], k: int) -> tuple[Tensor, Tensor]:
    """The risk over the strings, and how much of the probability they have."""
    strings = [list(dict.fromkeys(own)) for own in listed(log_probs, k)[1]]
    sizes = [len(own) for own in strings]
    repeated = log_probs.repeat_interleave(torch.tensor(sizes), 0)
    written = sl.CTC(repeated).given([list(string) for own in strings for string in own]).log_partition()
    masses = [own.exp().numpy() for own in written.split(sizes)]
    risks = [losses(s, r) @ p / p.sum() for s, r, p in zip(strings, references, masses, strict=True)]
    return torch.tensor(risks, dtype=torch.float64), torch.tensor([p.sum() for p in masses])


def losses(strings: Iterable[tuple[int, ...]], reference: list[int]) -> np.ndarray:
    """Of each string against one reference, by the direct definition."""
    loss, wanted = sl.EditDistance(cap=3), np.array(reference)
    return np.array([loss.distance(np.array(string, np.int64), wanted) for string in strings])


def against_lists(settings: tuple[int, int, int, int], bump: float, sizes: list[int]) -> dict[str, object]:
    """Bias and seconds of both risks over lists, for lists of every size, and the seconds of the exact one."""
    log_probs, references = recognisers(*settings, bump)
    exact = exact_risk(log_probs, references)
    with sl.engine("torch"):  # another way to it: the whole product, in tensor operations
        torch.testing.assert_close(exact[:2], exact_risk(log_probs[:2], references[:2]), rtol=1e-8, atol=1e-8)
    risks: dict[str, Callable[[Tensor, list[list[int]], int], Tensor]] = {"paths": path_risk, "strings": string_risk}
    result = {name: {"bias": [], "seconds": []} for name in risks}
    for k in sizes:
        found, mass = string_risk_and_mass(log_probs, references, k)
        # What is not on the list costs between 0 and the cap, 3: this must enclose the exact risk.
        assert (mass * found <= exact + 1e-8).all()
        assert (exact <= mass * found + 3 * (1 - mass) + 1e-8).all()
        for name, risk in risks.items():
            result[name]["bias"].append((risk(log_probs, references, k) - exact).abs().mean().item())
        best = best_times({n: partial(risk, log_probs, references, k) for n, risk in risks.items()}, 0.2)
        for name, seconds in best.items():
            result[name]["seconds"].append(seconds)
    (seconds,) = best_times({"exact": lambda: exact_risk(log_probs, references)}, 0.5).values()
    wrong = sl.EditDistance(cap=3)(sl.CTC(log_probs).decode(), references).mean().item()
    return {"bump": bump, "exact risk": exact.mean().item(), "best path": wrong, "exact seconds": seconds, **result}


def draw(path: Path, sizes: list[int], rows: list[dict], examples: int) -> None:
    """Two panels: bias and time against the size of the list."""
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullLocator

    figure = Figure(figsize=(10, 4.4), dpi=150, layout="constrained")
    bias, times = figure.subplots(1, 2)
    kinds = {"paths": (0, (4, 2)), "strings": "-"}
    line = {"linewidth": 1.8, "marker": "o", "markersize": 4}
    for row, colour, kind in zip(rows, ("#D55E00", "#0072B2"), ("unsure", "sure"), strict=True):
        for name, style in kinds.items():
            bias.plot(sizes, row[name]["bias"], color=colour, linestyle=style, **line)
        text = f"{kind} models, exact risk {row['exact risk']:.2f}"
        place = (sizes[0], row["paths"]["bias"][0])
        bias.annotate(text, place, (0, 8), textcoords="offset points", color=colour, weight="bold")
    last = rows[-1]
    for name, style in kinds.items():
        times.plot(sizes, [1e3 * s / examples for s in last[name]["seconds"]], color="#555555", linestyle=style, **line)
    exact = 1e3 * last["exact seconds"] / examples
    times.axhline(exact, color="#009E73", linewidth=2.2)
    text = f"exact risk: {exact:.1f} ms"
    times.annotate(text, (sizes[0], exact), (0, 7), textcoords="offset points", color="#009E73", weight="bold")
    bias.set_title("How far the risk over an n-best list is off", loc="left")
    bias.set_ylabel("mean absolute error, in label errors")
    times.set_title("Time for an example, in one thread", loc="left")
    times.set_ylabel("milliseconds")
    shown = [Line2D([], [], color="#555555", linestyle=style, **line) for style in kinds.values()]
    for axes, place in ((bias, "lower left"), (times, "upper left")):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sizes[::2], [f"{k:,}" for k in sizes[::2]])
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("n, the best paths on the list")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(shown, ["over paths", "over their strings"], loc=place, frameon=False)
    bias.set_ylim(top=1.8 * max(max(row["paths"]["bias"]) for row in rows))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, some seconds; the figure is left as it is")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each may run in each setting")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/lattice.json"))
    parser.add_argument("--figure", type=Path, default=Path("docs/images/ctc_risk.png"))
    arguments = parser.parse_args()
    console, quick = Console(), arguments.quick
    seconds = min(arguments.seconds, 0.5) if quick else arguments.seconds

    B, T, C, n = work = (4, 50, 20, 10) if quick else (16, 200, 40, 40)
    title = f"B={B} T={T} C={C}, targets of {n}, value and gradient, float32"
    with console.status("the CTC loss"):
        speed = against_torch(*work, seconds)
        objectives = exact_objectives(*work, seconds)
    largest = max(speed["float64 difference"].values())
    console.print(f"float64: values and gradients agree, the largest difference is {largest:.1e}")
    table = Table("CTC loss", "threads", "best ms", "times torch's", "value off", "gradient off", title=title)
    for row in speed["times"]:
        for name, elapsed in row["seconds"].items():
            error = [f"{x:.1e}" for x in speed["float32 error"][name].values()]
            ratio = elapsed / row["seconds"]["torch"]
            table.add_row(name, str(row["threads"]), f"{1e3 * elapsed:.2f}", f"{ratio:.2f}", *error)
    peer = speed["times"][0]["seconds"]["torch"]
    console.print(table)
    table = Table("exactly", "best ms", "times torch's CTC loss", title="The same work, machines cached")
    for name, elapsed in objectives.items():
        table.add_row(name, f"{1e3 * elapsed:.2f}", f"{elapsed / peer:.2f}")
    console.print(table)

    settings = (4, 20, 8, 4) if quick else (20, 40, 12, 8)
    sizes = [2**i for i in range(0, 6 if quick else 11)]
    rows, threads = [], torch.get_num_threads()
    torch.set_num_threads(1)  # so that a time is work, and not how well it was shared out
    for bump in (6.0, 8.0):
        with console.status(f"the risk over lists, bump {bump}"):
            rows.append(against_lists(settings, bump, sizes))
    for row in rows:
        table = Table("n", "bias, paths", "bias, strings", "ms, paths", "ms, strings")
        table.title = f"EditDistance(cap=3), bump {row['bump']:.0f}: exact risk {row['exact risk']:.3f}; in one thread"
        for i, k in enumerate(sizes):
            ms = (f"{1e3 * row[name]['seconds'][i] / settings[0]:.3f}" for name in ("paths", "strings"))
            table.add_row(str(k), *(f"{row[name]['bias'][i]:.3f}" for name in ("paths", "strings")), *ms)
        table.add_row("exact", "0", "0", f"{1e3 * row['exact seconds'] / settings[0]:.3f}", "")
        console.print(table)
    if not quick:
        draw(arguments.figure, sizes, rows, settings[0])
        console.print(f"wrote {arguments.figure}")

    results = {"torch": torch.__version__, "threads": threads, "quick": quick, "ctc": speed}
    results |= {"objectives": objectives, "risk": {"examples, T, C, labels": settings, "n": sizes, "rows": rows}}
    results |= {"certified": sparse.run(quick, seconds, console)}
    console.print(
        "Beside these: benchmarks/sparse.py --growth draws how the risk to within a tolerance grows; "
        "benchmarks/ctc_maxima.py --large has Hinge, DirectLoss and Perceptron; benchmarks/words.py has WordErrors",
        highlight=False,
    )
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    temporary = arguments.json.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1))
    temporary.rename(arguments.json)
    console.print(f"wrote {arguments.json}")


if __name__ == "__main__":
    main()
