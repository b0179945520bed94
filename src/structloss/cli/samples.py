"""Some answers side by side: of each example what is right and who says so, then the other answers."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from rich.table import Table

Row = tuple[str, str, str]  # the example, where it is a new one; an answer; who gives it


def grouped(samples: Sequence[tuple[str, str]], answers: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """The rows of a table.

    Args:
        samples: examples, each with the answer that is right.
        answers: of each candidate, one for each example.
    """
    for i, (example, right) in enumerate(samples):
        said: dict[str, list[str]] = {right: []}
        for name, given in answers.items():
            said.setdefault(given[i], []).append(name)
        for answer, names in said.items():
            first = answer == right
            yield example if first else "", answer, f"{'✓ ' if first else ''}{', '.join(names)}"


def as_table(rows: Sequence[Row], title: str, heads: tuple[str, str]) -> Table:
    """For the terminal."""
    table = Table(title=title)
    for name in _columns(heads):
        table.add_column(name)
    for i, row in enumerate(rows):
        table.add_row(*row, end_section=i + 1 < len(rows) and bool(rows[i + 1][0]))
    return table


def as_html(rows: Sequence[Row], title: str, heads: tuple[str, str]) -> str:
    """For a page."""
    head = "".join(f"<th>{escape(name)}</th>" for name in _columns(heads))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<h2>{escape(title)}</h2><div class="wide"><table class="text"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _columns(heads: tuple[str, str]) -> tuple[str, str, str]:
    return *heads, "who says so (✓ is right)"
