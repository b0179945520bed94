"""The figure of an alignment's methods: a panel for each test set, a row for each method, a mark for each tolerance."""

from collections.abc import Mapping, Sequence
from io import BytesIO

import numpy as np

from structloss.cli import plots

Interval = tuple[float, float, float]  # what was found, and from where to where it may be


def differences(panels: Mapping[str, Mapping[str, Sequence[Interval]]], at: Sequence[int], against: str) -> bytes:
    """A PNG: how many percent more of the boundaries than `against` each method has right, at each tolerance, in ms.

    The axis is linear up to one percent, and logarithmic beyond.
    """
    plots.require_matplotlib()
    from matplotlib.figure import Figure

    rows = max(map(len, panels.values()))
    figure = Figure(figsize=(11.5, 1.6 + 0.42 * rows), dpi=110, layout="constrained")
    for i, (title, methods) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), i + 1)
        for j, (tolerance, colour) in enumerate(zip(at, plots.COLOURS, strict=False)):
            found, low, high = np.array([intervals[j] for intervals in methods.values()]).T
            places = np.arange(len(found)) + 0.18 * (j - (len(at) - 1) / 2)
            sides = np.maximum(0, [found - low, high - found])
            label = f"within {tolerance} ms" if i == 0 else None
            axes.errorbar(found, places, xerr=sides, fmt="o", color=colour, markersize=3.5, linewidth=1.2, label=label)
        axes.axvline(0, color="black", linewidth=1)
        axes.set_xscale("symlog", linthresh=1.0)
        ticks = [x for x in (-30, -10, -3, -1, 0, 1, 3, 10, 30) if axes.get_xlim()[0] <= x <= axes.get_xlim()[1]]
        axes.set_xticks(ticks, [f"{x:+d}" if x else "0" for x in ticks])
        axes.set_xticks([], minor=True)
        axes.set_yticks(range(len(methods)), list(methods) if i == 0 else [""] * len(methods))
        axes.set_ylim(len(methods) - 0.5, -0.5)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel(f"percent more than the {against}", fontsize=9)
        axes.grid(alpha=0.25, axis="x")
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(at), frameon=False)
    written = BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()
