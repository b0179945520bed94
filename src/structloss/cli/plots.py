"""The figures of commands that train, drawn with matplotlib, which is imported only when a figure is wanted."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

# Okabe and Ito's colours, told apart by colour-blind readers too; their yellow, too pale for a line, is a brown here.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")


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
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(curves)}
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


def dots(groups: Mapping[str, Mapping[str, Sequence[float]]], title: str, y_label: str, form: str = "png") -> bytes:
    """A figure with a group of columns for each measure, one a method: its mean as a bar, with a dot for each value."""
    require_matplotlib()
    import matplotlib as mpl
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    methods = list(next(iter(groups.values())))
    width = 0.8 / len(methods)
    for i, (colour, method) in enumerate(zip(COLOURS, methods, strict=False)):
        for g, values in enumerate(groups.values()):
            place, mean = g + (i - (len(methods) - 1) / 2) * width, fmean(values[method])
            label = f"{fmean(next(iter(groups.values()))[method]):.1f}  {method}" if g == 0 else None
            axes.bar(place, mean, 0.92 * width, color=colour, alpha=0.55, label=label)
            spread = [place + 0.3 * width * (j - (len(values[method]) - 1) / 2) for j in range(len(values[method]))]
            axes.plot(spread, values[method], "o", color=colour, markersize=5, markeredgecolor="white")
    axes.set_ylim(0, 100)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_title(title, loc="left")
    axes.set_ylabel(y_label)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, title=next(iter(groups)), alignment="left")
    written = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "structloss"}):
        figure.savefig(written, format=form, metadata={"Date": None} if form == "svg" else None)
    return written.getvalue()


def alignment(samples: NDArray[np.float32], rate: int, rows: Mapping[str, Sequence[tuple[float, float, str]]]) -> bytes:
    """A PNG of a spectrogram with the boundaries of each row of segments (start, end, name): the first above it.

    The boundaries of the first row go through the spectrogram as lines, those of the others are dashed.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    duration = len(samples) / rate
    figure = Figure(figsize=(min(40, max(8, 3.2 * duration)), 4), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    axes.specgram(samples + 1e-6, NFFT=400, Fs=rate, noverlap=320, cmap="Greys")
    for i, (name, segments) in enumerate(rows.items()):
        colour, top = COLOURS[i % len(COLOURS)], i == 0
        for start, end, phone in segments:
            axes.axvline(start, color=colour, linewidth=1.2, linestyle="-" if top else "--")
            height = 1.02 + 0.07 * i
            place = (start + end) / 2
            axes.text(place, height, phone, color=colour, fontsize=8, ha="center", transform=axes.get_xaxis_transform())
        axes.plot([], [], color=colour, linestyle="-" if top else "--", label=name)
    axes.set_xlim(0, duration)
    axes.set_ylim(0, 8000)
    axes.set_xlabel("seconds")
    axes.set_ylabel("Hz")
    figure.legend(loc="outside lower right", ncols=len(rows), frameon=False)
    written = BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """From just below the lowest value to just above all but the highest twentieth."""
    ordered = sorted(values)
    lowest, high = ordered[0], ordered[int(0.95 * (len(ordered) - 1))]
    margin = max(0.05 * (high - lowest), 0.5)
    return lowest - margin, high + margin
