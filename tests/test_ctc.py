"""CTC: the inherited suite, torch's own ctc_loss, and where sums leave the whole product aside."""

import itertools
import math

import pytest
import torch
from torch import Tensor

import structloss as sl
import test_chain
import test_latent
from structloss.structures.chain.ctc import CTC
from suite import Case, close


def collapse(y: Tensor, blank: int) -> list[int]:
    return [label for label, _ in itertools.groupby(k for k in y.tolist() if k >= 0) if label != blank]


class TestCTC(test_chain.TestChain):
    kinds = ("first", "last", "augmented")
    edges = ("plain", "ties", "forbidden", "empty", "huge", "tiny", "span", "one label")

    def make(self, kind: str, edge: str) -> Case:
        case = super().make("dense 1", edge)
        K = case.potentials[0].shape[2]
        blank = K - 1 if kind == "last" else 0
        losses: list[sl.Loss] = [sl.EditDistance(), sl.EditDistance(1.0, 3.0, 2.0, cap=3), sl.SmithWaterman()]
        if edge not in ("ties", "huge", "tiny"):
            losses.append(sl.NGram(2))
        latent = test_latent.LatentCase.of(
            case,
            lambda x: sl.CTC(x[0], test_chain.LENGTHS, blank),
            lambda y: collapse(y, blank),
            losses,
            len(kind + edge),
        )
        if kind == "augmented":
            plain, score, references = latent.build, latent.score, [[1, 1], [], [1], [2]]
            _, definition = latent.losses[1]
            added = latent.loss_vectors(definition, references)
            latent.build = lambda x: plain(x).augment(losses[1], references, -0.5)
            latent.score = lambda x: [s - 0.5 * v for s, v in zip(score(x), added, strict=True)]
        return latent

    def make_long(self, positions: int, dtype: torch.dtype):
        generator = torch.Generator().manual_seed(3)
        scores = 3 * torch.randn(2, positions, 4, generator=generator, dtype=torch.float64)
        return sl.CTC(scores.to(dtype)), torch.randint(1, 4, (2, 3), generator=generator)

    test_loss_by_its_own_definition = test_latent.TestEmittingChain.test_loss_by_its_own_definition


def by_torch(log_probs: Tensor, references: list[list[int]], lengths: list[int], blank: int = 0) -> Tensor:
    labels = torch.tensor([label for r in references for label in r], dtype=torch.int64)
    sizes = torch.tensor([len(r) for r in references])
    return torch.nn.functional.ctc_loss(
        log_probs.transpose(0, 1), labels, torch.tensor(lengths), sizes, blank=blank, reduction="none"
    )


@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 300.0])
def test_torchs_ctc_loss(spread: float) -> None:
    """Repeated labels, empty targets, frames beyond a length; at spread 300 sums leave linear arithmetic."""
    references = [[1, 1, 2, 2, 2, 3], [], [4], [1, 2] * 10, [3] * 12, [1] * 25]
    lengths = [50, 20, 1, 50, 23, 50]
    log_probs = (spread * torch.randn(6, 50, 5, dtype=torch.float64)).log_softmax(2).requires_grad_()
    found = sl.NegativeLogLikelihood(reduction="none")(sl.CTC(log_probs, lengths), references)
    wanted = by_torch(log_probs, references, lengths)
    assert wanted.isfinite().all()
    close(found.detach(), wanted.detach(), 1e-9)
    (gradient,) = torch.autograd.grad(found.sum(), log_probs)
    (theirs,) = torch.autograd.grad(wanted.sum(), log_probs)
    close(gradient, theirs, 1e-8)


def test_another_blank() -> None:
    log_probs = torch.randn(2, 9, 4, dtype=torch.float64).log_softmax(2)
    references = [[0, 0, 1], [2]]
    found = sl.NegativeLogLikelihood(reduction="none")(sl.CTC(log_probs, blank=3), references)
    close(found, by_torch(log_probs, references, [9, 9], blank=3))


def test_a_target_longer_than_the_input_is_infinite_with_a_gradient() -> None:
    log_probs = torch.randn(3, 4, 3, dtype=torch.float64).log_softmax(2).requires_grad_()
    references = [[1, 2, 1, 2, 1], [1, 1, 1], [1]]  # too long; too long with the blanks between equals; fine
    value = sl.NegativeLogLikelihood(reduction="none")(sl.CTC(log_probs), references)
    assert value.isinf().tolist() == [True, True, False]
    assert by_torch(log_probs, references, [4, 4, 4]).isinf().tolist() == [True, True, False]
    value.sum().backward()
    assert log_probs.grad.isfinite().all()
    close(log_probs.grad[:2], log_probs[:2].exp().detach())  # that of the sum over all paths; the reference has none


