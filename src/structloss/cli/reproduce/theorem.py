"""`structloss reproduce theorem`: McAllester 2010, Theorem 1."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from structloss.cli import options, plots
from structloss.cli.prepare import said_plainly
from structloss.cli.reproduce import theorem_generalised as general
from structloss.cli.reproduce.gradient_limit import gradient_limit
from structloss.cli.reproduce.loss_against_hinge import loss_against_hinge
from structloss.cli.reproduce.show import show, start

if TYPE_CHECKING:
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.inconsistency import Outcome
    from structloss.reproduce.theorem import Estimate, Truth

PAPER = (
    "McAllester 2010, Theorem 1: the gradient of the expected loss is the limit of (1/epsilon) E[phi(x, y_w(x)) - "
    "phi(x, y_w(x, y, epsilon))] as epsilon goes to 0 (10), toward lower loss and away from higher; and section 1: the "
    "optimum of a convex relaxation such as the hinge is not the optimum of the loss. The paper proves the first and "
    "states the second; it gives no numbers for either."
)
LOWEST = "descent on the integrated loss"
DRAWN = 5  # components


def theorem(
    out: Annotated[Path, typer.Option(help="Folder for tables, JSON and plots.")] = Path("out/theorem"),
    seeds: Annotated[int, typer.Option(min=1, help="How many trainings of each kind, from --seed on.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer examples, coarser integrals: half a minute.")] = False,
    seed: options.Seed = 0,
) -> None:
    """McAllester 2010, Theorem 1: the update of direct loss becomes the gradient of the expected loss.

    The gradient is integrated numerically; the update is that of `DirectLoss` on a `Chain`, averaged over many random
    examples. Then the hinge and direct loss are trained where the hinge has its minimum elsewhere. The same is shown
    for hidden states and for relaxed inference, where training for it beats training for the exact one. Some minutes.

    Example: `structloss reproduce theorem --quick --out out/quick`
    """
    with said_plainly():
        plots.require_matplotlib()
        from structloss.reproduce import generalised, inconsistency
        from structloss.reproduce import theorem as reproduction
        from structloss.reproduce.finding import Finding

        say, begin = start(out), time.perf_counter()

        batches, size, step = (100, 1000, 0.05) if quick else (400, 10_000, 0.01)
        epsilons = reproduction.EPSILONS[: -1 if quick else None]
        mixture, w = reproduction.noisy_world()
        names = reproduction.weight_names(mixture)
        true = reproduction.truth(mixture, w, step)
        say(f"expected loss {true.loss:.4f}, its gradient {true.gradient.norm():.4f} long")
        found = reproduction.estimates(mixture, w, batches, size, 0.05, seed, say, epsilons)

        far = inconsistency.far_world()
        kinds = inconsistency.objectives(far)
        steps, numbers = (200 if quick else 2000), range(seed, seed + (1 if quick else seeds))
        outcomes: dict[str, Outcome] = {}
        for name, objective in kinds.items():
            trained = [inconsistency.trained(far, objective, steps, number) for number in numbers]
            outcomes[name] = inconsistency.outcome(far, trained, 0.2 if quick else 0.1)
            say(f"{name}: expected loss {inconsistency.spread(outcomes[name].losses)[0]:.4f}")
        best = inconsistency.descended(far, trained[0], 40 if quick else 200, 0.1)
        outcomes[LOWEST] = inconsistency.outcome(far, [best], 0.2 if quick else 0.1)

        limits = generalised.limits(*((10, 400) if quick else (40, 1000)), 0.02, seed, say)
        apart = generalised.trainings(steps, numbers, 0.2 if quick else 0.1)

        given = {f"--seeds {seeds}": seeds != 5, f"--seed {seed}": seed != 0, "--quick": quick}
        finding = Finding(
            name="theorem",
            title="Direct loss follows the gradient of the expected loss",
            paper=PAPER,
            grids=[
                _distances(found, true, f"{batches * size} examples"),
                _components(found, true, names),
                _trainings(outcomes),
                *(_distances(one.found, one.true, name) for name, one in limits.items()),
                general.trainings(apart),
            ],
            remarks=_remarks(found, true, outcomes) + general.remarks(limits, apart),
            command=" ".join(["structloss reproduce theorem", *(text for text, wanted in given.items() if wanted)]),
            seconds=time.perf_counter() - begin,
            pictures={
                "gradient.png": "The largest components of the gradient, and the library's update as epsilon shrinks. "
                "Points are measured, with bands of 95 % each; lines are integrated. Last: the distance of the whole "
                "update from the gradient.",
                "trainings.png": "Every point is one training, by what the hinge counts and by what is wanted.",
            },
        )
        data = {
            "seed": seed, "examples": batches * size, "weights": dict(zip(names, w.tolist(), strict=True)),
            "truth": {**asdict(true), "gradient": true.gradient.tolist()},
            "estimates": [
                {"side": e.side, "epsilon": e.epsilon, "mean": e.mean.tolist(), "error": e.error.tolist(),
                 "integrated": e.integrated.tolist()}
                for e in found
            ],
            "trainings": {name: asdict(one) for name, one in outcomes.items()},
            "generalised": general.as_json(limits), "trained for relaxed and exact inference": apart,
        }  # fmt: skip
        points = {name: (one.hinges, one.losses) for name, one in outcomes.items() if name != LOWEST}
        pictures = {
            "gradient.png": _limit(found, true, names),
            "trainings.png": loss_against_hinge(points, outcomes[LOWEST].losses[0]),
        }
        show(finding, out, data, pictures)


def _by_side(found: "Sequence[Estimate]") -> "dict[str, list[Estimate]]":
    sides: dict[str, list[Estimate]] = {}
    for one in found:
        sides.setdefault(one.side, []).append(one)
    return sides


def _distances(found: "Sequence[Estimate]", true: "Truth", of: str) -> "Grid":
    from structloss.reproduce.finding import Grid

    rows = []
    for toward, away in zip(*_by_side(found).values(), strict=True):
        cells = [f"{toward.epsilon:g}"]
        for one in (toward, away):
            cells += [f"{(one.mean - true.gradient).norm():.4f}", f"{(one.integrated - true.gradient).norm():.4f}"]
            cells += [f"{one.error.norm():.4f}"]
        rows.append(cells)
    columns = ["epsilon", "toward", "integrated", "noise", "away", "integrated", "noise"]
    caption = f"Distance of the update from the gradient, {true.gradient.norm():.4f} long ({of})"
    return Grid(caption, columns, rows)


def _components(found: "Sequence[Estimate]", true: "Truth", names: Sequence[str]) -> "Grid":
    from structloss.reproduce.finding import Grid

    epsilon = min(one.epsilon for one in found)
    least = [one for one in found if one.epsilon == epsilon]
    rows = [
        [name, f"{true.gradient[i]:.4f}", *(f"{one.mean[i]:.4f} ± {1.96 * one.error[i]:.4f}" for one in least)]
        for i, name in enumerate(names)
    ]
    caption = f"Each component at epsilon = {epsilon:g}, with its own band of 95 %"
    return Grid(caption, ["weight", "gradient", *(one.side for one in least)], rows)


def _trainings(outcomes: "dict[str, Outcome]") -> "Grid":
    from structloss.reproduce.finding import Grid
    from structloss.reproduce.inconsistency import spread

    rows = []
    for name, one in outcomes.items():
        cells = [spread(values) for values in (one.losses, one.hinges)]
        rows.append([name, *(f"{m:.4f} ± {d:.4f}" if len(one.losses) > 1 else f"{m:.4f}" for m, d in cells)])
    count = max(len(one.losses) for one in outcomes.values())
    caption = f"Some inputs far on the wrong side: what trainings reach (seeds: {count})"
    return Grid(caption, ["trained by", "expected loss (2)", "expected hinge (5)"], rows)


def _remarks(found: "Sequence[Estimate]", true: "Truth", outcomes: "dict[str, Outcome]") -> list[str]:
    """What was found, from the results."""
    from structloss.reproduce import theorem as reproduction

    judged = reproduction.smallest(found)
    limit = reproduction.verdict(judged, [true.gradient] * len(judged))
    every = reproduction.verdict(found, [one.integrated for one in found])
    epsilons = sorted({one.epsilon for one in judged})
    remarks = [
        f"At the smallest epsilons ({', '.join(f'{e:g}' for e in epsilons)}), both sides, {limit.inside} of "
        f"{limit.count} measured components lie within their band about the gradient. The bands hold all together at "
        f"{reproduction.LEVEL:.0%} (Bonferroni: {limit.quantile:.2f} standard errors each); the farthest is "
        f"{limit.worst:.2f} away.",
        f"Against the update integrated at the same epsilon, {every.inside} of {every.count} components at all "
        f"epsilons lie within bands that hold together at {reproduction.LEVEL:.0%} ({every.quantile:.2f} standard "
        f"errors; the farthest is {every.worst:.2f} away).",
    ]
    shrinks = []
    for side, rows in _by_side(found).items():
        near, far = sorted(rows, key=lambda one: one.epsilon)[:2]
        ratio = (far.integrated - true.gradient).norm() / (near.integrated - true.gradient).norm()
        noise = near.error.norm() / far.error.norm()
        shrinks.append(f"{side} it is {ratio:.2f} times smaller without noise, and the noise {noise:.2f} times larger")
    remarks.append(
        f"From epsilon = {far.epsilon:g} to {near.epsilon:g} the distance changes: {'; '.join(shrinks)}. One example's "
        "update is 0 or large, and rarer the smaller epsilon is."
    )
    remarks.append(
        f"The gradient is an integral over the boundaries between outputs. With nodes twice as far apart it changes by "
        f"{true.refinement:.0e} at most; a central difference of the integrated loss along it differs by "
        f"{abs(true.slope):.0e}; along w, where the loss cannot change, it is {abs(true.radial):.0e}."
    )
    hinge, direct = outcomes["hinge"], outcomes["direct loss, toward"]
    lower = max(direct.losses) < min(hinge.losses)
    cheaper = max(hinge.hinges) < min(direct.hinges)
    first = "reaches" if lower else "does not reach"
    second = "has the lower hinge from every seed" if cheaper else "does not have the lower hinge from every seed"
    remarks.append(
        f"Direct loss, toward, {first} a lower expected loss than the hinge from every seed; the hinge {second}. The "
        "hinge pays for how far an input is on the wrong side, the loss only for how many are: their minima are apart."
    )
    return remarks


def _limit(found: "Sequence[Estimate]", true: "Truth", names: Sequence[str]) -> bytes:
    sides = _by_side(found)
    chosen = true.gradient.abs().argsort(descending=True)[:DRAWN].tolist()
    components = {}
    for i in chosen:
        rows = {
            side: [
                (one.epsilon, one.mean[i].item(), 1.96 * one.error[i].item(), one.integrated[i].item()) for one in ones
            ]
            for side, ones in sides.items()
        }
        components[f"component {names[i]}"] = (true.gradient[i].item(), rows)
    distances = {
        side: [
            (
                one.epsilon,
                (one.mean - true.gradient).norm().item(),
                one.error.norm().item(),
                (one.integrated - true.gradient).norm().item(),
            )
            for one in ones
        ]
        for side, ones in sides.items()
    }
    return gradient_limit(components, distances, "95 %")
