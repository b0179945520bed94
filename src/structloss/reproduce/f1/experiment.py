"""Settings are chosen on held-out sentences, by a metric, and tested once: F1, costs, and labels that were flipped."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from structloss.reproduce.f1 import counts
from structloss.reproduce.f1.cells import ARGMAX, BIASES, THRESHOLDS, Cell, Decoder, Recipe, train
from structloss.reproduce.f1.data import Part, TaggedSet, flipped

Metric = Callable[[NDArray[np.int64]], NDArray[np.float64]]  # of counts (..., 5); the larger, the better


@dataclass(frozen=True)
class Method:
    """A row of the table: recipes to choose from, and how answers are made."""

    name: str
    recipes: tuple[Recipe, ...]
    decoders: tuple[Decoder, ...] = (ARGMAX,)
    natural: bool = False  # trained on the loss that is reported


class Choice(NamedTuple):
    """What held-out sentences chose, and the metric there."""

    recipe: Recipe
    passes: int
    decoder: Decoder
    held: float

    def __str__(self) -> str:
        kind, value = self.decoder
        decoded = "" if self.decoder == ARGMAX else f", {'bias' if kind == 'bias' else 'threshold'} {value:.2g}"
        return f"{self.recipe}, passes {self.passes}{decoded}"


class Result(NamedTuple):
    """A method on a set: the choice, and the counts of each test sentence with each seed, (seeds, n, 5)."""

    choice: Choice
    test: NDArray[np.int64]


@dataclass(frozen=True)
class Bench:
    """Where trainings are kept: what is there is not trained again."""

    folder: Path
    passes: tuple[int, ...]
    seeds: tuple[int, ...]
    say: Callable[[str], None]
    flips: float = 0.0  # the part of the training labels that are replaced

    def cell(
        self, data: TaggedSet, number: int, recipe: Recipe, seed: int, test: bool,
        passes: tuple[int, ...] | None = None, reached: float | None = None,
    ) -> Cell:  # fmt: skip
        """Trained on a part of the set by its number, on all but test by -1."""
        part, passes = data.final if number < 0 else data.parts[number], passes or self.passes
        decoders = [("bias", b) for b in BIASES]
        if recipe.objective == "nll":
            decoders += [("mbr", t) for t in THRESHOLDS]
        made = crc32(repr((passes, decoders, test, reached and round(reached, 4), _size(part))).encode())
        told = f"{data.name}-{'all' if number < 0 else number}-s{seed}-{recipe.key}"
        noise = f"-flip{self.flips:g}" if self.flips else ""
        file = self.folder / f"{told}{noise}-{made:08x}.npz"
        if file.exists():
            return Cell.read(file)
        seen = flipped(data, self.flips, seed) if self.flips else data
        cell = train(seen, part, recipe, seed, passes, decoders, test, reached, data)
        self.folder.mkdir(parents=True, exist_ok=True)
        cell.write(file)
        best = f"{100 * counts.f1(cell.held).max():.2f} held out" if len(part.held) else "to be tested"
        self.say(f"{told}{noise}: {best}")
        return cell

    def held(self, data: TaggedSet, recipe: Recipe, metric: Metric, seeds: Sequence[int]) -> NDArray[np.float64]:
        """The metric on held-out sentences, of all folds together, the mean over seeds: (passes, decoders)."""
        found = []
        for seed in seeds:
            cells = [self.cell(data, i, recipe, seed, not data.crossed) for i in range(len(data.parts))]
            found.append(metric(np.sum([cell.held for cell in cells], axis=0)))
        return np.asarray(np.mean(found, axis=0))

    def choose(self, data: TaggedSet, method: Method, metric: Metric) -> Choice:
        """The recipe with the first seed; then passes and decoder with all of them, where dev chooses."""
        one = self.seeds[:1]
        choice = max((self._best(data, r, method, metric, one) for r in method.recipes), key=lambda c: c.held)
        return choice if data.crossed else self._best(data, choice.recipe, method, metric, self.seeds)

    def _best(self, data: TaggedSet, recipe: Recipe, method: Method, metric: Metric, seeds: Sequence[int]) -> Choice:
        """Of passes and decoders."""
        scores = self.held(data, recipe, metric, seeds)
        known = self.cell(data, 0, recipe, seeds[0], not data.crossed).decoders
        columns = [known.index(d) for d in method.decoders]
        p, d = np.unravel_index(scores[:, columns].argmax(), (len(self.passes), len(columns)))
        return Choice(recipe, self.passes[p], method.decoders[d], float(scores[p, columns[d]]))

    def test(self, data: TaggedSet, choice: Choice) -> NDArray[np.int64]:
        """The counts of test sentences with each seed, (seeds, n, 5)."""
        rows = []
        for seed in self.seeds:
            if data.crossed:
                reached = choice.held if choice.recipe.loss == "f1" else None
                cell = self.cell(data, -1, choice.recipe, seed, True, (choice.passes,), reached)
            else:
                cell = self.cell(data, 0, choice.recipe, seed, True)
            rows.append(cell.test[cell.passes.index(choice.passes), cell.decoders.index(choice.decoder)])
        return np.stack(rows)

    def run(self, data: TaggedSet, methods: Sequence[Method], metric: Metric) -> dict[str, Result]:
        """Every method, chosen and tested."""
        results = {}
        for method in methods:
            choice = self.choose(data, method, metric)
            results[method.name] = Result(choice, self.test(data, choice))
            told = f"{100 * counts.f1(results[method.name].test.sum(1)).mean():.2f}"
            self.say(f"{data.name}, {method.name}: test F1 {told}; chosen: {choice}")
        return results


def _size(part: Part) -> tuple[int, int]:
    return len(part.train), len(part.held)


def first_part(data: TaggedSet) -> TaggedSet:
    """The set with its first part alone: no cross-validation, for models that take long."""
    return replace(data, parts=data.parts[:1])


def dev_choice(results: dict[str, Result], methods: Sequence[Method]) -> str:
    """The natural method that is best on held-out sentences."""
    return max((m.name for m in methods if m.natural), key=lambda name: results[name].choice.held)
