"""Read damaged files of every kind: each must be read, or refused with a sentence that names it.

Files are read in a process of its own, which may use one gigabyte more than it has after it has read valid ones, and
five seconds for each. Whatever else happens than a file read or refused is counted, shown, and exit code 1:

    python tests/fuzz.py --number 100000 --seed 1
    python tests/fuzz.py --number 5000 --reader conll --reader gz
    python tests/fuzz.py --seed 1 --reader npz --show 4711      # write that file to disk and read it here
"""

import argparse
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import fuzz_files
import fuzz_mutations

SECONDS = 5
GIGABYTE = 1 << 30
OUTCOMES = ("read", "refused", "traceback", "hang", "memory")
BAD = OUTCOMES[2:]
TEMPLATES = 12  # valid files of each kind

Case = tuple[str, int]  # a reader and a number


class Outcome(NamedTuple):
    """What became of a file, and if it is bad, why."""

    case: Case
    kind: str
    reason: str = ""


class Hang(BaseException):
    """A file that took too long."""


class Cases:
    """Damaged files by seed: the same seed, reader and number give the same file, whatever was asked for before."""

    def __init__(self, seed: int, names: Sequence[str]) -> None:
        self._seed = seed
        self._valid = {name: [self.valid(name, i) for i in range(TEMPLATES)] for name in names}
        self._others = [content for folders in self._valid.values() for f in folders for content in f.values()]

    def valid(self, name: str, number: int) -> fuzz_files.Folder:
        """A valid file."""
        return fuzz_files.READERS[name].make(random.Random(f"{self._seed}/{name}/{number}"))

    def damaged(self, case: Case) -> fuzz_files.Folder:
        """A damaged one."""
        name, number = case
        draw, reader = random.Random(f"{self._seed}/{name}/damaged/{number}"), fuzz_files.READERS[name]
        folder = dict(draw.choice(self._valid[name]))
        file = draw.choice(sorted(folder))
        own = [folder[file] for folder in self._valid[name] if file in folder]
        others = own if draw.random() < 0.8 else self._others
        if reader.inside and draw.random() < 0.5:
            unpack, pack = reader.inside
            members = unpack(folder[file])
            member = draw.choice(sorted(members))
            members[member] = fuzz_mutations.damaged(members[member], others, draw)
            folder[file] = pack(members)
        else:
            folder[file] = fuzz_mutations.damaged(folder[file], others, draw)
        return folder


def write(folder: fuzz_files.Folder, where: Path) -> Path:
    """Write the files into an empty folder; what a reader is given."""
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir()
    for name, content in folder.items():
        (where / name).write_bytes(content)
    return where if len(folder) > 1 or "finding.json" in folder else where / next(iter(folder))


def read(case: Case, path: Path) -> Outcome:
    """What becomes of a file."""
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        fuzz_files.READERS[case[0]].read(path)
    except ValueError as error:
        if str(path) in str(error):
            return Outcome(case, "refused")
        return Outcome(case, "traceback", f"without the file's name: {''.join(traceback.format_exception(error))}")
    except Hang:
        return Outcome(case, "hang", traceback.format_exc())
    except MemoryError:
        return Outcome(case, "memory", traceback.format_exc())
    except Exception:
        return Outcome(case, "traceback", traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return Outcome(case, "read")


def _ring(number: int, frame: FrameType | None) -> None:
    raise Hang


def work(connection: Connection, seed: int, names: Sequence[str], where: Path) -> None:
    """Read the files that the parent asks for, and tell it what became of each."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, _ring)
    cases = Cases(seed, names)
    for name in names:  # whatever is imported or compiled at first use
        for i in range(TEMPLATES):
            path = write(cases.valid(name, i), where)
            try:
                fuzz_files.READERS[name].read(path)
            except Exception as error:
                raise AssertionError(f"the valid file {i} of {name} is not read") from error
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + GIGABYTE
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    connection.send(None)
    while (case := connection.recv()) is not None:
        connection.send(read(case, write(cases.damaged(case), where)))


class Worker:
    """A process that reads files, replaced when one of them ends it."""

    def __init__(self, seed: int, names: Sequence[str], where: Path) -> None:
        self._arguments = (seed, names, where)
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=work, args=(theirs, *self._arguments), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()

    def read(self, case: Case) -> Outcome:
        """What becomes of a file."""
        self._connection.send(case)
        try:
            if self._connection.poll(2 * SECONDS):
                outcome: Outcome = self._connection.recv()
                return outcome
            outcome = Outcome(case, "hang", "in code that no alarm interrupts")
        except EOFError:
            self._process.join()
            outcome = Outcome(case, "traceback", f"the process ended with exit code {self._process.exitcode}")
        self._process.kill()
        self._process.join()
        self._start()
        return outcome

    def close(self) -> None:
        """End the process."""
        self._connection.send(None)
        self._process.join()


def fuzz(seed: int, number: int, names: Sequence[str]) -> Iterator[Outcome]:
    """What becomes of so many damaged files, the readers in turn."""
    with tempfile.TemporaryDirectory() as folder:
        worker = Worker(seed, names, Path(folder) / "files")
        for i in range(number):
            yield worker.read((names[i % len(names)], i // len(names)))
        worker.close()


def table(counts: Counter[tuple[str, str]], names: Sequence[str]) -> str:
    """How many files of each reader came to which end."""
    rows = [["reader", "files", *OUTCOMES]]
    for name in names:
        found = [counts[name, kind] for kind in OUTCOMES]
        rows.append([name, str(sum(found)), *map(str, found)])
    sums = [sum(counts[name, kind] for name in names) for kind in OUTCOMES]
    rows.append(["all", str(sum(sums)), *map(str, sums)])
    return "\n".join(row[0].ljust(16) + "".join(cell.rjust(11) for cell in row[1:]) for row in rows)


def show(seed: int, names: Sequence[str], number: int) -> None:
    """Write a damaged file to the working directory and read it here, with whatever error it is."""
    for name in names:
        path = write(Cases(seed, names).damaged((name, number)), Path(f"fuzz-{seed}-{name}-{number}"))
        print(path)
        print(fuzz_files.READERS[name].read(path))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--number", type=int, default=2000, help="files over all readers")
    parser.add_argument("--reader", action="append", choices=fuzz_files.READERS, help="by default all that can be read")
    parser.add_argument("--show", type=int, help="read one file of this number here, and keep it")
    arguments = parser.parse_args()
    names = arguments.reader or fuzz_files.available()
    if arguments.show is not None:
        show(arguments.seed, names, arguments.show)
        return 0
    counts: Counter[tuple[str, str]] = Counter()
    begin = time.monotonic()
    for outcome in fuzz(arguments.seed, arguments.number, names):
        counts[outcome.case[0], outcome.kind] += 1
        if outcome.kind in BAD and counts[outcome.case[0], outcome.kind] <= 5:
            print(f"{outcome.kind}: --seed {arguments.seed} --reader {outcome.case[0]} --show {outcome.case[1]}")
            print(outcome.reason, flush=True)
    print(table(counts, names))
    print(f"{time.monotonic() - begin:.0f} seconds")
    return 1 if any(counts[name, kind] for name in names for kind in BAD) else 0


if __name__ == "__main__":
    sys.exit(main())
