"""Dependency trees: the inherited suite, and what only trees have."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import oracle
import structloss as sl
from suite import Case, StructureSuite, close

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
