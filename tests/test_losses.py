"""Losses by an independent definition."""

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import structloss as sl

LABELS = st.integers(0, 4)
PAIRS = st.lists(st.tuples(LABELS, LABELS), max_size=8)


@given(st.lists(PAIRS, min_size=1, max_size=4))
def test_hamming_counts_the_positions_that_differ(batch: list[list[tuple[int, int]]]) -> None:
    y, r = [[a for a, _ in row] for row in batch], [[b for _, b in row] for row in batch]
    wanted = [float(sum(a != b for a, b in row)) for row in batch]
    assert sl.Hamming()(y, r).tolist() == wanted
    relative = [w / max(1, len(row)) for w, row in zip(wanted, batch, strict=True)]
    torch.testing.assert_close(sl.Hamming(normalize=True)(y, r), torch.tensor(relative))


@given(PAIRS)
def test_costs_are_looked_up_by_reference_then_answer(row: list[tuple[int, int]]) -> None:
    costs = torch.arange(25.0).reshape(5, 5)
    y, r = [[a for a, _ in row]], [[b for _, b in row]]
    assert sl.Hamming(costs)(y, r).tolist() == [sum(costs[b, a].item() for a, b in row)]


def test_padding_of_an_answer_and_lengths_agree() -> None:
    y = torch.tensor([[0, 1, -1], [2, 2, 2]])
    r = torch.tensor([[1, 1, 7], [2, 0, 0]])
    assert sl.Hamming()(y, r).tolist() == [1.0, 2.0]
    assert sl.Hamming()(y, r, lengths=torch.tensor([1, 2])).tolist() == [1.0, 1.0]


def test_unknown_labels_cost_nothing() -> None:
    assert sl.Hamming()(torch.tensor([[0, 1]]), torch.tensor([[-100, 0]])).tolist() == [1.0]


def test_many_answers_to_each_reference() -> None:
    chain = sl.Chain(torch.randn(3, 4, 2), lengths=[4, 2, 0])
    reference = torch.zeros(3, 4, dtype=torch.int64)
    samples = chain.sample(5, torch.Generator().manual_seed(0))
    losses = sl.Hamming()(samples, reference)
    assert losses.shape == (5, 3)
    assert losses[2].tolist() == sl.Hamming()(samples[2], reference).tolist()


def test_a_reference_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="position by position"):
        sl.Hamming()([[0, 1], [1]], [[0, 1], [1, 0]])


# The direct definitions, whatever labels are called.


@pytest.mark.parametrize(
    "loss", [sl.EditDistance(), sl.EditDistance(1, 3, 2, cap=4), sl.SmithWaterman(cap=3)], ids=repr
)
def test_the_names_of_labels_do_not_matter(loss: sl.Loss) -> None:
    y, reference = torch.randint(0, 5, (20, 9)), torch.randint(0, 5, (20, 7))
    names = torch.tensor([2**40 + 3, 0, 249_999, 2**62, 17])
    assert torch.equal(loss(names[y], names[reference]), loss(y, reference))


@pytest.mark.parametrize("loss", [sl.EditDistance(), sl.SmithWaterman()], ids=repr)
def test_large_labels_take_no_more_memory_than_small_ones(loss: sl.Loss) -> None:
    peaks = []
    for most in (100, 250_000, 2**40):
        y, reference = torch.randint(0, most, (2, 1, 500))
        loss(y, reference)
        tracemalloc.start()
        loss(y, reference)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert max(peaks) < 1e6


def test_a_table_of_costs_is_checked_against_both_strings() -> None:
    loss = sl.EditDistance(1 - torch.eye(3))
    assert loss([[0, 1, 2]], [[0, 2, 2]]).tolist() == [1.0]
    for y, reference in (([[0, 3]], [[0, 1]]), ([[0, 1]], [[0, 3]])):
        with pytest.raises(ValueError, match=r"substitution: got costs for 3 labels, .* up to 3"):
            loss(y, reference)


@pytest.mark.parametrize("loss", [sl.EditDistance(), sl.EditDistance(1 - torch.eye(4)), sl.SmithWaterman()], ids=repr)
def test_a_negative_label_within_a_reference_matches_nothing_in_silence(loss: sl.Loss) -> None:
    for y in ([[0, 3, 2]], torch.tensor([[0, 3, 2]])):
        for reference in ([[0, -1, 2]], torch.tensor([[0, -1, 2]])):
            with pytest.raises(ValueError, match=r"reference: reference\[0\]\[1\] is -1, but labels are at least 0"):
                loss(y, reference)
        assert loss(y, [[0, -100, 2]]).tolist() == loss(y, [[0, 3, 2]]).tolist()


@pytest.mark.parametrize("factor", [0.0, -1.0, 0.5])
def test_what_is_outside_one_part_is_outside_a_sum_in_its_machine_too(factor: float) -> None:
    outside = sl.NGram(2, smoothing=0)
    for loss in (factor * outside, factor * outside + sl.EditDistance(), 2.0 * sl.Hamming() + factor * outside):
        for y, reference in (([0, 0], [1, 1]), ([1, 1], [1, 1])):
            value = loss([y], [reference]).item()
            assert loss.automaton(reference, 2, 2).weight(y) == pytest.approx(value)
            assert loss.automaton(reference, 2).weight(y) == pytest.approx(value)
            assert (value == math.inf) == (y != reference)


