"""How every kernel is compiled: cached on disk, without the interpreter's lock, safe for infinities."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and fused, signed zeros ignored; infinities and NaN keep their meaning.
_FASTMATH = {"reassoc", "contract", "nsz"}


def _compiled(function: F, fastmath: set[str], inline: bool = False) -> F:
    compile = numba.njit(cache=True, nogil=True, fastmath=fastmath, error_model="numpy", forceinline=inline)
    return cast(F, compile(function))


def kernel(function: F) -> F:
    """Compile `function` on its first call, for the types of that call.

    Kernels take a `worker` and the number of `workers` first and treat the examples worker, worker + workers, ...:
    the caller runs them in threads of its own, so that no threading layer of numba is involved. Those layers either
    kill forked children (omp) or abort when two Python threads call them (workqueue), and cost seconds to compile.
    """
    return _compiled(function, _FASTMATH)


def inlined_kernel(function: F) -> F:
    """Compile `function` as `kernel` does, into its callers: to pass tuples of some twenty arrays costs 300 ns."""
    return _compiled(function, _FASTMATH, inline=True)


def exact_kernel(function: F) -> F:
    """Compile `function` as `kernel` does, with its floating-point operations in the order they are written."""
    return _compiled(function, {"contract"})


def kernel_without_nan(function: F) -> F:
    """Compile `function` as `kernel` does, on the word that it never meets a NaN: maxima are then vectorised."""
    return _compiled(function, _FASTMATH | {"nnan"})


class _SayOnce(event.Listener):
    """Tell a waiting user, once, that kernels of this package are being compiled (cache hits fire no event)."""

    said = False

    def on_start(self, happening: Any) -> None:
        module = happening.data["dispatcher"].py_func.__module__
        if not self.said and module.startswith("structloss."):
            type(self).said = True
            print(
                "structloss: compiling kernels for this machine, once for each kind of work: 5 to 40 seconds ...",
                file=sys.stderr,
                flush=True,
            )

    def on_end(self, happening: Any) -> None:
        pass


event.register("numba:compile", _SayOnce())
