"""Processes that work one after another, report as they go, and end when they are told to or when nobody is left."""

import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from structloss.training import interruption

GRACE = 1.5 + interruption.GRACE  # seconds that somebody who waits for processes to end needs at most
_LAST = 0.7 + interruption.GRACE  # seconds from a polite word to a hard end
_START = object()  # what a process does first


@dataclass(frozen=True)
class Told:
    """What a piece of work has said, or, with `ended`, what came of it."""

    key: Any
    value: Any
    ended: bool


@dataclass
class _Worker:
    process: Any
    connection: Connection
    key: Any = _START  # of what it works on, None if on nothing


class Processes:
    """At most so many processes, each started once with start(*arguments), for pieces of work one after another.

    A piece of work is function(tell, *arguments): `tell` sends something here, and what is returned or raised comes
    here too. No work is handed out before a process is free for it. On leaving, processes that still work are ended:
    politely, so that they can write a last checkpoint, and then hard.
    """

    def __init__(self, number: int, start: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self._number, self._start, self._arguments = number, start, arguments
        self._spawn = multiprocessing.get_context("spawn")
        self._waiting: deque[tuple[Any, Callable[..., Any], tuple[Any, ...]]] = deque()
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.terminate()
        deadline = time.monotonic() + _LAST
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.process.kill()
            worker.process.join()
            worker.connection.close()

    def submit(self, key: Any, function: Callable[..., Any], *arguments: Any) -> None:
        """Have function(tell, *arguments) called in one of the processes, as soon as one is free."""
        self._waiting.append((key, function, arguments))

    def told(self) -> Iterator[Told]:
        """What the processes say, in the order it comes, until no work is left; who listens may submit more."""
        while self._hand_out():
            busy = [worker for worker in self._workers if worker.key is not None]
            for ready in wait([worker.connection for worker in busy]):
                told = self._receive(next(worker for worker in busy if worker.connection is ready))
                if told is not None:
                    yield told

    def _hand_out(self) -> bool:
        """Give work to who is free; whether anything is still to come."""
        for worker in self._workers:
            if worker.key is None and self._waiting:
                worker.key, function, arguments = self._waiting.popleft()
                worker.connection.send((function, arguments))
        starting = sum(worker.key is _START for worker in self._workers)
        while len(self._workers) < self._number and starting < len(self._waiting):
            self._begin()
            starting += 1
        return any(worker.key is not None for worker in self._workers)

    def _begin(self) -> None:
        here, there = self._spawn.Pipe()
        process = self._spawn.Process(target=_work, args=(there, os.getpid()), daemon=True)
        with interruption.held():  # until it is among those that are ended
            # Ctrl-C reaches all processes of a terminal: the others are told by this one, also while they start.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            there.close()
            self._workers.append(_Worker(process, here))

    def _receive(self, worker: _Worker) -> Told | None:
        key = worker.key
        try:
            kind, value = worker.connection.recv()
        except (EOFError, ConnectionError):
            worker.process.join()
            code = worker.process.exitcode
            raise ChildProcessError(f"a process ended with code {code} in the middle of its work") from None
        if kind == "raised":
            raise value
        if kind == "ready":  # what may be large is sent when somebody reads it
            worker.connection.send((self._start, self._arguments))
        if kind != "told":
            worker.key = None
        return None if kind == "ready" else Told(key, value, kind == "ended")


def _work(connection: Connection, parent: int) -> None:
    """What a process does: start, wait for work, do it, say what came of it."""
    interruption.end_with(parent)

    def say(kind: str, value: Any) -> None:
        try:
            connection.send((kind, value))
        except ConnectionError:  # whoever started this process is gone, and so is the reason for it
            os._exit(1)

    with interruption.listening(""):
        try:
            say("ready", None)
            start, arguments = connection.recv()
            start(*arguments)
            while True:
                function, given = connection.recv()
                say("ended", function(lambda value: say("told", value), *given))
        except (EOFError, ConnectionError):
            os._exit(1)
        except Exception as error:
            say("raised", error)
