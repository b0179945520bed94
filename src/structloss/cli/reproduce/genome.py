"""`structloss reproduce genome`: Cortes 2018, section 6."""

import math
import time
from operator import attrgetter
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any

import typer

from structloss.cli import options, plots
from structloss.cli.prepare import said_plainly
from structloss.cli.reproduce import folds as figure
from structloss.cli.reproduce.show import show, start

if TYPE_CHECKING:
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.genome.study import Configuration
    from structloss.reproduce.genome.training import Folds

    Found = dict[Configuration, Folds]

PAPER = (
    "Cortes 2018, section 6: a mean Smith-Waterman score on test sets of 42.73 when trained with cross-entropy and of "
    "44.65 when trained with the Smith-Waterman distance, with a standard deviation of 0.35 over 10 random folds, and "
    "a higher accuracy, which is not told."
)


def genome(
    out: Annotated[Path, typer.Option(help="Folder for table, JSON and plot.")] = Path("out/genome"),
    folds: Annotated[int, typer.Option(min=2, help="Random folds of the first experiments; others have half.")] = 10,
    only: Annotated[str, typer.Option(help="Run what begins so: G1, or 'G1, 20'.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Two small folds: less than a minute.")] = False,
    seed: options.Seed = 0,
) -> None:
    """Cortes 2018, section 6: artificial genome sequences, trained with cross-entropy and with Smith-Waterman.

    The paper leaves open what is predicted: a sequence is chosen among those given (G1, G2), or written (G3 to G5).
    Reports differences on the same folds and their standard errors. Folds stay in the folder, and a run that was ended
    goes on from there. Some six minutes.

    Example: `structloss reproduce genome --quick --out out/quick`
    """
    with said_plainly():
        plots.require_matplotlib()
        from structloss.reproduce.finding import Finding
        from structloss.reproduce.genome import study

        say, begin = start(out), time.perf_counter()
        wanted = [one for one in study.configurations(folds, quick) if one.name.startswith(only)]
        if not wanted:
            raise ValueError(f"only: got {only!r}, but wanted the beginning of a name, such as G1")
        found = study.run(wanted, out, seed, say)
        given = {f"--folds {folds}": folds != 10, f"--only '{only}'": only, f"--seed {seed}": seed, "--quick": quick}
        finding = Finding(
            name="genome",
            title="Artificial genome sequences: cross-entropy against Smith-Waterman",
            paper=PAPER,
            grids=[_overview(found), *(_methods(one, rows) for one, rows in found.items())],
            remarks=_remarks(found),
            command=" ".join(["structloss reproduce genome", *(text for text, typed in given.items() if typed)]),
            seconds=time.perf_counter() - begin,
            pictures={"genome.png": "Differences on the same folds, their means and the standard errors of these."},
        )
        show(finding, out, _as_json(found, seed), {"genome.png": _plot(found)})


def _overview(found: "Found") -> "Grid":
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.genome.training import CROSS_ENTROPY, SOFTMAX_MARGIN, paired

    rows = []
    for one, folds in found.items():
        means = [f"{fmean(fold[name].score for fold in folds):.2f}" for name in (CROSS_ENTROPY, SOFTMAX_MARGIN)]
        difference = paired(folds, SOFTMAX_MARGIN)
        told = [f"{difference.mean:+.2f} ± {difference.error:.2f}", f"{difference.above} of {len(folds)}"]
        rows.append([one.name, *means, *told])
    columns = ["experiment", CROSS_ENTROPY, SOFTMAX_MARGIN, "paired difference", "folds above"]
    return Grid("Mean Smith-Waterman scores on test examples (differences ± standard errors)", columns, rows)


def _methods(one: "Configuration", folds: "Folds") -> "Grid":
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.genome.training import CROSS_ENTROPY, paired

    listed = not math.isnan(folds[0][CROSS_ENTROPY].closest)
    share, last = attrgetter("closest" if listed else "beyond"), "closest (%)" if listed else "mass beyond the cap (%)"
    rows = []
    for name in folds[0]:
        outcomes, difference = [fold[name] for fold in folds], paired(folds, name)
        scores, right = [o.score for o in outcomes], 100 * fmean(o.accuracy for o in outcomes)
        other, chosen = 100 * fmean(share(o) for o in outcomes), sorted({o.chosen for o in outcomes if o.chosen})
        told = f"{difference.mean:+.2f} ± {difference.error:.2f}, {difference.above} of {len(folds)}"
        rows.append([
            name, f"{fmean(scores):.2f} ± {stdev(scores):.2f}", f"{right:.1f}",
            "" if name == CROSS_ENTROPY else told, "" if math.isnan(other) else f"{other:.1f}",
            ", ".join(f"{value:g}" for value in chosen),
        ])  # fmt: skip
    columns = ["trained by", "Smith-Waterman score", "accuracy (%)", "minus cross-entropy", last, "chosen"]
    return Grid(f"{one.name}: {one.experiment} ({len(folds)} folds)", columns, rows)


def _remarks(found: "Found") -> list[str]:
    """What was found, from the results."""
    from structloss.reproduce.genome.study import PAPER as THEIRS
    from structloss.reproduce.genome.training import CROSS_ENTROPY, SOFTMAX_MARGIN, paired

    theirs = THEIRS[SOFTMAX_MARGIN] - THEIRS[CROSS_ENTROPY]
    signs = {one.name: paired(folds, SOFTMAX_MARGIN).sign for one, folds in found.items()}
    words = {1: "above", 0: "not told apart", -1: "below"}
    told = "; ".join(f"{name}: {words[sign]}" for name, sign in signs.items())
    remarks = [
        f"Softmax-margin with the Smith-Waterman loss against cross-entropy, two standard errors decide: {told}. The "
        f"paper reports {theirs:+.2f}."
    ]
    for one, folds in found.items():
        near = [abs(fmean(fold[name].score for fold in folds) - value) for name, value in THEIRS.items()]
        if max(near) < 1:
            remarks.append(f"{one.name}: both scores are within {max(near):.2f} of the paper's.")
    return remarks


def _plot(found: "Found") -> bytes:
    from structloss.reproduce.genome.training import CROSS_ENTROPY, SOFTMAX_MARGIN, Folds

    def differences(folds: Folds, name: str) -> list[float]:
        return [fold[name].score - fold[CROSS_ENTROPY].score for fold in folds]

    most = max(found, key=lambda one: len(found[one][0]))
    trained = [name for name, outcome in found[most][0].items() if outcome.chosen and name != CROSS_ENTROPY]
    panels = {
        f"{SOFTMAX_MARGIN}, each experiment": {
            one.name: differences(folds, SOFTMAX_MARGIN) for one, folds in found.items()
        },
        f"each method: {most.name}": {name: differences(found[most], name) for name in trained},
    }
    return figure.folds(panels, CROSS_ENTROPY)


def _as_json(found: "Found", seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "experiments": [
            {
                "name": one.name, "described": repr(one.experiment),
                "folds": [{name: outcome._asdict() for name, outcome in fold.items()} for fold in folds],
            }
            for one, folds in found.items()
        ],
    }  # fmt: skip
