"""An HTML page that needs no other file, for large screens and small ones, light and dark."""

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from structloss.reproduce.finding import Grid

_STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 60rem; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; }
.wide { overflow-x: auto; }
.beside { display: grid; gap: 0 2rem; grid-template-columns: repeat(auto-fit, minmax(min(18rem, 100%), 1fr)); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .7rem; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
table.text th, table.text td { text-align: left; }
tbody tr:hover { background: var(--soft); }
figure { background: #fff; border-radius: .5rem; margin: 1.5rem 0; }
figure svg, figure img { display: block; height: auto; width: 100%; }
figure.wide img, figure.wide svg { min-width: 38rem; }
"""


def page(title: str, body: str) -> str:
    """A whole page; `title` is text, `body` HTML."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )


def table(grid: "Grid") -> str:
    """A table with its caption."""
    head = "".join(f"<th>{escape(column)}</th>" for column in grid.columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in grid.rows)
    return (
        f'<p><b>{escape(grid.caption)}</b></p><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>\n"
    )
