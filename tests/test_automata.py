"""Machines against the direct definitions they are written independently of."""

import gc
import itertools
import pickle
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import parasail
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rapidfuzz.distance import Levenshtein

import structloss as sl

COSTS = st.integers(0, 6).map(lambda x: x / 2)
THREE_COSTS = st.lists(COSTS, min_size=3, max_size=3)
STRING = st.lists(st.integers(0, 3), max_size=5)


def check_all_strings(loss, reference: list[int], num_labels: int, length: int) -> None:
    """Every string of the length: the machine's weight is the loss, whether it stands in arcs or in final weights.

    And whether the length is given or not.
    """
    string = np.array(reference, np.int64)
    for machine in (
        loss.automaton(reference, num_labels, length),
        loss.machine(string, num_labels, length, True),
        loss.automaton(reference, num_labels),
        loss.open(string, num_labels, True),
    ):
        for y in itertools.product(range(num_labels), repeat=length):
            wanted = loss.distance(np.array(y, np.int64), string)
            found = machine.weight(y)
            assert found == wanted or abs(found - wanted) < 1e-9, (loss, reference, y, found, wanted)


LOSSES = {
    "edit": sl.EditDistance(),
    "edit 1 3 2": sl.EditDistance(1, 3, 2),
    "edit 1.5 0.7 0.9": sl.EditDistance(1.5, 0.7, 0.9),
    "edit cap 0": sl.EditDistance(cap=0),
    "edit cap 2": sl.EditDistance(cap=2),
    "edit 1 3 2 cap 3": sl.EditDistance(1, 3, 2, cap=3),
    "edit matrix": sl.EditDistance(torch.rand(4, 4, generator=torch.Generator().manual_seed(0))),
    "edit threshold 0": sl.EditDistance(threshold=0),
    "edit threshold 2": sl.EditDistance(threshold=2),
    "edit 1.5 0.7 0.9 threshold 2.2, normalized": sl.EditDistance(1.5, 0.7, 0.9, threshold=2.2, normalize=True),
    "edit window 1": sl.EditDistance(window=1),
    "edit window 2": sl.EditDistance(window=2),
    "edit window 2, band 1": sl.EditDistance(window=2, band=1),
    "edit window 3, band 2": sl.EditDistance(window=3, band=2),
    "edit 1 0 2 window 2.5, band 1": sl.EditDistance(1, 0, 2, window=2.5, band=1),
    "edit 1.5 0.7 0.9 window 1.2": sl.EditDistance(1.5, 0.7, 0.9, window=1.2),
    "edit 1 3 2 window 3": sl.EditDistance(1, 3, 2, window=3),
    "edit window 2, normalized": sl.EditDistance(window=2, normalize=True),
    "edit matrix window": sl.EditDistance(torch.rand(4, 4, generator=torch.Generator().manual_seed(0)), window=0.8),
    "edit, normalized": sl.EditDistance(normalize=True),
    "edit 1 3 2 cap 3, normalized": sl.EditDistance(1, 3, 2, cap=3, normalize=True),
    "words": sl.WordErrors("ab c"),
    "words 1.5 0.7 0.9": sl.WordErrors(["a", "ab", " ", "b"], " ", 1.5, 0.7, 0.9),
    "words cap 1, normalized": sl.WordErrors(["▁", "▁a", "b", "▁b▁a▁"], cap=1, normalize=True),
    "words of pieces that end": sl.WordErrors(["a", "b</w>", "</w>a", ""], "</w>", cap=2),
    "smith-waterman": sl.SmithWaterman(),
    "smith-waterman cap 3": sl.SmithWaterman(cap=3),
    "smith-waterman threshold 3": sl.SmithWaterman(threshold=3),
    "smith-waterman other": sl.SmithWaterman(match=-1, substitution=0.5, insertion=0.3, deletion=0.7),
    "smith-waterman matrix": sl.SmithWaterman(
        substitution=torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).fill_diagonal_(-2), cap=4
    ),
    "affine edit": sl.EditDistance(gap_open=2, gap_extend=0.5),
    "affine edit cap 3": sl.EditDistance(1.5, gap_open=1.25, gap_extend=1, cap=3),
    "affine edit matrix": sl.EditDistance(
        torch.rand(4, 4, generator=torch.Generator().manual_seed(2)), gap_open=0.7, gap_extend=0.2
    ),
    "affine edit threshold 3": sl.EditDistance(1.5, gap_open=1.25, gap_extend=1, threshold=3),
    "affine smith-waterman": sl.SmithWaterman(gap_open=1.5, gap_extend=0.25),
    "affine smith-waterman cap 3": sl.SmithWaterman(gap_open=1.5, gap_extend=0.25, cap=3),
    "affine smith-waterman matrix": sl.SmithWaterman(
        substitution=torch.randn(4, 4, generator=torch.Generator().manual_seed(1)).fill_diagonal_(-2),
        gap_open=0.5,
        gap_extend=0.5,
    ),
    "unigram": sl.NGram(1),
    "bigram": sl.NGram(2),
    "trigram": sl.NGram(3, smoothing=0.5),
    "bigram as in the paper": sl.NGram(2, smoothing=0),
    "unigram, linear": sl.NGram(1, log=False),
    "bigram, linear": sl.NGram(2, log=False),
    "trigram, linear": sl.NGram(3, log=False),
    "chunk errors": sl.ChunkErrors(["O", "B-A", "I-A", "B-B"], 1.5, 0.5),
    "chunk f1": sl.ChunkF1(["I-A", "E-A", "O", "B-A"]),
}


