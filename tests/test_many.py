"""A model's answers to many files: in several processes and on a cluster, resumed, and where some cannot be read."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")

from structloss.cli import app
from structloss.training.many import over_files

SENTENCE = "the D B-NP\ncat N I-NP\nsees V O\n\nbirds N B-NP\n\n"


def run(*arguments: object):
    return CliRunner().invoke(app, [str(x) for x in arguments])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    (folder / "train.txt").write_text(20 * SENTENCE)
    done = run("train", "tagging", "--train", folder / "train.txt", "--out", folder / "model", "--epochs", 1, "--quiet")
    assert done.exit_code == 0, done.output
    return folder / "model"


def texts(folder: Path, number: int) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{i:04d}.txt" for i in range(number)]
    for i, path in enumerate(paths):
        path.write_text((1 + i % 3) * SENTENCE)
    return paths


def journal(folder: Path) -> list[str]:
    """The files of it, in the order they were done."""
    return [Path(json.loads(line)["file"]).name for line in (folder / "done.jsonl").read_text().splitlines()]


def test_several_processes_answer_as_one_does_and_name_what_fails(model: Path, tmp_path: Path) -> None:
    paths = texts(tmp_path / "texts", 6)
    paths[2].write_text("too few\ncolumns\n")
    for jobs in (1, 2):
        result = run("predict", model, *paths, "-o", tmp_path / f"out{jobs}", "--jobs", jobs)
        assert result.exit_code == 1
        assert "1 of 6 files failed" in result.stderr
        [line] = (tmp_path / f"out{jobs}" / "failed.tsv").read_text().splitlines()
        assert line.startswith(f"{paths[2]}\t{paths[2]}, line ")
        assert sorted(journal(tmp_path / f"out{jobs}")) == [path.name for path in paths]
    one = run("predict", model, paths[4]).stdout
    for path in paths[:2] + paths[3:]:
        answers = [(tmp_path / f"out{jobs}" / path.name).read_text() for jobs in (1, 2)]
        assert answers[0] == answers[1]
        assert path is not paths[4] or answers[0] == one


def test_only_what_is_not_done_is_done_again(model: Path, tmp_path: Path) -> None:
    paths, out = texts(tmp_path / "texts", 4), tmp_path / "out"
    paths[1].write_text("too few\ncolumns\n")
    assert run("predict", model, *paths, "-o", out, "--jobs", 1).exit_code == 1
    paths[1].write_text(SENTENCE)
    (out / paths[3].name).unlink()
    (out / "done.jsonl").write_text((out / "done.jsonl").read_text() + '{"file": "half a li')
    result = run("predict", model, *paths, "-o", out, "--jobs", 1, "--resume")
    assert (result.exit_code, "2 of 4 files are done already" in result.stderr) == (0, True)
    assert not (out / "failed.tsv").exists()
    assert all((out / path.name).is_file() for path in paths)
    result = run("predict", model, *paths, "-o", out, "--jobs", 1, "--resume")
    assert "4 of 4 files are done already" in result.stderr


def test_several_files_are_judged_one_by_one_and_together(model: Path, tmp_path: Path) -> None:
    paths = texts(tmp_path / "texts", 3)
    metrics = json.loads(run("evaluate", model, *paths, "--json", "--jobs", 1).stdout)
    assert list(metrics) == [*map(str, paths), "all"]
    (tmp_path / "all.txt").write_text("".join(path.read_text() for path in paths))
    assert metrics["all"] == json.loads(run("evaluate", model, tmp_path / "all.txt", "--json").stdout)


def test_what_several_files_need_is_said(model: Path, tmp_path: Path) -> None:
    first, second = texts(tmp_path / "texts", 2)
    for more, sentence in (
        ((), "wanted a folder for the answers to 2 files"),
        (("-o", first), "wanted a folder for the answers"),
        (("-o", tmp_path / "texts"), "is what is read"),
        (("-o", tmp_path / "out", "--picture", tmp_path / "a.svg"), "is of one file, but got 2"),
        (("-o", tmp_path / "out", "--cluster", "tcp://127.0.0.1:1"), "no dask scheduler answers at tcp://127.0.0.1:1"),
    ):
        result = run("predict", model, first, second, *more)
        assert (result.exit_code, sentence in " ".join(result.stderr.split())) == (2, True), result.output


def slow_square(number: int, folder: str) -> int:
    """What the cluster is given: it leaves a mark, takes its time, and fails on one of them."""
    (Path(folder) / f"{number}.begun").touch()
    if number == 3:
        raise ValueError("three")
    time.sleep(0.02)
    return number**2


@pytest.fixture
def cluster() -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """A dask scheduler on this machine with two workers, each a process of its own."""
    pytest.importorskip("distributed", reason="dask (the extra cluster) is not installed")
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": environment}
    python = [sys.executable, "-m"]
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    started = [
        subprocess.Popen(
            [*python, "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"],
            **quiet,  # type: ignore[call-overload]
        )
    ]
    worker = [*python, "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    started += [subprocess.Popen(worker, **quiet) for _ in range(2)]  # type: ignore[call-overload]
    try:
        yield address, started[1:]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_cluster_does_everything_once_though_a_worker_is_killed(
    cluster: tuple[str, list["subprocess.Popen[bytes]"]], tmp_path: Path
) -> None:
    from distributed import Client

    address, workers = cluster
    with Client(address, timeout=30) as client:
        client.wait_for_workers(2, timeout=60)
    todo = [(str(i), (i, str(tmp_path))) for i in range(200)]
    found = {}
    for i, done in enumerate(over_files(slow_square, todo, jobs=1, cluster=address)):
        assert done.name not in found
        found[done.name] = done
        if i == 30:
            workers[0].send_signal(signal.SIGKILL)
    assert found.pop("3").error == "three"
    assert {name: done.value for name, done in found.items()} == {str(i): i**2 for i in range(200) if i != 3}