PADDED = {
    "-1 at the end": torch.tensor([[0, 1, -1]]),
    "-100 at the end": torch.tensor([[0, 1, -100]]),
    "an array": np.array([[0, 1, -1]]),
    "-100 within": torch.tensor([[0, -100, 2]]),
}


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("loss", [sl.Hamming(), sl.Hamming(1 - torch.eye(3))], ids=["plain", "costs"])
def test_padding_and_unknown_labels_cost_nothing(loss: sl.Loss, name: str) -> None:
    for y in (torch.tensor([[0, 1, 2]]), np.array([[0, 1, 2]]), [[0, 1, 2]]):
        assert loss(y, PADDED[name]).tolist() == [0.0]


@pytest.mark.parametrize("loss", [sl.Hamming(), sl.Hamming(1 - torch.eye(3))], ids=["plain", "costs"])
def test_a_list_has_its_own_lengths_and_they_are_the_answers(loss: sl.Loss) -> None:
    y = torch.tensor([[0, 1, 2, -1], [0, 1, -1, -1]])
    assert loss(y, [[0, 2, 2], [1, 1]]).tolist() == [1.0, 1.0]
    assert loss(torch.stack([y, y]), [[0, 2, 2], [1, 1]]).tolist() == [[1.0, 1.0]] * 2
    with pytest.raises(ValueError, match=r"reference: reference\[1\] has 1 labels, but the answer has 2"):
        loss(y, [[0, 2, 2], [1]])
    with pytest.raises(ValueError, match=r"reference: reference\[0\] has 2 labels, but the answer has 3"):
        loss(torch.tensor([[0, 1, 2]]), [[0, 1]])
    with pytest.raises(ValueError, match=r"reference: reference\[0, 1\] is -1, but labels are at least 0, or -100"):
        loss(torch.tensor([[0, 1, 2]]), torch.tensor([[0, -1, 2]]))
    with pytest.raises(ValueError, match=r"reference: reference\[0, 2\] is -1, but labels are at least 0, or -100"):
        loss([[0, 1, 2]], [[0, 1, -1]])


def test_an_array_is_read_as_the_tensor_that_it_stands_for() -> None:
    chain, reference = sl.Chain(torch.zeros(2, 3, 2), lengths=[3, 2]), torch.tensor([[0, 1, 1], [0, 1, -1]])
    for loss in (sl.EditDistance(), sl.Hamming()):
        wanted = chain.expected(loss, reference)
        assert torch.equal(chain.expected(loss, reference.numpy()), wanted)
        assert torch.equal(chain.expected(loss, reference.numpy().astype(np.int32)), wanted)


def test_hamming_over_many_labels_needs_no_table_of_all_pairs() -> None:
    K = 60_000  # K * K numbers would be 14 GB
    costs = sl.Hamming().costs_of(torch.tensor([[5, -100, 0]]), torch.tensor([2]), K, torch.float32)
    assert costs.shape == (1, 3, K)
    assert costs.sum().item() == K - 1
    assert costs[0, 0, 5] == 0


NOT_NUMBERS = [math.nan, math.inf, -math.inf]


@pytest.mark.parametrize("value", [*NOT_NUMBERS, 1.0])
def test_a_match_costs_at_most_nothing(value: float) -> None:
    with pytest.raises(ValueError, match=f"match: got {value}, but wanted a finite number of at most 0"):
        sl.SmithWaterman(match=value)


@pytest.mark.parametrize("value", [*NOT_NUMBERS, -1.0])
@pytest.mark.parametrize("name", ["substitution", "insertion", "deletion", "cap"])
@pytest.mark.parametrize("kind", [sl.EditDistance, sl.SmithWaterman])
def test_costs_are_finite_and_at_least_nothing(kind: type[sl.Loss], name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name}: got {value}, but wanted a finite number of at least 0"):
        kind(**{name: value})


@pytest.mark.parametrize("value", NOT_NUMBERS)
def test_numbers_of_other_losses_are_finite(value: float) -> None:
    for name, make in (
        ("factor", lambda x: x * sl.EditDistance()),
        ("smoothing", lambda x: sl.NGram(smoothing=x)),
        ("cap", lambda x: sl.TropicalLoss("0 0 1 1\n0", cap=x)),
        ("smoothing", lambda x: sl.RationalLoss("0 0 1 1\n0", smoothing=x)),
        ("tau", sl.BoundaryTolerance),
    ):
        with pytest.raises(ValueError, match=f"{name}: got {value}"):
            make(value)
    with pytest.raises(ValueError, match="max_states: got nan"):
        sl.EditDistance(max_states=math.nan)  # type: ignore[arg-type]


def test_a_label_of_the_reference_that_strings_cannot_have_is_wrong_everywhere() -> None:
    machine = sl.Hamming().automaton([3, 0], num_labels=3, length=2)  # 3 is the first label that is none
    assert [machine.weight(y) for y in ([0, 0], [2, 0], [1, 1])] == [1.0, 1.0, 2.0]
