"""What a reproduction found, in the form that terminal, files and report share."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from structloss.files import write_bytes, write_text

FILE = "finding.json"


@dataclass(frozen=True)
class Grid:
    """A table to read: a caption, the names of its columns, and its cells as they are written."""

    caption: str
    columns: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Finding:
    """One reproduction: what the paper reports, what was found here, and what differs and why."""

    name: str  # of the command, "runtime"
    title: str
    paper: str  # where the paper has it, and its own figures, in words
    grids: list[Grid]
    remarks: list[str]  # what differs and why, one paragraph each
    command: str  # what was typed
    seconds: float
    pictures: dict[str, str] = field(default_factory=dict)  # file names in the same folder, with their captions

    def write(self, out: Path, data: Any, pictures: Mapping[str, bytes]) -> list[Path]:
        """Write the pictures, the data as results.json and this as finding.json into the folder; what was written."""
        missing = set(self.pictures) ^ set(pictures)
        if missing:
            raise ValueError(f"pictures: {sorted(missing)} have a caption or a file, but not both")
        for name, content in pictures.items():
            write_bytes(out / name, content)
        write_text(out / "results.json", json.dumps(data, indent=1))
        write_text(out / FILE, json.dumps(asdict(self), indent=1))
        return [*(out / name for name in pictures), out / "results.json", out / FILE]

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What `write` left in a folder."""
        file = folder / FILE
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            return cls(**{**found, "grids": [Grid(**grid) for grid in found["grids"]]})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ValueError(f"{file}: is not what `structloss reproduce` writes: {error}") from None
