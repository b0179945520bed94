"""The suite that every structure inherits: a new structure adds generators, and gets all of these tests.

A structure's test class names its `kinds` (ways to build one) and `edges` (what its scores look like), and writes
`make`, which returns a `Case`: a small batch whose outputs can all be listed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import oracle
import structloss as sl
from structloss import Structure

INF = torch.inf

# The Jacobian times random vectors is checked quickly, every entry of it slowly.
projected = pytest.mark.parametrize(
    "fast", [pytest.param(True, id="projected"), pytest.param(False, id="entries", marks=pytest.mark.slow)]
)


@dataclass
class Case:
    potentials: tuple[Tensor, ...]  # float64 leaves
    build: Callable[[Sequence[Tensor]], Structure]
    outputs: list[Tensor]  # of each example, (n, T) in lexicographic order, -1 beyond the length
    score: Callable[[Sequence[Tensor]], list[Tensor]]  # of each example's outputs, (n,), by the definition
    reference: Tensor
    partial: Tensor  # a reference with unknown labels
    losses: list[tuple[sl.Loss, Callable[[Tensor, Tensor], float]]]  # each with its definition for one (y, r)

    def structure(self) -> Structure:
        return self.build(self.potentials)

    def loss_vectors(self, definition: Callable[[Tensor, Tensor], float], reference: Tensor) -> list[Tensor]:
        return [
            torch.tensor([definition(y, r) for y in outputs], dtype=torch.float64)
            for outputs, r in zip(self.outputs, reference, strict=True)
        ]

    def agree(self, reference: Tensor) -> list[Tensor]:
        return [((y == r) | (r == -100) | (y == -1)).all(1) for y, r in zip(self.outputs, reference, strict=True)]


def close(actual: Tensor, wanted: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance, equal_nan=False)


def gradients(value: Tensor, potentials: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of the sum of the finite values: an infinite value has none to compare."""
    value = value[value.detach().isfinite()].sum()
    if not value.requires_grad:
        return [torch.zeros_like(x) for x in potentials]
    found = torch.autograd.grad(value, potentials, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, potentials, strict=True)]


