"""CTC: sums over the paths that write one string, and over those that end in each state of a loss machine.

A path has a label for each frame; it writes its labels, each run of equals once, without the blanks. Frames are
normalised: p[t, c] is the probability of label c, and what a frame sums up to is counted apart. Values are then
probabilities of paths, and arithmetic is linear.
"""

import numpy as np

from structloss.kernels.compile import kernel
from structloss.kernels.types import NOT_A_NUMBER, OK, PLUS_INFINITY, Array, Ints

# Of what is summed up at a frame, smaller parts than this may be lost.
_LOST = 1e-280


@kernel
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


@kernel
def forward(
    scores: Array, p: Array, length: int, label: Ints, skip: Ints, alpha: Array, scale: Array
) -> tuple[float, float]:
    """alpha[t, j] = P(frames up to t, position j of the string with blanks), over scale; scale[t] is its log.

    A path is at j or moves to j + 1, or, where skip[j], from j - 2 to j. Returns the log of the whole sum, and the
    largest of the logs that something was lost of.
    """
    J = label.shape[0]
    worst = -np.inf
    for t in range(length):
        low, high = max(0, J - 2 * (length - t)), min(J, 2 * t + 2)
        here = alpha[t]
        total = 0.0
        if t == 0:
            for j in range(J):
                here[j] = p[0, label[j]] if low <= j < high else 0.0
                total += here[j]
        else:
            before = alpha[t - 1]
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
                worst = max(worst, np.log(_LOST))
        if total <= 0.0:
            return -np.inf, worst
        base = 0.0 if t == 0 else scale[t - 1]
        scale[t] = base + np.log(total)
        for j in range(low, high):
            here[j] /= total
            if 0.0 < here[j] < _LOST:
                here[j] = 0.0
                worst = max(worst, scale[t] + np.log(_LOST))
    last = alpha[length - 1, J - 1] + (alpha[length - 1, J - 2] if J > 1 else 0.0)
    return (scale[length - 1] + np.log(last) if last > 0.0 else -np.inf), worst


@kernel
def add(a: float, b: float) -> float:
    """log(exp(a) + exp(b))."""
    top = max(a, b)
    return top if top == -np.inf else top + np.log(np.exp(a - top) + np.exp(b - top))


@kernel
def forward_log(scores: Array, norm: Array, length: int, label: Ints, skip: Ints, alpha: Array) -> float:
    """As `forward`, in logarithms: log p[t, c] = scores[t, c] - norm[t]."""
    J = label.shape[0]
    for t in range(length):
        for j in range(J):
            value = -np.inf
            if t == 0:
                value = 0.0 if j < 2 else -np.inf
            else:
                value = alpha[t - 1, j]
                if j > 0:
                    value = add(value, alpha[t - 1, j - 1])
                if skip[j]:
                    value = add(value, alpha[t - 1, j - 2])
            alpha[t, j] = value + scores[t, label[j]] - norm[t]
    last = alpha[length - 1, J - 1]
    return add(last, alpha[length - 1, J - 2]) if J > 1 else last


@kernel
def share_back(p: Array, length: int, label: Ints, skip: Ints, alpha: Array, logs: bool, out: Array) -> None:
    """out[t, c] += P(label c at frame t | the string), from the last frame back: a position shares with those before.

    Shares are quotients of one frame's alpha, so that neither its scale nor what follows matters.
    """
    J = label.shape[0]
    mu, mu_before = np.zeros(J), np.zeros(J)
    last = alpha[length - 1]
    if J == 1:
        mu[0] = 1.0
    elif logs:
        top = max(last[J - 1], last[J - 2])
        a, b = np.exp(last[J - 1] - top), np.exp(last[J - 2] - top)
        mu[J - 1], mu[J - 2] = a / (a + b), b / (a + b)
    else:
        total = last[J - 1] + last[J - 2]
        mu[J - 1], mu[J - 2] = last[J - 1] / total, last[J - 2] / total
    for t in range(length - 1, -1, -1):
        for j in range(J):
            out[t, label[j]] += mu[j]
        if t == 0:
            break
        before = alpha[t - 1]
        mu_before[:] = 0.0
        for j in range(J):
            if mu[j] == 0.0:
                continue
            stay, step, leap = before[j], -np.inf if logs else 0.0, -np.inf if logs else 0.0
            if j > 0:
                step = before[j - 1]
            if skip[j]:
                leap = before[j - 2]
            if logs:
                top = max(stay, step, leap)
                stay, step, leap = np.exp(stay - top), np.exp(step - top), np.exp(leap - top)
            part = mu[j] / (stay + step + leap)
            mu_before[j] += part * stay
            if j > 0:
                mu_before[j - 1] += part * step
            if skip[j]:
                mu_before[j - 2] += part * leap
        mu, mu_before = mu_before, mu


