"""CTC: sums over the paths that write one string, and over those that end in each state of a loss machine.

A path has a label for each frame; it writes its labels, each run of equals once, without the blanks. Frames are
normalised: p[t, c] is the probability of label c, and what a frame sums up to is counted apart. Values are then
probabilities of paths, and arithmetic is linear.
"""

import numpy as np

from structloss.kernels.compile import helper, kernel
from structloss.kernels.types import NOT_A_NUMBER, OK, PLUS_INFINITY, Array, Ints

_SMALLEST = 1e-280  # of what is summed up at a frame, smaller parts than this may be lost


@helper
def normalise(scores: Array, length: int, out: Array, norm: Array) -> tuple[float, int]:
    """out[t, c] = softmax of scores[t] (T, C), norm[t] its log-sum-exp. Returns the sum of these, and a status."""
    total = 0.0
    for t in range(length):
        top = -np.inf
        for c in range(scores.shape[1]):
            if np.isnan(scores[t, c]):
                return 0.0, NOT_A_NUMBER
            top = max(top, scores[t, c])
        if top == np.inf:
            return 0.0, PLUS_INFINITY
        if top == -np.inf:
            return -np.inf, OK
        frame = 0.0
        for c in range(scores.shape[1]):
            out[t, c] = np.exp(scores[t, c] - top)
            frame += out[t, c]
        for c in range(scores.shape[1]):
            out[t, c] /= frame
        norm[t] = top + np.log(frame)
        total += norm[t]
    return total, OK


@helper
def positions(string: Ints, blank: int, C: int) -> tuple[Ints, Ints]:
    """The string with a blank before, between and after its labels, (J,); and where a path may leap over a blank (J,).

    J is 0 where the string has a blank or a label that there is not: no path writes it.
    """
    label, skip = np.full(2 * string.shape[0] + 1, blank), np.zeros(2 * string.shape[0] + 1, np.int64)
    for i in range(string.shape[0]):
        if string[i] >= C or string[i] == blank:
            return label[:0], skip[:0]
        label[2 * i + 1] = string[i]
        skip[2 * i + 1] = 1 if i > 0 and string[i] != string[i - 1] else 0
    return label, skip


@helper
def ways(before: Array, j: int, leaps: int) -> tuple[float, float, float, float]:
    """How a path comes to j, from j, from j - 1 and, where it leaps, from j - 2: the exponentials of a frame's logs.

    They are relative to the largest, whose log comes last.
    """
    stay, step, leap = before[j], before[j - 1] if j > 0 else -np.inf, before[j - 2] if leaps else -np.inf
    top = max(stay, step, leap)
    if top == -np.inf:
        return 0.0, 0.0, 0.0, top
    return np.exp(stay - top), np.exp(step - top), np.exp(leap - top), top


@helper
def forward(
    scores: Array, p: Array, length: int, label: Ints, skip: Ints, alpha: Array, scale: Array
) -> tuple[float, float]:
    """alpha[t, j] = P(the first t frames, position j of the string with blanks), over scale; scale[t] is its log.

    A path is at j or moves to j + 1, or, where skip[j], from j - 2 to j; before the first frame it is at 0. Returns the
    log of the whole sum, and the largest of the logs that something was lost of.
    """
    J = label.shape[0]
    worst = -np.inf
    for j in range(J):
        alpha[0, j] = 0.0
    alpha[0, 0], scale[0] = 1.0, 0.0
    for t in range(length):
        low, high = max(0, J - 2 * (length - t)), min(J, 2 * t + 2)
        before, here = alpha[t], alpha[t + 1]
        total = 0.0
        for j in range(J):
            here[j] = 0.0
        for j in range(low, high):
            value = before[j]
            if j > 0:
                value += before[j - 1]
            if skip[j]:
                value += before[j - 2]
            here[j] = value * p[t, label[j]]
            total += here[j]
        for j in range(low, high):
            if p[t, label[j]] == 0.0 and scores[t, label[j]] > -np.inf:
                worst = max(worst, np.log(_SMALLEST))
        if total <= 0.0:
            return -np.inf, worst
        scale[t + 1] = scale[t] + np.log(total)
        for j in range(low, high):
            here[j] /= total
            if 0.0 < here[j] < _SMALLEST:
                here[j] = 0.0
                worst = max(worst, scale[t + 1] + np.log(_SMALLEST))
    last = alpha[length, J - 1] + (alpha[length, J - 2] if J > 1 else 0.0)
    return scale[length] + np.log(last), worst


