"""Forests, constituents and derivations: the inherited suite."""

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
from suite import Case, StructureSuite, gradients
from test_trees import edge_of

INF = math.inf


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
