"""The one door through which kernels are launched, so that a check can see which ones, and compile them elsewhere."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch


def options(backend: str) -> dict[str, Any]:
    """What kernels are compiled with. Levels follow each other: there is nothing to load ahead, so there is one stage.

    On "cuda" a thread may have all registers that there are, as it would rather spill some than have more neighbours;
    on "hip" there is no such choice.
    """
    common = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": True}
    return common | ({"maxnreg": 255} if backend == "cuda" else {})


class Launch(NamedTuple):
    """A kernel, the type of each argument as Triton names it, and its compile-time constants."""

    kernel: Any
    types: tuple[str, ...]
    constants: Mapping[str, Any]


_listed: ContextVar[list[Launch] | None] = ContextVar("listed", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run a kernel in a grid of programs."""
    listed = _listed.get()
    if listed is not None:
        listed.append(Launch(kernel, tuple(map(_type, arguments)), constants))
    else:
        kernel[grid](*arguments, **constants, **options("hip" if torch.version.hip else "cuda"))


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Within it launches are listed, and nothing is run: what operators give is not filled in."""
    listed: list[Launch] = []
    before = _listed.set(listed)
    try:
        yield listed
    finally:
        _listed.reset(before)


_TYPES = {
    "float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "int64": "i64", "int32": "i32",
}  # fmt: skip


def _type(argument: Any) -> str:
    if isinstance(argument, int):
        return "i32" if -(2**31) <= argument < 2**31 else "i64"
    return "*" + _TYPES[str(argument.dtype).removeprefix("torch.")]
