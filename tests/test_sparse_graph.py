"""Expected edit distances of chains and lattices to within a tolerance: bounds against enumeration and the product."""

import itertools
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from torch import Tensor

import structloss as sl
from structloss.structures import sparse

SPELLING = ["a", "b", " "]
LOSSES = [
    sl.EditDistance(), sl.EditDistance(cap=2), sl.EditDistance(1.5, 0.7, 0.9, cap=3), sl.EditDistance(1, 0, 1),
    sl.EditDistance(cap=4, normalize=True), sl.WordErrors(SPELLING), sl.WordErrors(SPELLING, cap=2),
    sl.EditDistance(torch.rand(3, 3, generator=torch.Generator().manual_seed(0)).fill_diagonal_(0), 0.5, 0.6),
]  # fmt: skip
EMITS = [[], [0], [1, 2], [2], [0, 1, 0]]
Case = tuple[Callable[[Tensor], sl.Structure], Tensor, list[list[int]], Callable[[Tensor], Tensor]]


def near(generator: np.random.Generator, string: list[int]) -> list[int]:
    """A reference that is what a model is likely to write, or not far from it."""
    string = [label if generator.random() < 0.85 else int(generator.integers(0, 3)) for label in string]
    return string[generator.integers(0, 2) if len(string) > 2 else 0 :]


def chain(generator: np.random.Generator, order: int, emits: list[list[int]] | None, sure: float) -> Case:
    """A chain whose scores favour a path: how it is made of its scores, what its paths write, and their scores."""
    K = 3 if emits is None else len(emits)
    T = int(generator.integers(1, 5 if K == 3 else 4))
    path = generator.integers(0, K, T)
    x = generator.normal(size=(1, T, *(K,) * order)) + sure * np.eye(K)[path].reshape(1, T, *(1,) * (order - 1), K)
    paths = torch.tensor(list(itertools.product(range(K), repeat=T)))[:, None]
    write = (lambda y: y) if emits is None else lambda y: [label for k in y for label in emits[k]]
    return (
        lambda leaf: sl.Chain(leaf, emits=emits), torch.from_numpy(x), [write(y) for y in paths[:, 0].tolist()],
        lambda leaf: sl.Chain(leaf, emits=emits).score(paths)[:, 0],
    )  # fmt: skip


def lattice(generator: np.random.Generator, sure: float) -> Case:
    """A random acyclic graph, with epsilons and several arcs between two nodes."""
    nodes = int(generator.integers(3, 6))
    arcs = [(i, i + 1, int(generator.integers(-1, 3))) for i in range(nodes - 1)]
    for _ in range(int(generator.integers(2, 9))):
        i, j = sorted(generator.choice(nodes, 2, replace=False).tolist())
        arcs.append((i, j, int(generator.integers(-1, 3))))
    x = generator.normal(size=len(arcs)) * sure / 2
    final = {nodes - 1: 0.3, nodes - 2: -0.5}
    paths: list[list[int]] = []

    def grow(path: list[int], node: int) -> None:
        if node in final:
            paths.append(path)
        for a, (i, j, _) in enumerate(arcs):
            if i == node:
                grow([*path, a], j)

    grow([], 0)
    uses = torch.zeros(len(paths), len(arcs), dtype=torch.float64)
    for row, path in zip(uses, paths, strict=True):
        row[path] = 1
    ends = torch.tensor([final[arcs[path[-1]][1] if path else 0] for path in paths], dtype=torch.float64)
    return (
        lambda leaf: sl.Lattice([arcs], leaf, [final], num_labels=3), torch.from_numpy(x),
        [[arcs[a][2] for a in path if arcs[a][2] >= 0] for path in paths], lambda leaf: uses @ leaf + ends,
    )  # fmt: skip


KINDS: dict[str, Callable[[np.random.Generator, float], Case]] = {
    "order 1": lambda g, sure: chain(g, 1, None, sure),
    "order 2": lambda g, sure: chain(g, 2, None, sure),
    "order 3": lambda g, sure: chain(g, 3, None, sure),
    "emits": lambda g, sure: chain(g, 1, EMITS, sure),
    "emits, order 2": lambda g, sure: chain(g, 2, EMITS, sure),
    "lattice": lattice,
}


