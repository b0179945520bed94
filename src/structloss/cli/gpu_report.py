"""`structloss gpu-report`: what the engines for GPUs do on this machine, on a page and in a file that can be sent."""

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from structloss.cli.page import page, table
from structloss.cli.prepare import said_plainly

if TYPE_CHECKING:
    from structloss.gpu.report import Report
    from structloss.reproduce.finding import Grid


def gpu_report(
    out: Annotated[Path, typer.Option(help="The folder for gpu-report.html and gpu-report.json.")] = Path("."),
    quick: Annotated[bool, typer.Option("--quick", help="A few small checks, to see that it works.")] = False,
) -> None:
    """Check and time the engines on this machine's GPU; write one page, and one JSON that you can send.

    With a GPU: every operation against a list of all outputs, problems of real sizes against the native engine, the
    same bits in every run, time and memory beside pytorch-crf, torch-struct and torch's CTC where they are installed
    (extra `bench`). Without one: the kernels in Triton's interpreter, and compiled for GPUs that are not here; nothing
    is timed then. Nothing is sent anywhere. The exit code is 1 if anything is not as it should be.

    Example: `structloss gpu-report --out report`
    """
    with said_plainly():
        from structloss.cli.reproduce.show import as_table
        from structloss.files import check_output, write_text
        from structloss.gpu.report import gathered

        out.mkdir(parents=True, exist_ok=True)
        files = out / "gpu-report.html", out / "gpu-report.json"
        for file in files:
            check_output(file)
        console = Console(stderr=True)
        with console.status("gpu-report") as status:
            report = gathered(lambda text: status.update(text), quick)
        grids = grids_of(report)
        for grid in grids:
            Console().print(as_table(grid))
        for text in (*report.notes, verdict(report)):
            typer.echo(text)
        for file, text in zip(files, (as_page(report, grids), report.as_json()), strict=True):
            write_text(file, text)
            typer.echo(f"Wrote {file}")
        if not report.passed:
            raise typer.Exit(1)


def verdict(report: "Report") -> str:
    """In one sentence."""
    wrong = sum(not row["passed"] for row in report.rows)
    if not report.rows:
        return "Nothing was checked."
    return f"{len(report.rows)} checks: " + (f"{wrong} FAILED." if wrong else "all as they should be.")


def as_page(report: "Report", grids: "list[Grid]") -> str:
    """The page."""
    notes = "".join(f"<p>{escape(text)}</p>\n" for text in (verdict(report), *report.notes))
    return page("structloss on this machine", notes + "".join(map(table, grids)))


def grids_of(report: "Report") -> "list[Grid]":
    """Its tables, as they are read."""
    from structloss.reproduce.finding import Grid

    about = [[name, str(value)] for name, value in report.about.items() if value is not None]
    tables: list[tuple[str, list[dict[str, Any]], dict[str, str]]] = [
        ("Every operation against a list of all outputs; largest errors", report.operations, _OPERATIONS),
        ("What holds", report.behaviour, {"sentence": "what"}),
        ("Compiled here for GPUs that are not here; the most of all variants", report.kernels, _KERNELS),
        (
            "Problems of real sizes, forward and backward; errors against the native engine, relative to the largest "
            "number, of labels the share that differ",
            report.problems,
            _PROBLEMS,
        ),
    ]
    grids = [Grid("This machine", ["what", "is"], about)]
    for caption, rows, names in tables:
        if rows:
            shown = {key: name for key, name in names.items() if any(row.get(key) not in (None, "") for row in rows)}
            cells = [[_cell(row.get(key)) for key in shown] + ["" if row["passed"] else "WRONG"] for row in rows]
            grids.append(Grid(caption, [*shown.values(), ""], cells))
    return grids


_OPERATIONS = {
    "operation": "operation", "engine": "engine", "dtype": "dtype", "cases": "structures", "numbers": "numbers",
    "largest_error": "value", "of_gradients": "gradient",
}  # fmt: skip
_KERNELS = {
    "kernel": "kernel", "target": "target", "variants": "variants", "registers": "registers",
    "spilled": "spilled bytes", "scalars": "scalars kept elsewhere", "shared": "shared bytes", "atomics": "atomics",
}  # fmt: skip
_PROBLEMS = {
    "problem": "problem", "size": "size", "by": "by", "milliseconds": "ms, median", "least": "ms, least",
    "megabytes": "MB", "repeats": "same bits", "error": "error", "of_gradients": "of gradients", "failure": "failure",
}  # fmt: skip


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1e}" if abs(value) < 0.01 else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    return "" if value is None else str(value)
