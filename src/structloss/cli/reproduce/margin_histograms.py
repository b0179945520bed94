"""The figure of margins and slacks of training examples, before and after training."""

from collections.abc import Mapping, Sequence
from io import BytesIO

import numpy as np

from structloss.cli import plots

When = Mapping[str, tuple[Sequence[float], Sequence[float]]]  # "before", "after": margins, loss-rescaled margins


def margin_histograms(rows: Mapping[str, When]) -> bytes:
    """A PNG with a row for each method: a histogram of margins, and one of loss-rescaled margins, each at two times.

    What lies below 0 on the right has slack, and is shaded.
    """
    plots.require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 2.7 * len(rows) + 0.4), dpi=130, layout="constrained")
    titles = ("margin: score(r) - max over other y of score(y)", "loss-rescaled: the same with score(y) + L(y, r)")
    for i, (method, when) in enumerate(rows.items()):
        for column, title in enumerate(titles):
            shown = [value for each in rows.values() for pair in each.values() for value in pair[column]]
            low, high = np.quantile(shown, [0.003, 0.997])
            bins = np.linspace(low, high, 40).tolist()
            axes = figure.add_subplot(len(rows), 2, 2 * i + column + 1)
            if column:
                axes.axvspan(low, 0, color="#D55E00", alpha=0.08, linewidth=0)
            for j, (name, pair) in enumerate(when.items()):
                met = sum(value >= 0 for value in pair[column]) / len(pair[column])
                label = f"{name}: {met:.0%} at 0 or above"
                clipped = np.clip(pair[column], low, high)
                axes.hist(clipped, bins, color=("#999999", plots.COLOURS[0])[j], alpha=0.65, label=label)
            axes.axvline(0, color="black", linewidth=0.9)
            axes.set_ylim(0, 1.35 * axes.get_ylim()[1])  # room for the legend
            axes.legend(frameon=False, fontsize=8, loc="upper left")
            axes.set_title(f"{method}, {title}" if column == 0 else title, loc="left", fontsize=9)
            if column == 0:
                axes.set_ylabel("sentences")
            axes.spines[["top", "right"]].set_visible(False)
    written = BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()
