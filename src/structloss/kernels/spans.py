"""What charts over the spans of a sentence are made of: a sum over the places where two parts of a span meet.

A table and its transpose are both kept, so that each of the sums runs along two rows. Sums take real or complex
numbers: see `kernels.arithmetic`.
"""

import numpy as np

from structloss.kernels.arithmetic import exponential
from structloss.kernels.compile import helper_without_nan
from structloss.kernels.types import Array


@helper_without_nan
def log_sum(x: Array, i: int, a: int, y: Array, j: int, b: int, n: int, room: Array) -> complex:
    """log of the sum over k < n of exp(x[i, a + k] + y[j, b + k]), for n >= 1; room (n,) is to work in."""
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
    flow: complex, total: complex, x: Array, i: int, a: int, y: Array, j: int, b: int, n: int, to_x: Array, to_y: Array
) -> None:
    """Add to to_x[i, a + k] and to_y[j, b + k] the shares of a flow that the terms of a `log_sum`, total, have."""
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
