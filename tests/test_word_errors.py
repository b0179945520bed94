"""WordErrors against an independent edit distance of lists of words, and what is particular to it."""

import itertools
import random

import numpy as np
import pytest
import torch
from rapidfuzz.distance import Levenshtein

import structloss as sl
from structloss.naming import loss_of

CHARACTERS = "abc "
PIECES = ["▁", "▁a", "▁ab", "a", "b", "ab", "▁b▁", "c", "▁abc"]
SIX_WORDS = ["a", "ab", "abc", "b", "ba", "c"]


def encoded(text: str, pick: random.Random) -> list[int]:
    """Pieces that spell these words, one segmentation of many."""
    text, labels = "".join("▁" + word for word in text.split()), []
    while text:
        fitting = [k for k, piece in enumerate(PIECES) if text.startswith(piece)]
        labels.append(pick.choice(fitting))
        text = text.removeprefix(PIECES[labels[-1]])
    return labels


def spelt(labels: list[int]) -> list[str]:
    return "".join(PIECES[k] for k in labels).replace("▁", " ").split()


def test_ten_thousand_random_strings_of_characters_and_of_pieces_have_the_distance_of_their_words() -> None:
    pick = random.Random(0)
    characters, pieces = sl.WordErrors(CHARACTERS), sl.WordErrors(PIECES)
    seen = set()
    for number in range(10_000):
        if number % 20 == 0:  # a machine for twenty answers
            reference = " ".join(pick.choices(SIX_WORDS, k=pick.randrange(7)))
            strings = [CHARACTERS.index(c) for c in reference], encoded(reference, pick)
            machines = characters.automaton(strings[0], 4), pieces.automaton(strings[1], len(PIECES))
        if number % 2:
            y = pick.choices(range(4), k=pick.randrange(16))
            loss, machine, string, words = (
                characters,
                machines[0],
                strings[0],
                "".join(CHARACTERS[k] for k in y).split(),
            )
        else:
            y = encoded(" ".join(pick.choices(SIX_WORDS, k=pick.randrange(7))), pick)
            y = y if number % 4 else pick.choices(range(len(PIECES)), k=pick.randrange(10))
            loss, machine, string, words = pieces, machines[1], strings[1], spelt(y)
        wanted = Levenshtein.distance(words, reference.split())
        assert loss.distance(np.array(y, np.int64), np.array(string, np.int64)) == wanted, (y, reference)
        assert machine.weight(y) == wanted, (y, reference)
        seen.add(wanted)
    assert seen >= set(range(8))


def test_it_does_not_matter_which_pieces_spell_a_word() -> None:
    loss = sl.WordErrors(PIECES)
    ways = [
        y for n in range(1, 5) for y in itertools.product(range(len(PIECES)), repeat=n) if spelt(y) == ["ab", "abc"]
    ]
    assert len(ways) > 20
    for y, r in itertools.product(ways, ways[:5]):
        assert loss([y], [r]).item() == 0.0
        assert loss.automaton(list(r), len(PIECES)).weight(y) == 0.0
    continued = ["ab", "##c", "##b", "a"]  # WordPiece marks what goes on instead
    loss = sl.WordErrors([p[2:] if p.startswith("##") else " " + p for p in continued])
    assert loss([[0, 1], [3, 2, 1], [3, 0]], [[3, 2, 1], [0, 1], [0, 1]]).tolist() == [0.0, 0.0, 2.0]


def test_separators_anywhere_make_no_words() -> None:
    loss = sl.WordErrors(CHARACTERS)
    a, b, space = 0, 1, 3
    for y in ([a, space, b], [space, a, space, space, b, space], [space] * 3 + [a] + [space] * 3 + [b]):
        assert loss([y], [[a, space, b]]).item() == 0.0
        assert loss.automaton(y, 4).weight([space, a, space, b, space]) == 0.0
    for empty in ([], [space], [space] * 3):
        assert loss([empty, [a, b], []], [[a, space, b], empty, empty]).tolist() == [2.0, 1.0, 0.0]


