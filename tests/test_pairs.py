"""Alignments of pairs of sequences against the list of all of them, and their loss."""

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

import oracle
import structloss as sl
from suite import Case, StructureSuite


def alignments(n: int, m: int) -> list[tuple[int, ...]]:
    """The partners of all alignments, in lexicographic order: any rows of x with as many columns of y."""
    found = []
    for k in range(min(n, m) + 1):
        for rows, columns in itertools.product(
            itertools.combinations(range(n), k), itertools.combinations(range(m), k)
        ):
            partners = [-1] * n
            for i, j in zip(rows, columns, strict=True):
                partners[i] = j
            found.append(tuple(partners))
    return sorted(found)


def definition(scores: dict[str, Tensor], b: int, y: tuple[int, ...], m: int, local: bool) -> Tensor:
    """The score, as the docstring of Alignment writes it: gap after gap."""
    pairs = [(i, j) for i, j in enumerate(y) if j >= 0]
    total = torch.stack([scores["match"].new_zeros(()), *(scores["match"][b, i, j] for i, j in pairs)]).sum()
    ends = [(-1, -1), *pairs, (len(y), m)]
    if local:
        ends = pairs
    for (i, j), (i_next, j_next) in itertools.pairwise(ends):
        for gap, name in ((range(i + 1, i_next), "x"), (range(j + 1, j_next), "y")):
            for place, at in enumerate(gap):
                total = total + scores[f"{name}_open" if place == 0 else f"{name}_extend"][b, at]
    return total


def pair_errors(miss: float, false_alarm: float):
    def loss(y: Tensor, r: Tensor) -> float:
        known = [i for i, partner in enumerate(r.tolist()) if partner != -100]
        mine = {(i, int(y[i])) for i in known if y[i] >= 0}
        theirs = {(i, int(r[i])) for i in known if r[i] >= 0}
        return miss * len(theirs - mine) + false_alarm * len(mine - theirs)

    return loss


@dataclass
class PairCase(Case):
    lengths: Tensor | None = None

    def agree(self, reference: Tensor) -> list[Tensor]:
        """-1 is no partner: a partner like another, within the length of x."""
        return [
            ((y == r) | (r == -100))[:, :n].all(1)
            for y, r, n in zip(self.outputs, reference, self.lengths.tolist(), strict=True)
        ]


class TestAlignment(StructureSuite):
    kinds = ("global", "local", "one gap", "local with one gap")
    edges = ("plain", "ties", "forbidden", "empty", "huge", "tiny", "zero")

    def make(self, kind: str, edge: str) -> Case:
        torch.manual_seed(sum(map(ord, kind + edge)))
        sizes = (
            [(3, 2), (2, 3), (1, 1), (0, 2)] if edge == "plain" else [(4, 5), (5, 3), (1, 1), (2, 0), (0, 0), (1, 4)]
        )
        local, B, N, M = "local" in kind, len(sizes), max(n for n, _ in sizes), max(m for _, m in sizes)
        one = "one gap" in kind
        shapes = {"match": (B, N, M)} | (
            {"open": (), "extend": ()}
            if one
            else {"x_open": (B, N), "x_extend": (B, N), "y_open": (B, M), "y_extend": (B, M)}
        )
        potentials = {name: self.edge(torch.randn(shape, dtype=torch.float64), edge) for name, shape in shapes.items()}
        if edge == "empty" and not one:
            for x in potentials.values():
                x[0] = -math.inf
        for b, (n, m) in enumerate(sizes):  # garbage where it must not matter
            garbage = math.nan if b % 2 else math.inf
            potentials["match"][b, n:] = potentials["match"][b, :, m:] = garbage
            for name in shapes.keys() & {"x_open", "x_extend"}:
                potentials[name][b, n:] = garbage
            for name in shapes.keys() & {"y_open", "y_extend"}:
                potentials[name][b, m:] = garbage
        leaves = tuple(x.requires_grad_() for x in potentials.values())
        ways = [alignments(n, m) for n, m in sizes]
        outputs = [torch.tensor([[*y, *[-1] * (N - len(y))] for y in own]).reshape(-1, N) for own in ways]
        lengths = tuple(torch.tensor(own) for own in zip(*sizes, strict=True))

        def build(x):
            match, *gaps = x
            gaps = gaps if one else [(gaps[0], gaps[2]), (gaps[1], gaps[3])]
            return sl.Alignment(match, *gaps, mode="local" if local else "global", lengths=lengths)

        def score(x):
            scores = dict(zip(shapes, x, strict=True))
            if one:
                for name, size in (("x", N), ("y", M)):
                    scores |= {f"{name}_{kind}": scores[kind].expand(B, size) for kind in ("open", "extend")}
            return [
                torch.stack([definition(scores, b, y, sizes[b][1], local) for y in own]) for b, own in enumerate(ways)
            ]

        reference, partial = torch.full((B, N), -1), torch.full((B, N), -1)
        for b, s in enumerate(score([x.detach() for x in leaves])):
            possible = [y for y, value in zip(ways[b], s.tolist(), strict=True) if value > -math.inf] or ways[b]
            y = torch.tensor(possible[len(possible) // 2], dtype=torch.int64)
            reference[b, : len(y)] = y
            partial[b, : len(y)] = torch.where(torch.arange(len(y)) % 2 == (b % 2), y, -100)
        beyond = torch.arange(N) >= lengths[0][:, None]
        losses = [(sl.PairErrors(), pair_errors(1, 1)), (sl.PairErrors(2.0, 0.5), pair_errors(2.0, 0.5))]
        losses.append((2 * sl.PairErrors(1.0, 0.0) + sl.PairErrors(0.0, 0.5), pair_errors(2.0, 0.5)))
        return PairCase(
            leaves, build, outputs, score, reference.masked_fill(beyond, -1), partial.masked_fill(beyond, -7), losses,
            lengths[0],
        )  # fmt: skip

    @staticmethod
    def edge(x: Tensor, edge: str) -> Tensor:
        x = (x * 1024).round() / 1024  # so that sums are exact, and ties are ties in any order
        if edge == "forbidden":
            return torch.where((torch.rand(x.shape) < 0.25) & (x.dim() > 0 or x > 5), -math.inf, x)
        factors = {"huge": 1e6, "tiny": 1e-6, "zero": 0.0}
        return x.round() if edge == "ties" else x * factors.get(edge, 1.0)

    def make_long(self, positions: int, dtype: torch.dtype):
        generator = torch.Generator().manual_seed(0)
        match = torch.randn(2, positions, 30, dtype=torch.float64, generator=generator).to(dtype)
        reference = torch.full((2, positions), -1)
        reference[:, 5:20], reference[:, -3] = torch.arange(15), 20
        s = sl.Alignment(match, (-1.0, -0.5), (-0.1, -0.2), lengths=([positions, positions - 2], [30, 25]))
        return s, reference

    def marginals_by_enumeration(self, case: Case) -> Tensor:
        wanted = torch.zeros_like(case.potentials[0])
        for b, (outputs, s) in enumerate(zip(case.outputs, case.score(case.potentials), strict=True)):
            for y, p in zip(outputs.tolist(), oracle.probabilities(s.detach()).tolist(), strict=True):
                for i, j in enumerate(y):
                    if j >= 0:
                        wanted[b, i, j] += p
        return wanted.detach()
