"""Writing files: whole or not at all, through links, into pipes, and never over what is read."""

import errno
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import structloss as sl
from structloss import files
from structloss.cli import app
from structloss.files import check_output, write_bytes, write_text
from structloss.tasks import TASKS
from structloss.training.directory import load, save


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_file_obeys_the_umask_and_an_old_one_keeps_its_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "new", "ä")
        (tmp_path / "old").write_text("earlier")
        (tmp_path / "old").chmod(0o604)
        write_text(tmp_path / "old", "later")
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == "ä".encode()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert (tmp_path / "old").read_text() == "later"
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o604


@pytest.mark.parametrize("there", [True, False])
def test_a_symbolic_link_stays_and_its_target_is_written(there: bool, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "target"
    if there:
        target.write_text("earlier")
    (tmp_path / "link").symlink_to(Path("folder") / "target")
    write_text(tmp_path / "link", "later")
    assert (tmp_path / "link").is_symlink()
    assert target.read_text() == "later"
    assert names(tmp_path / "folder") == ["target"]


def test_a_pipe_is_written_into(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    thread = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    thread.start()
    write_text(tmp_path / "pipe", "text")
    thread.join()
    assert read == [b"text"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_what_is_open_already_is_written_into(name: str, tmp_path: Path) -> None:
    program = f"from structloss.files import write_text; from pathlib import Path; write_text(Path({name!r}), 'text')"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, check=True, capture_output=True).stdout == b"text"
    (tmp_path / "log").write_text("before, ")
    with (tmp_path / "log").open("ab") as log:
        subprocess.run(command, check=True, stdout=log)
    assert (tmp_path / "log").read_text() == "before, text"


def test_a_device_stays_a_device() -> None:
    write_text(Path("/dev/null"), "text")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_directory_a_missing_one_and_a_full_disk_are_sentences_that_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for write in (check_output, lambda path: write_text(path, "")):
        with pytest.raises(IsADirectoryError, match=f"{tmp_path / 'folder'}: .*directory"):
            write(tmp_path / "folder")
        with pytest.raises(FileNotFoundError, match=f"{tmp_path / 'none' / 'file'}: cannot be written"):
            write(tmp_path / "none" / "file")
    with pytest.raises(OSError, match="/dev/full: cannot be written: No space left on device"):
        write_text(Path("/dev/full"), "text")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_or_folder_that_may_not_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "file").chmod(0o444)
    with pytest.raises(PermissionError, match=f"{tmp_path / 'file'}: cannot be written"):
        write_text(tmp_path / "file", "")
    tmp_path.chmod(0o555)
    with pytest.raises(PermissionError, match=f"{tmp_path / 'new'}: cannot be written"):
        write_text(tmp_path / "new", "")
    tmp_path.chmod(0o755)
    assert (tmp_path / "file").read_text() == "precious"


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["fsync", "fchmod"])
def test_an_interrupted_write_leaves_what_was_there(
    failure: BaseException, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("earlier")

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(files.os, step, fail)
    with pytest.raises(type(failure)) as raised:
        write_text(tmp_path / "file", "later")
    assert isinstance(failure, KeyboardInterrupt) or str(tmp_path / "file") in str(raised.value)
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "earlier"


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, Path.replace
    monkeypatch.setattr(files.os, "fsync", lambda file: (done.append("fsync"), sync(file)))
    monkeypatch.setattr(Path, "replace", lambda path, target: (done.append("rename"), replace(path, target))[1])
    write_bytes(tmp_path / "file", b"content")
    assert done == ["fsync", "rename", "fsync"]  # and then the folder


@pytest.mark.parametrize("way", ["itself", "another spelling", "symbolic link", "hard link", "both links"])
def test_what_is_read_is_never_replaced(way: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "symbolic").symlink_to("source")
    os.link(source, tmp_path / "hard")
    read, written = {
        "itself": (source, source),
        "another spelling": (source, tmp_path / "folder" / ".." / "source"),
        "symbolic link": (source, tmp_path / "symbolic"),
        "hard link": (source, tmp_path / "hard"),
        "both links": (tmp_path / "symbolic", tmp_path / "hard"),
    }[way]
    with pytest.raises(ValueError, match="is what is read"):
        check_output(written, read)
    check_output(tmp_path / "other", read, None)
    check_output(Path("/dev/null"), Path("/dev/null"))


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_a_drawn_machine_goes_through_a_link_too(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / f"link.{kind}").symlink_to(f"picture.{kind}")
    sl.EditDistance(cap=1).automaton([0, 1], num_labels=3, length=2).draw(tmp_path / f"link.{kind}")
    assert (tmp_path / f"link.{kind}").is_symlink()
    assert (tmp_path / f"picture.{kind}").stat().st_size > 100


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tagger, and what it was trained on."""
    pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")
    folder = tmp_path_factory.mktemp("model")
    (folder / "train.txt").write_text("a X\nb Y\n\nb Y\n\n" * 10)
    files_and_more = ("--train", folder / "train.txt", "--out", folder / "m", "--epochs", 1, "--no-progress")
    assert invoke("train", "tagging", *files_and_more).exit_code == 0
    return folder


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_predict_does_not_replace_its_own_input(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "x.txt"
    text.write_text("a Y\n\n")
    (tmp_path / "link").symlink_to("x.txt")
    for out in (text, tmp_path / "link"):
        result = invoke("predict", model / "m", text, "-o", out)
        assert result.exit_code == 2
        assert "is what is read" in result.stderr
    assert invoke("predict", model / "m", text, "-o", tmp_path).exit_code == 2
    assert text.read_text() == "a Y\n\n"
    assert invoke("predict", model / "m", text, "-o", tmp_path / "out.txt").exit_code == 0
    assert names(tmp_path) == ["link", "out.txt", "x.txt"]


def test_predict_writes_into_a_process(model: Path, tmp_path: Path) -> None:
    command = f"structloss predict {model / 'm'} {model / 'train.txt'} -o >(cat > {tmp_path / 'out'}); wait"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", command], check=True, env=environment)
    for _ in range(100):
        if (tmp_path / "out").exists() and (tmp_path / "out").stat().st_size:
            break
        time.sleep(0.05)
    assert (tmp_path / "out").read_text().startswith("a X")


def test_weights_that_are_no_numbers_are_said_with_their_file(model: Path, tmp_path: Path) -> None:
    task, loaded = load(model / "m", TASKS)
    name, weights = next((name, x) for name, x in loaded.state_dict().items() if x.is_floating_point())
    weights.view(-1)[0] = torch.nan
    save(tmp_path / "m", task, loaded, {})
    result = invoke("predict", tmp_path / "m", model / "train.txt")
    assert result.exit_code == 2
    assert f"structloss: {tmp_path / 'm' / 'model.safetensors'}: {name} has NaN" in result.stderr
