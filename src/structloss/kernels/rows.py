"""The different rows of a matrix."""

import numpy as np

from structloss.kernels.compile import exact_kernel
from structloss.kernels.types import Ints


@exact_kernel
def distinct_rows(rows: Ints, first: Ints, which: Ints) -> int:
    """first[:count] = where each of the different rows (n, m) stands first; which[i] = which of them row i is.

    Cost n * m, in a hash table.
    """
    n, m = rows.shape
    room = 2
    while room < 2 * n:
        room *= 2
    table = np.full(room, -1, np.int64)
    count = 0
    for i in range(n):
        hashed = np.uint64(14695981039346656037)
        for j in range(m):
            hashed = (hashed ^ np.uint64(rows[i, j])) * np.uint64(1099511628211)
            hashed ^= hashed >> np.uint64(29)
        place = np.int64(hashed & np.uint64(room - 1))
        while True:
            known = table[place]
            if known < 0:
                table[place] = which[i] = count
                first[count] = i
                count += 1
                break
            same = True
            for j in range(m):
                if rows[first[known], j] != rows[i, j]:
                    same = False
                    break
            if same:
                which[i] = known
                break
            place = (place + 1) & (room - 1)
    return count
