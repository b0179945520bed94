"""Losses from any weighted transducer, and what is wrong with a bad one."""

import itertools
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import structloss as sl
from structloss.automata import openfst_binary
from structloss.automata.transducer import Arc, Transducer
from structloss.structures.engine import engine
from structloss.text import DataError

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


@settings(max_examples=60)
@given(transducers(), st.dictionaries(st.integers(1, STATES - 1), WEIGHT), WEIGHT, STRING, STRING)
def test_several_starts_are_the_best_of_each(transducer, others, weight, y, reference) -> None:
    start, string = {0: weight, **others}, np.array(reference, np.int64)
    several = Transducer.from_arcs(transducer.arcs, transducer.final, start)
    wanted = [w + from_state(transducer, q, tuple(y), tuple(reference)) for q, w in start.items()]
    loss = sl.TropicalLoss(several)
    assert loss.distance(np.array(y, np.int64), string) == pytest.approx(min(wanted), abs=1e-9)
    assert loss.automaton(string, 3, len(y)).weight(y) == pytest.approx(min(wanted), abs=1e-9)


@settings(max_examples=60)
@given(transducers(), st.dictionaries(st.integers(1, STATES - 1), WEIGHT), WEIGHT, STRING, STRING)
def test_several_starts_by_openfst(transducer, others, weight, y, reference) -> None:
    pytest.importorskip("pywrapfst", reason="OpenFst (the extra fst) is not installed")
    several = Transducer.from_arcs(transducer.arcs, transducer.final, {0: weight, **others})
    wanted = several.weight(np.array(y, np.int64), np.array(reference, np.int64), "tropical")
    assert by_openfst(several.to_fst(), y, reference, "standard") == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def by_openfst(fst: Any, y: list[int], reference: list[int], kind: str) -> float:
    """The distance from start to end of y o U o r, by OpenFst's own operations."""
    import pywrapfst as wrap

    from structloss.reproduce.transducers import one_string

    fst = wrap.compose(one_string(y, kind), fst.arcsort("ilabel"))
    fst = wrap.compose(fst.arcsort("olabel"), one_string(reference, kind))
    return float(wrap.shortestdistance(fst, reverse=True)[fst.start()]) if fst.num_states() else np.inf


def from_state(u: Transducer, q: int, y: tuple[int, ...], r: tuple[int, ...], plus=min, zero=np.inf, silent=0) -> float:
    """The weight of all paths from a state, one after the other: the definition."""
    total = u.final.get(q, zero) if not y and not r else zero
    for arc in u.arcs:
        a, b = arc.reads is not None, arc.writes is not None
        if arc.source == q and (not a or y[:1] == (arc.reads,)) and (not b or r[:1] == (arc.writes,)):
            rest = from_state(u, arc.target, y[a:], r[b:], plus, zero)
            total = plus(total, arc.weight + rest if zero else arc.weight * rest)
    return total


@settings(max_examples=60)
@given(transducers(), STRING, STRING)
def test_direct_values_are_those_of_all_paths(transducer, y, reference) -> None:
    own, string = np.array(y, np.int64), np.array(reference, np.int64)
    wanted = from_state(transducer, transducer.start, tuple(y), tuple(reference))
    assert transducer.weight(own, string, "tropical") == pytest.approx(wanted, abs=1e-9)
    flipped = transducer.inverse()
    assert flipped.inverse() == transducer
    assert flipped.weight(string, own, "tropical") == transducer.weight(own, string, "tropical")
    total = from_state(transducer, transducer.start, tuple(y), tuple(reference), lambda a, b: a + b, 0.0)
    assert transducer.weight(own, string, "real") == pytest.approx(total, abs=1e-9)


def letters(reads: bool) -> Any:
    """Transducers that write one label, or none, for each that they read."""
    label = st.integers(0, 2)
    arc = st.tuples(STATE, STATE, label, LABEL, st.integers(0, 4).map(lambda x: x / 2))
    if not reads:
        arc = arc.map(lambda a: (a[0], a[1], a[3], a[2], a[4])).filter(lambda a: a[2] is not None or a[0] < a[1])
    arcs = st.lists(arc, min_size=3, max_size=9)
    return st.tuples(arcs, arc).map(
        lambda a: Transducer.from_arcs([*a[0], (0, 1, 0, 0, 1.0), (1, 2, 1, 2, 0.5)], {0: 1.0, 2: 0.5})
    )