class StructureSuite:
    """Inherit it, name `kinds` and `edges`, write `make`."""

    kinds: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    scale: float = 1.0
    has_strata: bool = True  # whether SlackHinge is for it

    def make(self, kind: str, edge: str) -> Case:
        raise NotImplementedError

    def make_long(self, positions: int, dtype: torch.dtype) -> tuple[Structure, Tensor]:
        """A structure of many positions, and a reference."""
        raise NotImplementedError

    def compare(self, case: Case, actual: Tensor, wanted: list[Tensor], tolerance: float = 1e-10) -> None:
        """Values and gradients."""
        target = torch.stack(wanted)
        size = max(1.0, *(x.detach()[x.isfinite()].abs().max().item() for x in case.potentials if x.isfinite().any()))
        tolerance = max(tolerance, 1e-14 * size)  # what rounding leaves of a difference of scores of this size
        close(actual.detach(), target.detach(), tolerance)
        for a, w in zip(gradients(actual, case.potentials), gradients(target, case.potentials), strict=True):
            close(a, w.nan_to_num(0.0), tolerance)

    def test_score(self, kind: str, edge: str, engine: str) -> None:
        case = self.make(kind, edge)
        s, scores = case.structure(), case.score(case.potentials)
        y = torch.stack([outputs[min(1, len(outputs) - 1)] for outputs in case.outputs])
        self.compare(case, s.score(y), [x[min(1, len(x) - 1)] for x in scores])

    def test_log_partition(self, kind: str, edge: str, engine: str) -> None:
        case = self.make(kind, edge)
        self.compare(
            case, case.structure().log_partition(), [oracle.log_partition(s) for s in case.score(case.potentials)]
        )

    def test_max_and_argmax(self, kind: str, edge: str, engine: str) -> None:
        case = self.make(kind, edge)
        s, scores = case.structure(), case.score(case.potentials)
        self.compare(case, s.max(), [oracle.best(x) for x in scores])
        for y, outputs, x in zip(s.argmax(), case.outputs, scores, strict=True):
            wanted = outputs[oracle.first_best(x)] if oracle.allowed(x).any() else torch.full_like(y, -1)
            assert y.tolist() == wanted.tolist()

    def test_log_prob_of_every_output_sums_to_one(self, kind: str, edge: str, engine: str) -> None:
        case = self.make(kind, edge)
        s = case.structure()
        for b, outputs in enumerate(case.outputs):
            if not oracle.allowed(case.score(case.potentials)[b]).any():
                continue
            others = [o[0].expand(len(outputs), -1) for o in case.outputs]
            y = torch.stack([outputs if i == b else other for i, other in enumerate(others)], 1)  # (n, B, T)
            close(s.log_prob(y)[:, b].exp().sum(), torch.tensor(1.0, dtype=torch.float64), 1e-8)

    def test_topk(self, kind: str, edge: str, engine: str) -> None:
        case, k = self.make(kind, edge), 6
        scores, outputs = case.structure().topk(k)
        for b, s in enumerate(case.score(case.potentials)):
            values = s.detach()
            order = sorted(range(len(values)), key=lambda i: (-values[i].item(), i))
            order = [i for i in order if values[i] > -INF][:k]
            close(scores[: len(order), b].detach(), values[order])
            assert outputs[: len(order), b].tolist() == case.outputs[b][order].tolist()
            assert (scores[len(order) :, b] == -INF).all()
            assert (outputs[len(order) :, b] == -1).all()

    def test_topk_scores_are_differentiable(self, kind: str, engine: str) -> None:
        case = self.make(kind, "plain")
        scores, _ = case.structure().topk(2)
        wanted = [s.sort(descending=True).values[:2].sum() for s in case.score(case.potentials)]
        self.compare(case, torch.where(scores > -INF, scores, 0).sum(0), wanted)

    def test_marginals_are_the_gradient_of_log_partition(self, kind: str, edge: str, engine: str) -> None:
        case = self.make(kind, edge)
        found = case.structure().marginals().detach()
        close(found, self.marginals_by_enumeration(case), 1e-9)

    def marginals_by_enumeration(self, case: Case) -> Tensor:
        raise NotImplementedError

    def test_entropy(self, kind: str, edge: str, engine: str) -> None:
        case = self.make(kind, edge)
        self.compare(case, case.structure().entropy(), [oracle.entropy(s) for s in case.score(case.potentials)], 1e-9)

    def test_kl(self, kind: str, engine: str) -> None:
        case = self.make(kind, "plain")
        other = [torch.randn_like(x) for x in case.potentials]
        scores, others = case.score(case.potentials), case.score(other)
        wanted = [oracle.kl(s, o) for s, o in zip(scores, others, strict=True)]
        self.compare(case, case.structure().kl(case.build(other)), wanted, 1e-9)
        close(case.structure().kl(case.structure()).detach(), torch.zeros(len(wanted), dtype=torch.float64), 1e-9)

    def test_expectation_of_another_structure(self, kind: str, edge: str, engine: str) -> None:
        case = self.make(kind, edge)
        other = tuple(torch.randn_like(x).requires_grad_() for x in case.potentials)
        scores, others = case.score(case.potentials), case.score(other)
        wanted = [oracle.expectation(s, o) for s, o in zip(scores, others, strict=True)]
        found = case.structure().expectation(case.build(other))
        self.compare(case, found, wanted, 1e-9)
        for a, w in zip(gradients(found, other), gradients(torch.stack(wanted), other), strict=True):
            close(a, w, 1e-9)

    def test_every_objective(self, kind: str, edge: str, engine: str) -> None:
        case = self.make(kind, edge)
        if not case.losses:
            pytest.skip("what is a tie depends on the order of rounding here")
        s = case.structure()
        for loss, definition in case.losses:
            for reference in (case.reference, case.partial):
                scores, agrees = case.score(case.potentials), case.agree(reference)
                vectors = case.loss_vectors(definition, reference)
                for name, (objective, formula) in oracle.objectives(loss).items():
                    if name == "SlackHinge" and not self.has_strata:
                        continue
                    wanted = [formula(*x) for x in zip(scores, vectors, agrees, strict=True)]
                    # Where an objective is inf, or inf - inf, there is nothing to compare; the other examples are.
                    finite = torch.stack(wanted).detach().isfinite()
                    assert edge in ("empty", "forbidden") or finite.all()
                    try:
                        self.compare(case, objective(s, reference)[finite], list(torch.stack(wanted)[finite]))
                    except AssertionError as error:
                        raise AssertionError(f"{name} under {loss!r}: {error}") from error

    def test_strata(self, kind: str, edge: str, engine: str) -> None:
        case = self.make(kind, edge)
        if not self.has_strata:
            with pytest.raises(NotImplementedError, match="cannot tell its outputs apart by their loss"):
                case.structure().strata(case.losses[0][0], case.reference)
            return
        scores = [s.detach() for s in case.score(case.potentials)]
        for loss, definition in case.losses[:3]:
            vectors = case.loss_vectors(definition, case.reference)
            for lowest in (False, True):
                strata = case.structure().strata(loss, case.reference, lowest)
                for b, (s, v) in enumerate(zip(scores, vectors, strict=True)):
                    values = torch.unique(v[s > -INF])
                    values = values[torch.diff(values, prepend=torch.tensor([-INF])) > 1e-8]
                    here = strata.exists[:, b]
                    assert strata.losses[here, b].tolist() == pytest.approx(values.tolist())
                    for value, y in zip(values, strata.outputs[here, b].tolist(), strict=True):
                        among = torch.where(((v - value).abs() < 1e-8) & (s > -INF), -s if lowest else s, -INF)
                        assert y == case.outputs[b][oracle.first_best(among)].tolist()
                    assert (strata.outputs[~here, b] == -1).all()

    def test_augment_adds_the_loss_and_given_restricts(self, kind: str, engine: str) -> None:
        case = self.make(kind, "plain")
        for loss, definition in case.losses:
            vectors, agrees = case.loss_vectors(definition, case.partial), case.agree(case.partial)
            scores = case.score(case.potentials)
            augmented = case.structure().augment(loss, case.partial, -2.0)
            shifted = [s - 2 * v for s, v in zip(scores, vectors, strict=True)]
            self.compare(case, augmented.log_partition(), [oracle.log_partition(s) for s in shifted])
            both = augmented.given(case.partial)
            restricted = [s[a] for s, a in zip(shifted, agrees, strict=True)]
            self.compare(case, both.log_partition(), [oracle.log_partition(s) for s in restricted])
            self.compare(case, both.max(), [oracle.best(s) for s in restricted])
            self.compare(case, both.entropy(), [oracle.entropy(s) for s in restricted], 1e-9)
            assert both.argmax().tolist() == [
                o[a][oracle.first_best(s)].tolist() for o, a, s in zip(case.outputs, agrees, restricted, strict=True)
            ]

    def test_loss_by_its_own_definition(self, kind: str) -> None:
        case = self.make(kind, "plain")
        for loss, definition in case.losses:
            for b, outputs in enumerate(case.outputs):
                reference = case.partial[b].expand(len(outputs), -1)
                close(loss(outputs, reference).double(), case.loss_vectors(definition, case.partial)[b], 1e-6)

    def test_samples_follow_the_distribution(self, kind: str, engine: str) -> None:
        case, n = self.make(kind, "plain"), 4000
        drawn = case.structure().sample(n, torch.Generator().manual_seed(1))
        for b, (outputs, s) in enumerate(zip(case.outputs, case.score(case.potentials), strict=True)):
            index = {tuple(y): i for i, y in enumerate(outputs.tolist())}
            counts = torch.zeros(len(outputs), dtype=torch.float64)
            for y in drawn[:, b].tolist():
                counts[index[tuple(y)]] += 1
            p = oracle.probabilities(s.detach())
            # Pearson's statistic over cells that expect at least 5, against its mean plus six deviations.
            cells = p * n >= 5
            statistic = ((counts - n * p) ** 2 / (n * p))[cells].sum().item()
            freedom = int(cells.sum())
            assert statistic < freedom + 6 * (2 * freedom) ** 0.5 + 6

    def test_both_engines_draw_the_same_samples(self, kind: str, edge: str) -> None:
        case = self.make(kind, edge)
        empty = [b for b, s in enumerate(case.score(case.potentials)) if not oracle.allowed(s).any()]
        drawn = []
        for name in ("native", "torch"):
            with sl.engine(name):
                if empty:
                    with pytest.raises(ValueError, match=f"example {empty[0]} has no output"):
                        case.structure().sample(20)
                else:
                    drawn.append(case.structure().sample(20, torch.Generator().manual_seed(2)))
        assert empty or torch.equal(*drawn)

    @projected
    def test_gradcheck(self, kind: str, engine: str, fast: bool) -> None:
        case = self.make(kind, "plain")
        loss = case.losses[0][0]
        operations = {
            "log_partition": lambda s: s.log_partition(),
            "given": lambda s: s.given(case.partial).log_partition(),
            "risk": lambda s: s.expected(loss, case.partial),
            "entropy": lambda s: s.entropy(),
            "score": lambda s: s.score(torch.stack([outputs[-1] for outputs in case.outputs])),
        }
        for name, operation in operations.items():
            function = lambda *x, f=operation: f(case.build(x))  # noqa: E731
            assert torch.autograd.gradcheck(function, case.potentials, fast_mode=fast), name

    @projected
    def test_gradgradcheck_in_the_torch_engine(self, kind: str, fast: bool) -> None:
        case = self.make(kind, "plain")
        loss = case.losses[0][0]
        with sl.engine("torch"):
            for operation in (lambda s: s.log_partition(), lambda s: s.expected(loss, case.partial)):
                function = lambda *x, f=operation: f(case.build(x))  # noqa: E731
                assert torch.autograd.gradgradcheck(function, case.potentials, fast_mode=fast)

    def test_a_second_derivative_in_the_native_engine_is_a_clear_error(self, kind: str) -> None:
        case = self.make(kind, "plain")
        for value in (case.structure().log_partition().sum(), case.structure().entropy().sum()):
            first = torch.autograd.grad(value, case.potentials, create_graph=True, allow_unused=True)
            with pytest.raises(NotImplementedError, match=r'engine\("torch"\)'):
                torch.autograd.grad(sum(g.sum() for g in first if g is not None), case.potentials, allow_unused=True)
        with pytest.raises(NotImplementedError, match=r'engine\("torch"\)'):
            case.structure().marginals().sum().backward()

    def test_a_graph_can_be_walked_twice(self, kind: str, engine: str) -> None:
        case = self.make(kind, "plain")
        for value in (case.structure().log_partition().sum(), case.structure().entropy().sum()):
            first = torch.autograd.grad(value, case.potentials, retain_graph=True, allow_unused=True)
            first = [g.clone() for g in first if g is not None]
            second = [g for g in torch.autograd.grad(value, case.potentials, allow_unused=True) if g is not None]
            for a, b in zip(first, second, strict=True):
                assert torch.equal(a, b)

    def test_float32_is_close_to_float64(self, kind: str, engine: str) -> None:
        case = self.make(kind, "plain")
        loss = case.losses[0][0]
        single = tuple(x.detach().float().requires_grad_() for x in case.potentials)
        objectives = [sl.NegativeLogLikelihood(), sl.SoftmaxMargin(loss), sl.Risk(loss)]
        for objective in objectives + [sl.SlackHinge(loss)] * self.has_strata:
            wanted = objective(case.structure(), case.reference)
            found = objective(case.build(single), case.reference)
            assert found.dtype == torch.float32
            close(found.double().detach(), wanted.detach(), 1e-5)
            for a, w in zip(gradients(found[None], single), gradients(wanted[None], case.potentials), strict=True):
                assert a.dtype == torch.float32
                close(a.double(), w, 1e-5)

    def test_two_thousand_positions(self, engine: str) -> None:
        values = {}
        for dtype in (torch.float64, torch.float32):
            s, reference = self.make_long(2000, dtype)
            value = sl.NegativeLogLikelihood()(s, reference)
            assert value.isfinite()
            values[dtype] = value.item()
            assert (s.score(s.argmax()) >= s.given(reference).max() - 1e-3).all()
        assert values[torch.float32] == pytest.approx(values[torch.float64], rel=1e-4)

    def test_engines_agree_on_two_thousand_positions(self) -> None:
        values = []
        for name in ("native", "torch"):
            with sl.engine(name):
                s, reference = self.make_long(2000, torch.float64)
                values.append(sl.NegativeLogLikelihood(reduction="none")(s, reference))
        close(*values, 1e-9)
