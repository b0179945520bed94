"""The file of --config: its values are taken or refused as the command line would."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")

from structloss.cli import app


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "train.txt").write_text("a X\nb Y\n\nb Y\n\n" * 10)
    return tmp_path


def train(files: Path):
    arguments = ("--train", files / "train.txt", "--config", files / "config.json", "--out", files / "m")
    return CliRunner().invoke(app, ["train", "tagging", *map(str, arguments)])


BAD_CONFIGS = {
    '{"epochs": 0}': "Invalid value for '--epochs'",
    '{"epochs": 3.5}': "Invalid value for '--epochs'",
    '{"epochs": true}': "Invalid value for '--epochs'",
    '{"epochs": {"a": 1}}': "got 'epochs' with {'a': 1}, but wanted one value",
    '{"batch-size": 0}': "Invalid value for '--batch-size'",
    '{"devices": 0}': "Invalid value for '--devices'",
    '{"patience": -3}': "Invalid value for '--patience'",
    '{"lr": "x"}': "Invalid value for '--lr'",
    '{"l2": -1}': "Invalid value for '--l2'",
    '{"seed": 1099511627776}': "Invalid value for '--seed'",
    '{"unknown-labels": "maybe"}': "Invalid value for '--unknown-labels'",
    '{"objective": ["nll", "hinge"]}': "got 'objective' with ['nll', 'hinge'], but wanted one value",
    "[" * 100_000: "is no JSON of options (maximum recursion depth",
    '{"epochs": %s}' % ("9" * 5000): "is no JSON of options (Exceeds the limit",
}


@pytest.mark.parametrize("text", BAD_CONFIGS, ids=lambda text: text[:30])
def test_a_config_file_obeys_what_the_command_line_obeys(text: str, files: Path) -> None:
    (files / "config.json").write_text(text)
    result = train(files)
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)
    assert f"structloss: {files / 'config.json'}: {BAD_CONFIGS[text]}" in result.stderr
    assert not (files / "m").exists()


def test_a_config_file_is_read_as_if_it_were_typed(files: Path) -> None:
    config = {"epochs": "1", "warm-up": "1", "set": "order=2", "progress": False, "unknown-labels": "yes", "lr": None}
    (files / "config.json").write_text(json.dumps(config))
    result = train(files)
    assert result.exit_code == 0, result.stderr
