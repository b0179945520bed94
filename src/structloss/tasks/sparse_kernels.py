"""Sparse features times weights: a token's scores are the sum of the weights of the features it has."""

import numpy as np

from structloss.kernels.compile import kernel
from structloss.kernels.types import Array, Ints


@kernel
def gather(
    worker: int, workers: int, ids: Ints, values: Array, begin: Ints, end: Ints, weights: Array, out: Array
) -> None:
    """out[n] = the sum over i from begin[n] to end[n] of values[i] * weights[ids[i]], (N, K); no values: 1."""
    N, K = out.shape
    for n in range(worker * N // workers, (worker + 1) * N // workers):
        row = out[n]
        for k in range(K):
            row[k] = 0.0
        for i in range(begin[n], end[n]):
            source = weights[ids[i]]
            if values.size:
                value = values[i]
                for k in range(K):
                    row[k] += value * source[k]
            else:
                for k in range(K):
                    row[k] += source[k]


@kernel
def scatter(ids: Ints, values: Array, begin: Ints, end: Ints, gradient: Array, place: Ints, out: Array) -> None:
    """The transpose: out[place[ids[i]]] += values[i] * gradient[n] (N, K) for the features i of token n.

    With a place of size 0 features have their own rows: out[ids[i]].
    """
    N, K = gradient.shape
    for n in range(N):
        row = gradient[n]
        for i in range(begin[n], end[n]):
            target = out[place[ids[i]] if place.size else ids[i]]
            if values.size:
                value = values[i]
                for k in range(K):
                    target[k] += value * row[k]
            else:
                for k in range(K):
                    target[k] += row[k]


@kernel
def distinct(ids: Ints, begin: Ints, end: Ints, place: Ints, found: Ints) -> int:
    """found[:count] = the different ids of these tokens, in the order they come; place[found[i]] = i.

    place (F,) is -1 everywhere before.
    """
    count = 0
    for n in range(begin.shape[0]):
        for i in range(begin[n], end[n]):
            if place[ids[i]] < 0:
                place[ids[i]] = count
                found[count] = ids[i]
                count += 1
    return count


@kernel
def adagrad(
    rows: Ints, gradient: Array, weight: Array, squares: Array, last: Ints, step: int, rate: float, decay: float
) -> None:
    """One step of AdaGrad on the rows (n,) that gradient (n, K) is of, with the decay of the steps they missed.

    weight, squares (F, K); last (F,) is the step up to which each row has decayed. The penalty is taken at the weight
    after the step, w' = w - pace * (g + missed * w') with pace = rate / sqrt(squares).
    """
    K = weight.shape[1]
    for i in range(rows.shape[0]):
        r = rows[i]
        w, s, g = weight[r], squares[r], gradient[i]
        missed = rate * decay * (step - last[r])
        for k in range(K):
            s[k] += g[k] * g[k]
            root = np.sqrt(s[k]) + 1e-10
            w[k] = (w[k] * root - rate * g[k]) / (root + missed)
        last[r] = step
