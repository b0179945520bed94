"""Expected edit distances of CTC to within a tolerance: bounds against enumeration and against the whole product."""

import itertools
import threading

import numpy as np
import pytest
import torch
from torch import Tensor

import structloss as sl
from structloss.structures import sparse


def by_enumeration(x: Tensor, loss: sl.MachineLoss, reference: list[int]) -> tuple[float, Tensor]:
    """E[loss] over all paths of x (T, C), and its gradient p (E[loss | c at frame t] - E[loss])."""
    (T, C), p = x.shape, x.softmax(1).numpy()
    paths = np.array(list(itertools.product(range(C), repeat=T)), np.int64).reshape(-1, T)
    known: dict[tuple[int, ...], float] = {}
    losses = np.empty(len(paths))
    for i, path in enumerate(paths.tolist()):
        string = tuple(label for label, _ in itertools.groupby(path) if label)
        if string not in known:
            known[string] = loss.distance(np.array(string, np.int64), np.array(reference, np.int64))
        losses[i] = known[string]
    mass = np.prod([p[t, paths[:, t]] for t in range(T)], axis=0)
    mean, gradient = float(mass @ losses), np.zeros((T, C))
    for t in range(T):
        np.add.at(gradient[t], paths[:, t], mass * losses)
    return mean, torch.from_numpy(gradient - p * mean)


def peaked(generator: np.random.Generator, T: int, C: int, sure: float) -> tuple[Tensor, list[int]]:
    """Scores (T, C) that favour a path, and a reference near to what it writes."""
    path = np.repeat(generator.integers(0, C, T), generator.integers(1, 3, T))[:T]
    x = generator.normal(size=(T, C)) + sure * np.eye(C)[path]
    reference = [int(label) for label, _ in itertools.groupby(path) if label]
    if reference and generator.random() < 0.5:
        reference[generator.integers(len(reference))] = int(generator.integers(1, C + 1))
    if generator.random() < 0.3:
        reference.insert(generator.integers(len(reference) + 1), int(generator.integers(1, C)))
    return torch.from_numpy(x), reference


def found_by(x: Tensor, loss: sl.Loss, references: list, tolerance: float, **rest: object) -> tuple:
    x = x.clone().requires_grad_()
    found = sl.CTC(x, **rest).certified(loss, references, tolerance)
    (gradient,) = torch.autograd.grad(found.value.sum(), x)
    return found.value.detach(), gradient, found.error_bound


@pytest.mark.parametrize(
    "loss",
    [
        sl.EditDistance(), sl.EditDistance(cap=1), sl.EditDistance(cap=3), sl.EditDistance(1.5, 0.7, 0.9, cap=2),
        sl.EditDistance(1, 3, 2), sl.EditDistance(1, 0, 1), sl.EditDistance(cap=4, normalize=True),
        sl.EditDistance(torch.rand(5, 5, generator=torch.Generator().manual_seed(0)).fill_diagonal_(0), 0.5, 0.6),
    ],
    ids=repr,
)  # fmt: skip
def test_the_bound_holds_against_enumeration_for_value_and_every_gradient_component(loss: sl.EditDistance) -> None:
    generator, cases, informative, used = np.random.default_rng(0), 150, 0, 0
    for case in range(cases):
        T, C = [(5, 3), (4, 4), (6, 3), (5, 4)][case % 4]
        x, reference = peaked(generator, T, C, sure=float(generator.uniform(1, 7)))
        mean, wanted = by_enumeration(x, loss, reference)
        for tolerance in (1e-9, 1e-3, 1e-2, 0.1):
            (value,), (gradient,), (bound,) = found_by(x[None], loss, [reference], tolerance)
            assert bound <= tolerance + 1e-12, (case, bound)
            assert abs(value - mean) <= bound + 1e-12, (case, tolerance, value, mean, bound)
            assert (gradient - wanted).abs().max() <= bound + 1e-12, (case, tolerance, bound)
            used += bool(abs(value - mean) > 1e-9)
        informative += (
            mean < 0.7 * (loss.cap or 10) / (max(1, len(reference)) if loss.normalize else 1)
            and wanted.abs().max() > 1e-3
        )
    assert informative > 0.5 * cases or loss.cap == 1
    assert used > 0.2 * cases  # there was something to certify