@pytest.mark.parametrize("name", LOSSES)
def test_every_string_up_to_length_five_over_three_symbols(name: str) -> None:
    generator = np.random.default_rng(0)
    for size in range(6):
        reference = generator.integers(0, 4, size).tolist()  # symbol 3 is in no string
        for length in range(6):
            check_all_strings(LOSSES[name], reference, 3, length)


@settings(deadline=None, max_examples=60)
@given(STRING, st.integers(0, 4), COSTS, COSTS, COSTS, st.none() | COSTS)
def test_edit_distance_with_any_costs(reference, length, substitution, insertion, deletion, cap) -> None:
    check_all_strings(sl.EditDistance(substitution, insertion, deletion, cap), reference, 3, length)


@settings(deadline=None, max_examples=60)
@given(STRING, st.integers(0, 4), COSTS, COSTS, COSTS, st.floats(0.25, 4))
def test_edit_distance_with_any_costs_and_window(reference, length, substitution, insertion, deletion, window) -> None:
    check_all_strings(sl.EditDistance(substitution, insertion, deletion, window=window), reference, 3, length)


@settings(deadline=None, max_examples=60)
@given(STRING, st.integers(0, 4), COSTS, COSTS, COSTS, COSTS, st.booleans())
def test_a_threshold_with_any_costs(reference, length, substitution, insertion, deletion, threshold, local) -> None:
    kind = sl.SmithWaterman if local else sl.EditDistance
    costs = {"substitution": substitution, "insertion": insertion, "deletion": deletion}
    check_all_strings(kind(**costs, threshold=threshold), reference, 3, length)


def test_the_linear_ngram_loss_is_a_small_machine() -> None:
    reference = np.random.default_rng(0).integers(0, 10, 40)
    linear, logarithm = (sl.NGram(2, log=log).automaton(reference, 10, 40) for log in (False, True))
    assert linear.sizes.max() <= 11  # the last label, or none that matters
    assert logarithm.sizes.max() > 100  # and how many bigrams so far
    machine = sl.NGram(2, log=False).automaton([0, 1, 0, 1], 3)
    rests = [[machine.weight((0, *y)) - machine.weight((0,)) for y in itertools.product(range(3), repeat=3)]]
    state, _ = machine.follow(np.zeros(1, np.int64), machine.class_of[:1])
    assert [x.tolist() for x in machine.losses_to_go(state, 3)] == [[min(rests[0])], [max(rests[0])]]
    assert repr(sl.NGram(2, log=False)) == "NGram(n=2, log=False)"
    with pytest.raises(ValueError, match="smoothing: got 0 beside log=False, but only a logarithm wants it"):
        sl.NGram(2, smoothing=0, log=False)


