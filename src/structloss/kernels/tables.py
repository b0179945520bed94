"""Tables: rows of numbers told apart by hashing, and arrays that grow."""

import numpy as np

from structloss.kernels.compile import exact_helper, exact_kernel
from structloss.kernels.types import Array, Ints


@exact_helper
def slot_of(keys: Ints, begin: Ints, width: int, row: int, table: Ints, first: int) -> int:
    """Where in the table a row that equals this one stands, or, if none does, where it would.

    Row i is keys[width * begin[i] : width * begin[i + 1]]. The table, whose size is a power of two and at least twice
    the rows in it, holds numbers of rows; what is below `first` there is free. Cost: the length of the row.
    """
    start, count = width * begin[row], width * (begin[row + 1] - begin[row])
    code = np.uint64(1469598103934665603)
    for i in range(count):
        key = np.uint64(keys[start + i])
        code = (code ^ key ^ (key >> np.uint64(32))) * np.uint64(1099511628211)  # bits of a float are the upper ones
        code ^= code >> np.uint64(29)
    mask = np.uint64(table.shape[0] - 1)
    slot, searching = code & mask, True
    while searching:
        other, searching = table[slot], False
        if other >= first:
            shift, i = width * begin[other], 0
            searching = width * begin[other + 1] - shift != count
            while i < count and not searching:
                searching = keys[shift + i] != keys[start + i]
                i += 1
        if searching:
            slot = (slot + np.uint64(1)) & mask
    return int(slot)


@exact_kernel
def rehash(keys: Ints, begin: Ints, width: int, first: int, last: int, table: Ints) -> None:
    """Enter the rows from `first` to `last`, all different, into an empty table."""
    for row in range(first, last):
        table[slot_of(keys, begin, width, row, table, first)] = row


@exact_kernel
def distinct_rows(keys: Ints, begin: Ints, width: int, table: Ints, first: Ints, which: Ints) -> int:
    """first[:count] = where each of the different rows stands first; which[i] = which of them row i is."""
    count = 0
    for row in range(which.shape[0]):
        slot = slot_of(keys, begin, width, row, table, 0)
        if table[slot] < 0:
            table[slot], first[count], which[row] = row, row, count
            count += 1
        else:
            which[row] = which[table[slot]]
    return count


@exact_helper
def doubled(x: Array) -> Array:
    """x (n,) with as many zeros behind it."""
    out = np.zeros(2 * x.shape[0], x.dtype)
    for i in range(x.shape[0]):
        out[i] = x[i]
    return out


@exact_helper
def longer(x: Array, rows: int) -> Array:
    """x (n, m) with room for so many rows at least."""
    if rows <= x.shape[0]:
        return x
    out = np.zeros((max(rows, 2 * x.shape[0]), x.shape[1]), x.dtype)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j]
    return out
