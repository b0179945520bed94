"""Dependency trees: the inherited suite, and what only trees have."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

import oracle
import structloss as sl
from suite import Case, StructureSuite, close, gradients

INF = math.inf


def edge_of(x: Tensor, edge: str) -> Tensor:
    x = (x * 1024).round() / 1024  # so that sums are exact, and what is a tie by its definition is one in any order
    if edge == "ties":
        return torch.randint(0, 2, x.shape).double()
    if edge == "forbidden":
        return torch.where(torch.rand(x.shape) < 0.2, -INF, x)
    if edge in ("huge", "tiny"):
        return x * (1e6 if edge == "huge" else 2**-30)
    return x


def wrong_places(y: Tensor, r: Tensor) -> float:
    return float(sum(a != b for a, b in zip(y.tolist(), r.tolist(), strict=True) if a >= 0 and b >= 0))


def dependency_trees(n: int, projective: bool, single_root: bool) -> list[tuple[int, ...]]:
    """The heads of every tree, in lexicographic order, by the definitions."""

    def reaches_the_root(heads: tuple[int, ...], word: int) -> bool:
        for _ in range(n):
            word = heads[word - 1]
            if word == 0:
                return True
        return False

    def crosses(heads: tuple[int, ...]) -> bool:
        arcs = [sorted((d, h)) for d, h in enumerate(heads, 1)]
        return any(a < c < b < d for (a, b), (c, d) in itertools.permutations(arcs, 2))

    return [
        y
        for y in itertools.product(range(n + 1), repeat=n)
        if all(reaches_the_root(y, word) for word in range(1, n + 1))
        and not (single_root and y.count(0) > 1)
        and not (projective and crosses(y))
    ]


class TestDependencyTree(StructureSuite):
    kinds = ("projective", "projective, any roots", "labels", "all", "all, any roots", "all, labels", "gaps")
    edges = ("plain", "ties", "forbidden", "empty", "huge", "tiny")
    has_strata = False

    def make(self, kind: str, edge: str) -> Case:
        torch.manual_seed(sum(map(ord, kind + edge)))
        R = 2 if "labels" in kind else 1
        lengths = [3, 0, 1, 2] if R == 2 or kind == "gaps" else [4, 0, 1, 3]
        T = max(lengths) + (kind == "gaps")
        projective, single_root = not kind.startswith("all"), "any roots" not in kind
        words = [[*range(n)] for n in lengths]
        mask = None
        if kind == "gaps":
            words = [[0, 2, 3], [], [2], [1, 3]]
            mask = torch.zeros(4, T, dtype=torch.bool)
            for b, own in enumerate(words):
                mask[b, own] = True
        scores = edge_of(torch.randn(4, T, T + 1, R, dtype=torch.float64), edge)
        if edge == "empty":
            scores[0, words[0], 0] = -INF  # nothing hangs on the root
        for b, own in enumerate(words):  # garbage where it must not matter
            outside = torch.ones(T, T + 1, dtype=torch.bool)
            for d in own:
                outside[d, [0, *(h + 1 for h in own if h != d)]] = False
            scores[b, outside] = math.nan if b % 2 else INF
        scores = (scores if R > 1 else scores[..., 0]).requires_grad_()
        outputs = []
        for own in words:
            rows = []
            for heads in dependency_trees(len(own), projective, single_root):
                for labels in itertools.product(range(R), repeat=len(own)):
                    row = [-1] * T
                    for d, h, r in zip(own, heads, labels, strict=True):
                        row[d] = (own[h - 1] + 1 if h else 0) * R + r
                    rows.append(row)
            outputs.append(torch.tensor(sorted(rows)).reshape(len(rows), T))

        def build(x: Sequence[Tensor]) -> sl.DependencyTree:
            return sl.DependencyTree(x[0], lengths if mask is None else mask, projective, single_root)

        def score(x: Sequence[Tensor]) -> list[Tensor]:
            flat = x[0].reshape(4, T, -1)
            return [
                torch.stack([sum([flat[b, d, y[d]] for d in own], x[0].new_zeros(())) for y in ys.tolist()])
                for b, (own, ys) in enumerate(zip(words, outputs, strict=True))
            ]

        reference = torch.stack([ys[len(ys) // 2] for ys in outputs])
        partial = reference.clone()
        partial[:, ::2] = torch.where(partial[:, ::2] >= 0, -100, -1)
        losses = [(sl.Hamming(), wrong_places), (0.5 * sl.Hamming(), lambda y, r: 0.5 * wrong_places(y, r))]
        return Case((scores,), build, outputs, score, reference, partial, losses)

    def marginals_by_enumeration(self, case: Case) -> Tensor:
        x = case.potentials[0]
        found = torch.zeros(*x.shape[:2], x[0, 0].numel(), dtype=torch.float64)
        for b, s in enumerate(case.score(case.potentials)):
            for y, p in zip(case.outputs[b].tolist(), oracle.probabilities(s.detach()), strict=True):
                for d, arc in enumerate(y):
                    if arc >= 0:
                        found[b, d, arc] += p
        return found.reshape(x.shape)

    def make_long(self, positions: int, dtype: torch.dtype) -> tuple[sl.Structure, Tensor]:
        n = positions // 50  # sums cost n**3
        generator = torch.Generator().manual_seed(3)
        scores = torch.randn(2, n, n + 1, generator=generator, dtype=torch.float64).to(dtype)
        return sl.DependencyTree(scores), torch.arange(n).expand(2, n)


def forest_trees(arcs: list[list[int]], item: int = 0) -> list[list[int]]:
    """All trees of an item, an arc before the trees of its tails."""
    found = []
    for a, (head, *tails) in enumerate(arcs):
        if head == item:
            below = [forest_trees(arcs, t) for t in tails if t >= 0]
            found += [[a, *itertools.chain(*parts)] for parts in itertools.product(*below)]
    return sorted(found)


def bracket_errors(miss: float, false_alarm: float) -> Callable[[Tensor, Tensor], float]:
    def loss(y: Tensor, r: Tensor) -> float:
        mine, theirs = ([k for k in x.tolist() if k >= 0] for x in (y, r))
        right = [k for k in mine if k in theirs]
        return miss * (len(set(theirs)) - len(right)) + false_alarm * (len(mine) - len(right))

    return loss


class TestForest(StructureSuite):
    kinds = ("binary", "lattice", "shared")
    edges = ("plain", "ties", "forbidden", "empty", "huge", "tiny")

    def arcs(self, kind: str) -> list[list[list[int]]]:
        if kind == "lattice":
            return [[[0, 5, -1], [0, 2, -1], [5, 2, -1], [2, -1, -1], [5, -1, -1], [2, -1, -1]], [[0, -1, -1]]]
        if kind == "shared":  # a tree has an item twice
            return [
                [[0, 1, 1], [1, 3, 2], [1, 2, -1], [3, -1, -1], [2, -1, -1], [2, 3, 3]],
                [[0, 7, 7], [7, -1, -1]],
                [[0, -1, -1]] * 3,
            ]
        spans = [
            (i, j) for w in range(1, 5) for i in range(5 - w) for j in [i + w]
        ]  # of four words, the last one first
        number = {span: i for i, span in enumerate(reversed(spans))}
        chart = [[number[i, j], number[i, k], number[k, j]] for i, j in spans for k in range(i + 1, j)]
        chart += [[number[i, i + 1], -1, -1] for i in range(4) for _ in range(1 + i % 2)]
        return [chart, [[0, 1, 2], [2, -1, -1], [1, -1, -1], [0, 2, -1], [4, 0, 1]], [[1, -1, -1], [0, -1, -1]]]

    def make(self, kind: str, edge: str) -> Case:
        torch.manual_seed(1 + sum(map(ord, kind + edge)))
        arcs = self.arcs(kind)
        begin = [0, *itertools.accumulate(map(len, arcs))]
        trees = [forest_trees(own) for own in arcs]
        longest = max(len(y) for own in trees for y in own)
        scores = edge_of(torch.randn(begin[-1], dtype=torch.float64), edge)
        if edge == "empty":
            for i, (head, *_) in enumerate(arcs[0]):
                if head == 0:
                    scores[i] = -INF
        outputs = [torch.tensor([[*y, *[-1] * (longest - len(y))] for y in own]).reshape(-1, longest) for own in trees]
        outputs = [ys if len(ys) else torch.full((1, longest), -1) for ys in outputs]

        def score(x: Sequence[Tensor]) -> list[Tensor]:
            return [
                torch.stack([x[0][[begin[b] + a for a in y]].sum() for y in own]) if own else x[0].new_full((1,), -INF)
                for b, own in enumerate(trees)
            ]

        chosen = [ys[len(ys) // 2] for ys in outputs]
        partial = torch.stack(chosen)
        partial[:, 1::2] = -1
        return ForestCase(
            (scores.requires_grad_(),), lambda x: sl.Forest(arcs, x[0]), outputs, score, torch.stack(chosen), partial,
            [(sl.BracketErrors(m, f), bracket_errors(m, f)) for m, f in ((1, 1), (0.5, 2), (0, 1))],
            [[head for head, *_ in own] for own in arcs],
        )  # fmt: skip

    def marginals_by_enumeration(self, case: Case) -> Tensor:
        scores, (x,) = case.score(case.potentials), case.potentials
        total = torch.stack([oracle.log_partition(s) for s in scores])
        return gradients(total, [x])[0].nan_to_num(0.0)

    def make_long(self, positions: int, dtype: torch.dtype) -> tuple[sl.Structure, Tensor]:
        arcs = [[i, i + 1, -1] for i in range(positions) for _ in range(2)] + [[positions, -1, -1]]
        generator = torch.Generator().manual_seed(3)
        scores = torch.randn(2 * len(arcs), generator=generator, dtype=torch.float64).to(dtype)
        return sl.Forest([arcs, arcs], scores), torch.tensor([[*range(0, 2 * positions + 1, 2)]] * 2)


@dataclass
class ForestCase(Case):
    """References are sets of arcs, which agree with the trees that use no other arc of these arcs' heads."""

    heads: list[list[int]]

    def agree(self, reference: Tensor) -> list[Tensor]:
        result = []
        for heads, ys, r in zip(self.heads, self.outputs, reference.tolist(), strict=True):
            wanted = [a for a in r if a >= 0]
            known = {heads[a] for a in wanted}
            result.append(
                torch.tensor([all(a < 0 or heads[a] not in known or a in wanted for a in y) for y in ys.tolist()])
            )
        return result


