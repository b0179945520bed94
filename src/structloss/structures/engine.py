"""Which of the three engines computes: compiled kernels, tensor operations, or Triton kernels on a GPU."""

import os
import threading
from importlib.util import find_spec
from typing import Literal, get_args

import torch

Name = Literal["native", "torch", "triton"]

_ENABLED = "STRUCTLOSS_TRITON"
_enabled = os.environ.get(_ENABLED, "") not in ("", "0")


class _Forced(threading.local):
    """What the `with` blocks of this thread ask for (the compiler cannot read a context variable)."""

    name: Name | None = None


_forced = _Forced()


class engine:
    """Force one engine inside a `with` block; outside, the device decides (CPU: native, any other: torch).

    `"native"`: compiled kernels for CPU tensors, values and first derivatives. `"torch"`: the same recursions in tensor
    operations, on any device and with derivatives of any order. `"triton"`: kernels for CUDA and ROCm tensors, values
    and first derivatives, which `enable_triton` makes the choice there; what they do not cover the torch engine does,
    and `engine_info` says. All give the same numbers.

    Example:
        >>> import torch, structloss as sl
        >>> chain = sl.Chain(torch.zeros(1, 3, 2))
        >>> with sl.engine("torch"):
        ...     chain.log_partition()
        tensor([2.0794])
    """

    def __init__(self, name: Name) -> None:
        if name not in get_args(Name):
            raise ValueError(f'engine: name is {name!r}, but wanted "native", "torch" or "triton"')
        if name == "triton":
            _require_triton()
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


def enable_triton(enabled: bool = True) -> None:
    """Let Triton kernels compute for CUDA and ROCm tensors from now on, wherever they can; off unless you say so.

    The environment variable STRUCTLOSS_TRITON=1 says so too. They are tested in Triton's interpreter and compiled for
    GPUs, but no GPU has run them yet: hence the switch.

    Example:
        >>> import structloss as sl
        >>> sl.enable_triton(False)
    """
    global _enabled
    if enabled:
        _require_triton()
    _enabled = enabled


def engine_of(device: torch.device) -> Name:
    """Which engine computes for tensors of `device`, where it can."""
    forced = _forced.name
    if forced == "native" and device.type != "cpu":
        raise ValueError(
            f'engine: "native" is forced, but the potentials are on {device}; the native engine wants "cpu"'
        )
    if forced == "triton" and device.type != "cuda" and not (device.type == "cpu" and _interpreted()):
        raise ValueError(
            f'engine: "triton" is forced, but the potentials are on {device}; it wants CUDA or ROCm tensors, or '
            "Triton's interpreter: set TRITON_INTERPRET=1 before Python starts, which is for tests"
        )
    if forced is not None:
        return forced
    if device.type == "cpu":
        return "native"
    return "triton" if _enabled and device.type == "cuda" else "torch"


def is_native(device: torch.device) -> bool:
    """Whether the native engine computes for tensors of `device`."""
    return engine_of(device) == "native"


def _interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, which takes CPU tensors."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _require_triton() -> None:
    """Raise where Triton is not installed."""
    if find_spec("triton") is None:
        raise ModuleNotFoundError("the Triton engine wants Triton: pip install 'structloss[triton]'")


if _enabled:
    _require_triton()
