"""One function over many files, in processes of this machine or of a cluster: one that fails stops no other."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from structloss.files import write_text

JOURNAL = "done.jsonl"


@dataclass(frozen=True)
class Done:
    """What came of a file: what the function returned, or what was wrong with the file."""

    name: str
    value: Any = None
    error: str = ""


def over_files(
    function: Callable[..., Any], todo: Sequence[tuple[str, tuple[Any, ...]]], jobs: int, cluster: str | None = None
) -> Iterator[Done]:
    """Call function(*arguments) for each (name, arguments), so many at a time, in the order they are ready.

    Args:
        function: of a module, so that other processes find it; its ValueError or OSError is what is wrong with a file.
        todo: a name for each file, and the arguments of its call.
        jobs: processes of this machine; with 1 the calls are made in this one.
        cluster: the address of a dask scheduler, whose workers do the work instead, and do again what one that died had
            begun. They must see the same files under the same names.
    """
    if len(todo) == 0 or (cluster is None and (jobs == 1 or len(todo) == 1)):
        for name, arguments in todo:
            yield _one(function, name, arguments)
        return
    import joblib
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    with _backend(cluster):
        parallel = joblib.Parallel(
            n_jobs=-1 if cluster else min(jobs, len(todo)), batch_size=1, return_as="generator_unordered"
        )
        try:
            yield from parallel(joblib.delayed(_one)(function, name, arguments) for name, arguments in todo)
        except TerminatedWorkerError:
            raise ChildProcessError("a process ended in the middle of its work; --resume goes on") from None


@contextmanager
def _backend(cluster: str | None) -> Iterator[None]:
    import joblib

    if cluster is None:
        with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
            yield
        return
    try:
        from dask.distributed import Client
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError("--cluster needs dask: pip install 'structloss[cluster]'") from missing
    try:
        client = Client(cluster, timeout=10)
    except OSError as error:
        raise ValueError(f"--cluster: no dask scheduler answers at {cluster} ({error})") from None
    with client, joblib.parallel_config(backend="dask", client=client):
        yield


def _one(function: Callable[..., Any], name: str, arguments: tuple[Any, ...]) -> Done:
    try:
        return Done(name, function(*arguments))
    except (ValueError, OSError) as error:
        return Done(name, error=str(error))


class Journal:
    """Which files are done, a line each in a folder's `done.jsonl`: what a run that is resumed leaves alone.

    Args:
        folder: where the answers are written.
        made: what made them, the checksum of a model: answers of another one are made again.
        resume: keep what is there, instead of beginning a new journal.
    """

    def __init__(self, folder: Path, made: str, resume: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path, self._made = folder / JOURNAL, made
        rows = list(self._rows()) if resume and self._path.is_file() else []
        self._done = {row["file"] for row in rows if row["made"] == made and not row["error"]}
        write_text(self._path, "".join(json.dumps(row) + "\n" for row in rows))

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def add(self, done: Done) -> None:
        """Note what came of a file. A line that was not written to its end is passed over when it is read."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"file": done.name, "made": self._made, "error": done.error}) + "\n")

    def _rows(self) -> Iterator[dict[str, str]]:
        for line in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("file", "made", "error")):
                yield row
