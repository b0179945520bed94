"""A value that is approximate, and how far it can be off."""

from typing import NamedTuple

from torch import Tensor


class Certified(NamedTuple):
    """A value (B,) to within a tolerance, differentiable, and an upper bound of its error and of its gradient's.

    For each example |value - exact| <= error_bound, and so for every component of its gradient in the scores of frames,
    of positions (of a chain) or of arcs. Under `EditDistance(window=...)` it is one-sided: E[edit distance] <= value +
    error_bound, and nothing about the gradient. `active` is how many states a step were kept, (B,).
    """

    value: Tensor
    error_bound: Tensor
    active: Tensor
