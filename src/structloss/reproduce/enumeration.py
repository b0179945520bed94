"""Grad-Naive of Cortes 2018 (Figure 6), compiled: a loop over all strings, each with its loss by definition."""

import numpy as np

from structloss.kernels.alignment import Gaps, Pairs, least_cost
from structloss.kernels.compile import exact_kernel
from structloss.kernels.types import Array, Ints

EDIT, LOCAL, BIGRAM = 0, 1, 2  # which loss


@exact_kernel
def enumerate_strings(potentials: Array, reference: Ints, kind: int, pairs: Pairs, gaps: Gaps, Q: Array) -> None:
    """Q = Q_w for potentials (T, K, K), from the sum over all K**T strings.

    For bigrams the table of `pairs` says how often each is in the reference, and a string with none in common is
    outside the sum.
    """
    T, K = potentials.shape[0], potentials.shape[1]
    y = np.zeros(T, np.int64)
    shift = 0.0  # some string scores about this much, and none so much more that its weight overflows
    for t in range(T):
        shift += potentials[t].max()
    total = 0.0
    while True:
        score, previous, product = 0.0, 0, 0.0
        for t in range(T):
            score += potentials[t, previous, y[t]]
            if t and kind == BIGRAM:
                product += pairs.table[previous, y[t]]
            previous = y[t]
        if kind != BIGRAM:
            score += least_cost(y, reference, pairs, gaps, kind == LOCAL)
        else:
            score -= np.log(product)
        if kind != BIGRAM or product > 0:
            weight = np.exp(score - shift)
            total += weight
            previous = 0
            for t in range(T):
                Q[t, previous, y[t]] += weight
                previous = y[t]
        t = T - 1
        while t >= 0 and y[t] == K - 1:
            y[t] = 0
            t -= 1
        if t < 0:
            break
        y[t] += 1
    Q /= total