SPELLINGS = {  # of the blank, too, which is never written
    "characters": ["", "a", "b", " "],
    "pieces": ["", "▁a", "b", "▁"],
    "marks inside": ["", "▁a", "b▁a", "ab", "▁"],
    "marks behind, whole words inside, nothing": ["", "a▁", "▁b▁a", "", "b"],
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize(
    "costs",
    [
        {}, {"cap": 2}, {"substitution": 1.5, "insertion": 0.7, "deletion": 0.9, "cap": 3}, {"insertion": 0.0},
        {"substitution": 3.0, "normalize": True}, {"insertion": 3.0, "deletion": 2.0},
    ],
    ids=str,
)  # fmt: skip
def test_of_words_the_bound_holds_for_value_and_every_gradient_component(
    spelling: list[str], costs: dict[str, float]
) -> None:
    loss, cases = sl.WordErrors(spelling, None if "▁" in "".join(spelling) else " ", **costs), 40
    generator, informative, used, C = np.random.default_rng(0), 0, 0, len(spelling)
    for case in range(cases):
        x, reference = peaked(generator, {4: 5, 5: 4}[C] + case % 2, C, sure=float(generator.uniform(1, 7)))
        reference = [label for label in reference if label < C]
        mean, wanted = by_enumeration(x, loss, reference)
        for tolerance in (1e-9, 1e-3, 1e-2, 0.1, 0.5):
            (value,), (gradient,), (bound,) = found_by(x[None], loss, [reference], tolerance)
            assert bound <= tolerance + 1e-12, (case, bound)
            assert abs(value - mean) <= bound + 1e-12, (case, tolerance, value, mean, bound)
            assert (gradient - wanted).abs().max() <= bound + 1e-12, (case, tolerance, bound)
            used += bool(abs(value - mean) > 1e-9)
        informative += bool(mean > 0.05 and wanted.abs().max() > 1e-3)
    assert informative > 0.5 * cases
    assert used > 2 * cases  # there was something to certify


@pytest.mark.parametrize("seed", range(2))
def test_of_words_the_bound_holds_against_the_whole_product_at_middle_sizes(seed: int) -> None:
    generator = np.random.default_rng(seed)
    spelling, T = ["", *"abcdefgh "], 48
    words = [[int(c) for c in generator.integers(1, 9, generator.integers(1, 4))] for _ in range(4)]
    reference = [label for word in words for label in (*word, 9)][:-1]
    path = np.zeros(T, np.int64)
    path[2 : 2 + 3 * len(reference) : 3] = reference
    x = torch.from_numpy(generator.normal(size=(1, T, 10)) + 8 * np.eye(10)[path])
    for cap in (2, 3):
        loss, leaf = sl.WordErrors(spelling, " ", cap=cap), x.clone().requires_grad_()
        exact = sl.CTC(leaf).expected(loss, [reference])
        (wanted,) = torch.autograd.grad(exact.sum(), leaf)
        assert 0.1 < exact < 0.9 * cap
        assert wanted.abs().max() > 1e-3
        for tolerance in (1e-6, 1e-3, 1e-2, 0.1):
            value, gradient, bound = found_by(x, loss, [reference], tolerance)
            assert 0 < bound <= tolerance + 1e-12
            assert (value - exact).abs() <= bound + 1e-12
            assert (gradient - wanted).abs().max() <= bound + 1e-12


@pytest.mark.parametrize("window", [1, 2])
def test_of_words_with_a_window_the_edit_distance_is_at_most_value_and_bound(window: int) -> None:
    generator, used = np.random.default_rng(window), 0
    for spelling in SPELLINGS.values():
        boundary, C = None if "▁" in "".join(spelling) else " ", len(spelling)
        loss, exact = sl.WordErrors(spelling, boundary, window=window), sl.WordErrors(spelling, boundary)
        for case in range(40):
            x, reference = peaked(generator, {4: 6, 5: 5}[C], C, sure=float(generator.uniform(0, 6)))
            reference = 2 * [label for label in reference if label < C]
            mean, _ = by_enumeration(x, exact, reference)
            windowed, wanted = by_enumeration(x, loss, reference)
            for tolerance in (1e-9, 1e-2, 0.1, 0.5):
                (value,), (gradient,), (bound,) = found_by(x[None], loss, [reference], tolerance)
                assert mean <= value + bound + 1e-12, (case, tolerance)
                used += bool(abs(value - mean) > 1e-9)
                if tolerance == 1e-9:
                    assert abs(value - windowed) <= 1e-7
                    assert (gradient - wanted).abs().max() <= 1e-7
    assert used > 100


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_holds_against_the_whole_product_at_middle_sizes(seed: int) -> None:
    generator = np.random.default_rng(seed)
    T, C, n = 60, 20, 12
    path = np.zeros((2, T), np.int64)
    references = generator.integers(1, C, (2, n))
    path[:, 2 : 2 + 4 * n : 4] = references
    x = torch.from_numpy(generator.normal(size=(2, T, C)) + (7 + seed) * np.eye(C)[path])
    for cap in (2, 3):
        loss, leaf = sl.EditDistance(cap=cap), x.clone().requires_grad_()
        exact = sl.CTC(leaf).expected(loss, references.tolist())
        (wanted,) = torch.autograd.grad(exact.sum(), leaf)
        assert (exact < 0.9 * cap).all()
        assert wanted.abs().max() > 1e-3
        for tolerance in (1e-6, 1e-3, 1e-2, 0.1):
            value, gradient, bound = found_by(x, loss, references.tolist(), tolerance)
            assert (bound <= tolerance + 1e-12).all()
            assert (bound > 0).all()
            assert ((value - exact).abs() <= bound + 1e-12).all()
            assert ((gradient - wanted).abs().amax((1, 2)) <= bound + 1e-12).all()


@pytest.mark.parametrize("window", [1, 2, 3])
def test_with_a_window_the_edit_distance_is_at_most_value_and_bound(window: int) -> None:
    generator, exact, forgot = np.random.default_rng(window), sl.EditDistance(), 0
    loss = sl.EditDistance(window=window)
    for case in range(100):
        T, C = [(5, 3), (4, 4), (6, 3), (5, 4)][case % 4]
        x, reference = peaked(generator, T, C, sure=float(generator.uniform(0, 6)))
        mean, wanted = by_enumeration(x, loss, reference)
        least, _ = by_enumeration(x, exact, reference)
        (value,), (gradient,), (bound,) = found_by(x[None], loss, [reference], 1e-12)
        assert abs(value - mean) < 1e-9
        torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-9)
        forgot += mean > least + 1e-6
        for tolerance in (1e-3, 1e-2, 0.1):
            (value,), _, (bound,) = found_by(x[None], loss, [reference], tolerance)
            assert bound <= tolerance + 1e-12
            assert least <= value + bound + 1e-12, (case, tolerance)
    assert forgot > 0 or window > 1


