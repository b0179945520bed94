"""What is found of the engines on this machine: on its GPU where there is one, else in Triton's interpreter."""

import json
import os
import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch

from structloss import __version__
from structloss.gpu import tables
from structloss.structures.engine import Name

FORMAT = 1  # of the JSON
Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass
class Report:
    """Lines of tables, each of which says whether it is as it should be, and what they are of."""

    about: Row
    notes: list[str] = field(default_factory=list)
    operations: list[Row] = field(default_factory=list)  # against a list of all outputs
    behaviour: list[Row] = field(default_factory=list)  # sentences
    kernels: list[Row] = field(default_factory=list)  # compiled for GPUs that are not here
    problems: list[Row] = field(default_factory=list)  # of the size of real ones, against the native engine

    @property
    def rows(self) -> list[Row]:
        """All of them."""
        return [*self.operations, *self.behaviour, *self.kernels, *self.problems]

    @property
    def passed(self) -> bool:
        """Whether something was checked, and all of it is as it should be."""
        return bool(self.rows) and all(row["passed"] for row in self.rows)

    def as_json(self) -> str:
        """What is sent."""
        return json.dumps({"format": FORMAT, "passed": self.passed, **vars(self)}, indent=1) + "\n"

    def add(self, lines: Iterable[Row], say: Say) -> None:
        """Put lines where they belong, as they come; what stops them is a line that failed."""
        try:
            for line in lines:
                kind = "operations" if "operation" in line else "kernels" if "kernel" in line else "behaviour"
                getattr(self, "problems" if "problem" in line else kind).append(line)
                say(next(str(line[key]) for key in ("operation", "kernel", "problem", "sentence") if key in line))
        except Exception as error:  # the report is of what does not work, too: whatever it is
            self.behaviour.append({"sentence": f"{type(error).__name__}: {error}"[:500], "passed": False})


def found_device() -> torch.device:
    """The GPU of this machine, or its CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def gathered(say: Say, quick: bool = False) -> Report:
    """Everything; `say` is told of each line as it comes. Quick: less of it, to see that it works."""
    device = found_device()
    report = Report(_about(device))
    if device.type == "cpu":
        _without_gpu(report, say, quick)
    else:
        on_device(report, device, ("triton", "torch") if device.type == "cuda" else ("torch",), say, quick)
    return report


def _without_gpu(report: Report, say: Say, quick: bool) -> None:
    report.notes.append("There is no GPU here, so nothing was timed: this says nothing about the speed of any GPU.")
    if find_spec("triton") is None:
        report.notes.append(
            "Triton is not installed, so its kernels could not be checked either: pip install 'structloss[triton]'."
        )
        return
    report.notes.append(
        "The kernels ran in Triton's interpreter, on the CPU: that checks what they compute, but not that programs "
        "wait for one another where they must, nor rounding of their own on a GPU."
    )
    for what in ("quick",) if quick else ("interpreted", "compiled"):
        report.add(tables.lines_of(tables.begin(what), what), say)


def on_device(
    report: Report, device: torch.device, engines: tuple[Name, ...], say: Say, quick: bool, seconds: float = 2.0
) -> None:  # fmt: skip
    """Each operation against a list of all outputs, then problems of real sizes, timed."""
    from structloss.gpu.checks import check_behaviour, check_operations
    from structloss.gpu.measuring import measured

    if os.environ.get("TRITON_INTERPRET", "0") == "1" and "triton" in engines:
        raise ValueError("TRITON_INTERPRET: got 1, but wanted kernels that run on the GPU; unset it")
    name = device.type
    for engine in engines:
        rows = check_operations(name, engine, quick)
        report.add((row._asdict() | {"engine": engine, "passed": row.passed} for row in rows), say)
    if "triton" in engines:
        report.add(({"sentence": text, "passed": holds} for text, holds in check_behaviour(name)), say)
    found = measured(device, engines, quick, seconds=seconds)
    report.add((row._asdict() | {"passed": row.passed} for row in found), say)
    if name == "mps":
        report.notes.append("Apple's GPUs have no float64: sums are made in float32 here, and there are no kernels.")


def _about(device: torch.device) -> Row:
    """Versions, and the device."""
    about: Row = {
        "structloss": __version__, "torch": torch.__version__, "triton": _version("triton"),
        "python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}",
        "device": device.type, "processors": os.cpu_count(), "pytorch-crf": _version("pytorch-crf"),
        "torch-struct": _version("torch-struct"),
    }  # fmt: skip
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        about |= {
            "device": properties.name, "capability": ".".join(map(str, torch.cuda.get_device_capability(device))),
            "memory": f"{properties.total_memory / 2**30:.1f} GiB", "CUDA": torch.version.cuda,
            "ROCm": torch.version.hip,
        }  # fmt: skip
    return about


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None
