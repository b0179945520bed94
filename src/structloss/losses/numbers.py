"""What the numbers of a loss must be, checked when it is made."""

import math


def check_number(value: float, name: str, wanted: str = "a finite number") -> float:
    """A finite number, or a ValueError that says what was wanted."""
    if not math.isfinite(value):
        raise ValueError(f"{name}: got {value!r}, but wanted {wanted}")
    return float(value)


def check_at_least_zero(value: float, name: str) -> float:
    """A finite number of at least 0, or a ValueError."""
    if not value >= 0:
        raise ValueError(f"{name}: got {value!r}, but wanted a finite number of at least 0")
    return check_number(value, name, "a finite number of at least 0")


def check_cap(cap: float | None) -> float | None:
    """A finite number of at least 0, or None; otherwise a ValueError."""
    if cap is not None and not (cap >= 0 and math.isfinite(cap)):
        raise ValueError(f"cap: got {cap!r}, but wanted a finite number of at least 0, or None")
    return cap