def test_a_tiny_tolerance_is_the_exact_risk_for_references_in_every_form() -> None:
    generator = torch.Generator().manual_seed(0)
    x, lengths = torch.randn(5, 6, 4, generator=generator, dtype=torch.float64), [6, 1, 0, 4, 6]
    x[3, 2, 1:] = -torch.inf
    x[4, :, 0] = -torch.inf
    references = [[1, -100, 3], [2], [1, 2], [], [1, 7, 1]]
    for loss in (sl.EditDistance(cap=2), sl.EditDistance(1, 2, 1.5), sl.EditDistance(window=2)):
        exact = sl.CTC(x, lengths).expected(loss, references)
        value, gradient, _bound = found_by(x, loss, references, 1e-10, lengths=lengths)
        torch.testing.assert_close(value, exact, rtol=0, atol=1e-9)
        leaf = x.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(sl.CTC(leaf, lengths).expected(loss, references).sum(), leaf)
        torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-9)
    last = sl.CTC(x, lengths, blank=3)
    exact, found = last.expected(loss, [[1]] * 5), last.expected(loss, [[1]] * 5, tolerance=1e-10)
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", [1e-300, 1e4, 1e30])
def test_scores_of_any_size(size: float) -> None:
    x = size * torch.randn(2, 7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    loss, references = sl.EditDistance(cap=3), [[1, 2, 2], [2]]
    value, gradient, _ = found_by(x, loss, references, 1e-9)
    torch.testing.assert_close(value, sl.CTC(x).expected(loss, references), rtol=0, atol=1e-8)
    assert gradient.isfinite().all()


def test_float32_is_within_the_bound_too_and_degenerate_batches_are_fine() -> None:
    generator = np.random.default_rng(3)
    cases = [peaked(generator, 12, 4, 4.0) for _ in range(8)]
    x, references = torch.stack([x for x, _ in cases]).float(), [r for _, r in cases]
    loss = sl.EditDistance(cap=3)
    exact = sl.CTC(x.double()).expected(loss, references)
    for tolerance in (1e-7, 1e-4, 1e-2):
        value, gradient, bound = found_by(x, loss, references, tolerance)
        assert value.dtype == gradient.dtype == bound.dtype == torch.float32
        assert ((value.double() - exact).abs() <= bound.double() + 1e-12).all()
        assert (bound <= tolerance + 1e-6).all()
    assert found_by(torch.zeros(0, 3, 2), loss, [], 0.1)[0].shape == (0,)
    assert found_by(torch.zeros(1, 4, 1), loss, [[1, 2]], 0.1)[0].tolist() == [2.0]
    assert found_by(torch.full((1, 4, 3), -torch.inf), loss, [[1, 2]], 0.1)[0].tolist() == [0.0]
    with pytest.raises(ValueError, match="potentials: example 1 has NaN"):
        found_by(torch.tensor([[[0.0, 1.0]], [[0.0, torch.nan]]]), loss, [[1], [1]], 0.1)


def test_a_flat_model_keeps_the_limit_warns_and_reports_the_bound_it_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "LIMIT", 4)
    generator = np.random.default_rng(5)
    loss, wide = sl.EditDistance(cap=5), 0.0
    for _ in range(20):
        x, reference = peaked(generator, 7, 4, 0.5)
        x = x[None]
        exact = sl.CTC(leaf := x.clone().requires_grad_()).expected(loss, [reference])
        (wanted,) = torch.autograd.grad(exact.sum(), leaf)
        with pytest.warns(UserWarning, match="tolerance: wanted 1e-06, but the bound is"):
            found = sl.CTC(leaf).certified(loss, [reference], 1e-6)
        (gradient,) = torch.autograd.grad(found.value.sum(), leaf)
        assert found.active.item() <= 4 + 30 / 7  # the last frame is the end, and need not be made smaller
        assert (found.value - exact).abs() <= found.error_bound
        assert (gradient - wanted).abs().max() <= found.error_bound
        wide = max(wide, float(found.error_bound))
    assert wide > 0.01