def binary_trees(i: int, j: int) -> list[list[tuple[int, int]]]:
    """The spans of every binary tree from word i to word j, each before those inside it."""
    if i == j:
        return [[(i, i)]]
    return [
        [(i, j), *left, *right] for k in range(i, j) for left in binary_trees(i, k) for right in binary_trees(k + 1, j)
    ]


@dataclass
class SpanCase(Case):
    """A reference agrees with the trees that have all of its brackets."""

    def agree(self, reference: Tensor) -> list[Tensor]:
        return [
            torch.tensor([{k for k in r if k >= 0} <= set(y) for y in ys.tolist()])
            for ys, r in zip(self.outputs, reference.tolist(), strict=True)
        ]


class TestConstituencyTree(StructureSuite):
    kinds = ("one label", "labels")
    edges = ("plain", "ties", "forbidden", "empty", "huge", "tiny")

    def make(self, kind: str, edge: str) -> Case:
        torch.manual_seed(sum(map(ord, kind + edge)))
        K, lengths = (1, [5, 0, 1, 4]) if kind == "one label" else (2, [3, 0, 1, 2])
        T = max(lengths)
        scores = edge_of(torch.randn(4, T, T, K, dtype=torch.float64), edge)
        if edge == "empty":
            scores[0, 0, lengths[0] - 1] = -INF
        for b, n in enumerate(lengths):  # garbage where it must not matter
            place = torch.arange(T)
            outside = (place[:, None] > place) | (place >= n)
            scores[b, outside] = math.nan if b % 2 else INF
        outputs = []
        for n in lengths:
            rows = []
            for spans in binary_trees(0, n - 1) if n else [[]]:
                for labels in itertools.product(range(K), repeat=len(spans)):
                    row = [(i * T + j) * K + k for (i, j), k in zip(spans, labels, strict=True)]
                    rows.append(row + [-1] * (2 * T - 1 - len(row)))
            outputs.append(torch.tensor(sorted(rows)))

        def score(x: Sequence[Tensor]) -> list[Tensor]:
            flat = x[0].reshape(4, -1)
            return [
                torch.stack([flat[b, [k for k in y if k >= 0]].sum() for y in ys.tolist()])
                for b, ys in enumerate(outputs)
            ]

        reference = torch.stack([ys[len(ys) // 2] for ys in outputs])
        partial = reference.clone()
        partial[:, ::2] = -1
        losses = [(sl.BracketErrors(m, f), bracket_errors(m, f)) for m, f in ((1, 1), (0.5, 2), (1, 0))]
        return SpanCase(
            (scores.requires_grad_(),), lambda x: sl.ConstituencyTree(x[0], lengths), outputs, score, reference,
            partial, losses,
        )  # fmt: skip

    def marginals_by_enumeration(self, case: Case) -> Tensor:
        total = torch.stack([oracle.log_partition(s) for s in case.score(case.potentials)])
        return gradients(total, case.potentials)[0].nan_to_num(0.0)

    def make_long(self, positions: int, dtype: torch.dtype) -> tuple[sl.Structure, Tensor]:
        n = positions // 50  # sums cost n**3
        generator = torch.Generator().manual_seed(3)
        scores = torch.randn(2, n, n, 2, generator=generator, dtype=torch.float64).to(dtype)
        right = [(i, n - 1, 0) for i in range(n)] + [(i, i, 1) for i in range(n - 1)]
        return sl.ConstituencyTree(scores), [right, right]


# --- What only trees have --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("projective", [True, False])
def test_scores_that_cancel_in_a_determinant_or_span_many_orders_are_exact(projective: bool, engine: str) -> None:
    for n, size in ((2, 50.0), (4, 300.0), (4, 3000.0)):
        scores = torch.full((1, n, n + 1), -size, dtype=torch.float64)
        for d in range(n):
            scores[0, d, 1 + (d ^ 1)] = size  # words want each other in pairs, and nobody the root
        scores += torch.randn_like(scores)
        scores.requires_grad_()
        ys = torch.tensor(dependency_trees(n, projective, True))
        wanted = scores[0].gather(1, ys.T).sum(0).logsumexp(0)
        found = sl.DependencyTree(scores, projective=projective).log_partition()[0]
        close(found.detach(), wanted.detach(), 1e-10)
        close(*(torch.autograd.grad(x, scores)[0] for x in (found, wanted)), 1e-9)


@pytest.mark.parametrize("projective", [True, False])
def test_logarithms_take_over_where_linear_arithmetic_ends(projective: bool) -> None:
    torch.manual_seed(0)
    scores = torch.randn(2, 40, 41, dtype=torch.float64) * 60
    values, gradients_ = [], []
    for name in ("native", "torch"):
        with sl.engine(name):
            x = scores.clone().requires_grad_()
            values.append(sl.DependencyTree(x, projective=projective).log_partition())
            gradients_.append(torch.autograd.grad(values[-1].sum(), x)[0])
    close(*(v.detach() for v in values), 1e-12)
    close(*gradients_, 1e-9)


def test_values_are_those_of_torch_struct() -> None:
    peer = pytest.importorskip("torch_struct")
    torch.manual_seed(0)
    scores, spans = torch.randn(3, 7, 8, dtype=torch.float64), torch.randn(3, 7, 7, 2, dtype=torch.float64)
    arcs = torch.where(torch.eye(7, dtype=torch.bool), scores[:, :, :1], scores[:, :, 1:].transpose(1, 2))
    arcs = arcs.requires_grad_() * 1.0  # theirs writes into a leaf
    for several in (False, True):
        trees = sl.DependencyTree(scores, single_root=not several)
        close(trees.log_partition(), peer.DependencyCRF(arcs, multiroot=several).partition.detach(), 1e-9)
        every = sl.DependencyTree(scores, projective=False, single_root=not several)  # theirs adds 1e-5 to a diagonal
        close(every.log_partition(), peer.NonProjectiveDependencyCRF(arcs, multiroot=several).partition.detach(), 1e-3)
    theirs = peer.TreeCRF(spans.requires_grad_() * 1.0)
    ours = sl.ConstituencyTree(spans.detach())
    close(ours.log_partition(), theirs.partition.detach(), 1e-9)
    close(ours.max(), theirs.max.detach(), 1e-9)


@pytest.mark.parametrize("projective", [True, False])
def test_long_sentences_have_trees_of_the_score_that_is_claimed(projective: bool) -> None:
    torch.manual_seed(0)
    trees = sl.DependencyTree(torch.randn(3, 25, 26), lengths=[25, 24, 1], projective=projective)
    scores, outputs = trees.topk(4)
    close(scores, trees.score(outputs), 1e-4)
    assert (scores[:-1] >= scores[1:])[:, :2].all()
    drawn = trees.sample(20, torch.Generator().manual_seed(0))
    assert (trees.score(drawn) <= scores[0] + 1e-4).all()
    assert ((drawn == 0).sum(2) == 1).all()


def test_labels_are_counted_as_las_and_uas_are() -> None:
    trees = sl.DependencyTree(torch.zeros(1, 3, 4, 2))
    heads, labels = torch.tensor([[2, 0, 2]]), torch.tensor([[1, 0, 1]])
    y = trees.arcs(heads, labels)
    assert (trees.heads(y).tolist(), trees.labels(y).tolist()) == (heads.tolist(), labels.tolist())
    other = trees.arcs(torch.tensor([[2, 0, 1]]), torch.tensor([[0, 0, 1]]))
    assert sl.Hamming()(other, y).tolist() == [2.0]
    assert sl.Hamming()(other, trees.arcs(heads)).tolist() == [1.0]
    assert trees.given(trees.arcs(heads)).log_partition().exp().item() == pytest.approx(8)
    assert trees.given(trees.arcs(heads, labels)).argmax().tolist() == y.tolist()


def test_what_is_no_tree_is_one_sentence() -> None:
    trees, every = sl.DependencyTree(torch.zeros(2, 3, 4)), sl.DependencyTree(torch.zeros(1, 4, 5), projective=False)
    spans = sl.ConstituencyTree(torch.zeros(2, 3, 3, 2), lengths=[3, 2])
    good = torch.tensor([[0, 1, 1]])
    for sentence, call in {
        r"reference: example 1 has the heads \[2, 1, 0\], in which word 1 does not reach the root": lambda: trees.given(
            torch.tensor([[0, 1, 1], [2, 1, 0]])
        ),
        r"y: example 0 has the heads \[0, 0, 1\], in which word 2 is a second one on the root": lambda: trees.score(
            torch.tensor([[0, 0, 1], [0, 1, 1]])
        ),
        r"y: example 0 has the heads \[3, 0, 2, 2\].*word .* crosses": lambda: sl.DependencyTree(
            torch.zeros(1, 4, 5)
        ).score(torch.tensor([[3, 0, 2, 2]])),
        r"y: y\[0, 2\] is 4, but labels are 0 to 3": lambda: trees.score(torch.tensor([[0, 1, 4], [0, 1, 1]])),
        "a DependencyTree writes none": lambda: trees.augment(sl.EditDistance(), good.expand(2, -1)),
        "cannot tell its outputs apart": lambda: sl.SlackHinge(sl.Hamming())(trees, good.expand(2, -1)),
        "no output of example 0 agrees with its reference": lambda: sl.NegativeLogLikelihood()(
            sl.DependencyTree(torch.zeros(1, 4, 5)), torch.tensor([[3, 0, 2, 2]])
        ),
        r"scores: got shape \(2, 3, 3\), but wanted \(B, T, T \+ 1\)": lambda: sl.DependencyTree(torch.zeros(2, 3, 3)),
        "scores: example 0 has NaN for word 2 on 1": lambda: sl.DependencyTree(
            torch.zeros(1, 2, 3).index_put((torch.tensor(0), torch.tensor(1), torch.tensor(1)), torch.tensor(math.nan))
        ),
        r"brackets \(0, 1, 0\) and \(1, 2, 1\) of example 0 cross": lambda: spans.given([[(0, 1, 0), (1, 2, 1)], []]),
        r"reference\[1\]\[0\] is \(0, 2, 0\), but wanted \(begin, end, label\), words 0 to 1": lambda: spans.given(
            [[], [(0, 2, 0)]]
        ),
        "are not the brackets of a binary tree over the 3 words of example 0": lambda: spans.score(
            torch.tensor([[4, 0, 0, 8, 16], [2, 0, 8, -1, -1]])
        ),
        "a sum over labels, but wanted a sum over brackets": lambda: spans.augment(sl.Hamming(), [[], []]),
        r"arcs: example 1 has a cycle through its arc \d, \[\d, \d, -1\]": lambda: sl.Forest(
            [[[0, -1, -1]], [[0, 1, -1], [1, 2, -1], [2, 1, -1]]], torch.zeros(4)
        ),
        r"texts\[0\], line 3: the item B is below itself, a cycle": lambda: sl.Forest.from_text("S -> B\n\nB -> S"),
        r"texts\[0\], line 2: got 'B S', but wanted `head -> tail tail : score`": lambda: sl.Forest.from_text(
            "S -> B\nB S"
        ),
        r"texts\[0\], line 1: the score is 'x', but wanted at most 1e\+30, or -inf": lambda: sl.Forest.from_text(
            "S -> : x"
        ),
        r"y: \[1, 1\] is no tree of example 0, from position 1 on": lambda: sl.Forest(
            [[[1, -1, -1], [0, 1, -1]]], torch.zeros(2)
        ).score(torch.tensor([[1, 1]])),
    }.items():
        with pytest.raises((ValueError, TypeError, NotImplementedError), match=sentence):
            call()
    assert every.score(torch.tensor([[3, 0, 2, 2]])).tolist() == [0.0]


def test_partial_brackets_keep_the_trees_that_have_them() -> None:
    trees = sl.ConstituencyTree(torch.zeros(1, 4, 4, 2))
    kept = trees.given([[(1, 2, 1), (0, 3, -100)]])
    assert kept.log_partition().exp().item() == pytest.approx(2 * 2**6)
    assert (1, 2, 1) in kept.decode()[0]
    both = kept.given([[(0, 2, 0)]])
    assert both.log_partition().exp().item() == pytest.approx(2**5)


def test_a_forest_is_drawn(tmp_path: Path) -> None:
    forest = sl.Forest.from_text("S -> A B : 1\nA -> B\nB ->\nS -> A")
    for path in (forest.draw(tmp_path / "a.svg"), sl.Forest([[[0, -1, -1]]], torch.zeros(1)).draw(tmp_path / "b.png")):
        assert path.stat().st_size > 1000
    assert ">S<" in (tmp_path / "a.svg").read_text() or "S" in (tmp_path / "a.svg").read_text()


def derivations(i: int, j: int, inner: int, symbols: int) -> list[list[tuple[int, int, int]]]:
    """The brackets of every derivation of the words i to j, each before those inside it."""
    if i == j:
        return [[(i, i, a)] for a in range(inner, symbols)]
    parts = [(derivations(i, k, inner, symbols), derivations(k + 1, j, inner, symbols)) for k in range(i, j)]
    return [[(i, j, a), *x, *y] for a in range(inner) for left, right in parts for x in left for y in right]


class TestPCFG(TestConstituencyTree):
    kinds = ("grammar",)
    edges = ("plain", "forbidden", "empty", "huge", "tiny")  # ties are resolved by rules

    def make(self, kind: str, edge: str) -> Case:
        torch.manual_seed(sum(map(ord, kind + edge)))
        N, P, lengths, T = 2, 2, [3, 0, 2], 3
        K = N + P
        rules, words = torch.randn(N, K, K, dtype=torch.float64), torch.randn(3, T, P, dtype=torch.float64)
        roots = torch.randn(N, dtype=torch.float64)
        rules, words, roots = (edge_of(x, edge) for x in (rules, words, roots))
        if edge == "empty":
            words[0, 1] = -INF
        for b, n in enumerate(lengths):
            words[b, n:] = math.nan if b % 2 else INF
        trees = [derivations(0, n - 1, N, K) if n else [[]] for n in lengths]
        rows = [sorted([((i * T + j) * K + a) for i, j, a in y] for y in own) for own in trees]
        outputs = [torch.tensor([y + [-1] * (2 * T - 1 - len(y)) for y in own]) for own in rows]

        def score(x: Sequence[Tensor]) -> list[Tensor]:
            def of(b: int, y: list[int]) -> Tensor:
                spans = [(k // (T * K), k // K % T, k % K) for k in y]
                label = {(i, j): a for i, j, a in spans}
                total = x[2][spans[0][2]] if spans else x[2].new_zeros(())
                for i, j, a in spans:
                    if i == j:
                        total = total + x[1][b, i, a - N]
                        continue
                    (k,) = [k for k in range(i, j) if (i, k) in label and (k + 1, j) in label]
                    total = total + x[0][a, label[i, k], label[k + 1, j]]
                return total

            return [torch.stack([of(b, y) for y in own]) for b, own in enumerate(rows)]

        reference = torch.stack([ys[len(ys) // 2] for ys in outputs])
        partial = reference.clone()
        partial[:, ::2] = -1
        losses = [(sl.BracketErrors(m, f), bracket_errors(m, f)) for m, f in ((1, 1), (1, 0))]
        leaves = tuple(x.requires_grad_() for x in (rules, words, roots))
        return SpanCase(leaves, lambda x: sl.PCFG(*x, lengths), outputs, score, reference, partial, losses)

    def make_long(self, positions: int, dtype: torch.dtype) -> tuple[sl.Structure, Tensor]:
        n = positions // 100  # its chart has n**3 / 6 times the rules
        generator = torch.Generator().manual_seed(3)
        rules, words = torch.randn(1, 2, 2, generator=generator), torch.randn(2, n, 1, generator=generator)
        right = [(i, n - 1, 0) for i in range(n - 1)] + [(i, i, 1) for i in range(n)]
        return sl.PCFG(rules.to(dtype), words.to(dtype)), [right, right]
