r"""All dependency trees, projective or not: their sum by the matrix-tree theorem (Koo et al. 2007), cost T**3.

The sum over trees is the determinant of a matrix that has the weights of arcs as its entries and their sums on the
diagonal. Subtraction in its elimination may cancel everything: where two words want each other by exp(50), nothing is
left of the root. So diagonals are never subtracted from, but summed up anew (Grassmann, Taksar and Heyman 1985). With
w(d, h) the weight of d hanging on h, words v = n, ..., 1 are eliminated by

    p(v) = sum over h < v of w(v, h),    share(v, h) = w(v, h) / p(v),
    w(d, h) += w(d, v) * share(v, h)    for words d < v and nodes h < v, h != d,

and Z is the product of all p(v): all terms are positive, and all digits right.

Where the root has one word only, its weights are those of a root that must be paid for: `paid`, multiplied by a z of
which only the least power counts. Where p(v) is 0 without them, v has to hang on the root: p(v) = paid(v), and who
hangs on v has got to the root for free. Z is the factor of z**1, and 0 where two words have to be paid for.
"""

import numpy as np

from structloss.kernels.arithmetic import exponential, inverse
from structloss.kernels.compile import helper, kernel
from structloss.kernels.spans import SMALLEST, scaled_rows, share_labels, sum_labels
from structloss.kernels.types import DONE, UNSAFE, Array, Ints


@helper
def eliminate(w: Array, paid: Array, p: Array, forced: Ints, n: int) -> complex:
    """log of the product of all p(v); w[v, h < v] and paid[v] become the shares of v, w[d, v] is as v met it."""
    total, bought = p[0], 0
    for v in range(n, 0, -1):
        mass = p[0]
        for h in range(v):
            mass += w[v, h]
        forced[v] = mass.real == 0.0
        if forced[v]:
            mass, bought = paid[v], bought + 1
            w[v, 0], paid[v] = mass, 0.0
        p[v] = mass
        if mass.real == 0.0 or bought > 1:
            return np.log(p[0].real) + p[0]  # type: ignore[no-any-return]
        part = inverse(mass)
        for h in range(v):
            w[v, h] *= part
        paid[v] *= part
        for d in range(1, v):
            weight = w[d, v]
            if weight.real > 0.0:
                for h in range(v):
                    w[d, h] += weight * w[v, h]
                paid[d] += weight * paid[v]
        total += np.log(mass)
    return total  # type: ignore[no-any-return]


@helper
def restore(w: Array, paid: Array, p: Array, forced: Ints, n: int, g: Array, g_paid: Array) -> None:
    """g[d, h] and g_paid[d]: the derivatives of log Z in the weights, from what `eliminate` left."""
    for v in range(1, n + 1):
        for h in range(v + 1):
            g[v, h] = 0.0
        g_paid[v] = 0.0
        through = p[0]
        for d in range(1, v):
            g[d, v] = g_paid[d] * paid[v]
            for h in range(v):
                g[d, v] += g[d, h] * w[v, h]
            weight = w[d, v]
            for h in range(v):
                g[v, h] += weight * g[d, h]
            g_paid[v] += weight * g_paid[d]
            through += weight * g[d, v]
        part = inverse(p[v])
        for h in range(v):
            g[v, h] = p[0] if forced[v] else (g[v, h] + 1.0 - through) * part
        g_paid[v] = part if forced[v] else g_paid[v] * part


@kernel
def log_partition(
    worker: int, workers: int, scores: Array, lengths: Ints, single_root: bool, status: Ints, value: Array,
    gradient: Array,
) -> None:  # fmt: skip
    """value (B,) = log Z; gradient (B, T, T + 1, R), which comes zero, = the probability of each arc, unless B is 0.

    status (B,) becomes UNSAFE where this is left to `log_partition_by_logs`.
    """
    size = scores.shape[2]
    arcs, w = np.zeros((size, size), value.dtype), np.zeros((size, size), value.dtype)
    g, p = np.zeros((size, size), value.dtype), np.zeros(size, value.dtype)
    paid, g_paid = np.zeros(size, value.dtype), np.zeros(size, value.dtype)
    forced = np.zeros(size, np.int64)
    for b in range(worker, lengths.shape[0], workers):
        n = lengths[b]
        sum_labels(scores, b, n, n + 1, arcs)
        for d in range(n):
            arcs[d, d + 1] = -np.inf
        value[b] = scaled_rows(arcs, n, w)
        if value[b].real == -np.inf:
            continue
        for d in range(n, 0, -1):  # word d is row d from here on
            for h in range(n + 1):
                w[d, h] = w[d - 1, h]
            paid[d] = w[d, 0]
            if single_root:
                w[d, 0] = 0.0
        product = eliminate(w, paid, p, forced, n)
        if not product.real > SMALLEST:
            status[b] = UNSAFE
            continue
        value[b] += product
        if gradient.shape[0] == 0:
            continue
        restore(w, paid, p, forced, n, g, g_paid)
        scaled_rows(arcs, n, w)
        for d in range(1, n + 1):
            if single_root:
                g[d, 0] = g_paid[d]
            for h in range(n + 1):
                w[d - 1, h] *= g[d, h]
        share_labels(scores, b, n, n + 1, arcs, w, gradient)