def test_several_threads_share_machines() -> None:
    generator = np.random.default_rng(6)
    cases = [peaked(generator, 40, 6, 6.0) for _ in range(4)]
    x = torch.stack([x for x, _ in cases] * 3)
    references, loss = [r for _, r in cases] * 3, sl.EditDistance(window=3)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        wanted = found_by(x, sl.EditDistance(window=3), references, 1e-2)
        torch.set_num_threads(4)
        found: list[tuple] = []
        callers = [threading.Thread(target=lambda: found.append(found_by(x, loss, references, 1e-2))) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 4
    for own in found:
        for mine, theirs in zip(own, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-12)
    assert sl.cache_info().num_bytes > 0


def test_machines_are_made_only_where_probability_goes_and_kept() -> None:
    generator = np.random.default_rng(7)
    x, reference = peaked(generator, 30, 8, 9.0)
    loss = sl.EditDistance(cap=6)
    found_by(x[None], loss, [reference], 1e-3)
    machine = loss.open(np.array(reference), 8, absolute=False)
    few = machine.num_states
    found_by(x[None], loss, [reference], 1e-3)
    assert machine.num_states == few
    machine.explore(30)
    assert few < 0.2 * machine.num_states
    tight = sl.EditDistance(cap=6, max_states=few // 2)
    with pytest.warns(UserWarning, match="tolerance: wanted 0.001, but the bound is"):
        (value,), _, (bound,) = found_by(x[None], tight, [reference], 1e-3)
    exact, _, _ = found_by(x[None], loss, [reference], 1e-6)
    assert bound > 1e-3
    assert abs(value - exact) <= bound + 1e-6
    assert tight.open(np.array(reference), 8, absolute=False).num_states <= few // 2


def test_the_objective_knows_its_bound_and_trains() -> None:
    x = torch.randn(3, 8, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    references = [[1, 2], [3], [2, 2, 1]]
    exact = sl.Risk(sl.EditDistance(cap=4), temperature=0.5)
    near = sl.Risk(sl.EditDistance(cap=4), temperature=0.5, tolerance=1e-3)
    assert near.error_bound is None
    assert "tolerance=0.001" in repr(near)
    assert "tolerance" not in repr(exact)
    assert abs(near(sl.CTC(x), references) - exact(sl.CTC(x), references)) <= 1e-3
    assert near.error_bound.shape == (3,)
    assert (near.error_bound <= 1.01e-3).all()
    total = near + 0.1 * sl.NegativeLogLikelihood()
    optimiser = torch.optim.SGD([x], 3.0)
    before = float(total(sl.CTC(x), references).detach())
    for _ in range(20):
        optimiser.zero_grad()
        value = total(sl.CTC(x), references)
        value.backward()
        optimiser.step()
    assert value < 0.5 * before


def test_what_takes_no_tolerance_says_so() -> None:
    ctc, loss = sl.CTC(torch.zeros(1, 3, 3)), sl.EditDistance(cap=2)
    with pytest.raises(
        NotImplementedError, match=r"tolerance: got Hamming\(.*\), but only EditDistance and WordErrors"
    ):
        sl.Risk(sl.Hamming(), tolerance=0.1)(ctc, [[1]])
    with pytest.raises(NotImplementedError, match="only EditDistance and WordErrors take one"):
        ctc.expected(sl.EditDistance() + sl.NGram(2), [[1]], tolerance=0.1)
    with pytest.raises(NotImplementedError, match="tolerance: got a band"):
        ctc.certified(sl.EditDistance(window=3, band=2), [[1]], 0.1)
    with pytest.raises(NotImplementedError, match="tolerance: got substitution costs below 0"):
        ctc.certified(sl.EditDistance(-torch.eye(3)), [[1]], 0.1)
    with sl.engine("torch"), pytest.raises(NotImplementedError, match="tolerance: the torch engine"):
        ctc.certified(loss, [[1]], 0.1)
    with pytest.raises(NotImplementedError, match="this CTC is augmented or restricted, but only a plain one"):
        ctc.augment(loss, [[1]]).expected(loss, [[1]], tolerance=0.1)
    with pytest.raises(NotImplementedError, match="a SemiMarkov has its risk exactly; only CTC, Chain and Latt"):
        sl.SemiMarkov(frames=torch.zeros(1, 3, 2)).certified(loss, [[1]], 0.1)
    with pytest.raises(NotImplementedError, match="this chain is augmented or restricted, but only a plain one"):
        sl.Chain(torch.zeros(1, 3, 3)).augment(loss, [[1]]).certified(loss, [[1]], 0.1)
    with pytest.raises(NotImplementedError, match="this lattice is augmented or restricted, but only a plain one"):
        sl.Lattice.nbest([[[1]]], torch.zeros(1, 1)).given([[1]]).certified(loss, [[1]], 0.1)
    with pytest.raises(NotImplementedError, match=r"tolerance: got 0\.1 in augment, but only an expectation takes one"):
        ctc.augment(loss, [[1]], 1.0, tolerance=0.1)
    for wrong in (-1.0, float("nan"), float("inf"), "0.1"):
        with pytest.raises(ValueError, match="tolerance: got"):
            sl.Risk(loss, tolerance=wrong)
    with pytest.raises(ValueError, match="tolerance: got 0, but wanted a number above 0"):
        ctc.certified(loss, [[1]], 0)
