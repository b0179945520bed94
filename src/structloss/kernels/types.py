"""What kernels call their arrays, and what they say of an example."""

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]  # of floating-point numbers
Ints = NDArray[Any]  # of integers: labels, offsets, flags

# What a kernel says of an example: DONE before it is run means that another kernel did it, UNSAFE afterwards that it is
# left to logarithms, since linear arithmetic might lose what counts.
DONE, OK, NOT_A_NUMBER, PLUS_INFINITY, UNSAFE = -1, 0, 1, 2, 4
LARGEST = 1e300  # of a score: sums of larger ones may be no numbers
