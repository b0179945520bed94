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