def test_sums_without_the_product_agree_with_those_over_it() -> None:
    log_probs = torch.randn(3, 9, 4, dtype=torch.float64, requires_grad=True)  # not normalised
    references, lengths = [[1, 2, 3, 1], [2], [1, 1, 2]], [9, 6, 7]
    for loss in (
        sl.EditDistance(cap=2),
        sl.EditDistance(),
        sl.NGram(2),
        sl.NGram(2, smoothing=0),
        sl.SmithWaterman(cap=4),
    ):
        for scale in (1.0, -3.0, 500.0):
            found = []
            for name in ("native", "torch"):
                with sl.engine(name):
                    s = sl.CTC(log_probs, lengths)
                    assert isinstance(s, CTC)
                    values = [s.augment(loss, references, scale).log_partition()]
                    if not (isinstance(loss, sl.NGram) and loss.smoothing == 0):
                        values.append(s.expected(loss, references))
                    for value in values:
                        found.append((value.detach(), *torch.autograd.grad(value.sum(), log_probs)))
            half = len(found) // 2
            for mine, theirs in zip(found[:half], found[half:], strict=True):
                close(mine[0], theirs[0], 1e-9)
                close(mine[1], theirs[1], 1e-9)


def test_one_label_that_is_almost_certain() -> None:
    """What is left of a frame's sum without its largest part is added up, not taken away from it."""
    scores = torch.zeros(1, 6, 3, dtype=torch.float64)
    scores[0, :, 1] = 45.0
    scores[0, 3, 0] = 45.0
    scores.requires_grad_()
    found = []
    for name in ("native", "torch"):
        with sl.engine(name):
            value = sl.CTC(scores).expected(sl.EditDistance(cap=3), [[1, 1]])
            found.append((value.detach(), *torch.autograd.grad(value.sum(), scores)))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-9, atol=0.0)
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-9, atol=1e-18)


def test_risk_by_sampling_comes_to_the_exact_risk() -> None:
    s = sl.CTC(2 * torch.randn(1, 12, 5), blank=0)
    reference, loss = [[1, 2, 3, 4]], sl.EditDistance(cap=3)
    drawn = s.sample(4000, torch.Generator().manual_seed(0))[:, 0]
    losses = loss(s.decode(drawn), reference * 4000)
    error = losses.std().item() / 4000**0.5
    assert s.expected(loss, reference).item() == pytest.approx(losses.mean().item(), abs=5 * error)


def test_the_lattice_of_ctc_is_a_lattice() -> None:
    """The same paths as explicit arcs: from each label to the next frame's, epsilon where nothing is written."""
    T, C = 4, 3
    log_probs = torch.randn(1, T, C, dtype=torch.float64)
    arcs, scores = [], []
    for t in range(T):
        for last in range(C if t else 1):
            for c in range(C):
                source = 0 if t == 0 else 1 + (t - 1) * C + last
                arcs.append((source, 1 + t * C + c, -1 if c == 0 or (t and c == last) else c))
                scores.append(log_probs[0, t, c])
    lattice, ctc = sl.Lattice([arcs], torch.stack(scores), num_labels=C), sl.CTC(log_probs)
    reference = [[1, 2]]
    for objective in (
        sl.NegativeLogLikelihood(), sl.SoftmaxMargin(sl.EditDistance()), sl.Risk(sl.NGram(2)),
        sl.Hinge(sl.EditDistance()),
        sl.SlackHinge(sl.EditDistance(cap=2)), sl.DirectLoss(sl.EditDistance()), sl.RewardAugmented(sl.EditDistance()),
    ):  # fmt: skip
        close(objective(ctc, reference), objective(lattice, reference))


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"log_probs: got shape \(2, 3, 4, 4\)"):
        sl.CTC(torch.zeros(2, 3, 4, 4))
    with pytest.raises(ValueError, match="blank: got 4, but wanted 0 to 3"):
        sl.CTC(torch.zeros(2, 3, 4), blank=4)
    with pytest.raises(ValueError, match=r"reference\[1\] has the blank, 0"):
        sl.NegativeLogLikelihood()(sl.CTC(torch.zeros(2, 3, 4)), [[1], [0]])
    with pytest.raises(ValueError, match="example 1 has NaN"):
        sl.NegativeLogLikelihood()(sl.CTC(torch.full((2, 3, 4), math.nan), lengths=[0, 3]), [[], [1]])
    with pytest.raises(sl.TooManyStatesError, match="a cap"):
        sl.CTC(torch.zeros(1, 30, 9)).expected(sl.EditDistance(max_states=100), [[1, 2, 3, 4, 5, 6]])
