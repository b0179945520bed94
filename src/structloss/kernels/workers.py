"""Threads that run a kernel on a batch: our own, so that forked children and several callers are all safe."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

X = TypeVar("X")
Y = TypeVar("Y")

_pool: ThreadPoolExecutor | None = None

# glibc gives blocks above a threshold back to the system when they are freed, and every page of the next one is paid
# for anew: 438 page faults, a third of the time, in a step of the usual CRF with B=32, T=50, K=50. The threshold rises
# to the largest block of at most 32 MB that was freed: here one that is never written to.
np.empty((1 << 25) - 8192, np.uint8)

# Waking a thread costs some 50 microseconds: below this many elementary steps a batch is not worth it.
_WORTH_A_THREAD = 200_000


def _forget_pool() -> None:
    """A forked child has none of its parent's threads."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_pool)


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max_workers=os.cpu_count() or 2, thread_name_prefix="structloss")
    return _pool


def map_in_threads(function: Callable[[X], Y], items: Sequence[X], threads: int) -> list[Y]:
    """[function(x) for x in items], for functions that spend their time in kernels."""
    if threads <= 1 or len(items) <= 1:
        return [function(x) for x in items]
    return list(_threads().map(function, items))


def run(kernel: Callable[..., None], threads: int, batch: int, steps: int, *args: Any) -> None:
    """Call kernel(worker, workers, *args) for each worker, the first in this thread.

    `threads` is the most to use (1 in a data loader's worker process), `steps` an estimate of the elementary steps.
    """
    workers = min(threads, batch, 1 + steps // _WORTH_A_THREAD)
    if workers <= 1:
        kernel(0, 1, *args)
        return
    pool = _threads()
    others = [pool.submit(kernel, worker, workers, *args) for worker in range(1, workers)]
    kernel(0, workers, *args)
    for other in others:
        other.result()
