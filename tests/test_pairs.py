"""Alignments of pairs of sequences against the list of all of them, and their loss."""

import itertools
import math
from dataclasses import dataclass

import parasail
import pytest
import torch
from torch import Tensor

import oracle
import structloss as sl
from suite import Case, StructureSuite, close


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


class TestAlignmentAlone:
    def test_its_sizes_are_named(self) -> None:
        s = sl.Alignment(torch.zeros(2, 3, 4), -1.0, mode="local", lengths=([3, 1], [2, 4]))
        assert repr(s) == "Alignment(batch=2, x=3, y=4, mode=local, torch.float32, cpu)"
        assert [x.tolist() for x in s.lengths] == [[3, 1], [2, 4]]
        assert s[1].lengths[1].tolist() == [4]

    def test_partners_are_decoded_and_have_a_minimum_risk(self) -> None:
        s = sl.Alignment(torch.randn(2, 3, 4), -1.0, lengths=([3, 2], [2, 4]))
        for y, row, n in zip(s.decode(), s.argmax().tolist(), (3, 2), strict=True):
            assert y == row[:n]
        found = sl.mbr(s, sl.PairErrors(), candidates=100)
        for b, (y, sizes) in enumerate(zip(found.strings, ((3, 2), (2, 4)), strict=True)):
            own = [s[b].expected(sl.PairErrors(), [z]).item() for z in alignments(*sizes)]
            assert found.risks[b].item() == pytest.approx(s[b].expected(sl.PairErrors(), [y]).item(), abs=1e-5)
            assert found.risks[b].item() <= min(own) + 1e-5

    def test_a_sum_counts_every_alignment_once(self, engine: str) -> None:
        for n, m in ((0, 0), (0, 3), (3, 0), (1, 1), (4, 6)):
            for mode in ("global", "local"):
                s = sl.Alignment(torch.zeros(1, n, m, dtype=torch.float64), 0.0, mode=mode)
                count = torch.tensor([float(math.comb(n + m, n))], dtype=torch.float64)
                close(s.log_partition().exp(), count, 1e-9)

    def test_masks_are_lengths(self, engine: str) -> None:
        match = torch.randn(2, 3, 4)
        masks = torch.tensor([[1, 1, 1], [1, 0, 0]]) > 0, torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]]) > 0
        values = [
            sl.Alignment(match, -1.0, lengths=own).log_partition() for own in (masks, (torch.tensor([3, 1]), [2, 4]))
        ]
        assert torch.equal(*values)

    def test_gaps_are_numbers_tensors_or_two_of_each(self, engine: str) -> None:
        match = torch.randn(2, 3, 4)
        values = [
            sl.Alignment(match, *gaps).log_partition()
            for gaps in (
                (-1, -0.5),
                (torch.tensor(-1.0), torch.tensor(-0.5)),
                ((-1.0, torch.full((2, 4), -1.0)), (torch.full((2, 3), -0.5), torch.tensor(-0.5))),
            )
        ]
        assert torch.equal(values[0], values[1])
        assert torch.equal(values[0], values[2])
        close(sl.Alignment(match, -1.0).max(), sl.Alignment(match, -1.0, -1.0).max())

    def test_half_precision_is_computed_in_float32(self, engine: str) -> None:
        match = torch.randn(2, 3, 4).bfloat16()
        s = sl.Alignment(match, -1.0, -0.5)
        assert s.marginals().dtype == torch.float32
        close(s.log_partition(), sl.Alignment(match.float(), -1.0, -0.5).log_partition())

    def test_a_reference_may_be_a_list_or_say_which_partners_each_position_may_have(self, engine: str) -> None:
        match = torch.randn(2, 3, 4)
        for mode in ("global", "local"):
            s = sl.Alignment(match, -1.0, -0.5, mode=mode, lengths=([3, 2], [4, 3]))
            known = [[1, -1, -100], [-100, 2]]
            sets = torch.ones(2, 3, 5, dtype=torch.bool)
            sets[0, 0], sets[0, 1], sets[1, 1] = (torch.arange(5) == k for k in (1, 4, 2))
            assert torch.equal(s.given(known).log_partition(), s.given(sets).log_partition())
            assert s.given(known).argmax()[:, 0].tolist()[0] == 1
            padded = torch.tensor([[1, -1, -100], [-100, 2, 7]])
            assert torch.equal(s.given(padded).log_partition(), s.given(sets).log_partition())

    def test_what_no_alignment_agrees_with_is_the_empty_set(self, engine: str) -> None:
        for mode in ("global", "local"):
            sets = torch.zeros(1, 2, 3, dtype=torch.bool)
            sets[:, :, 0] = True  # both positions of x want the first of y
            match = torch.zeros(1, 2, 2, requires_grad=True)
            s = sl.Alignment(match, -1.0, mode=mode).given(sets)
            assert s.argmax().tolist() == [[-1, -1]]
            for value in (s.log_partition(), s.max(), s.topk(2)[0][0]):
                assert value.item() == -math.inf
            with pytest.raises(ValueError, match="example 0 has no output"):
                s.sample(1)

    def test_a_forbidden_gap_leaves_the_diagonal(self, engine: str) -> None:
        s = sl.Alignment(torch.randn(1, 5, 5), -math.inf)
        assert s.argmax().tolist() == [[0, 1, 2, 3, 4]]
        close(s.entropy(), torch.zeros(1), 1e-5)

    def test_parasail_aligns_as_the_maximum_does(self) -> None:
        generator = torch.Generator().manual_seed(0)
        matrix = parasail.matrix_create("ACGT", 3, -2)
        for mode, search in (("global", parasail.nw), ("local", parasail.sw)):
            for _ in range(50):
                x, y = (torch.randint(4, (int(torch.randint(1, 30, (), generator=generator)),), generator=generator)
                        for _ in range(2))  # fmt: skip
                match = torch.where(x[:, None] == y, 3.0, -2.0)[None]
                texts = ("".join("ACGT"[i] for i in s) for s in (x, y))
                wanted = search(*texts, 5, 1, matrix).score
                assert sl.Alignment(match, -5.0, -1.0, mode=mode).max().item() == wanted

    @pytest.mark.parametrize(
        ("sentence", "call"),
        [
            ("mode: got 'semi', but wanted", lambda m: sl.Alignment(m, -1.0, mode="semi")),
            ("gap_open: got 3 of them", lambda m: sl.Alignment(m, (1.0, 2.0, 3.0))),
            (r"gap_open\[0\]: got shape \(2, 4\)", lambda m: sl.Alignment(m, torch.zeros(2, 4))),
            (r"gap_open\[1\]: got \+inf", lambda m: sl.Alignment(m, (0.0, math.inf))),
            ("match: example 1 has NaN", lambda m: sl.Alignment(m.index_fill(0, torch.tensor(1), math.nan), 0.0)),
            (r"lengths: got .* but wanted two of them", lambda m: sl.Alignment(m, 0.0, lengths=[3, 3, 3])),
            (r"lengths\[1\]: lengths\[1\]\[0\] is 9", lambda m: sl.Alignment(m, 0.0, lengths=(None, [9, 1]))),
            ("y: example 0 pairs x_1 with 1, but wanted growing partners", lambda m: sl.Alignment(m, 0.0).score(
                torch.tensor([[1, 1, 2], [0, 1, 2]]))),
            ("reference: example 1 pairs x_2 with 4, but wanted", lambda m: sl.Alignment(m, 0.0).given(
                [[0, 1, 2], [-1, -100, 4]])),
            (r"reference\[0\] has 2 entries, but example 0 has 3 positions of x", lambda m: sl.Alignment(m, 0.0).given(
                [[0, 1], [0, 1]])),
            ("reference: got sets of partners", lambda m: sl.Alignment(m, 0.0).augment(
                sl.PairErrors(), torch.ones(2, 3, 5) > 0)),
            ("a sum over labels, but wanted a sum over pairs", lambda m: sl.Alignment(m, 0.0).augment(
                sl.Hamming(), [[0, 1, 2]] * 2)),
            ("but outputs of an Alignment are pairs", lambda m: sl.Alignment(m, 0.0).augment(
                sl.EditDistance(), [[0, 1, 2]] * 2)),
            ("other: got other lengths", lambda m: sl.Alignment(m, 0.0).kl(
                sl.Alignment(m, 0.0, lengths=([2, 3], None)))),
            ("other: got .*wanted the sizes of", lambda m: sl.Alignment(m, 0.0).kl(
                sl.Alignment(m, 0.0, mode="local"))),
        ],
    )  # fmt: skip
    def test_an_error_says_what_came_and_what_was_wanted(self, sentence: str, call) -> None:
        with pytest.raises((ValueError, TypeError), match=sentence):
            call(torch.zeros(2, 3, 4))


class TestPairErrors:
    def test_lists_tensors_and_several_answers(self) -> None:
        loss = sl.PairErrors(2.0, 0.5)
        assert loss([[0, -1], [1]], [[0, 1], [-1]]).tolist() == [2.0, 0.5]
        several = torch.tensor([[[0, -1], [1, -1]], [[0, 1], [-1, -1]]])
        assert loss(several, torch.tensor([[0, 1], [-1, -100]])).tolist() == [[2.0, 0.5], [0.0, 0.0]]
        assert loss(several[0], [[0, 1], [-1]], lengths=[1, 1]).tolist() == [0.0, 0.5]

    def test_errors(self) -> None:
        with pytest.raises(ValueError, match=r"reference\[0\] has 1 partners, but the answer has 2"):
            sl.PairErrors()([[0, 1]], [[0]])
        with pytest.raises(ValueError, match="got 2 references for 1 answers"):
            sl.PairErrors()([[0, 1]], [[0], [1]])
        with pytest.raises(ValueError, match="miss: got -1"):
            sl.PairErrors(-1.0)
