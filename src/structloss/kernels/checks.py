"""Scans of a caller's labels, for the one check at the door."""

from structloss.kernels.compile import kernel
from structloss.kernels.types import Ints

UNKNOWN = -100


@kernel
def first_bad_label(labels: Ints, lengths: Ints, num_labels: int, allow_unknown: bool) -> tuple[int, int]:
    """The (row, position) of the first label of (B, T) that is neither in range nor UNKNOWN, or (-1, -1)."""
    for b in range(labels.shape[0]):
        for t in range(lengths[b]):
            label = labels[b, t]
            if not (0 <= label < num_labels or (allow_unknown and label == UNKNOWN)):
                return b, t
    return -1, -1
