"""What of compiled machines was moved to a device, kept there for when the machines come again."""

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

Key = tuple[int, str]  # a machine, and a device

_LIMIT = 2**30


class MovedMachines:
    """The tensors of the machines asked for last, up to so many bytes on all devices; several threads may ask."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_bytes = 0
        self._kept: OrderedDict[Key, tuple[Sequence[Tensor], int]] = OrderedDict()
        self._gone: deque[Key] = deque()  # a machine may go at any moment, also in the midst of something here
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, machine: Any, device: str, make: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """The machine's tensors on this device, made where they are not there; forgotten when the machine is."""
        key = (id(machine), device)
        with self._lock:
            self._tidy()
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][0]
        tensors = make()
        weakref.finalize(machine, self._gone.append, key).atexit = False
        with self._lock:
            self._drop(key)
            size = sum(x.numel() * x.element_size() for x in tensors)
            self._kept[key] = tensors, size
            self.num_bytes += size
            self._tidy()
        return tensors

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            for key in list(self._kept):
                self._drop(key)

    def set_limit(self, limit: int) -> None:
        """Keep at most so many bytes from now on."""
        with self._lock:
            self.limit = limit
            self._tidy()

    def _drop(self, key: Key) -> None:
        self.num_bytes -= self._kept.pop(key, ((), 0))[1]

    def _tidy(self) -> None:
        while self._gone:
            self._drop(self._gone.popleft())
        while self.num_bytes > self.limit:
            self._drop(next(iter(self._kept)))


MOVED = MovedMachines(_LIMIT)
