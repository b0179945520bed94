"""No examples and no positions: every operation gives an empty result of the right shape, or says what it wants."""

from collections.abc import Callable

import pytest
import torch

import structloss as sl
from structloss import Structure

EDIT, HAMMING = sl.EditDistance(cap=2), sl.Hamming()
MACHINES = [EDIT, sl.SmithWaterman(cap=2), sl.NGram(2), 0.5 * EDIT + sl.NGram(2)]


def scores(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, requires_grad=True)


def graph(batch: int, positions: int) -> Structure:
    g = sl.FactorGraphBuilder()
    g.variables(scores(batch, positions, 2))
    return g.build()


STRUCTURES: dict[str, tuple[Callable[[int, int], Structure], list[sl.Loss]]] = {
    "chain": (lambda B, T: sl.Chain(scores(B, T, 2)), [*MACHINES, HAMMING]),
    "crf": (lambda B, T: sl.Chain.from_emissions(scores(B, T, 2), torch.zeros(2, 2)), [*MACHINES, HAMMING]),
    "emits": (lambda B, T: sl.Chain(scores(B, T, 2), emits=[[], [0, 1]]), MACHINES),
    "ctc": (lambda B, T: sl.CTC(scores(B, T, 2)), MACHINES),
    "lattice": (
        lambda B, T: sl.Lattice([[[t, t + 1, 1] for t in range(T)]] * B, scores(B * T), num_labels=2),
        MACHINES,
    ),
    "segmentation": (lambda B, T: sl.Segmentation(scores(B, 1, T)), [sl.BoundaryTolerance(1)]),
    "semi-Markov": (lambda B, T: sl.SemiMarkov(scores(B, T, 2)), [HAMMING]),
    "alignment": (lambda B, T: sl.Alignment(scores(B, T, T + 2), -1.0), [sl.PairErrors()]),
    "factor graph": (graph, [*MACHINES, HAMMING]),
}
SIZES = [(name, 0, 3) for name in STRUCTURES] + [(name, 2, 0) for name in STRUCTURES if name != "segmentation"]


@pytest.mark.parametrize("form", ["tensor", "array", "list"])
@pytest.mark.parametrize(("name", "batch", "positions"), SIZES)
def test_nothing_in_nothing_out(name: str, batch: int, positions: int, form: str, engine: str) -> None:
    make, losses = STRUCTURES[name]
    width = 1 if name == "segmentation" else positions
    tensor = torch.ones(batch, width, dtype=torch.int64)
    reference = {"tensor": tensor, "array": tensor.numpy(), "list": tensor.tolist()}[form]
    for loss in losses:
        for objective in (
            sl.NegativeLogLikelihood("none"), sl.SoftmaxMargin(loss, reduction="none"),
            sl.Hinge(loss, reduction="none"), sl.SlackHinge(loss, "none"), sl.DirectLoss(loss, reduction="none"),
            sl.Risk(loss, "none"), sl.RewardAugmented(loss, reduction="none"),
        ):  # fmt: skip
            value = objective(make(batch, positions), reference)
            assert value.shape == (batch,)
            assert not value.isnan().any()
            if value.requires_grad:
                value.sum().backward()
    s = make(batch, positions)
    for value in (s.log_partition(), s.max(), s.entropy(), s.kl(s)):
        assert value.shape == (batch,)
    assert len(s.decode()) == len(s.argmax()) == batch
    assert s.sample(3).shape[:2] == (3, batch)
    assert s.topk(2)[0].shape == (2, batch)
    s.marginals()


def test_references_without_a_single_label(engine: str) -> None:
    none = torch.zeros(2, 0, dtype=torch.int64)
    risks = {
        "ctc": sl.Risk(EDIT, "none")(sl.CTC(torch.zeros(2, 2, 2)), none),
        "emits": sl.Risk(EDIT, "none")(sl.Chain(torch.zeros(2, 2, 2), emits=[[], [0]]), none),
        "lattice": sl.Risk(EDIT, "none")(sl.Lattice([[[0, 1, 0]]] * 2, torch.zeros(2)), none),
    }
    for name, wanted in (("ctc", 0.75), ("emits", 1.0), ("lattice", 1.0)):
        assert risks[name].tolist() == pytest.approx([wanted, wanted]), name


@pytest.mark.parametrize("loss", [*MACHINES, HAMMING], ids=repr)
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (0, 2, 3), (4, 0, 3), (4, 2, 0)])
def test_losses_of_nothing(loss: sl.Loss, shape: tuple[int, ...]) -> None:
    y = torch.zeros(shape, dtype=torch.int64)
    found = loss(y, torch.zeros(shape[-2:], dtype=torch.int64))
    assert found.shape == shape[:-1]


@pytest.mark.parametrize(("batch", "positions"), [(2, 0), (0, 3), (0, 0)])
def test_a_layer_over_nothing_has_gradients_of_zero(batch: int, positions: int, engine: str) -> None:
    layer, emissions = sl.ChainLayer(3), torch.zeros(batch, positions, 3, requires_grad=True)
    labels = torch.zeros(batch, positions, dtype=torch.int64)
    for objective in (
        sl.NegativeLogLikelihood("sum"),
        sl.Risk(sl.Hamming(), "sum"),
        sl.SoftmaxMargin(sl.EditDistance(), 1.0, "sum"),
    ):
        layer.zero_grad()
        value = objective(layer(emissions), labels)
        assert value == 0
        if value.requires_grad:
            value.backward()
        assert all(p.grad is None or not p.grad.any() for p in layer.parameters())
