"""The weight of a transducer for one pair of strings: the least cost of its paths, or the sum over them."""

from typing import NamedTuple

import numpy as np

from structloss.kernels.checks import UNKNOWN
from structloss.kernels.compile import exact_helper, exact_kernel
from structloss.kernels.types import Array, Ints


class Arcs(NamedTuple):
    """The arcs of a transducer by state and by what they read: number 0 is nothing, the others are R labels."""

    order: Ints  # (S,), the states so that arcs that read and write nothing only go forward
    begin: Ints  # (S, R + 2): those of state q that read number i are from begin[q, i] to begin[q, i + 1]
    target: Ints  # (A,)
    writes: Ints  # (A,), the label that is written, -1 for nothing
    weight: Array  # (A,)
    final: Array  # (S,), the semiring's zero where no path ends


@exact_helper
def rest(here: Array, reference: Ints, j: int, target: int, label: int, zero: float) -> float:
    """What is left once `label` is written at place j of the reference: `here` (n + 1, S) where it leads, or zero."""
    if label < 0:
        return float(here[j, target])
    for k in range(reference.shape[1] if j < reference.shape[0] else 0):
        if reference[j, k] == label or reference[j, k] == UNKNOWN:
            return float(here[j + 1, target])
    return zero


@exact_kernel
def path_weight(arcs: Arcs, start: int, y: Ints, reference: Ints, least: bool) -> float:
    """From the end: value[j, q] is of the paths from state q with y[i:] left to read and the reference from j to write.

        value[i, j, q] = final[q] at the end of both, plus, over the arcs of q that read nothing or y[i], and write
        nothing or what agrees with place j, of weight times value where they lead.

    `least`: plus and times are min and +. y (m,): numbers of labels, 0 of those that no arc reads. reference (n, r):
    any of r labels at each place, UNKNOWN for all, -1 for none. Cost: m * n * the arcs that states have for a label.
    """
    order, begin, target, writes, weight, final = arcs
    m, n, S = y.shape[0], reference.shape[0], order.shape[0]
    zero = np.inf if least else 0.0
    here, after = np.full((n + 1, S), zero), np.full((n + 1, S), zero)
    for i in range(m, -1, -1):
        for j in range(n, -1, -1):
            for k in range(S - 1, -1, -1):
                q = order[k]
                value = final[q] if i == m and j == n else zero
                for a in range(begin[q, 0], begin[q, 1]):
                    left = rest(here, reference, j, target[a], writes[a], zero)
                    value = min(value, weight[a] + left) if least else value + weight[a] * left
                reads = y[i] if i < m else 0
                for a in range(begin[q, reads] if reads else 0, begin[q, reads + 1] if reads else 0):
                    left = rest(after, reference, j, target[a], writes[a], zero)
                    value = min(value, weight[a] + left) if least else value + weight[a] * left
                here[j, q] = value
        here, after = after, here
    return float(after[0, start])
