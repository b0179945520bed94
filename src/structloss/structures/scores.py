"""One door for the scores of structures: of sizes that agree, numbers or -inf where they matter."""

from collections.abc import Callable

import torch
from torch import Tensor

from structloss.structures.checks import at_least_float32, check_floating, objection, unfit
from structloss.structures.derivatives import Linear, apply


def sizes_of(scores: dict[str, Tensor], axes: dict[str, str], empty: str) -> dict[str, int]:
    """The size of each axis: it is the same in all scores. Raise unless these are alike, and only some axes `empty`.

    The axes of a score are letters, of several ways to give it separated by a space: {"durations": "KD BKD"}.
    """
    (first, like), *_ = scores.items()
    sizes: dict[str, int] = {}
    for name, x in scores.items():
        check_floating(x, name)
        if x.device != like.device:
            raise ValueError(f"{name}: got device {x.device}, but {first} is on {like.device}")
        if x.dtype != like.dtype:
            raise TypeError(f"{name}: got {x.dtype}, but {first} is {like.dtype}")
        letters = next((own for own in axes[name].split() if len(own) == x.dim()), "")
        if not letters or any(size == 0 and axis not in empty for axis, size in zip(letters, x.shape, strict=True)):
            wanted = " or ".join(f"({', '.join(own)})" for own in axes[name].split())
            raise ValueError(
                f"{name}: got shape {tuple(x.shape)}, but wanted {wanted}, with none of them 0 but {', '.join(empty)}"
            )
        shape = tuple(sizes.setdefault(axis, size) for axis, size in zip(letters, x.shape, strict=True))
        if x.shape != shape:
            raise ValueError(f"{name}: got shape {tuple(x.shape)}, but wanted {shape}")
    return sizes


def as_scores(
    given: dict[str, Tensor], axes: dict[str, str], sizes: dict[str, int], within: dict[str, Tensor]
) -> dict[str, Tensor]:
    """All scores, 0 where they are not within, or not given; raise unless the rest are numbers or -inf."""
    zero, scores = at_least_float32(next(iter(given.values())).new_zeros(())), {}
    for name, letters in axes.items():
        scores[name] = zero.expand([sizes[axis] for axis in letters.split()[0]])
        if name in given:
            inside = within.get(name, torch.ones_like(zero, dtype=torch.bool))
            check_fit(given[name], inside, name)
            scores[name] = at_least_float32(given[name] if bool(inside.all()) else _masked(given[name], inside))
    return scores


def of_numbers(x: Tensor, within: Callable[[], Tensor], name: str, where: Callable[..., str]) -> Tensor:
    """The scores, 0 where they are not within, unless these are numbers anyway; `where` says a place in words."""
    if not unfit(x).any():
        return at_least_float32(x)
    inside = within()
    check_fit(x, inside, name, where)
    return at_least_float32(_masked(x, inside))


def check_fit(x: Tensor, within: Tensor, name: str, where: Callable[..., str] | None = None) -> None:
    """Raise unless what is within are numbers or -inf."""
    wrong = unfit(x) & within
    if wrong.any():
        place = tuple(wrong.nonzero()[0].tolist())
        whose = f"example {place[0]} has" if where or x.dim() > 2 else "got"
        raise ValueError(f"{name}: {whose} {objection(x[place], where(*place) if where else f' at {place}')}")


def _masked(x: Tensor, within: Tensor) -> Tensor:
    """x where it is within, else 0; unlike torch.where it can be differentiated again and again, as x itself can."""

    def mask(x: Tensor) -> Tensor:
        return torch.where(within, x, 0)

    return apply(Linear, x, mask, mask)
