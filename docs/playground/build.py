"""The playground: one page that needs no server and no other file, with the machines that structloss makes for it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structloss as sl

FOLDER = Path(__file__).parent
LONGEST = 5
LOSSES = (
    ("hamming", "Hamming", sl.Hamming, ()),
    ("edit", "EditDistance", sl.EditDistance, (1, 2, 3)),
    ("smith-waterman", "SmithWaterman", sl.SmithWaterman, (2, 4)),
    ("ngram", "NGram(2)", sl.NGram, ()),
)
OBJECTIVES = ("NegativeLogLikelihood", "SoftmaxMargin", "Perceptron", "Hinge", "DirectLoss", "Risk")


def losses() -> Iterator[tuple[str, sl.MachineLoss | sl.Hamming]]:
    """Each loss under the name by which the page asks for it."""
    for name, _, make, caps in LOSSES:
        yield name, make()
        for cap in caps:
            yield f"{name}:cap={cap}", make(cap=cap)


def patterns(length: int) -> list[list[int]]:
    """References of so many labels, one of all those that differ only in which label is which."""
    found = [[0]]
    for _ in range(length - 1):
        found = [[*pattern, label] for pattern in found for label in range(max(pattern) + 2)]
    return found


def data() -> dict[str, Any]:
    """The machines, those that are the same kept once."""
    arrays: list[Any] = []
    machines, numbers = dict[str, int](), dict[str, int]()
    for length in range(1, LONGEST + 1):
        for pattern in patterns(length):
            for name, loss in losses():
                for T in (length,) if name == "hamming" else range(1, LONGEST + 1):
                    m = loss.automaton(pattern, num_labels=max(pattern) + 2, length=T)
                    inner = m.next_state[: m.offsets[-2]]
                    parts = [
                        x.ravel().tolist() for x in (m.class_of, m.offsets, inner, m.weights[: len(inner)], m.last)
                    ]
                    key = json.dumps(parts)
                    if key not in numbers:
                        numbers[key] = len(arrays)
                        arrays.append(parts)
                    machines[f"{name}|{''.join(map(str, pattern))}|{T}"] = numbers[key]
    named = [(name, said, caps) for name, said, _, caps in LOSSES]
    return {"longest": LONGEST, "losses": named, "objectives": OBJECTIVES, "machines": machines, "arrays": arrays}


def page() -> str:
    """The page's HTML."""
    html = (FOLDER / "page.html").read_text()
    html = html.replace("/*data*/null", json.dumps(data(), separators=(",", ":")))
    for name in ("compute", "page"):
        html = html.replace(f"/*{name}*/", (FOLDER / f"{name}.js").read_text())
    return html
