"""structloss gpu-report: what it checks with a GPU (here the CPU stands for it) and without, and what it writes."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from structloss.cli import app, gpu_report
from structloss.gpu import report as gathering
from structloss.gpu.measuring import TOLERANCE, Measured, measured
from structloss.gpu.problems import Problem
from structloss.gpu.report import Report, on_device

CPU = torch.device("cpu")


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "150"}).invoke(app, ["gpu-report", *map(str, arguments)])


def quiet(_: str) -> None:
    """Where progress is told."""


def test_help_has_an_example() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "structloss gpu-report --out report" in " ".join(result.output.split())


@pytest.mark.filterwarnings("ignore:.*arg_constraints")  # of torch-struct
def test_on_a_device_every_operation_and_problem_is_checked_and_the_problems_timed() -> None:
    report = Report({"device": "cpu"})
    on_device(report, CPU, ("torch",), quiet, quick=True, seconds=0.0)
    assert report.passed, [row for row in report.rows if not row["passed"]]
    assert {row["operation"] for row in report.operations} == {
        "log_partition", "entropy", "expected", "max", "marginals", "argmax",
    }  # fmt: skip
    ours = [row for row in report.problems if row["by"] == "structloss, torch"]
    assert len({row["problem"] for row in report.problems}) == len(ours) == 9
    for row in report.problems:  # the other libraries compute the same: else times could not be compared
        assert not row["failure"], row
        assert max(row["error"], row["of_gradients"] or 0.0) < 1e-5, row
        assert row["runs"] >= 3
        assert 0 < row["least"] <= row["milliseconds"]


def broken(value: torch.Tensor | None) -> list[Problem]:
    """A problem whose second run, by the engine that is measured, is not what the native engine gave."""
    runs = iter([torch.ones(2)])

    def ours(_) -> torch.Tensor:
        found = next(runs, value)
        if found is None:
            raise RuntimeError("out of\nresources")
        return found

    return [Problem("broken", (2, 1, 1, 1), (torch.zeros(2),), ours, {})]


@pytest.mark.parametrize("value", [None, torch.tensor([1.0, 2.0]), torch.full((2,), torch.nan), torch.ones(3)])
def test_what_is_wrong_is_a_line_that_failed(value: torch.Tensor | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("structloss.gpu.measuring.problems", lambda _: broken(value))
    (row,) = measured(CPU, ["torch"], timed=False)
    assert not row.passed
    assert row.failure == ("" if value is not None else "RuntimeError: out of")


def test_others_are_not_judged_and_ours_must_repeat() -> None:
    good = Measured("p", "B=1", "structloss, triton", error=TOLERANCE, repeats=True)
    assert good.passed
    assert not good._replace(repeats=False).passed
    assert not good._replace(of_gradients=2 * TOLERANCE).passed
    assert good._replace(by="torch-struct", error=1.0).passed


def test_lines_that_stop_are_a_line_that_failed() -> None:
    def lines():
        yield {"sentence": "first", "passed": True}
        raise RuntimeError("no device")

    report = Report({})
    report.add(lines(), quiet)
    assert [row["passed"] for row in report.behaviour] == [True, False]
    assert not report.passed
    assert not Report({}).passed  # nothing was checked


def test_a_page_and_a_file_are_written_and_what_is_wrong_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Report({"device": "Some <GPU>", "triton": None}, ["A note."])
    found.problems.append(Measured("CRF loss", "B=1", "structloss, triton", 1e-7, 0.5, True, 1.5, 1.25, 3)._asdict())
    found.problems[0]["passed"] = False
    monkeypatch.setattr(gathering, "gathered", lambda say, quick: found)
    result = run("--out", tmp_path / "new")
    assert result.exit_code == 1
    assert "1 checks: 1 FAILED." in result.output
    html = (tmp_path / "new" / "gpu-report.html").read_text()
    for text in ("Some &lt;GPU&gt;", "A note.", "CRF loss", "1.25", "WRONG", "FAILED"):
        assert text in html
    written = json.loads((tmp_path / "new" / "gpu-report.json").read_text())
    assert written["problems"] == found.problems
    assert (written["format"], written["passed"]) == (1, False)
    found.problems[0]["passed"] = True
    assert run("--out", tmp_path).exit_code == 0


def test_without_a_gpu_and_without_triton_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "found_device", lambda: CPU)
    monkeypatch.setattr(gathering, "find_spec", lambda _: None)
    result = run("--out", tmp_path)
    assert result.exit_code == 1
    for text in ("There is no GPU here", "structloss[triton]", "Nothing was checked."):
        assert text in result.output
    assert json.loads((tmp_path / "gpu-report.json").read_text())["operations"] == []


@pytest.mark.slow
def test_without_a_gpu_kernels_are_interpreted_and_nothing_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="Triton (the extra triton) is not installed")
    monkeypatch.setattr(gathering, "found_device", lambda: CPU)
    result = run("--quick", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "There is no GPU here, so nothing was timed" in result.output
    written = json.loads((tmp_path / "gpu-report.json").read_text())
    assert {row["dtype"] for row in written["operations"]} == {"float32"}
    assert len(written["operations"]) == 6
    assert written["problems"] == []
    html = (tmp_path / "gpu-report.html").read_text()
    assert "ms, median" not in html
    assert gpu_report.verdict(Report({}, operations=written["operations"])) in html
