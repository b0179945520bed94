"""Lattice: the inherited suite for random graphs, n-best lists and augmented ones, and what only a lattice has."""

import math
import pickle
import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import oracle
import structloss as sl
from structloss import Lattice
from structloss.structures.graph import native_engine, topology
from structloss.text import DataError
from suite import Case, StructureSuite, close, gradients

Arcs = list[list[int]]
References = list[list[int]]


def all_paths(arcs: Arcs, final: dict[int, float]) -> list[list[int]]:
    """Every path from state 0 to a final state, as numbers of arcs, in lexicographic order."""
    found = []

    def go(state: int, path: list[int]) -> None:
        if state in final:
            found.append(path)
        for i, (source, target, _) in enumerate(arcs):
            if source == state:
                go(target, [*path, i])

    go(0, [])
    return sorted(found)


def default_final(arcs: Arcs) -> dict[int, float]:
    sources = {a[0] for a in arcs}
    return dict.fromkeys({0, *(a[1] for a in arcs)} - sources, 0.0)


def written(arcs: Arcs, path: list[int]) -> list[int]:
    return [arcs[i][2] for i in path if i >= 0 and arcs[i][2] >= 0]


def random_arcs(r: random.Random, states: int, count: int, labels: int, epsilons: float) -> Arcs:
    """Arcs from a state to a higher one, in any order, then the states but 0 renamed at random."""
    name = [0, *r.sample(range(1, 3 * states), states - 1)]
    arcs = []
    for _ in range(count):
        i, j = sorted(r.sample(range(states), 2))
        arcs.append([name[i], name[j], -1 if r.random() < epsilons else r.randrange(labels)])
    arcs.append([name[0], name[states // 2], 0])
    arcs.append([name[states // 2], name[-1], 0])
    r.shuffle(arcs)
    return arcs


@dataclass
class LatticeCase(Case):
    """References are lists of strings, and agree with the paths that write them."""

    arcs: list[Arcs] = field(default_factory=list)

    def strings(self) -> list[list[list[int]]]:
        return [[written(a, y) for y in ys.tolist()] for a, ys in zip(self.arcs, self.outputs, strict=True)]

    def loss_vectors(self, definition: Callable[..., float], reference: References) -> list[Tensor]:
        return [
            torch.tensor([definition(np.array(y, np.int64), np.array(r, np.int64)) for y in ys], dtype=torch.float64)
            for ys, r in zip(self.strings(), reference, strict=True)
        ]

    def agree(self, reference: References) -> list[Tensor]:
        return [
            torch.tensor([y == list(r) for y in ys], dtype=torch.bool)
            for ys, r in zip(self.strings(), reference, strict=True)
        ]


class TestLattice(StructureSuite):
    kinds = ("random", "epsilons", "nbest", "edit augmented", "ngram augmented", "both augmented", "given")
    edges = ("plain", "ties", "forbidden", "empty", "huge", "tiny", "one label")
    references: ClassVar[References] = [[0, 2, 1], [1], [], [1, 1, 5]]

    def make(self, kind: str, edge: str) -> LatticeCase:
        r, K = random.Random(f"{kind} {edge}"), 1 if edge == "one label" else 3
        if kind == "nbest":
            return self.make_nbest(r, K, edge)
        epsilons = 0.5 if kind == "epsilons" else 0.2
        arcs = [random_arcs(r, 5, 8, K, epsilons), [], [[0, 1, 0], [0, 1, K - 1], [0, 1, -1]]]
        arcs.append(random_arcs(r, 6, 8, K, epsilons))
        final = [default_final(a) for a in arcs]
        final[0] = dict.fromkeys(final[0], 0.5) | {arcs[0][3][0]: -0.25, 0: 1.0}
        final[3][0] = -math.inf  # which is as good as not final
        outputs = self.outputs_of(arcs, [{s: x for s, x in f.items() if x > -math.inf} for f in final])
        offsets = np.cumsum([0, *(len(a) for a in arcs)])
        scores = self.edge(torch.randn(int(offsets[-1]), dtype=torch.float64), edge)
        if edge == "empty":
            scores[: offsets[1]][torch.tensor([a[0] == 0 for a in arcs[0]])] = -math.inf
            final[0].pop(0)
            outputs = self.outputs_of(arcs, [{s: x for s, x in f.items() if x > -math.inf} for f in final])

        def score(x):
            return [
                torch.stack(
                    [
                        sum(
                            [x[0][offsets[b] + i] for i in y if i >= 0], x[0].new_tensor(final[b][self.end(arcs[b], y)])
                        )
                        for y in ys.tolist()
                    ]
                )
                for b, ys in enumerate(outputs)
            ]

        def build(x):
            return Lattice(arcs, x[0], final, num_labels=K)

        case = LatticeCase((scores.requires_grad_(),), build, outputs, score, [], [], self.losses(edge), arcs)
        self.choose_references(case, r)
        if kind == "given":
            return self.restricted(case)
        return self.augmented(case, kind) if kind.endswith("augmented") else case

    @staticmethod
    def end(arcs: Arcs, path: list[int]) -> int:
        used = [i for i in path if i >= 0]
        return arcs[used[-1]][1] if used else 0

    @staticmethod
    def outputs_of(arcs: list[Arcs], final: list[dict[int, float]]) -> list[Tensor]:
        paths = [all_paths(a, f) for a, f in zip(arcs, final, strict=True)]
        longest = max(len(p) for ps in paths for p in ps)
        return [torch.tensor([[*p, *[-1] * (longest - len(p))] for p in ps]).reshape(len(ps), longest) for ps in paths]

    @staticmethod
    def losses(edge: str) -> list:
        losses = [sl.EditDistance(), sl.EditDistance(cap=2), sl.SmithWaterman(), sl.NGram(2)]
        if edge in ("ties", "huge"):
            losses.pop()  # logarithms of counts do not add up exactly: what is a tie depends on the order
        return [(loss, loss.distance) for loss in losses]

    def augmented(self, case: LatticeCase, kind: str) -> LatticeCase:
        losses = {
            "edit": [(sl.EditDistance(cap=2), 0.5)],
            "ngram": [(sl.NGram(2), 2.0)],
            "both": [(sl.EditDistance(), -0.5), (sl.SmithWaterman(cap=3), 1.5)],
        }[kind.split()[0]]
        plain_build, plain_score = case.build, case.score

        def build(x):
            lattice = plain_build(x)
            for loss, scale in losses:
                lattice = lattice.augment(loss, self.references, scale)
            return lattice

        def score(x):
            vectors = [case.loss_vectors(loss.distance, self.references) for loss, _ in losses]
            return [
                s + sum(scale * v[b] for (_, scale), v in zip(losses, vectors, strict=True))
                for b, s in enumerate(plain_score(x))
            ]

        case.build, case.score = build, score
        return case

    def restricted(self, case: LatticeCase) -> LatticeCase:
        """The lattice given its reference: only some of the outputs are left."""
        plain_build, plain_score, agree = case.build, case.score, case.agree(case.reference)
        case.build = lambda x: plain_build(x).given(case.reference)
        case.score = lambda x: [s[a] for s, a in zip(plain_score(x), agree, strict=True)]
        case.outputs = [o[a] for o, a in zip(case.outputs, agree, strict=True)]
        case.partial = case.reference
        return case

    def make_nbest(self, r: random.Random, K: int, edge: str) -> LatticeCase:
        strings = [[[r.randrange(K) for _ in range(r.randrange(4))] for _ in range(5)] for _ in range(3)]
        strings[0][0], strings[0][1] = [], [0, 0]
        scores = self.edge(torch.randn(3, 5, dtype=torch.float64), edge)
        if edge == "empty":
            scores[0] = -math.inf
        arcs, paths = [], []
        for texts in strings:
            rows, used, state = [], [], 0
            for text in texts:
                used.append(list(range(len(rows), len(rows) + max(1, len(text)))))
                for i, label in enumerate(text or [-1]):
                    rows.append([0 if i == 0 else state, state + 1, label])
                    state += 1
            arcs.append(rows)
            paths.append(used)
        longest = max(len(p) for ps in paths for p in ps)
        outputs = [torch.tensor([[*p, *[-1] * (longest - len(p))] for p in ps]) for ps in paths]

        def build(x):
            return Lattice.nbest(strings, x[0], num_labels=K)

        leaves = (scores.requires_grad_(),)
        case = LatticeCase(leaves, build, outputs, lambda x: list(x[0]), [], [], self.losses(edge), arcs)
        self.choose_references(case, r)
        return case

    @staticmethod
    def choose_references(case: LatticeCase, r: random.Random) -> None:
        """Strings of paths that are not forbidden, where there are any, so that they have a score."""
        for strings, s in zip(case.strings(), case.score(case.potentials), strict=True):
            possible = [y for y, value in zip(strings, s.tolist(), strict=True) if value > -math.inf] or strings
            case.reference.append(r.choice(possible))
            case.partial.append(r.choice(possible))

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
        return x

    def marginals_by_enumeration(self, case: LatticeCase) -> Tensor:
        offsets = np.cumsum([0, *(len(a) for a in case.arcs)])
        found = torch.zeros(int(offsets[-1]), dtype=torch.float64)
        for b, s in enumerate(case.score(case.potentials)):
            for y, p in zip(case.outputs[b].tolist(), oracle.probabilities(s.detach()), strict=True):
                for i in y:
                    if i >= 0:
                        found[offsets[b] + i] += p
        return found

    def make_long(self, positions: int, dtype: torch.dtype):
        generator = torch.Generator().manual_seed(3)
        scores = 3 * torch.randn(2 * positions * 4, generator=generator, dtype=torch.float64)
        arcs = [[t, t + 1, label] for t in range(positions) for label in range(4)]
        reference = torch.randint(0, 4, (2, positions), generator=generator)
        return Lattice([arcs, arcs], scores.to(dtype)), reference.tolist()

    def test_loss_by_its_own_definition(self, kind: str) -> None:
        case = self.make(kind, "plain")
        lattice = case.structure()
        for loss, definition in case.losses:
            for b, outputs in enumerate(case.outputs):
                y = torch.stack(
                    [outputs if i == b else o[:1].expand_as(outputs) for i, o in enumerate(case.outputs)], 1
                )
                strings = [rows[b] for rows in lattice.decode(y)]
                found = loss(strings, [case.partial[b]] * len(strings))
                close(found.double(), case.loss_vectors(definition, case.partial)[b], 1e-6)

    def test_decode(self, kind: str, edge: str, engine: str) -> None:
        case = self.make(kind, edge)
        found = case.structure().decode()
        for string, strings, s in zip(found, case.strings(), case.score(case.potentials), strict=True):
            assert string == (strings[oracle.first_best(s)] if oracle.allowed(s).any() else [])

    def test_topk_strings(self, kind: str, edge: str, engine: str) -> None:
        case, k = self.make(kind, edge), 5
        scores, found = case.structure().topk_strings(k)
        values = [s.detach().tolist() for s in case.score(case.potentials)]
        wanted_scores = []
        for b, strings in enumerate(case.strings()):
            best: dict[tuple[int, ...], float] = {}
            for string, value in zip(strings, values[b], strict=True):
                if value > -math.inf:
                    best[tuple(string)] = max(value, best.get(tuple(string), -math.inf))
            order = sorted(best, key=lambda y: (-best[y], y))[:k]
            wanted_scores.append([best[y] for y in order] + [-math.inf] * (k - len(order)))
            if edge not in ("ties", "huge", "tiny") or "ngram" not in kind:
                assert [tuple(y) for y in found[b]] == order
        close(scores.detach(), torch.tensor(wanted_scores, dtype=torch.float64).T, 1e-9)

    def test_topk_strings_are_differentiable(self, kind: str, engine: str) -> None:
        case = self.make(kind, "plain")
        scores, _ = case.structure().topk_strings(1)
        self.compare(case, scores[0], [oracle.best(s) for s in case.score(case.potentials)])

    def test_a_string_is_worth_the_sum_over_its_paths(self, kind: str, edge: str, engine: str) -> None:
        case = self.make(kind, edge)
        agree, scores = case.agree(case.partial), case.score(case.potentials)
        wanted = [oracle.log_partition(s[a]) for s, a in zip(scores, agree, strict=True)]
        self.compare(case, case.structure().given(case.partial).log_partition(), wanted)


class TestAugmentedLattice:
    def test_losses_cancel_and_add_up(self, engine: str) -> None:
        case = TestLattice().make("random", "plain")
        lattice, loss = case.structure(), sl.EditDistance()
        twice = lattice.augment(loss, case.partial, 0.5).augment(loss, case.partial, 0.25)
        close(twice.log_partition(), lattice.augment(loss, case.partial, 0.75).log_partition())
        assert len(twice._parts.packing.machines) == 1
        close(twice.augment(loss, case.partial, -0.75).log_partition(), lattice.log_partition())

    def test_what_a_machine_has_outside_is_forbidden_whatever_the_scale(self, engine: str) -> None:
        case = TestLattice().make("random", "plain")
        loss, reference = sl.NGram(2, smoothing=0.0), [[0, 1, 2, 0], [1], [2], [2, 1, 0, 0]]
        vectors = case.loss_vectors(loss.distance, reference)
        for scale in (1.0, -2.0, 0.0):
            shifted = [
                torch.where(v < math.inf, s + scale * v.nan_to_num(posinf=0.0), -math.inf)
                for s, v in zip(case.score(case.potentials), vectors, strict=True)
            ]
            augmented = case.structure().augment(loss, reference, scale)
            TestLattice().compare(case, augmented.log_partition(), [oracle.log_partition(s) for s in shifted])
            TestLattice().compare(case, augmented.max(), [oracle.best(s) for s in shifted])
            uniform = [torch.where(s > -math.inf, 0.0, s).detach() for s in shifted]
            close(augmented.uniform().log_partition(), torch.stack([oracle.log_partition(s) for s in uniform]))

    def test_what_only_the_other_forbids_is_infinitely_bad(self, engine: str) -> None:
        """The distribution is self's, though the other lattice has fewer paths; what has probability 0 adds nothing."""
        case = TestLattice().make("random", "plain")
        lattice, given = case.structure(), case.structure().given(case.reference)
        scores, agree = case.score(case.potentials), case.agree(case.reference)
        wanted = [oracle.expectation(s, torch.where(a, s, -math.inf)) for s, a in zip(scores, agree, strict=True)]
        assert any(x == -math.inf for x in wanted)
        found = lattice.expectation(given)
        close(found.detach(), torch.stack(wanted).detach())
        assert all(g.isfinite().all() for g in gradients(found, case.potentials))
        close(given.expectation(lattice).detach(), given.expectation(given).detach())

    def test_the_product_is_made_once(self) -> None:
        case = TestLattice().make("random", "plain")
        lattice, loss = case.structure(), sl.EditDistance(cap=2)
        first = lattice.augment(loss, case.partial)
        again = lattice.with_scores(torch.zeros_like(lattice.scores)).augment(loss, case.partial, -3.0)
        assert first._parts.packing is again._parts.packing
        assert lattice.given(case.partial)._parts.packing is lattice.given(case.partial)._parts.packing

    def test_the_torch_engine_runs_no_kernel_on_a_path(self, monkeypatch) -> None:
        case = TestLattice().make("both augmented", "plain")
        wanted = case.structure().max().detach()
        monkeypatch.setattr(native_engine, "run", None)
        with sl.engine("torch"):
            lattice = case.structure()
            close(lattice.max().detach(), wanted)
            close(lattice.score(lattice.argmax()).detach(), wanted)
            assert len(lattice.decode()) == len(wanted)

    def test_too_large_a_product_is_an_error_that_says_what_helps(self, monkeypatch) -> None:
        monkeypatch.setattr(topology, "MOST_ARCS", 100)
        lattice, reference = TestLattice().make_long(50, torch.float64)
        with pytest.raises(sl.TooManyStatesError, match=r"passed 100 arcs on level .* of 51; a cap"):
            lattice.augment(sl.EditDistance(), reference).log_partition()

    def test_engines_agree_on_a_large_batch(self) -> None:
        r = random.Random(0)
        arcs = [random_arcs(r, 40, 300, 10, 0.1) for _ in range(24)]
        scores = torch.randn(sum(map(len, arcs)), dtype=torch.float64, requires_grad=True)
        references = [[r.randrange(10) for _ in range(12)] for _ in arcs]
        found = []
        for name in ("native", "torch"):
            with sl.engine(name):
                lattice = Lattice(arcs, scores).augment(sl.EditDistance(cap=3), references)
                value = lattice.log_partition()
                risk = lattice.expected(sl.EditDistance(cap=3), references)
                rest = (lattice.argmax(), lattice.topk(5)[1], lattice.sample(3, torch.Generator().manual_seed(5)))
                found.append((value, *gradients(value, [scores]), risk, *gradients(risk, [scores]), *rest))
        for mine, theirs in zip(*found, strict=True):
            close(mine.detach(), theirs.detach(), 1e-9)


def chain_as_lattice(potentials: Tensor, lengths: list[int]) -> tuple[list[Arcs], Tensor]:
    """The arcs of chains of order 1 or 2, and where each arc's score stands in the flat potentials."""
    batch, _, K = potentials.shape[:3]
    order = potentials.dim() - 2
    place = torch.arange(potentials.numel()).reshape(potentials.shape)
    arcs, places = [], []
    for b in range(batch):
        rows = []
        for t in range(lengths[b]):
            for x in range(K if t and order == 2 else 1):
                for y in range(K):
                    source = 0 if t == 0 else 1 + (t - 1) * K + x
                    rows.append([source, 1 + t * K + (y if order == 2 else 0), y])
                    places.append(int(place[b, t, x, y] if order == 2 else place[b, t, y]))
        arcs.append(rows)
    return arcs, torch.tensor(places)


class TestAgainstChain:
    @pytest.mark.parametrize("order", [1, 2])
    def test_a_chain_is_a_lattice(self, order: int, engine: str) -> None:
        lengths, K = [4, 0, 2, 1], 3
        potentials = torch.randn(4, 4, *(K,) * order, dtype=torch.float64, requires_grad=True)
        arcs, places = chain_as_lattice(potentials, lengths)
        chain = sl.Chain(potentials, lengths)
        lattice = Lattice(arcs, potentials.flatten()[places], num_labels=K)
        references = [[1, 2, 0, 0], [], [2, 2], [1]]

        def compare(found: Tensor, wanted: Tensor, name: str) -> None:
            try:
                close(found.detach(), wanted.detach())
                close(gradients(found, [potentials])[0], gradients(wanted, [potentials])[0])
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from error

        compare(lattice.log_partition(), chain.log_partition(), "log_partition")
        compare(lattice.max(), chain.max(), "max")
        compare(lattice.entropy(), chain.entropy(), "entropy")
        close(lattice.marginals().detach(), chain.marginals().detach().flatten()[places])
        assert lattice.decode() == [[y for y in row if y >= 0] for row in chain.argmax().tolist()]
        for loss in (sl.Hamming(), sl.Hamming(normalize=True), sl.EditDistance(cap=2)):
            for name, (objective, _) in oracle.objectives(loss).items():
                compare(objective(lattice, references), objective(chain, references), f"{name} under {loss!r}")

    def test_two_thousand_states_in_a_row(self, engine: str) -> None:
        arcs = [[i, i + 1, i % 3] for i in range(2000)]
        scores = torch.full((2000,), 0.5, dtype=torch.float64, requires_grad=True)
        lattice = Lattice([arcs], scores)
        close(lattice.log_partition().detach(), torch.tensor([1000.0], dtype=torch.float64))
        assert lattice.argmax().tolist() == [list(range(2000))]
        assert lattice.decode() == [[i % 3 for i in range(2000)]]
        assert (lattice.marginals() == 1).all()
        close(lattice.score(lattice.argmax()).detach(), torch.tensor([1000.0], dtype=torch.float64))
        close(lattice.given(lattice.decode()).log_partition().detach(), torch.tensor([1000.0], dtype=torch.float64))
        assert lattice.topk_strings(2)[1] == [lattice.decode()]


class TestShapes:
    def test_only_the_empty_path(self, engine: str) -> None:
        lattice = Lattice([[], []], torch.zeros(0), final=[{0: 2.0}, [0]])
        assert lattice.argmax().shape == (2, 0)
        assert lattice.log_partition().tolist() == lattice.max().tolist() == [2.0, 0.0]
        assert lattice.entropy().tolist() == [0.0, 0.0]
        assert lattice.sample(3).shape == (3, 2, 0)
        scores, paths = lattice.topk(2)
        assert scores.tolist() == [[2.0, 0.0], [-math.inf, -math.inf]]
        assert paths.shape == (2, 2, 0)
        assert lattice.decode() == [[], []]
        assert lattice.topk_strings(2)[1] == [[[]], [[]]]
        assert lattice.given([[0], []]).log_partition().tolist() == [-math.inf, 0.0]
        assert lattice.expected(sl.EditDistance(), [[0, 0], []]).tolist() == [2.0, 0.0]
        assert lattice.score(torch.zeros(2, 0, dtype=torch.int64)).tolist() == [2.0, 0.0]

    def test_a_batch_of_none(self, engine: str) -> None:
        lattice = Lattice([], torch.zeros(0))
        assert lattice.log_partition().shape == lattice.max().shape == lattice.entropy().shape == (0,)
        assert lattice.argmax().shape == (0, 0)
        assert lattice.sample(2).shape == (2, 0, 0)
        assert lattice.augment(sl.EditDistance(), []).log_partition().shape == (0,)
        assert lattice.strata(sl.EditDistance(), []).losses.shape[1] == 0
        assert lattice.topk_strings(1)[1] == []

    def test_no_paths_at_all(self, engine: str) -> None:
        scores = torch.zeros(3, requires_grad=True)
        lattice = Lattice([[[0, 1, 0]], [[0, 1, 0], [1, 2, 1]]], scores, final=[[], [2]])
        for value in (lattice.log_partition(), lattice.max()):
            assert value.tolist() == [-math.inf, 0.0]
            assert gradients(value, [scores])[0].tolist() == [0.0, 1.0, 1.0]
        assert lattice.argmax().tolist() == [[-1, -1], [0, 1]]
        assert lattice.topk(1)[0].tolist() == [[-math.inf, 0.0]]
        assert lattice.topk_strings(1)[1] == [[], [[0, 1]]]
        assert lattice.marginals().tolist() == [0.0, 1.0, 1.0]
        assert lattice.expectation(lattice).tolist() == [0.0, 0.0]
        assert not lattice.strata(sl.EditDistance(), [[0], [0]]).exists[:, 0].any()
        with pytest.raises(ValueError, match="example 0 has no output"):
            lattice.sample(1)
        nowhere = Lattice([[[0, 1, 0]]], torch.zeros(1)).given([[1]])
        assert nowhere.argmax().tolist() == [[-1]]
        assert nowhere.topk(2)[1].tolist() == [[[-1]], [[-1]]]
        assert nowhere.max().tolist() == [-math.inf]

    def test_states_that_no_path_uses_are_left_out(self, engine: str) -> None:
        # 0 -> 1 -> 2; state 7 is not reached, and from state 5 there is no way to the end.
        arcs = [[7, 1, 0], [0, 1, 1], [1, 5, 0], [1, 2, 2], [0, 5, 0], [8, 7, 1]]
        scores = torch.tensor([9.0, 1.0, 9.0, 2.0, 9.0, 9.0], requires_grad=True)
        lattice = Lattice([arcs], scores, final=[[2]])
        assert lattice.argmax().tolist() == [[1, 3]]
        value = lattice.log_partition()
        assert value.tolist() == [3.0]
        assert gradients(value, [scores])[0].tolist() == lattice.marginals().tolist() == [0, 1, 0, 1, 0, 0]
        assert repr(lattice).startswith("Lattice(batch=1, states=3, arcs=2, positions=2, labels=3, torch.float32")

    def test_lists_of_scores_and_half_precision(self, engine: str) -> None:
        arcs = [[[0, 1, 0], [0, 1, 1]], [[0, 1, 0]]]
        lattice = Lattice(arcs, [torch.tensor([1.0, 2.0]).half(), torch.tensor([3.0]).half()])
        assert lattice.scores.dtype == lattice.log_partition().dtype == torch.float32
        assert lattice.max().tolist() == [2.0, 3.0]
        tensors = Lattice([torch.tensor(a) for a in arcs], torch.tensor([1.0, 2.0, 3.0]))
        assert tensors.max().tolist() == [2.0, 3.0]

    def test_references_as_tensors(self) -> None:
        lattice = Lattice([[[0, 1, 0], [1, 2, 1]], [[0, 1, 1]]], torch.zeros(3))
        padded = torch.tensor([[0, 1, -1], [1, -1, -1]])
        assert lattice.given(padded).log_partition().tolist() == [0.0, 0.0]
        assert lattice.expected(sl.EditDistance(), padded + torch.tensor([[0, 0, 0], [1, 0, 0]])).tolist() == [0.0, 1.0]

    def test_strings_with_labels_that_the_lattice_does_not_have(self) -> None:
        lattice = Lattice([[[0, 1, 0], [1, 2, 1]]], torch.zeros(2))
        assert lattice.given([[0, 7]]).log_partition().tolist() == [-math.inf]
        assert lattice.expected(sl.EditDistance(), [[0, 7]]).tolist() == [1.0]

    def test_other_final_scores_are_other_scores(self, engine: str) -> None:
        arcs, scores = [[[0, 1, 0], [0, 2, 0]]], torch.zeros(2, dtype=torch.float64)
        lattice, other = Lattice(arcs, scores), Lattice(arcs, scores, final=[{1: 2.0, 2: 4.0}])
        assert lattice.expectation(other).tolist() == [3.0]
        close(lattice.kl(other), oracle.kl(torch.zeros(2).double(), torch.tensor([2.0, 4.0]).double())[None])

    def test_a_lattice_can_be_pickled(self, engine: str) -> None:
        lattice = TestLattice().make("random", "plain").structure()
        lattice.augment(sl.EditDistance(), TestLattice.references).log_partition()
        again = pickle.loads(pickle.dumps(lattice.with_scores(lattice.scores.detach())))
        assert torch.equal(again.log_partition(), lattice.log_partition())


class TestNBest:
    def test_ragged_lists(self) -> None:
        scores = [torch.tensor([1.0, 2.0]), torch.tensor([0.5]), torch.tensor([])]
        lattice = Lattice.nbest([[[0, 1], [2]], [[]], []], scores)
        assert lattice.decode() == [[2], [], []]
        assert lattice.max().tolist() == [2.0, 0.5, -math.inf]
        assert lattice.num_labels == 3
        assert lattice.topk_strings(3)[1] == [[[2], [0, 1]], [[]], []]

    def test_minimum_risk_over_an_nbest_list(self, engine: str) -> None:
        scores = torch.randn(1, 3, dtype=torch.float64, requires_grad=True)
        strings, reference = [[0, 1, 2], [0, 2], [2, 2, 2, 2]], [0, 1, 2]
        value = sl.Risk(sl.EditDistance())(Lattice.nbest([strings], scores), [reference])
        wanted = (scores[0].softmax(0) * torch.tensor([0.0, 1.0, 3.0])).sum()
        close(value.detach(), wanted.detach())
        close(*(torch.autograd.grad(x, scores)[0] for x in (value, wanted)))


TEXT = """\
4 1 a 0.5
4 1 <eps>
1 0 b 1.5

1 2 a Infinity
0 0.25
2 1
"""


class TestText:
    def test_it_reads_what_openfst_prints(self, tmp_path: Path) -> None:
        path = tmp_path / "lattice.txt"
        path.write_text(TEXT, encoding="utf-8")
        lattice = Lattice.from_text([TEXT, path], symbols=["a", "b", "c"])
        assert lattice.scores.tolist() == 2 * [-0.5, 0.0, -1.5, -math.inf]
        assert lattice.scores.is_leaf
        assert lattice.num_labels == 3
        assert lattice.decode() == [[1], [1]]
        assert lattice.max().tolist() == [-1.75, -1.75]
        assert lattice.topk_strings(5)[1][0] == [[1], [0, 1]]
        lattice.scores.requires_grad_()
        lattice.log_partition().sum().backward()
        assert lattice.scores.grad is not None

    def test_numbers_are_as_openfst_counts_them(self) -> None:
        lattice = Lattice.from_text("0 1 3\n1 2 0\n2")
        assert lattice.decode() == [[2]]
        assert lattice.num_labels == 3

    def test_one_state(self) -> None:
        assert Lattice.from_text("0 1.5").log_partition().tolist() == [-1.5]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("0 0 a\n0", r"texts[0], line 1: the arc from state 0 to state 0 lies on a loop"),
            ("0 1 a\n0 1 z\n1", r"texts[0], line 2: got the symbol 'z', which is not among the 2 symbols"),
            ("0 1 a a 0.5\n1", r"texts[0], line 1: got 5 columns, but wanted 3 or 4"),
            ("0 1 a a\n1", r"texts[0], line 1: got 'a', but wanted a weight"),
            ("0 1 a\n1 nan", r"texts[0], line 2: got 'nan', but wanted a weight"),
            ("0 1 a -inf\n1", r"texts[0], line 1: got '-inf', but wanted a weight"),
            ("0 -1 a\n1", r"texts[0], line 1: got '-1', but wanted a state"),
            ("0 x a\n1", r"texts[0], line 1: got 'x', but wanted a state"),
            ("0 12345678901 a\n1", r"texts[0], line 1: got state 12345678901, but wanted one below"),
            ("0 1 a\n1\n\n2 3 a\n3", r"texts[0], line 4: two starts: nothing connects state 2 with state 0"),
            ("", r"texts[0]: got no line at all"),
            ("0 1 a\n", r"texts[0]: it has no final state"),
        ],
    )
    def test_errors_name_the_line(self, text: str, message: str) -> None:
        with pytest.raises(ValueError, match=re.escape(message)):
            Lattice.from_text([text], symbols=["a", "b"])

    def test_a_loop_is_named_by_one_of_its_own_arcs(self) -> None:
        with pytest.raises(ValueError, match=r"line (2|3): the arc .* lies on a loop"):
            Lattice.from_text("0 1 1\n1 2 1\n2 1 1\n2 3 1\n3 4 1\n4")

    def test_a_file_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "broken.txt"
        path.write_text("0 1 9 x\n", encoding="utf-8")
        with pytest.raises(ValueError, match=r"broken\.txt, line 1: got 'x'"):
            Lattice.from_text([path])
        path.write_bytes(b"0 1 9\n1 \xff\n")
        with pytest.raises(DataError, match=r"broken\.txt, line 2: is not UTF-8"):
            Lattice.from_text([path])
        path.write_bytes(b"0 1 9\r1 1_0\r")
        with pytest.raises(DataError, match=r"broken\.txt, line 2: got '1_0', but wanted a weight"):
            Lattice.from_text([path])
        with pytest.raises(TypeError, match=r"texts\[0\]: got int"):
            Lattice.from_text([3])

    def test_words_that_are_no_numbers(self) -> None:
        with pytest.raises(ValueError, match=r"got 'the', but wanted a symbol's number, at most 10000000 \(or"):
            Lattice.from_text("0 1 the\n1")

    def test_other_states_that_are_not_reached_do_no_harm(self) -> None:
        assert Lattice.from_text("0 1 1\n7 1 2\n1").decode() == [[0]]


ARCS = [[[0, 1, 0], [1, 2, 1]], [[0, 1, 2]]]
SCORES = torch.zeros(3)
LATTICE = Lattice(ARCS, SCORES)

ERRORS: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "a loop": (
        ValueError,
        r"arcs: example 1 has a loop through its arc (1, \[1, 2|2, \[2, 1), 0\]",
        lambda: Lattice([[], [[0, 1, 0], [1, 2, 0], [2, 1, 0]]], SCORES),
    ),
    "a negative state": (
        ValueError,
        r"arcs: arcs\[0\]\[0\] is \[-1, 1, 0\], but states are",
        lambda: Lattice([[[-1, 1, 0]]], SCORES),
    ),
    "a state without end": (
        ValueError,
        r"arcs: arcs\[0\]\[0\].*but states are",
        lambda: Lattice([[[0, 2**40, 0]]], SCORES),
    ),
    "a label too large": (
        ValueError,
        r"arcs: arcs\[1\]\[0\] is \[0, 1, 2\], but labels are 0 to 1, or -1",
        lambda: Lattice(ARCS, SCORES, num_labels=2),
    ),
    "a label too small": (
        ValueError,
        r"arcs: arcs\[0\]\[0\] is \[0, 1, -2\], but labels",
        lambda: Lattice([[[0, 1, -2]]], SCORES),
    ),
    "no labels": (ValueError, "num_labels: got 0", lambda: Lattice(ARCS, SCORES, num_labels=0)),
    "arcs with two columns": (
        ValueError,
        r"arcs: arcs\[0\] has shape \(1, 2\), but wanted \(n, 3\)",
        lambda: Lattice([[[0, 1]]], SCORES),
    ),
    "arcs that are no integers": (
        TypeError,
        r"arcs: arcs\[0\] has float64",
        lambda: Lattice([[[0.0, 1.0, 2.5]]], SCORES),
    ),
    "arcs that are ragged": (
        TypeError,
        "arcs: got .*wanted a list of integers",
        lambda: Lattice([[[0, 1, 0], [1]]], SCORES),
    ),
    "too few scores": (ValueError, r"scores: got shape \(2,\), but wanted \(3,\)", lambda: Lattice(ARCS, SCORES[:2])),
    "a list of too few scores": (ValueError, "scores: got a list of 1, but wanted 2", lambda: Lattice(ARCS, [SCORES])),
    "a list with too few scores": (
        ValueError,
        r"scores: scores\[1\] has shape \(2,\), but wanted \(1,\)",
        lambda: Lattice(ARCS, [SCORES[:2], SCORES[:2]]),
    ),
    "integer scores": (TypeError, "scores: got torch.int64.*floating", lambda: Lattice(ARCS, SCORES.long())),
    "NaN": (
        ValueError,
        "scores: example 1 has NaN at arc 0",
        lambda: Lattice(ARCS, torch.tensor([0.0, 1.0, math.nan])),
    ),
    "+inf": (
        ValueError,
        r"scores: example 0 has \+inf at arc 1",
        lambda: LATTICE.with_scores(torch.tensor([0.0, math.inf, 0.0])),
    ),
    "finals of too few": (ValueError, "final: got 1, but arcs has 2 examples", lambda: Lattice(ARCS, SCORES, [[2]])),
    "a final state of no arc": (
        ValueError,
        r"final: final\[1\] has state 5, but no arc of arcs\[1\]",
        lambda: Lattice(ARCS, SCORES, [[2], [5]]),
    ),
    "a final score of NaN": (
        ValueError,
        r"final: final\[1\] has the score nan for state 1",
        lambda: Lattice(ARCS, SCORES, [[2], {1: math.nan}]),
    ),
    "finals that are none": (
        TypeError,
        r"final: final\[0\] is 2, but wanted states",
        lambda: Lattice(ARCS, SCORES, [2, 1]),
    ),
    "paths of the wrong shape": (
        ValueError,
        r"y: got shape \(2, 3\), but wanted \(2, 2\)",
        lambda: LATTICE.score(torch.zeros(2, 3).long()),
    ),
    "float paths": (TypeError, "y: got torch.float32", lambda: LATTICE.score(torch.zeros(2, 2))),
    "no path": (
        ValueError,
        r"y: \[1, 0\] is no path of example 0, from position 0 on",
        lambda: LATTICE.score(torch.tensor([[1, 0], [0, -1]])),
    ),
    "a path with a gap": (
        ValueError,
        r"y: \[-1, 0\] is no path of example 1, from position 0 on",
        lambda: LATTICE.score(torch.tensor([[0, 1], [-1, 0]])),
    ),
    "a path without end": (
        ValueError,
        r"y: \[0, -1\] is no path of example 0, from position 1 on",
        lambda: LATTICE.score(torch.tensor([[0, -1], [0, -1]])),
    ),
    "an arc that is none": (
        ValueError,
        r"y: \[9, -1\] is no path of example 1, from position 0 on",
        lambda: LATTICE.decode(torch.tensor([[0, 1], [9, -1]])),
    ),
    "references of too few": (
        ValueError,
        r"reference: got shape \(1, 2\), but wanted \(2, T\)",
        lambda: LATTICE.given([[0, 1]]),
    ),
    "a negative label": (
        ValueError,
        r"reference: reference\[0\]\[1\] is -5, but labels are at least 0, or -100",
        lambda: LATTICE.given([[0, -5], []]),
    ),
    "a negative label for a loss": (
        ValueError,
        r"reference: reference\[0\]\[0\] is -1, but labels are at least 0",
        lambda: LATTICE.augment(sl.EditDistance(), torch.tensor([[-1, 1], [0, 0]])),
    ),
    "a loss that is none": (TypeError, "loss: got 3.*a Lattice can carry", lambda: LATTICE.augment(3, [[], []])),
    "a lattice of other arcs": (
        ValueError,
        r"other: got Lattice.*wanted the arcs and ends",
        lambda: LATTICE.kl(Lattice(ARCS, SCORES, [[1, 2], [1]])),
    ),
    "a chain": (TypeError, "other: got Chain", lambda: LATTICE.expectation(sl.Chain(torch.zeros(2, 2, 3)))),
    "another precision": (
        TypeError,
        "other: got torch.float64",
        lambda: LATTICE.expectation(Lattice(ARCS, SCORES.double())),
    ),
    "n of 0": (ValueError, "n: got 0", lambda: LATTICE.sample(0)),
    "k of 0": (ValueError, "k: got 0", lambda: LATTICE.topk(0)),
    "k of 1.5": (ValueError, "k: got 1.5", lambda: LATTICE.topk_strings(1.5)),
    "n-best scores of the wrong shape": (
        ValueError,
        r"scores: got shape \(1, 1\), but wanted \(B, n\).*\[2\]",
        lambda: Lattice.nbest([[[0], [1]]], torch.zeros(1, 1)),
    ),
    "n-best strings that are none": (
        TypeError,
        r"strings: strings\[0\]\[0\] is 0.5",
        lambda: Lattice.nbest([[0.5]], torch.zeros(1, 1)),
    ),
    "n-best strings below 0": (
        ValueError,
        r"strings: strings\[0\]\[0\] has the label -1",
        lambda: Lattice.nbest([[[-1]]], torch.zeros(1, 1)),
    ),
}


class TestErrors:
    @pytest.mark.parametrize("name", ERRORS)
    def test_each_names_the_argument(self, name: str) -> None:
        kind, message, call = ERRORS[name]
        with pytest.raises(kind, match=message):
            call()


@pytest.mark.parametrize("loss", [sl.Hamming(), sl.NGram(2, smoothing=0)])
def test_the_risk_of_strings_that_are_outside_a_loss_is_infinite(loss: sl.Loss, engine: str) -> None:
    scores = torch.zeros(2, 2, requires_grad=True)
    lattice = sl.Lattice.nbest([[[0, 1], [0]], [[0, 1], [0, 1]]], scores)
    risk = sl.Risk(loss, reduction="none")(lattice, [[0, 1], [0, 1]])
    assert risk[0].item() == torch.inf
    assert risk[1].item() == pytest.approx(loss([[0, 1]], [[0, 1]]).item(), abs=1e-6)


def test_openfst_lattices_come_and_go() -> None:
    wrap = pytest.importorskip("pywrapfst", reason="OpenFst (the extra fst) is not installed")
    text = "0 1 a 0.5\n0 1 b 0.25\n1 2 <eps> 1\n0 2 b 2\n2 0.75\n1 0.5"
    lattice = sl.Lattice.from_text([text, "0 1 b\n1"], symbols=list("ab"))
    for arc_type in ("standard", "log", "log64"):
        fsts = lattice.to_fst(symbols=list("ab"), arc_type=arc_type)
        again = sl.Lattice.from_fst(fsts, symbols=list("ab"))
        torch.testing.assert_close(again.log_partition(), lattice.log_partition())
        assert again.decode() == lattice.decode()
        assert sl.Lattice.from_fst(fsts).decode() == lattice.decode()  # symbol y + 1 is label y
    (total, _) = (
        float(wrap.shortestdistance(fst, reverse=True)[fst.start()]) for fst in lattice.to_fst(arc_type="log64")
    )
    assert total == pytest.approx(-lattice.log_partition()[0].item(), abs=1e-5)
    given = sl.Lattice.from_fst(lattice.given([[1], [1]]).to_fst())
    torch.testing.assert_close(given.log_partition(), lattice.given([[1], [1]]).log_partition())
    swapped = sl.Lattice.from_fst(lattice.to_fst(symbols=list("ab")), symbols=list("ba"))
    assert swapped.decode() == [[1 - k for k in row] for row in lattice.decode()]
    augmented = lattice.augment(sl.EditDistance(threshold=1), [[0], [1]])
    torch.testing.assert_close(sl.Lattice.from_fst(augmented.to_fst()).log_partition(), augmented.log_partition())
    with pytest.raises(TypeError, match=r"fsts\[0\]: got 'x', but wanted an OpenFst object"):
        sl.Lattice.from_fst(["x"])
    fst = fsts[1].copy()
    fst.add_arc(0, wrap.Arc(1, 2, wrap.Weight(fst.weight_type(), 0.5), 1))
    with pytest.raises(
        ValueError, match=r"fsts\[0\]: the arc from state 0 to state 1 reads symbol 1 and writes 2, but"
    ):
        sl.Lattice.from_fst([fst])
