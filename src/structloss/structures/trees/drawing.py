"""Pictures of packed forests: items from the root down, arcs as dots between a head and its tails."""

from pathlib import Path
from typing import Any

import numpy as np

from structloss.structures.trees.packed import Forests

_MOST_ARCS = 300


def draw_forest(f: Forests, example: int, names: list[list[str]] | None, bold: list[int], path: Path) -> Path:
    """Draw an example into a file, the arcs `bold` of it stronger than the others."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("drawing needs matplotlib: pip install 'structloss[plot]'") from error
    p, batch = f.packed, len(f.sizes)
    if f.sizes[example] > _MOST_ARCS:
        raise ValueError(
            f"draw: example {example} has {f.sizes[example]} arcs, but a picture has room for {_MOST_ARCS}"
        )
    place: dict[int, tuple[float, float]] = {f.num_items: (0.0, 0.0)}
    for level, cell in enumerate(reversed(range(example, len(p.cell_begin) - 1, batch))):
        own = range(p.cell_begin[cell], p.cell_begin[cell + 1])
        # Every other level stands aside, or arcs that pass a level would pass behind its items.
        place |= {n: ((i + 1 + 0.3 * (level % 2)) / (len(own) + 1), float(level)) for i, n in enumerate(own)}
    widest = max(np.diff(p.cell_begin)[example::batch], default=1)
    figure = Figure(figsize=(2 + 1.2 * widest, 1 + 1.2 * (len(p.cell_begin) - 1) / batch))
    axes: Any = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    for n in sorted(place)[:-1]:
        begin, end = p.arc_begin[n : n + 2]
        for i, a in enumerate(range(begin, end)):
            strong = int(p.number[a] - f.offset[example]) in bold
            style: dict[str, Any] = {"color": "#c0392b" if strong else "#9aa5b1", "linewidth": 2.2 if strong else 0.9}
            x, y = place[n]
            x, y = x + 0.03 * (i - (end - begin - 1) / 2), y - 0.4
            axes.plot([place[n][0], x], [place[n][1], y], **style)
            axes.plot([x], [y], "o", color=style["color"], markersize=3)
            for t in p.tails[:, a]:
                if t != f.num_items:
                    axes.plot([x, place[t][0]], [y, place[t][1]], **style)
        text = str(f.names[n]) if names is None else names[example][f.names[n]]
        axes.text(*place[n], text, ha="center", va="center", bbox={"boxstyle": "round", "fc": "white", "ec": "#52606d"})
    figure.savefig(path, bbox_inches="tight")
    return path
