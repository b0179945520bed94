"""The second half of `structloss demo`: names in made-up text, by likelihood and by training on chunk F1."""

import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from structloss.cli import plots, samples
from structloss.estimators import ChainTagger
from structloss.losses.schemes import chunks
from structloss.tasks.tagging.chunks import ChunkScore, chunk_score
from structloss.tasks.tagging.features import window
from structloss.tasks.tagging.made_up import Sentence, made_up, with_missed

TITLE = "Names in made-up text: the same tagger by likelihood and on chunk F1"
SAMPLES_TITLE = "The first made-up test sentences on which they do not agree"
HEADS = ("sentence", "names")
DEV, TEST, SEEDS = 500, 2000, 3
NAMED, MISSED = 0.1, 0.1  # of the places that can have a name; of the names to train and to tune on
BIASES = tuple(0.25 * i for i in range(-4, 21))  # what may be taken from the score of O at each token
TRAINED = {"likelihood": None, "chunk F1": "f1"}  # what they minimise, and the loss of ChainTagger
TUNED = " + tuned bias"
METHODS = tuple(name + tuned for tuned in ("", TUNED) for name in TRAINED)
SAMPLES = 6


@dataclass(frozen=True)
class Part:
    """Sentences, with what a tagger reads of them."""

    sentences: Sequence[Sentence]
    X: list[list[list[str]]]

    @property
    def y(self) -> list[tuple[str, ...]]:
        """Their labels."""
        return [sentence.labels for sentence in self.sentences]

    def score(self, tagger: ChainTagger) -> ChunkScore:
        """What a tagger reaches."""
        return chunk_score(tagger.predict(self.X), self.y)


@dataclass(frozen=True)
class Run:
    """A tagger of one seed: what it reaches, what it took, and its answers on test."""

    method: str
    seed: int
    dev: ChunkScore
    test: ChunkScore
    bias: float
    seconds: float
    answers: list[list[str]]


@dataclass(frozen=True)
class Study:
    """Every method from every seed; the test sentences are those of the first seed."""

    sentences: int
    seeds: range
    runs: list[Run]
    test: Sequence[Sentence]

    def of(self, method: str) -> list[Run]:
        """Its runs."""
        return [run for run in self.runs if run.method == method]

    @property
    def about(self) -> str:
        """What was done, in a few sentences."""
        return (
            f"The text is made up, from templates: {self.sentences} sentences to train on, {DEV} for dev, {TEST} to "
            f"report, other ones for each seed. In training and dev {MISSED:.0%} of the names are not labelled, in "
            "test all are. A tuned bias against O is chosen on dev, which nothing else looks at. A name is right "
            "where type, begin and end are."
        )


