"""`structloss reproduce wer`: recognisers trained on the errors that they are judged by, against n-best lists."""

import time
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from structloss.cli import options, plots
from structloss.cli.prepare import said_plainly
from structloss.cli.reproduce.show import show, start

if TYPE_CHECKING:
    from structloss.reproduce.f1.bootstrap import Interval
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.wer.study import Effort, Study

OBJECTIVE, LOSS, WORDS = "risk:tolerance=0.3", "edit:window=3", "words:cap=3"
PAPER = (
    "No paper's table. Minimum word error training over n-best lists is published with gains of 4 to 13 % of the word "
    "errors over models trained on the likelihood (Prabhavalkar et al. 2018, Guo et al. 2020, Zhou et al. 2017); the "
    "risk over all strings, against lists on the same model, is asked here. Data: the Free Spoken Digit Dataset."
)


def wer(
    context: typer.Context,
    data: Annotated[Path, typer.Option(help="The spoken digits: a folder with recordings/7_theo_13.wav and so on.")] = (
        Path("data/speech/fsdd")
    ),
    out: Annotated[Path, typer.Option(help="Folder for table, JSON, picture and models.")] = Path("out/wer"),
    objective: Annotated[str, typer.Option(help="How the risk of all strings in labels is computed.")] = OBJECTIVE,
    loss: Annotated[str, typer.Option(help="What the risk of all strings in labels is of.")] = LOSS,
    words: Annotated[str, typer.Option(help="What the exact risk in words is of.")] = WORDS,
    seeds: Annotated[int, typer.Option(min=1, help="How many, from --seed on; each keeps other people apart.")] = 3,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time; by default one a core.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A few utterances, one seed: some seconds.")] = False,
    seed: options.Seed = 0,
) -> None:
    """Strings of spoken digits by people nobody trained on: CTC, and from there risk over lists and over all strings.

    What was trained stays in the folder, and a run that was ended goes on from there.

    Example: `structloss reproduce wer --data data/speech/fsdd --out out/wer`
    """
    with said_plainly():
        plots.require_matplotlib()
        from structloss.reproduce.finding import Finding
        from structloss.reproduce.wer import people, study
        from structloss.training.compare import cores

        people.check(data)
        say, begin = start(out), time.perf_counter()
        effort = replace(
            study.Effort.quick() if quick else study.Effort(),
            exact={"words": ("risk", words), "labels": (objective, loss)},
        )
        numbers = range(seed, seed + (1 if quick else seeds))
        for number in numbers:
            test, dev = people.held_out(number)
            say(f"seed {number}: {test} is tested on, {dev} is chosen on, the others are trained on")
        found = study.run_all(data, out / "runs", numbers, effort, jobs or cores(), say)
        versus = study.against(found, study.ON, seed, effort.resamples)
        exact = {
            name: study.against(found, name, seed, effort.resamples)[study.WORDS]
            for name in found.outcomes
            if name != study.WORDS
        }
        finding = Finding(
            name="wer",
            title="Spoken digits: trained on the errors that are counted",
            paper=PAPER,
            grids=[_table(found, versus, len(numbers)), _exact(exact), _people(found, numbers), _gaps(found)],
            remarks=_remarks(found, versus, effort),
            command=" ".join(["structloss reproduce wer --data DIR", *_typed(context.params)]),
            seconds=time.perf_counter() - begin,
            pictures={"wer.png": "WER minus that of CTC trained on, test, with 95 % intervals."},
        )
        show(finding, out, _as_json(found, versus, exact, effort, numbers), {"wer.png": _picture(versus)})


def _table(found: "Study", versus: "dict[str, tuple[Interval, Interval]]", seeds: int) -> "Grid":
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.wer.study import ON, rates

    rows = []
    for name, outcomes in found.outcomes.items():
        wer, cer = rates([o.test for o in outcomes])
        dev = 100 * fmean(o.dev["wer"] for o in outcomes)
        told = ["", ""] if name == ON else [str(one) for one in versus[name]]
        seconds = fmean(o.seconds for o in outcomes)
        rows.append([name, f"{dev:.2f}", f"{wer:.2f}", told[0], f"{cer:.2f}", told[1], f"{seconds:.0f}"])
    columns = ["trained by", "dev WER", "WER", "minus CTC trained on", "CER", "minus CTC trained on", "seconds"]
    return Grid(f"Errors on people nobody trained on, percent, mean of {seeds} seeds", columns, rows)