@settings(max_examples=60)
@given(letters(True), letters(False), STRING, STRING, st.sampled_from(["tropical", "real"]))
def test_compositions_by_enumeration_and_by_openfst(u, v, y, reference, semiring) -> None:
    wrap = pytest.importorskip("pywrapfst", reason="OpenFst (the extra fst) is not installed")
    own, string = np.array(y, np.int64), np.array(reference, np.int64)
    between = [np.array(z, np.int64) for n in range(len(y) + 1) for z in itertools.product(range(3), repeat=n)]
    pairs = [(u.weight(own, z, semiring), v.weight(z, string, semiring)) for z in between]
    wanted = min(a + b for a, b in pairs) if semiring == "tropical" else sum(a * b for a, b in pairs)
    both = u.compose(v, semiring)
    assert both.weight(own, string, semiring) == pytest.approx(wanted, rel=1e-6)
    fst = wrap.compose(u.to_fst(semiring).arcsort("olabel"), v.to_fst(semiring).arcsort("ilabel"))
    distance = by_openfst(fst, y, reference, "standard" if semiring == "tropical" else "log64")
    found = distance if semiring == "tropical" else np.exp(-distance)
    assert found == pytest.approx(wanted, rel=1e-4, abs=1e-6)


def test_projections_and_what_is_wrong_with_compositions() -> None:
    u = Transducer.from_arcs([(0, 1, 0, 1, 0.5), (1, 1, 2, None, 1.0)], [1])
    y, r = np.array([0, 2]), np.array([1])
    assert u.weight(y, r, "tropical") == 1.5
    assert u.project("reads").weight(y, y, "tropical") == 1.5
    with pytest.raises(ValueError, match="reads and writes nothing"):
        u.project("writes")  # the loop would write for ever, for nothing
    with pytest.raises(ValueError, match="side: got 'input', but wanted 'reads' or 'writes'"):
        u.project("input")
    with pytest.raises(ValueError, match="start: got no state"):
        Transducer.from_arcs([(0, 1, 0, 0)], [1], start=[])
    pytest.importorskip("pywrapfst", reason="OpenFst (the extra fst) is not installed")
    with pytest.raises(ValueError, match="other: it reads nothing of what this one writes"):
        u.compose(Transducer.from_arcs([(0, 1, 2, 2)], [1]))
    with pytest.raises(ValueError, match=r"semiring: got the weight -1.0, but OpenFst wanted factors of at least 0"):
        Transducer.from_arcs([(0, 1, 0, 0, -1.0)], [1]).to_fst("real")


def test_the_square_of_the_bigram_transducer_is_the_bigram_loss() -> None:
    pytest.importorskip("pywrapfst", reason="OpenFst (the extra fst) is not installed")
    bigram = [(q, q, y, None) for q in (0, 2) for y in range(3)] + [(0, 3 + y, y, y) for y in range(3)]
    bigram += [(3 + a, 2, b, b) for a in range(3) for b in range(3)]
    square = Transducer.from_arcs(bigram, [2], semiring="real").square()
    loss, direct, linear = sl.RationalLoss(square, smoothing=1.0), sl.NGram(2), sl.NGram(2, log=False)
    for length in range(4):
        for y in itertools.product(range(3), repeat=length):
            own, r = np.array(y, np.int64), np.array([0, 1, 0, 1])
            assert loss.distance(own, r) == pytest.approx(direct.distance(own, r), abs=1e-6)
            assert loss.automaton(r, 3, length).weight(y) == pytest.approx(direct.distance(own, r), abs=1e-6)
            common = np.exp(-by_openfst(square.to_fst("real"), y, r.tolist(), "log64"))
            assert linear.automaton(r, 3, length).weight(y) == pytest.approx(-common, rel=1e-4, abs=1e-6)


