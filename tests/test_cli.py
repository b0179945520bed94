"""The command line: what it prints, what it writes, and what it refuses."""

import json
import re
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import structloss as sl
from structloss.__main__ import main
from structloss.cli import app, demo, plots
from structloss.tasks.alignment.voices import VOICES

SMALL = ("--epochs", "2", "--words", "200", "--sentences", "200", "--seed", "3")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def run(*arguments: str | Path) -> Result:
    """As in a pipe 100 columns wide, wherever the tests run."""
    runner = CliRunner(env={"COLUMNS": "100", "FORCE_COLOR": None, "TTY_COMPATIBLE": None, "TTY_INTERACTIVE": "0"})
    return runner.invoke(app, [str(argument) for argument in arguments])


def plain(text: str) -> str:
    """Without colours, frames and line breaks, whatever the width of the terminal."""
    without_colours = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(re.sub("[│╭╮╰╯─]", " ", without_colours).split())


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A demo of two epochs, one of them of warming up."""
    pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")
    pytest.importorskip("pocketsphinx", reason="pocketsphinx (the extra speech), with its dictionary, is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn (the extra sklearn) is not installed")
    folder = tmp_path_factory.mktemp("demo") / "not" / "there"
    return folder, run("demo", "--out", folder, *SMALL)


def results(folder: Path) -> dict[str, dict[str, Any]]:
    rows = json.loads((folder / "results.json").read_text())["results"]
    return {row["objective"]: row["runs"][0] for row in rows}


def of_all_seeds(folder: Path, name: str, part: str, metric: str) -> list[float]:
    rows = json.loads((folder / "results.json").read_text())["results"]
    [runs] = [row["runs"] for row in rows if row["objective"] == name]
    return [100 * run["metrics"][part][metric] for run in runs]


def names(folder: Path) -> dict[tuple[str, int], dict[str, dict[str, float]]]:
    rows = json.loads((folder / "results.json").read_text())["names"]["results"]
    return {(row["method"], row["seed"]): row["metrics"] for row in rows}


def test_version_is_printed() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"structloss {sl.__version__}\n"


def test_help_names_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "Learn to pronounce English words under each objective" in plain(result.stdout)
    for command in ("demo", "train", "compare", "predict", "evaluate"):
        assert command in result.stdout


def test_help_of_the_demo_explains_options_and_has_an_example() -> None:
    result = run("demo", "--help")
    assert result.exit_code == 0
    for text in ("--out", "--epochs", "--seed", "Example: structloss demo --epochs 5"):
        assert text in plain(result.stdout)


def test_help_of_speech_names_the_voices() -> None:
    text = plain(run("speech", "make", "--help").stdout)
    assert all(name in text for name in VOICES)


def test_demo_writes_what_it_says(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in folder.iterdir()) == [
        "curves.png", "index.html", "names.png", "results.json", "runs",
    ]  # fmt: skip
    for name in ("curves.png", "names.png"):
        assert (folder / name).read_bytes().startswith(PNG_SIGNATURE)
    for name in ("curves.png", "names.png", "results.json", "index.html"):
        assert f"Wrote {folder / name}" in result.stdout.replace("\n", "")
    page = (folder / "index.html").read_text()
    for text in ("<svg", "Some words that no model has seen", "softmax-margin", "The text is made up", "chunk F1"):
        assert text in page


def test_demo_prints_the_table_it_writes(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    written = json.loads((folder / "results.json").read_text())
    assert (written["structloss"], written["seed"], written["epochs"]) == (sl.__version__, 3, 2)
    assert list(results(folder)) == list(demo.OBJECTIVES)
    for name, row in results(folder).items():
        for part, metric in (("dev", "wer"), ("test", "wer"), ("test", "per")):
            values = of_all_seeds(folder, name, part, metric)
            assert re.search(rf"{name} .*{fmean(values):.2f} ± {stdev(values):.2f}", plain(result.stdout))
        if name != "likelihood":
            ours, first = (of_all_seeds(folder, own, "test", "per") for own in (name, "likelihood"))
            gains = [a - b for a, b in zip(ours, first, strict=True)]
            wanted = re.escape(f"{fmean(gains):+.2f} ± {stdev(gains) / 3**0.5:.2f}")
            assert re.search(rf"{name} .*{wanted}", plain(result.stdout))
        assert len(row["history"]) == 2
        for seed in (3, 4, 5):
            assert f"{name}, seed {seed}: dev wer" in result.stderr
    assert "who says so" in result.stdout
    assert "In short: training on chunk F1 instead of the likelihood changes the F1 of names by" in plain(result.stdout)


def test_demo_finds_names_by_likelihood_and_on_f1(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    found = names(folder)
    methods = ("likelihood", "chunk F1", "likelihood + tuned bias", "chunk F1 + tuned bias")
    assert set(found) == {(method, seed) for method in methods for seed in (3, 4, 5)}
    for method in methods:
        mean = sum(found[method, seed]["test"]["f1"] for seed in (3, 4, 5)) / 3
        assert re.search(rf"{re.escape(method)} +{100 * mean:.1f} ±", plain(result.stdout))
    for method, seed in found:  # no bias is one of those that dev chooses from
        tuned = found[f"{method.partition(' +')[0]} + tuned bias", seed]
        assert tuned["dev"]["f1"] >= found[method, seed]["dev"]["f1"]
    assert "The text is made up" in result.stdout


def test_the_warm_up_is_shared(finished: tuple[Path, Result]) -> None:
    first, second = ({name: row["history"][i] for name, row in results(finished[0]).items()} for i in (0, 1))
    assert first["likelihood"] == first["risk"] == first["direct loss"]
    assert second["likelihood"] != second["risk"] != second["direct loss"]


def test_same_seed_gives_the_same_numbers(finished: tuple[Path, Result], tmp_path: Path) -> None:
    assert run("demo", "--out", tmp_path, *SMALL, "--jobs", "1").exit_code == 0
    first, same = (
        {name: (row["history"], row["metrics"]) for name, row in results(folder).items()}
        for folder in (finished[0], tmp_path)
    )
    assert same == first
    assert names(tmp_path) == names(finished[0])


@pytest.mark.parametrize("option", ["--epochs=0", "--epochs=many", "--words=1", "--sentences=9", "--seed=-1"])
def test_bad_number_is_refused_before_anything_is_written(option: str, tmp_path: Path) -> None:
    result = run("demo", "--out", tmp_path / "out", option)
    assert result.exit_code == 2
    assert f"Invalid value for '{option.split('=')[0]}'" in plain(result.stderr)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("below", ["", "folder"])
def test_file_in_place_of_the_folder_is_refused_and_kept(below: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    result = run("demo", "--epochs", "1", "--out", file / below)
    assert result.exit_code == 2
    assert str(file) in result.stderr.replace("\n", "")
    assert "dev wer" not in result.output  # refused before training
    assert file.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [file]


def test_all_that_is_missing_is_said_at_once_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("matplotlib", "pocketsphinx", "sklearn"):
        monkeypatch.setitem(sys.modules, module, None)
    result = run("demo", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "structloss demo needs matplotlib, scikit-learn, pocketsphinx, which are not installed" in result.stderr
    assert "pip install 'structloss[train,sklearn,speech]'" in result.stderr
    assert not (tmp_path / "out").exists()
    result = run("compare", "tagging", "--train", "train.txt")
    assert "structloss compare tagging needs matplotlib, which is not installed" in result.stderr
    assert "pip install 'structloss[train]'" in result.stderr


def test_without_typer_the_command_says_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("structloss.cli")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"needs typer and rich: pip install 'structloss\[cli\]'"):
        main()


def test_kernels_are_compiled_ahead() -> None:
    result = run("warm-up", "alignments")
    assert result.exit_code == 0, result.output
    assert result.stderr.startswith("alignments: ")
    result = run("warm-up", "everything")
    assert (result.exit_code, "wanted chains, ctc, lattices" in result.stderr) == (2, True)


@pytest.mark.parametrize("curve", [[20.0], [20.0, 20.0], [80.0, 30.0, 20.0]])
def test_figure_of_any_number_of_epochs_is_drawn(curve: list[float]) -> None:
    assert plots.learning_curves({"one": [curve], "two": [curve, curve]}, "title", "loss").startswith(PNG_SIGNATURE)


def test_a_mistake_of_ours_is_not_dressed_up_as_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user's error is a sentence and 2, one of ours says so and 1; --debug shows the traceback of both."""
    command = ["train", "tagging", "--train", str(tmp_path / "nothing.txt")]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 2
    assert "a mistake in structloss" not in said.output
    assert isinstance(CliRunner().invoke(app, ["--debug", *command]).exception, FileNotFoundError)

    def broken(*_: object) -> None:
        return None + 1  # type: ignore[operator]

    monkeypatch.setattr("structloss.training.experiment.Data.read", broken)
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 1
    assert "a mistake in structloss itself, TypeError" in said.output
    assert isinstance(CliRunner().invoke(app, ["--debug", *command]).exception, TypeError)
