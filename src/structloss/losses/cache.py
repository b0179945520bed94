"""The machines that losses have compiled, kept for when their references come again: one cache for all losses."""

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Any, Literal, NamedTuple, TypeVar

from structloss.automata import LossAutomaton, OpenAutomaton
from structloss.losses.moved import MOVED

M = TypeVar("M", LossAutomaton, OpenAutomaton)
Key = tuple[object, tuple[Hashable, ...]]  # whose machine, and which

_LIMIT = 2**30
_ENTRY = 1800  # what Python itself takes for a machine, its arrays' headers and its place here (measured)
_HANDED_OUT = (
    256  # machines for strings of any length grow after they were asked for: the last so many are counted again
)


class CacheInfo(NamedTuple):
    """What is kept: how many machines, how many bytes they take, and how many they may take; the same of devices.

    On devices are those machines that the Triton engine has moved there.
    """

    machines: int
    num_bytes: int
    limit: int
    device_machines: int = 0
    device_bytes: int = 0
    device_limit: int = 0


class MachineCache:
    """The machines asked for last, of all losses, up to so many bytes of them; several threads may ask.

    A loss is an owner here; its machines go when it does.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._machines: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()
        self._num_bytes = 0
        self._gone: deque[object] = deque()
        self._handed_out: deque[Key] = deque()

    def owner(self, loss: object) -> object:
        """A token for the loss's machines, which are forgotten after it is gone."""
        token = object()
        weakref.finalize(loss, self._forget, token).atexit = False
        return token

    def get(self, owner: object, key: tuple[Hashable, ...], make: Callable[[], M]) -> M:
        """The owner's machine of this key, made where it is not there."""
        whole = (owner, key)
        with self._lock:
            found = self._machines.get(whole)
            if found is not None and not isinstance(found[0], OpenAutomaton):  # which may grow
                self._machines.move_to_end(whole)
                known: M = found[0]
                return known
        machine: M = make() if found is None else found[0]
        with self._lock:
            self._drop(whole)
            self._count(whole, machine)
            if isinstance(machine, OpenAutomaton):
                self._handed_out.append(whole)
            self._tidy(_HANDED_OUT)
        return machine

    def info(self, owner: object | None = None) -> CacheInfo:
        """What is kept of all losses, or of one."""
        with self._lock:
            self._tidy()
            sizes = [size for (whose, _), (_, size) in self._machines.items() if owner is None or whose is owner]
            return CacheInfo(len(sizes), sum(sizes), self._limit)

    def clear(self, owner: object | None = None) -> None:
        """Forget all machines, or those of one loss."""
        with self._lock:
            for key in [key for key in self._machines if owner is None or key[0] is owner]:
                self._drop(key)

    def set_limit(self, limit: int) -> None:
        """Keep at most so many bytes from now on."""
        with self._lock:
            self._limit = limit
            self._tidy()

    def _count(self, key: Key, machine: LossAutomaton | OpenAutomaton) -> None:
        """Put a machine in its place, with its size."""
        size = machine.num_bytes + sum(len(x) for x in key[1] if isinstance(x, bytes)) + _ENTRY
        self._num_bytes += size - self._machines.get(key, (None, 0))[1]
        self._machines[key] = machine, size

    def _drop(self, key: Key) -> None:
        _, size = self._machines.pop(key, (None, 0))
        self._num_bytes -= size

    def _tidy(self, handed_out: int = 0) -> None:
        """Forget the machines of losses that are gone, and those asked for longest ago where they are too much.

        Those handed out since are counted again, but for the last so many.
        """
        while len(self._handed_out) > handed_out:
            key = self._handed_out.popleft()
            if key in self._machines:
                self._count(key, self._machines[key][0])
        while self._gone:
            owner = self._gone.popleft()
            for key in [key for key in self._machines if key[0] is owner]:
                self._drop(key)
        while self._num_bytes > self._limit:
            self._drop(next(iter(self._machines)))

    def _forget(self, owner: object) -> None:
        self._gone.append(owner)
        if self._lock.acquire(blocking=False):  # this thread may be in the midst of something here: then it tidies up
            try:
                self._tidy()
            finally:
                self._lock.release()


CACHE = MachineCache(_LIMIT)


def cache_info() -> CacheInfo:
    """How many machines are kept for references that come again, and how many bytes they take and may take.

    All losses of a process share one bound, 1 GiB unless `set_cache_limit` says otherwise; where it is passed, the
    machines asked for longest ago are forgotten.

    Example:
        >>> import structloss as sl
        >>> sl.clear_cache()
        >>> loss = sl.EditDistance(cap=2)
        >>> machine = loss.automaton([0, 1, 2], num_labels=4, length=3)
        >>> sl.cache_info().machines
        1
    """
    return CACHE.info()._replace(device_machines=len(MOVED), device_bytes=MOVED.num_bytes, device_limit=MOVED.limit)


def clear_cache() -> None:
    """Forget the machines that losses have compiled.

    Example:
        >>> import structloss as sl
        >>> sl.clear_cache()
        >>> sl.cache_info().num_bytes
        0
    """
    CACHE.clear()
    MOVED.clear()


def set_cache_limit(num_bytes: int, on: Literal["host", "device"] = "host") -> None:
    """Keep at most so many bytes of compiled machines, of all losses together; 0 keeps none.

    On the host, or on devices, where the Triton engine keeps what it has moved: 1 GiB each unless this says otherwise.

    Example:
        >>> import structloss as sl
        >>> sl.set_cache_limit(2**28)
        >>> sl.cache_info().limit
        268435456
        >>> sl.set_cache_limit(2**30)
        >>> sl.set_cache_limit(2**28, on="device")
        >>> sl.cache_info().device_limit
        268435456
        >>> sl.set_cache_limit(2**30, on="device")
    """
    if not isinstance(num_bytes, int) or num_bytes < 0:
        raise ValueError(f"num_bytes: got {num_bytes!r}, but wanted a whole number of at least 0")
    if on not in ("host", "device"):
        raise ValueError(f'on: got {on!r}, but wanted "host" or "device"')
    (CACHE if on == "host" else MOVED).set_limit(num_bytes)