def test_a_threshold_leaves_out_what_a_cap_keeps() -> None:
    exact, capped, pruned = sl.EditDistance(), sl.EditDistance(cap=2), sl.EditDistance(threshold=2)
    reference, states = [0, 1, 2, 1], []
    for y in itertools.product(range(3), repeat=4):
        value = exact.distance(np.array(y), np.array(reference))
        assert pruned.distance(np.array(y), np.array(reference)) == (value if value <= 2 else np.inf)
    for loss in (capped, pruned):
        states.append(loss.automaton(reference, 3, 4).num_states)
    assert states[1] <= 2 * states[0]
    with pytest.raises(ValueError, match="threshold: got 2 beside cap=3, but wanted one of the two"):
        sl.EditDistance(cap=3, threshold=2)
    with pytest.raises(ValueError, match="window: got 3 and threshold=2, but wanted one of the two"):
        sl.EditDistance(window=3, threshold=2)
    with pytest.raises(ValueError, match="threshold: got -1, but wanted a finite number of at least 0, or None"):
        sl.SmithWaterman(threshold=-1)


def test_a_window_is_at_least_the_edit_distance_and_a_wide_one_equals_it() -> None:
    generator = np.random.default_rng(0)
    exact, narrow, wide = sl.EditDistance(), sl.EditDistance(window=2), sl.EditDistance(window=21)
    differ = 0
    for _ in range(500):
        y, reference = (generator.integers(0, 4, generator.integers(0, 11)) for _ in range(2))
        least = exact.distance(y, reference)
        assert wide.distance(y, reference) == least
        assert narrow.distance(y, reference) >= least
        differ += narrow.distance(y, reference) > least
    assert 0 < differ < 400


def test_a_band_keeps_the_machine_of_a_window_small_and_equals_it_where_alignments_stay_near() -> None:
    generator = np.random.default_rng(0)
    window, near, wide = (
        sl.EditDistance(window=3),
        sl.EditDistance(window=3, band=4),
        sl.EditDistance(window=3, band=40),
    )
    machine = near.automaton(range(13), 40)
    machine.explore()
    assert machine.num_states < 13_000
    for _ in range(200):
        y, r = (generator.integers(0, 3, generator.integers(0, 9)).tolist() for _ in range(2))
        exact = sl.EditDistance()([y], [r])
        assert window([y], [r]) == wide([y], [r])
        assert exact <= near([y], [r])
        assert near([y], [r]) == window([y], [r]) or exact > 4
    far, kept = (sl.EditDistance(window=7, band=band)([list(range(5, 13))], [list(range(13))]) for band in (None, 4))
    assert kept > far == 5


def test_a_small_window_is_a_small_machine_and_a_wrong_one_an_error() -> None:
    generator = np.random.default_rng(0)
    machine = sl.EditDistance(window=1).automaton(generator.integers(0, 40, 13), 40, 20)
    assert machine.sizes.max() < 300
    with pytest.raises(ValueError, match="window: got 3 and cap=5, but wanted one of the two"):
        sl.EditDistance(cap=5, window=3)
    with pytest.raises(ValueError, match="band: got 2 without a window, but wanted both"):
        sl.EditDistance(cap=5, band=2)
    with pytest.raises(ValueError, match="band: got 0, but wanted a whole number of at least 1"):
        sl.EditDistance(window=3, band=0)
    with pytest.raises(ValueError, match="window: got 0, but wanted a finite number above 0"):
        sl.EditDistance(window=0)
    with pytest.raises(ValueError, match="window: got substitution costs below 0"):
        sl.EditDistance(-torch.eye(3), window=2)