def by_enumeration(case: Case, loss: sl.MachineLoss, reference: list[int]) -> tuple[Tensor, Tensor]:
    """E[loss] and its gradient in the scores, from a list of all paths."""
    _, x, strings, score = case
    known = {tuple(s): loss.distance(np.array(s, np.int64), np.array(reference, np.int64)) for s in strings}
    losses = torch.tensor([known[tuple(s)] for s in strings], dtype=torch.float64)
    leaf = x.clone().requires_grad_()
    value = (score(leaf).softmax(0) * losses).sum()
    return value.detach(), torch.autograd.grad(value, leaf)[0]


def found_by(case: Case, loss: sl.Loss, reference: list[int], tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    leaf = case[1].clone().requires_grad_()
    found = case[0](leaf).certified(loss, [reference], tolerance)
    return found.value[0].detach(), torch.autograd.grad(found.value.sum(), leaf)[0], found.error_bound[0]


def check(kinds: Iterable[str], loss: sl.EditDistance | sl.WordErrors, seed: int, cases: int) -> None:
    """So many cases of each kind, at five tolerances."""
    generator, informative, used = np.random.default_rng(seed), 0, 0
    numbered = list(itertools.product(kinds, range(cases)))
    for kind, number in numbered:
        case = KINDS[kind](generator, float(generator.uniform(0.5, 6)))
        with torch.no_grad():
            likely = case[2][int(case[3](case[1]).argmax())]
        reference = near(generator, likely)
        mean, wanted = by_enumeration(case, loss, reference)
        for tolerance in (1e-6, 1e-3, 1e-2, 0.1, 0.5):
            value, gradient, bound = found_by(case, loss, reference, tolerance)
            told = (kind, loss, number, tolerance, float(value), float(mean), float(bound))
            assert bound <= tolerance + 1e-12, told
            assert abs(value - mean) <= bound + 1e-12, told
            assert (gradient - wanted).abs().max() <= bound + 1e-12, told
            used += bool(abs(value - mean) > 1e-7)
        informative += bool(mean > 1e-3 and wanted.abs().max() > 1e-3)
    assert informative > 0.4 * len(numbered), informative
    assert used > 0.4 * len(numbered), used  # there was something to certify


@pytest.mark.parametrize("loss", LOSSES, ids=repr)
def test_the_bound_holds_for_value_and_every_gradient_component(loss: sl.EditDistance) -> None:
    check(KINDS, loss, 0, 6)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_holds_in_thousands_of_cases(kind: str, loss: sl.EditDistance) -> None:
    check([kind], loss, 1, 60)


@pytest.mark.parametrize("window", [1, 2])
def test_with_a_window_the_edit_distance_is_at_most_value_and_bound(window: int) -> None:
    generator, loss, exact, forgot = np.random.default_rng(window), sl.EditDistance(window=window), sl.EditDistance(), 0
    for kind in KINDS:
        for _ in range(12):
            case = KINDS[kind](generator, float(generator.uniform(0.5, 5)))
            reference = [int(c) for c in generator.integers(0, 3, generator.integers(0, 6))]
            mean, wanted = by_enumeration(case, loss, reference)
            least, _ = by_enumeration(case, exact, reference)
            forgot += bool(mean > least + 1e-6)
            value, gradient, _ = found_by(case, loss, reference, 1e-12)
            assert abs(value - mean) < 1e-9
            torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-9)
            for tolerance in (1e-3, 1e-2, 0.1, 0.5):
                value, _, bound = found_by(case, loss, reference, tolerance)
                assert bound <= tolerance + 1e-12
                assert least <= value + bound + 1e-12
    assert forgot > 0


