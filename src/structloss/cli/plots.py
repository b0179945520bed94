"""The figure of learning curves, drawn with matplotlib, which is imported only when a figure is wanted."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from statistics import fmean

# Okabe and Ito's colours, told apart by colour-blind readers too; their yellow, too pale for a line, is a brown here.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")


def require_matplotlib() -> None:
    """Raise a ModuleNotFoundError that says what to install, where matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("Figures need matplotlib: pip install 'structloss[plot]'") from error


def learning_curves(
    curves: Mapping[str, Sequence[Sequence[float]]], title: str, y_label: str, form: str = "png", digits: int = 1
) -> bytes:
    """A figure with a line for each seed of each name: its values after epochs 1, 2, ...

    The legend has the mean of the last values, and is ordered by it, lowest first. The y axis leaves out the highest
    twentieth of the values, the first epochs of slow starters, where they would press the rest together.
    """
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(curves)}
    last = {name: fmean(curve[-1] for curve in seeds) for name, seeds in curves.items()}
    for name in sorted(curves, key=lambda name: last[name]):
        for i, curve in enumerate(curves[name]):
            axes.plot(
                range(1, len(curve) + 1),
                curve,
                color=colours[name],
                label=f"{last[name]:.{digits}f}  {name}" if i == 0 else None,
                linewidth=1.7,
                marker="o",
                markersize=3,
                alpha=0.9 if len(curves[name]) == 1 else 0.6,
            )
    axes.set_ylim(*_limits([value for seeds in curves.values() for curve in seeds for value in curve]))
    axes.set_title(title, loc="left")
    axes.set_xlabel("epoch")
    axes.set_ylabel(y_label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.02)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, title="last epoch", alignment="left")
    written = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "structloss"}):
        figure.savefig(written, format=form, metadata={"Date": None} if form == "svg" else None)
    return written.getvalue()


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """From just below the lowest value to just above all but the highest twentieth."""
    ordered = sorted(values)
    lowest, high = ordered[0], ordered[int(0.95 * (len(ordered) - 1))]
    margin = max(0.05 * (high - lowest), 0.5)
    return lowest - margin, high + margin
