"""The figure of trained weights by their expected hinge and their expected loss."""

from collections.abc import Mapping, Sequence
from io import BytesIO

from structloss.cli import plots


def loss_against_hinge(points: Mapping[str, tuple[Sequence[float], Sequence[float]]], lowest: float) -> bytes:
    """A PNG with a point for each training: (hinges, losses) of each objective, and a line at the lowest loss found."""
    plots.require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 4.2), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(lowest, color="gray", linestyle=":", label="descent on the integrated loss")
    for i, (name, (hinges, losses)) in enumerate(points.items()):
        axes.scatter(hinges, losses, s=42, alpha=0.75, color=plots.COLOURS[i], marker="osD"[i % 3], label=name)
    axes.set_xscale("log")
    axes.set_xticks(ticks := [2, 3, 5, 10], [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("expected hinge (5), what the hinge minimises")
    axes.set_ylabel("expected loss (2), what is wanted")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, title="trained by", alignment="left")
    written = BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()
