"""Segmentation and SemiMarkov: the inherited suite, the boundary losses, and what only cutting frames has."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import oracle
import structloss as sl
from structloss.structures import strata
from structloss.structures.segments import native_engine
from structloss.structures.segments.segmentation import nearest_starts
from suite import Case, StructureSuite, close, gradients

T = 7


def cuts(length: int, count: int, shortest: int, longest: int) -> list[list[int]]:
    """The starts of every way to cut, in lexicographic order."""
    found = []
    for inner in itertools.combinations(range(1, length), count - 1) if length and count else []:
        starts = [0, *inner]
        if all(shortest <= end - start <= longest for start, end in itertools.pairwise([*starts, length])):
            found.append(starts)
    return [[]] if length == count == 0 else found


def tolerance(tau: float) -> Callable[[Tensor, Tensor], float]:
    """Equation 16."""

    def loss(y: Tensor, r: Tensor) -> float:
        pairs = [(a, b) for a, b in zip(y.tolist(), r.tolist(), strict=True) if a >= 0 and b not in (-1, -100)]
        return len([1 for a, b in pairs if abs(a - b) > tau]) / max(1, len(pairs))

    return loss


def insensitive(tau: float) -> Callable[[Tensor, Tensor], float]:
    """Equation 17, summed over k."""

    def loss(y: Tensor, r: Tensor) -> float:
        pairs = [(a, b) for a, b in zip(y.tolist(), r.tolist(), strict=True) if a >= 0 and b not in (-1, -100)]
        return sum(max(abs(a - b) - tau, 0) for a, b in pairs) / max(1, len(pairs))

    return loss


def edge_of(x: Tensor, edge: str) -> Tensor:
    x = (x * 1024).round() / 1024  # so that sums are exact, and what is a tie by its definition is one in any order
    if edge == "ties":
        return torch.randint(0, 2, x.shape).double()
    if edge == "forbidden":
        return torch.where(torch.rand(x.shape) < 0.15, -math.inf, x)
    if edge == "huge":
        return x * 1e6
    if edge == "tiny":
        return x * 2**-30
    if edge == "span":  # pairs of durations that are lost where exp(rates) and exp(ways) are multiplied
        return torch.where(torch.rand(x.shape) < 0.5, x, x - 500)
    return x


class SegmentSuite(StructureSuite):
    """What both structures are tested for besides."""

    def test_a_structure_is_differentiated_twice_without_retaining(self, kind: str, engine: str) -> None:
        case = self.make(kind, "plain")
        s = case.structure()
        for value in (s.log_partition(), s.entropy(), s.max()):
            finite = value[value.detach().isfinite()].sum()
            torch.autograd.grad(finite, case.potentials, allow_unused=True)

    def test_no_gradient_is_computed_where_none_is_recorded(self, kind: str, engine: str) -> None:
        case = self.make(kind, "plain")
        with torch.no_grad():
            found = case.structure().log_partition()
        assert not found.requires_grad
        close(found, case.structure().log_partition().detach())


class TestSegmentation(SegmentSuite):
    kinds = ("boundary", "frames and durations", "everything", "bounded")
    edges = ("plain", "ties", "forbidden", "empty", "huge", "tiny", "span")

    def make(self, kind: str, edge: str) -> Case:
        torch.manual_seed(sum(map(ord, kind + edge)))
        # Numbers of segments that are powers of two, so that a loss divided by them is exact, and ties are ties.
        sizes = [(6, 2), (2, 1), (4, 2), (0, 0)] if kind == "bounded" else [(7, 4), (1, 1), (4, 4), (6, 2), (0, 0)]
        if kind == "everything":  # rates are many: fewer examples and durations, for the checks of gradients
            sizes = [(6, 4), (1, 1), (4, 4), (5, 2), (0, 0)]
        sizes = [(2, 4) if edge == "empty" and i == 2 else size for i, size in enumerate(sizes)]  # which cannot be cut
        B, N, D = len(sizes), max(n for _, n in sizes), 3 if kind == "everything" else 5
        shapes = {"boundary": (B, N, T), "frames": (B, N, T), "durations": (B, N, D), "rates": (B, N, D, D)}
        names = {
            "boundary": ["boundary"],
            "frames and durations": ["frames", "durations"],
            "everything": ["boundary", "frames", "durations", "rates"],
            "bounded": ["boundary", "frames"],
        }[kind]
        bounds = {"min_duration": 2, "max_duration": 4} if kind == "bounded" else {}
        shortest, longest = (2, 4) if bounds else (1, T if kind == "boundary" else D)
        lengths, counts = torch.tensor([a for a, _ in sizes]), torch.tensor([n for _, n in sizes])
        potentials = {name: edge_of(torch.randn(shapes[name], dtype=torch.float64), edge) for name in names}
        if edge == "empty":
            potentials[names[0]][0, 0] = -math.inf
        for name, x in potentials.items():  # garbage where it must not matter
            for b, (length, count) in enumerate(sizes):
                garbage = math.nan if b % 2 else math.inf
                x[b, count:] = garbage
                if name in ("boundary", "frames"):
                    x[b, :, length:] = garbage
            if name == "rates":
                x[:, 0] = math.nan
        leaves = tuple(x.requires_grad_() for x in potentials.values())
        ways = [cuts(length, count, shortest, longest) for length, count in sizes]
        outputs = [torch.tensor([[*y, *[-1] * (N - len(y))] for y in own] or [[-1] * N]).reshape(-1, N) for own in ways]

        def build(x):
            return sl.Segmentation(**dict(zip(names, x, strict=True)), lengths=lengths, segments=counts, **bounds)

        def score(x):
            scores = dict(zip(names, x, strict=True))
            impossible = torch.tensor([-math.inf], dtype=x[0].dtype)
            return [
                torch.stack([self.definition(scores, b, y, int(lengths[b])) for y in own]) if own else impossible
                for b, own in enumerate(ways)
            ]

        reference, partial = torch.full((B, N), -100), torch.full((B, N), -100)
        for b, s in enumerate(score([x.detach() for x in leaves])):
            if not ways[b]:
                continue
            possible = [y for y, value in zip(ways[b], s.tolist(), strict=True) if value > -math.inf] or ways[b]
            y = possible[len(possible) // 2]
            reference[b, : len(y)] = torch.tensor(y)
            partial[b, : len(y)] = torch.tensor([start if n % 2 else -100 for n, start in enumerate(y)])
        beyond = torch.arange(N) >= counts[:, None]
        losses = [
            (sl.BoundaryTolerance(1), tolerance(1)),
            (sl.BoundaryTolerance(0), tolerance(0)),
            (sl.BoundaryInsensitive(0.5), insensitive(0.5)),
        ]
        return Case(
            leaves, build, outputs, score, reference.masked_fill(beyond, 10**9), partial.masked_fill(beyond, -7), losses
        )

    @staticmethod
    def definition(scores: dict[str, Tensor], b: int, y: list[int], length: int) -> Tensor:
        """The score, as the docstring of Segmentation writes it."""
        total, ends = torch.zeros((), dtype=torch.float64), [*y[1:], length]
        durations = [end - start for start, end in zip(y, ends, strict=True)] if y else []
        for n, start in enumerate(y):
            if "boundary" in scores:
                total = total + scores["boundary"][b, n, start]
            if "frames" in scores:
                for t in range(start, ends[n]):
                    total = total + scores["frames"][b, n, t]
            if "durations" in scores:
                total = total + scores["durations"][b, n, durations[n] - 1]
            if "rates" in scores and n:
                total = total + scores["rates"][b, n, durations[n - 1] - 1, durations[n] - 1]
        return total

    def marginals_by_enumeration(self, case: Case) -> Tensor:
        found = torch.zeros(len(case.outputs), case.outputs[0].shape[1], T, dtype=torch.float64)
        for b, s in enumerate(case.score(case.potentials)):
            for y, p in zip(case.outputs[b].tolist(), oracle.probabilities(s.detach()), strict=True):
                for n, t in enumerate(y):
                    if t >= 0:
                        found[b, n, t] += p
        return found

    def make_long(self, positions: int, dtype: torch.dtype):
        generator, N, D = torch.Generator().manual_seed(3), 100, 35
        draw = {"boundary": (2, N, positions), "frames": (2, N, positions), "durations": (2, N, D)}
        scores = {k: torch.randn(v, generator=generator, dtype=torch.float64).to(dtype) for k, v in draw.items()}
        reference = torch.arange(N) * 20
        return sl.Segmentation(**scores), torch.stack([reference, reference])

    def test_decode_gives_the_starts(self, kind: str, edge: str, engine: str) -> None:
        case = self.make(kind, edge)
        s = case.structure()
        assert s.decode() == [[t for t in y if t >= 0] for y in s.argmax().tolist()]


class TestSegmentationAlone:
    def test_its_sizes_are_named(self) -> None:
        s = sl.Segmentation(torch.zeros(2, 3, 5), lengths=[5, 4], segments=[3, 2], max_duration=4)
        assert repr(s) == "Segmentation(batch=2, frames=5, segments=3, durations=1 to 4, torch.float32, cpu)"
        assert (s.lengths.tolist(), s.segments.tolist()) == ([5, 4], [3, 2])

    def test_one_segment_covers_all(self, engine: str) -> None:
        frames = torch.randn(2, 1, 5)
        s = sl.Segmentation(frames=frames, lengths=[5, 3])
        close(s.log_partition(), torch.stack([frames[0].sum(), frames[1, 0, :3].sum()]), 1e-5)
        assert s.argmax().tolist() == [[0], [0]]

    def test_as_many_segments_as_frames_leave_one_way(self, engine: str) -> None:
        s = sl.Segmentation(torch.randn(1, 6, 6))
        assert s.argmax().tolist() == [list(range(6))]
        close(s.entropy(), torch.zeros(1), 1e-5)

    @pytest.mark.parametrize(
        ("lengths", "segments", "bounds"),
        [
            ([2], [3], {}),
            ([0], [1], {}),
            ([3], [0], {}),
            ([5], [3], {"min_duration": 2}),
            ([7], [3], {"max_duration": 2}),
            ([7], [3], {"min_duration": 4, "max_duration": 4}),
        ],
    )
    def test_what_cannot_be_cut_is_the_empty_set(self, lengths, segments, bounds, engine: str) -> None:
        boundary = torch.randn(1, 3, 7, requires_grad=True)
        s = sl.Segmentation(boundary, lengths=lengths, segments=segments, **bounds)
        assert s.argmax().tolist() == [[-1, -1, -1]]
        for value in (s.log_partition(), s.max(), s.topk(2)[0][0]):
            assert value.item() == -math.inf
            gradient = torch.autograd.grad(value.sum(), boundary, allow_unused=True)[0]
            assert gradient is None or (gradient == 0).all()
        assert (s.marginals() == 0).all()
        with pytest.raises(ValueError, match="example 0 has no output"):
            s.sample(1)

    def test_forbidden_frames_do_not_reach_other_segments(self, engine: str) -> None:
        frames = torch.zeros(1, 2, 6)
        frames[0, 0, 2] = -math.inf
        frames.requires_grad_()
        s = sl.Segmentation(frames=frames)
        close(s.log_partition(), torch.tensor([math.log(2)]), 1e-6)  # the first segment has one frame or two
        gradient = torch.autograd.grad(s.log_partition().sum(), frames)[0]
        close(gradient[0, 0], torch.tensor([1, 0.5, 0, 0, 0, 0]), 1e-6)

    def test_a_huge_frame_costs_the_others_no_precision(self, engine: str) -> None:
        frames = torch.randn(1, 2, 6, dtype=torch.float64)
        frames[0, 0, 1] = -1e30
        without = frames[:, 1:, 1:]
        close(sl.Segmentation(frames=frames).log_partition(), frames[0, 0, 0] + without.sum((1, 2)), 1e-12)

    def test_half_precision_is_computed_in_float32(self, engine: str) -> None:
        scores = torch.randn(1, 3, 8).bfloat16()
        s = sl.Segmentation(scores)
        assert s.log_partition().dtype == torch.float32
        close(s.log_partition(), sl.Segmentation(scores.float()).log_partition())

    def test_durations_alone_want_lengths(self, engine: str) -> None:
        durations = torch.randn(2, 3, 4)
        s = sl.Segmentation(durations=durations, lengths=[6, 4])
        assert s.decode()[0][0] == 0
        with pytest.raises(ValueError, match="lengths: got None"):
            sl.Segmentation(durations=durations)

    def test_max_duration_cuts_durations_short(self, engine: str) -> None:
        durations = torch.randn(1, 3, 6, dtype=torch.float64)
        bounded = sl.Segmentation(durations=durations, lengths=[8], max_duration=4)
        close(bounded.log_partition(), sl.Segmentation(durations=durations[:, :, :4], lengths=[8]).log_partition())

    def test_given_twice_must_agree_twice(self, engine: str) -> None:
        s = sl.Segmentation(torch.randn(1, 3, 6))
        assert s.given([[0, 2, -100]]).given([[0, -100, 4]]).argmax().tolist() == [[0, 2, 4]]
        assert s.given([[0, 2, 4]]).given([[0, 3, 4]]).log_partition().item() == -math.inf
        assert s.given([[0, 2, -100]]).given([[0, 3, 4]]).max().item() == -math.inf

    def test_a_reference_with_a_forbidden_duration_leaves_nothing(self, engine: str) -> None:
        s = sl.Segmentation(torch.zeros(1, 2, 6), max_duration=3)
        assert s.given([[0, 4]]).log_partition().item() == -math.inf
        assert s.score(torch.tensor([[0, 4]])).item() == -math.inf

    def test_direct_loss_learns_a_boundary(self, engine: str) -> None:
        boundary = torch.zeros(1, 3, 9, requires_grad=True)
        objective, reference = sl.DirectLoss(sl.BoundaryTolerance(0)), torch.tensor([[0, 4, 6]])
        for _ in range(20):
            gradient = torch.autograd.grad(objective(sl.Segmentation(boundary), reference), boundary)[0]
            boundary = (boundary - gradient).detach().requires_grad_()
        assert sl.Segmentation(boundary).argmax().tolist() == reference.tolist()

    def test_too_many_values_of_a_loss_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        s, reference = sl.Segmentation(torch.zeros(1, 20, 400)), (torch.arange(20) * 20)[None]
        with pytest.raises(ValueError, match=r"loss: its costs sum to more than .* values over 20 segments"):
            sl.SlackHinge(sl.BoundaryInsensitive(1))(s, reference)
        monkeypatch.setattr(strata, "_MOST_NUMBERS", 1000)
        with pytest.raises(ValueError, match="more than 2 different values"):
            sl.SlackHinge(sl.BoundaryTolerance(1))(s, reference)

    def test_threads_agree_with_one(self) -> None:
        scores = {"boundary": torch.randn(9, 20, 200), "durations": torch.randn(9, 20, 60)}
        threads, values = torch.get_num_threads(), []
        for n in (1, 2):
            torch.set_num_threads(n)
            values.append(sl.Segmentation(**scores).log_partition())
        torch.set_num_threads(threads)
        assert torch.equal(*values)

    @given(
        st.integers(1, 9), st.integers(1, 5), st.integers(1, 3), st.integers(0, 6), st.sampled_from(("native", "torch"))
    )
    @settings(max_examples=60)
    def test_the_number_of_outputs(self, length: int, count: int, shortest: int, more: int, name: str) -> None:
        wanted = cuts(length, count, shortest, shortest + more)
        with sl.engine(name):
            s = sl.Segmentation(torch.zeros(1, count, length), min_duration=shortest, max_duration=shortest + more)
            number = s.log_partition().exp().round().item()
            scores, outputs = s.topk(len(wanted) + 1)
        assert number == len(wanted)
        assert outputs[: len(wanted), 0].tolist() == wanted
        assert scores[-1, 0].item() == -math.inf

    @given(st.data())
    @settings(max_examples=40)
    def test_engines_agree(self, data: st.DataObject) -> None:
        length, count, D = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
        score = st.one_of(st.floats(-50, 50), st.just(-math.inf), st.sampled_from([-900.0, 900.0]))

        def draw(*shape: int) -> Tensor:
            size = math.prod(shape)
            values = data.draw(st.lists(score, min_size=size, max_size=size))
            return torch.tensor(values, dtype=torch.float64).reshape(shape).requires_grad_()

        x = [draw(1, count, length), draw(1, count, D), draw(1, count, D, D)]
        found = []
        for name in ("native", "torch"):
            with sl.engine(name):
                s = sl.Segmentation(boundary=x[0], durations=x[1], rates=x[2], lengths=[length])
                value = s.log_partition()
                found.append([value.detach(), *gradients(value, x), s.argmax().double(), s.entropy().detach()])
        for a, b in zip(*found, strict=True):
            close(a, b, 1e-9)


def operations(s: sl.Structure, loss: sl.Loss, reference: Tensor) -> list[Tensor]:
    return [
        s.log_partition(),
        s.max(),
        s.entropy(),
        s.expected(loss, reference),
        s.given(reference).log_partition(),
        s.score(s.argmax()),
        s.strata(loss, reference).losses[0],
        s.topk(2)[0][0],
        s.sample(2)[0, :, :0].sum(1),
        s.marginals().flatten(1).sum(1),
    ]


def test_a_batch_of_nothing_gives_nothing(engine: str) -> None:
    starts, marks = torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0, 4, dtype=torch.int64)
    found = operations(sl.Segmentation(torch.zeros(0, 3, 5)), sl.BoundaryTolerance(1), starts)
    found += operations(sl.SemiMarkov(torch.zeros(0, 4, 2)), sl.Hamming(), marks)
    assert all(x.shape == (0,) for x in found)


def test_no_frames_have_one_output(engine: str) -> None:
    s = sl.SemiMarkov(torch.zeros(2, 0, 3))
    for value in operations(s, sl.Hamming(), torch.zeros(2, 0, dtype=torch.int64)):
        assert value.tolist() == [0, 0]


def test_strata_obey_the_torch_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_engine, "strata", None)
    with sl.engine("torch"):
        s = sl.SemiMarkov(torch.zeros(1, 3, 2)).strata(sl.Hamming(), torch.tensor([[1, 1, 0]]))
    assert s.losses[:, 0].tolist() == [0, 1, 2, 3]
    assert s.exists.all()


def test_minimum_bayes_risk_over_boundaries(engine: str) -> None:
    s = sl.Segmentation(torch.randn(2, 3, 8, dtype=torch.float64))
    loss = sl.BoundaryInsensitive(1)
    for b, (y, risk) in enumerate(zip(*sl.mbr(s, loss, candidates=21), strict=True)):  # 21 ways: all of them
        reference = torch.tensor([y] * 2)
        assert s.expected(loss, reference)[b].item() == pytest.approx(risk.item(), abs=1e-6)
        others = [s.expected(loss, torch.tensor([other] * 2))[b].item() for other in cuts(8, 3, 1, 8)]
        assert min(others) == pytest.approx(risk.item(), abs=1e-6)


class TestBoundaryLosses:
    @given(st.data())
    def test_losses_are_their_definitions_and_the_sum_of_their_costs(self, data: st.DataObject) -> None:
        N, frames = data.draw(st.integers(1, 5)), 9
        tau = data.draw(st.sampled_from([0, 0.5, 1, 2.3, 20]))
        start = st.integers(0, frames - 1)
        y = torch.tensor([data.draw(st.lists(start, min_size=N, max_size=N))])
        place = data.draw(st.sampled_from([start, st.floats(0, frames - 1)]))
        r = torch.tensor(
            [data.draw(st.lists(st.one_of(place, st.just(-100)), min_size=N, max_size=N))],
            dtype=torch.int64 if place is start else torch.float64,
        )
        for loss, definition in (
            (sl.BoundaryTolerance(tau), tolerance(tau)),
            (sl.BoundaryInsensitive(tau), insensitive(tau)),
        ):
            wanted = definition(y[0], r[0])
            assert loss(y, r).item() == pytest.approx(wanted, abs=1e-5)
            assert loss(y.tolist(), r.tolist()).item() == pytest.approx(wanted, abs=1e-5)
            costs = loss.costs_of(r, torch.tensor([N]), frames, torch.float64)
            assert costs.shape == (1, N, frames)
            assert costs[0, torch.arange(N), y[0]].sum().item() == pytest.approx(wanted, abs=1e-9)

    def test_milliseconds(self) -> None:
        loss = sl.BoundaryTolerance(tau_ms=15, frame_ms=10)
        assert loss.tau == 1.5
        assert loss(torch.tensor([[0, 2, 4]]), torch.tensor([[0, 3, 6]])).item() == pytest.approx(1 / 3)
        assert sl.BoundaryInsensitive(tau_ms=10, frame_ms=5).tau == 2.0

    def test_times_as_far_off_as_is_tolerated_are_right_whatever_rounding_makes_of_them(self) -> None:
        for hop in (5.0, 10.0):
            loss = sl.BoundaryTolerance(tau_ms=10, frame_ms=hop)
            for frame in range(400):
                later, too_late = (frame * hop + 10) / 1000, (frame * hop + 10.1) / 1000
                assert loss([[frame]], [[later * 1000 / hop]]).item() == 0
                assert loss([[frame]], [[too_late * 1000 / hop]]).item() == 1

    def test_augmented_by_a_reference_between_frames_scores_are_those_of_the_loss(self) -> None:
        s = sl.Segmentation(torch.randn(1, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
        reference = [[0, 2.4, 4.75]]
        for y in ([0, 1, 2], [0, 2, 4], [0, 3, 5], [0, 2, 6]):
            for loss in (sl.BoundaryTolerance(0.6), sl.BoundaryInsensitive(0.3)):
                found = s.augment(loss, reference, -2.0).score(torch.tensor([y]))
                assert found.item() == pytest.approx((s.score(torch.tensor([y])) - 2 * loss([y], reference)).item())
        assert s.given(reference).argmax().tolist() == [[0, 2, 5]]
        assert s.given([[0.0, -100, 4.75]]).argmax()[0, [0, 2]].tolist() == [0, 5]
        assert s.given([[0, 6.9, 7.2]]).argmax().tolist() == [[0, 5, 6]]
        with pytest.raises(ValueError, match=r"reference: reference\[0, 2\] is 2\.0, but starts grow"):
            s.given([[0, 2.5, 2.0]])
        with pytest.raises(ValueError, match=r"reference: reference\[0, 2\] is 8\.5, but starts are 0 to 7"):
            s.given([[0, 2.5, 8.5]])
        with pytest.raises(ValueError, match="reference: got NaN or infinity"):
            s.given([[0, 2.5, math.nan]])

    @given(st.lists(st.floats(0, 8.4), min_size=1, max_size=8), st.integers(8, 9))
    def test_nearest_starts_push_each_other(self, places: list[float], frames: int) -> None:
        places = [0.0, *sorted(places)[1:]]
        wanted = [0]
        for n, place in enumerate(places[1:], 1):
            wanted.append(min(max(math.floor(place + 0.5), wanted[-1] + 1), frames - (len(places) - n)))
        found = nearest_starts(torch.tensor([places]).double(), torch.tensor([frames]), torch.tensor([len(places)]))
        assert found.tolist() == [wanted]

    def test_padding_and_several_answers(self) -> None:
        reference = torch.tensor([[0, 3, 6], [0, -1, -1]])
        y = torch.tensor([[[0, 3, 4], [0, -1, -1]], [[0, 1, 6], [0, -1, -1]]])
        close(sl.BoundaryTolerance(1)(y, reference), torch.tensor([[1 / 3, 0], [1 / 3, 0]]), 1e-6)
        close(sl.BoundaryTolerance(1)(y, reference, torch.tensor([2, 1])), torch.tensor([[0, 0], [1 / 2, 0]]), 1e-6)

    def test_a_chain_does_not_carry_them(self) -> None:
        with pytest.raises(TypeError, match=r"loss: got BoundaryTolerance\(tau=1\).*Chain"):
            sl.Chain(torch.zeros(1, 3, 2)).augment(sl.BoundaryTolerance(1), torch.zeros(1, 3, dtype=torch.int64))


def marked(length: int, K: int, shortest: int, longest: int, size: int) -> list[list[int]]:
    """Every output of a SemiMarkov of K labels, padded, in lexicographic order."""
    found = []
    for y in itertools.product(range(-1, K), repeat=length):
        starts = [t for t, label in enumerate(y) if label >= 0]
        tiles = [b - a for a, b in itertools.pairwise([*starts, length])]
        if (not y or y[0] >= 0) and all(shortest <= d <= longest for d in tiles):
            found.append([*y, *[-1] * (size - length)])
    return found


def covering(marks: list[int]) -> list[int]:
    """The label of every frame: -1 goes on with what was before."""
    labels: list[int] = []
    for mark in marks:
        labels.append(mark if mark != -1 or not labels else labels[-1])
    return labels


def frame_loss(costs: Tensor | None = None, relative: bool = False) -> Callable[..., float]:
    def loss(y: Tensor, r: Tensor, length: int) -> float:
        pairs = list(zip(covering(y.tolist()[:length]), covering(r.tolist()[:length]), strict=True))
        known = [(a, b) for a, b in pairs if b >= 0]
        total = sum(float(a != b) if costs is None else costs[b, a].item() for a, b in known)
        return total / max(1, length) if relative else total

    return loss


@dataclass
class MarkedCase(Case):
    """An output is its marks, and -1 says that no segment starts."""

    lengths: tuple[int, ...] = ()

    def loss_vectors(self, definition: Callable[..., float], reference: Tensor) -> list[Tensor]:
        return [
            torch.tensor([definition(y, r, length) for y in outputs], dtype=torch.float64)
            for outputs, r, length in zip(self.outputs, reference, self.lengths, strict=True)
        ]

    def agree(self, reference: Tensor) -> list[Tensor]:
        return [
            ((y == r) | (r == -100) | (torch.arange(len(r)) >= length)).all(1)
            for y, r, length in zip(self.outputs, reference, self.lengths, strict=True)
        ]


class TestSemiMarkov(SegmentSuite):
    kinds = ("boundary", "frames", "everything", "own durations", "bounded")
    edges = ("plain", "ties", "forbidden", "empty", "huge", "tiny", "one label")
    lengths = (4, 0, 1, 2)  # powers of two, so that losses divided by a length are exact

    def make(self, kind: str, edge: str) -> MarkedCase:
        torch.manual_seed(sum(map(ord, kind + edge)))
        size, B, D = 4, 4, 3
        K = 1 if edge == "one label" else 2
        names = {
            "boundary": ["boundary"],
            "frames": ["frames", "transitions"],
            "everything": ["boundary", "frames", "durations", "transitions", "start", "end"],
            "own durations": ["frames", "durations", "start"],
            "bounded": ["frames", "transitions", "end"],
        }[kind]
        lengths = tuple(2 if kind == "bounded" and n == 1 else n for n in self.lengths)
        shapes = {"boundary": (B, size, K), "frames": (B, size, K), "transitions": (K, K), "start": (K,), "end": (K,)}
        shapes["durations"] = (B, K, D) if kind == "own durations" else (K, D)
        bounds = {"min_duration": 2, "max_duration": 3} if kind == "bounded" else {}
        shortest, longest = (2, 3) if bounds else (1, D if "durations" in names else size)
        potentials = {name: edge_of(torch.randn(shapes[name], dtype=torch.float64), edge) for name in names}
        framed = names[0]
        if edge == "empty":
            potentials[framed][0, 0] = -math.inf
        for name in ("boundary", "frames"):
            for b, length in enumerate(lengths if name in names else ()):
                potentials[name][b, length:] = math.nan if b % 2 else math.inf
        leaves = tuple(x.requires_grad_() for x in potentials.values())
        outputs = [torch.tensor(marked(n, K, shortest, longest, size)).reshape(-1, size) for n in lengths]

        def build(x):
            return sl.SemiMarkov(**dict(zip(names, x, strict=True)), lengths=list(lengths), **bounds)

        def score(x):
            scores = dict(zip(names, x, strict=True))
            return [
                torch.stack([self.definition(scores, b, y[: lengths[b]]) for y in own.tolist()])
                for b, own in enumerate(outputs)
            ]

        reference = torch.zeros(B, size, dtype=torch.int64)
        for b, s in enumerate(score([x.detach() for x in leaves])):
            possible = [i for i, value in enumerate(s.tolist()) if value > -math.inf] or [0]
            reference[b] = outputs[b][possible[len(possible) // 2]]
        partial = torch.where(torch.tensor([[False, True, True, False]]), -100, reference)
        beyond = torch.arange(size) >= torch.tensor(lengths)[:, None]
        costs = torch.randint(0, 4, (K, K)).double() * 0.25
        losses = [
            (sl.Hamming(), frame_loss()),
            (sl.Hamming(normalize=True), frame_loss(relative=True)),
            (sl.Hamming(costs), frame_loss(costs)),
        ]
        wrong, odd = reference.masked_fill(beyond, 10**9), partial.masked_fill(beyond, -7)
        return MarkedCase(leaves, build, outputs, score, wrong, odd, losses, lengths)

    @staticmethod
    def definition(scores: dict[str, Tensor], b: int, y: list[int]) -> Tensor:
        """The score, as the docstring of SemiMarkov writes it."""
        total, starts = torch.zeros((), dtype=torch.float64), [t for t, label in enumerate(y) if label >= 0]
        durations = scores.get("durations")
        for i, (t, end) in enumerate(itertools.pairwise([*starts, len(y)])):
            k = y[t]
            if "boundary" in scores:
                total = total + scores["boundary"][b, t, k]
            if "frames" in scores:
                for frame in range(t, end):
                    total = total + scores["frames"][b, frame, k]
            if durations is not None:
                total = total + (durations if durations.dim() == 2 else durations[b])[k, end - t - 1]
            if "transitions" in scores and i:
                total = total + scores["transitions"][y[starts[i - 1]], k]
            if "start" in scores and i == 0:
                total = total + scores["start"][k]
            if "end" in scores and end == len(y):
                total = total + scores["end"][k]
        return total

    def marginals_by_enumeration(self, case: Case) -> Tensor:
        found = torch.zeros(4, 4, case.structure().num_labels, dtype=torch.float64)
        for b, s in enumerate(case.score(case.potentials)):
            for y, p in zip(case.outputs[b].tolist(), oracle.probabilities(s.detach()), strict=True):
                for t, k in enumerate(y):
                    if k >= 0:
                        found[b, t, k] += p
        return found

    def make_long(self, positions: int, dtype: torch.dtype):
        generator = torch.Generator().manual_seed(3)
        shapes = {"frames": (2, positions, 4), "durations": (4, 30), "transitions": (4, 4)}
        scores = {k: torch.randn(v, generator=generator, dtype=torch.float64).to(dtype) for k, v in shapes.items()}
        starts = torch.arange(positions) % 20 == 0
        reference = torch.where(starts, torch.arange(positions) // 20 % 4, -1)
        return sl.SemiMarkov(**scores), torch.stack([reference, reference])

    def test_loss_by_its_own_definition(self, kind: str) -> None:
        case = self.make(kind, "plain")
        s = case.structure()
        for loss, definition in case.losses:
            for b, outputs in enumerate(case.outputs):
                one = sl.SemiMarkov(
                    torch.zeros(len(outputs), 4, s.num_labels), lengths=[case.lengths[b]] * len(outputs)
                )
                reference = case.partial[b].expand(len(outputs), -1)
                found = loss(one.frame_labels(outputs), one.frame_labels(reference))
                close(found.double(), case.loss_vectors(definition, case.partial)[b], 1e-6)

    def test_decode_gives_the_labels(self, kind: str, edge: str, engine: str) -> None:
        s = self.make(kind, edge).structure()
        assert s.decode() == [[k for k in y if k >= 0] for y in s.argmax().tolist()]


class TestSemiMarkovAlone:
    def test_durations_of_one_are_a_chain(self, engine: str) -> None:
        emissions, transitions, start, end = torch.randn(3, 6, 4), torch.randn(4, 4), torch.randn(4), torch.randn(4)
        lengths = [6, 1, 4]
        chain = sl.Chain.from_emissions(emissions, transitions, start, end, lengths)
        semi = sl.SemiMarkov(None, emissions, None, transitions, start, end, lengths, max_duration=1)
        close(semi.log_partition(), chain.log_partition(), 1e-5)
        assert semi.argmax().tolist() == chain.argmax().tolist()
        close(semi.marginals(), chain.marginals().sum(2), 1e-5)

    def test_a_left_to_right_topology_is_a_segmentation(self, engine: str) -> None:
        N, length = 4, 9
        boundary, durations = torch.randn(1, N, length, dtype=torch.float64), torch.randn(1, N, 5, dtype=torch.float64)
        transitions = torch.full((N, N), -math.inf, dtype=torch.float64)
        transitions[torch.arange(N - 1), torch.arange(1, N)] = 0
        first = torch.where(torch.arange(N) == 0, 0.0, -math.inf).double()
        semi = sl.SemiMarkov(boundary.transpose(1, 2), None, durations, transitions, first, first.flip(0))
        segmentation = sl.Segmentation(boundary, durations=durations)
        close(semi.log_partition(), segmentation.log_partition())
        close(semi.marginals().transpose(1, 2), segmentation.marginals())
        starts = (semi.argmax() >= 0).nonzero()[:, 1].tolist()
        assert starts == segmentation.argmax()[0].tolist()

    def test_neighbours_of_one_label_can_be_forbidden(self, engine: str) -> None:
        transitions = torch.zeros(2, 2).fill_diagonal_(-math.inf)
        s = sl.SemiMarkov(torch.zeros(1, 3, 2), transitions=transitions)
        close(
            s.log_partition(), torch.tensor([math.log(2 * 4)]), 1e-6
        )  # a label, and at each later frame stay or change

    def test_a_known_start_is_a_start(self, engine: str) -> None:
        s = sl.SemiMarkov(torch.zeros(1, 4, 2)).given(torch.tensor([[-100, -100, 1, -100]]))
        for y in s.sample(50, torch.Generator().manual_seed(0))[:, 0].tolist():
            assert y[2] == 1
        close(s.log_partition(), torch.tensor([math.log(2 * 3 * 3)]), 1e-6)

    def test_labels_of_frames_are_a_reference_of_the_loss(self, engine: str) -> None:
        s, loss = sl.SemiMarkov(torch.randn(1, 5, 3)), sl.Hamming()
        marks, labels = torch.tensor([[2, -1, 0, -1, 1]]), torch.tensor([[2, 2, 0, 0, 1]])
        close(s.expected(loss, marks), s.expected(loss, labels))


BOUNDARY = torch.zeros(2, 3, 5)
SEGMENTATION = sl.Segmentation(BOUNDARY, segments=[3, 2])
SEMI = sl.SemiMarkov(torch.zeros(2, 4, 3), lengths=[4, 2])
MARKS = torch.zeros(2, 4, dtype=torch.int64)
STARTS = torch.tensor([[0, 1, 2], [0, 3, -1]])

ERRORS: dict[str, tuple[type[Exception], str, Callable[[], object]]] = {
    "nothing": (ValueError, "boundary: got None.*at least one of", lambda: sl.Segmentation()),
    "two axes": (ValueError, r"boundary: got shape \(3, 5\).*\(B, N, T\)", lambda: sl.Segmentation(BOUNDARY[0])),
    "integers": (TypeError, "boundary: got torch.int64", lambda: sl.Segmentation(BOUNDARY.long())),
    "other frames": (
        ValueError,
        r"frames: got shape \(2, 3, 4\), but wanted \(2, 3, 5\)",
        lambda: sl.Segmentation(BOUNDARY, BOUNDARY[:, :, :4]),
    ),
    "other precision": (
        TypeError,
        "frames: got torch.float64, but boundary is torch.float32",
        lambda: sl.Segmentation(BOUNDARY, BOUNDARY.double()),
    ),
    "rates that are not square": (
        ValueError,
        r"rates: got shape \(2, 3, 4, 5\)",
        lambda: sl.Segmentation(BOUNDARY, rates=torch.zeros(2, 3, 4, 5)),
    ),
    "rates of other durations": (
        ValueError,
        r"rates: got shape \(2, 3, 4, 4\)|durations: got shape",
        lambda: sl.Segmentation(BOUNDARY, durations=torch.zeros(2, 3, 5), rates=torch.zeros(2, 3, 4, 4)),
    ),
    "too many segments": (
        ValueError,
        r"segments: segments\[1\] is 4.*0 to 3",
        lambda: sl.Segmentation(BOUNDARY, segments=[3, 4]),
    ),
    "float segments": (
        TypeError,
        "segments: got torch.float32",
        lambda: sl.Segmentation(BOUNDARY, segments=torch.ones(2)),
    ),
    "segments of the wrong shape": (
        ValueError,
        r"segments: got shape \(1,\).*\(2,\)",
        lambda: sl.Segmentation(BOUNDARY, segments=[3]),
    ),
    "too long": (ValueError, r"lengths: lengths\[0\] is 6", lambda: sl.Segmentation(BOUNDARY, lengths=[6, 5])),
    "min_duration of 0": (ValueError, "min_duration: got 0", lambda: sl.Segmentation(BOUNDARY, min_duration=0)),
    "max_duration below min_duration": (
        ValueError,
        "max_duration: got 1, below min_duration, 2",
        lambda: sl.Segmentation(BOUNDARY, min_duration=2, max_duration=1),
    ),
    "NaN": (
        ValueError,
        r"boundary: example 1 has NaN at \(1, 1, 2\)",
        lambda: sl.Segmentation(
            BOUNDARY.index_put((torch.tensor(1), torch.tensor(1), torch.tensor(2)), torch.tensor(math.nan))
        ),
    ),
    "+inf": (
        ValueError,
        r"durations: example 0 has \+inf",
        lambda: sl.Segmentation(BOUNDARY, durations=torch.full((2, 3, 5), math.inf)),
    ),
    "output of the wrong shape": (
        ValueError,
        r"y: got shape \(2, 2\).*\(2, 3\)",
        lambda: SEGMENTATION.score(STARTS[:, :2]),
    ),
    "starts that do not grow": (
        ValueError,
        r"y: the starts of example 0 are \[0, 2, 2\], wrong from segment 2",
        lambda: SEGMENTATION.score(torch.tensor([[0, 2, 2], [0, 3, -1]])),
    ),
    "a first start that is not 0": (
        ValueError,
        "y: the starts of example 1 .*wanted 0 first",
        lambda: SEGMENTATION.score(torch.tensor([[0, 1, 2], [1, 3, -1]])),
    ),
    "a start beyond the length": (
        ValueError,
        r"reference: reference\[0, 2\] is 5, but starts are 0 to 4",
        lambda: SEGMENTATION.given(torch.tensor([[0, 1, 5], [0, 3, -1]])),
    ),
    "a reference that does not grow": (
        ValueError,
        r"reference: reference\[0, 2\] is 1, but starts grow",
        lambda: SEGMENTATION.given(torch.tensor([[0, 2, 1], [0, 3, -1]])),
    ),
    "a reference of too few": (
        ValueError,
        r"reference: reference\[0\] has 2 entries, but example 0 has 3 segments",
        lambda: SEGMENTATION.given([[0, 2], [0, 3]]),
    ),
    "a reference for fewer examples": (
        ValueError,
        "reference: got 1 sequences, but the batch has 2",
        lambda: SEGMENTATION.given([[0, 2, 3]]),
    ),
    "a loss that it cannot carry": (
        TypeError,
        "loss: got Hamming.*sum over labels, but wanted a sum over boundaries, which a Segmentation has",
        lambda: SEGMENTATION.augment(sl.Hamming(), STARTS),
    ),
    "another structure": (TypeError, "other: got SemiMarkov, but wanted a Segmentation", lambda: SEGMENTATION.kl(SEMI)),
    "another size": (
        ValueError,
        "other: got Segmentation",
        lambda: SEGMENTATION.kl(sl.Segmentation(torch.zeros(2, 3, 6))),
    ),
    "other segments": (ValueError, "other: got other lengths", lambda: SEGMENTATION.kl(sl.Segmentation(BOUNDARY))),
    "another dtype": (
        TypeError,
        "other: got torch.float64",
        lambda: SEGMENTATION.kl(sl.Segmentation(BOUNDARY.double(), segments=[3, 2])),
    ),
    "k of 0": (ValueError, "k: got 0", lambda: SEGMENTATION.topk(0)),
    "n of 0": (ValueError, "n: got 0", lambda: SEGMENTATION.sample(0)),
    "no tau": (ValueError, "tau: got tau=None", lambda: sl.BoundaryTolerance()),
    "tau twice": (ValueError, "tau: got tau=1, tau_ms=10", lambda: sl.BoundaryTolerance(1, tau_ms=10, frame_ms=10)),
    "milliseconds without a frame": (ValueError, "tau_ms=10, frame_ms=None", lambda: sl.BoundaryTolerance(tau_ms=10)),
    "negative tau": (ValueError, "tau: got -1", lambda: sl.BoundaryInsensitive(-1)),
    "frames of 0 ms": (ValueError, "frame_ms: got 0.*above 0", lambda: sl.BoundaryTolerance(tau_ms=10, frame_ms=0)),
    "boundaries of other numbers": (
        ValueError,
        r"reference: got shape \(1, 2\)",
        lambda: sl.BoundaryTolerance(1)(torch.zeros(1, 3).long(), torch.zeros(1, 2).long()),
    ),
    "no frames of labels": (ValueError, "frames: got None", lambda: sl.SemiMarkov()),
    "labels of two axes": (
        ValueError,
        r"boundary: got shape \(4, 3\).*\(B, T, K\)",
        lambda: sl.SemiMarkov(torch.zeros(4, 3)),
    ),
    "other transitions": (
        ValueError,
        r"transitions: got shape \(2, 2\), but wanted \(3, 3\)",
        lambda: sl.SemiMarkov(torch.zeros(2, 4, 3), transitions=torch.zeros(2, 2)),
    ),
    "NaN in transitions": (
        ValueError,
        "transitions: got NaN",
        lambda: sl.SemiMarkov(torch.zeros(2, 4, 3), transitions=torch.full((3, 3), math.nan)),
    ),
    "a label out of range": (
        ValueError,
        r"y: y\[1, 1\] is 3, but labels of segments are 0 to 2, -1",
        lambda: SEMI.score(torch.tensor([[0, 0, 0, 0], [0, 3, 0, 0]])),
    ),
    "marks of the wrong shape": (ValueError, r"y: got shape \(2, 3\)", lambda: SEMI.score(MARKS[:, :3])),
    "a reference out of range": (
        ValueError,
        r"reference: reference\[0, 3\] is 7.*-100",
        lambda: SEMI.given(torch.tensor([[0, 0, 0, 7], [0, 0, 0, 0]])),
    ),
    "a reference of other frames": (
        ValueError,
        r"reference: reference\[1\] has 4 entries.* has 2 frames",
        lambda: SEMI.augment(sl.Hamming(), [[0, 0, 0, 0], [0, 0, 0, 0]]),
    ),
    "a loss over boundaries": (
        TypeError,
        "loss: got BoundaryTolerance.*sum over boundaries, but wanted a sum over labels, which a SemiMarkov has",
        lambda: SEMI.augment(sl.BoundaryTolerance(1), MARKS),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_bad_input_is_named(name: str) -> None:
    error, sentence, call = ERRORS[name]
    with pytest.raises(error, match=sentence):
        call()
