"""Chain: the inherited suite for every order, dense and from emissions, and what only a chain has."""

import itertools
import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import oracle
import structloss as sl
from structloss.structures.chain import native_engine
from suite import Case, StructureSuite, close

LENGTHS = torch.tensor([4, 0, 1, 2])  # powers of two, so that losses divided by a length are exact and ties are ties
T = 4


def hamming(y: Tensor, r: Tensor) -> float:
    return float(sum(a != b for a, b in zip(y.tolist(), r.tolist(), strict=True) if a >= 0 and b != -100))


def relative_hamming(y: Tensor, r: Tensor) -> float:
    length = sum(a >= 0 for a in y.tolist())
    return hamming(y, r) / max(1, length)


def costly(costs: Tensor):
    def loss(y: Tensor, r: Tensor) -> float:
        return sum(costs[b, a].item() for a, b in zip(y.tolist(), r.tolist(), strict=True) if a >= 0 and b != -100)

    return loss


def all_outputs(K: int, lengths: Tensor) -> list[Tensor]:
    return [
        torch.tensor([[*y, *[-1] * (T - length)] for y in itertools.product(range(K), repeat=length)])
        for length in lengths.tolist()
    ]


def dense_score(potentials: Tensor, b: int, y: list[int], q: int) -> Tensor:
    """The definition: a potential for every q labels in a row, index 0 before the first."""
    total = potentials.new_zeros(())
    for t in range(len(y)):
        history = [0] * (q - 1) + y[: t + 1]
        total = total + potentials[(b, t, *history[-q:])]
    return total


def factored_score(parts: list[Tensor], b: int, y: list[int], q: int) -> Tensor:
    emissions, *rest = parts
    total = emissions.new_zeros(())
    for t, label in enumerate(y):
        total = total + emissions[b, t, label]
    if y and q > 1:
        transitions, start, end = rest
        total = total + start[y[0]] + end[y[-1]]
        for t in range(q - 1, len(y)):
            total = total + transitions[tuple(y[t - q + 1 : t + 1])]
    return total


class TestChain(StructureSuite):
    kinds = ("dense 1", "dense 2", "dense 3", "dense 4", "emissions 1", "emissions 2", "emissions 3")
    edges = ("plain", "ties", "forbidden", "empty", "huge", "tiny", "span", "one label")

    def make(self, kind: str, edge: str) -> Case:
        form, q = kind.split()[0], int(kind.split()[1])
        K = 1 if edge == "one label" else 2 if q == 4 else 3
        shapes = [(4, T, *(K,) * q)] if form == "dense" else [(4, T, K)]
        if form == "emissions" and q > 1:
            shapes += [(K,) * q, (K,), (K,)]
        potentials = [self.edge(torch.randn(shape, dtype=torch.float64), edge) for shape in shapes]
        if edge == "empty":
            potentials[0][0, 2] = -math.inf  # example 0 has no output
        for b, length in enumerate(LENGTHS.tolist()):  # garbage where it must not matter
            potentials[0][b, length:] = math.nan if b % 2 else math.inf
        if form == "dense" and q > 1:
            potentials[0][:, 0, 1:] = math.nan  # rows of histories that do not exist at the first position
        leaves = tuple(x.requires_grad_() for x in potentials)

        def build(x):
            if form == "dense":
                return sl.Chain(x[0], LENGTHS)
            return sl.Chain.from_emissions(x[0], *x[1:], lengths=LENGTHS)

        outputs = all_outputs(K, LENGTHS)

        def score(x):
            definition = dense_score if form == "dense" else factored_score
            arguments = x[0] if form == "dense" else list(x)
            return [
                torch.stack([definition(arguments, b, [v for v in y if v >= 0], q) for y in ys.tolist()])
                for b, ys in enumerate(outputs)
            ]

        reference = torch.randint(0, K, (4, T))
        partial = torch.where(torch.rand(4, T) < 0.5, reference, -100)
        costs = torch.randint(0, 4, (K, K)).double() * 0.25
        losses = [
            (sl.Hamming(), hamming),
            (sl.Hamming(normalize=True), relative_hamming),
            (sl.Hamming(costs), costly(costs)),
        ]
        beyond = torch.arange(T) >= LENGTHS[:, None]
        return Case(
            leaves, build, outputs, score, reference.masked_fill(beyond, 10**9), partial.masked_fill(beyond, -7), losses
        )

    @staticmethod
    def edge(x: Tensor, edge: str) -> Tensor:
        if edge == "ties":
            return torch.randint(0, 2, x.shape).double()
        if edge == "forbidden":
            return torch.where(torch.rand(x.shape) < 0.3, -math.inf, x)
        if edge == "huge":
            return x * 1e6
        if edge == "tiny":
            return x * 1e-9
        if edge == "span":  # some levels just below the span that scaled arithmetic takes, some just above
            return torch.where(torch.rand(x.shape) < 0.5, x, x - 199)
        return x

    def marginals_by_enumeration(self, case: Case) -> Tensor:
        chain = case.structure()
        K, q = chain.num_labels, chain._parts.order
        found = torch.zeros(4, T, *(K,) * q, dtype=torch.float64)
        for b, s in enumerate(case.score(case.potentials)):
            for y, p in zip(case.outputs[b].tolist(), oracle.probabilities(s.detach()), strict=True):
                labels = [0] * (q - 1) + [v for v in y if v >= 0]
                for t in range(len(labels) - q + 1):
                    found[(b, t, *labels[t : t + q])] += p
        return found

    def make_long(self, positions: int, dtype: torch.dtype):
        generator = torch.Generator().manual_seed(3)
        emissions = 3 * torch.randn(2, positions, 4, generator=generator, dtype=torch.float64)
        transitions = torch.randn(4, 4, generator=generator, dtype=torch.float64)
        reference = torch.randint(0, 4, (2, positions), generator=generator)
        return sl.Chain.from_emissions(emissions.to(dtype), transitions.to(dtype)), reference


