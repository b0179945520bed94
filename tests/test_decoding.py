"""Minimum Bayes risk decoding."""

import itertools

import pytest
import torch

import structloss as sl


def test_all_outputs_as_candidates_give_the_answer_of_least_risk() -> None:
    chain = sl.Chain(torch.randn(3, 3, 3, 3, dtype=torch.float64), [3, 2, 0])
    loss = sl.EditDistance()
    found = sl.mbr(chain, loss, candidates=27)
    for b, length in enumerate((3, 2, 0)):
        outputs = list(itertools.product(range(3), repeat=length))
        padded = torch.tensor([[*y, *[0] * (3 - length)] for y in outputs])
        weights = chain.log_prob(padded[:, None].expand(-1, 3, -1))[:, b].exp()
        risks = torch.stack([(loss([y] * len(outputs), outputs) * weights).sum() for y in outputs])
        assert found.risks[b].item() == pytest.approx(risks.min().item(), abs=1e-6)
        assert found.strings[b] == list(outputs[int(risks.argmin())])


def test_paths_that_write_the_same_string_are_one_candidate() -> None:
    """One string with two paths of 0.3 beats a string with one path of 0.4."""
    lattice = sl.Lattice([[[0, 1, 5], [0, 1, 7], [0, 1, 7]]], torch.tensor([0.4, 0.3, 0.3]).log())
    assert lattice.decode() == [[5]]
    found = sl.mbr(lattice, sl.EditDistance(), candidates=3)
    assert found.strings == [[7]]
    assert found.risks.item() == pytest.approx(0.4)


def test_samples_as_candidates() -> None:
    ctc = sl.CTC(torch.randn(2, 6, 4))
    draws = [sl.mbr(ctc, sl.EditDistance(), 50, "sample", torch.Generator().manual_seed(3)) for _ in range(2)]
    assert draws[0].strings == draws[1].strings
    assert draws[0].risks.tolist() == draws[1].risks.tolist()


def test_bad_arguments_and_no_output() -> None:
    chain = sl.Chain(torch.tensor([[[0.0, 1.0]], [[-torch.inf, -torch.inf]]]))
    found = sl.mbr(chain, sl.EditDistance())
    assert found.strings == [[1], []]
    assert found.risks[1].isnan()
    with pytest.raises(ValueError, match="method: got 'best'"):
        sl.mbr(chain, sl.EditDistance(), method="best")
    with pytest.raises(ValueError, match="candidates: got 0"):
        sl.mbr(chain, sl.EditDistance(), candidates=0)
