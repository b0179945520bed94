"""`structloss reproduce genome`: Cortes 2018, section 6."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated

import typer

from structloss.cli import options, plots
from structloss.cli.prepare import said_plainly
from structloss.cli.reproduce import folds as figure
from structloss.cli.reproduce.show import show, start

if TYPE_CHECKING:
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.genome import Outcome, Setting

    Results = Sequence[dict[str, Outcome]]

PAPER = (
    "Cortes 2018, section 6: a mean Smith-Waterman score on test sets of 42.73 when trained with cross-entropy and of "
    "44.65 when trained with the Smith-Waterman distance, with a standard deviation of 0.35 over 10 random folds, and "
    "a higher accuracy, which is not told."
)


def genome(
    out: Annotated[Path, typer.Option(help="Folder for table, JSON and plot.")] = Path("out/genome"),
    folds: Annotated[int, typer.Option(min=2, help="Random folds, each with examples of its own.")] = 10,
    quick: Annotated[bool, typer.Option("--quick", help="Two small folds: less than a minute.")] = False,
    seed: options.Seed = 0,
) -> None:
    """Cortes 2018, section 6: artificial genome sequences, trained with cross-entropy and with Smith-Waterman.

    Reports the difference on the same folds and its standard error, in several settings. Some ten minutes.

    Example: `structloss reproduce genome --quick --out out/quick`
    """
    with said_plainly():
        plots.require_matplotlib()
        from structloss.reproduce import genome as reproduction
        from structloss.reproduce.finding import Finding

        say, begin = start(out), time.perf_counter()
        effort = reproduction.Effort.quick() if quick else reproduction.Effort()
        count = min(folds, 2) if quick else folds
        main = reproduction.Setting()
        if quick:
            main = replace(main, train=10, cap=6.0)
        tried = {main: list(reproduction.objectives(main.cap))}
        pair = [reproduction.CROSS_ENTROPY, reproduction.SOFTMAX_MARGIN]
        tried |= dict.fromkeys(reproduction.others(main)[:1] if quick else reproduction.others(main), pair)

        results = {
            setting: reproduction.folds(setting, names, effort, seed, count, say) for setting, names in tried.items()
        }
        given = {f"--folds {folds}": folds != 10, f"--seed {seed}": seed != 0, "--quick": quick}
        finding = Finding(
            name="genome",
            title="Artificial genome sequences: cross-entropy against Smith-Waterman",
            paper=PAPER,
            grids=[_methods(main, results[main]), _settings(main, results)],
            remarks=_remarks(main, results),
            command=" ".join(["structloss reproduce genome", *(text for text, wanted in given.items() if wanted)]),
            seconds=time.perf_counter() - begin,
            pictures={"genome.png": "Differences on the same folds, their means and the standard errors of these."},
        )
        data = {"seed": seed, "effort": asdict(effort)} | {
            "settings": [
                {**asdict(setting), "folds": [{name: one._asdict() for name, one in fold.items()} for fold in rows]}
                for setting, rows in results.items()
            ]
        }
        show(finding, out, data, {"genome.png": _plot(main, results)})


def _differences(rows: "Results", name: str) -> list[float]:
    from structloss.reproduce.genome import CROSS_ENTROPY

    return [row[name].score - row[CROSS_ENTROPY].score for row in rows]


def _plot(main: "Setting", results: "Mapping[Setting, Results]") -> bytes:
    from structloss.reproduce.genome import COPY_DECOY, CROSS_ENTROPY, SOFTMAX_MARGIN

    names = [name for name in results[main][0] if name not in (CROSS_ENTROPY, COPY_DECOY)]
    methods = {name: _differences(results[main], name) for name in names}
    settings = {_told(setting, main): _differences(rows, SOFTMAX_MARGIN) for setting, rows in results.items()}
    return figure.folds(methods, settings, CROSS_ENTROPY)


def _told(setting: "Setting", main: "Setting") -> str:
    """What differs from the main setting."""
    before = asdict(main)
    changes = [f"{name} {value:g}" for name, value in asdict(setting).items() if value != before[name]]
    return ", ".join(changes) or "first setting"


def _methods(setting: "Setting", rows: "Results") -> "Grid":
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.genome import CROSS_ENTROPY, paired

    cells = []
    for name in rows[0]:
        scores, accuracies = [row[name].score for row in rows], [100 * row[name].accuracy for row in rows]
        line = [name, *(f"{fmean(values):.2f} ± {stdev(values):.2f}" for values in (scores, accuracies))]
        difference = paired(rows, name)
        told = [f"{difference.mean:+.2f} ± {difference.error:.2f}", f"{difference.above} of {len(rows)}"]
        cells.append([*line, *(["", ""] if name == CROSS_ENTROPY else told)])
    columns = ["trained by", "Smith-Waterman score", "accuracy (%)", "paired difference", "folds above"]
    return Grid(f"{setting} (means ± deviations over folds; differences ± standard errors)", columns, cells)


def _settings(main: "Setting", results: "Mapping[Setting, Results]") -> "Grid":
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.genome import COPY, CROSS_ENTROPY, SOFTMAX_MARGIN, paired

    cells = []
    for setting, rows in results.items():
        means = [f"{fmean(row[name].score for row in rows):.2f}" for name in (COPY, CROSS_ENTROPY, SOFTMAX_MARGIN)]
        difference = paired(rows, SOFTMAX_MARGIN)
        told = f"{difference.mean:+.3f} ± {difference.error:.3f}"
        cells.append([_told(setting, main), *means, told, f"{difference.above} of {len(rows)}"])
    columns = ["setting", COPY, CROSS_ENTROPY, SOFTMAX_MARGIN, "paired difference", "folds above"]
    return Grid("Softmax-margin against cross-entropy, one choice changed at a time (mean scores)", columns, cells)


def _remarks(main: "Setting", results: "Mapping[Setting, Results]") -> list[str]:
    """What was found, from the results."""
    from structloss.reproduce import genome as reproduction

    rows = results[main]
    difference = reproduction.paired(rows, reproduction.SOFTMAX_MARGIN)
    verdict = {1: "beats", 0: "cannot be told from", -1: "loses to"}
    theirs = reproduction.PAPER[reproduction.CROSS_ENTROPY]
    paper = reproduction.PAPER[reproduction.SOFTMAX_MARGIN] - theirs
    part = 100 * difference.mean / fmean(row[reproduction.CROSS_ENTROPY].score for row in rows)
    remarks = [
        f"Softmax-margin with the Smith-Waterman loss {verdict[difference.sign]} cross-entropy in the first setting: "
        f"{difference.mean:+.2f} ± {difference.error:.2f} of 100 on the same {len(rows)} folds (two standard errors "
        f"decide), {part:+.2f} % of the score. The paper reports {paper:+.2f}, {100 * paper / theirs:+.2f} %."
    ]
    signs = [reproduction.paired(one, reproduction.SOFTMAX_MARGIN).sign for one in results.values()]
    remarks.append(
        f"Over the {len(signs)} settings tried it is above cross-entropy by more than two standard errors in "
        f"{signs.count(1)}, below in {signs.count(-1)}, and neither in {signs.count(0)}."
    )
    caps = sorted((s for s in results if replace(s, cap=main.cap) == main), key=lambda s: s.cap)
    if len(caps) > 1:
        by_cap = [f"{s.cap:g}: {reproduction.paired(results[s], reproduction.SOFTMAX_MARGIN).mean:+.3f}" for s in caps]
        remarks.append(f"The difference by the cap of the loss in training, all else equal: {', '.join(by_cap)}.")
    others = [name for name in rows[0] if name not in (reproduction.CROSS_ENTROPY, reproduction.SOFTMAX_MARGIN)]
    told = []
    for name in others:
        found = reproduction.paired(rows, name)
        told.append(f"{name} {verdict[found.sign]} cross-entropy ({found.mean:+.2f})")
    remarks.append(f"In the first setting: {'; '.join(told)}.")
    copied = [name for name in rows[0] if reproduction.paired(rows, name, reproduction.COPY).sign > 0]
    remarks.append(
        f"Better than to copy the homolog, by more than two standard errors: {', '.join(copied) or 'nothing'}."
    )
    remarks.append(
        "The paper does not tell alphabet, noise, features, costs, sizes or step sizes: the scores here compare with "
        "each other, not with the paper's. What was chosen instead stands in structloss.reproduce.genome. The loss is "
        "capped in training: where all likely answers are further from the native than the cap, softmax-margin is "
        "cross-entropy plus a number."
    )
    return remarks
