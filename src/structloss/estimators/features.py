"""The features that tell labels apart, as a table and as a picture."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class FeatureTable(Sequence[tuple[Any, str, float]]):
    """Rows (label, feature, weight), label by label, the highest weight first; printed as a table.

    Args:
        coef: (K, F).
        labels: the K labels, or those of them to show.
        names: of the F features.
        n: how many features of each label, those whose weights are largest, above or below 0.

    Example:
        >>> import numpy as np
        >>> from structloss.estimators import FeatureTable
        >>> FeatureTable(np.array([[2.0, -3.0, 0.5], [-1.0, 0.1, 0.2]]), ["A", "B"], ["x", "y", "z"], n=2)
        label  feature   weight
        A      x         2.0000
        A      y        -3.0000
        B      z         0.2000
        B      x        -1.0000
    """

    def __init__(self, coef: NDArray[Any], labels: Sequence[Any], names: Sequence[str], n: int) -> None:
        if n < 1:
            raise ValueError(f"n: got {n!r}, but wanted at least 1")
        self.rows: list[tuple[Any, str, float]] = []
        for label, weights in zip(labels, coef, strict=True):
            largest = np.argsort(-np.abs(weights), kind="stable")[:n]
            ordered = largest[np.argsort(-weights[largest], kind="stable")]
            self.rows += [(label, str(names[i]), float(weights[i])) for i in ordered]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        return self.rows[place]

    def __repr__(self) -> str:
        first = max([5, *(len(str(label)) for label, _, _ in self.rows)])
        second = max([7, *(len(name) for _, name, _ in self.rows)])
        head = f"{'label':{first}}  {'feature':{second}}  {'weight':>7}"
        return "\n".join([head, *(f"{label!s:{first}}  {name:{second}}  {w:7.4f}" for label, name, w in self.rows)])

    def plot(self, columns: int = 3) -> Any:
        """A picture, one panel of bars for each label: a matplotlib figure. It needs the extra `plot`."""
        try:
            from matplotlib.figure import Figure
        except ModuleNotFoundError as missing:
            raise ModuleNotFoundError("Figures need matplotlib: pip install 'structloss[plot]'") from missing
        labels = list(dict.fromkeys(label for label, _, _ in self.rows))
        most = max((sum(row[0] == label for row in self.rows) for label in labels), default=1)
        columns = max(1, min(columns, len(labels)))
        lines = max(1, -(-len(labels) // columns))
        figure = Figure(figsize=(4 * columns, lines * (0.8 + 0.22 * most)), layout="constrained")
        panels = figure.subplots(lines, columns, squeeze=False, sharex=True).ravel()
        for panel in panels[len(labels) :]:
            panel.remove()
        for panel, label in zip(panels, labels, strict=False):
            _, names, weights = zip(*(row for row in self.rows if row[0] == label), strict=True)
            places = np.arange(len(names))[::-1]
            panel.barh(places, weights, color=["#0072b2" if w > 0 else "#d55e00" for w in weights])
            panel.set_yticks(places, names, fontsize=8)
            panel.axvline(0, color="black", linewidth=0.8)
            panel.set_title(str(label), loc="left")
        return figure
