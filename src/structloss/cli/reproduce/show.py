"""Begin a reproduction, and print what it found on the terminal and write it into its folder."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from structloss.reproduce.finding import Finding, Grid


def start(out: Path) -> Callable[[str], None]:
    """Make the folder before any work is done for it; what is returned tells of progress on the terminal."""
    out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    return lambda text: console.print(text, highlight=False)


def show(finding: "Finding", out: Path, data: Any, pictures: Mapping[str, bytes]) -> None:
    """Its tables and remarks on the terminal; tables, data and pictures as files."""
    console = Console()
    for grid in finding.grids:
        console.print(as_table(grid))
    for remark in finding.remarks:
        console.print(remark, highlight=False)
    for file in finding.write(out, data, pictures):
        typer.echo(f"Wrote {file}")


def as_table(grid: "Grid") -> Table:
    """For the terminal."""
    table = Table(title=grid.caption, title_justify="left")
    for i, column in enumerate(grid.columns):
        table.add_column(column, justify="right" if i else "left")
    for row in grid.rows:
        table.add_row(*row)
    return table
