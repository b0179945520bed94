"""Writing files whole or not at all: the one way in which anything of ours is written."""

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8: see `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file: what was there is replaced by all of it, or stays.

    It is written beside the file under another name, brought to the disk and renamed; what was there keeps its
    permissions, and a symbolic link stays one. A device or a pipe is written into. What goes wrong is an `OSError`
    whose sentence names the file.
    """
    try:
        if _is_stream(path):
            _write_into(path, content)
        else:
            _replace(Path(os.path.realpath(path)), content)
    except OSError as error:
        raise type(error)(f"{path}: cannot be written: {error.strerror or error}") from error


def check_output(path: Path, *inputs: Path | None) -> None:
    """Raise unless a file can be written there that is none of those that are read."""
    if _is_stream(path):
        return
    if path.is_dir():
        raise IsADirectoryError(f"{path}: is a directory, but wanted a file to write to")
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{path}: cannot be written: there is no directory {folder}")
    for source in inputs:
        if source is not None and path.exists() and source.exists() and path.samefile(source):
            raise ValueError(f"{path}: is what is read ({source}), but wanted another file to write to")


def rename(path: Path, target: Path) -> None:
    """Give a file another name, whatever had it before, and let the disk know."""
    path.replace(target)
    handle = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_stream(path: Path) -> bool:
    """Whether it is written into rather than replaced: a device, a pipe, a socket, or a file that is open already."""
    if os.path.abspath(path).startswith(("/dev/", "/proc/")):
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _write_into(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as file:
        file.write(content)


def _replace(target: Path, content: bytes) -> None:
    before = target.stat() if target.exists() else None
    if before is not None and not os.access(target, os.W_OK):
        raise PermissionError("it is read-only")
    temporary = target.with_name(f".structloss-{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(content)
            file.flush()
            if before is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            os.fsync(file.fileno())
        rename(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