@pytest.mark.parametrize(
    "emits", [None, [[], [0], [1], [2], [3], [4], [1, 2], [5, 0], [6], [7]]], ids=["labels", "emits"]
)
def test_the_bound_holds_against_the_whole_product_at_middle_sizes(emits: list[list[int]] | None) -> None:
    generator, (B, T, K) = np.random.default_rng(3), (3, 14, 10)
    path = generator.integers(0, K, (B, T))
    x = torch.from_numpy(generator.normal(size=(B, T, K)) + 4 * np.eye(K)[path])
    transitions, lengths = torch.from_numpy(generator.normal(size=(K, K))), [14, 9, 12]

    def made(leaf: Tensor) -> sl.Chain:
        return sl.Chain.from_emissions(leaf, transitions, leaf[0, 0], leaf[0, 1], lengths, emits)

    strings = [row[:n].tolist() for row, n in zip(path, lengths, strict=True)]
    references = strings if emits is None else [[y for k in row for y in emits[k]] for row in strings]
    references[0][3] = 8
    for loss in (sl.EditDistance(cap=3), sl.EditDistance(cap=4, normalize=True)):
        leaf = x.clone().requires_grad_()
        exact = made(leaf).expected(loss, references)
        (wanted,) = torch.autograd.grad(exact.sum(), leaf)
        assert wanted.abs().max() > 1e-3
        for tolerance in (1e-3, 1e-2, 0.1):
            leaf = x.clone().requires_grad_()
            found = made(leaf).certified(loss, references, tolerance)
            (gradient,) = torch.autograd.grad(found.value.sum(), leaf)
            assert ((found.error_bound > 0) & (found.error_bound <= tolerance + 1e-12)).all()
            assert ((found.value - exact).abs() <= found.error_bound + 1e-12).all()
            assert (gradient - wanted).abs().max() <= 3 * found.error_bound.max()  # start and end are shared by three
        assert found.active.max() < 40


def test_a_tiny_tolerance_is_the_exact_risk_whatever_the_scores_and_references_are() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(5, 4, 3, 3, generator=generator, dtype=torch.float64)
    x[3, 1, :, 1:] = -torch.inf
    references, lengths = [[1, -100, 2], [2], [1, 2], [], [1, 7, 1]], [4, 1, 0, 4, 3]
    for loss in (sl.EditDistance(cap=2), sl.EditDistance(1, 2, 1.5), sl.EditDistance(window=2)):
        for size in (1.0, 1e4, 1e-300):
            s = sl.Chain(size * x, lengths)
            torch.testing.assert_close(
                s.expected(loss, references, 1e-10), s.expected(loss, references), rtol=0, atol=1e-8
            )
    dead = sl.Chain(torch.full((1, 3, 2), -torch.inf)).certified(sl.EditDistance(), [[1]], 0.1)
    assert dead.value.tolist() == [0.0]
    assert sl.Chain(torch.zeros(0, 3, 2)).certified(sl.EditDistance(), [], 0.1).value.shape == (0,)
    found = sl.Chain(x.float(), lengths).certified(sl.EditDistance(), references, 1e-6)
    assert found.value.dtype == found.error_bound.dtype == torch.float32
    exact = sl.Chain(x, lengths).expected(sl.EditDistance(), references)
    assert ((found.value.double() - exact).abs() <= found.error_bound.double() + 1e-6).all()


def test_a_limit_is_kept_and_the_bound_that_was_reached_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "LIMIT", 4)
    monkeypatch.setattr(sparse, "STATES", 12)
    x = torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    loss, reference = sl.EditDistance(cap=6), [[0, 1, 2, 3, 0, 1, 2]]
    exact = sl.Chain(x).expected(loss, reference)
    with pytest.warns(UserWarning, match="tolerance: wanted 1e-06, but the bound is"):
        found = sl.Chain(x).certified(loss, reference, 1e-6)
    assert found.error_bound > 0.01
    assert abs(found.value - exact) <= found.error_bound


def test_long_chains_train_without_a_cap_where_the_whole_machine_is_too_large() -> None:
    generator, reference = np.random.default_rng(0), list(range(30))
    x = torch.from_numpy(generator.normal(size=(1, 30, 30)) + 8 * np.eye(30)[reference]).requires_grad_()
    objective = sl.Risk(sl.EditDistance(window=3), tolerance=0.05)
    value = objective(sl.Chain(x), [reference])
    value.backward()
    assert 0 < value < 2
    assert objective.error_bound.max() <= 0.0501
    assert x.grad.abs().max() > 1e-3