def test_errors_are_divided_by_the_words_or_labels_of_the_reference_and_by_one_where_there_are_none() -> None:
    rate, words = sl.EditDistance(normalize=True), sl.WordErrors(CHARACTERS, normalize=True)
    assert rate([[0, 1], [], [2]], [[0, 2, 1, 1], [1], []]).tolist() == [0.5, 1.0, 1.0]
    assert words([[0, 3, 1], [3], [2, 3, 1]], [[0, 3, 2, 3, 1, 3, 1], [1], [3, 3]]).tolist() == [0.5, 1.0, 2.0]
    capped = sl.EditDistance(cap=2, normalize=True)  # two errors and more are one and the same
    assert capped([[], [0]], [[0, 1, 2, 3], [0, 1, 2, 3]]).tolist() == [0.5, 0.5]
    total = 2 * rate + sl.EditDistance() * 0.5
    assert total([[0, 1]], [[0, 2, 1, 1]]).item() == 2.0
    assert total.automaton([0, 2, 1, 1], 3).weight([0, 1]) == pytest.approx(2.0)
    assert (-3 * rate).automaton([0, 2, 1, 1], 3, 2).weight([0, 1]) == pytest.approx(-1.5)
    assert loss_of("edit:normalize=true,cap=3").normalize
    assert (0 * sl.NGram(2, smoothing=0)).automaton([0, 1], 2).weight([1, 0]) == float("inf")


def test_a_vocabulary_of_thousands_has_as_many_classes_as_the_reference_needs() -> None:
    generator = np.random.default_rng(0)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    made = {
        mark + "".join(generator.choice(letters, n)) for mark in ("▁", "") for n in (1, 2, 3, 4) for _ in range(700)
    }
    pieces = sorted(made | {"▁th", "e", "▁the", "ca", "▁ca", "t", "▁c", "at"})
    number = {piece: k for k, piece in enumerate(pieces)}
    loss = sl.WordErrors(pieces, cap=3)
    machine = loss.automaton([number[p] for p in ("▁the", "▁ca", "t")], len(pieces))
    assert len(pieces) > 3000
    assert machine.next_state.shape[1] < 40
    assert machine.weight([number[p] for p in ("▁th", "e", "▁c", "at")]) == 0.0
    assert machine.weight([number[p] for p in ("▁th", "at", "▁c", "at")]) == 1.0


def test_the_machine_is_no_larger_than_that_of_the_edit_distance_over_labels() -> None:
    letters = "abcdefghijklmnopqrstuvwxyz "
    text = [letters.index(c) for c in "little then more where been two so these"]
    for cap in (2, 3, 4):
        ours, theirs = (
            loss.automaton(text, 27) for loss in (sl.WordErrors(letters, cap=cap), sl.EditDistance(cap=cap))
        )
        ours.explore()
        theirs.explore()
        assert ours.num_states < 1.1 * theirs.num_states


@pytest.mark.parametrize("spelling", ["etohirw ", ["▁the", "▁t", "he", "re", "e", "w", "▁wh", "▁o", "th", "▁", "er"]])
def test_hardly_any_state_does_what_another_one_does(spelling: str | list[str]) -> None:
    pick = random.Random(0)
    for _ in range(5):
        reference = pick.choices(range(len(spelling)), k=20)
        machine = sl.WordErrors(spelling, cap=3).open(np.array(reference, np.int64), len(spelling), True)
        machine.explore()
        following, which = (
            machine.next_state[: machine.num_states],
            np.unique(machine.final[: machine.num_states], return_inverse=True)[1],
        )
        count = 0
        while count < which.max() + 1:  # tell apart what leads to what is apart
            count = which.max() + 1
            which = np.unique(np.column_stack([which, which[following]]), axis=0, return_inverse=True)[1].reshape(-1)
        assert machine.num_states <= 1.25 * count + 3


