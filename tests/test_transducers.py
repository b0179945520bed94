"""Losses from any weighted transducer, and what is wrong with a bad one."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import structloss as sl
from structloss.automata.transducer import Transducer
from structloss.structures.engine import engine

LABEL = st.none() | st.integers(0, 2)
WEIGHT = st.integers(-2, 4).map(lambda x: x / 2)
STATES = 3
STATE = st.integers(0, STATES - 1)


STRING = st.lists(st.integers(0, 2), max_size=4)


@st.composite
def transducers(draw, weights=WEIGHT) -> Transducer:
    arcs = draw(st.lists(st.tuples(STATE, STATE, LABEL, LABEL, weights), min_size=1, max_size=12))
    arcs = [a for a in arcs if a[2] is not None or a[3] is not None or a[0] < a[1]]  # no loop of nothing
    chain = [(q, q + 1, draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(weights)) for q in range(STATES - 1)]
    return Transducer.from_arcs([*arcs, *chain], {q: draw(weights) for q in range(draw(st.integers(1, STATES)))})


@settings(max_examples=150)
@given(transducers(), STRING, st.integers(0, 5), st.none() | st.integers(0, 3))
def test_machines_of_random_transducers(transducer, reference, length, cap) -> None:
    loss = sl.TropicalLoss(transducer, cap)
    string = np.array(reference, np.int64)
    machines = [loss.automaton(reference, 3, length), loss.machine(string, 3, length, True)]
    if min(arc.weight for arc in transducer.arcs) >= 0 or not falls_forever(loss, reference):
        machines += [loss.automaton(reference, 3), loss.open(string, 3, True)]
    check_machines(loss, machines, string, length)


def falls_forever(loss, reference: list[int]) -> bool:
    try:
        loss.automaton(reference, 3)
    except ValueError as error:
        return "a loop lowers the loss at every turn" in str(error)
    return False


def test_a_loss_that_falls_with_every_label_has_no_machine_for_all_lengths() -> None:
    loss = sl.TropicalLoss("0 0 1 0 -1\n0")
    assert loss.automaton([], 1, 4).weight([0] * 4) == -4.0
    assert falls_forever(loss, [])


def check_machines(loss, machines, reference: np.ndarray, length: int) -> None:
    for y in itertools.product(range(3), repeat=length):
        wanted = loss.distance(np.array(y, np.int64), reference)
        for machine in machines:
            found = machine.weight(y)
            assert found == wanted or abs(found - wanted) < 1e-9, (y, found, wanted)


@settings(max_examples=150)
@given(
    transducers(weights=st.integers(0, 4).map(lambda x: x / 2)),
    STRING,
    st.integers(0, 5),
    st.sampled_from([0.0, 1.0, 0.3]),
)
def test_rational_machines_of_random_transducers(transducer, reference, length, smoothing) -> None:
    loss = sl.RationalLoss(transducer, smoothing)
    string = np.array(reference, np.int64)
    machines = [
        loss.automaton(reference, 3, length), loss.machine(string, 3, length, True),
        loss.automaton(reference, 3), loss.open(string, 3, True),
    ]  # fmt: skip
    check_machines(loss, machines, string, length)


EDIT = "\n".join(
    [f"0 0 {a} {b} {0 if a == b else 1}" for a in "abc" for b in "abc"]
    + [f"0 0 {a} <eps> 3" for a in "abc"]
    + [f"0 0 <eps> {a} 2" for a in "abc"]
    + ["0"]
)


def test_the_edit_transducer_is_the_edit_distance(tmp_path) -> None:
    path = tmp_path / "edit.txt"
    path.write_text(EDIT)
    text, file = sl.TropicalLoss(EDIT, symbols=list("abc")), sl.TropicalLoss(path, symbols=list("abc"))
    direct = sl.EditDistance(1, 3, 2)
    chain = sl.Chain(torch.randn(2, 4, 3, 3, dtype=torch.float64), [4, 2])
    references = [[0, 2, 1], [1]]
    wanted = chain.augment(direct, references).log_partition()
    for loss in (text, file):
        torch.testing.assert_close(chain.augment(loss, references).log_partition(), wanted)
        with engine("torch"):
            torch.testing.assert_close(chain.expected(loss, references), chain.expected(direct, references))
        assert loss([[0, 1, 2]], [[1, 1]]).item() == direct([[0, 1, 2]], [[1, 1]]).item()
    assert text.automaton([0, 2, 1], 3, 3).num_states == direct.automaton([0, 2, 1], 3, 3).num_states


def test_openfst_objects() -> None:
    pytest.importorskip("pywrapfst", reason="OpenFst (the extra fst) is not installed")
    from structloss.reproduce.transducers import edit_transducer, smith_waterman_transducer

    generator = np.random.default_rng(0)
    pairs = [(generator.integers(0, 3, 4), generator.integers(0, 3, 3)) for _ in range(20)]
    for fst, direct in (
        (edit_transducer(3, 1, 3, 2), sl.EditDistance(1, 3, 2)),
        (smith_waterman_transducer(3, -2, 1, 1, 1), sl.SmithWaterman()),
    ):
        loss = sl.TropicalLoss(fst)
        for y, r in pairs:
            assert loss.distance(y, r) == direct.distance(y, r)
            assert loss.automaton(r, 3, 4).weight(y) == direct.distance(y, r)


def test_the_bigram_transducer_is_the_bigram_loss() -> None:
    """T o T^-1 of the paper's Figure 1, by its own counts: as many states as the n-gram machine has, not 621,515."""
    bigrams = [(a, b) for a in range(3) for b in range(3)]
    # Skips in the reference come after those in the answer, so that each pair of occurrences has one path.
    arcs = [(0, 0, y, None) for y in range(3)]
    arcs += [(0, 1, None, None)] + [(1, 1, None, y) for y in range(3)]
    arcs += [(1, 2 + a, a, a) for a in range(3)] + [(2 + a, 5, b, b) for a, b in bigrams]
    arcs += [(5, 5, y, None) for y in range(3)] + [(5, 6, None, None)] + [(6, 6, None, y) for y in range(3)]
    loss = sl.RationalLoss(Transducer.from_arcs(arcs, [6], semiring="real"), smoothing=1.0)
    direct = sl.NGram(2)
    generator = np.random.default_rng(0)
    for _ in range(30):
        y, r = (generator.integers(0, 3, generator.integers(0, 7)) for _ in range(2))
        assert loss.distance(y, r) == pytest.approx(direct.distance(y, r))
        assert loss.automaton(r, 3).weight(y) == pytest.approx(direct.distance(y, r))
    reference = generator.integers(0, 3, 12)
    assert loss.automaton(reference, 3, 12).num_states <= direct.automaton(reference, 3, 12).num_states
    chain = sl.Chain(torch.randn(1, 6, 3, 3, dtype=torch.float64))
    for objective in (sl.SoftmaxMargin, sl.Risk, sl.SlackHinge):
        found, wanted = (objective(x)(chain, [[0, 1, 1, 2, 0, 1]]) for x in (loss, direct))
        torch.testing.assert_close(found, wanted)


