"""What charts over the spans of a sentence are made of: a sum over the places where two parts of a span meet.

Every chart is run in either of two arithmetics: linear, where weights are scaled so that nothing is too large and a
product is a product; or in logarithms (`logs`), where a product is a sum, for examples whose result is too small for
the first. What flows back is the derivative of log Z in the numbers, or in logarithms. A table and its transpose are
both kept, so that each of the sums runs along two rows. Numbers are real or complex: see `kernels.arithmetic`.
"""

import numpy as np

from structloss.kernels.arithmetic import exponential, inverse
from structloss.kernels.compile import helper_without_nan
from structloss.kernels.types import Array

SMALLEST = -600.0  # a log Z of scaled weights below which linear arithmetic might lose what counts


@helper_without_nan
def times(x: complex, y: complex, logs: bool) -> complex:
    """The product of two numbers."""
    return x + y if logs else x * y


@helper_without_nan
def meet_sum(x: Array, i: int, a: int, y: Array, j: int, b: int, n: int, logs: bool, room: Array) -> complex:
    """The sum over k < n of the product of x[i, a + k] and y[j, b + k], for n >= 1; room (n,) is to work in."""
    if logs:
        return log_sum(x, i, a, y, j, b, n, room)
    total = x[i, a] * y[j, b]
    for k in range(1, n):
        total += x[i, a + k] * y[j, b + k]
    return total  # type: ignore[no-any-return]


@helper_without_nan
def log_sum(x: Array, i: int, a: int, y: Array, j: int, b: int, n: int, room: Array) -> complex:
    """`meet_sum` in logarithms."""
    top = -np.inf
    for k in range(n):
        room[k] = x[i, a + k] + y[j, b + k]
    for k in range(n):
        value = room[k].real
        top = value if value > top else top
    if top == -np.inf:
        return room[0]  # type: ignore[no-any-return]
    total = exponential(room[0] - top)
    for k in range(1, n):
        total += exponential(room[k] - top)
    return top + np.log(total)  # type: ignore[no-any-return]


@helper_without_nan
def share_out(
    flow: complex, total: complex, x: Array, i: int, a: int, y: Array, j: int, b: int, n: int, logs: bool, to_x: Array,
    to_y: Array,
) -> None:  # fmt: skip
    """Add to to_x[i, a + k] and to_y[j, b + k] what of a flow into a `meet_sum`, total, comes from them."""
    if logs:
        share_logs(flow, total, x, i, a, y, j, b, n, to_x, to_y)
        return
    for k in range(n):
        to_x[i, a + k] += flow * y[j, b + k]
        to_y[j, b + k] += flow * x[i, a + k]


@helper_without_nan
def share_logs(
    flow: complex, total: complex, x: Array, i: int, a: int, y: Array, j: int, b: int, n: int, to_x: Array, to_y: Array
) -> None:
    """`share_out` in logarithms."""
    for k in range(n):
        part = flow * exponential(x[i, a + k] + y[j, b + k] - total)
        to_x[i, a + k] += part
        to_y[j, b + k] += part


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
