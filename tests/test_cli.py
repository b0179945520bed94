"""The command line: what it prints, what it writes, and what it refuses."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import structloss as sl
from structloss.cli import app, demo, plots

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
OBJECTIVES = [
    "NegativeLogLikelihood",
    "SoftmaxMargin",
    "Perceptron",
    "Hinge",
    "SlackHinge",
    "DirectLoss",
    "Risk",
    "RewardAugmented",
]


def run(*arguments: str | Path) -> Result:
    """As in a pipe 100 columns wide, wherever the tests run."""
    runner = CliRunner(env={"COLUMNS": "100", "FORCE_COLOR": None, "TTY_COMPATIBLE": None, "TTY_INTERACTIVE": "0"})
    return runner.invoke(app, [str(argument) for argument in arguments])


def plain(text: str) -> str:
    """Without colours, frames and line breaks, whatever the width of the terminal."""
    without_colours = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return " ".join(re.sub("[│╭╮╰╯─]", " ", without_colours).split())


def curves(folder: Path) -> dict[str, list[float]]:
    rows = json.loads((folder / "results.json").read_text())["results"]
    return {row["objective"]: row["held_out_hamming_percent_by_epoch"] for row in rows}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A demo of two epochs."""
    folder = tmp_path_factory.mktemp("demo") / "not" / "there"
    return folder, run("demo", "--out", folder, "--epochs", "2", "--seed", "3")


def test_version_is_printed() -> None:
    result = run("--version")
    assert result.exit_code == 0
    assert result.stdout == f"structloss {sl.__version__}\n"


def test_help_names_the_commands() -> None:
    result = run("--help")
    assert result.exit_code == 0
    assert "Train the same small model under each objective" in plain(result.stdout)


def test_help_of_the_demo_explains_options_and_has_an_example() -> None:
    result = run("demo", "--help")
    assert result.exit_code == 0
    for text in ("--out", "--epochs", "--seed", "Example: structloss demo --epochs 10"):
        assert text in plain(result.stdout)


def test_demo_writes_a_png_and_a_json_and_nothing_else(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in folder.iterdir()) == ["curves.png", "results.json"]
    assert (folder / "curves.png").read_bytes().startswith(PNG_SIGNATURE)
    for name in ("curves.png", "results.json"):
        assert f"Wrote {folder / name}" in result.stdout


def test_demo_prints_the_table_it_writes(finished: tuple[Path, Result]) -> None:
    folder, result = finished
    written = json.loads((folder / "results.json").read_text())
    assert (written["structloss"], written["seed"], written["epochs"]) == (sl.__version__, 3, 2)
    assert [row["objective"].split(",")[0] for row in written["results"]] == OBJECTIVES
    best = min(row["held_out_hamming_percent"] for row in written["results"])
    for row in written["results"]:
        loss = row["held_out_hamming_percent"]
        mark = " *" if loss == best else ""
        assert f"{row['objective']} {row['training_seconds']:.2f} {loss:.2f}{mark}" in plain(result.stdout)
        assert row["held_out_hamming_percent_by_epoch"][-1] == loss
        assert len(row["held_out_hamming_percent_by_epoch"]) == 2
        assert row["training_seconds"] > 0


def test_demo_tells_of_its_progress_where_there_is_no_terminal(finished: tuple[Path, Result]) -> None:
    said = finished[1].stderr
    assert [name for name in OBJECTIVES if re.search(rf"^{name}.*: [0-9.]+ % wrong", said, re.MULTILINE)] == OBJECTIVES


def test_every_objective_of_the_demo_learns(finished: tuple[Path, Result]) -> None:
    guessing = 100 * (1 - 1 / demo.LABELS)
    for name, curve in curves(finished[0]).items():
        assert curve[-1] < 0.6 * guessing, name


def test_same_seed_gives_the_same_losses_and_another_seed_others(finished: tuple[Path, Result], tmp_path: Path) -> None:
    torch.rand(5)  # the state of torch's own generator must not matter
    run("demo", "--out", tmp_path / "same", "--epochs", "2", "--seed", "3")
    run("demo", "--out", tmp_path / "other", "--epochs", "1", "--seed", "4")
    assert curves(tmp_path / "same") == curves(finished[0])
    assert all(
        other[0] != first[0]
        for other, first in zip(curves(tmp_path / "other").values(), curves(finished[0]).values(), strict=True)
    )


def test_demo_leaves_torch_as_it_was(tmp_path: Path) -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    assert run("demo", "--out", tmp_path, "--epochs", "1").exit_code == 0
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("option", ["--epochs=0", "--epochs=many", "--seed=-1"])
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
    assert "Invalid value for '--out'" in plain(result.stderr)
    assert "% wrong" not in result.output  # refused before training
    assert file.read_text() == "precious"
    assert list(tmp_path.iterdir()) == [file]


def test_failure_while_writing_leaves_earlier_results_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "curves.png").write_bytes(b"earlier")
    write_bytes = Path.write_bytes

    def write_until_full(path: Path, content: bytes) -> int:
        if "results" in path.name:
            raise OSError(28, "No space left on device")
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", write_until_full)
    result = run("demo", "--epochs", "1", "--out", tmp_path)
    assert result.exit_code == 1
    assert "No space left on device" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["curves.png"]
    assert (tmp_path / "curves.png").read_bytes() == b"earlier"


def test_missing_matplotlib_is_said_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = run("demo", "--out", tmp_path / "out")
    assert result.exit_code == 1
    assert result.stderr == "Error: Figures need matplotlib: pip install 'structloss[plot]'\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("curve", [[20.0], [20.0, 20.0], [80.0, 30.0, 20.0]])
def test_figure_of_any_number_of_epochs_is_drawn(curve: list[float]) -> None:
    assert plots.learning_curves({"one": curve, "two": curve}, "title", "loss").startswith(PNG_SIGNATURE)


def test_sequences_of_the_demo_are_padded_beyond_their_lengths() -> None:
    generator = torch.Generator().manual_seed(0)
    transitions = demo.draw_transitions(generator)
    data = demo.draw_sequences(50, transitions, generator)
    beyond = torch.arange(demo.LONGEST) >= data.lengths[:, None]
    assert torch.allclose(transitions.sum(1), torch.ones(demo.LABELS))
    assert (data.features[beyond] == 0).all()
    assert (data.labels[beyond] == -1).all()
    assert (data.labels[~beyond] >= 0).all()