@helper
def log_add(x: complex, y: complex) -> complex:
    """log(exp(x) + exp(y))."""
    top = max(x.real, y.real)
    if top == -np.inf:
        return x
    return top + np.log(exponential(x - top) + exponential(y - top))  # type: ignore[no-any-return]


@kernel
def log_partition_by_logs(
    worker: int, workers: int, scores: Array, lengths: Ints, single_root: bool, status: Ints, value: Array,
    gradient: Array,
) -> None:  # fmt: skip
    """As `log_partition`, for the examples that are UNSAFE: the same elimination in logarithms, T**3 memory.

    was[v] is w before v is eliminated, with `paid` in its last column; flow[d, h] the probability of an arc of it.
    """
    size = scores.shape[2]
    was = np.empty((size + 1, size, size + 1), value.dtype)
    share, flow = np.empty((size, size + 1), value.dtype), np.empty((size, size + 1), value.dtype)
    arcs = np.empty((size, size), value.dtype)
    forced = np.zeros(size, np.int64)
    for b in range(worker, lengths.shape[0], workers):
        if status[b] != UNSAFE:
            continue
        status[b] = DONE
        n = lengths[b]
        sum_labels(scores, b, n, n + 1, arcs)
        for d in range(1, n + 1):
            for h in range(n + 1):
                was[n, d, h] = arcs[d - 1, h]
            was[n, d, d], was[n, d, size] = -np.inf, -np.inf
            if single_root:
                was[n, d, size], was[n, d, 0] = was[n, d, 0], -np.inf
        value[b], bought = 0.0, 0
        for v in range(n, 0, -1):
            w, then = was[v], was[v - 1]
            mass = w[v, 0]
            for h in range(1, v):
                mass = log_add(mass, w[v, h])
            forced[v] = mass.real == -np.inf
            if forced[v]:
                mass, bought = w[v, size], bought + 1
            if mass.real == -np.inf or bought > 1:
                value[b] = -np.inf
                break
            value[b] += mass
            for h in range(v):
                share[v, h] = w[v, h] - mass
            share[v, size] = w[v, size] - mass
            if forced[v]:
                share[v, 0] = 0.0
                share[v, size] = -np.inf
            for d in range(1, v):
                for h in range(v):
                    then[d, h] = log_add(w[d, h], w[d, v] + share[v, h])
                then[d, d] = -np.inf
                then[d, size] = log_add(w[d, size], w[d, v] + share[v, size])
        if gradient.shape[0] == 0 or value[b].real == -np.inf:
            continue
        for v in range(1, n + 1):
            w, then = was[v], was[v - 1]
            for h in range(size + 1):
                flow[v, h] = 0.0
            through = flow[v, 0]
            for d in range(1, v):
                flow[d, v] = 0.0
                for i in range(v + 1):
                    h = i if i < v else size
                    if flow[d, h].real > 0.0 and then[d, h].real > -np.inf:
                        part = flow[d, h] * exponential(w[d, v] + share[v, h] - then[d, h])
                        flow[d, h] *= exponential(w[d, h] - then[d, h])
                        flow[d, v] += part
                        flow[v, h] += part
                through += flow[d, v]
            for i in range(v + 1):
                h = i if i < v else size
                if forced[v]:
                    flow[v, h] = through * 0.0 + (1.0 if h == size else 0.0)
                elif h < size:
                    flow[v, h] += exponential(share[v, h]) * (1.0 - through)
        for d in range(1, n + 1):
            for h in range(n + 1):
                flow[d - 1, h] = flow[d, size] if single_root and h == 0 else flow[d, h]
            flow[d - 1, d] = 0.0
        share_labels(scores, b, n, n + 1, arcs, flow, gradient)
