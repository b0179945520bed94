"""structloss reproduce theorem: integrals against closed forms, samples and the library, and the command."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("matplotlib", reason="matplotlib (the extra plot) is not installed")

import structloss as sl
from structloss.cli import app
from structloss.reproduce import generalised, inconsistency, theorem
from structloss.reproduce.boundary import loss_gradient, update
from structloss.reproduce.mixture import Mixture


def separate(w: torch.Tensor) -> tuple[Mixture, torch.Tensor]:
    """Two labels without transitions, and their expected Hamming loss in closed form.

    Position t is wrong with probability Phi(-d / |W_r - W_other|), d how far the mean is on the right side.
    """
    generator = torch.Generator().manual_seed(5)
    labels = torch.cartesian_prod(torch.arange(2), torch.arange(2))
    means = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    probabilities = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    mixture = Mixture(probabilities, labels, means, 1 - torch.eye(2, dtype=torch.float64))
    W, _ = mixture.split(w)
    normal = W[0] - W[1]
    total = torch.zeros((), dtype=torch.float64)
    for p, label, mean in zip(probabilities, labels, means, strict=True):
        for t in (0, 1):
            ahead = (normal @ mean[t : t + 2]) * (1 if label[t] == 0 else -1)
            total = total + p * torch.special.ndtr(-ahead / normal.norm())
    return mixture, total


def test_the_expected_loss_and_its_gradient_agree_with_a_closed_form() -> None:
    w = torch.tensor([0.8, 0.3, -0.4, 0.6, 0, 0, 0, 0], dtype=torch.float64, requires_grad=True)
    mixture, total = separate(w)
    (wanted,) = torch.autograd.grad(total, w)
    assert mixture.expected_loss(w.detach(), 0.05) == pytest.approx(total.item(), abs=1e-4)
    found = loss_gradient(mixture, w, 0.01)
    # Transitions are constants here, so the closed form knows only the gradient in W.
    assert torch.allclose(found[:4], wanted[:4], atol=1e-5)


def test_integrals_agree_with_samples() -> None:
    mixture, w = theorem.noisy_world()
    x, y = mixture.sample(30_000, torch.Generator().manual_seed(0))
    chain = mixture.structure(x, w)
    losses = mixture.loss(chain.argmax(), y)
    hinges = sl.Hinge(mixture.loss, reduction="none")(chain, y)
    for values, integral in ((losses, mixture.expected_loss(w, 0.2)), (hinges, mixture.expected_hinge(w, 0.4))):
        error = values.std().item() / math.sqrt(len(values))
        assert values.mean().item() == pytest.approx(integral, abs=4 * error + 1e-3)


def test_the_gradient_is_the_slope_of_the_expected_loss() -> None:
    mixture, w = theorem.noisy_world()
    found = theorem.truth(mixture, w, 0.03)
    assert found.refinement < 1e-3
    assert abs(found.slope) < 5e-3
    assert abs(found.radial) < 1e-9


def test_the_integrated_update_approaches_the_gradient_from_both_sides() -> None:
    mixture, w = theorem.noisy_world()
    gradient = loss_gradient(mixture, w, 0.05)
    for sign in (1, -1):
        far, near = ((update(mixture, w, sign * epsilon, 0.05) - gradient).norm() for epsilon in (0.1, 0.05))
        assert 1.8 < far / near < 2.2


@pytest.mark.parametrize("world", [generalised.latent_world, generalised.frustrated_world])
def test_the_update_approaches_the_gradient_for_hidden_states_and_relaxations(
    world: Callable[[], tuple[Mixture, torch.Tensor]],
) -> None:
    mixture, w = world()
    gradient = loss_gradient(mixture, w, 0.1)
    for sign in (1, -1):
        far, near = ((update(mixture, w, sign * epsilon, 0.1) - gradient).norm() for epsilon in (0.2, 0.1))
        assert 1.7 < far / near < 2.3
    (found, *_) = theorem.estimates(mixture, w, 10, 200, 0.1, 0, lambda _: None, (0.4,))
    assert theorem.verdict([found], [found.integrated]).inside == len(w)


def test_a_best_path_of_hidden_states_loses_what_it_writes() -> None:
    mixture, w = generalised.latent_world()
    x, y = mixture.sample(20_000, torch.Generator().manual_seed(0))
    chain = mixture.structure(x, w)
    losses = mixture.loss(torch.tensor(chain.decode()), y)
    error = losses.std().item() / math.sqrt(len(losses))
    assert losses.mean().item() == pytest.approx(mixture.expected_loss(w, 0.2), abs=4 * error + 1e-3)
    with pytest.raises(NotImplementedError, match="expected_hinge"):
        mixture.expected_hinge(w, 0.5)


def test_vertices_of_the_relaxation_are_those_of_the_library() -> None:
    """Scores and losses of the best vertex against the linear programme's own, halves among them."""
    mixture, w = generalised.frustrated_world()
    x, y = mixture.sample(3000, torch.Generator().manual_seed(1))
    graph = mixture.structure(x, w)
    vectors, constants = mixture.scores(w)
    best, vertex = (x @ vectors.T + constants).max(1)
    assert torch.allclose(best, graph.max(), atol=1e-5)
    assert 0.03 < (vertex == 8).double().mean() < 0.3
    assert torch.equal(vertex == 8, ~graph.certificate().integral)
    labels = torch.cartesian_prod(*[torch.arange(2)] * 3)[vertex.clamp(max=7)]
    wanted = torch.where(vertex == 8, 1.5, mixture.loss(labels, y).double())
    assert torch.allclose(graph.relaxed_loss(mixture.loss, y), wanted, atol=1e-3)


