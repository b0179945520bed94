r"""CTC: the probabilities of strings that begin alike, one label after the other, in logarithms.

Of a string w, ending(t, 0) and ending(t, 1) are the logs of the sums over the first t frames of paths that write w and
end with a blank, or with the last label of w. With M(t, c) at least what any one string has that the frames from t on
go on to write after a last label c, no string that begins with w c is worth more than

    sum over t of p(t, c) * (paths of the first t frames that write w, and may go on to write c) * M(t + 1, c).

M comes from a game: the label that is written next is chosen for all frames, the label after that for each frame at
which the next one was written. Of a last label c, next(t, c, d) is what comes of choosing d, and from(t, d) the same
after a blank:

    from(t, d) = p(t, blank) * from(t + 1, d) + p(t, d) * M(t + 1, d)
    next(t, c, d) = p(t, c) * next(t + 1, c, d) + p(t, blank) * from(t + 1, d) + [c != d] p(t, d) * M(t + 1, d)
    M(t, c) = max(what ends without another label, max over d of next(t, c, d)).

Labels that are never probable are taken together as one, which has at each frame the best probability among them and
may follow itself.
"""

import numpy as np

from structloss.kernels.compile import exact_helper, exact_kernel
from structloss.kernels.ctc import normalise
from structloss.kernels.types import OK, Array, Ints


@exact_helper
def log_add(x: float, y: float) -> float:
    """log(exp(x) + exp(y))."""
    top, bottom = max(x, y), min(x, y)
    return top if bottom == -np.inf else top + np.log1p(np.exp(bottom - top))


@exact_kernel
def log_normalise(scores: Array, out: Array) -> tuple[bool, int]:
    """out (T, C) = log softmax of scores. Returns whether there is any path, and a status."""
    T, norm = scores.shape[0], np.empty(scores.shape[0])
    total, status = normalise(scores, T, out, norm)
    if status != OK or total == -np.inf:
        return False, status
    for t in range(T):
        for c in range(scores.shape[1]):
            out[t, c] = scores[t, c] - norm[t]
    return True, status


@exact_kernel
def extended(p: Array, blank: int, before: Array, last: int, label: int, ending: Array) -> float:
    """ending (T + 1, 2) of the string that goes on with a label after `before`, whose last is `last`.

    Of the empty string if the label is the blank. Returns the log-probability of the string. Cost T.
    """
    T = p.shape[0]
    ending[0, 0], ending[0, 1] = 0.0 if label == blank else -np.inf, -np.inf
    for t in range(T):
        ending[t + 1, 0] = p[t, blank] + log_add(ending[t, 0], ending[t, 1])
        ending[t + 1, 1] = -np.inf
        if label != blank:
            begun = before[t, 0] if label == last else log_add(before[t, 0], before[t, 1])
            ending[t + 1, 1] = p[t, label] + log_add(ending[t, 1], begun)
    return log_add(ending[T, 0], ending[T, 1])


_NEGLIGIBLE = -60.0  # of a summand's log, relative to the largest: far less than rounding, which callers allow for
_TINY = 1e-280  # relative to a frame's largest M: what is smaller counts as this much


@exact_kernel
def most_ahead(p: Array, blank: int, kept: Ints, out: Array) -> None:
    """out (T + 1, C) = log M, all labels but the blank and the `kept` (L,) taken together. Cost T * (C + L * L)."""
    (T, C), L = p.shape, kept.shape[0]
    own = np.full(C, L)
    for i in range(L):
        own[kept[i]] = i
    q, most, ends, from_blank, following = (
        np.empty(L + 1),
        np.ones(L + 1),
        np.ones(L + 1),
        np.zeros(L + 1),
        np.zeros(L + 1),
    )
    after = np.zeros((L + 1, L + 1))  # next, of c and d
    end_blank, offset = 1.0, 0.0
    for c in range(C):
        out[T, c] = 0.0
    for t in range(T - 1, -1, -1):
        skip, top = np.exp(p[t, blank]), 0.0
        for i in range(L + 1):
            q[i] = 0.0
        for c in range(C):
            if c != blank:
                q[own[c]] = max(q[own[c]], np.exp(p[t, c]))
        for d in range(L + 1):
            following[d] = skip * from_blank[d]
            from_blank[d] = following[d] + q[d] * most[d]
        for c in range(L + 1):
            ends[c], best = q[c] * ends[c] + skip * end_blank, 0.0
            for d in range(L + 1):
                after[c, d] = q[c] * after[c, d] + (following[d] if c == d and c < L else from_blank[d])
                best = max(best, after[c, d])
            best = max(best, ends[c])
            most[c] = best
            top = max(top, best)
        end_blank *= skip
        if top == 0.0:
            top = 1.0
        for c in range(L + 1):
            most[c], ends[c] = max(most[c] / top, _TINY), max(ends[c] / top, _TINY)
            from_blank[c] = max(from_blank[c] / top, _TINY)
            for d in range(L + 1):
                after[c, d] = max(after[c, d] / top, _TINY)
        end_blank = max(end_blank / top, _TINY)
        offset += np.log(top)
        for c in range(C):
            out[t, c] = np.log(most[own[c]]) + offset


@exact_kernel
def begins(p: Array, blank: int, ending: Array, last: int, ahead: Array, out: Array) -> None:
    """out[c] = log of at least what any string has that begins with this one and then c, -inf of the blank.

    ahead is what `most_ahead` gave. Cost T * C.
    """
    T, C = p.shape
    either, top = np.empty(T), np.full(C, -np.inf)
    for t in range(T):
        either[t] = log_add(ending[t, 0], ending[t, 1])
        for c in range(C):
            top[c] = max(top[c], p[t, c] + (ending[t, 0] if c == last else either[t]) + ahead[t + 1, c])
    for c in range(C):
        out[c] = 0.0
    for t in range(T):
        if either[t] == -np.inf:
            continue
        for c in range(C):
            x = p[t, c] + (ending[t, 0] if c == last else either[t]) + ahead[t + 1, c] - top[c]
            if x > _NEGLIGIBLE:
                out[c] += np.exp(x)
    for c in range(C):
        out[c] = -np.inf if c == blank or top[c] == -np.inf else top[c] + np.log(out[c])