@settings(deadline=None, max_examples=60)
@given(STRING, st.integers(0, 4), COSTS, COSTS, COSTS, COSTS, st.none() | COSTS)
def test_smith_waterman_with_any_costs(reference, length, match, substitution, insertion, deletion, cap) -> None:
    check_all_strings(sl.SmithWaterman(-match, substitution, insertion, deletion, cap), reference, 3, length)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 2), max_size=5), st.lists(st.lists(COSTS, min_size=3, max_size=3), min_size=3, max_size=3)
)
def test_hamming_with_any_costs(reference, costs) -> None:
    loss = sl.Hamming(torch.tensor(costs, dtype=torch.float64))
    for machine in (
        loss.automaton(reference, 3),
        loss.automaton(reference, 3, len(reference)),
        loss.open(np.array(reference, np.int64), 3, absolute=True),
        loss.machine(np.array(reference, np.int64), 3, len(reference), absolute=True),
    ):
        for y in itertools.product(range(3), repeat=len(reference)):
            assert machine.weight(y) == pytest.approx(loss([list(y)], [reference]).item(), abs=1e-6)


def test_losses_add_up() -> None:
    parts = (sl.EditDistance(), sl.NGram(2), sl.SmithWaterman(cap=2))
    total = 0.5 * parts[0] + parts[1] * 2 + parts[2]
    assert repr(total).count("*") == 3
    reference, string = [0, 2, 1], np.array([0, 2, 1])
    for y in itertools.product(range(3), repeat=3):
        y = np.array(y)
        wanted = 0.5 * parts[0].distance(y, string) + 2 * parts[1].distance(y, string) + parts[2].distance(y, string)
        assert total.distance(y, string) == pytest.approx(wanted)
    for length in range(6):
        check_all_strings(total, reference, 3, length)
        check_all_strings(-1.5 * sl.EditDistance(cap=2), reference, 3, length)
    check_all_strings(sl.Hamming() + 0.5 * sl.EditDistance(), reference, 3, 3)
    with pytest.raises(TypeError, match="unsupported operand"):
        sl.EditDistance() + 3


def test_pictures_show_every_state_and_loss(tmp_path) -> None:
    machine = sl.EditDistance(cap=2).automaton([0, 1, 2], 4, 3)
    text = machine.draw(tmp_path / "machine.svg", symbols="abcd")
    assert (tmp_path / "machine.svg").read_text().lstrip().startswith("<?xml")
    assert text.count("doublecircle") == machine.sizes[-1]
    assert '"any"' in text
    assert list(tmp_path.iterdir()) == [tmp_path / "machine.svg"]
    with pytest.raises(ValueError, match="more than 400"):
        sl.EditDistance().automaton(list(range(10)), 10, 10).draw()


def test_all_states_of_a_machine_for_strings_of_any_length() -> None:
    """With a cap they are few, and linear in the reference; beyond the cap all strings are one state."""
    generator = np.random.default_rng(0)
    counts = []
    for length in (20, 40, 80):
        machine = sl.EditDistance(cap=3).automaton(generator.integers(0, 10, length), 10)
        machine.explore()
        counts.append(machine.num_states)
        assert machine.num_arcs == machine.num_states * len(np.unique(machine.class_of))
        assert machine.weight([1] * 500) == 3.0
    assert counts[2] - counts[1] == pytest.approx(2 * (counts[1] - counts[0]), rel=0.2)
    machine = sl.EditDistance().automaton([0, 1, 2, 1], 3)  # finite without a cap, too: only differences of costs count
    machine.explore()
    assert machine.weight([2] * 300) == 299.0
    machine = sl.NGram(1).automaton([0, 1], 2)  # infinite
    machine.explore(depth=5)
    assert machine.num_states == 6  # totals 0 to 5


STRINGS = st.lists(st.lists(st.integers(0, 2), max_size=2).map(tuple), min_size=1, max_size=4).map(tuple)


