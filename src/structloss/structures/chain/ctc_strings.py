"""The most probable strings of CTC: best-first search over what strings begin with."""

import heapq

import numpy as np

from structloss.kernels import ctc_strings as kernels
from structloss.kernels.types import Array
from structloss.structures.chain.native_engine import raise_for

_ROUNDING = 1e-12  # of a logarithm: what a beginning is worth is at least what any of its strings is
_LABELS, _PROBABLE = 256, -5.0  # so many labels, and those that are ever so probable, are told apart in bounds
String = tuple[int, ...]


def best_strings(scores: Array, blank: int, k: int, limit: int) -> list[String]:
    """The k most probable strings of one example (T, C), best first, of equals the lexicographically smaller first.

    What is begun is worth a bound that no string exceeds which begins so (`kernels.ctc_strings`): when a string that
    ends is worth more than all that is begun, it is the next best. Cost T * C for each beginning that is continued.
    """
    T, C = scores.shape
    p = np.empty((T, C))
    there, status = kernels.log_normalise(scores, p)
    raise_for(np.array([status]))
    if not there:
        return []
    likely = p.max(0, initial=-np.inf)
    likely[blank] = -np.inf
    kept = np.argsort(-likely, kind="stable")[:_LABELS]
    ahead = np.empty((T + 1, C))
    kernels.most_ahead(p, blank, kept[likely[kept] > _PROBABLE], ahead)
    nothing, bounds = np.full((T + 1, 2), -np.inf), np.empty(C)
    waiting: list[tuple[float, String, Array | None]] = [(-_ROUNDING, (), nothing)]  # None: a string that ends
    found: list[String] = []
    worths: list[float] = []  # of the k best strings that were come upon, the least first
    continued = 0
    while waiting and len(found) < k:
        _, string, before = heapq.heappop(waiting)
        if before is None:
            found.append(string)
            continue
        continued += 1
        if continued > limit:
            raise ValueError(
                f"limit: the search for the {k} best strings continued {limit} beginnings and has proved {len(found)}; "
                "a model so unsure has no best strings to speak of: take a smaller k, a larger limit, or sample(n)"
            )
        ending, last = np.empty((T + 1, 2)), string[-1] if string else blank
        before_last = string[-2] if len(string) > 1 else blank
        worth = kernels.extended(p, blank, before, before_last, last, ending)
        if worth > -np.inf:
            heapq.heappush(waiting, (-worth, string, None))
            (heapq.heappush if len(worths) < k else heapq.heappushpop)(worths, worth)
        kernels.begins(p, blank, ending, last if string else -1, ahead, bounds)
        least = worths[0] if len(worths) == k else -np.inf
        for c in np.flatnonzero((bounds > -np.inf) & (bounds + _ROUNDING * (T + 1) >= least)).tolist():
            heapq.heappush(waiting, (-float(bounds[c]) - _ROUNDING * (T + 1), (*string, c), ending))
    return found
