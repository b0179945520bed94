"""Pictures of loss machines: as Graphviz text, and as an SVG, PNG or PDF file."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from structloss.files import write_bytes

if TYPE_CHECKING:
    from structloss.automata.automaton import LossAutomaton

_MOST_STATES = 400


def arc_labels(machine: LossAutomaton, symbols: Sequence[str] | None) -> list[tuple[int, int, str]]:
    """(state, next state, what is read and what it costs), one for each pair of states that an arc joins."""
    names = [str(y) for y in range(machine.num_labels)] if symbols is None else list(symbols)
    by_class: dict[int, list[str]] = {}
    for label, symbol_class in enumerate(machine.class_of.tolist()):
        by_class.setdefault(symbol_class, []).append(names[label])
    arcs = []
    for t in range(machine.length):
        for state in range(machine.offsets[t], machine.offsets[t + 1]):
            joined: dict[tuple[int, float], list[str]] = {}
            for symbol_class, read in sorted(by_class.items()):
                target = int(machine.offsets[t + 1] + machine.next_state[state, symbol_class])
                cost = 0.0 if machine.is_absolute else float(machine.weights[state, symbol_class])
                joined.setdefault((target, cost), []).extend(read)
            for (target, cost), read in joined.items():
                shown = ",".join(read) if len(read) < machine.num_labels else "any"
                arcs.append((int(state), target, shown if machine.is_absolute else f"{shown}/{cost:g}"))
    return arcs


def to_dot(machine: LossAutomaton, symbols: Sequence[str] | None = None) -> str:
    """Graphviz text: one rank a position, final states doubly circled with their loss."""
    _check_size(machine)
    lines = ["digraph loss {", "  rankdir=LR; node [shape=circle];"]
    for state in range(machine.num_states):
        if state >= machine.offsets[-2]:
            lines.append(f'  {state} [shape=doublecircle, label="{state}/{machine.final[state]:g}"];')
    lines += [f'  {source} -> {target} [label="{text}"];' for source, target, text in arc_labels(machine, symbols)]
    return "\n".join([*lines, "}", ""])


def draw(machine: LossAutomaton, path: str | Path, symbols: Sequence[str] | None = None) -> Path:
    """Draw into a file whose name ends in .svg, .png or .pdf: positions from left to right, the loss at the end."""
    _check_size(machine)
    try:
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyArrowPatch
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("drawing needs matplotlib: pip install 'structloss[plot]'") from error
    path, widest = Path(path), int(machine.sizes.max())
    place = {}
    for t, size in enumerate(machine.sizes.tolist()):
        for s in range(size):
            place[int(machine.offsets[t]) + s] = (2.2 * t, (size - 1) / 2 - s)
    figure = Figure(figsize=(2.2 * machine.length + 1.5, max(1.6, 0.9 * widest)))
    axes = figure.add_axes((0, 0, 1, 1))
    joined: dict[tuple[int, int], list[str]] = {}
    for source, target, text in arc_labels(machine, symbols):
        joined.setdefault((source, target), []).append(text)
    for (source, target), texts in joined.items():
        (x0, y0), (x1, y1) = place[source], place[target]
        axes.add_patch(
            FancyArrowPatch(
                (x0, y0), (x1, y1), arrowstyle="-|>", mutation_scale=10, shrinkA=13, shrinkB=14, color="#555"
            )
        )
        angle = math.degrees(math.atan2(y1 - y0, x1 - x0))
        axes.text(
            x0 + 0.38 * (x1 - x0), y0 + 0.38 * (y1 - y0), "  ".join(texts), fontsize=8, color="#0b5394",
            ha="center", va="bottom", rotation=angle, rotation_mode="anchor", transform_rotates_text=True,
        )  # fmt: skip
    for state, (x, y) in place.items():
        final = state >= machine.offsets[-2]
        axes.plot(
            [x], [y], "o", markersize=24, markerfacecolor="#fff2cc" if final else "white", markeredgecolor="black"
        )
        axes.text(x, y, _short(machine.final[state]) if final else "", ha="center", va="center", fontsize=9)
    axes.set_xlim(-0.6, 2.2 * machine.length + 0.6)
    axes.set_ylim(-widest / 2 - 0.2, widest / 2 + 0.2)
    axes.set_axis_off()
    written = io.BytesIO()
    figure.savefig(written, format=path.suffix[1:], dpi=150)
    write_bytes(path, written.getvalue())
    return path


def _short(loss: float) -> str:
    """What fits into a circle; adding 0 turns -0 into 0."""
    return f"{loss + 0.0:.2g}"


def _check_size(machine: LossAutomaton) -> None:
    if machine.num_states > _MOST_STATES:
        raise ValueError(f"machine: got {machine.num_states} states, but more than {_MOST_STATES} make no picture")