@settings(max_examples=60)
@given(st.sampled_from(sorted(LOSSES)), STRING, STRINGS, st.integers(0, 4))
def test_machines_of_what_symbols_write(name, reference, strings, length) -> None:
    loss, string = LOSSES[name], np.array(reference, np.int64)
    for absolute in (False, True):
        machine = loss.written(string, 3, strings, length, absolute)
        assert machine.is_absolute or not absolute
        for symbols in itertools.product(range(len(strings)), repeat=length):
            y = [label for k in symbols for label in strings[k]]
            wanted, found = loss.distance(np.array(y, np.int64), string), machine.weight(symbols)
            assert found == wanted or abs(found - wanted) < 1e-9, (symbols, found, wanted)


def test_one_label_only() -> None:
    for loss in LOSSES.values():
        for length in range(4):
            check_all_strings(loss, [0, 0, 0], 1, length)


def test_rapidfuzz_agrees_on_ten_thousand_pairs() -> None:
    generator = np.random.default_rng(0)
    unit, other = sl.EditDistance(), sl.EditDistance(substitution=2, insertion=1, deletion=3)
    for _ in range(5_000):
        y, r = (generator.integers(0, 5, generator.integers(0, 20)) for _ in range(2))
        assert unit.distance(y, r) == Levenshtein.distance(r.tolist(), y.tolist())
        assert other.distance(y, r) == Levenshtein.distance(r.tolist(), y.tolist(), weights=(1, 3, 2))


def test_parasail_agrees_on_ten_thousand_pairs() -> None:
    generator = np.random.default_rng(1)
    alphabet = "ACGTN"
    matrix = parasail.matrix_create(alphabet, 2, -1)
    loss = sl.SmithWaterman()
    for _ in range(10_000):
        y, r = (generator.integers(0, 5, generator.integers(1, 20)) for _ in range(2))
        strings = ("".join(alphabet[i] for i in x) for x in (y, r))
        assert loss.distance(y, r) == -parasail.sw(*strings, 1, 1, matrix).score


def test_parasail_agrees_on_ten_thousand_pairs_with_affine_gaps() -> None:
    generator = np.random.default_rng(2)
    alphabet = "ACGTN"
    scores = generator.integers(-4, 1, (5, 5))
    scores = np.minimum(scores, scores.T)
    np.fill_diagonal(scores, generator.integers(2, 6, 5))
    matrix = parasail.matrix_create(alphabet, 1, -1)
    for i, j in np.ndindex(5, 5):
        matrix[i, j] = scores[i, j]
    for n in range(10_000):
        opens = int(generator.integers(1, 8))
        extends = int(generator.integers(1, opens + 1))
        costs = torch.from_numpy(-scores).double()
        loss = (sl.SmithWaterman if n % 5 else sl.EditDistance)(substitution=costs, gap_open=opens, gap_extend=extends)
        y, r = (generator.integers(0, 5, generator.integers(1, 20)) for _ in range(2))
        strings = ["".join(alphabet[i] for i in x) for x in (y, r)]
        search = parasail.sw if n % 5 else parasail.nw
        assert loss.distance(y, r) == -search(*strings, opens, extends, matrix).score
        assert cost_of(loss.align([y], [r])[0].tolist(), y, r, -scores, opens, extends, n % 5 > 0) == loss.distance(
            y, r
        )


def cost_of(partners, y, r, costs, opens: float, extends: float, local: bool) -> float:
    """What an alignment costs, gap after gap."""
    pairs = [(i, j) for i, j in enumerate(partners) if j >= 0]
    total = float(sum(costs[r[j], y[i]] for i, j in pairs))
    for (i, j), (k, m) in itertools.pairwise(pairs if local else [(-1, -1), *pairs, (len(y), len(r))]):
        total += sum(opens + (gap - 1) * extends for gap in (k - i - 1, m - j - 1) if gap)
    return total


