"""The checks of a machine without a GPU, each in a process of its own: it interprets kernels or compiles them."""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

COLUMNS = ("registers", "spilled", "scalars", "shared", "atomics")  # of the compile table, of which the most is said

Lines = Iterator[dict[str, Any]]


def interpreted(quick: bool) -> Lines:
    """A line for each operation and precision, and for each sentence; in a process with TRITON_INTERPRET=1."""
    from structloss.gpu.checks import check_behaviour, check_operations

    warnings.filterwarnings("ignore", category=RuntimeWarning)  # numpy says that log(0) is -inf
    for row in check_operations(quick=quick):
        yield row._asdict() | {"passed": row.passed}
    for sentence, holds in [] if quick else check_behaviour():
        yield {"sentence": sentence, "passed": holds}


def compiled() -> Lines:
    """A line for each kernel and target: of all variants, the most of everything."""
    from structloss.gpu.compiling import Row
    from structloss.gpu.compiling import compiled as rows

    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows():
        found.setdefault((row.kernel, row.target), []).append(row)
    for (kernel, target), own in found.items():
        most = {name: max(getattr(row, name) for row in own) for name in COLUMNS}
        wrong = [row.variant for row in own if not row.passed]
        line = {"kernel": kernel, "target": target, "variants": len(own), **most, "passed": not wrong}
        yield line | ({"wrong": wrong} if wrong else {})


def begin(what: str) -> "subprocess.Popen[str]":
    """Start a process that prints these lines in JSON: interpreted, quick or compiled."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if what != "compiled":
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "structloss.gpu", what]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def lines_of(process: "subprocess.Popen[str]", what: str) -> Lines:
    """The lines that a process prints, as they come; one that says so where it ends before it should."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)
    if process.wait():
        yield {"sentence": f"the process ({what}) ended with status {process.returncode}", "passed": False}
