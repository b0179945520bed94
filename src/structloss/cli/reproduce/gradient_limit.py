"""The figure of a gradient that updates approach as epsilon goes to 0."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import TYPE_CHECKING

from structloss.cli import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# For each side, rows of epsilon: the measured value, half its band's width, and the integrated value.
Rows = Mapping[str, Sequence[tuple[float, float, float, float]]]


def gradient_limit(components: Mapping[str, tuple[float, Rows]], distances: Rows, level: str) -> bytes:
    """A PNG with a panel for each component, (its true value, its rows), and one for the distance from the gradient.

    The rows of distances have the noise's expected length instead of a band.
    """
    plots.require_matplotlib()
    from matplotlib.figure import Figure

    columns = 3
    lines = -(-(len(components) + 1) // columns)
    figure = Figure(figsize=(4.3 * columns, 3.3 * lines), dpi=130, layout="constrained")
    for i, (name, (true, sides)) in enumerate(components.items()):
        axes = figure.add_subplot(lines, columns, i + 1)
        axes.axhline(true, color="black", linewidth=1.2, label="gradient of the expected loss")
        for j, (side, rows) in enumerate(sides.items()):
            epsilons, measured, band, integrated = (list(column) for column in zip(*rows, strict=True))
            apart = [epsilon * (1.06 if j else 1 / 1.06) for epsilon in epsilons]  # side by side, not on each other
            colour = plots.COLOURS[j]
            axes.plot(epsilons, integrated, color=colour, alpha=0.6, linewidth=1.2, label=f"{side}, integrated")
            label = f"{side}, DirectLoss, {level}"
            axes.errorbar(apart, measured, band, color=colour, fmt="o", markersize=3, capsize=2, label=label)
        axes.set_title(name, loc="left")
        _finish(axes)
        if i == 0:
            handles = axes.get_legend_handles_labels()
    axes = figure.add_subplot(lines, columns, len(components) + 1)
    for j, rows in enumerate(distances.values()):
        epsilons, measured, noise, integrated = (list(column) for column in zip(*rows, strict=True))
        axes.plot(epsilons, integrated, color=plots.COLOURS[j], alpha=0.6, linewidth=1.2)
        axes.plot(epsilons, measured, color=plots.COLOURS[j], marker="o", markersize=3.5, linestyle="none")
        if j == 0:
            axes.plot(epsilons, noise, color="gray", linestyle=":", label="noise to expect")
    axes.legend(frameon=False, loc="upper left")
    axes.set_title("distance from the gradient", loc="left")
    axes.set_yscale("log")
    _finish(axes)
    figure.legend(*handles, loc="outside lower center", ncols=3, frameon=False)
    written = BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def _finish(axes: "Axes") -> None:
    axes.set_xscale("log")
    axes.set_xlabel("epsilon")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