def test_aligned_labels_are_the_lexicographically_smallest_of_least_cost() -> None:
    loss = sl.EditDistance()
    assert loss.align([[0, 0], []], [[0], [1, 2]]).tolist() == [[-1, 0], [-1, -1]]
    assert loss.align([[0, 1]], [[-100, 1]]).tolist() == [[0, 1]]
    assert sl.SmithWaterman().align([[0]], [[1]]).tolist() == [[-1]]
    with pytest.raises(ValueError, match=r"y: got .*but wanted labels of at least 0"):
        loss.align([[0, -100]], [[0, 1]])


def test_affine_gaps_are_given_together_and_instead_of_linear_ones() -> None:
    for settings_, sentence in (
        ({"gap_open": 2}, "gap_extend: got None beside gap_open=2, but wanted both"),
        ({"gap_open": 1, "gap_extend": 2}, "gap_extend: got 2, but wanted at most gap_open"),
        ({"gap_open": 2, "gap_extend": 1, "deletion": 3}, "gap_open: got 2 beside insertion=1.0, deletion=3"),
        ({"gap_open": -2, "gap_extend": -3}, "gap_open: got -2"),
    ):
        with pytest.raises(ValueError, match=sentence):
            sl.EditDistance(**settings_)
    affine, linear = sl.EditDistance(gap_open=0.7, gap_extend=0.7), sl.EditDistance(1.0, 0.7, 0.7)
    for y in itertools.product(range(2), repeat=4):
        assert affine([y], [[0, 1, 1]]).item() == pytest.approx(linear([y], [[0, 1, 1]]).item())
    assert "gap_open=0.7, gap_extend=0.7" in repr(affine)


def test_state_counts_are_those_of_the_design() -> None:
    """The means over ten random references of twelve symbols (ten for Smith-Waterman), at most 1.2 times as many."""
    generator = np.random.default_rng(0)

    def mean(loss, length: int) -> float:
        references = [generator.integers(0, 10, length) for _ in range(10)]
        return float(np.mean([loss.automaton(r, 10, length).num_states for r in references]))

    assert mean(sl.EditDistance(), 12) <= 1.2 * 5142
    assert mean(sl.EditDistance(1, 3, 2), 12) <= 1.2 * 346
    assert mean(sl.SmithWaterman(), 10) <= 1.2 * 17109


def test_a_cap_makes_the_machine_linear_in_the_length() -> None:
    generator = np.random.default_rng(0)
    for cap, most in ((2, 3), (3, 9), (4, 18), (5, 48)):
        for length in (50, 400):
            machine = sl.EditDistance(cap=cap).automaton(generator.integers(0, 10, length), 10, length)
            assert machine.sizes.max() <= most
            assert machine.num_arcs == machine.offsets[-2] * machine.next_state.shape[1]


@pytest.fixture
def cache() -> Iterator[None]:
    """Nothing kept from before, and the bound as it was after."""
    sl.clear_cache()
    yield
    sl.set_cache_limit(2**30)
    sl.clear_cache()


@pytest.mark.usefixtures("cache")
def test_machines_are_compiled_once_and_forgotten_in_order() -> None:
    loss = sl.EditDistance(cap=2)
    first = loss.automaton([0, 1, 2], 4, 3)
    assert loss.automaton([0, 1, 2], 4, 3) is first
    assert loss.automaton([0, 1, 2], 5, 3) is not first
    sl.set_cache_limit(sl.cache_info().num_bytes)
    for i in range(4):
        loss.automaton([i, 1, 2], 4, 3)
    assert sl.cache_info().machines == 2
    assert sl.cache_info().num_bytes <= sl.cache_info().limit
    assert loss.automaton([0, 1, 2], 4, 3) is not first


