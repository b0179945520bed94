"""The lecture's exercise: multi-class and binary classifiers are the case of one position."""

import math

import pytest
import torch
import torch.nn.functional as F

import structloss as sl
from suite import close

B, K = 7, 5


@pytest.fixture
def scores() -> torch.Tensor:
    return torch.randn(B, K, dtype=torch.float64, requires_grad=True)


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.arange(B) % K


def same(found: torch.Tensor, wanted: torch.Tensor, scores: torch.Tensor) -> None:
    close(found.detach(), wanted.detach())
    close(torch.autograd.grad(found, scores)[0], torch.autograd.grad(wanted, scores)[0])


def test_nll_is_softmax_regression(scores: torch.Tensor, labels: torch.Tensor, engine: str) -> None:
    found = sl.NegativeLogLikelihood()(sl.Chain(scores[:, None]), labels[:, None])
    same(found, F.cross_entropy(scores, labels), scores)


def test_hinge_is_the_multiclass_svm(scores: torch.Tensor, labels: torch.Tensor, engine: str) -> None:
    """Crammer and Singer: max over wrong labels of 1 + s(y) - s(r), or 0."""
    found = sl.Hinge(sl.Hamming())(sl.Chain(scores[:, None]), labels[:, None])
    gold = scores.gather(1, labels[:, None])
    margins = 1 + scores - gold - F.one_hot(labels, K)
    same(found, margins.max(1).values.mean(), scores)


def test_slack_hinge_is_the_same_for_a_zero_one_loss(scores: torch.Tensor, labels: torch.Tensor, engine: str) -> None:
    chain = sl.Chain(scores[:, None])
    same(sl.SlackHinge(sl.Hamming())(chain, labels[:, None]), sl.Hinge(sl.Hamming())(chain, labels[:, None]), scores)


def test_perceptron_is_the_multiclass_perceptron(scores: torch.Tensor, labels: torch.Tensor, engine: str) -> None:
    found = sl.Perceptron()(sl.Chain(scores[:, None]), labels[:, None])
    same(found, (scores.max(1).values - scores.gather(1, labels[:, None])[:, 0]).mean(), scores)


def test_two_labels_are_the_binary_classifiers(engine: str) -> None:
    """With scores (0, m) and label 1: log(1 + e^-m), max(0, 1 - m), max(0, -m), and the risk 1 / (1 + e^m)."""
    m = torch.linspace(-3, 3, 13, dtype=torch.float64, requires_grad=True)
    chain = sl.Chain(torch.stack([torch.zeros_like(m), m], 1)[:, None])
    ones = torch.ones(13, 1, dtype=torch.int64)
    same(sl.NegativeLogLikelihood()(chain, ones), F.softplus(-m).mean(), m)
    same(sl.Hinge(sl.Hamming())(chain, ones), (1 - m.double()).clamp(min=0).mean(), m)
    away_from_tie = torch.where(m.detach() == 0, 0.0, 1.0)
    found = sl.Perceptron(reduction="none")(chain, ones) * away_from_tie
    same(found.sum(), ((-m).clamp(min=0) * away_from_tie).sum(), m)
    same(sl.Risk(sl.Hamming())(chain, ones), torch.sigmoid(-m).mean(), m)


def test_softmax_margin_bounds_the_loss_from_above(engine: str) -> None:
    chain, labels = sl.Chain(torch.randn(20, 6, 3, 3)), torch.randint(0, 3, (20, 6))
    for loss in (sl.Hamming(), sl.Hamming(normalize=True)):
        bound = sl.SoftmaxMargin(loss, reduction="none")(chain, labels)
        hinge = sl.Hinge(loss, reduction="none")(chain, labels)
        actual = loss(chain.argmax(), labels)
        assert (bound >= hinge - 1e-5).all()
        assert (hinge >= actual - 1e-5).all()


def test_direct_loss_tends_to_the_loss_of_the_prediction() -> None:
    """With a large epsilon the value tends to L(y_w) minus the least loss; with a small one to L(y_w) itself."""
    chain, labels = sl.Chain(torch.randn(20, 6, 3, 3, dtype=torch.float64)), torch.randint(0, 3, (20, 6))
    value = sl.DirectLoss(sl.Hamming(), epsilon=1e-6, reduction="none")(chain, labels)
    close(value, sl.Hamming()(chain.argmax(), labels).double(), 1e-6)


def test_reward_augmented_tends_to_nll_at_temperature_zero() -> None:
    chain, labels = sl.Chain(torch.randn(5, 4, 3, 3, dtype=torch.float64)), torch.randint(0, 3, (5, 4))
    cold = sl.RewardAugmented(sl.Hamming(), temperature=0.02)(chain, labels)
    close(cold, sl.NegativeLogLikelihood()(chain, labels), 1e-9)


def test_reductions() -> None:
    chain, labels = sl.Chain(torch.randn(5, 4, 3)), torch.randint(0, 3, (5, 4))
    values = sl.NegativeLogLikelihood(reduction="none")(chain, labels)
    assert values.shape == (5,)
    torch.testing.assert_close(sl.NegativeLogLikelihood(reduction="sum")(chain, labels), values.sum())
    torch.testing.assert_close(sl.NegativeLogLikelihood()(chain, labels), values.mean())