def _exact(exact: "dict[str, tuple[Interval, Interval]]") -> "Grid":
    from structloss.reproduce.finding import Grid

    rows = [[name, str(wer), str(cer)] for name, (wer, cer) in exact.items()]
    return Grid("Exact risk in words minus each of the others", ["minus", "WER", "CER"], rows)


def _people(found: "Study", seeds: range) -> "Grid":
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.wer.people import held_out
    from structloss.reproduce.wer.study import rates

    rows = [
        [name, *(f"{rates([o.test])[0]:.2f}" for o in outcomes), ", ".join(str(o.epoch) for o in outcomes)]
        for name, outcomes in found.outcomes.items()
    ]
    return Grid("WER by the person tested on", ["trained by", *(held_out(s)[0] for s in seeds), "best epochs"], rows)


def _gaps(found: "Study") -> "Grid":
    from structloss.reproduce.finding import Grid

    shown = ("relative", "cosine", "value", "exact")
    rows = [
        [part, name, *(f"{fmean(getattr(g, what) for g in gaps):.3f}" for what in shown)]
        for (part, name), gaps in found.gaps.items()
    ]
    columns = ["utterances", "hypotheses", "|g - exact| / |exact|", "cosine", "value", "exact value"]
    return Grid("Gradients in the parameters of risk over lists, in words, at the converged CTC", columns, rows)


def _remarks(found: "Study", versus: "dict[str, tuple[Interval, Interval]]", effort: "Effort") -> list[str]:
    best = sorted(filter(_of_all, versus), key=lambda name: versus[name][0].value)
    told = [
        f"{name}: WER {versus[name][0]} against CTC trained on for as many updates, CER {versus[name][1]}."
        for name in best
    ]
    words = sum(int(o.test[:, 1].sum()) for o in next(iter(found.outcomes.values())))
    told.append(
        f"{words} test words. Intervals: paired bootstrap over utterances within each seed, {effort.resamples} "
        "resamples; they say nothing of how other people would differ. Epochs are chosen on dev; every risk has "
        f"{effort.share:g} times the likelihood beside it. Risk of all strings: "
        + "; ".join(f"in {name}, {one} of {loss}" for name, (one, loss) in effort.exact.items())
        + "."
    )
    return told


def _picture(versus: "dict[str, tuple[Interval, Interval]]") -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 0.8 + 0.34 * len(versus)), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    for place, (name, (one, _)) in enumerate(reversed(versus.items())):
        error = [[one.value - one.low], [one.high - one.value]]
        colour = plots.COLOURS[1] if _of_all(name) else "#8a8a8a" if "CTC" in name else plots.COLOURS[0]
        axes.errorbar(one.value, place, xerr=error, color=colour, marker="o", markersize=7, elinewidth=1.4)
    axes.set_yticks(range(len(versus)), list(versus)[::-1])
    axes.set_ylim(-0.5, len(versus) - 0.5)
    axes.axvline(0, color="#8a8a8a", linewidth=0.8)
    axes.set_xlabel("WER minus that of CTC trained on, percent points")
    axes.grid(alpha=0.25, axis="x")
    axes.spines[["top", "right"]].set_visible(False)
    written = BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def _of_all(name: str) -> bool:
    """Whether it is a risk of all strings, and not of a list."""
    return name.startswith(("exact", "certified"))


def _typed(given: dict[str, Any]) -> list[str]:
    """The options that are not what they are by default."""
    usual = {"objective": OBJECTIVE, "loss": LOSS, "words": WORDS, "seeds": 3, "seed": 0}
    typed = [f"--{name} {given[name]}" for name, value in usual.items() if given[name] != value]
    return [*typed, *(["--quick"] if given["quick"] else [])]


def _as_json(
    found: "Study",
    versus: "dict[str, tuple[Interval, Interval]]",
    exact: "dict[str, tuple[Interval, Interval]]",
    effort: "Effort",
    seeds: range,
) -> dict[str, Any]:
    from structloss.reproduce.wer.study import rates

    methods = {
        name: {
            "wer": rates([o.test for o in outcomes])[0], "cer": rates([o.test for o in outcomes])[1],
            "wer against": list(versus[name][0]), "cer against": list(versus[name][1]),
            "dev": [o.dev for o in outcomes], "epochs": [o.epoch for o in outcomes],
            "test": [rates([o.test]) for o in outcomes],
        }
        for name, outcomes in found.outcomes.items()
    }  # fmt: skip
    gaps = {f"{part}, {name}": [one._asdict() for one in rows] for (part, name), rows in found.gaps.items()}
    return {"seeds": list(seeds), "effort": asdict(effort), "methods": methods, "gaps": gaps, "exact against": exact}
