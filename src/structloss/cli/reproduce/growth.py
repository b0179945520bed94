"""The figure of what grows with length, times or errors, a panel for each loss."""

from collections.abc import Mapping, Sequence
from io import BytesIO

from structloss.cli import plots

Points = Sequence[tuple[int, float, float]]  # length, mean, deviation

_MARKERS = "osDv^P"


def growth(
    panels: Mapping[str, Mapping[str, Points]], what: str = "seconds for one gradient", scale: str = "log"
) -> bytes:
    """A PNG with a panel for each loss: `what` on its axis, and a band of one deviation, for each method."""
    plots.require_matplotlib()
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(method for methods in panels.values() for method in methods))
    figure = Figure(figsize=(4.2 * len(panels), 4.6), dpi=130, layout="constrained")
    first = None
    seen: set[str] = set()
    for i, (title, methods) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), i + 1, sharex=first, sharey=first)
        first = first or axes
        for name, points in methods.items():
            if not points:
                continue
            lengths, means, deviations = (list(column) for column in zip(*points, strict=True))
            colour, label = plots.COLOURS[names.index(name)], None if name in seen else name
            seen.add(name)
            marker = _MARKERS[names.index(name) % len(_MARKERS)]
            axes.plot(lengths, means, color=colour, label=label, marker=marker, markersize=3.5, linewidth=1.4)
            low = [max(m - d, m / 3) for m, d in zip(means, deviations, strict=True)]  # a logarithm has no 0
            high = [m + d for m, d in zip(means, deviations, strict=True)]
            axes.fill_between(lengths, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.set_yscale(scale)
        axes.set_title(title, loc="left")
        axes.set_xlabel("length of the strings, l")
        if i == 0:
            axes.set_ylabel(what)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", frameon=False, ncols=min(len(names), 2 * len(panels)))
    written = BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()
