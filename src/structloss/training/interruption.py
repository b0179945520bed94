"""Ctrl-C and SIGTERM: whatever runs ends where it is safe, or after a grace wherever it is."""

import atexit
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE = 2.0  # seconds between a signal and the hard end
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ONE_SIGNAL = 0.5  # seconds within which two signals are one that came twice
_LOOK = 0.3  # seconds between two looks at a parent
_PARENT = "STRUCTLOSS_PARENT"


class Interrupted(BaseException):
    """Somebody wants this process to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class _State:
    """What has come, and whether it is to wait until somebody asks."""

    signum: int | None = None
    holders = 0


@contextmanager
def listening(sentence: str, grace: float = GRACE) -> Iterator[None]:
    """Within, a signal raises `Interrupted` at once, or is held (`held`); the process ends with 128 + its number.

    What has not ended by itself after a grace, or when a second signal comes, is ended hard: not all that runs for long
    is Python, and a thread that only waits can end it still. The sentence is said whichever way it ends.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _State.signum = None
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = {number: signal.signal(number, _receive) for number in SIGNALS}
    wakes = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(read, sentence, grace), name="interruption", daemon=True).start()
    try:
        yield
    except Interrupted as interrupted:
        atexit._run_exitfuncs()  # all that clears up outside of this process; the interpreter itself takes seconds
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        _end(interrupted.signum, sentence)
    finally:
        signal.set_wakeup_fd(wakes)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(write)


@contextmanager
def held() -> Iterator[None]:
    """Within, a signal raises nothing: who holds it asks whether it was `requested` wherever it is safe to end."""
    _State.holders += 1
    try:
        yield
    finally:
        _State.holders -= 1
    stop_if_requested()


def requested() -> bool:
    """Whether a signal has come."""
    return _State.signum is not None


def stop_if_requested(also: bool = False) -> None:
    """Raise `Interrupted` where a signal has come, or where another process says that it has got one."""
    if requested() or also:
        raise Interrupted(_State.signum or signal.SIGTERM)


def listen_again() -> None:
    """Take signals back from somebody who has put handlers of their own in place while `listening`."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _receive:
        signal.signal(signal.SIGTERM, _receive)


def end_with(parent: int) -> None:
    """End this process as soon as its parent is not the one of this number any more."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def be_parent() -> None:
    """Let processes that inherit this one's environment know whom to end with (`end_with_parent`)."""
    os.environ[_PARENT] = str(os.getpid())


def end_with_parent() -> None:
    """In a process that helps another one to train, end when that one does."""
    if _PARENT in os.environ and int(os.environ.get("LOCAL_RANK", 0)) > 0:
        end_with(int(os.environ[_PARENT]))


def _receive(signum: int, _: FrameType | None) -> None:
    if _State.signum is None:
        _State.signum = signum
        if _State.holders == 0:
            raise Interrupted(signum)


def _watch(read: int, sentence: str, grace: float) -> None:
    """Wait for a signal, then for the end of the grace or another signal, and end the process."""
    first, begin = 0, 0.0
    while not first or (left := begin + grace - time.monotonic()) > 0:
        if not select.select([read], [], [], left if first else None)[0]:
            break
        got = os.read(read, 1)
        if not got:  # nobody listens any more
            os.close(read)
            return
        if got[0] in SIGNALS and not first:
            first, begin = got[0], time.monotonic()
        elif got[0] in SIGNALS and time.monotonic() > begin + _ONE_SIGNAL:
            break
    _end(first, sentence)


def _end(signum: int, sentence: str) -> None:
    if sentence:
        os.write(2, f"\n{sentence}\n".encode())
    os._exit(128 + signum)
