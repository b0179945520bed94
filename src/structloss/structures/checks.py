"""What arguments of structures must be."""

import torch
from torch import Tensor


def check_floating(x: Tensor, name: str) -> None:
    """Raise unless x is a tensor of floating-point numbers."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: got {type(x).__name__}, but wanted a tensor")
    if not x.is_floating_point():
        raise TypeError(f"{name}: got {x.dtype}, but wanted floating-point scores")


def at_least_float32(x: Tensor) -> Tensor:
    """bfloat16 and float16 in float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def check_count(value: int, name: str) -> None:
    """Raise unless it is a whole number of at least 1."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: got {value!r}, but wanted a whole number of at least 1")