def strings_of(reference: list[list[int]]) -> list[np.ndarray]:
    return [np.array(r, np.int64) for r in reference]


class TestAugmentedChain(TestChain):
    """A chain augmented with a machine is a structure: it gets the whole suite."""

    kinds = ("edit dense 2", "capped emissions 2", "smith dense 1", "ngram emissions 3", "both dense 2")
    edges = ("plain", "ties", "forbidden", "empty", "huge", "span", "one label")
    references: ClassVar = [[0, 2, 1], [1], [], [1, 1, 5]]

    def make(self, kind: str, edge: str) -> Case:
        name, rest = kind.split(" ", 1)
        losses = {
            "edit": [(sl.EditDistance(), 0.5)],
            "capped": [(sl.EditDistance(1.0, 3.0, 2.0, cap=4), -1.0)],
            "smith": [(sl.SmithWaterman(), 0.25)],
            "ngram": [(sl.NGram(2), 2.0)],
            "both": [(sl.EditDistance(cap=2), 1.5), (sl.SmithWaterman(cap=3), -0.5)],
        }[name]
        case = super().make(rest, edge)
        plain_build, plain_score = case.build, case.score

        def build(x):
            chain = plain_build(x)
            for loss, scale in losses:
                chain = chain.augment(loss, self.references, scale)
            return chain

        def score(x):
            return [
                s
                + sum(
                    scale * torch.tensor([loss.distance(y[y >= 0], r) for y in ys.numpy()], dtype=torch.float64)
                    for loss, scale in losses
                )
                for s, ys, r in zip(plain_score(x), case.outputs, strings_of(self.references), strict=True)
            ]

        case.build, case.score = build, score
        if edge in ("ties", "huge") and name == "ngram":
            case.losses = []  # logarithms of counts do not add up exactly: what is a tie depends on the order
        return case

    def make_long(self, positions: int, dtype: torch.dtype):
        chain, reference = super().make_long(positions, dtype)
        chain = chain.augment(sl.EditDistance(cap=2), reference)
        return chain, reference


