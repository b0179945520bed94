"""Dependency trees as pictures: words in a row, an arc above them from each head to its word, SVG."""

import re
from collections.abc import Sequence
from html import escape

from structloss.tasks.parsing.treebank import Arc

_LETTER, _GAP, _LEVEL, _SIZE = 9.0, 22.0, 26.0, 15  # widths and heights, in pixels
_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def drawn(words: Sequence[str], tree: Sequence[Arc]) -> str:
    """A picture of a tree, in SVG."""
    widths = [max(len(word), len(name)) * _LETTER for word, (_, name) in zip(words, tree, strict=True)]
    middles = [sum(widths[:d]) + widths[d] / 2 + (d + 1) * _GAP for d in range(len(words))]
    levels = _levels([(d + 1, head) for d, (head, _) in enumerate(tree)])
    floor = (max(levels, default=0) + 1) * _LEVEL
    arcs, texts = [], []  # no arc is drawn over a name
    for d, ((head, name), level) in enumerate(zip(tree, levels, strict=True)):
        end, top = middles[d] - 4, floor - level * _LEVEL
        if head:
            begin = middles[head - 1] + 4
            bend = min(12.0, abs(end - begin) / 2) * (1 if begin < end else -1)
            path = f"M{begin:.1f} {floor:.1f}V{top + 8:.1f}Q{begin:.1f} {top:.1f} {begin + bend:.1f} {top:.1f}"
            path += f"H{end - bend:.1f}Q{end:.1f} {top:.1f} {end:.1f} {top + 8:.1f}V{floor - 6:.1f}"
            at = (begin + end) / 2
        else:
            path, at = f"M{end:.1f} {top:.1f}V{floor - 6:.1f}", end
        arcs += [f'<path class="arc" d="{path}"/>', _arrow(end, floor)]
        texts += [_text(name, at, top - 3, "name"), _text(words[d], middles[d], floor + 1.3 * _SIZE, "word")]
    width, height = sum(widths) + (len(words) + 1) * _GAP, floor + 2 * _SIZE
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif">',
            "<style>.arc{fill:none;stroke:#52606d;stroke-width:1.3}.arrow{fill:#52606d}.word{font-size:15px}"
            ".name{font-size:11px;fill:#c0392b;paint-order:stroke;stroke:white;stroke-width:4px}</style>",
            '<rect width="100%" height="100%" fill="white"/>',
            *arcs,
            *texts,
            "</svg>\n",
        ]
    )


def _levels(arcs: Sequence[tuple[int, int]]) -> list[int]:
    """How high each arc is drawn: above all arcs that it spans, from 1 on; the root's above everything."""
    levels = [0] * len(arcs)
    spans = [(min(arc), max(arc)) for arc in arcs]
    hung = [i for i in range(len(arcs)) if arcs[i][1] > 0]
    for i in sorted(hung, key=lambda i: spans[i][1] - spans[i][0]):
        low, high = spans[i]
        over = [levels[j] for j in hung if levels[j] and spans[j][0] < high and low < spans[j][1]]
        levels[i] = 1 + max(over, default=0)
    top = 1 + max(levels, default=0)
    return [level or top for level in levels]


def _arrow(x: float, floor: float) -> str:
    return f'<path class="arrow" d="M{x - 3.5:.1f} {floor - 7:.1f}h7l-3.5 7z"/>'


def _text(text: str, x: float, y: float, kind: str) -> str:
    shown = escape(_NOT_IN_XML.sub("\ufffd", text))
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{shown}</text>'
