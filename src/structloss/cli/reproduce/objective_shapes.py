"""The figure of objectives as functions of the margin."""

from collections.abc import Mapping, Sequence
from io import BytesIO

from structloss.cli import plots


def objective_shapes(margins: Sequence[float], panels: Mapping[float, Mapping[str, Sequence[float]]]) -> bytes:
    """A PNG with a panel for each value of the loss: each objective along the margins. The first curve is the loss."""
    plots.require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(panels), 4.4), dpi=130, layout="constrained")
    for i, (loss, curves) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), i + 1)
        for j, (name, values) in enumerate(curves.items()):
            colour, width = ("black", 2.4) if j == 0 else (plots.COLOURS[j - 1], 1.6)
            style = "-" if j in (0, 1, 2, 4) else "--"
            axes.plot(margins, values, style, color=colour, linewidth=width, label=name if i == 0 else None)
        axes.axvline(0, color="gray", linewidth=0.6)
        axes.axvline(loss, color="gray", linewidth=0.8, linestyle=":")
        axes.text(loss, 0.98, " margin = loss", transform=axes.get_xaxis_transform(), va="top", fontsize=8)
        axes.set_title(f"L(y, r) = {loss:g}", loc="left")
        axes.set_xlabel("margin, score(r) - score(y)")
        axes.set_ylim(-0.2, 7)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=6, frameon=False)
    written = BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()
