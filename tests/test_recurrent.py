"""RecurrentLayer: its chains are what a network over the last q labels says, label by label."""

import itertools

import pytest
import torch

import structloss as sl


def by_definition(layer: sl.RecurrentLayer, x: torch.Tensor, y: tuple[int, ...]) -> torch.Tensor:
    """The score of one sequence: at each position the network reads the last q labels, from a state of 0."""
    total = x.new_zeros(())
    for s in range(len(y)):
        state = x.new_zeros(1, layer.cell.hidden_size)
        for label in y[max(0, s + 1 - layer.order) : s + 1]:
            state = layer.cell(layer.embed(torch.tensor([label])), state)
        total = total + layer.score(torch.tanh(layer.project(x[s]) + state[0]))[0]
    return total


def layer_of(order: int) -> sl.RecurrentLayer:
    torch.manual_seed(order)
    return sl.RecurrentLayer(3, inputs=4, order=order, hidden=5).double()


@pytest.mark.parametrize("order", [1, 2, 3])
def test_its_scores_are_those_of_the_network_over_the_last_labels(order: int, engine: str) -> None:
    layer, x = layer_of(order), torch.randn(3, 4, 4, dtype=torch.float64)
    lengths = [4, 1, 0]
    chain = layer(x, lengths)
    wanted = []
    for b, length in enumerate(lengths):
        scores = [by_definition(layer, x[b], y) for y in itertools.product(range(3), repeat=length)]
        wanted.append(torch.stack(scores).logsumexp(0))
    torch.testing.assert_close(chain.log_partition(), torch.stack(wanted))
    objective = sl.SoftmaxMargin(sl.EditDistance(cap=2))
    objective(chain, [[0, 1, 2, 1], [2], []]).backward()
    wanted = [layer.embed, layer.project, layer.score, *([layer.cell] if order > 1 else [])]
    assert all(p.grad.abs().sum() > 0 for module in wanted for p in module.parameters())


def test_positions_that_a_mask_skips_are_no_history() -> None:
    layer, x = layer_of(3), torch.randn(1, 5, 4, dtype=torch.float64)
    mask = torch.tensor([[False, True, False, True, True]])
    torch.testing.assert_close(layer(x, mask).log_partition(), layer(x[:, mask[0]]).log_partition())


def test_what_is_wrong_with_its_arguments_is_said() -> None:
    with pytest.raises(ValueError, match="order: got 0, but wanted a whole number of at least 1"):
        sl.RecurrentLayer(3, inputs=4, order=0)
    with pytest.raises(ValueError, match=r"inputs: got shape \(2, 3\), but wanted \(B, T, 4\)"):
        layer_of(2)(torch.randn(2, 3))