class TestMachineLosses:
    """Every objective under every loss that is a machine, against enumeration."""

    losses = (
        sl.EditDistance(),
        sl.EditDistance(cap=2),
        sl.EditDistance(1.0, 3.0, 2.0),
        sl.EditDistance(torch.tensor([[0.0, 1.0, 2.0], [0.5, 0.0, 1.0], [1.0, 1.0, 0.0]]), cap=3),
        sl.SmithWaterman(),
        sl.SmithWaterman(cap=3),
        sl.NGram(1),
        sl.NGram(2, smoothing=0.5),
    )

    @pytest.mark.parametrize("loss", losses, ids=repr)
    @pytest.mark.parametrize("kind", ["dense 1", "dense 2", "emissions 2", "dense 3", "emissions 3"])
    def test_every_objective(self, kind: str, loss: sl.Loss, engine: str) -> None:
        suite = TestChain()
        case = suite.make(kind, "plain")
        within = [r[r < 10**9] for r in case.reference]  # the reference is an output, so that it has a score
        vectors = [
            torch.tensor([loss.distance(y[y >= 0], r.numpy()) for y in ys.numpy()], dtype=torch.float64)
            for ys, r in zip(case.outputs, within, strict=True)
        ]
        scores, agree = case.score(case.potentials), case.agree(case.reference)
        for name, (objective, formula) in oracle.objectives(loss).items():
            wanted = [formula(*x) for x in zip(scores, vectors, agree, strict=True)]
            try:
                suite.compare(case, objective(case.structure(), case.reference), wanted, 1e-9)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error

    def test_references_of_other_lengths(self, engine: str) -> None:
        """Longer, shorter, empty, and with labels that no output has: the loss is still a loss."""
        case = TestChain().make("emissions 2", "plain")
        references = [[0, 1, 2, 2, 1, 0, 1], [1, 1], [], [7, 0, 9]]
        for loss in self.losses:
            if isinstance(loss, sl.EditDistance) and not isinstance(loss.substitution, float):
                continue  # costs for three labels say nothing of label 7
            vectors = [
                torch.tensor([loss.distance(y[y >= 0], r) for y in ys.numpy()], dtype=torch.float64)
                for ys, r in zip(case.outputs, strings_of(references), strict=True)
            ]
            scores = case.score(case.potentials)
            risk = [oracle.expectation(s, v) for s, v in zip(scores, vectors, strict=True)]
            TestChain().compare(case, case.structure().expected(loss, references), risk, 1e-9)
            augmented = case.structure().augment(loss, references).log_partition()
            wanted = [oracle.log_partition(s + v) for s, v in zip(scores, vectors, strict=True)]
            TestChain().compare(case, augmented, wanted, 1e-9)

    def test_strings_outside_an_unsmoothed_ngram_loss_are_outside_the_sum(self, engine: str) -> None:
        case = TestChain().make("dense 2", "plain")
        loss, references = sl.NGram(2, smoothing=0.0), [[0, 1, 2], [0], [1], [2, 1]]
        vectors = [
            torch.tensor([loss.distance(y[y >= 0], r) for y in ys.numpy()], dtype=torch.float64)
            for ys, r in zip(case.outputs, strings_of(references), strict=True)
        ]
        shifted = [
            torch.where(v < math.inf, s + v.nan_to_num(posinf=0.0), -math.inf)
            for s, v in zip(case.score(case.potentials), vectors, strict=True)
        ]
        augmented = case.structure().augment(loss, references)
        TestChain().compare(case, augmented.log_partition(), [oracle.log_partition(s) for s in shifted], 1e-9)
        TestChain().compare(case, augmented.max(), [oracle.best(s) for s in shifted], 1e-9)

    def test_a_cap_of_zero_makes_every_loss_the_same(self) -> None:
        chain = sl.Chain(torch.randn(2, 5, 3, 3))
        reference = torch.randint(0, 3, (2, 5))
        torch.testing.assert_close(
            chain.augment(sl.EditDistance(cap=0), reference).log_partition(), chain.log_partition()
        )

    def test_bad_arguments_are_named(self) -> None:
        chain = sl.Chain(torch.zeros(2, 3, 4), lengths=[3, 2])
        with pytest.raises(ValueError, match="insertion: got -1"):
            sl.EditDistance(insertion=-1)
        with pytest.raises(ValueError, match="cap: got -2"):
            sl.EditDistance(cap=-2)
        with pytest.raises(ValueError, match="n: got 0"):
            sl.NGram(0)
        with pytest.raises(ValueError, match=r"reference\[0\]\[1\] is -7, but labels are at least 0, or -100"):
            chain.augment(sl.EditDistance(), [[0, -7, 1], [0, 1]])
        with pytest.raises(ValueError, match=r"reference: got shape \(1, 2\)"):
            chain.augment(sl.EditDistance(), [[0, 1]])
        with pytest.raises(sl.TooManyStatesError, match=r"passed 50 states at position .* a cap"):
            sl.EditDistance(max_states=50).automaton(list(range(10)), 10, 10)


