"""`structloss reproduce runtime`: Cortes 2018, Figure 5."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from structloss.cli import options, plots
from structloss.cli.prepare import said_plainly
from structloss.cli.reproduce.growth import growth
from structloss.cli.reproduce.show import show, start

if TYPE_CHECKING:
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.pruning import Error, Machines
    from structloss.reproduce.runtime import Curve, Plan, Results

PAPER = (
    "Cortes 2018, Figure 5: average runtimes over 125 random trials, alphabet 10, bigram features, l from 2 to 30. "
    "Grad-Naive, shown up to l = 8, grows exponentially in l; Grad-Tropical and Grad-Rational, implemented with "
    "OpenFst, are said to grow linearly. The figure's own numbers are not in the text."
)


def runtime(
    out: Annotated[Path, typer.Option(help="Folder for table, JSON and plot.")] = Path("out/runtime"),
    trials: Annotated[int, typer.Option(min=2, help="Random trials at each length; fewer where they are slow.")] = 125,
    quick: Annotated[bool, typer.Option("--quick", help="Few lengths, few trials: less than a minute.")] = False,
    seed: options.Seed = 0,
) -> None:
    """Cortes 2018, Figure 5: the time of the gradient by enumeration, by OpenFst and by structloss, as strings grow.

    All methods get the same examples, and their answers are compared: exact ones, and those that prune by the same
    threshold; then what pruning and a cap make of the gradient. Some twenty minutes.

    Example: `structloss reproduce runtime --quick --out out/quick`
    """
    with said_plainly():
        plots.require_matplotlib()
        from structloss.reproduce import pruning
        from structloss.reproduce import runtime as reproduction
        from structloss.reproduce.finding import Finding

        say, begin = start(out), time.perf_counter()
        plan = reproduction.Plan.quick(trials) if quick else reproduction.Plan(trials=trials)
        results = reproduction.measure(plan, seed, say)
        machines = pruning.machines(12 if quick else 30, seed, say) if reproduction.has_openfst() else []
        errors = pruning.errors((2, 4, 6) if quick else range(2, 17, 2), 3 if quick else 20, seed, say)
        given = {f"--trials {trials}": trials != 125, f"--seed {seed}": seed != 0, "--quick": quick}
        finding = Finding(
            name="runtime",
            title="Time of the gradient as strings grow",
            paper=PAPER,
            grids=[
                *(_grid(results, loss) for loss in results.losses),
                *([_machines(machines)] if machines else []),
                *(_errors([e for e in errors if e.loss == loss]) for loss in dict.fromkeys(e.loss for e in errors)),
            ],
            remarks=_remarks(results, plan),
            command=" ".join(["structloss reproduce runtime", *(text for text, wanted in given.items() if wanted)]),
            seconds=time.perf_counter() - begin,
            pictures={
                "runtime.png": "CPU seconds of one gradient, machine included; the bands are one deviation.",
                "pruned.png": "The same, exact and with the paper's pruning.",
                "pruning-error.png": "The share of Q_w's weight that pruning and a cap move, in the mean.",
            },
        )
        data = {"plan": asdict(plan), "seed": seed, "curves": [_row(curve) for curve in results.curves]}
        data |= {"compared": results.compared, "difference": results.difference}
        data |= {"machines": [asdict(m) for m in machines], "errors": [asdict(e) for e in errors]}
        apart = {*reproduction.PRUNED, *reproduction.PRUNED.values()}
        pictures = {
            "runtime.png": growth(_panels(results, results.losses, lambda method: method not in apart)),
            "pruned.png": growth(
                _panels(
                    results,
                    ["edit distance", "Smith-Waterman"],
                    lambda method: method in {*apart, reproduction.EXACT, reproduction.OPENFST},
                )
            ),
            "pruning-error.png": growth(_error_panels(errors), "share of the weight at other labels", "linear"),
        }
        show(finding, out, data, pictures)


def _panels(
    results: "Results", losses: Sequence[str], shown: Callable[[str], bool]
) -> dict[str, dict[str, list[tuple[int, float, float]]]]:
    return {
        loss: {
            c.method: [(p.length, p.mean, p.deviation) for p in c.points] for c in results.of(loss) if shown(c.method)
        }
        for loss in losses
    }


def _error_panels(errors: Sequence["Error"]) -> dict[str, dict[str, list[tuple[int, float, float]]]]:
    panels: dict[str, dict[str, list[tuple[int, float, float]]]] = {}
    for e in errors:
        panels.setdefault(e.loss, {}).setdefault(e.method, []).append((e.length, e.mean, 0.0))
    return panels


def _machines(machines: Sequence["Machines"]) -> "Grid":
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.runtime import shown

    rows = [
        [
            f"{m.threshold:g}", f"{m.openfst_states:,}", shown(m.openfst_seconds), f"{m.states:,}", shown(m.seconds),
            f"{m.openfst_strings:,}", f"{m.strings:,}", f"{m.shared:,}",
        ]
        for m in machines
    ]  # fmt: skip
    columns = [
        "threshold", "OpenFst: states", "seconds", "structloss: states", "seconds", "OpenFst: strings",
        "structloss: strings", "in both, same loss",
    ]  # fmt: skip
    return Grid(f"Det(M) of the edit distance at l = {machines[0].length}, pruned", columns, rows)


def _errors(errors: Sequence["Error"]) -> "Grid":
    from structloss.reproduce.finding import Grid

    lengths = sorted({e.length for e in errors})
    found = {(e.method, e.length): f"{e.mean:.3f}" for e in errors}
    rows = [[name, *(found[name, n] for n in lengths)] for name in dict.fromkeys(e.method for e in errors)]
    caption = f"{errors[0].loss}: share of the weight of Q_w that stands at other labels than in the exact one"
    return Grid(caption, ["", *(f"l = {n}" for n in lengths)], rows)


def _row(curve: "Curve") -> dict[str, object]:
    factor, exponent = (None if math.isnan(value) else value for value in curve.growth)
    return {**asdict(curve), "factor_per_symbol": factor, "exponent": exponent}


def _grid(results: "Results", loss: str) -> "Grid":
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.runtime import shown

    curves = results.of(loss)
    common = max(set.intersection(*({p.length for p in curve.points} for curve in curves)))
    rows = []
    for curve in curves:
        there, last = curve.at(common), curve.points[-1]
        assert there is not None
        deviation = f" ± {shown(last.deviation)}"
        rows.append([
            curve.method, shown(there.mean), f"{last.length}", shown(last.mean) + deviation, f"{last.trials}",
            f"{curve.growth.factor:.2f}", f"{curve.growth.exponent:.1f}", curve.ended or "all lengths",
        ])  # fmt: skip
    columns = ["method", f"l = {common}", "longest l", "there", "trials", "factor per symbol", "exponent", "ended by"]
    return Grid(f"{loss}: seconds for one gradient", columns, rows)


def _remarks(results: "Results", plan: "Plan") -> list[str]:
    """What differs from the paper, from the results."""
    from structloss.reproduce import runtime as reproduction

    remarks = [
        "Times are CPU seconds of one thread. Growth is fitted to the longer half of each curve: time multiplies by "
        "the factor with every symbol (where a curve explodes), or grows as l to the power of the exponent."
    ]
    told = [
        f"{method} {results.difference[method]:.0e} at most in {count} trials"
        for method, count in results.compared.items()
    ]
    remarks.append(
        f"Q_w against structloss's, exact or of the same threshold: {'; '.join(told)}. A cap is another loss and is "
        "not compared."
    )
    if reproduction.has_openfst():
        remarks[-1] += " OpenFst's Python module hands weights over with nine digits; hence its difference."
        factors = [
            f"{curve.growth.factor:.1f} ({curve.loss})"
            for curve in results.curves
            if curve.method == reproduction.OPENFST
        ]
        remarks.append(
            f"Without pruning, the paper's pipeline multiplies its time by {', '.join(factors)} with every symbol; "
            "the paper reports linear growth. What grows is Det(M), which tells apart what can never be the minimum, "
            "and for bigrams every position of the reference. The pipeline "
            "reads and writes its machines' arcs in loops of Python: its growth is that of the machines, "
            "how many times slower it is than ours is not OpenFst's alone."
        )
        exponents = [
            f"{curve.growth.exponent:.1f} ({curve.loss}, {curve.method.removeprefix('OpenFst, ')})"
            for curve in results.curves
            if curve.method in reproduction.PRUNED
        ]
        remarks.append(
            "With the threshold pruning that the paper names in section 6, whose thresholds it does not say, its time "
            f"grows as l to the power of {', '.join(exponents)}. It leaves out exactly the strings beyond the "
            "threshold, as `threshold=` does here: every state of Det(M) holds an alignment whose cost is known (all "
            "inserted; for Smith-Waterman, not begun), so that strings of different cost never meet in one."
        )
    else:
        remarks.append("OpenFst is not installed (pip install 'structloss[fst]'): its curves are left out.")
    remarks += [_faster(results, loss) for loss in results.losses]
    naive = max(c.points[-1].length for c in results.curves if c.method == reproduction.NAIVE)
    remarks.append(
        f"Grad-Naive is a compiled loop and ends at l = {naive}, where it has {reproduction.ALPHABET**naive} "
        f"strings. At a length there are up to {plan.trials} trials, fewer where they are slow, at least {plan.fewest}."
    )
    return remarks


def _faster(results: "Results", loss: str) -> str:
    """How many times faster than OpenFst, or than enumeration, the exact gradient is at their last length."""
    from structloss.reproduce import runtime as reproduction

    curves = {curve.method: curve for curve in results.of(loss)}
    ours, told = curves[reproduction.EXACT], []
    for method in (reproduction.NAIVE, reproduction.OPENFST, reproduction.REDUCED):
        if method in curves:
            theirs = curves[method].points[-1]
            mine = ours.at(theirs.length)
            if mine is not None:
                told.append(f"{theirs.mean / mine.mean:.0f} times as fast as {method} at l = {theirs.length}")
    last = ours.points[-1]
    taken = f"at l = {last.length} it takes {reproduction.shown(last.mean)}"
    return f"{loss}: structloss, exact, is {', '.join(told)}; {taken}."