def test_symbol_tables_are_honoured_or_refused(tmp_path: Path) -> None:
    wrap = pytest.importorskip("pywrapfst", reason="OpenFst (the extra fst) is not installed")
    text = [f"0 0 {a} {b} {0 if a == b else 0.2 if {a, b} <= set('aei') else 1}" for a in "aeikt" for b in "aeikt"]
    wanted = sl.TropicalLoss("\n".join([*text, "0"]), symbols=list("aeikt"))
    fst = Transducer.from_text("\n".join([*text, "0"]), list("tkiea")).to_fst(symbols=list("tkiea"))
    fst.write(str(tmp_path / "u.fst"))
    kat, ket = [[3, 0, 4]], [[3, 1, 4]]
    for source in (fst, tmp_path / "u.fst"):
        assert sl.TropicalLoss(source, symbols=list("aeikt"))(kat, ket).item() == pytest.approx(0.2)
        assert wanted(kat, ket).item() == pytest.approx(0.2)
        assert sl.TropicalLoss(source)([[1, 4, 0]], [[1, 3, 0]]).item() == pytest.approx(0.2)  # as its table has them
        with pytest.raises(ValueError, match="got the symbol 't', which is not among the 4 symbols"):
            sl.TropicalLoss(source, symbols=list("aeik"))
    with pytest.raises(ValueError, match="symbols: got names beside a Transducer, whose labels are numbers already"):
        sl.TropicalLoss(Transducer.from_fst(fst), symbols=list("aeikt"))
    bare = fst.copy()
    bare.set_output_symbols(None)
    with pytest.raises(ValueError, match="symbols: got names, but transducer: what it writes has no symbol table"):
        sl.TropicalLoss(bare, symbols=list("aeikt"))
    with pytest.raises(TypeError, match=r"symbols: got .*, but wanted the names of labels 0, 1, \.\.\., a list"):
        sl.TropicalLoss(fst, symbols=fst.input_symbols())
    other = wrap.SymbolTable()
    for name in ("<eps>", *"aeikt"):
        other.add_symbol(name)
    bare.set_output_symbols(other)
    with pytest.raises(ValueError, match="its symbol 1 is 't' where it reads and 'a' where it writes; pass symbols="):
        sl.TropicalLoss(bare)


def test_the_name_of_a_file_is_no_text() -> None:
    with pytest.raises(DataError, match=r"wanted a state, .*; a file is given as Path\('/data/w.fst'\)"):
        sl.TropicalLoss("/data/w.fst")
    with pytest.raises(DataError, match=r"a file is given as Path\('w.txt'\)"):
        sl.Lattice.from_text("w.txt")


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


def test_binary_files_of_openfst(tmp_path: Path) -> None:
    pytest.importorskip("pywrapfst", reason="OpenFst (the extra fst) is not installed")
    from structloss.reproduce.transducers import edit_transducer, ngram_transducer

    edit_transducer(3, 1, 3, 2).write(str(tmp_path / "edit.fst"))
    loss, direct = sl.TropicalLoss(tmp_path / "edit.fst"), sl.EditDistance(1, 3, 2)
    assert loss([[0, 1, 2]], [[1, 1]]) == direct([[0, 1, 2]], [[1, 1]])
    counts = ngram_transducer(3, 2)
    counts.write(str(tmp_path / "ngram.fst"))
    both = [sl.RationalLoss(x)([[0, 1, 2]], [[0, 1]]) for x in (counts, tmp_path / "ngram.fst")]
    assert both[0] == both[1]
    for source in (counts, tmp_path / "ngram.fst"):
        with pytest.raises(ValueError, match=r"got arcs of type 'log64', whose paths are not minimised"):
            sl.TropicalLoss(source)


@st.composite
def openfst_machines(draw, wrap) -> Any:
    """Machines of any type that we read, some with symbol tables; weights are multiples of a half."""
    fst = wrap.VectorFst(arc_type=draw(st.sampled_from(["standard", "log", "log64"])))
    n = draw(st.integers(1, 4))
    for _ in range(n):
        fst.add_state()
    fst.set_start(draw(st.integers(0, n - 1)))
    state, label, cost = st.integers(0, n - 1), st.integers(0, 3), st.integers(-3, 5).map(lambda x: x / 2)
    for p, q, reads, writes, weight in draw(st.lists(st.tuples(state, state, label, label, cost), max_size=8)):
        fst.add_arc(p, wrap.Arc(reads, writes, wrap.Weight(fst.weight_type(), weight), q))
    for q in draw(st.sets(state)):
        fst.set_final(q, wrap.Weight(fst.weight_type(), draw(cost)))
    for put in draw(st.sets(st.sampled_from(["set_input_symbols", "set_output_symbols"]))):
        table = wrap.SymbolTable(name="letters")
        for name in ("<eps>", "a", "ŋ", "c d"):
            table.add_symbol(name)
        getattr(fst, put)(table)
    return wrap.convert(fst, "const") if draw(st.booleans()) else fst