class TestBeam:
    """Certified truncation: never more wrong than it says, and exact where it says 0."""

    LOSSES = (
        sl.EditDistance(), sl.EditDistance(1, 3, 2, cap=4), sl.SmithWaterman(), sl.NGram(2), sl.NGram(2, smoothing=0),
        0.5 * sl.EditDistance() + -2 * sl.NGram(2), sl.Hamming(),
    )  # fmt: skip

    @pytest.mark.parametrize("order", [1, 2, 3])
    @pytest.mark.parametrize("loss", LOSSES, ids=str)
    def test_the_bound_holds(self, loss: sl.Loss, order: int, engine: str) -> None:
        potentials = 2 * torch.randn(4, 7, *(4,) * order, dtype=torch.float64)
        potentials[1, 3, ..., 0] = -math.inf
        references = [[0, 1, 2, 3, 3, 1, 0], [1, 2, 3, 0, 1], [], [2, 1]]
        chain = sl.Chain(potentials, [7, 5, 0, 2])
        truncated_somewhere = False
        for scale in (1.0, -0.7):
            exact = chain.augment(loss, references, scale)
            for beam in (1, 4, 15, 10_000):
                found = chain.augment(loss, references, scale, beam=beam)
                bound = found.error_bound
                truncated_somewhere |= bool((bound > 0).any())
                error = 1 - (found.log_partition() - exact.log_partition()).exp().nan_to_num(1.0)
                marginal = (found.marginals() - exact.marginals()).abs().flatten(1).amax(1)
                assert (error > -1e-9).all()
                assert (error < bound + 1e-9).all()
                assert (marginal < bound + 1e-9).all()
                assert (bound[bound > 0] <= 1).all()
                assert beam < 10_000 or (bound == 0).all()
        assert truncated_somewhere or isinstance(loss, sl.Hamming)

    def test_a_machine_that_is_too_large_to_be_built(self) -> None:
        """Edit distance without a cap, 60 labels: hopeless exactly."""
        generator = torch.Generator().manual_seed(0)
        reference = torch.randint(0, 20, (1, 60), generator=generator)
        peaked = 12.0 * torch.nn.functional.one_hot(reference, 20).double()
        chain = sl.Chain(peaked + torch.randn(1, 60, 20, generator=generator, dtype=torch.float64))
        bounds = [chain.augment(sl.EditDistance(), reference, beam=n).error_bound.item() for n in (10, 100, 400)]
        assert bounds[0] > bounds[1] > bounds[2]
        assert bounds[2] < 1e-3

    def test_what_is_derived_from_a_truncated_chain_is_certified_of_nothing(self) -> None:
        chain, reference = sl.Chain(torch.randn(2, 6, 3)), torch.randint(0, 3, (2, 6))
        found = chain.augment(sl.EditDistance(), reference, beam=3)
        assert (found.error_bound > 0).all()
        assert (found.given(reference).error_bound == 1).all()
        assert (chain.error_bound == 0).all()
        with pytest.raises(NotImplementedError, match="carries a loss already"):
            found.augment(sl.EditDistance(), reference, beam=3)
        with pytest.raises(ValueError, match="beam: got 0"):
            chain.augment(sl.EditDistance(), reference, beam=0)