class Bar(Progress):
    """A bar over all runs, and a line for every run that has ended."""

    def __init__(self, runs: int) -> None:
        columns = (TextColumn("{task.description:<48}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        super().__init__(*columns, transient=True, console=console, disable=not console.is_interactive)
        self._bar = self.add_task("names", total=runs)

    def end(self, run: Run) -> None:
        """A run has ended."""
        text = f"names, {run.method}, seed {run.seed}: dev f1 {100 * run.dev.f1:.2f}"
        self.console.print(text, highlight=False)
        self.update(self._bar, advance=1)


def study(sentences: int, seed: int) -> Study:
    """Train all of them, one thread, so that a seed gives the same numbers everywhere."""
    seeds, runs = range(seed, seed + SEEDS), []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with Bar(len(METHODS) * SEEDS) as bar:
            for own in seeds:
                for run in _runs(own, *_parts(sentences, own)):
                    bar.end(run)
                    runs.append(run)
    finally:
        torch.set_num_threads(threads)
    return Study(sentences, seeds, runs, _parts(sentences, seed)[2].sentences)


def _parts(sentences: int, seed: int) -> tuple[Part, Part, Part]:
    """Train, dev and test: text, names and what the annotator misses are the seed's."""
    text = made_up(sentences + DEV + TEST, seed, NAMED)
    seen = with_missed(text[:-TEST], MISSED, seed)

    def part(chosen: Sequence[Sentence]) -> Part:
        return Part(chosen, [window([(word,) for word in sentence.words]) for sentence in chosen])

    return part(seen[:sentences]), part(seen[sentences:]), part(text[-TEST:])


def _runs(seed: int, train: Part, dev: Part, test: Part) -> Iterator[Run]:
    """By likelihood and on F1, all with the defaults; each as it is, and with the bias that is best on dev."""

    def measured(method: str, tagger: ChainTagger, bias: float, begin: float) -> Run:
        seconds, answers = time.perf_counter() - begin, tagger.predict(test.X)
        return Run(method, seed, dev.score(tagger), chunk_score(answers, test.y), bias, seconds, answers)

    for method, loss in TRAINED.items():
        begin = time.perf_counter()
        tagger = ChainTagger(loss=loss, random_state=seed).fit(train.X, train.y)
        yield measured(method, tagger, 0.0, begin)
        scores = {bias: dev.score(biased(tagger, bias)).f1 for bias in BIASES}
        bias = max(BIASES, key=lambda bias: (scores[bias], -abs(bias)))
        yield measured(method + TUNED, biased(tagger, bias), bias, begin)


@torch.no_grad()
def biased(tagger: ChainTagger, bias: float) -> ChainTagger:
    """A copy for which O scores `bias` less at each token: in whatever leads there."""
    tagger = deepcopy(tagger)
    outside = tagger.classes_.index("O")
    for name in ("start", "transitions"):
        tagger.model_.get_parameter(f"layer.{name}")[..., outside] -= bias
    return tagger


# --- shown ------------------------------------------------------------------------------------------------------------


_COLUMNS = ("trained by", "test F1", "minus likelihood", "precision", "recall", "seconds")


def _cells(result: Study) -> Iterator[tuple[str, ...]]:
    """The rows of the table: means and standard errors over the seeds; seconds are the median's, the first compiles."""
    plain = [run.test.f1 for run in result.of(METHODS[0])]
    for method in METHODS:
        runs = result.of(method)
        f1, precision, recall = ([getattr(run.test, key) for run in runs] for key in ("f1", "precision", "recall"))
        gains = [a - b for a, b in zip(f1, plain, strict=True)]
        seconds = f"{median(run.seconds for run in runs):.1f}"
        yield (
            method, _summary(f1), "" if method == METHODS[0] else _summary(gains, "+"), _summary(precision),
            _summary(recall), seconds,
        )  # fmt: skip


def gain(result: Study) -> str:
    """What training on chunk F1 changes of the F1 of the likelihood, with its standard error."""
    return next(row[2] for row in _cells(result) if row[0] == METHODS[1])


def _summary(values: Sequence[float], sign: str = "") -> str:
    """Mean and standard error, in percent."""
    return f"{100 * fmean(values):{sign}.1f} ± {100 * stdev(values) / len(values) ** 0.5:.1f}"


def as_table(result: Study) -> Table:
    """For the terminal."""
    title = f"{TITLE} (sentences: {result.sentences}, seeds: {', '.join(map(str, result.seeds))})"
    table = Table(title=title, caption="percent, mean ± standard error over the seeds")
    for i, name in enumerate(_COLUMNS):
        table.add_column(name, justify="right" if i else "left")
    for row in _cells(result):
        table.add_row(*row)
    return table


def as_json(result: Study) -> dict[str, Any]:
    """Everything that was measured, and how."""
    about = {"made_up": True, "sentences": result.sentences, "dev": DEV, "test": TEST, "named": NAMED, "missed": MISSED}
    rows = [
        {"method": run.method, "seed": run.seed, "bias": run.bias, "seconds": run.seconds}
        | {"metrics": {"dev": run.dev._asdict(), "test": run.test._asdict()}}
        for run in result.runs
    ]
    return {**about, "results": rows}


def picture(result: Study, form: str = "png") -> bytes:
    """F1, precision and recall on test, every seed a dot."""
    groups = {
        name: {m: [100 * getattr(run.test, key) for run in result.of(m)] for m in METHODS}
        for name, key in (("test F1", "f1"), ("precision", "precision"), ("recall", "recall"))
    }
    return plots.dots(groups, TITLE, "percent; a bar is the mean, a dot a seed", form)


def as_html(result: Study) -> str:
    """Table, picture and samples, as a part of a page."""
    head = "".join(f"<th>{name}</th>" for name in _COLUMNS)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in _cells(result))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    svg = picture(result, "svg").decode()
    return (
        f"<h1>{escape(TITLE)}</h1><p>{escape(result.about)}</p>"
        f"<p>Percent, mean ± standard error over {len(result.seeds)} seeds.</p>"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        f'<figure class="wide">{svg[svg.index("<svg") :]}</figure>'
        f"{samples.as_html(sampled(result), SAMPLES_TITLE, HEADS)}"
    )


def sampled(result: Study) -> list[samples.Row]:
    """The first sentences on which not all agree, and what each of them finds."""
    runs = [run for run in result.runs if run.seed == result.seeds[0]]
    apart = [i for i in range(len(result.test)) if any(a.answers[i] != b.answers[i] for a, b in pairwise(runs))][
        :SAMPLES
    ]
    chosen = [(" ".join(result.test[i].words), _written(result.test[i].words, result.test[i].labels)) for i in apart]
    answers = {run.method: [_written(result.test[i].words, run.answers[i]) for i in apart] for run in runs}
    return list(samples.grouped(chosen, answers))


def _written(words: Sequence[str], labels: Sequence[str]) -> str:
    """The names that labels say there are."""
    found = sorted(chunks(labels), key=lambda chunk: chunk[1])
    return ", ".join(f"{' '.join(words[begin:end])} {kind}" for kind, begin, end in found) or "none"