@settings(max_examples=200)
@given(st.data())
def test_binary_files_are_read_as_openfst_reads_them(tmp_path_factory: pytest.TempPathFactory, data) -> None:
    wrap = pytest.importorskip("pywrapfst", reason="OpenFst (the extra fst) is not installed")
    fst = data.draw(openfst_machines(wrap))
    path = tmp_path_factory.mktemp("binary") / "u.fst"
    fst.write(str(path))
    machine = openfst_binary.read(path)
    assert (machine.arc_type, machine.start) == (fst.arc_type(), fst.start())
    assert machine.final.tolist() == [float(fst.final(q)) for q in fst.states()]
    found = zip(machine.source, machine.target, machine.reads, machine.writes, machine.weight, strict=True)
    wanted = [(q, a.nextstate, a.ilabel, a.olabel, float(a.weight)) for q in fst.states() for a in fst.arcs(q)]
    assert list(found) == wanted
    for semiring in ("tropical", "real"):
        results = []
        for source in (fst, path):
            try:
                results.append(Transducer.read(source, None, semiring))
            except ValueError as error:
                results.append(str(error).replace(str(path), "transducer"))
        assert results[0] == results[1]


def binary(fst_type: str = "vector", states: int = 2) -> bytes:
    """A machine with two states and one arc, as OpenFst writes it."""
    header = struct.pack("<i", 2125659606)
    for name in (fst_type, "standard"):
        header += struct.pack("<i", len(name)) + name.encode()
    header += struct.pack("<iiQqqq", 2, 0, 3, 0, states, 1)
    inf, arc = float("inf"), struct.pack("<iifi", 1, 2, 0.5, 1)
    if fst_type == "const":
        return header + struct.pack("<fIIIIfIIII", inf, 0, 1, 0, 0, 0.25, 1, 0, 0, 0) + arc
    return header + struct.pack("<fq", inf, 1) + arc + struct.pack("<fq", 0.25, 0)


@pytest.mark.parametrize("content", [binary(), binary(states=-1), binary("const")])
def test_a_binary_file_needs_no_openfst(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "u.fst").write_bytes(content)
    assert Transducer.from_binary(tmp_path / "u.fst") == Transducer((Arc(0, 1, 0, 1, 0.5),), {1: 0.25})


