"""What charts over the spans of a sentence are made of: a sum over the places where two parts of a span meet.

Every chart is run in either of two arithmetics: linear, where weights are scaled so that nothing is too large and a
product is a product; or in logarithms (`logs`), where a product is a sum, for examples whose result is too small for
the first. What flows back is the derivative of log Z in the numbers, or in logarithms. A table has a row for each
width, in which spans stand by where they start: the innermost loops run over spans, and add up nothing. Numbers are
real or complex: see `kernels.arithmetic`.
"""

import numpy as np

from structloss.kernels.arithmetic import exponential, inverse
from structloss.kernels.compile import helper_without_nan
from structloss.kernels.types import Array

SMALLEST = -600.0  # a log Z of scaled weights below which linear arithmetic might lose what counts


@helper_without_nan
def meet_sums(
    x: Array,
    least: int,
    y: Array,
    gap: int,
    width: int,
    spans: int,
    narrow: bool,
    logs: bool,
    room: Array,
    totals: Array,
) -> None:
    """totals[w, i] = the sum over least <= u < least + w of x[u, i] times y[w - gap - u, i + u + gap], for i < spans.

    `narrow`: the span that starts at 0 has the first of these only. room (2, spans) is to work in; w >= 1 is `width`.
    """
    if not logs:
        for i in range(spans):
            totals[width, i] = x[least, i] * y[width - gap - least, np.uintp(i + least + gap)]
        for u in range(least + 1, least + width):
            v, shift = width - gap - u, u + gap
            for i in range(1 if narrow else 0, spans):
                totals[width, i] += x[u, i] * y[v, np.uintp(i + shift)]
        return
    for i in range(spans):
        room[0, i] = -np.inf
        for u in range(least, least + (1 if narrow and i == 0 else width)):
            value = x[u, i] + y[width - gap - u, i + u + gap]
            if value.real > room[0, i].real:
                room[0, i] = value.real
        room[1, i] = 0.0
    for u in range(least, least + width):
        for i in range(1 if narrow and u > least else 0, spans):
            if room[0, i].real > -np.inf:
                room[1, i] += exponential(x[u, i] + y[width - gap - u, i + u + gap] - room[0, i].real)
    for i in range(spans):
        totals[width, i] = room[0, i] + (np.log(room[1, i]) if room[0, i].real > -np.inf else 0.0)


@helper_without_nan
def share_out(
    flow: Array, totals: Array, x: Array, least: int, y: Array, gap: int, width: int, spans: int, narrow: bool,
    logs: bool, to_x: Array, to_y: Array,
) -> None:  # fmt: skip
    """Add to to_x and to_y what of the flow[i] into totals[width, i], its `meet_sums`, comes from x and from y."""
    for u in range(least, least + width):
        v, shift, first = width - gap - u, u + gap, 1 if narrow and u > least else 0
        if logs:
            for i in range(first, spans):
                if flow[i].real > 0.0:
                    part = flow[i] * exponential(x[u, i] + y[v, i + shift] - totals[width, i])
                    to_x[u, i] += part
                    to_y[v, i + shift] += part
        else:
            for i in range(first, spans):
                to_x[u, i] += flow[i] * y[v, np.uintp(i + shift)]
            for i in range(first, spans):
                to_y[v, np.uintp(i + shift)] += flow[i] * x[u, i]


@helper_without_nan
def sum_labels(scores: Array, b: int, rows: int, columns: int, totals: Array) -> None:
    """totals[i, j] = log of the sum of exp(scores[b, i, j, r]) over the labels r, at least one."""
    for i in range(rows):
        for j in range(columns):
            totals[i, j] = scores[b, i, j, 0]
    if scores.shape[3] == 1:
        return
    for i in range(rows):
        for j in range(columns):
            top = -np.inf
            for r in range(scores.shape[3]):
                value = np.float64(scores[b, i, j, r].real)
                top = value if value > top else top
            if top > -np.inf:
                total = exponential(totals[i, j] - top)
                for r in range(1, scores.shape[3]):
                    total += exponential(scores[b, i, j, r] - top)
                totals[i, j] = top + np.log(total)


@helper_without_nan
def share_labels(scores: Array, b: int, rows: int, columns: int, totals: Array, flow: Array, gradient: Array) -> None:
    """gradient[b, i, j, r] = the share of flow[i, j] that a label has of totals[i, j], its `sum_labels`."""
    for i in range(rows):
        for j in range(columns):
            if scores.shape[3] == 1:
                gradient[b, i, j, 0] = flow[i, j]
            elif totals[i, j].real > -np.inf:
                for r in range(scores.shape[3]):
                    gradient[b, i, j, r] = flow[i, j] * exponential(scores[b, i, j, r] - totals[i, j])


@helper_without_nan
def scaled_rows(arcs: Array, n: int, w: Array) -> complex:
    """w[d] = exp(arcs[d]), divided by their sum; log of the product of these sums. -inf: some word has no arc."""
    total = w[0, 0] * 0.0  # w comes finite
    for d in range(n):
        top = -np.inf
        for h in range(n + 1):
            value = arcs[d, h].real
            top = value if value > top else top
        if top == -np.inf:
            return arcs[d, 0]  # type: ignore[no-any-return]
        for h in range(n + 1):
            w[d, h] = exponential(arcs[d, h] - top)
        mass = w[d, 0]
        for h in range(1, n + 1):
            mass += w[d, h]
        part = inverse(mass)
        for h in range(n + 1):
            w[d, h] *= part
        total += top + np.log(mass)
    return total  # type: ignore[no-any-return]
