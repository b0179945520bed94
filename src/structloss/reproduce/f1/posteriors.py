"""Minimum Bayes risk under chunk errors, exactly: from the probability of every chunk to the best set of them."""

import numpy as np
from numpy.typing import NDArray

from structloss.losses.schemes import split_label
from structloss.structures import Chain

LONGEST = 12  # tokens of a chunk that is looked at

Table = NDArray[np.float64]


def chunk_posteriors(chain: Chain, labels: tuple[str, ...]) -> Table:
    """P(there is a chunk of type k from t to t + n), (B, T, LONGEST, types), of a chain of order 2 over IOB labels.

    The distribution is a Markov chain: a chunk begins at t with some probability, and goes on with that of I after it.
    Cost: that of the marginals.
    """
    arcs = chain.marginals().double().numpy()  # (B, T, K, K)
    batch, length = arcs.shape[:2]
    nodes = arcs.sum(2)
    kinds = sorted({kind for prefix, kind in map(split_label, labels) if prefix != "O"})
    result = np.zeros((batch, length, LONGEST, len(kinds)))
    for k, kind in enumerate(kinds):
        begin, inside = (labels.index(f"{p}-{kind}") if f"{p}-{kind}" in labels else -1 for p in "BI")
        own = [x for x in (begin, inside) if x >= 0]
        starts = {begin: nodes[:, :, begin]} if begin >= 0 else {}
        if inside >= 0:  # I begins a chunk where none of its type is open
            starts[inside] = nodes[:, :, inside] - arcs[:, :, own, inside].sum(2)
            starts[inside][:, 0] = nodes[:, 0, inside]
        # Of a chunk that began at t and has reached t + n: the probability, by its last label at first.
        reached = np.sum(list(starts.values()), axis=0)
        for n in range(LONGEST):
            further = np.zeros_like(reached)
            if inside >= 0 and n + 1 < length:
                now = {inside: reached} if n else starts
                for last, p in now.items():
                    there = nodes[:, n : length - 1, last]
                    step = np.divide(arcs[:, n + 1 :, last, inside], there, out=np.zeros_like(there), where=there > 0)
                    further[:, : length - n - 1] += p[:, : length - n - 1] * step
            result[:, :, n, k] = np.maximum(reached - further, 0)
            reached = further
    return result


def best_chunks(
    posteriors: Table, lengths: NDArray[np.int64], threshold: float, labels: tuple[str, ...]
) -> list[NDArray[np.int64]]:
    """The labels of least expected chunk errors, where a false alarm costs `threshold` and a miss 1 - threshold.

    A set of chunks that do not overlap gains P - threshold with each: the best set is a path from left to right.
    """
    batch, length, longest, _ = posteriors.shape
    kinds = sorted({kind for prefix, kind in map(split_label, labels) if prefix != "O"})
    best_kind, gain = posteriors.argmax(3), posteriors.max(3) - threshold  # (B, T, n)
    total = np.zeros((batch, length + 1))
    step = np.zeros((batch, length + 1), np.int64)  # the size of the chunk that ends here; 0: none does
    for t in range(1, length + 1):
        total[:, t] = total[:, t - 1]
        for size in range(1, min(longest, t) + 1):
            value = total[:, t - size] + gain[:, t - size, size - 1]
            better = value > total[:, t]
            total[better, t], step[better, t] = value[better], size
    numbers = {label: i for i, label in enumerate(labels)}
    found = []
    for b, end in enumerate(lengths.tolist()):
        y, t = np.full(end, numbers["O"]), end
        while t > 0:
            size = int(step[b, t])
            if size:
                kind = kinds[best_kind[b, t - size, size - 1]]
                y[t - size : t] = numbers.get(f"I-{kind}", 0)
                y[t - size] = numbers.get(f"B-{kind}", numbers.get(f"I-{kind}", 0))
            t -= max(size, 1)
        found.append(y)
    return found
