"""What compares the chunks of strings with a reference's: see `automata.chunks`."""

import numpy as np

from structloss.kernels.compile import kernel
from structloss.kernels.types import Ints


@kernel
def track(
    kind: Ints, begins: Ints, closes: Ints, reference: Ints, num_labels: int, every: bool
) -> tuple[Ints, Ints, Ints, Ints, Ints, Ints, int]:
    """The fields of a `Tracker`, from the tags of its labels and the reference (n,)."""
    n, types, chunks, opened = len(reference), 0, 0, -1
    for y in range(len(kind)):
        types = max(types, kind[y] + 1)
    # Of each row: the type of the chunk that begins there, that of the label before it, and whether that one was last.
    starting, before = np.full(n + 2, -1), np.full(n + 2, -1)
    ended, known = np.zeros(n + 2, np.bool_), np.zeros(types, np.bool_)
    for t in range(n):
        label = reference[t]
        own = kind[label] if label >= 0 else -1
        before[t + 1] = own
        if own >= 0:
            known[own] = True
            if begins[label] or own != opened:
                starting[t] = own
                chunks += 1
        opened = -1 if own < 0 or closes[label] else own
    for r in range(1, n + 1):
        ended[r] = before[r] >= 0 and (before[r + 1] < 0 or starting[r] >= 0)

    # Labels that act alike are one class: of the same type, unless it does not matter, beginning and closing alike.
    code, used = np.zeros(num_labels, np.int64), np.zeros(4 * types + 4, np.bool_)
    for y in range(num_labels):
        if kind[y] >= 0 and (every or known[kind[y]]):
            code[y] = 4 * (kind[y] + 1) + 2 * begins[y] + closes[y]
        used[code[y]] = True
    codes = used.nonzero()[0]
    class_of, C, S = np.searchsorted(codes, code), len(codes), types + 2 if every else 3

    there, ends = np.zeros((n + 2, S), np.bool_), np.zeros((n + 2, S), np.bool_)
    target, right = np.zeros((n + 2, S, C), np.int64), np.zeros((n + 2, S, C), np.int64)
    made = np.zeros((n + 2, S, C), np.bool_)
    for r in range(n + 2):
        hidden, following = r >= n or reference[r] < 0, starting[r + 1] if r <= n else -1
        for s in range(S):
            ours = s == S - 1
            opened = -1 if s == 0 else before[r] if ours else s - 1 if every else starting[r]
            there[r, s] = s == 0 or (r > 0 and opened >= 0)
            ends[r, s] = ours and ended[r]
            for c in range(C):
                read, closing = -1 if hidden else codes[c] // 4 - 1, codes[c] % 2 == 1
                goes_on = read >= 0 and codes[c] // 2 % 2 == 0 and read == opened
                made[r, s, c] = read >= 0 and not goes_on
                agrees = (made[r, s, c] and read == starting[r]) or (ours and not ended[r] and goes_on)
                right[r, s, c] = ends[r, s] and not goes_on
                if agrees and closing and r <= n and ended[r + 1]:
                    right[r, s, c] += 1
                if agrees and not closing:
                    target[r, s, c] = S - 1
                elif read >= 0 and not closing:
                    target[r, s, c] = read + 1 if every else read == following
    return class_of, there, target, right, made, ends, chunks
