"""FactorGraph: losses of strings under every method, references in every form, and parts of a batch."""

import functools
import itertools
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

import structloss as sl
from law import edit
from structloss.structures.factor_graph import elimination, factor_graph, parts
from suite import close

SIZES = (2, 3, 3)
OUTPUTS = torch.tensor(list(itertools.product(*map(range, SIZES))))
REFERENCE = [[0, 2], [1, 1, 0, 2]]  # of other lengths than outputs
LOSS, DEFINITION = sl.EditDistance(), edit(1, 1, 1)


def made(
    seed: int, pairs: bool = True, hard: bool = False, dtype: torch.dtype = torch.float64
) -> sl.FactorGraphBuilder:
    torch.manual_seed(seed)
    g = sl.FactorGraphBuilder()
    for size in SIZES:
        g.variable(torch.randn(2, size, dtype=dtype))
    if pairs:
        for u, v in itertools.combinations(range(3), 2):
            g.factor((u, v), 2 * torch.randn(2, SIZES[u], SIZES[v], dtype=dtype))
    if hard:
        g.exactly_one([0])
    return g


def scores(g: sl.FactorGraph) -> Tensor:
    """Of all outputs, (n, B)."""
    return g.score(OUTPUTS[:, None].expand(-1, 2, -1))


def losses() -> Tensor:
    """Of all outputs by definition, (n, B)."""
    wanted = [[frozenset([k]) for k in row] for row in REFERENCE]
    return torch.tensor([[DEFINITION(y, r) for r in wanted] for y in OUTPUTS.tolist()], dtype=torch.float64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scale", [0.7, -2.0])
def test_maxima_with_a_loss_of_strings_under_every_method(seed: int, scale: float) -> None:
    builder = made(seed, hard=seed % 2 > 0)
    wanted = scores(builder.build()) + scale * losses()
    for method in ("exact", "auto", "ilp", "lp"):
        g = builder.build(method=method, tolerance=1e-7).augment(LOSS, REFERENCE, scale)
        close(scores(g), wanted, 1e-9)
        if method == "lp":
            assert (g.max() >= wanted.max(0).values - 1e-6).all()
            continue
        close(g.max(), wanted.max(0).values, 1e-6)
        assert g.argmax().tolist() == OUTPUTS[wanted.argmax(0)].tolist()
        assert g.topk(3)[1][:, 0].tolist() == OUTPUTS[wanted[:, 0].topk(3).indices].tolist()


@pytest.mark.parametrize("seed", range(4))
def test_the_relaxation_of_a_machine_alone_is_tight(seed: int) -> None:
    builder = made(seed, pairs=False)
    relaxed, exact = (builder.build(method=m, tolerance=1e-8).augment(LOSS, REFERENCE, 1.5) for m in ("lp", "exact"))
    assert relaxed.certificate().integral.all()
    close(relaxed.max(), exact.max(), 1e-5)


def test_strata_by_integer_programming() -> None:
    found = [made(1).build(method=method).strata(LOSS, REFERENCE) for method in ("exact", "ilp")]
    assert found[0].outputs.tolist() == found[1].outputs.tolist()
    assert found[0].losses.tolist() == found[1].losses.tolist()


def test_graphs_with_different_losses_are_compared_over_outputs(engine: str) -> None:
    g, other = made(0).build(), made(5).build()
    p = scores(g) + 0.5 * losses()
    ngram = sl.NGram(2)(OUTPUTS[:, None].expand(-1, 2, -1), REFERENCE).double()
    f = scores(other) - 1.5 * ngram + losses()
    augmented = other.augment(sl.NGram(2), REFERENCE, -1.5).augment(LOSS, REFERENCE, 1.0)
    close(g.augment(LOSS, REFERENCE, 0.5).expectation(augmented), (p.softmax(0) * f).sum(0), 1e-6)
    both = g.augment(LOSS, REFERENCE, 0.5).augment(sl.NGram(2), REFERENCE, 2.0)  # the same, in another order
    close(both.expectation(augmented), ((p + 2 * ngram).softmax(0) * f).sum(0), 1e-6)


def test_a_loss_that_is_added_twice_is_added_once_with_both_scales(engine: str) -> None:
    g = made(0).build()
    twice = g.augment(LOSS, REFERENCE, 0.5).augment(LOSS, REFERENCE, 1.5)
    assert twice.inference == g.augment(LOSS, REFERENCE).inference
    close(twice.log_partition(), g.augment(LOSS, REFERENCE, 2.0).log_partition())


def test_outputs_outside_a_loss_are_left_out(engine: str) -> None:
    loss, g = sl.NGram(2, smoothing=0), made(0).build()
    value = loss(OUTPUTS[:, None].expand(-1, 2, -1), REFERENCE)
    inside = torch.where(value.isinf(), -math.inf, scores(g) + value)
    close(g.augment(loss, REFERENCE).log_partition(), inside.logsumexp(0), 1e-6)
    assert g.expected(loss, REFERENCE).isposinf().all()
    uniform = g.augment(loss, REFERENCE).uniform()
    close(uniform.log_partition(), value.isfinite().sum(0).double().log())


def test_the_expected_loss_of_rounding() -> None:
    g = made(2).build(method="lp", tolerance=1e-6)
    relaxed = g.relaxed()
    each = torch.stack([relaxed[:, v, OUTPUTS[:, v]] for v in range(3)]).prod(0)  # (B, n)
    close(g.relaxed_loss(LOSS, REFERENCE), (each * losses().T).sum(1), 1e-6)
    close(g.relaxed_loss(sl.Hamming(), [[0, 1, 2]] * 2), 3 - relaxed[:, [0, 1, 2], [0, 1, 2]].sum(1), 1e-6)


def test_sets_of_labels(engine: str) -> None:
    g, values = made(3).build(), scores(made(3).build())
    sets = torch.ones(2, 3, 3, dtype=torch.bool)
    sets[0, 1], sets[1, 0], sets[1, 2] = torch.tensor([[1, 0, 1], [0, 1, 0], [0, 1, 1]]).bool()
    agree = torch.stack([sets[:, v, OUTPUTS[:, v]] for v in range(3)]).all(0).T
    restricted = torch.where(agree, values, -math.inf)
    close(g.given(sets).log_partition(), restricted.logsumexp(0))
    assert g.given(sets).argmax().tolist() == OUTPUTS[restricted.argmax(0)].tolist()
    wrong = torch.stack([~sets[:, v, OUTPUTS[:, v]] for v in range(3)]).sum(0).T
    for loss in (sl.Hamming(), sl.EditDistance(9.0, 9.0, 9.0) * 0.0 + sl.Hamming()):
        close(g.augment(loss, sets, 2.0).log_partition(), (values + 2 * wrong).logsumexp(0))
    sets[0, 0] = torch.tensor([False, False, True])
    with pytest.raises(ValueError, match=r"reference\[0, 0\] is a set without a label of its own"):
        g.given(sets)
    with pytest.raises(ValueError, match=r"reference\[1, 0\] is 2, but the labels of variable 0 are 0 to 1"):
        g.given([[0, 0, 0], [2, 0, 0]])


@pytest.mark.parametrize("index", [0, -1, slice(1, None), slice(0, 0), [1, 0], [True, False]], ids=repr)
def test_some_of_the_examples(index: object, engine: str) -> None:
    numbers = torch.tensor([0, 1])[index if not isinstance(index, list) else torch.tensor(index)].reshape(-1)
    g = made(4, hard=True).build().augment(LOSS, REFERENCE, 0.5)
    part = g[torch.tensor(index) if isinstance(index, list) else index]
    assert len(part) == len(numbers)
    close(part.log_partition(), g.log_partition()[numbers])
    close(part.marginals(), g.marginals()[numbers])
    assert part.argmax().tolist() == g.argmax()[numbers].tolist()
    reference = torch.tensor([[1, 0, 2], [1, 1, 1]])
    close(part.expected(sl.Hamming(), reference[numbers]), g.expected(sl.Hamming(), reference)[numbers])
    close(part.given(reference[numbers]).max(), g.given(reference).max()[numbers])


def test_what_is_detached_has_no_gradient() -> None:
    g = sl.FactorGraphBuilder()
    g.variables(torch.randn(1, 3, 2, requires_grad=True))
    assert g.build().log_partition().requires_grad
    assert not g.build().augment(LOSS, [[0, 1]]).detach().log_partition().requires_grad
    assert not g.build().detach().marginals().requires_grad


def test_a_reference_that_hard_factors_forbid_is_skipped_or_named() -> None:
    g, reference = made(0, hard=True).build(), torch.tensor([[1, 0, 0], [0, 0, 0]])
    for objective in (sl.NegativeLogLikelihood, sl.Perceptron):
        assert objective(reduction="none")(g, reference).isposinf().tolist() == [False, True]
        with pytest.raises(ValueError, match="no output of example 1 agrees with its reference"):
            objective()(g, reference)
        skipping = objective(impossible="skip")
        assert skipping(g, reference).isfinite()
        assert skipping.skipped == 1


def long(dtype: torch.dtype) -> tuple[sl.FactorGraph, Tensor]:
    torch.manual_seed(0)
    unary = (300 * torch.randn(1, 1500, 3, dtype=torch.float64)).to(dtype).requires_grad_()
    g = sl.FactorGraphBuilder()
    g.variables(unary)
    first = torch.arange(1499)
    g.factors(torch.stack([first, first + 1], 1), 300 * torch.randn(1, 1499, 3, 3).to(dtype))
    return g.build(method="exact"), unary


def test_gradients_of_long_graphs_in_float32(engine: str) -> None:
    """Scores of some 1e6 in all, of which float32 has no digit behind the point left."""
    found = []
    for dtype in (torch.float32, torch.float64):
        g, unary = long(dtype)
        (gradient,) = torch.autograd.grad(g.log_partition().sum(), unary)
        found.append(gradient.double())
    close(found[0].sum(2), torch.ones(1, 1500).double(), 1e-6)
    with torch.no_grad():
        g, _ = long(torch.float32)
        exact = torch.autograd.functional.jacobian(
            lambda x: g._with_potentials((x,)).log_partition().sum(), g._potentials[0].double()
        )
    close(found[0].flatten(), exact[: unary.numel()], 1e-6)


def test_elimination_follows_the_chain_of_states() -> None:
    """A chain of 40 variables with 3 labels, and a capped edit distance: some S * K * (S + K) cells a variable."""
    g = sl.FactorGraphBuilder()
    g.variables(torch.zeros(1, 40, 3))
    g.factors([[v, v + 1] for v in range(39)], torch.zeros(1, 39, 3, 3))
    reference = [[v % 3 for v in range(40)]]
    augmented = g.build(method="exact").augment(sl.EditDistance(cap=2), reference)
    states = sl.EditDistance(cap=2).automaton(reference[0], 3, 40).sizes
    most = sum(3 * a * b + 9 * b for a, b in itertools.pairwise(states.tolist()))
    cells = float(augmented.inference.split()[3])
    assert cells <= 1.2 * most


def test_machines_that_are_too_wide_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    g = sl.FactorGraphBuilder()
    g.variables(torch.zeros(1, 12, 6))
    g.factors(list(itertools.combinations(range(12), 2)), torch.zeros(1, 66, 6, 6))
    reference = [[v % 6 for v in range(12)]]
    graph = g.build(method="exact")
    with pytest.raises(ValueError, match=r"needs more than .* cells to eliminate its variables"):
        graph.augment(sl.EditDistance(cap=1), reference).log_partition()
    monkeypatch.setattr(factor_graph, "MOST", 2.0**6)
    with pytest.raises(ValueError, match=r"the machines of EditDistance.* need tables of .* cells"):
        graph.augment(sl.EditDistance(cap=1), reference)


def test_a_loss_over_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="a sum over boundaries, but wanted a sum over labels"):
        made(0).build().augment(sl.BoundaryTolerance(1), [[0, 1, 2]] * 2)


def test_plans_are_found_by_several_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    small = functools.lru_cache(3)(elimination.remembered_order.__wrapped__)
    monkeypatch.setattr(parts, "remembered_order", small)

    def plan(n: int) -> float:
        g = sl.FactorGraphBuilder()
        g.variables(torch.zeros(1, 2 + n % 7, 2))
        return float(g.build().log_partition())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(plan, range(300))) == [pytest.approx((2 + n % 7) * math.log(2)) for n in range(300)]
    assert small.cache_info().misses > 7  # it has forgotten some, and found them again