@helper
def share_back(length: int, label: Ints, skip: Ints, alpha: Array, logs: bool, out: Array) -> None:
    """out[t, c] += P(label c at frame t | the string), from the last frame back: a position shares with those before.

    Shares are quotients of one frame's alpha, so that neither its scale nor what follows matters. A path ends as if it
    stayed at the last position, or moved there.
    """
    J = label.shape[0]
    mu, mu_before = np.zeros(J), np.zeros(J)
    mu[J - 1] = 1.0
    for t in range(length - 1, -1, -1):
        here = alpha[t + 1]
        for j in range(J):
            mu_before[j] = 0.0
        for j in range(J):
            if mu[j] == 0.0:
                continue
            if logs:
                stay, step, leap, _ = ways(here, j, skip[j])
            else:
                stay, step, leap = here[j], here[j - 1] if j > 0 else 0.0, here[j - 2] if skip[j] else 0.0
            part = mu[j] / (stay + step + leap)
            mu_before[j] += part * stay
            if j > 0:
                mu_before[j - 1] += part * step
            if skip[j]:
                mu_before[j - 2] += part * leap
        mu, mu_before = mu_before, mu
        for j in range(J):
            out[t, label[j]] += mu[j]


@helper
def forward_log(scores: Array, norm: Array, length: int, label: Ints, skip: Ints, alpha: Array) -> float:
    """As `forward`, in logarithms, where linear arithmetic might lose what counts. Returns the log of the whole sum.

    log p[t, c] = scores[t, c] - norm[t].
    """
    J = label.shape[0]
    for j in range(J):
        alpha[0, j] = -np.inf
    alpha[0, 0] = 0.0
    for t in range(length):
        for j in range(J):
            stay, step, leap, top = ways(alpha[t], j, skip[j])
            alpha[t + 1, j] = top + np.log(stay + step + leap) + scores[t, label[j]] - norm[t]
    stay, step, _, top = ways(alpha[length], J - 1, 0)
    return float(top + np.log(stay + step))


@kernel
def alignments(
    worker: int, workers: int, scores: Array, lengths: Ints, labels: Ints, begin: Ints, blank: int,
    value: Array, g_scores: Array, status: Ints,
) -> None:  # fmt: skip
    """value (B,) = log of the sum over the paths that write labels[begin[b]:begin[b + 1]]; g_scores its gradient.

    Time and memory T * (2n + 1) an example. -inf, with zero gradient, where no path does. Without room for it, g_scores
    is not wanted.
    """
    T, C = scores.shape[1], scores.shape[2]
    p, norm = np.empty((T, C)), np.empty(T)
    for b in range(worker, lengths.shape[0], workers):
        length = lengths[b]
        frames, status[b] = normalise(scores[b], length, p, norm)
        if status[b] != OK:
            continue
        label, skip = positions(labels[begin[b] : begin[b + 1]], blank, C)
        if length == 0 or frames == -np.inf or label.shape[0] == 0:
            value[b] = frames if begin[b] == begin[b + 1] else -np.inf
            continue
        alpha, scale = np.empty((length + 1, label.shape[0])), np.empty(length + 1)
        total, lost = forward(scores[b], p, length, label, skip, alpha, scale)
        unsafe = total == -np.inf or (lost > -np.inf and not lost + np.log(float(alpha.size)) < total - 35.0)
        if unsafe:
            total = forward_log(scores[b], norm, length, label, skip, alpha)
        value[b] = frames + total
        if g_scores.size and total > -np.inf:
            share_back(length, label, skip, alpha, unsafe, g_scores[b])


@helper
def all_but_one(values: Array, out: Array) -> float:
    """out[c] = the sum of all values but values[c], none of them negative. Returns the sum of all.

    Taking values[c] from the sum of all is exact enough unless it is most of it; then the others are added up.
    """
    total = 0.0
    for c in range(values.shape[0]):
        total += values[c]
    half, large = 0.5 * total, -1
    for c in range(values.shape[0]):
        out[c] = total - values[c]
    for c in range(values.shape[0]):
        if values[c] > half:
            large = c
    if large >= 0:
        out[large] = 0.0
        for c in range(values.shape[0]):
            if c != large:
                out[large] += values[c]
    return total


@helper
def step_back(p: Array, stay: float, blank: int, following: Ints, there: Array, moved: Array, here: Array) -> None:
    """here[s, c] = what there[s', c'] (after a frame of probabilities p, stay the blank's) is worth; c came before.

    Of a blank or of c itself the state stays; any other label moves it.
    """
    S, C = following.shape
    for s in range(S):
        for c in range(C):
            moved[c] = p[c] * there[following[s, c], c]
        all_but_one(moved, here[s])
        for c in range(C):
            here[s, c] += stay * there[s, blank] + p[c] * there[s, c]


