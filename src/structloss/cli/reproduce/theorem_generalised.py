"""What `structloss reproduce theorem` says of hidden states and of relaxed inference."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.generalised import Limit

Losses = Mapping[str, Sequence[tuple[float, float]]]


def trainings(found: Losses) -> "Grid":
    """The losses of each training, under both ways to infer."""
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.inconsistency import spread

    rows = []
    for name, losses in found.items():
        cells = [spread(column) for column in zip(*losses, strict=True)]
        rows.append([name, *(f"{m:.4f} ± {d:.4f}" if len(losses) > 1 else f"{m:.4f}" for m, d in cells)])
    caption = (
        "Three labels, every two of which want to differ: the expected loss, trained for relaxed or exact inference"
    )
    return Grid(caption, ["trained by", "used with relaxed inference", "used with exact inference"], rows)


def remarks(limits: "Mapping[str, Limit]", found: Losses) -> list[str]:
    """What was found, from the results."""
    from structloss.reproduce import theorem as reproduction

    told = []
    for name, one in limits.items():
        seen = reproduction.verdict(one.found, [estimate.integrated for estimate in one.found])
        side = [estimate for estimate in one.found if estimate.side == "toward"]
        far, near = ((estimate.integrated - one.true.gradient).norm().item() for estimate in side[-2:])
        told.append(
            f"{name}: {seen.inside} of {seen.count} components of the library's update lie within bands about the "
            f"update integrated at the same epsilon that hold together at {reproduction.LEVEL:.0%} (the farthest is "
            f"{seen.worst:.2f} standard errors away, {seen.quantile:.2f} are allowed). From epsilon = "
            f"{side[-2].epsilon:g} to {side[-1].epsilon:g} its distance from the gradient becomes {far / near:.2f} "
            f"times smaller. A central difference of the integrated loss differs from the gradient, "
            f"{one.true.gradient.norm():.3f} long, by {abs(one.true.slope):.0e}."
        )
    exact, relaxed = ([losses[0] for losses in rows] for name, rows in found.items() if name.startswith("direct loss"))
    better = sum(a < b for a, b in zip(relaxed, exact, strict=True))
    told.append(
        f"Used with relaxed inference, what was trained for it by (14) has a lower expected loss than what was trained "
        f"for exact inference from {better} of {len(exact)} seeds. That case was looked for: there exact inference "
        "profits from tables that tell labels to differ, and the relaxation then answers with halves."
    )
    return told


def as_json(limits: "Mapping[str, Limit]") -> dict[str, Any]:
    """The numbers."""
    return {
        name: {
            "gradient": one.true.gradient.tolist(),
            "estimates": [
                {"side": e.side, "epsilon": e.epsilon, "mean": e.mean.tolist(), "error": e.error.tolist(),
                 "integrated": e.integrated.tolist()}
                for e in one.found
            ],
        }
        for name, one in limits.items()
    }  # fmt: skip
