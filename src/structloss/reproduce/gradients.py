"""Cortes 2018's algorithms for Q_w(z, s), literally: by enumeration, and by OpenFst's operations.

They are slow and plain on purpose: the oracle of our tests and the peer of our benchmarks. Potentials are
(T, K, ..., K) as for `Chain`, for one example; what comes back is Q_w, of the same shape.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from structloss.automata.openfst import Fst, openfst
from structloss.reproduce.transducers import acceptor_of, add_arc, all_strings, one_string

Floats = NDArray[np.float64]


def grad_naive(potentials: Floats, loss: Callable[[tuple[int, ...]], float]) -> Floats:
    """Grad-Naive (Figure 6): a loop over all strings of length T. Cost K**T."""
    length, K, order = potentials.shape[0], potentials.shape[1], potentials.ndim - 1
    strings = list(itertools.product(range(K), repeat=length))
    places = [_places(y, order) for y in strings]
    scores = np.array([sum(potentials[p] for p in use) + loss(y) for y, use in zip(strings, places, strict=True)])
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    Q = np.zeros_like(potentials)
    for use, weight in zip(places, weights, strict=True):
        for place in use:
            Q[place] += weight
    return Q


def _places(y: tuple[int, ...], order: int) -> list[tuple[int, ...]]:
    """Which potentials a string uses; before the first position labels are 0."""
    padded = (0,) * (order - 1) + y
    return [(t, *padded[t : t + order]) for t in range(len(y))]


def grad_tropical(
    potentials: Floats, reference: list[int], *transducer: Fst, threshold: float | None = None
) -> Floats:  # fmt: skip
    """Grad-Tropical (Figure 4a): M = Pi_1(Y-bar o U o Y_i), Det, exponentiate, compose with A, forward and backward.

    U may be given in factors, T1 and T2: Y-bar o T1 and T2 o Y_i are then composed (section 5). With a threshold, Det
    prunes (section 6): arcs that are on no path within the threshold of the best are left out.
    """
    K = potentials.shape[1]
    machine = determinised(potentials.shape[0], K, reference, "standard", *transducer, threshold=threshold)
    return of_machine(potentials, machine)


def of_machine(potentials: Floats, machine: Fst) -> Floats:
    """The rest of Grad-Tropical, from Det(M): the weights become those of B, of C = A o B, and Q_w is read off."""
    return _key_terms(potentials, _with_weights(machine, lambda u: -u))


def grad_reduced(potentials: Floats, machine: Fst) -> Floats:
    """Grad-Rational from a machine for the reference that was reduced by hand (`counted_ngrams`)."""
    wrap = openfst()
    strings = all_strings(potentials.shape[1], potentials.shape[0], "log64")
    reduced = wrap.determinize(wrap.compose(strings, machine.copy().arcsort("ilabel")).rmepsilon(), delta=1e-9)
    return _key_terms(potentials, _with_weights(reduced, lambda w: -w))


def grad_rational(potentials: Floats, reference: list[int], *transducer: Fst) -> Floats:
    """Grad-Rational (Figure 2a): as Grad-Tropical, with weights inverted rather than exponentiated.

    U is any transducer over the log semiring, or its factors; for U = T o T^-1 they are `transducers.squared(T)`.
    """
    # In the log semiring a weight w stands for exp(-w): inverting it negates w.
    machine = determinised(potentials.shape[0], potentials.shape[1], reference, "log64", *transducer)
    return _key_terms(potentials, _with_weights(machine, lambda w: -w))


def determinised(
    length: int, num_labels: int, reference: list[int], arc_type: str, *transducer: Fst, threshold: float | None = None
) -> Fst:  # fmt: skip
    """Det(M), by OpenFst; pruned where there is a threshold."""
    wrap = openfst()
    result = all_strings(num_labels, length, arc_type)
    last = one_string(reference, arc_type)
    *first, final = transducer
    for factor in first:
        result = wrap.compose(result, factor.copy().arcsort("ilabel"))
    right = wrap.compose(final.copy().arcsort("olabel"), last)
    result = wrap.compose(result.arcsort("olabel"), right.arcsort("ilabel"))
    result.project("input").rmepsilon()
    return wrap.determinize(result, delta=1e-9, weight=threshold)


def _with_weights(fst: Fst, change: Callable[[float], float]) -> Fst:
    """B: the same machine in the log semiring, with changed weights."""
    result = acceptor_of(fst.num_states(), "log64")
    wrap = openfst()
    if fst.num_states():
        result.set_start(fst.start())
    for state in fst.states():
        for arc in fst.arcs(state):
            add_arc(result, state, arc.ilabel, arc.olabel, change(float(arc.weight)), arc.nextstate)
        final = float(fst.final(state))
        if math.isfinite(final):
            result.set_final(state, wrap.Weight("log64", change(final)))
    return result


def _chain_acceptor(potentials: Floats) -> tuple[Fst, list[tuple[int, ...]]]:
    """A (Figure 2d), its arcs reading a number that tells which potential they carry, and writing the label."""
    length, K, order = potentials.shape[0], potentials.shape[1], potentials.ndim - 1
    index: dict[tuple[int, tuple[int, ...]], int] = {(0, (0,) * (order - 1)): 0}
    arcs, carried = [], []
    frontier = [(0,) * (order - 1)]
    for t in range(length):
        following: list[tuple[int, ...]] = []
        for history in frontier:
            for y in range(K):
                place = (t, *history, y)
                target = (*history, y)[1:] if order > 1 else ()
                if (t + 1, target) not in index:
                    index[t + 1, target] = len(index)
                    following.append(target)
                carried.append(place)
                arcs.append((index[t, history], len(carried), y + 1, -potentials[place], index[t + 1, target]))
        frontier = following
    fst = acceptor_of(len(index), "log64")
    for arc in arcs:
        add_arc(fst, *arc)
    for history in frontier:
        fst.set_final(index[length, history])
    return fst, carried


def _key_terms(potentials: Floats, B: Fst) -> Floats:
    """C = A o B, distances from the start and to the end, and Q_w(z, s) = the share of all arcs that carry (z, s)."""
    wrap = openfst()
    A, carried = _chain_acceptor(potentials)
    C = wrap.compose(A.arcsort("olabel"), B.arcsort("ilabel"))
    exactly = 1e-15  # the default stops at 1e-6
    from_start = [float(w) for w in wrap.shortestdistance(C, delta=exactly)]
    to_end = [float(w) for w in wrap.shortestdistance(C, reverse=True, delta=exactly)]
    Q = np.zeros_like(potentials)
    for state in C.states():
        for arc in C.arcs(state):
            Q[carried[arc.ilabel - 1]] += math.exp(
                to_end[C.start()] - from_start[state] - float(arc.weight) - to_end[arc.nextstate]
            )
    return Q
