"""Which experiments there are, and their folds, kept as they come."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from structloss.files import write_text
from structloss.reproduce.genome.choosing import LEARNED, Choosing
from structloss.reproduce.genome.sequences import Joachims, Markov
from structloss.reproduce.genome.training import CROSS_ENTROPY, SOFTMAX_MARGIN, Folds, Outcome
from structloss.reproduce.genome.writing import Writing
from structloss.training.directory import file_name

PAPER = {CROSS_ENTROPY: 42.73, SOFTMAX_MARGIN: 44.65}


class Experiment(Protocol):
    """What is run: examples of its own for each fold."""

    def fold(self, seed: int, number: int) -> dict[str, Outcome]:
        """What each method gave on one fold."""


@dataclass(frozen=True)
class Configuration:
    """An experiment and how many folds of it."""

    name: str
    experiment: Experiment
    folds: int


def configurations(folds: int, quick: bool) -> list[Configuration]:
    """All that is run."""
    choosing, writing, half = Choosing(), Writing(), max(2, folds // 2)
    noisy, twenty = (0.4, 0.2, 0.2, 0.2), Joachims((0.2, 0.4, 0.2, 0.2), letters=20, rising=True)
    short = Joachims(length=10, aligned=7)
    if quick:
        folds = half = 2
        choosing = replace(choosing, strengths=(0.02,), choose=20, test=40, steps=10)
        writing = replace(writing, strengths=(0.03,), train=8, choose=20, test=40, steps=5, listed=20)
    every = replace(choosing, train=10, alignments="all", strengths=(0.02,), methods=(CROSS_ENTROPY, SOFTMAX_MARGIN))
    return [
        Configuration("G1, 10 to train on", replace(choosing, train=10), folds),
        Configuration("G1, 20 to train on", replace(choosing, train=20), folds),
        Configuration("G1, 40 to train on", replace(choosing, train=40), folds),
        Configuration("G1, other objectives", replace(choosing, train=20, methods=LEARNED), half),
        Configuration("G1, all alignments", every, half),
        Configuration("G1, more noise", replace(choosing, train=20, source=Joachims(noisy)), half),
        Configuration("G2, 10 to train on", replace(choosing, train=10, source=twenty), half),
        Configuration("G2, 40 to train on", replace(choosing, train=40, source=twenty), half),
        Configuration("G3", writing, half),
        Configuration("G3, ten letters long", replace(writing, source=short, exact=True), half),
        Configuration("G4", replace(writing, source=Markov()), half),
        Configuration("G4, indels", replace(writing, source=Markov(indel=0.02)), half),
        Configuration("G4, control", replace(writing, source=Markov(concentration=5.0)), half),
        Configuration("G5", replace(writing, features="copies"), half),
    ]


def run(
    wanted: Sequence[Configuration], folder: Path, seed: int, say: Callable[[str], None]
) -> dict[Configuration, Folds]:
    """The folds of each, but those that the folder has."""
    return {one: _folds(one, folder / f"{file_name(one.name)}.json", seed, say) for one in wanted}


def _folds(one: Configuration, file: Path, seed: int, say: Callable[[str], None]) -> list[Mapping[str, Outcome]]:
    described, rows = {"experiment": repr(one.experiment), "seed": seed}, list[Mapping[str, Outcome]]()
    if file.exists():
        kept = json.loads(file.read_text(encoding="utf-8"))
        if {name: kept.get(name) for name in described} == described:
            rows = [{name: Outcome(**own) for name, own in row.items()} for row in kept["folds"][: one.folds]]
    for number in range(len(rows), one.folds):
        rows.append(one.experiment.fold(seed, number))
        told = ", ".join(f"{name} {own.score:.2f}" for name, own in rows[-1].items())
        say(f"{one.name}, fold {number + 1} of {one.folds}: {told}")
        written = [{name: own._asdict() for name, own in row.items()} for row in rows]
        write_text(file, json.dumps({**described, "folds": written}, indent=1))
    return rows