class TestSafety:
    """Scaled arithmetic must step aside where it would lose something."""

    def test_a_path_that_falls_behind_by_a_thousand_nats_and_is_the_only_one_left(self, engine: str) -> None:
        length = 200
        emissions = torch.zeros(1, length, 2, dtype=torch.float64)
        emissions[0, :, 1] = -20.0
        emissions[0, -1, 0] = -math.inf  # only label 1 may end
        stay = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]], dtype=torch.float64)
        chain = sl.Chain.from_emissions(emissions.requires_grad_(), stay)
        value = chain.log_partition()
        close(value.detach(), torch.tensor([-20.0 * length], dtype=torch.float64))
        value.sum().backward()
        assert emissions.grad is not None
        close(emissions.grad[0, :, 1], torch.ones(length, dtype=torch.float64))

    @pytest.mark.parametrize("span", [190.0, 199.9, 200.1, 260.0, 800.0, 1e5])
    def test_both_sides_of_the_border(self, span: float) -> None:
        emissions = torch.randn(3, 6, 3, dtype=torch.float64)
        emissions[:, ::2, 1] -= span
        transitions = torch.randn(3, 3, dtype=torch.float64)
        transitions[1, 1] += span
        found = []
        for name in ("native", "torch"):
            with sl.engine(name):
                leaf = emissions.clone().requires_grad_()
                value = sl.Chain.from_emissions(leaf, transitions).log_partition()
                found.append((value.detach(), *torch.autograd.grad(value.sum(), leaf)))
        close(found[0][0], found[1][0])
        close(found[0][1], found[1][1], 1e-10 * max(1.0, span / 100))

    def test_scores_of_1e_minus_300(self, engine: str) -> None:
        chain = sl.Chain(torch.full((2, 5, 3, 3), 1e-300, dtype=torch.float64))
        close(chain.log_partition(), torch.full((2,), 5 * math.log(3), dtype=torch.float64), 1e-14)

    def test_soft_forbidding_with_minus_ten_thousand(self) -> None:
        transitions = torch.zeros(3, 3)
        transitions[0, 1] = -1e4
        chain = sl.Chain.from_emissions(torch.zeros(1, 3, 3), transitions)
        hard = sl.Chain.from_emissions(torch.zeros(1, 3, 3), transitions.masked_fill(transitions < 0, -math.inf))
        close(chain.log_partition(), hard.log_partition(), 1e-6)


