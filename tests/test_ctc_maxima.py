"""CTC's best paths with a loss and its best strings: against enumeration, and against the whole product."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

import structloss as sl
from structloss.structures.chain.ctc import CTC
from suite import close

LOSSES = [
    sl.EditDistance(),
    sl.EditDistance(cap=1),
    sl.EditDistance(1.0, 3.0, 2.0, cap=3),
    sl.SmithWaterman(),
    sl.SmithWaterman(cap=2),
    sl.NGram(2),
    sl.NGram(1, smoothing=0.0),
    0.5 * sl.EditDistance() + sl.NGram(2),
    sl.EditDistance(cap=2) + -1.0 * sl.SmithWaterman(),
    sl.RationalLoss("0 0 1 1 0.5\n0 0 2 2 0.6\n0 0 3 3 0.4\n0 0 2 3 0.1\n0 0 2 0 0.2\n0", smoothing=0.1),
]
KINDS = ("plain", "ties", "zero", "forbidden", "huge", "sure")


def collapse(y: tuple[int, ...], blank: int) -> tuple[int, ...]:
    return tuple(label for label, _ in itertools.groupby(y) if label != blank)


def frames(kind: str, T: int, C: int) -> Tensor:
    x = 2 * torch.randn(1, T, C, dtype=torch.float64)
    if kind in ("ties", "zero"):
        x = torch.randint(-2, 2, (1, T, C)).double() * (kind == "ties")
    if kind == "forbidden":
        x[torch.rand(x.shape) < 0.4] = -math.inf
    return x * {"huge": 1e6, "sure": 6.0}.get(kind, 1.0)


def over_the_product(s: CTC, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, Tensor]:
    """max() and argmax() as every chain has them."""
    with monkeypatch.context() as patch:
        patch.setattr(CTC, "_machines_apart", lambda self: None)
        return s.max(), s.argmax()


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_best_path_with_a_loss_is_that_of_enumeration(
    loss: sl.MachineLoss, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both signs, lengths 0 and 1, empty references; the smallest of several, and the whole product's to the bit."""
    for T, C, blank, scale in [(0, 3, 0, 1.0), (1, 3, 2, -1.0), (5, 3, 0, 2.0), (4, 4, 1, -0.5), (4, 3, 0, 0.0)]:
        x = frames(kind, T, C).requires_grad_()
        labels = [c for c in range(C) if c != blank]
        reference = [labels[i % 2] for i in range(T // 2 + T % 2)] if T != 4 else [labels[-1], 9][: 1 + (C == 4)]
        if not reference or max(reference) >= C:
            reference = []
        s = sl.CTC(x, blank=blank).augment(loss, [reference], scale)
        best, winner = -math.inf, [-1] * T
        losses: dict[tuple[int, ...], float] = {}
        for y in itertools.product(range(C), repeat=T):
            string = collapse(y, blank)
            if string not in losses:
                losses[string] = loss.distance(np.array(string, np.int64), np.array(reference, np.int64))
            value = sum(float(x.detach()[0, t, c]) for t, c in enumerate(y))
            value = -math.inf if math.isinf(losses[string]) else value + scale * losses[string]
            if value > best + 1e-9 * max(1.0, abs(value)) or (winner[:1] == [-1] and value > -math.inf):
                best, winner = value, list(y)
        found = s.max()
        close(found.detach(), torch.tensor([best], dtype=torch.float64), 1e-9)
        assert s.argmax()[0].tolist() == winner or kind == "huge"
        value, path = over_the_product(s, monkeypatch)
        assert s.argmax().tolist() == path.tolist()
        assert found.item() == value.item()
        if T and best > -math.inf:
            assert torch.equal(*(torch.autograd.grad(v.sum(), x)[0] for v in (found, value)))


@pytest.mark.parametrize("loss", [sl.EditDistance(cap=2), sl.NGram(2), sl.EditDistance()], ids=str)
def test_middle_sizes_agree_with_the_whole_product(loss: sl.Loss, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch of several lengths and references, one of them twice, in two threads."""
    references, lengths = [[1, 2, 3, 1, 1], [2, 2], [1, 2, 3, 1, 1], []], [14, 9, 12, 3]
    for sharp, scale in itertools.product((0.5, 2.0, 8.0), (1.0, -1.0, 6.0)):
        s = sl.CTC(sharp * torch.randn(4, 14, 5), lengths).augment(loss, references, scale)
        torch.set_num_threads(2)
        found, path = s.max(), s.argmax()
        torch.set_num_threads(1)
        value, wanted = over_the_product(s, monkeypatch)
        assert torch.equal(found, value)
        assert torch.equal(path, wanted)


@pytest.mark.parametrize("loss", LOSSES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_best_paths_with_a_loss_are_those_of_enumeration(loss: sl.MachineLoss, kind: str) -> None:
    """More than there are, too; ties in lexicographic order."""
    for T, C, blank, scale, k in [(0, 3, 0, 1.0, 2), (1, 3, 2, -1.0, 5), (4, 3, 0, 2.0, 7), (3, 4, 1, -0.5, 40)]:
        x = frames(kind, T, C).requires_grad_()
        labels = [c for c in range(C) if c != blank]
        reference = [labels[i % 2] for i in range(T // 2 + T % 2)]
        s = sl.CTC(x, blank=blank).augment(loss, [reference], scale)
        listed = []
        for y in itertools.product(range(C), repeat=T):
            value = loss.distance(np.array(collapse(y, blank), np.int64), np.array(reference, np.int64))
            value = sum(float(x.detach()[0, t, c]) for t, c in enumerate(y)) + scale * value
            if not math.isnan(value) and abs(value) < math.inf:
                listed.append((value, list(y)))
        listed.sort(key=lambda one: (-round(one[0], 9), one[1]))
        scores, paths = s.topk(k)
        there = min(k, len(listed))
        wanted = torch.tensor([value for value, _ in listed[:there]], dtype=torch.float64)
        close(scores[:there, 0].detach(), wanted, 1e-9)
        assert scores[there:].isneginf().all()
        assert (paths[there:] == -1).all()
        if kind != "huge":
            assert paths[:there, 0].tolist() == [y for _, y in listed[:there]]


@pytest.mark.parametrize("k", [2, 12])
def test_the_best_paths_of_middle_sizes_agree_with_the_whole_product(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    references, lengths = [[1, 2, 3, 1, 1], [2, 2], []], [14, 9, 3]
    for sharp, scale in itertools.product((0.5, 2.0, 8.0), (1.0, -1.0, 6.0)):
        plain = sl.CTC(sharp * torch.randn(3, 14, 5), lengths)
        for s in (plain.augment(sl.EditDistance(cap=2), references, scale), plain.given(references)):
            scores, paths = s.topk(k)
            with monkeypatch.context() as patch:
                patch.setattr(CTC, "_machines_apart", lambda self: None)
                wanted, listed = s.topk(k)
            close(scores, wanted)
            assert torch.equal(paths, listed)


def test_a_search_that_needs_more_room_goes_on() -> None:
    """Flat frames, where nothing can be left out: more pairs than there is room for at first."""
    s = sl.CTC(torch.zeros(1, 60, 12)).augment(sl.EditDistance(cap=3), [[1, 2, 3, 4, 5, 6, 7, 8]], 1.0)
    assert s.max().item() == 3.0
    with pytest.raises(sl.TooManyStatesError, match="max_states"):
        sl.CTC(torch.zeros(1, 60, 12)).augment(sl.EditDistance(max_states=300), [[1, 2, 3, 4] * 4], 1.0).max()


def test_the_best_alignment_of_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of it in full goes its own way; unknown labels and sets do not; too long, a wrong label: none."""
    x = torch.randint(-1, 2, (6, 7, 4)).double()
    x[1, 2] = -math.inf
    x[2, :, 3] = -math.inf
    references = [[1, 1, 2], [1], [3, 1], [], [1, 2, 3, 1, 2, 3, 1, 2], [9]]
    s = sl.CTC(x, [7, 7, 5, 0, 7, 7]).given(references)
    value, path = over_the_product(s, monkeypatch)
    assert torch.equal(s.max(), value)
    assert torch.equal(s.argmax(), path)
    assert s.max().isinf().tolist() == [False, True, True, False, True, True]
    partial = sl.CTC(x).given([[1, -100, 2], [1], [-100], [2, 2], [-100] * 7, [3]])
    value, path = over_the_product(partial, monkeypatch)
    assert torch.equal(partial.max(), value)
    assert torch.equal(partial.argmax(), path)


@pytest.mark.parametrize("k", [1, 3, 200])
def test_the_best_strings_are_those_of_enumeration(k: int) -> None:
    for T, C, blank, sharp in [
        (0, 2, 0, 1.0),
        (1, 3, 2, 1.0),
        (5, 3, 0, 1.0),
        (5, 3, 1, 0.0),
        (4, 4, 0, 5.0),
        (3, 1, 0, 1.0),
    ]:
        x = sharp * torch.randn(2, T, C, dtype=torch.float64)
        x[1][torch.rand(T, C) < 0.4] = -math.inf
        x.requires_grad_()
        scores, strings = sl.CTC(x, blank=blank).topk_strings(k)
        for b in range(2):
            total: dict[tuple[int, ...], float] = {}
            for y in itertools.product(range(C), repeat=T):
                value = math.exp(sum(float(x.detach()[b, t, c]) for t, c in enumerate(y)))
                if value:
                    total[collapse(y, blank)] = total.get(collapse(y, blank), 0.0) + value
            z = sum(total.values())
            wanted = sorted((-round(math.log(v / z), 9), string) for string, v in total.items())[:k]
            assert strings[b] == [list(string) for _, string in wanted]
            close(scores[: len(wanted), b].detach(), torch.tensor([-v for v, _ in wanted], dtype=torch.float64), 1e-8)
            assert scores[len(wanted) :, b].isneginf().all()
        if T and scores.isfinite().any():
            torch.autograd.grad(scores[scores.isfinite()].sum(), x)


def test_the_best_string_of_a_longer_input_is_worth_more_than_samples_and_best_paths() -> None:
    s = sl.CTC(5 * torch.randn(3, 40, 7, dtype=torch.float64))
    scores, strings = s.topk_strings(4)
    drawn = [s.decode(y) for y in s.sample(200, torch.Generator().manual_seed(0))]
    for written in drawn:
        own = -sl.NegativeLogLikelihood(reduction="none")(s, written)
        for b in range(3):
            assert own[b] <= scores[3, b] + 1e-9 or written[b] in strings[b]
    close(scores[0], -sl.NegativeLogLikelihood(reduction="none")(s, [x[0] for x in strings]), 1e-9)


def test_strings_that_cannot_be_listed_are_errors() -> None:
    with pytest.raises(ValueError, match="limit: the search for the 2 best strings continued 10 beginnings"):
        sl.CTC(torch.zeros(1, 30, 5)).topk_strings(2, limit=10)
    with pytest.raises(NotImplementedError, match="ask the CTC before augment"):
        sl.CTC(torch.zeros(1, 3, 3)).given([[1]]).topk_strings(1)
    with pytest.raises(NotImplementedError, match="Chain has no topk_strings"):
        sl.mbr(sl.Chain(torch.zeros(1, 3, 3)), sl.EditDistance(), method="strings")
    s = sl.CTC(torch.tensor([[[0.6, 0.4], [0.6, 0.4]]]).log())
    assert sl.mbr(s, sl.EditDistance(), candidates=2, method="strings").strings == [[1]]


def test_targets_as_torch_takes_them() -> None:
    rows = torch.tensor([[3, 1, 0], [2, 0, 0], [0, 0, 0]])
    wanted = [[3, 1], [2], []]
    assert [x.tolist() for x in sl.without_padding(rows, torch.tensor([2, 1, 0]))] == wanted
    assert [x.tolist() for x in sl.without_padding(torch.tensor([3, 1, 2]), [2, 1, 0])] == wanted
    s = sl.CTC(torch.randn(3, 6, 4))
    close(sl.NegativeLogLikelihood()(s, sl.without_padding(rows, [2, 1, 0])), sl.NegativeLogLikelihood()(s, wanted))
    with pytest.raises(ValueError, match=r"padding is -1 or -100 at the end of a row, or take lists"):
        sl.NegativeLogLikelihood()(s, rows)
    with pytest.raises(ValueError, match="target_lengths: got a sum of 2"):
        sl.without_padding(torch.tensor([3, 1, 2]), [2])
    with pytest.raises(ValueError, match=r"target_lengths: got \[4, 0, 0\], but wanted 3 lengths from 0 to 3"):
        sl.without_padding(rows, [4, 0, 0])
    with pytest.raises(TypeError, match="insertion: got tensor"):
        sl.EditDistance(insertion=torch.ones(2))  # type: ignore[arg-type]
