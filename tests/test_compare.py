"""structloss compare: several objectives and seeds, in processes of their own."""

import json
import re
from pathlib import Path

import pytest
from rich.table import Table
from typer.testing import CliRunner

pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")

import test_training as training
from structloss.cli import app, comparison
from structloss.objectives import NegativeLogLikelihood
from structloss.tasks import TASKS
from structloss.training import checkpoints
from structloss.training.compare import Outcome, Trial, num_epochs
from structloss.training.experiment import Result
from structloss.training.plan import Plan

files = training.files
pytestmark = pytest.mark.usefixtures("one_thread")


def run(*arguments: object):
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, [str(x) for x in arguments])


def test_a_comparison_and_its_resumption(files: Path) -> None:
    common = (
        "tagging", "--train", files / "train.txt", "--dev", files / "dev.txt", "--test", files / "dev.txt",
        "--epochs", 3, "--warm-up", 1, "--no-progress",
    )  # fmt: skip
    more = ("--objective", "nll", "--objective", "hinge", "--seeds", 2, "--seed", 4, "--out", files / "all")
    result = run("compare", *common, *more)
    assert result.exit_code == 0, result.output
    for line in ("warm-up-1, seed 4: dev f1", "nll, seed 5: dev f1", "hinge, seed 4: dev f1"):
        assert line in result.output
    written = json.loads((files / "all" / "results.json").read_text())
    assert [row["objective"] for row in written["results"]] == ["nll", "hinge"]
    assert (written["seeds"], written["loss"]) == ([4, 5], "hamming")
    curves = [[r["dev_f1"] for r in one["history"]] for row in written["results"] for one in row["runs"]]
    assert [len(curve) for curve in curves] == [3] * 4
    assert curves[0][0] == curves[2][0]  # one warm-up
    page = (files / "all" / "index.html").read_text()
    assert "<svg" in page
    assert not re.search(r"""(src|href)=["']?(?!#)""", page.replace("xlink:href", ""))  # no other file is needed
    # A run of the comparison is what `train` gives.
    alone = run("train", *common, "--objective", "hinge", "--seed", 4, "--out", files / "alone")
    assert alone.exit_code == 0, alone.output
    there = files / "all" / "runs" / "hinge-seed4"
    for name in ("metrics.json", "result.json"):
        a, b = (json.loads((folder / name).read_text()) for folder in (files / "alone", there))
        a.pop("seconds", None), b.pop("seconds", None)
        assert a == b
    # It went on from a warm-up under another objective, and says so.
    last = checkpoints.read(checkpoints.in_folder(there / "checkpoints")[0])
    assert last["begun"] == "warm-up-1-seed4"
    assert last["made"]["objective"].startswith("Hinge(")
    # What has ended is kept; what has not goes on after its last epoch.
    kept = files / "all" / "runs" / "nll-seed5" / "result.json"
    before = kept.stat().st_mtime_ns
    (there / "result.json").unlink()
    assert run("compare", *common, *more, "--resume").exit_code == 0
    assert kept.stat().st_mtime_ns == before
    again = json.loads((files / "all" / "results.json").read_text())
    for one in (written, again):
        for row in one["results"]:
            for each in row["runs"]:
                each.pop("seconds")
    assert again == written
    mixed = run("train", *common, "--seed", 4, "--out", files / "all" / "runs" / "warm-up-1-seed4", "--resume")
    assert mixed.exit_code == 0  # the warm-up is a run of nll, and is one when it goes on
    mixed = run("train", *common, "--seed", 4, "--out", there, "--resume")
    assert mixed.exit_code == 2
    assert "objective: was Hinge(" in mixed.output
    again = run("compare", *common, *more)
    assert again.exit_code == 2
    assert "all: holds a run; --resume goes on with it, --overwrite begins anew" in again.output.replace("\n", "")
    other = run("compare", *common, *more, "--resume", "--lr", 0.5)
    assert other.exit_code == 2
    assert "is of another run, so it cannot be resumed (lr: was 0.1, is 0.5)" in other.output.replace("\n", " ")


def test_bad_options_and_files_leave_nothing_behind(files: Path) -> None:
    result = run("compare", "tagging", "--train", files / "train.txt", "--objective", "svm", "--out", files / "all")
    assert result.exit_code == 2
    assert "objective: got 'svm'" in result.output
    (files / "config.json").write_text(json.dumps({"objective": ["nll", "nll"], "train": str(files / "train.txt")}))
    result = run("compare", "tagging", "--config", files / "config.json", "--out", files / "all")
    assert result.exit_code == 2
    assert "--objective: got nll, nll, but wanted each of them once" in result.output
    (files / "dev.txt").write_text("a D B-NP\nb D B-XX\n")
    result = run(
        "compare", "tagging", "--train", files / "train.txt", "--dev", files / "dev.txt", "--out", files / "all"
    )
    assert result.exit_code == 2
    assert "dev.txt, line 2: got the label 'B-XX'" in result.output
    assert not (files / "all").exists()


def test_mean_and_deviation_over_seeds() -> None:
    results = [Result([], {"dev": {"f1": value}}, 1.0) for value in (0.5, 0.7, 0.9)]
    assert Outcome("a", results).summary("dev", "f1") == pytest.approx((0.7, 0.2))
    assert Outcome("a", results[:1]).summary("dev", "f1") == (0.5, 0.0)


def test_epochs_of_a_comparison_are_counted_once_for_a_warm_up() -> None:
    trials = [Trial(name, {"order": order}, NegativeLogLikelihood()) for name, order in (("a", 1), ("b", 2), ("c", 2))]
    assert num_epochs(trials, Plan(epochs=10, warm_up=4), [0, 1]) == 2 * (3 * 6 + 2 * 4)
    assert num_epochs(trials, Plan(epochs=10), [0]) == 30
    trials.append(Trial("d", {"order": 2}, NegativeLogLikelihood(impossible="skip")))  # so does its warm-up
    assert num_epochs(trials, Plan(epochs=10, warm_up=4), [0]) == 4 * 6 + 3 * 4


def test_gains_are_taken_seed_by_seed_on_test_where_there_is_one() -> None:
    def outcome(name: str, *values: float) -> Outcome:
        parts = [{"dev": {"f1": 0.0}, "test": {"f1": value}} for value in values]
        return Outcome(name, [Result([], metrics, 1.0) for metrics in parts])

    pair = [outcome("a", 0.1, 0.5, 0.9), outcome("b", 0.11, 0.52, 0.93)]
    assert comparison.gains(pair, "f1") == ["", f"+2.00 ± {3**-0.5:.2f}"]
    assert comparison.gains([outcome("a", 0.5), outcome("b", 0.4)], "f1") == ["", "-10.00"]
    without = [Outcome(o.name, [Result([], {"dev": r.metrics["test"]}, 1.0) for r in o.results]) for o in pair]
    assert comparison.gains(without, "f1") == comparison.gains(pair, "f1")


def test_a_table_says_how_far_each_run_is() -> None:
    bar = comparison.EpochsBar(TASKS["tagging"], 9, shown=False)
    bar.epoch("hinge", 4, {"epoch": 0.0, "dev_f1": 0.5})
    bar.epoch("hinge", 3, {"epoch": 2.0, "dev_f1": 0.75})
    table = next(iter(bar.get_renderables()))
    assert isinstance(table, Table)
    assert [str(column.header) for column in table.columns] == ["dev f1 (epoch)", "seed 3", "seed 4"]
    assert [list(column.cells) for column in table.columns] == [["hinge"], ["75.00 (3)"], ["50.00 (1)"]]
