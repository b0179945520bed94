"""The figure of differences over folds: panels side by side, a row for each name."""

from collections.abc import Mapping, Sequence
from io import BytesIO

from structloss.cli import plots


def folds(panels: Mapping[str, Mapping[str, Sequence[float]]], against: str) -> bytes:
    """A PNG with a panel for each title: for each name the difference of each fold to the method `against`.

    Beside them their mean and its standard error.
    """
    plots.require_matplotlib()
    from matplotlib.figure import Figure

    rows = max(map(len, panels.values()))
    figure = Figure(figsize=(11.5, 1.4 + 0.42 * rows), dpi=110, layout="constrained")
    for i, (title, values) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), i + 1)
        for row, (colour, differences) in enumerate(zip(_colours(len(values)), values.values(), strict=True)):
            n = len(differences)
            mean = sum(differences) / n
            variance = sum((d - mean) ** 2 for d in differences) / max(1, n - 1)
            spread = [row + 0.3 * (k / max(1, n - 1) - 0.5) for k in range(n)]
            axes.plot(differences, spread, "o", color=colour, markersize=4, alpha=0.45, markeredgewidth=0)
            axes.errorbar(mean, row, xerr=(variance / n) ** 0.5, color=colour, marker="D", markersize=6, capsize=5)
        axes.axvline(0, color="black", linewidth=1)
        axes.set_yticks(range(len(values)), list(values))
        axes.set_ylim(len(values) - 0.5, -0.5)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel(f"Smith-Waterman score above that of {against}")
        axes.grid(alpha=0.25, axis="x")
        axes.spines[["top", "right"]].set_visible(False)
    written = BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def _colours(count: int) -> list[str]:
    return [plots.COLOURS[i % len(plots.COLOURS)] for i in range(count)]