def test_a_reference_may_be_a_list_of_sequences() -> None:
    chain = sl.Chain(torch.randn(3, 4, 3), lengths=[4, 0, 2])
    as_list, as_tensor = [[0, 1, 2, 0], [], [2, 2]], torch.tensor([[0, 1, 2, 0], [9, 9, 9, 9], [2, 2, -5, 7]])
    for objective in (sl.NegativeLogLikelihood(), sl.SoftmaxMargin(sl.Hamming()), sl.SlackHinge(sl.Hamming())):
        torch.testing.assert_close(objective(chain, as_list), objective(chain, as_tensor))


def test_a_mask_and_lengths_are_the_same_thing() -> None:
    emissions, mask = torch.randn(3, 4, 3), torch.arange(4) < torch.tensor([4, 0, 2])[:, None]
    assert torch.equal(sl.Chain(emissions, mask).log_partition(), sl.Chain(emissions, [4, 0, 2]).log_partition())


def test_an_impossible_reference_has_infinite_loss_and_a_defined_gradient(engine: str) -> None:
    potentials = torch.zeros(2, 2, 2)
    potentials[0, 1, 0] = -math.inf
    potentials.requires_grad_()
    value = sl.NegativeLogLikelihood(reduction="none")(sl.Chain(potentials), torch.zeros(2, 2, dtype=torch.int64))
    assert value[0] == math.inf
    (gradient,) = torch.autograd.grad(value.sum(), potentials)
    assert gradient.isfinite().all()


def test_empty_batches_and_no_positions(engine: str) -> None:
    for shape in ((0, 3, 2, 2), (2, 0, 3, 3), (0, 0, 2), (2, 0, 3)):
        chain = sl.Chain(torch.zeros(shape))
        reference = torch.zeros(shape[:2], dtype=torch.int64)
        assert chain.log_partition().tolist() == [0.0] * shape[0]
        assert chain.max().tolist() == [0.0] * shape[0]
        assert chain.argmax().shape == shape[:2]
        assert chain.marginals().shape == shape
        assert chain.topk(2)[0].tolist() == [[0.0] * shape[0], [-math.inf] * shape[0]]
        assert chain.sample(3).shape == (3, *shape[:2])
        for objective in (
            sl.NegativeLogLikelihood("none"),
            sl.Risk(sl.Hamming(), "none"),
            sl.SlackHinge(sl.Hamming(), "none"),
        ):
            assert objective(chain, reference).tolist() == [0.0] * shape[0]


def test_a_training_step_moves_every_parameter() -> None:
    for order in (1, 2, 3):
        layer = sl.ChainLayer(3, order=order)
        loss = sl.NegativeLogLikelihood()(layer(torch.randn(4, 5, 3)), torch.randint(0, 3, (4, 5)))
        loss.backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in layer.parameters())
        assert "order=" in repr(layer)


def test_an_infinite_risk_that_is_masked_leaves_no_trace_in_gradients(engine: str) -> None:
    loss = sl.NGram(2, smoothing=0)
    shared, emissions = torch.randn(3, 3, requires_grad=True), torch.randn(2, 3, 3, requires_grad=True)
    frames = torch.zeros(1, 4, 3, requires_grad=True)
    values = [
        sl.Risk(loss, "none")(sl.Chain.from_emissions(emissions, shared), [[0, 1, 2]] * 2),
        sl.Risk(loss, "none")(sl.CTC(frames), [[1, 2]]),
    ]
    for value in values:
        assert value.isposinf().all()
        torch.where(value.isinf(), 0, value).sum().backward()
    for leaf in (shared, emissions, frames):
        assert leaf.grad is not None
        assert (leaf.grad == 0).all()


def test_an_infinite_divergence_that_is_masked_leaves_no_trace_in_gradients(engine: str) -> None:
    def graph(scores: torch.Tensor) -> sl.FactorGraph:
        g = sl.FactorGraphBuilder()
        g.variables(scores)
        return g.build()

    for make in (sl.Chain, sl.SemiMarkov, graph):
        ours, theirs = torch.zeros(2, 3, 2, requires_grad=True), torch.zeros(2, 3, 2)
        theirs[0, 1, 1] = -torch.inf
        value = make(ours).kl(make(theirs))
        assert value.tolist() == [torch.inf, 0.0]
        torch.where(value.isinf(), 0, value).sum().backward()
        assert ours.grad is not None
        assert (ours.grad == 0).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [0.0, 1.0, -1.0])
def test_losses_without_a_bound_raise_no_warning(scale: float, engine: str) -> None:
    outside, edit = sl.NGram(2, smoothing=0), sl.EditDistance()
    chain, reference = sl.Chain(torch.zeros(1, 6, 3)), [[0, 1, 2, 0, 1, 2]]
    for loss in (outside, edit, edit + outside, 0.0 * edit + -1.0 * outside, -1.0 * edit + outside):
        bound = chain.augment(loss, reference, scale, beam=4).error_bound
        assert 0 <= bound.item() <= 1
    sl.CTC(torch.zeros(1, 4, 3)).augment(outside, [[1, 2]], scale).log_partition()
