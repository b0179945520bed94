"""What arguments of structures must be."""

import math

import torch
from torch import Tensor

from structloss.losses import LocalLoss, Loss

_SUMS = {  # one over each kind of places
    "labels": "Hamming()", "boundaries": "BoundaryTolerance(1)", "pairs": "PairErrors()",
    "brackets": "BracketErrors()",
}  # fmt: skip


def check_floating(x: Tensor, name: str) -> None:
    """Raise unless x is a tensor of floating-point numbers."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: got {type(x).__name__}, but wanted a tensor")
    if not x.is_floating_point():
        raise TypeError(f"{name}: got {x.dtype}, but wanted floating-point scores")


def at_least_float32(x: Tensor) -> Tensor:
    """bfloat16 and float16 in float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def unfit(scores: Tensor) -> Tensor:
    """Which scores are NaN, +inf, or so large that a sum of a million of them is no number."""
    return ~(scores.detach() <= _largest(scores.dtype))


def objection(score: Tensor, place: str = "") -> str:
    """What is wrong with an unfit score: what it is, where, and what was wanted."""
    if score.isfinite():
        return f"{float(score):g}{place}, but wanted numbers of at most {_largest(score.dtype):.0e}, or -inf"
    return f"{'NaN' if score.isnan() else '+inf'}{place}, but wanted numbers or -inf"


def _largest(dtype: torch.dtype) -> float:
    return torch.finfo(dtype if dtype == torch.float64 else torch.float32).max * 2.0**-20


def check_scale(scale: float) -> None:
    """Raise unless what a loss is multiplied by is a finite number."""
    if not math.isfinite(scale):
        raise ValueError(f"scale: got {scale}, but wanted a finite number")


def check_count(value: int, name: str) -> None:
    """Raise unless it is a whole number of at least 1."""
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: got {value!r}, but wanted a whole number of at least 1")


def as_outputs(y: Tensor, name: str, device: torch.device) -> Tensor:
    """Outputs as int64 on a device."""
    if not isinstance(y, Tensor) or y.is_floating_point() or y.dtype == torch.bool:
        got = str(y.dtype) if isinstance(y, Tensor) else type(y).__name__
        raise TypeError(f"{name}: got {got}, but wanted a tensor of integers: outputs as this structure gives them")
    return y.to(device=device, dtype=torch.int64)


def check_shape(y: Tensor, wanted: tuple[int, ...], name: str) -> None:
    """Raise unless outputs (n, B, ...) have the shape (B, ...)."""
    if tuple(y.shape[1:]) != wanted:
        sizes = ", ".join(map(str, wanted))
        raise ValueError(f"{name}: got shape {tuple(y.shape[1:])}, but wanted ({sizes}) or (n, {sizes})")


def check_over(loss: Loss, places: str, structure: object, written: str = "") -> LocalLoss:
    """The loss; raise unless it is a sum over the places of a structure, whose outputs are not what it compares."""
    if not isinstance(loss, LocalLoss):
        written = written or f"a {type(structure).__name__} writes none"
        raise TypeError(
            f"loss: got {loss!r}, which reads strings, but {written}; wanted a sum over {places} such as "
            f"{_SUMS[places]}"
        )
    if loss.over != places:
        raise TypeError(
            f"loss: got {loss!r}, a sum over {loss.over}, but wanted a sum over {places}, which a "
            f"{type(structure).__name__} has"
        )
    return loss


def check_tolerance(tolerance: float) -> float:
    """The tolerance, or an error."""
    if not (isinstance(tolerance, int | float) and 0 <= tolerance < math.inf):
        raise ValueError(f"tolerance: got {tolerance!r}, but wanted a finite number of at least 0")
    return float(tolerance)
