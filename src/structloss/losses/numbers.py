"""What the numbers and names of a loss must be, checked when it is made."""

import math
from collections.abc import Sequence


def check_number(value: float, name: str, wanted: str = "a finite number") -> float:
    """A finite number, or a ValueError that says what was wanted."""
    value = as_number(value, name, wanted)
    if not math.isfinite(value):
        raise ValueError(f"{name}: got {value!r}, but wanted {wanted}")
    return value


def as_number(value: float, name: str, wanted: str) -> float:
    """What is one number, as a float; a TypeError for a tensor of several, a text or None."""
    try:
        return float(value + 0)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name}: got {value!r:.60}, but wanted {wanted}") from None


def check_at_least_zero(value: float, name: str) -> float:
    """A finite number of at least 0, or a ValueError."""
    value = as_number(value, name, "a finite number of at least 0")
    if not value >= 0:
        raise ValueError(f"{name}: got {value!r}, but wanted a finite number of at least 0")
    return check_number(value, name, "a finite number of at least 0")


def check_cap(cap: float | None, name: str = "cap") -> float | None:
    """A finite number of at least 0, or None; otherwise a ValueError."""
    wanted = "a finite number of at least 0, or None"
    if cap is not None and not (as_number(cap, name, wanted) >= 0 and math.isfinite(cap)):
        raise ValueError(f"{name}: got {cap!r}, but wanted {wanted}")
    return cap


def check_names(labels: Sequence[str]) -> None:
    """The names of labels, all different, or an error."""
    if isinstance(labels, str) or not all(isinstance(label, str) for label in labels):
        raise TypeError(
            f"labels: got {labels!r:.60}, but wanted the names of the labels, such as ['O', 'B-PER', 'I-PER']"
        )
    if not len(labels):
        raise ValueError("labels: got no names, but wanted one for each label")
    for i, label in enumerate(labels):
        if label in labels[:i]:
            raise ValueError(f"labels: got {label!r} twice, but wanted names that differ")
