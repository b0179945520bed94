"""The paper's own algorithms against ours: Q_w three ways."""

import numpy as np
import pytest
import torch

import structloss as sl

pytest.importorskip("pywrapfst", reason="OpenFst (the extra fst) is not installed")

from structloss.reproduce import grad_naive, grad_rational, grad_tropical
from structloss.reproduce.transducers import (
    edit_transducer,
    factored_edit_transducer,
    ngram_transducer,
    smith_waterman_transducer,
    squared,
)


def ours(potentials: np.ndarray, loss: sl.Loss, reference: list[int]) -> np.ndarray:
    chain = sl.Chain(torch.from_numpy(potentials)[None])
    return chain.augment(loss, [reference]).marginals()[0].numpy()


def potentials(length: int, K: int, order: int) -> np.ndarray:
    values = np.random.default_rng(length + order).standard_normal((length, *(K,) * order))
    for t in range(order - 1):  # histories that do not exist
        values[(t, *(slice(1, None),) * (order - 1 - t))] = 0.0
    return values


CASES = {
    "edit": (sl.EditDistance(), lambda K: [edit_transducer(K, 1, 1, 1)]),
    "edit 1 2 3": (sl.EditDistance(1, 2, 3), lambda K: [edit_transducer(K, 1, 2, 3)]),
    "edit in factors": (sl.EditDistance(1, 2, 3), lambda K: factored_edit_transducer(K, 1, 2, 3)),
    "smith-waterman": (sl.SmithWaterman(), lambda K: [smith_waterman_transducer(K, -2, 1, 1, 1)]),
}


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_tropical_losses_three_ways(name: str, order: int) -> None:
    loss, transducers = CASES[name]
    K, length = 3, 5
    values = potentials(length, K, order)
    reference = [0, 2, 1, 1, 0]
    naive = grad_naive(values, lambda y: loss.distance(np.array(y, np.int64), np.array(reference)))
    np.testing.assert_allclose(ours(values, loss, reference), naive, atol=1e-8)
    np.testing.assert_allclose(grad_tropical(values, reference, *transducers(K)), naive, atol=1e-8)


@pytest.mark.parametrize("order", [1, 2, 3])
def test_bigram_loss_three_ways(order: int) -> None:
    loss, K, length = sl.NGram(2, smoothing=0), 3, 5
    values, reference = potentials(length, K, order), [0, 2, 1, 1, 0]
    naive = grad_naive(values, lambda y: _finite(loss.distance(np.array(y, np.int64), np.array(reference))))
    np.testing.assert_allclose(ours(values, loss, reference), naive, atol=1e-8)
    np.testing.assert_allclose(grad_rational(values, reference, *squared(ngram_transducer(K, 2))), naive, atol=1e-8)


def test_any_rational_loss_three_ways() -> None:
    """A U that is no T o T^-1: insertions count half, deletions a quarter."""
    from structloss.reproduce.transducers import acceptor_of, add_arc

    K, length, reference = 3, 5, [0, 2, 1, 1]
    u = acceptor_of(1, "log64")
    for y in range(1, K + 1):
        add_arc(u, 0, y, y, 0.0, 0)
        add_arc(u, 0, y, 0, np.log(2), 0)
        add_arc(u, 0, 0, y, np.log(4), 0)
    u.set_final(0)
    loss, values = sl.RationalLoss(u), potentials(length, K, 2)
    naive = grad_naive(values, lambda y: loss.distance(np.array(y, np.int64), np.array(reference)))
    np.testing.assert_allclose(ours(values, loss, reference), naive, atol=1e-8)
    np.testing.assert_allclose(grad_rational(values, reference, u), naive, atol=1e-8)


def _finite(loss: float) -> float:
    return loss if loss < np.inf else -np.inf  # outside the sum


@pytest.mark.parametrize(("length", "order"), [(6, 2), (8, 1), (8, 2), (8, 3)])
@pytest.mark.parametrize("name", CASES)
def test_longer_strings_against_openfst(name: str, length: int, order: int) -> None:
    loss, transducers = CASES[name]
    K = 3 if order == 3 else 4
    values = potentials(length, K, order)
    reference = np.random.default_rng(length).integers(0, K, length).tolist()
    np.testing.assert_allclose(
        ours(values, loss, reference), grad_tropical(values, reference, *transducers(K)), atol=1e-8
    )


@pytest.mark.parametrize("order", [1, 2, 3])
def test_bigrams_of_longer_strings_against_openfst(order: int) -> None:
    K, length = 3, 8
    values, reference = potentials(length, K, order), [0, 2, 1, 1, 0, 2, 2, 1]
    np.testing.assert_allclose(
        ours(values, sl.NGram(2, smoothing=0), reference),
        grad_rational(values, reference, *squared(ngram_transducer(K, 2))),
        atol=1e-8,
    )