@pytest.mark.parametrize("costs", [(1, 1, 1), (1.5, 0.7, 0.9)])
@pytest.mark.parametrize("cap", [None, 2])
def test_what_is_still_to_come_is_within_its_bounds(costs: tuple[float, float, float], cap: int | None) -> None:
    spelling = ["▁a", "b", "▁", "▁b▁a"]
    machine = sl.WordErrors(spelling, "▁", *costs, cap=cap).automaton([0, 3, 0, 1], 4)
    for begin in itertools.product(range(4), repeat=2):
        state, spent = np.zeros(1, np.int64), 0.0
        for label in begin:
            state, weight = machine.follow(state, machine.class_of[[label]])
            spent += weight[0]
        for length in range(4):
            left = [machine.weight((*begin, *end)) - spent for end in itertools.product(range(4), repeat=length)]
            least, most = machine.losses_to_go(state, length)
            assert least[0] - 1e-9 <= min(left) <= max(left) <= most[0] + 1e-9


def test_a_beam_is_certified() -> None:
    torch.manual_seed(0)
    chain = sl.Chain(torch.randn(1, 8, 4, dtype=torch.float64))
    loss, reference = sl.WordErrors(CHARACTERS, normalize=True), [[0, 3, 1, 3, 2, 0]]
    exact = chain.augment(loss, reference, 1.0).log_partition()
    for beam in (1, 4, 16, 1000):
        augmented = chain.augment(loss, reference, 1.0, beam=beam)
        error = -torch.expm1(augmented.log_partition() - exact)
        assert -1e-12 <= error.item() <= augmented.error_bound.item() + 1e-12
    assert augmented.error_bound.item() < 1e-12


def test_ctc_may_have_a_blank_that_spells_nothing() -> None:
    torch.manual_seed(0)
    loss, reference = sl.WordErrors("ab "), [[0, 2, 1]]
    scores = torch.randn(1, 5, 4, dtype=torch.float64)
    ctc, paths = sl.CTC(scores, blank=3), torch.tensor(list(itertools.product(range(4), repeat=5)))
    written = [[k for k, _ in itertools.groupby(path) if k < 3] for path in paths.tolist()]
    losses = torch.tensor([Levenshtein.distance("".join("ab "[k] for k in y).split(), ["a", "b"]) for y in written])
    weights = scores[0].gather(1, paths.T).sum(0).softmax(0)
    assert ctc.expected(loss, reference).item() == pytest.approx((weights * losses).sum().item())
    with pytest.raises(ValueError, match="spelling: got that of 3 labels, but there are labels up to 3"):
        loss([[3]], [[0]])
    with pytest.raises(ValueError, match="spelling: got 3 labels, but there are 5"):
        loss.automaton([0], 5)


def test_by_name_it_takes_the_names_of_the_labels() -> None:
    loss = loss_of("words:cap=3,normalize=true", ["▁a", "b"])
    assert (
        repr(loss) == "WordErrors(2 labels, boundary='▁', substitution=1.0, insertion=1.0, deletion=1.0, cap=3, "
        "normalize=True)"
    )
    assert "boundary=' '" in repr(loss_of("words", ["a", " "]))
    with pytest.raises(ValueError, match="the names of labels"):
        loss_of("words")


@pytest.mark.parametrize(
    ("make", "error", "sentence"),
    [
        (lambda: sl.WordErrors([]), ValueError, r"spelling: got no labels"),
        (lambda: sl.WordErrors([1, 2]), TypeError, r"spelling: got \[1, 2\], but wanted a string for each label"),
        (lambda: sl.WordErrors("ab", ""), ValueError, "boundary: got ''"),
        (lambda: sl.WordErrors("ab ", cap=-1), ValueError, "cap: got -1"),
        (lambda: sl.WordErrors("ab ")([[0]], [[0, -100, 1]]), TypeError, "reference: .*words that are known"),
        (lambda: sl.WordErrors("ab ").automaton([0, -100], 3), TypeError, "reference: .*words that are known"),
        (lambda: sl.WordErrors("ab ")([[0]], torch.ones(1, 1, 3) > 0), TypeError, "reference: .*sets"),
    ],
)
def test_what_has_no_meaning_is_refused(make, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        make()
