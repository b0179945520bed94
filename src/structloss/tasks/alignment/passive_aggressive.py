"""The passive-aggressive algorithm: a pass over examples, each of which moves two columns of the weights."""

import numpy as np

from structloss.kernels.compile import kernel
from structloss.kernels.types import Array, Ints


@kernel
def passive_aggressive(features: Array, labels: Ints, weights: Array, total: Array, C: float) -> None:
    """Update weights (m, P) on examples (n, m) with their labels (n,), and add the weights after each step to total.

    Cost n * m * P.
    """
    n, m = features.shape
    P = weights.shape[1]
    scores = np.empty(P)
    for i in range(n):
        scores[:] = 0.0
        size = 0.0
        for j in range(m):
            f = features[i, j]
            size += f * f
            for p in range(P):
                scores[p] += f * weights[j, p]
        right, wrong = labels[i], -1
        for p in range(P):
            if p != right and (wrong < 0 or scores[p] > scores[wrong]):
                wrong = p
        violation = 1.0 - scores[right] + scores[wrong] if wrong >= 0 else 0.0
        if violation > 0.0 and size > 0.0:
            step = min(C, violation / (2.0 * size))
            for j in range(m):
                weights[j, right] += step * features[i, j]
                weights[j, wrong] -= step * features[i, j]
        for j in range(m):
            for p in range(P):
                total[j, p] += weights[j, p]
