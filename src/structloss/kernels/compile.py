"""How every kernel is compiled: cached on disk, without the interpreter's lock, safe for infinities."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import event
from numba.core.types import unliteral

F = TypeVar("F", bound=Callable[..., Any])

# Sums may be reordered and fused, signed zeros ignored; infinities and NaN keep their meaning.
_FASTMATH = {"reassoc", "contract", "nsz"}


def _compiler(fastmath: set[str], **options: bool) -> Callable[[F], F]:
    """A decorator that compiles a function on its first call, for the types of that call.

    No kernel is handed to another as a value, so none has the wrapper that C would call. A constant among the arguments
    counts as a number like any other: numba would compile a callee anew for each 0, 1 or False that it is called with.
    """
    settings: dict[str, Any] = dict(cache=True, nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)
    compiler = numba.njit(fastmath=fastmath, **settings)

    def compiled(function: F) -> F:
        dispatcher = compiler(function)
        of_types = dispatcher.get_call_template
        dispatcher.get_call_template = lambda args, kws: of_types(tuple(map(unliteral, args)), kws)
        return cast(F, dispatcher)

    return compiled


# What Python calls. Kernels take a `worker` and the number of `workers` first and treat the examples worker,
# worker + workers, ...: the caller runs them in threads of its own, so that no threading layer of numba is involved.
# Those layers either kill forked children (omp) or abort when two Python threads call them (workqueue), and cost
# seconds to compile. An exact one has its floating-point operations in the order they are written.
kernel = _compiler(_FASTMATH)
exact_kernel = _compiler({"contract"})

# What only kernels call. Without the wrapper that Python would call, which unpacks and checks every argument, a first
# call costs a seventh less; a call from Python ends the process. One without NaN never meets any: maxima are then
# vectorised. One that is inlined takes tuples of some twenty arrays: to pass them costs 300 ns.
helper = _compiler(_FASTMATH, no_cpython_wrapper=True)
exact_helper = _compiler({"contract"}, no_cpython_wrapper=True)
helper_without_nan = _compiler(_FASTMATH | {"nnan"}, no_cpython_wrapper=True)
inlined_helper = _compiler(_FASTMATH, no_cpython_wrapper=True, forceinline=True)
exact_inlined_helper = _compiler({"contract"}, no_cpython_wrapper=True, forceinline=True)


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