def test_binary_files_of_openfst(tmp_path) -> None:
    pytest.importorskip("pywrapfst", reason="OpenFst (the extra fst) is not installed")
    from structloss.reproduce.transducers import edit_transducer, ngram_transducer

    edit_transducer(3, 1, 3, 2).write(str(tmp_path / "edit.fst"))
    loss, direct = sl.TropicalLoss(tmp_path / "edit.fst"), sl.EditDistance(1, 3, 2)
    assert loss([[0, 1, 2]], [[1, 1]]) == direct([[0, 1, 2]], [[1, 1]])
    counts = ngram_transducer(3, 2)
    counts.write(str(tmp_path / "ngram.fst"))
    both = [sl.RationalLoss(x)([[0, 1, 2]], [[0, 1]]) for x in (counts, tmp_path / "ngram.fst")]
    assert both[0] == both[1]
    (tmp_path / "bad.fst").write_bytes((tmp_path / "edit.fst").read_bytes()[:40])
    with pytest.raises(ValueError, match=r"bad.fst: OpenFst cannot read it"):
        sl.TropicalLoss(tmp_path / "bad.fst")


def test_rational_weights_are_not_negative() -> None:
    with pytest.raises(ValueError, match=r"the arc \(0, 0, 0, 0, -1.0\) has weight -1.0, but wanted at least 0"):
        sl.RationalLoss("0 0 1 1 -1\n0")
    with pytest.raises(ValueError, match="final state 0 has weight -2"):
        sl.RationalLoss("0 0 1 1\n0 -2")
    with pytest.raises(TypeError, match="transducer: got 3, but wanted"):
        sl.RationalLoss(3)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "got no line at all"),
        ("0 1 a", "line 1: got 3 columns"),
        ("0 0 a a\nx", "line 2: got 'x', but wanted a state"),
        ("0 0 a a one\n0", "line 1: got 'one', but wanted a weight"),
        ("0 0 a z\n0", "line 1: got the symbol 'z', which is not among the 2 symbols"),
        ("0 0 a a\n3", "its final state 3 cannot be reached"),
        ("0 0 a a", "no final state"),
        ("0 1 <eps> <eps>\n1 0 <eps> <eps>\n0", r"a loop through states \[0, 1\] reads and writes nothing"),
        ("0 0 a a inf\n0", "has weight inf"),
        ("99999999999 0 a a\n0", "more than ten million"),
    ],
)
def test_a_bad_transducer_is_named(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        sl.TropicalLoss(text, symbols=["a", "b"])


def test_numbers_are_openfsts_own() -> None:
    loss = sl.TropicalLoss("0 0 1 1\n0 0 2 2\n0 0 1 2 5\n0 0 0 1 7\n0")
    assert loss([[0, 1]], [[1, 1]]).item() == 5.0
    assert loss([[1]], [[0, 1]]).item() == 7.0