class TestSideBySide:
    """Batches of the usual CRF go through a kernel of their own; what it cannot do safely is done one by one."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_examples_whose_loss_adds_nothing_go_side_by_side(self, dtype: torch.dtype, monkeypatch) -> None:
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
        loss = sl.ChunkErrors(["O", "B-A", "I-A", "B-B", "I-B"], miss=1.5)
        lengths, labels = torch.randint(0, 8, (48,)), torch.randint(0, 5, (48, 7))
        labels[::2] = 0  # without chunks
        labels = torch.where(torch.arange(7) < lengths[:, None], labels, -1)
        emissions, layer, found = torch.randn(48, 7, 5, dtype=dtype), sl.ChainLayer(5).to(dtype), []
        for name in ("native", "torch"):
            with sl.engine(name):
                leaf = emissions.clone().requires_grad_()
                augmented = layer(leaf, lengths).augment(loss, labels)
                value = augmented.log_partition()
                weights = torch.linspace(0.5, 1.5, 48, dtype=dtype)
                found.append(
                    (value.detach(), *torch.autograd.grad((weights * value).sum(), [leaf, *layer.parameters()]))
                )
        parts = augmented._parts
        assert 24 <= len(native_engine._side_by_side(parts.arrays, parts.machines)) < 48
        for native, tensors in zip(*found, strict=True):
            close(native, tensors, 1e-10 if dtype == torch.float64 else 2e-5)

    @pytest.mark.parametrize("labels", [1, 3, 10, 17])
    @pytest.mark.parametrize("batch", [20, 32, 70])
    def test_it_gives_what_the_torch_engine_gives(self, labels: int, batch: int, monkeypatch) -> None:
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)  # more threads make one by one the faster way
        positions = 9
        lengths = torch.randint(0, positions + 1, (batch,))
        emissions = torch.randn(batch, positions, labels, dtype=torch.float64)
        emissions[3, 5, 0] -= 300.0  # a span that is not safe
        emissions[5, :, 0] += 150.0  # one that is
        if labels > 1:
            emissions[4, 5, 1] = -math.inf
            emissions[6, 2] = -math.inf  # no output, where it is long enough
        for b, length in enumerate(lengths.tolist()):
            emissions[b, length:] = math.nan
        layer = sl.ChainLayer(labels).double()
        weights = torch.linspace(0.5, 1.5, batch, dtype=torch.float64)
        found = []
        for name in ("native", "torch"):
            with sl.engine(name):
                leaf = emissions.clone().requires_grad_()
                value = layer(leaf, lengths).log_partition()
                finite = torch.where(value > -math.inf, value, 0)
                found.append(
                    (value.detach(), *torch.autograd.grad((weights * finite).sum(), [leaf, *layer.parameters()]))
                )
        parts = layer(emissions, lengths)._parts
        assert len(native_engine._side_by_side(parts.arrays, parts.machines)) == batch
        for mine, theirs in zip(*found, strict=True):
            close(mine, theirs)

    def test_forbidden_transitions_are_done_one_by_one(self) -> None:
        transitions = torch.zeros(3, 3, dtype=torch.float64)
        transitions[0, 1] = -math.inf
        emissions = torch.randn(64, 7, 3, dtype=torch.float64)
        native = sl.Chain.from_emissions(emissions, transitions).log_partition()
        with sl.engine("torch"):
            close(native, sl.Chain.from_emissions(emissions, transitions).log_partition())

    @pytest.mark.parametrize("position", [0, 2, 4])
    def test_an_example_without_an_output_is_left_to_itself(self, position: int) -> None:
        emissions = torch.randn(16, 5, 3, dtype=torch.float64)
        emissions[3, position] = -math.inf
        chain = sl.Chain.from_emissions(emissions, torch.randn(3, 3, dtype=torch.float64))
        with sl.engine("torch"):
            wanted = chain.log_partition()
        assert wanted[3] == -math.inf
        close(chain.log_partition(), wanted)
        emissions[5, position, 1] = math.nan
        with pytest.raises(ValueError, match="example 5 has NaN"):
            sl.Chain.from_emissions(emissions, torch.zeros(3, 3, dtype=torch.float64)).log_partition()


class TestDirectLossGradient:
    def test_it_is_the_difference_of_feature_counts(self, engine: str) -> None:
        """McAllester 2010 (8): the gradient is (phi(y_w) - phi(y_direct)) / epsilon, exactly."""
        K, epsilon = 3, 0.25
        potentials = torch.randn(5, 6, K, K, dtype=torch.float64, requires_grad=True)
        reference = torch.randint(0, K, (5, 6))
        chain = sl.Chain(potentials)
        value = sl.DirectLoss(sl.Hamming(), epsilon=epsilon, reduction="sum")(chain, reference)
        (gradient,) = torch.autograd.grad(value, potentials)

        def phi(labels: Tensor) -> Tensor:
            counts = torch.zeros_like(potentials)
            for b, y in enumerate(labels.tolist()):
                for t, label in enumerate(y):
                    counts[b, t, y[t - 1] if t else 0, label] += 1
            return counts

        direct = chain.augment(sl.Hamming(), reference, -epsilon).argmax()
        assert not torch.equal(direct, chain.argmax())
        assert torch.equal(gradient, (phi(chain.argmax()) - phi(direct)) / epsilon)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_a_layer_is_made_where_and_as_it_is_wanted(order: int) -> None:
    layer = sl.ChainLayer(3, order, device="meta", dtype=torch.float64)
    assert {(x.device.type, x.dtype) for x in layer.parameters()} == {("meta", torch.float64)}