def test_training_for_relaxed_inference_is_better_for_it() -> None:
    (relaxed, start), (exact, _) = generalised.frustrated_world(), generalised.frustrated_world(relaxed=False)
    own, other = (inconsistency.descended(world, start, 25, 0.3) for world in (relaxed, exact))
    assert relaxed.expected_loss(own, 0.2) < relaxed.expected_loss(other, 0.2) - 0.01
    assert exact.expected_loss(own, 0.2) > exact.expected_loss(other, 0.2)


def test_weights_whose_outputs_are_parallel_are_refused() -> None:
    mixture, w = theorem.noisy_world()
    with pytest.raises(ValueError, match=r"w: outputs 0 and 1 have scores that differ by a constant"):
        loss_gradient(mixture, torch.zeros_like(w), 0.1)


def test_bands_hold_together() -> None:
    """Forty components up to three errors away are inside; one that is ten away is not."""
    near, zero, error = torch.linspace(-3, 3, 40), torch.zeros(40), torch.ones(40)
    same = theorem.Estimate("toward", 0.1, near, error, zero)
    shifted = theorem.Estimate("toward", 0.1, near + 10 * (torch.arange(40) == 20), error, zero)
    assert theorem.verdict([same], [zero]).inside == 40
    found = theorem.verdict([shifted], [zero])
    assert (found.inside, found.count) == (39, 40)
    assert found.quantile == pytest.approx(3.2272, abs=1e-3)  # 1 - 0.05 / 80


@pytest.mark.slow
def test_the_quick_command(tmp_path: Path) -> None:
    arguments = ["reproduce", "theorem", "--quick", "--seed", "3", "--out", str(tmp_path / "a")]
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "90 of 90 measured components lie within their band" in result.output.replace("\n", " ")
    finding = json.loads((tmp_path / "a" / "finding.json").read_text())
    assert finding["command"] == "structloss reproduce theorem --seed 3 --quick"
    for name in finding["pictures"]:
        assert (tmp_path / "a" / name).read_bytes().startswith(b"\x89PNG")
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    assert set(results["generalised"]) == {"hidden states, (15)", generalised.RELAXED}
    trainings = results["trainings"]
    assert max(trainings["direct loss, toward"]["losses"]) < min(trainings["hinge"]["losses"])


def test_descent_on_the_integrated_loss_lowers_it() -> None:
    mixture = inconsistency.far_world()
    start = torch.tensor([-0.3, -0.1, 0.2, 0.3, 0.1, 0.0, 0.2, -0.1], dtype=torch.float64)
    end = inconsistency.descended(mixture, start, 20, 0.1)
    assert mixture.expected_loss(end, 0.2) < mixture.expected_loss(start, 0.2) - 1e-3


def test_the_same_seed_gives_the_same_numbers() -> None:
    mixture, w = theorem.noisy_world()
    runs = [theorem.estimates(mixture, w, 3, 50, 0.2, 7, lambda _: None, (0.5,)) for _ in range(2)]
    assert all(torch.equal(a.mean, b.mean) for a, b in zip(*runs, strict=True))
    far = inconsistency.far_world()
    assert torch.equal(*(inconsistency.trained(far, sl.Hinge(far.loss), 5, 2) for _ in range(2)))
