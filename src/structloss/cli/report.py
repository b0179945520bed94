"""`structloss report`: all findings of a folder on one page."""

from base64 import b64encode
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from structloss.cli.page import page, table
from structloss.cli.prepare import said_plainly

if TYPE_CHECKING:
    from structloss.reproduce.finding import Finding

_TYPES = {".png": "image/png", ".svg": "image/svg+xml", ".jpg": "image/jpeg"}


def report(
    folder: Annotated[Path, typer.Argument(help="Where `structloss reproduce` has written.")] = Path("out"),
    out: Annotated[Path | None, typer.Option(help="The page; by default report.html in the folder.")] = None,
) -> None:
    """Gather what `structloss reproduce` has found into one page that needs no other file.

    Findings are taken from the folder's subfolders, one or two levels down.

    Example: `structloss report out --out report.html`
    """
    with said_plainly():
        from structloss.files import check_output, write_text
        from structloss.reproduce.finding import FILE, Finding

        folders = sorted(file.parent for pattern in (f"*/{FILE}", f"*/*/{FILE}") for file in folder.glob(pattern))
        if not folders:
            raise ValueError(
                f"folder: got {folder}, where no subfolder has a {FILE}, but wanted one that `structloss reproduce` "
                "has written into"
            )
        findings = {each: Finding.read(each) for each in folders}
        parts = [_section(finding, each, f"finding-{i}") for i, (each, finding) in enumerate(findings.items())]
        links = "".join(
            f'<li><a href="#finding-{i}">{escape(finding.title)}</a></li>'
            for i, finding in enumerate(findings.values())
        )
        file = out or folder / "report.html"
        file.parent.mkdir(parents=True, exist_ok=True)
        check_output(file, *(each / FILE for each in folders))
        write_text(file, page("What was reproduced", f"<ul>{links}</ul>\n" + "\n".join(parts)))
        typer.echo(f"Wrote {file}, with {len(findings)} finding{'s' if len(findings) > 1 else ''}")


def _section(finding: "Finding", folder: Path, anchor: str) -> str:
    """One finding: the paper's words beside what differs, then tables and pictures."""
    remarks = "".join(f"<p>{escape(remark)}</p>" for remark in finding.remarks)
    return (
        f'<section id="{anchor}"><h2>{escape(finding.title)}</h2>\n'
        f'<div class="beside"><div><h3>The paper</h3><p>{escape(finding.paper)}</p></div>\n'
        f"<div><h3>Here, and what differs</h3>{remarks}</div></div>\n"
        + "".join(table(grid) for grid in finding.grids)
        + "".join(_picture(folder / name, caption) for name, caption in finding.pictures.items())
        + f"<p><code>{escape(finding.command)}</code> took {_duration(finding.seconds)}.</p></section>"
    )


def _picture(file: Path, caption: str) -> str:
    """A figure whose picture stands in the page itself."""
    if file.suffix not in _TYPES:
        raise ValueError(f"{file}: got a picture of type {file.suffix!r}, but wanted one of {', '.join(_TYPES)}")
    content = b64encode(file.read_bytes()).decode()
    return (
        f'<figure class="wide"><img alt="{escape(caption)}" src="data:{_TYPES[file.suffix]};base64,{content}"></figure>'
        f"<p>{escape(caption)}</p>\n"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"
