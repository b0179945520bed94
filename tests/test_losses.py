"""Losses by an independent definition."""

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
