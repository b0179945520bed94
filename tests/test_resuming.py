"""Runs that are killed, damaged, interrupted or mixed up: they end as if nothing had happened, or are refused."""

import errno
import io
import json
import os
import pickle
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")

import test_training as training
from kill import left_behind
from structloss.naming import objective_of
from structloss.tasks import TASKS
from structloss.training import checkpoints
from structloss.training.directory import load
from structloss.training.experiment import Data, Result
from structloss.training.experiment import run as experiment
from structloss.training.fit import Training
from structloss.training.plan import Plan
from structloss.training.record import check_same, differences, digest
from structloss.training.task import DataError

files = training.files
pytestmark = pytest.mark.usefixtures("one_thread")
run, train, command, ALONE = training.run, training.train, training.command, training.ALONE

LONG = ("--epochs", 12, "--patience", 12, "--seed", 4, "--batch-size", 4, "--set", "model=bilstm")


class KilledError(Exception):
    """What stands for a kill within this process."""


def kept(out: Path) -> dict[str, Any]:
    """What a run leaves, but for the time it took."""
    result = json.loads((out / "result.json").read_text())
    result.pop("seconds")
    return {"result": result, **{name: (out / name).read_bytes() for name in ("metrics.json", "model.safetensors")}}


def found(out: Path) -> list[Path]:
    return checkpoints.in_folder(out / "checkpoints")


def wait_until(happens: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not happens() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


def start(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ALONE, start_new_session=True, text=True
    )


def steps_of(path: Path) -> int:
    return int(path.name.split("-")[1])


# Killed


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files, and in whole/ what a run gives that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "train.txt").write_text(training.made(150, 0))
    (folder / "dev.txt").write_text(training.made(40, 1))
    subprocess.run(command(folder, "whole", *LONG), check=True, capture_output=True, timeout=600, env=ALONE)
    return folder


