"""A comparison shown: a table on the terminal, curves, JSON, and a page that needs no other file."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape
from statistics import fmean, stdev
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from structloss import __version__
from structloss.cli import plots
from structloss.cli.page import page
from structloss.training.compare import Outcome
from structloss.training.experiment import Result
from structloss.training.task import Task


class EpochsBar(Progress):
    """A bar over all epochs of all runs with a table of how far they are, and a line for every run that has ended."""

    def __init__(self, task: Task, epochs: int, shown: bool, silent: bool = False) -> None:
        columns = (TextColumn("{task.description:<48}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        self._key, self._silent = task.metric, silent
        self._reached: dict[str, dict[int, str]] = {}
        super().__init__(*columns, transient=True, console=console, disable=not (shown and console.is_interactive))
        self._bar = self.add_task("", total=epochs)

    def epoch(self, name: str, seed: int, row: dict[str, float]) -> None:
        """One epoch of a run has ended."""
        value = 100 * row[f"dev_{self._key}"]
        text = f"{name}, seed {seed}: epoch {row['epoch'] + 1:.0f}, dev {self._key} {value:.2f}"
        self._reached.setdefault(name, {})[seed] = f"{value:.2f} ({row['epoch'] + 1:.0f})"
        self.update(self._bar, advance=1, description=text)

    def get_renderables(self) -> Iterable[RenderableType]:
        """The table stands above the bar."""
        if self._reached:
            seeds = sorted({seed for row in self._reached.values() for seed in row})
            table = Table(f"dev {self._key} (epoch)", *(f"seed {seed}" for seed in seeds))
            for name, row in self._reached.items():
                table.add_row(name, *(row.get(seed, "") for seed in seeds))
            yield table
        yield from super().get_renderables()

    def end(self, name: str, seed: int, result: Result) -> None:
        """A run has ended."""
        value = 100 * result.metrics["dev"][self._key]
        text = f"{name}, seed {seed}: dev {self._key} {value:.2f} after {len(result.history)} epochs"
        if not self._silent:
            self.console.print(text, highlight=False)


def _columns(task: Task, outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    """Parts and metrics: of the test set all of them where there is one, and of dev the task's own."""
    parts = outcomes[0].results[0].metrics
    return [("dev", task.metric), *(("test", metric) for metric in parts.get("test", {}))]


def _cells(task: Task, outcomes: Sequence[Outcome]) -> list[list[tuple[str, bool]]]:
    """What the table says of every outcome, and whether it is the best of its column."""
    rows: list[list[tuple[str, bool]]] = [[] for _ in outcomes]
    for part, metric in _columns(task, outcomes):
        summaries = [outcome.summary(part, metric) for outcome in outcomes]
        best = (max if task.maximise else min)(mean for mean, _ in summaries)
        for row, outcome, (mean, deviation) in zip(rows, outcomes, summaries, strict=True):
            spread = f" ± {100 * deviation:.2f}" if len(outcome.results) > 1 else ""
            row.append((f"{100 * mean:.2f}{spread}", mean == best))
    return rows


def gains(outcomes: Sequence[Outcome], metric: str) -> list[str]:
    """How far each is from the first, seed by seed: mean and standard error, on test where there is one."""
    part = "test" if "test" in outcomes[0].results[0].metrics else "dev"
    first, found = outcomes[0].values(part, metric), [""]
    for outcome in outcomes[1:]:
        own = [100 * (b - a) for a, b in zip(first, outcome.values(part, metric), strict=True)]
        spread = f" ± {stdev(own) / len(own) ** 0.5:.2f}" if len(own) > 1 else ""
        found.append(f"{fmean(own):+.2f}{spread}")
    return found


def _seconds(outcome: Outcome) -> str:
    return f"{sum(result.seconds for result in outcome.results) / len(outcome.results):.0f}"


def as_table(task: Task, outcomes: Sequence[Outcome], title: str, gain: str) -> Table:
    """Mean and deviation over the seeds, the best of each column marked, and what is gained in one metric."""
    table = Table(title=title, caption="percent, mean ± deviation; * best; differences seed by seed ± standard error")
    table.add_column("objective")
    for part, metric in _columns(task, outcomes):
        table.add_column(f"{part} {metric}", justify="right")
    table.add_column(f"{gain} - {outcomes[0].name}", justify="right")
    table.add_column("seconds a run", justify="right")
    for outcome, row, gained in zip(outcomes, _cells(task, outcomes), gains(outcomes, gain), strict=True):
        cells = (f"{text}{'*' if best else ' '}" for text, best in row)
        table.add_row(outcome.name, *cells, gained, _seconds(outcome))
    return table


def as_json(outcomes: Sequence[Outcome], **about: Any) -> str:
    """Everything that was measured, and how."""
    rows = [{"objective": outcome.name, "runs": [asdict(result) for result in outcome.results]} for outcome in outcomes]
    return json.dumps({"structloss": __version__, **about, "results": rows}, indent=1, ensure_ascii=False) + "\n"


def curves(task: Task, outcomes: Sequence[Outcome], title: str, form: str = "png") -> bytes:
    """The task's metric on dev after every epoch."""
    lines = {
        outcome.name: [[100 * row[f"dev_{task.metric}"] for row in result.history] for result in outcome.results]
        for outcome in outcomes
    }
    return plots.learning_curves(lines, title, f"dev {task.metric} (%)", form, digits=2)


def as_page(task: Task, outcomes: Sequence[Outcome], title: str, about: str, gain: str, more: str = "") -> str:
    """Table and curves on one page; `more` is HTML that follows them."""
    head = "".join(f"<th>{part} {metric}</th>" for part, metric in _columns(task, outcomes))
    body = "".join(
        f"<tr><td>{escape(outcome.name)}</td>"
        + "".join(f"<td>{'<b>' if best else ''}{text}{'</b>' if best else ''}</td>" for text, best in row)
        + f"<td>{gained}</td><td>{_seconds(outcome)}</td></tr>"
        for outcome, row, gained in zip(outcomes, _cells(task, outcomes), gains(outcomes, gain), strict=True)
    )
    seeds, against = len(outcomes[0].results), f"<th>{gain}, minus {escape(outcomes[0].name)}</th>"
    spread = (
        f"Mean and deviation over {seeds} seeds; differences are those of each seed, with their standard error. "
        "Each line of the picture is a seed."
        if seeds > 1
        else ""
    )
    picture = curves(task, outcomes, f"dev {task.metric} after every epoch", "svg").decode()
    return page(
        title,
        f"<p>{escape(about)}</p><p>Percent, the best of each column in bold. {spread}</p>"
        f'<div class="wide"><table><thead><tr><th>objective</th>{head}{against}<th>seconds a run</th></tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        f'<figure class="wide">{picture[picture.index("<svg") :]}</figure>{more}',
    )