@helper
def worth_within(
    p: Array, stay: Array, blank: int, following: Ints, first: int, end: int, least: int, after: Array, moved: Array,
    out: Array,
) -> None:  # fmt: skip
    """out[i] = the worth before frame first + i, i >= `least`; the last is `after`, what follows frame end - 1."""
    for s in range(after.shape[0]):
        for c in range(after.shape[1]):
            out[end - first, s, c] = after[s, c]
    for t in range(end - 1, first + least - 1, -1):
        step_back(p[t], stay[t], blank, following, out[t - first + 1], moved, out[t - first])


@helper
def step_on(
    p: Array, stay: float, blank: int, following: Ints, alpha: Array, there: Array, moved: Array, out: Array,
    alpha_next: Array,
) -> None:  # fmt: skip
    """alpha_next[s, c] = the probability of being in s with c the last label, one frame on from alpha.

    out[c] += what this frame's label c is worth, there[s, c] being the worth of what comes after it.
    """
    S, C = following.shape
    alpha_next[:] = 0.0
    for s in range(S):
        total = all_but_one(alpha[s], moved)
        if total == 0.0:
            continue
        alpha_next[s, blank] += stay * total
        out[blank] += stay * total * there[s, blank]
        for c in range(C):
            alpha_next[s, c] += p[c] * alpha[s, c]
            out[c] += p[c] * alpha[s, c] * there[s, c]
        for c in range(C):
            value = p[c] * moved[c]
            alpha_next[following[s, c], c] += value
            out[c] += value * there[following[s, c], c]


@kernel
def endings(
    worker: int, workers: int, scores: Array, lengths: Ints, following: Ints, begin: Ints, worth: Array, shift: Array,
    log: bool, blank: int, value: Array, g_scores: Array, status: Ints,
) -> None:  # fmt: skip
    """value (B,) = shift + E[worth of the machine's last state] over paths, or + log of the sum over paths of worth.

    The states of example b are begin[b] to begin[b + 1]: their worth, not negative, and where a label leads from each,
    following (sum S, C), counted within the example. g_scores (B, T, C), the gradient, where there is room for it.
    Time T * S * C; memory about 2 * sqrt(T) * S * C: the worth before a frame is kept every so many frames, and made
    again in between.
    """
    T, C = scores.shape[1], scores.shape[2]
    p, norm, stay, moved = np.empty((T, C)), np.empty(T), np.empty(T), np.empty(C)
    for b in range(worker, lengths.shape[0], workers):
        length, S, to = lengths[b], begin[b + 1] - begin[b], following[begin[b] : begin[b + 1]]
        frames, status[b] = normalise(scores[b], length, p, norm)
        value[b] = -np.inf if log else 0.0
        if status[b] != OK or frames == -np.inf:
            continue
        for t in range(length):  # the blank's probability apart
            stay[t], p[t, blank] = p[t, blank], 0.0
        stride = max(1, int(np.sqrt(float(length))))
        segments, least = (length + stride - 1) // stride, 0
        kept, inside = np.empty((segments + 1, S, C)), np.empty((stride + 1, S, C))
        for s in range(S):
            for c in range(C):
                kept[segments, s, c] = worth[begin[b] + s]
        for segment in range(segments - 1, -1, -1):
            first, end = segment * stride, min(length, (segment + 1) * stride)
            worth_within(p, stay, blank, to, first, end, least, kept[segment + 1], moved, inside)
            for s in range(S):
                for c in range(C):
                    kept[segment, s, c] = inside[0, s, c]
        mean = kept[0, 0, blank]
        if not log:
            value[b] = shift[b] + mean
        elif mean > 0.0:
            value[b] = shift[b] + frames + np.log(mean)
        if g_scores.size == 0 or (log and mean == 0.0):
            continue
        alpha, alpha_next = np.zeros((S, C)), np.empty((S, C))
        alpha[0, blank], least = 1.0, 1  # nothing comes before the first frame of a stretch again
        for segment in range(segments):
            first, end = segment * stride, min(length, (segment + 1) * stride)
            worth_within(p, stay, blank, to, first, end, least, kept[segment + 1], moved, inside)
            for t in range(first, end):
                step_on(p[t], stay[t], blank, to, alpha, inside[t - first + 1], moved, g_scores[b, t], alpha_next)
                alpha, alpha_next = alpha_next, alpha
                p[t, blank] = stay[t]
                for c in range(C):
                    g_scores[b, t, c] = g_scores[b, t, c] / mean if log else g_scores[b, t, c] - mean * p[t, c]