@pytest.mark.parametrize(
    "signum", [signal.SIGKILL, signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_run_that_is_killed_or_interrupted_and_resumed_ends_as_if_nothing_had_happened(
    undisturbed: Path, signum: signal.Signals
) -> None:
    out = undisturbed / signum.name
    with start(command(undisturbed, signum.name, *LONG)) as p:
        wait_until(lambda: any(steps_of(path) >= 2 * 38 for path in found(out)), p)  # of an epoch there are 38
        time.sleep(0.02)
        p.send_signal(signum)
        said = p.communicate(timeout=300)[1]
    assert not (out / "result.json").exists()  # in the middle: it had epochs to go
    assert "Traceback" not in said
    assert p.returncode == (-signum if signum == signal.SIGKILL else 128 + signum)
    if signum != signal.SIGKILL:
        assert "the same command with --resume goes on from the last checkpoint" in said
    resumed = subprocess.run(
        command(undisturbed, signum.name, *LONG, "--resume"),
        check=True, capture_output=True, timeout=600, env=ALONE, text=True,
    )  # fmt: skip
    went_on = re.search(r"goes on after epoch (\d+)", resumed.stderr)
    assert went_on is not None
    assert 2 <= int(went_on[1]) < 12
    assert kept(out) == kept(undisturbed / "whole")


def given(files: Path, **settings: Any) -> tuple[Any, ...]:
    """A task with its data, a config and an objective."""
    task = TASKS["tagging"]
    data = Data.read(task, files / "train.txt", files / "dev.txt", None)
    config = task.configure(data.train, {**task.settings, "width": 8, **settings})
    return task, data, config, objective_of("softmax-margin")


def run_until(step: int, monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> None:
    """An experiment that is killed before it takes this step, numbered from 0."""
    taken, original = [0], Training.training_step

    def counted(self: Training, *more: Any) -> None:
        if taken[0] == step:
            raise KilledError
        taken[0] += 1
        original(self, *more)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "training_step", counted)
        with pytest.raises(KilledError):
            experiment(*arguments)


def resume(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> tuple[Result, int]:
    """A resumed experiment, and how many steps it has taken."""
    taken, original = [0], Training.training_step

    def counted(self: Training, *more: Any) -> None:
        taken[0] += 1
        original(self, *more)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "training_step", counted)
        result = experiment(*arguments[:-1], replace(arguments[-1], resume=True))
    assert result is not None
    return result, taken[0]


@pytest.mark.parametrize("model", ["sparse", "bilstm"])
@pytest.mark.parametrize("more", [{}, {"average": 0.9, "decays": True, "warm_up": 1}])
def test_a_run_goes_on_within_an_epoch(
    files: Path, monkeypatch: pytest.MonkeyPatch, model: str, more: dict[str, Any]
) -> None:
    plan = Plan(epochs=3, patience=3, lr=0.05, progress=False, checkpoint_seconds=0, **more)
    arguments = given(files, model=model)
    whole = experiment(*arguments, files / "whole", plan)
    assert whole is not None
    for step in (3, 9, 13, 20):  # an epoch has ten
        out = files / f"killed{step}"
        run_until(step, monkeypatch, *arguments, out, plan)
        resumed, taken = resume(monkeypatch, *arguments, out, plan)
        assert taken == 30 - step  # what was done is not done again
        assert (resumed.history, resumed.metrics) == (whole.history, whole.metrics)
        assert kept(out) == kept(files / "whole")
        a, b = (checkpoints.read(found(folder)[0]) for folder in (files / "whole", out))
        for key in ("state_dict", "optimizer_states", "callbacks", "history", "stops"):
            assert digest(a[key]) == digest(b[key]), key


def test_without_checkpoints_within_it_an_epoch_begins_again(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, arguments = Plan(epochs=3, progress=False), given(files)
    whole = experiment(*arguments, files / "whole", plan)
    run_until(17, monkeypatch, *arguments, files / "killed", plan)
    names = ("checkpoints/.step-000000020-0.ckpt.12", "..model.safetensors.next.12")
    half = [files / "killed" / name for name in names]
    for path in half:
        path.write_bytes(b"half-written")
    assert [steps_of(path) for path in found(files / "killed")] == [10, 0]
    resumed, taken = resume(monkeypatch, *arguments, files / "killed", plan)
    assert taken == 20
    assert not any(path.exists() for path in half)
    assert whole is not None
    assert resumed.history == whole.history
    assert [steps_of(path) for path in found(files / "killed")] == [30, 20]  # the last two are kept
    for i, name in enumerate(("metrics.1.csv", "metrics.csv")):
        assert str(whole.history[i]["train_objective"])[:7] in (files / "killed" / "logs" / name).read_text()


def test_a_run_that_has_stopped_early_does_not_go_on(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, arguments = Plan(epochs=30, patience=1, lr=0.5, progress=False), given(files)
    whole = experiment(*arguments, files / "whole", plan)
    assert whole is not None
    assert len(whole.history) < 30
    (files / "whole" / "result.json").unlink()  # killed before it was written
    resumed, taken = resume(monkeypatch, *arguments, files / "whole", plan)
    assert (taken, resumed.history, resumed.metrics) == (0, whole.history, whole.metrics)


# Another run's


def test_a_run_is_neither_mixed_with_another_nor_resumed_as_one(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert train(files, "m", "--epochs", 2).exit_code == 0
    before = kept(files / "m")
    other = train(files, "m", "--epochs", 2)
    assert other.exit_code == 2
    assert "m: holds a run; --resume goes on with it, --overwrite begins anew in its place" in other.output
    (files / "train.txt").write_text(training.made(150, 7))  # B
    for more, sentences in (
        ((), ["train: was 150 examples, ", ", is 150 examples, "]),
        (("--objective", "hinge"), ["objective: was NegativeLogLikelihood", "is Hinge("]),
        (("--lr", 0.5, "--seed", 7), ["lr: was 0.1, is 0.5", "seed: was 0, is 7"]),
        (("--set", "order=3"), ["model order: was 2, is 3"]),
        (("--epochs", 3, "--batch-size", 5), ["epochs: was 2, is 3", "batch_size: was 16, is 5"]),
        (("--dev", files / "train.txt"), ["dev: was 40 examples"]),
        (("--test", files / "train.txt"), ["test: was 0 examples"]),
    ):
        result = train(files, "m", "--epochs", 2, *more, "--resume")
        assert result.exit_code == 2
        for sentence in ("is of another run, so it cannot be resumed", *sentences):
            assert sentence in result.output.replace("\n", " ")
    assert kept(files / "m") == before
    both = train(files, "m", "--resume", "--overwrite")
    assert both.exit_code == 2
    assert "--resume and --overwrite: got both" in both.output
    # In another's place nothing of that is left, not even for a run that is killed at once.
    with monkeypatch.context() as patched:
        patched.setattr(Training, "training_step", lambda *_: (_ for _ in ()).throw(ValueError("killed")))
        assert "killed" in train(files, "m", "--epochs", 2, "--overwrite").output
    resumed = train(files, "m", "--epochs", 2, "--resume")
    assert resumed.exit_code == 0, resumed.output
    assert train(files, "fresh", "--epochs", 2, "--resume").exit_code == 0
    assert kept(files / "m") == kept(files / "fresh")
    assert kept(files / "m") != before


def test_what_differs_in_the_words_alone_is_noticed(files: Path) -> None:
    assert train(files, "m", "--epochs", 1).exit_code == 0
    text = (files / "train.txt").read_text()
    (files / "train.txt").write_text(text.replace("d1", "d9"))
    assert "train: was 150 examples" in train(files, "m", "--epochs", 1, "--resume").output
    (files / "train.txt").write_text(text)
    (files / "train.txt").rename(files / "moved.txt")  # the same examples
    moved = run(
        "train", "tagging", "--train", files / "moved.txt", "--dev", files / "dev.txt", "--out", files / "m",
        "--no-progress", "--epochs", 1, "--resume",
    )  # fmt: skip
    assert moved.exit_code == 0, moved.output
    assert "goes on after epoch 1" in moved.output


def test_a_transducer_of_other_weights_is_another_loss(files: Path) -> None:
    for cost in (1, 2):
        (files / "loss.txt").write_text(f"0 0 1 1\n0 0 2 2\n0 0 3 3\n0 0 1 2 {cost}\n0\n")
        loss = objective_of("hinge", str(files / "loss.txt"))
        (files / f"{cost}").write_text(digest(loss))
        loss.loss([[0]], [[0]])  # what it caches does not count
        assert digest(loss) == (files / f"{cost}").read_text()
    assert (files / "1").read_text() != (files / "2").read_text()


def test_where_nothing_is_there_it_begins_and_says_so(files: Path) -> None:
    result = train(files, "m", "--epochs", 1, "--resume")
    assert result.exit_code == 0
    assert "m: holds no checkpoint to resume from: begins from the start" in result.output
    for path in found(files / "m"):
        path.unlink()
    result = train(files, "m", "--epochs", 1, "--resume")
    assert result.exit_code == 2
    assert "holds result.json, but no checkpoint to resume from" in result.output


def test_overwriting_removes_nothing_but_runs(files: Path) -> None:
    (files / "m" / "logs").mkdir(parents=True)
    for name in ("notes.txt", "logs/mine.log"):
        (files / "m" / name).write_text("mine")
    assert train(files, "m", "--epochs", 1).exit_code == 0
    assert train(files, "m", "--epochs", 1, "--overwrite").exit_code == 0
    assert (files / "m" / "notes.txt").read_text() == (files / "m" / "logs" / "mine.log").read_text() == "mine"


def test_other_versions_are_only_spoken_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert differences({"lr": 1, "torch": "1"}, {"lr": 1, "torch": "2"}) == []
    check_same(tmp_path / "a", {"lr": 1, "torch": "1"}, {"lr": 1, "torch": "2"})
    assert "was made with torch 1, and goes on with 2" in caplog.text
    with pytest.raises(DataError, match=r"a: does not say what made it"):
        check_same(tmp_path / "a", None, {"lr": 1})
    with pytest.raises(DataError, match=r"\(lr: was 1, is not there; seed: was not there, is 3\)"):
        check_same(tmp_path / "a", {"lr": 1}, {"seed": 3})


# Damaged


def damage_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def damage_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_all(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_end, damage_bit, damage_all])
def test_a_damaged_checkpoint_is_passed_over(
    files: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    assert train(files, "whole", "--epochs", 3).exit_code == 0
    assert train(files, "m", "--epochs", 3).exit_code == 0
    newest, before = found(files / "m")
    damage(newest)
    result = train(files, "m", "--epochs", 3, "--resume")
    assert result.exit_code == 0, result.output
    said = result.output.replace("\n", " ")
    assert f"{newest.name}: is damaged: the one before it is taken" in said
    assert "goes on after epoch 2" in said
    assert kept(files / "m") == kept(files / "whole")
    for path in found(files / "m"):
        damage(path)
    result = train(files, "m", "--epochs", 3, "--resume")
    assert result.exit_code == 2
    assert "none of the checkpoints there is whole, so nothing can be resumed" in result.output.replace("\n", " ")
    assert before.name


class Harm:
    """What does harm when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("form", ["torch", "pickle"])
def test_a_checkpoint_is_never_unpickled(files: Path, form: str) -> None:
    harm, file = {"made": Harm(files / "harm")}, io.BytesIO()
    (torch.save if form == "torch" else pickle.dump)(harm, file)  # type: ignore[operator]
    name = f"step-000000009-{checkpoints._checksum(file.getvalue())}.ckpt"
    (files / "m" / "checkpoints").mkdir(parents=True)
    (files / "m" / "checkpoints" / name).write_bytes(file.getvalue())
    assert train(files, "m", "--epochs", 1, "--resume").exit_code == 2
    assert not (files / "harm").exists()


# Full and read-only disks


def test_a_full_disk_is_one_sentence_and_what_was_written_is_whole(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(files, "whole", "--epochs", 3).exit_code == 0
    calls, original = [0], os.fsync
    for room in range(3, 24, 5):

        def full(handle: int, room: int = room) -> None:
            calls[0] += 1
            if calls[0] > room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            original(handle)

        calls[0] = 0
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            result = train(files, "m", "--epochs", 3, "--overwrite")
        assert result.exit_code == 2
        assert "No space left on device; --resume goes on from the last checkpoint" in result.output.replace("\n", " ")
        told = [line for line in result.output.splitlines() if not line.startswith("epoch ")]
        assert len(told) == 1
        assert "None" not in told[0]
        assert not list((files / "m").rglob(".structloss-*"))  # nothing half-written
        assert train(files, "m", "--epochs", 3, "--resume").exit_code == 0
        assert kept(files / "m") == kept(files / "whole")


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_folder_is_said_before_anything_is_trained(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Training, "training_step", lambda *_: pytest.fail("it trains"))
    (files / "m").mkdir(mode=0o500)
    result = train(files, "m", "--epochs", 1)
    assert result.exit_code == 2
    assert "Permission denied" in result.output


def test_a_file_in_the_way_is_said_before_anything_is_trained(files: Path) -> None:
    (files / "m").write_text("")
    for out, sentence in (("m", "File exists"), ("m/below", "Not a directory")):
        result = train(files, out, "--epochs", 1)
        assert result.exit_code == 2
        assert sentence in result.output


# Signals


def comparison(files: Path, *more: object) -> list[str]:
    """One that would last for hours."""
    arguments = (
        "compare", "tagging", "--train", files / "train.txt", "--dev", files / "dev.txt", "--out", files / "all",
        "--set", "model=bilstm", "--epochs", 10**6, "--patience", 10**6, "--seeds", 1, "--objective", "nll",
        "--objective", "hinge", "--no-progress", *more,
    )  # fmt: skip
    return [command(files, "")[0], *map(str, arguments)]


@pytest.mark.parametrize(
    ("signum", "jobs"),
    [
        pytest.param(signal.SIGINT, 1, marks=pytest.mark.slow),
        (signal.SIGTERM, 2),
        pytest.param(signal.SIGKILL, 2, marks=pytest.mark.slow),
    ],
)
def test_a_comparison_ends_with_its_children(files: Path, signum: signal.Signals, jobs: int) -> None:
    with start(comparison(files, "--jobs", jobs)) as p:
        wait_until(lambda: any(steps_of(path) > 0 for path in (files / "all").rglob("*.ckpt")), p)
        (os.killpg if signum == signal.SIGINT else os.kill)(p.pid, signum)
        said = p.communicate(timeout=60)[1]
    assert p.returncode == (-signum if signum == signal.SIGKILL else 128 + signum)
    deadline = time.monotonic() + 60
    while left_behind(p.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_behind(p.pid) == []
    assert "Traceback" not in said
    if signum != signal.SIGKILL:
        assert "the same command with --resume goes on" in said


def test_processes_that_share_each_batch_end_together(files: Path) -> None:
    more = ("--set", "model=bilstm", "--epochs", 10**6, "--patience", 10**6, "--devices", 2)
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with start(command(files, "m", *more, "--overwrite")) as p:
            wait_until(lambda: any(steps_of(path) > 0 for path in found(files / "m")), p)
            p.send_signal(signum)
            p.communicate(timeout=60)
        assert p.returncode == (-signum if signum == signal.SIGKILL else 128 + signum)
        deadline = time.monotonic() + 60
        while left_behind(p.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left_behind(p.pid) == []
    assert load(files / "m", TASKS)