@kernel
def alignments(
    worker: int, workers: int, scores: Array, lengths: Ints, labels: Ints, begin: Ints, blank: int,
    gradient: bool, value: Array, g_scores: Array, status: Ints,
) -> None:  # fmt: skip
    """value (B,) = log of the sum over the paths that write labels[begin[b]:begin[b + 1]]; g_scores its gradient.

    Time and memory T * (2n + 1) an example. -inf, with zero gradient, where no path does.
    """
    T, C = scores.shape[1], scores.shape[2]
    p, norm = np.empty((T, C)), np.empty(T)
    for b in range(worker, lengths.shape[0], workers):
        length, n = lengths[b], begin[b + 1] - begin[b]
        frames, status[b] = normalise(scores[b], length, p, norm)
        if status[b] != OK:
            continue
        if length == 0 or frames == -np.inf:
            value[b] = frames if n == 0 else -np.inf
            continue
        J = 2 * n + 1
        label, skip = np.full(J, blank), np.zeros(J, np.int64)
        outside = False
        for i in range(n):
            label[2 * i + 1] = labels[begin[b] + i]
            outside = outside or labels[begin[b] + i] >= C or labels[begin[b] + i] == blank
            skip[2 * i + 1] = 1 if i > 0 and labels[begin[b] + i] != labels[begin[b] + i - 1] else 0
        if outside:
            value[b] = -np.inf
            continue
        alpha, scale = np.empty((length, J)), np.empty(length)
        total, lost = forward(scores[b], p, length, label, skip, alpha, scale)
        logs = lost > -np.inf and not lost + np.log(float(length * J)) < total - 35.0
        if logs or total == -np.inf:
            logs = True
            total = forward_log(scores[b], norm, length, label, skip, alpha)
        value[b] = frames + total
        if gradient and total > -np.inf:
            share_back(p, length, label, skip, alpha, logs, g_scores[b])


@kernel
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


@kernel
def step_back(p: Array, q: Array, blank: int, following: Ints, there: Array, moved: Array, here: Array) -> None:
    """here[s, c] = what there[s', c'] (after a frame of probabilities p) is worth before it, c the label before.

    Of a blank or of c itself the state stays; any other label moves it. q is p without the blank's probability.
    """
    S, C = following.shape
    for s in range(S):
        for c in range(C):
            moved[c] = q[c] * there[following[s, c], c]
        all_but_one(moved, here[s])
        stay = p[blank] * there[s, blank]
        for c in range(C):
            here[s, c] += stay + q[c] * there[s, c]


@kernel
def step_on(
    p: Array, q: Array, blank: int, following: Ints, alpha: Array, there: Array, moved: Array, out: Array,
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
        value = p[blank] * total
        alpha_next[s, blank] += value
        out[blank] += value * there[s, blank]
        for c in range(C):
            alpha_next[s, c] += q[c] * alpha[s, c]
            out[c] += q[c] * alpha[s, c] * there[s, c]
        for c in range(C):
            value = q[c] * moved[c]
            alpha_next[following[s, c], c] += value
            out[c] += value * there[following[s, c], c]


@kernel
def endings(length: int, blank: int, following: Ints, worth: Array, gradient: bool, p: Array, out: Array) -> float:
    """E[worth of the machine's state at the end] over the paths of one example; no worth is negative.

    following (S, C): where a label leads. With `gradient`, out[t, c] = E[worth, where frame t has label c]. p (T, C)
    are the frames' probabilities. Time T * S * C; memory about 2 * sqrt(T) * S * C: the worth before a frame is kept
    every so many frames, and made again in between.
    """
    C, S = p.shape[1], worth.shape[0]
    q, moved = p[:length].copy(), np.empty(C)
    q[:, blank] = 0.0
    stride = max(1, int(np.sqrt(float(length))))
    segments = (length + stride - 1) // stride
    kept, inside = np.empty((segments + 1, S, C)), np.empty((stride + 1, S, C))
    for s in range(S):
        kept[segments, s] = worth[s]
    for segment in range(segments - 1, -1, -1):
        first, end = segment * stride, min(length, (segment + 1) * stride)
        there = kept[segment + 1]
        for t in range(end - 1, first - 1, -1):
            here = kept[segment] if t == first else inside[t - first]
            step_back(p[t], q[t], blank, following, there, moved, here)
            there = here
    value = kept[0, 0, blank]
    if not gradient:
        return float(value)
    alpha, alpha_next = np.zeros((S, C)), np.empty((S, C))
    alpha[0, blank] = 1.0
    for segment in range(segments):
        first, end = segment * stride, min(length, (segment + 1) * stride)
        inside[end - first] = kept[segment + 1]
        for t in range(end - 1, first, -1):
            step_back(p[t], q[t], blank, following, inside[t - first + 1], moved, inside[t - first])
        for t in range(first, end):
            step_on(p[t], q[t], blank, following, alpha, inside[t - first + 1], moved, out[t], alpha_next)
            alpha, alpha_next = alpha_next, alpha
    return float(value)