@pytest.mark.usefixtures("cache")
def test_all_losses_share_one_bound_and_take_their_machines_along() -> None:
    losses = [sl.EditDistance(cap=cap) for cap in range(1, 6)]
    machines = [loss.automaton([0, 1, 2], 4, 3) for loss in losses]
    assert sl.cache_info().machines == len(machines)
    sl.set_cache_limit(sl.cache_info().num_bytes // 2)
    assert 0 < sl.cache_info().machines < len(machines)
    del losses
    gc.collect()
    assert sl.cache_info()[:2] == (0, 0)
    sl.set_cache_limit(0)
    assert sl.EditDistance().automaton([0, 1, 2], 4, 3).weight([0, 1, 2]) == 0.0
    assert sl.cache_info().machines == 0
    with pytest.raises(ValueError, match="num_bytes: got -1"):
        sl.set_cache_limit(-1)


@pytest.mark.usefixtures("cache")
def test_a_machine_that_grew_counts_as_what_it_is() -> None:
    loss = sl.EditDistance()
    machine = loss.automaton([0, 1, 2, 0, 1, 2], 4)
    before, size = sl.cache_info().num_bytes, machine.num_bytes
    machine.explore(8)
    assert loss.automaton([0, 1, 2, 0, 1, 2], 4) is machine
    assert sl.cache_info().num_bytes - before == machine.num_bytes - size > 0


def test_a_machine_holds_no_more_than_it_counts() -> None:
    for loss in (sl.EditDistance(cap=3), sl.SmithWaterman(cap=4), sl.NGram(2), sl.EditDistance(cap=3) + sl.NGram(2)):
        machine = loss.automaton([0, 1, 2, 3, 4, 0, 1], 10, 7)
        for array in (machine.next_state, machine.weights, machine.final, machine.offsets):
            assert array.base is None


def test_what_a_machine_takes_does_not_grow_with_the_labels_that_do_not_occur() -> None:
    few, many = (sl.EditDistance(cap=2).automaton([0, 1, 2], K, 3) for K in (10, 100_000))
    assert many.num_bytes - few.num_bytes == 8 * (100_000 - 10)
    hamming = sl.Hamming().automaton([0, 1, 2], 1_000_000, 3)
    assert hamming.next_state.shape[1] == 4
    assert hamming.weight([0, 999_999, 2]) == 1.0
    with pytest.raises(ValueError, match="num_labels: got 1099511627776, but wanted 1 to"):
        sl.EditDistance().automaton([0], 2**40)


def test_a_loss_can_be_pickled_for_a_worker_process() -> None:
    loss = sl.EditDistance(cap=2)
    loss.automaton([0, 1], 3)
    again = pickle.loads(pickle.dumps(loss))
    assert repr(again) == repr(loss)
    assert again.automaton([0, 1], 3).weight([1, 1]) == 1.0


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"y: got 1 labels.*length 2"):
        sl.EditDistance().automaton([0, 1], 3, 2).weight([0])
    with pytest.raises(ValueError, match=r"reference: got \[0, -1\]"):
        sl.EditDistance().automaton([0, -1], 3)
    with pytest.raises(ValueError, match="num_labels: got 0"):
        sl.NGram().automaton([0], 0)
    with pytest.raises(ValueError, match="length: got -1"):
        sl.NGram().automaton([0], 3, -1)
    with pytest.raises(ValueError, match="substitution: got costs for 2 labels"):
        sl.EditDistance(torch.zeros(2, 2)).automaton([0, 1], 3)
    with pytest.raises(ValueError, match=r"length: got 3.*strings of one length, here 2"):
        sl.Hamming().automaton([0, 1], 3, 3)
    with pytest.raises(sl.TooManyStatesError, match="smaller n"):
        sl.NGram(2, max_states=10).automaton(list(range(8)), 8, 8)
    with pytest.raises(sl.TooManyStatesError, match="strings of any length passed 10 states"):
        sl.EditDistance(max_states=10).automaton(list(range(8)), 8).explore()


@pytest.mark.parametrize("loss", [sl.NGram(2), sl.EditDistance()])
def test_several_threads_explore_a_machine_at_once(loss: sl.MachineLoss) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            sl.clear_cache()
            machine = loss.automaton([0, 1, 1, 0, 1], num_labels=2)
            with ThreadPoolExecutor(8) as pool:
                for following, final in pool.map(machine.explored, range(1, 9)):
                    assert len(following) == len(final)
                    assert following.max() < len(final)
    finally:
        sys.setswitchinterval(interval)
