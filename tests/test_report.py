"""structloss report: every finding on one page that needs no other file."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from structloss.cli import app
from structloss.reproduce.finding import Finding, Grid

PIXEL = b"\x89PNG\r\n\x1a\n pretended"


def write(folder: Path, title: str, seconds: float = 5.0) -> None:
    finding = Finding(
        name="some",
        title=title,
        paper="The paper says 1 < 2.",
        grids=[Grid(f"Table of {title}", ["method", "value"], [["a & b", "1.5"]])],
        remarks=["It differs."],
        command="structloss reproduce some --quick",
        seconds=seconds,
        pictures={"plot.png": f"Plot of {title}"},
    )
    folder.mkdir(parents=True)
    finding.write(folder, {}, {"plot.png": PIXEL})


def run(*arguments: object):
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, ["report", *(str(x) for x in arguments)])


def test_every_finding_one_or_two_levels_down_is_on_the_page(tmp_path: Path) -> None:
    write(tmp_path / "one", "First <finding>")
    write(tmp_path / "more" / "two", "Second finding", seconds=600)
    write(tmp_path / "far" / "too" / "deep", "Third finding")
    result = run(tmp_path)
    assert result.exit_code == 0, result.output
    assert "with 2 findings" in result.output
    text = (tmp_path / "report.html").read_text()
    assert "First &lt;finding&gt;" in text
    assert "First <finding>" not in text
    for wanted in (
        "Second finding", "The paper says 1 &lt; 2.", "It differs.", "a &amp; b", "Plot of Second finding",
        "structloss reproduce some --quick", "took 5 seconds", "took 10 minutes",
    ):  # fmt: skip
        assert wanted in text
    assert "Third finding" not in text


def test_the_page_needs_no_other_file_and_keeps_wide_tables_in_a_box(tmp_path: Path) -> None:
    write(tmp_path / "one", "Some finding")
    assert run(tmp_path, "--out", tmp_path / "pages" / "all.html").exit_code == 0
    text = (tmp_path / "pages" / "all.html").read_text()
    assert text.count('src="data:image/png;base64,') == 1
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text)
    assert "http" not in text
    assert text.count("<table>") == text.count('<div class="wide"><table>') == 1
    assert "color-scheme: light dark" in text
    assert 'name="viewport"' in text


@pytest.mark.parametrize("there", [True, False])
def test_nothing_to_gather_is_said(tmp_path: Path, there: bool) -> None:
    folder = tmp_path if there else tmp_path / "missing"
    result = run(folder)
    assert result.exit_code == 2
    assert f"folder: got {folder}, where no subfolder has a finding.json" in result.output.replace("\n", "")
    assert not (folder / "report.html").exists()


def test_a_broken_finding_or_a_lost_picture_is_named(tmp_path: Path) -> None:
    write(tmp_path / "one", "Some finding")
    (tmp_path / "one" / "plot.png").unlink()
    result = run(tmp_path)
    assert result.exit_code == 2
    assert "plot.png" in result.output
    for content in ("{", "[" * 100_000, "[1]"):
        (tmp_path / "one" / "finding.json").write_text(content)
        result = run(tmp_path)
        assert result.exit_code == 2
        assert "finding.json: is not what `structloss reproduce` writes" in result.output.replace("\n", "")
