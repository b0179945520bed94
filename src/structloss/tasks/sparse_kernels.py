"""Sparse features times weights: a token's scores are the sum of the weights of the features it has."""

import numpy as np

from structloss.kernels.compile import kernel
from structloss.kernels.types import Array, Ints


@kernel
def gather(worker: int, workers: int, ids: Ints, values: Array, begin: Ints, weights: Array, out: Array) -> None:
    """out[n] = the sum over i from begin[n] to begin[n + 1] of values[i] * weights[ids[i]] (N, K); no values: 1."""
    N, K = out.shape
    for n in range(worker * N // workers, (worker + 1) * N // workers):
        row = out[n]
        for k in range(K):
            row[k] = 0.0
        for i in range(begin[n], begin[n + 1]):
            source = weights[ids[i]]
            if values.size:
                value = values[i]
                for k in range(K):
                    row[k] += value * source[k]
            else:
                for k in range(K):
                    row[k] += source[k]


@kernel
def scatter(places: Ints, values: Array, begin: Ints, gradient: Array, out: Array) -> None:
    """The transpose: out[places[i]] += values[i] * gradient[n] (N, K) for the features i of token n."""
    N, K = gradient.shape
    for n in range(N):
        row = gradient[n]
        for i in range(begin[n], begin[n + 1]):
            target = out[places[i]]
            if values.size:
                value = values[i]
                for k in range(K):
                    target[k] += value * row[k]
            else:
                for k in range(K):
                    target[k] += row[k]


@kernel
def distinct(ids: Ints, stamp: Ints, found: Ints, places: Ints) -> int:
    """found[:count] = the different ids in the order they come; places[i] = where ids[i] stands there.

    stamp (F,) is -1 everywhere, and is so again afterwards.
    """
    count = 0
    for i in range(ids.shape[0]):
        if stamp[ids[i]] < 0:
            stamp[ids[i]] = count
            found[count] = ids[i]
            count += 1
        places[i] = stamp[ids[i]]
    for i in range(count):
        stamp[found[i]] = -1
    return count


@kernel
def adagrad(
    rows: Ints, gradient: Array, weight: Array, squares: Array, last: Ints, step: int, rate: float, decay: float
) -> None:
    """One step of AdaGrad on the rows (n,) that gradient (n, K) is of, with the decay of the steps they missed.

    weight, squares (F, K); last (F,) is the step up to which each row has decayed.
    """
    K = weight.shape[1]
    for i in range(rows.shape[0]):
        r = rows[i]
        w, s, missed = weight[r], squares[r], decay * (step - last[r])
        for k in range(K):
            s[k] += gradient[i, k] * gradient[i, k]
            pace = rate / (np.sqrt(s[k]) + 1e-10)
            w[k] = (w[k] - pace * gradient[i, k]) / (1.0 + pace * missed)
        last[r] = step
