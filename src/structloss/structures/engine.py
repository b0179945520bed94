"""Which of the two engines computes: compiled kernels, or tensor operations."""

import threading
from typing import Literal

import torch

Name = Literal["native", "torch"]


class _Forced(threading.local):
    """What the `with` blocks of this thread ask for (the compiler cannot read a context variable)."""

    name: Name | None = None


_forced = _Forced()


class engine:
    """Force one engine inside a `with` block; outside, the device decides (CPU: native, any other: torch).

    `"native"`: compiled kernels for CPU tensors, values and first derivatives. `"torch"`: the same recursions in tensor
    operations, on any device and with derivatives of any order. Both give the same numbers.

    Example:
        >>> import torch, structloss as sl
        >>> chain = sl.Chain(torch.zeros(1, 3, 2))
        >>> with sl.engine("torch"):
        ...     chain.log_partition()
        tensor([2.0794])
    """

    def __init__(self, name: Name) -> None:
        if name not in ("native", "torch"):
            raise ValueError(f'engine: name is {name!r}, but wanted "native" or "torch"')
        self.name: Name = name
        self._before: list[Name | None] = []

    def __enter__(self) -> None:
        self._before.append(_forced.name)
        _forced.name = self.name

    def __exit__(self, *_: object) -> None:
        _forced.name = self._before.pop()


def forced_engine() -> Name | None:
    """What the `with` blocks of this thread ask for."""
    return _forced.name


def is_native(device: torch.device) -> bool:
    """Whether the native engine computes for tensors of `device`."""
    forced = _forced.name
    if forced == "native" and device.type != "cpu":
        raise ValueError(
            f'engine: "native" is forced, but the potentials are on {device}; the native engine wants "cpu"'
        )
    return device.type == "cpu" if forced is None else forced == "native"
