"""Files that are there whole or not at all, even after the power has gone."""

import os
from pathlib import Path


def replace_file(path: Path, content: bytes) -> None:
    """Write under a temporary name, let the disk have it, then rename; where that fails, what was there stays.

    An OSError names the file that was wanted.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def rename_file(path: Path, target: Path) -> None:
    """Rename, and let the disk know."""
    path.replace(target)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
