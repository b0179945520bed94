"""The transducers of Cortes 2018, as OpenFst objects (needs the extra `fst`). Label y is symbol y + 1; 0 is epsilon."""

import math

from structloss.automata.openfst import Fst, openfst


def acceptor_of(states: int, arc_type: str) -> Fst:
    """An empty machine with this many states, the first one its start."""
    fst = openfst().VectorFst(arc_type=arc_type)
    for _ in range(states):
        fst.add_state()
    fst.set_start(0)
    return fst


def add_arc(fst: Fst, source: int, reads: int, writes: int, weight: float, target: int) -> None:
    """One transition."""
    wrap = openfst()
    fst.add_arc(source, wrap.Arc(reads, writes, wrap.Weight(fst.weight_type(), weight), target))


def all_strings(num_labels: int, length: int, arc_type: str) -> Fst:
    """Y-bar (Figure 2b): every string of one length, with weight one."""
    fst = acceptor_of(length + 1, arc_type)
    for t in range(length):
        for y in range(num_labels):
            add_arc(fst, t, y + 1, y + 1, 0.0, t + 1)
    fst.set_final(length)
    return fst


def one_string(labels: list[int], arc_type: str) -> Fst:
    """Y_i (Figure 2c): one string, with weight one."""
    fst = acceptor_of(len(labels) + 1, arc_type)
    for t, label in enumerate(labels):
        add_arc(fst, t, label + 1, label + 1, 0.0, t + 1)
    fst.set_final(len(labels))
    return fst


def edit_transducer(num_labels: int, substitution: float, insertion: float, deletion: float) -> Fst:
    """U_edit (Figure 3a). It reads the answer and writes the reference: an insertion reads what is not written."""
    fst = acceptor_of(1, "standard")
    for y in range(1, num_labels + 1):
        add_arc(fst, 0, y, 0, insertion, 0)
        add_arc(fst, 0, 0, y, deletion, 0)
        for r in range(1, num_labels + 1):
            add_arc(fst, 0, y, r, 0.0 if y == r else substitution, 0)
    fst.set_final(0)
    return fst


def factored_edit_transducer(
    num_labels: int, substitution: float, insertion: float, deletion: float
) -> tuple[Fst, Fst]:
    """T1 and T2 (Figure 4b), whose composition is U_edit: linear in the alphabet.

    Two symbols more are for edits, as there: s for a label of the answer that is replaced, or that the reference lacks
    (the paper's deletion, `insertion` here), and i for one that the answer lacks (`deletion` here).
    """
    s, i = num_labels + 1, num_labels + 2
    first, second = acceptor_of(1, "standard"), acceptor_of(1, "standard")
    add_arc(first, 0, 0, i, 0.0, 0)
    add_arc(second, 0, s, 0, insertion, 0)
    for y in range(1, num_labels + 1):
        add_arc(first, 0, y, y, 0.0, 0)
        add_arc(first, 0, y, s, 0.0, 0)
        add_arc(second, 0, y, y, 0.0, 0)
        add_arc(second, 0, s, y, substitution, 0)
        add_arc(second, 0, i, y, deletion, 0)
    for fst in (first, second):
        fst.set_final(0)
    return first, second


def smith_waterman_transducer(
    num_labels: int, match: float, substitution: float, insertion: float, deletion: float
) -> Fst:
    """U_Smith-Waterman (Figure 3b): skip for nothing, align at a cost, skip for nothing."""
    fst = acceptor_of(3, "standard")
    for y in range(1, num_labels + 1):
        for state in (0, 2):
            add_arc(fst, state, y, 0, 0.0, state)
            add_arc(fst, state, 0, y, 0.0, state)
        add_arc(fst, 1, y, 0, insertion, 1)
        add_arc(fst, 1, 0, y, deletion, 1)
        for r in range(1, num_labels + 1):
            add_arc(fst, 1, y, r, match if y == r else substitution, 1)
    add_arc(fst, 0, 0, 0, 0.0, 1)
    add_arc(fst, 1, 0, 0, 0.0, 2)
    fst.set_final(2)
    return fst


def ngram_transducer(num_labels: int, n: int) -> Fst:
    """T (Figure 1 for n = 2), in the log semiring: every occurrence of an n-gram is one path that writes it."""
    fst = acceptor_of(n + 1, "log64")
    for y in range(1, num_labels + 1):
        for state in (0, n):
            add_arc(fst, state, y, 0, 0.0, state)
        for state in range(n):
            add_arc(fst, state, y, y, 0.0, state + 1)
    fst.set_final(n)
    return fst


def squared(transducer: Fst) -> tuple[Fst, Fst]:
    """T and T^-1, whose composition is U = T o T^-1."""
    inverse = transducer.copy()
    inverse.invert()
    return transducer, inverse


def counted_ngrams(reference: list[int], num_labels: int, n: int) -> Fst:
    """T o T^-1 o Y_i reduced by hand: one state for each beginning of an n-gram, its count the weight of its last arc.

    It gives a string the sum over its n-grams of their counts in the reference, as T o T^-1 o Y_i does, whose
    determinisation keeps every position of the reference apart and explodes.
    """
    counts: dict[tuple[int, ...], int] = {}
    for i in range(len(reference) - n + 1):
        gram = tuple(reference[i : i + n])
        counts[gram] = counts.get(gram, 0) + 1
    beginnings = {gram[:i] for gram in counts for i in range(1, n)}
    states = {beginning: i + 2 for i, beginning in enumerate(sorted(beginnings))}
    states[()] = 0
    fst = acceptor_of(len(states) + 1, "log64")
    for y in range(1, num_labels + 1):
        for state in (0, 1):
            add_arc(fst, state, y, y, 0.0, state)
    for beginning, state in states.items():
        for y in range(num_labels):
            longer = (*beginning, y)
            if longer in states:
                add_arc(fst, state, y + 1, y + 1, 0.0, states[longer])
            elif longer in counts:
                add_arc(fst, state, y + 1, y + 1, -math.log(counts[longer]), 1)
    fst.set_final(1)
    return fst
