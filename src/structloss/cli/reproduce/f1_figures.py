"""The figures of `structloss reproduce f1`: F1 by language, labels that are wrong, names that are dear."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING, Any

from structloss.cli import plots

if TYPE_CHECKING:
    from structloss.reproduce.f1.bootstrap import Interval

GREY, BLUE, ORANGE = "#8a8a8a", plots.COLOURS[0], plots.COLOURS[1]


def _png(figure: Any) -> bytes:
    written = BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def _plain(axes: Any, axis: str) -> None:
    axes.grid(alpha=0.25, axis=axis)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def languages(scores: Mapping[str, Mapping[str, "Interval"]], gains: Mapping[str, "Interval"], against: str) -> bytes:
    """A PNG: on the left F1 by method and set, on the right how much the last method gains over `against`, by set."""
    plots.require_matplotlib()
    from matplotlib.figure import Figure

    sets = list(next(iter(scores.values())))
    figure = Figure(figsize=(10.5, 1.5 + 0.62 * len(sets)), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(2, 1))
    for i, ((name, row), colour) in enumerate(zip(scores.items(), (GREY, BLUE, ORANGE), strict=False)):
        for place, one in enumerate(row.values()):
            y = place + 0.24 * (i - (len(scores) - 1) / 2)
            error = [[one.value - one.low], [one.high - one.value]]
            label = name if place == 0 else None
            left.errorbar(one.value, y, xerr=error, color=colour, marker="o", markersize=8, elinewidth=1.4, label=label)
            left.text(one.high + 0.4, y, f"{one.value:.1f}", color=colour, va="center", fontsize=9)
    for place, name in enumerate(sets):
        one = gains[name]
        error = [[one.value - one.low], [one.high - one.value]]
        right.errorbar(one.value, place, xerr=error, color=ORANGE, marker="D", markersize=7, capsize=4, elinewidth=1.6)
        right.text(one.value, place - 0.17, f"{one.value:+.1f}", color=ORANGE, ha="center", va="bottom", fontsize=10)
    right.axvline(0, color=BLUE, linewidth=1.5)
    left.set_yticks(range(len(sets)), sets)
    left.set_ylim(len(sets) - 0.5, -0.5)
    left.set_title("test F1 (95 % intervals over sentences)", loc="left", fontsize=10)
    right.set_title(f"gain over {against}", loc="left", fontsize=10)
    for axes in (left, right):
        _plain(axes, "x")
        axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return _png(figure)


def flips(rows: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], parts: Sequence[float]) -> bytes:
    """A PNG with a panel for each set and metric, and a line for each method: rows[set][metric][method], by part."""
    plots.require_matplotlib()
    from matplotlib.figure import Figure

    metrics = list(next(iter(rows.values())))
    figure = Figure(figsize=(4.6 * len(rows) + 1, 3.1 * len(metrics) + 0.5), dpi=80, layout="constrained")
    panels = figure.subplots(len(metrics), len(rows), squeeze=False)
    for j, (name, by_metric) in enumerate(rows.items()):
        for i, metric in enumerate(metrics):
            axes = panels[i][j]
            for colour, (method, values) in zip((GREY, ORANGE, BLUE), by_metric[metric].items(), strict=False):
                label = method if i == j == 0 else None
                axes.plot([100 * p for p in parts], values, color=colour, marker="o", linewidth=2, label=label)
            axes.set_title(f"{name}: {metric}", loc="left", fontsize=10)
            axes.set_xticks([100 * p for p in parts])
            if i == len(metrics) - 1:
                axes.set_xlabel("% of training labels flipped")
            _plain(axes, "y")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return _png(figure)


def costs(rows: Mapping[str, Mapping[str, float]], title: str) -> bytes:
    """A PNG: rows[set][method], a group of bars for each set."""
    plots.require_matplotlib()
    from matplotlib.figure import Figure

    methods = list(next(iter(rows.values())))
    figure = Figure(figsize=(2.3 * len(rows) + 3.5, 3.8), dpi=100, layout="constrained")
    axes = figure.add_subplot()
    width = 0.84 / len(methods)
    colours = (GREY, plots.COLOURS[5], BLUE, plots.COLOURS[4], ORANGE, plots.COLOURS[3], plots.COLOURS[2])
    for i, (colour, method) in enumerate(zip(colours, methods, strict=False)):
        places = [place + (i - (len(methods) - 1) / 2) * width for place in range(len(rows))]
        axes.bar(places, [row[method] for row in rows.values()], 0.92 * width, color=colour, label=method)
    axes.set_xticks(range(len(rows)), list(rows))
    axes.set_ylabel(title)
    _plain(axes, "y")
    figure.legend(loc="outside right center", frameon=False)
    return _png(figure)