@pytest.mark.parametrize("content", [binary(), binary(states=-1), binary("const")])
def test_whatever_byte_is_wrong_in_a_binary_file_it_is_read_or_refused(content: bytes, tmp_path: Path) -> None:
    """OpenFst itself aborts the process for some of these, hangs or allocates gigabytes for others."""
    path, generator = tmp_path / "u.fst", np.random.default_rng(0)
    damaged = [content[:n] for n in range(len(content))] + [content + b"\0"]
    for i in range(len(content)):
        for byte in (0, 255, int(generator.integers(256))):
            damaged.append(content[:i] + bytes([byte]) + content[i + 1 :])
            damaged.append(content[:i] + bytes([byte]) * 8 + content[i + 8 :])
    sentences = []
    for mutation in damaged:
        path.write_bytes(mutation)
        try:
            Transducer.from_binary(path)
        except ValueError as error:
            sentences.append(str(error))
    assert all(sentence.startswith(f"{path}: ") for sentence in sentences)
    assert len(content) < len(sentences) < len(damaged)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (binary()[:40], "ends at byte 40, before its properties"),
        (binary().replace(b"vector", b"editor"), "got a machine of type 'editor', but wanted vector or const"),
        (binary().replace(b"standard", b"gallicXY"), "got arcs of type 'gallicXY', but wanted standard, log, log64"),
        (binary(states=2**40), "says it has 1099511627776 states"),
        (binary().replace(struct.pack("<f", 0.5), struct.pack("<f", float("nan"))), "weight nan, but wanted a finite"),
        (binary().replace(struct.pack("<f", 0.25), struct.pack("<f", float("nan"))), "final state 1 has weight nan"),
        (binary().replace(struct.pack("<f", 0.25), struct.pack("<f", float("-inf"))), "final state 1 has weight -inf"),
    ],
)
def test_what_is_wrong_with_a_binary_file_is_said_with_its_name(content: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "u.fst").write_bytes(content)
    with pytest.raises(ValueError, match=rf"u\.fst: .*{sentence}"):
        sl.TropicalLoss(tmp_path / "u.fst")


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
        ("0 0 a a inf\n0", "line 1: got the weight inf, but wanted a finite number"),
        ("99999999999 0 a a\n0", "line 1: got state 99999999999, but wanted one below 2147483648"),
        ("0 0 a a\n0 nan", "line 2: got 'nan', but wanted a weight, which is a number or inf"),
        ("0 0 a a\n0 -inf", "line 2: got '-inf', but wanted a weight"),
        ("0 0 a a\n0 -Infinity", "line 2: got '-Infinity', but wanted a weight"),
        ("0 0 a a\n0 BadNumber", "line 2: got 'BadNumber', but wanted a weight"),
        ("0 0 a a nan\n0", "line 1: got 'nan', but wanted a weight"),
        ("0 0 a a -inf\n0", "line 1: got '-inf', but wanted a weight"),
        ("0 0 a a 1e999\n0", "line 1: got '1e999', but wanted a weight"),
        ("0 0 a a 1_0\n0", "line 1: got '1_0', but wanted a weight"),
        ("0 0 a a \u0661\n0", "line 1: got '\u0661', but wanted a weight"),
        ("0 1_0 a a\n1_0", "line 1: got '1_0', but wanted a state"),
        ("0 +1 a a\n1", r"line 1: got '\+1', but wanted a state"),
        ("0 -1 a a\n0", "line 1: got '-1', but wanted a state"),
        ("0 0 a a\n0 inf", "no final state"),
        ("0 0 a a\u2028\n0", r"got the symbol 'a\\u2028'"),
    ],
)
def test_a_bad_transducer_is_named(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        sl.TropicalLoss(text, symbols=["a", "b"])


def test_a_file_of_text_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "u.txt"
    for content, sentence in (
        (b"0 0 1 1\n0 \xff\n", r"u\.txt, line 2: is not UTF-8"),
        (b"0 0 1 1\n0 nan\n", r"u\.txt, line 2: got 'nan', but wanted a weight"),
        (b"0 0 1 1\n1\n", r"u\.txt: its final state 1 cannot be reached"),
        ("0 0 1 1\n0\n".encode("utf-16"), r"u\.txt, line 1: is UTF-16"),
    ):
        path.write_bytes(content)
        for kind in (sl.TropicalLoss, sl.RationalLoss):
            with (
                pytest.raises(DataError, match=sentence)
                if "cannot" not in sentence
                else pytest.raises(ValueError, match=sentence)
            ):
                kind(path)


@pytest.mark.parametrize("ends", ["\n", "\r\n", "\r"])
def test_every_line_end_and_a_byte_order_mark_are_read(ends: str, tmp_path: Path) -> None:
    text = "0 0 1 1 0.5\n0 1 2 2\n1 .25\n".replace("\n", ends)
    (tmp_path / "u.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    wanted = Transducer((Arc(0, 0, 0, 0, 0.5), Arc(0, 1, 1, 1, 0.0)), {1: 0.25})
    assert Transducer.from_text(text) == wanted == Transducer.from_text(tmp_path / "u.txt")


def test_a_final_weight_of_infinity_is_none_as_openfst_prints_it() -> None:
    loss = sl.TropicalLoss("0 1 1 1\n0 2 1 1\n1 0.5\n2 Infinity")
    assert loss([[0]], [[0]]).item() == 0.5
    assert Transducer.from_arcs([(0, 1, 0, 0), (0, 2, 0, 0)], {1: 0.0, 2: float("inf")}).final == {1: 0.0}
    with pytest.raises(ValueError, match="line 2: got the weight inf, but wanted a finite number"):
        sl.RationalLoss("0 0 1 1\n0 inf")
    with pytest.raises(ValueError, match="final state 0 has weight inf, but wanted a finite number"):
        Transducer.from_arcs([(0, 0, 0, 0)], {0: float("inf")}, semiring="real")


@pytest.mark.parametrize(
    ("arcs", "final", "start", "error", "sentence"),
    [
        ([(0, 0, 0, 0)], {0: float("nan")}, 0, ValueError, "final state 0 has weight nan, but wanted a finite number"),
        ([(0, 0, 0, 0)], {0: -float("inf")}, 0, ValueError, "final state 0 has weight -inf"),
        ([(0, 0, 0, 0, float("nan"))], [0], 0, ValueError, r"the arc \(0, 0, 0, 0, nan\) has weight nan"),
        ([(0, -1, 0, 0)], [-1], 0, ValueError, "got state -1, but wanted states of at least 0"),
        ([(0, 0, 0, 0)], [0], -3, ValueError, "got state -3, but wanted states of at least 0"),
        ([(0, 0, -1, 0)], [0], 0, ValueError, "has a label below 0"),
        ([(0, 0, 0)], [0], 0, ValueError, r"arcs: got \(0, 0, 0\), but wanted source, target, reads, writes"),
        ([(0, 0.5, 0, 0)], [0], 0, TypeError, r"arcs: got \(0, 0.5, 0, 0\), but wanted whole numbers"),
        ([(0, 0, "a", 0)], [0], 0, TypeError, r"arcs: got \(0, 0, 'a', 0\), but wanted whole numbers"),
        ([(0, 0, 0, 0, "x")], [0], 0, TypeError, r"arcs: got \(0, 0, 0, 0, 'x'\), but wanted whole numbers"),
    ],
)
def test_bad_arcs_are_named(arcs, final, start, error, sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        Transducer.from_arcs(arcs, final, start)


def test_the_numbers_of_states_are_names() -> None:
    far = Transducer.from_text("7 10000000 1 1\n7 7 2 2\n10000000 2000000000 0 3 2\n2000000000")
    near = Transducer.from_text("0 1 1 1\n0 0 2 2\n1 2 0 3 2\n2")
    assert far == near
    assert far.num_states == 3
    assert Transducer.from_arcs([(5, 10**12, 0, 0)], [10**12], start=5) == Transducer.from_arcs([(0, 1, 0, 0)], [1])
    with pytest.raises(ValueError, match=r"a loop through states \[10, 20\] reads and writes nothing"):
        Transducer.from_arcs([(10, 20, None, None), (20, 10, None, None), (10, 10, 0, 0)], [10], start=10)
    lattice = sl.Lattice.from_text("9 2000000000 1\n2000000000 4 2\n4")
    assert lattice.decode() == [[0, 1]]


class CountingArcs(tuple):
    """Arcs that count how often they are gone through."""

    passes = 0

    def __iter__(self):
        CountingArcs.passes += 1
        return super().__iter__()


def test_checks_go_through_the_arcs_a_fixed_number_of_times() -> None:
    passes = []
    for n in (10, 1000):
        CountingArcs.passes = 0
        arcs = CountingArcs(Arc(i, i + 1, None, None, 0.0) for i in range(n))
        assert Transducer(arcs, {n: 0.0}).checked().num_states == n + 1
        passes.append(CountingArcs.passes)
    assert passes[0] == passes[1]


def test_deep_transducers_and_lattices_do_not_recurse() -> None:
    n = 20_000
    chain = "\n".join(f"{i} {i + 1} 0 0" for i in range(n)) + f"\n{n}"
    assert Transducer.from_text(chain).silent_order() == list(range(n + 1))
    lattice = sl.Lattice.from_text("\n".join(f"{i} {i + 1} 0" for i in range(n)) + f"\n{n}")
    assert lattice.log_partition().tolist() == [0.0]
    assert sl.TropicalLoss(chain)([[]], [[]]).tolist() == [0.0]
    assert sl.RationalLoss(chain)([[]], [[]]).tolist() == [0.0]
    with pytest.raises(sl.TooManyStatesError, match="its 20001 states make 40002 positions against a reference of 1"):
        sl.RationalLoss(chain).automaton([0], 2, 2)


def test_numbers_are_openfsts_own() -> None:
    loss = sl.TropicalLoss("0 0 1 1\n0 0 2 2\n0 0 1 2 5\n0 0 0 1 7\n0")
    assert loss([[0, 1]], [[1, 1]]).item() == 5.0
    assert loss([[1]], [[0, 1]]).item() == 7.0
