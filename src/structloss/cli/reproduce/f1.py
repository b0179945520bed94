"""`structloss reproduce f1`: taggers trained on the F1 that they are judged by."""

import time
from pathlib import Path
from typing import Annotated

import typer

from structloss.cli import options, plots
from structloss.cli.prepare import said_plainly
from structloss.cli.reproduce.show import show, start


def f1(
    data: Annotated[
        Path, typer.Option(help="A folder with uner/LANGUAGE-train.txt, -dev.txt, -test.txt and conll2000/train.txt.")
    ] = Path("data/tagging"),
    out: Annotated[Path, typer.Option(help="Folder for tables, JSON, plots and what was trained.")] = Path("out/f1"),
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from --seed on.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="A few sentences, one seed: about a minute.")] = False,
    seed: options.Seed = 0,
) -> None:
    """Names in four languages, and CoNLL-2000: test F1 of likelihood, and of training on the loss that is reported.

    Settings are chosen on held-out sentences only. What was trained stays in the folder, and a run that was ended
    goes on from there. About two hours on one core.

    Example: `structloss reproduce f1 --data data/tagging --quick --out out/quick`
    """
    with said_plainly():
        plots.require_matplotlib()
        from structloss.cli.reproduce import f1_tables as tables
        from structloss.reproduce.f1 import data as reading
        from structloss.reproduce.f1 import study as studies
        from structloss.reproduce.finding import Finding

        names = reading.available(data)
        say, begin = start(out), time.perf_counter()
        effort = studies.Effort.quick() if quick else studies.Effort()
        sets = {name: reading.read(data, name, most=effort.most) for name in names}
        for name, one in sets.items():
            chosen = f"{len(one.parts)} folds choose" if one.crossed else f"{len(one.parts[0].held)} choose"
            say(f"{name}: {len(one.final.train)} sentences to train on, {chosen}, {len(one.test)} to test on")
        numbers = tuple(range(seed, seed + (1 if quick else seeds)))
        study = studies.run(sets, out / "cells", numbers, effort, say)
        say("resampling test sentences ...")
        versus = studies.versus(study.linear, study.chosen, seed, effort.resamples)
        pictures = tables.pictures(study, versus, seed, effort.resamples)
        finding = Finding(
            name="f1",
            title="Names and chunks: trained on F1",
            paper=tables.PAPER,
            grids=tables.grids(study, versus, len(numbers)),
            remarks=tables.remarks(study, versus, len(numbers), effort),
            command=" ".join(["structloss reproduce f1 --data DIR", *_typed(seeds, seed, quick)]),
            seconds=time.perf_counter() - begin,
            pictures={name: caption for name, (caption, _) in pictures.items()},
        )
        written = {name: content for name, (_, content) in pictures.items()}
        show(finding, out, tables.as_json(study, versus, numbers, effort), written)


def _typed(seeds: int, seed: int, quick: bool) -> list[str]:
    given = {f"--seeds {seeds}": seeds != 3, f"--seed {seed}": seed != 0, "--quick": quick}
    return [text for text, wanted in given.items() if wanted]
