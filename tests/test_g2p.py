"""Letters to sounds: files, the inventory of strings, and models that train and come back."""

import itertools
import math
import random
import unicodedata
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from structloss.naming import objective_of
from structloss.tasks import TASKS
from structloss.tasks.g2p import inventory as cuts
from structloss.tasks.g2p import spelling
from structloss.tasks.g2p.inventory import inventory
from structloss.tasks.g2p.network import BothWays
from structloss.tasks.g2p.spelling import choose
from structloss.training.directory import load, save
from structloss.training.task import DataError, Example, check_answers, nbest_answers, predict, written_marginals

G2P = TASKS["g2p"]
SOUNDS = {"a": "A", "b": "B", "s": "S", "h": "", "x": "K S", "e": "E"}


def spoken(word: str) -> tuple[str, ...]:
    """A toy language: sh is one phone, x is two, h alone is silent, and e is silent at the end."""
    phones: list[str] = []
    for i, letter in enumerate(word):
        if letter == "s" and word[i + 1 : i + 2] == "h":
            phones.append("SH")
        elif not (letter == "e" and i + 1 == len(word)):
            phones.extend(SOUNDS[letter].split())
    return tuple(phones)


def made(count: int, seed: int) -> list[Example]:
    generator = random.Random(seed)
    words: list[str] = []
    while len(words) < count:
        word = "".join(generator.choice("abshxe") for _ in range(generator.randint(1, 7)))
        if spoken(word):
            words.append(word)
    return [Example(tuple(word), spoken(word), word, f"made, line {i + 1}") for i, word in enumerate(words)]


pytestmark = pytest.mark.usefixtures("one_thread")


def test_reading_and_writing(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("shax\tSH A K S\n\nabe\tA B \n", encoding="utf-8")
    first, second = G2P.read(tmp_path / "a.tsv")
    assert (first.x, first.y) == (tuple("shax"), ("SH", "A", "K", "S"))
    assert second.where == f"{tmp_path / 'a.tsv'}, line 3"
    assert list(G2P.write(second, ("A", "B"))) == ["abe\tA B"]
    (tmp_path / "words.txt").write_text("shax\nabe\n")
    assert [example.y for example in G2P.read(tmp_path / "words.txt")] == [(), ()]


LETTERS = st.text("aZ'-#.\u00a0\u2028\u0085\u200d\u0301\u05e9\u0915\u094d\x0b\x1c", min_size=1, max_size=5)


@given(st.lists(st.tuples(LETTERS, st.lists(LETTERS, min_size=1, max_size=3)), min_size=1, max_size=4))
def test_words_and_phones_come_back_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, made: list[tuple[str, list[str]]]
) -> None:
    lines = [f"{word}\t{' '.join(phones)}" for word, phones in made]
    path = tmp_path_factory.mktemp("words") / "a.tsv"
    for ends in ("\n", "\r\n", "\r"):
        path.write_bytes(("".join(line + ends for line in lines)).encode())
        examples = G2P.read(path)
        assert [(example.x, example.y) for example in examples] == [(tuple(w), tuple(p)) for w, p in made]
        assert [line for example in examples for line in G2P.write(example, example.y)] == lines


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "line 1: got no word at all"),
        (b"a\tA\nb\n", "line 2: got 1 columns, but wanted a word, a tab and its phones"),
        (b"a\nb\tB\n", "line 2: got 2 columns, but wanted a bare word as in line 1"),
        (b"a\tA\tB\n", "line 1: got 3 columns, but wanted a word, a tab and its phones"),
        (b"a\tA\n\tB\n", "line 2: got no word before the tab"),
        (b"a\tA\nb\t \n", "line 2: got no phones for 'b'"),
        (b"a\tA\n\xff\tB\n", "line 2: is not UTF-8"),
        (b"a" * 300 + b"\tA\n", "line 1: got a word of 300 letters"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "a.tsv").write_bytes(content)
    with pytest.raises(DataError, match=sentence):
        G2P.read(tmp_path / "a.tsv")


def test_the_inventory_has_what_letters_write() -> None:
    examples = made(300, 0)
    found, counts = inventory([(example.x, example.y) for example in examples])
    assert set(found) == {(), ("A",), ("B",), ("S",), ("SH",), ("E",), ("K", "S")}
    assert {string for _, string in counts} == set(found)
    letters = sum(len(example.x) for example in examples)
    assert sum(counts.values()) == pytest.approx(letters, rel=1e-3)  # each writes one string


def test_networks_begin_with_what_letters_write_without_context() -> None:
    """So that they agree on who writes what where letters sound together, as s and h do."""
    examples = [example for example in made(300, 0) if not set(example.x) & set("she")]
    torch.manual_seed(0)
    model = G2P.build(G2P.configure(examples, {**G2P.settings, "networks": 2}))
    assert predict(model, examples) == [example.y for example in examples]


def test_a_long_word_with_few_phones_is_cut_too() -> None:
    """Its probability is 0 in floating point."""
    pairs = [("ab", ("A", "B")), ("ab" * 128, ("A",)), ("a" * 3, tuple("B" * 30))]
    strings = set(inventory(pairs)[0])
    assert () in strings
    assert all(cuts._can_write(len(letters), phones, strings) for letters, phones in pairs)


words = st.lists(
    st.tuples(st.text("abc", min_size=1, max_size=4), st.lists(st.sampled_from("ABC"), max_size=6).map(tuple)),
    min_size=1,
    max_size=8,
)


@given(words, st.integers(1, 3), st.integers(1, 3))
def test_every_word_can_be_written_from_the_inventory(
    pairs: list[tuple[str, tuple[str, ...]]], longest: int, min_count: int
) -> None:
    strings = set(inventory(pairs, longest, min_count, rounds=2)[0])
    for letters, phones in pairs:
        sums = {()}
        for _ in letters:
            sums = {(*a, *b) for a in sums for b in strings if (*a, *b) == phones[: len(a) + len(b)]}
        assert phones in sums


@given(st.text("ab", min_size=1, max_size=4), st.lists(st.sampled_from("AB"), max_size=5), st.integers(0, 10**6))
def test_expected_counts_and_the_best_cut_are_those_of_enumeration(letters: str, phones: list[str], seed: int) -> None:
    span = max(2, -(-len(phones) // len(letters)))
    generator, string = random.Random(seed), tuple(phones)
    probability = {
        (letter, tuple(s)): generator.random()
        for letter in "ab"
        for n in range(span + 1)
        for s in itertools.product("AB", repeat=n)
    }
    total, counts, best = 0.0, {}, 0.0
    for sizes in itertools.product(range(span + 1), repeat=len(letters)):
        if sum(sizes) != len(string):
            continue
        ends = list(itertools.accumulate(sizes, initial=0))
        cut = [string[i:j] for i, j in itertools.pairwise(ends)]
        weight = math.prod(probability[pair] for pair in zip(letters, cut, strict=True))
        total, best = total + weight, max(best, weight)
        for pair in zip(letters, cut, strict=True):
            counts[pair] = counts.get(pair, 0.0) + weight
    found = cuts._expected(letters, string, span, probability)
    assert dict(found) == pytest.approx({pair: count / total for pair, count in counts.items()})
    cut = cuts._best(letters, string, span, probability)
    assert math.prod(probability[pair] for pair in zip(letters, cut, strict=True)) == pytest.approx(best)


@pytest.mark.parametrize(("model", "order"), [("bilstm", 2), ("transformer", 1)])
def test_a_model_learns_the_toy_language_and_comes_back(model: str, order: int, tmp_path: Path) -> None:
    examples, held = made(400, 1), made(100, 2)
    settings = {**G2P.settings, "model": model, "order": order, "width": 32, "layers": 1, "dropout": 0.0}
    torch.manual_seed(0)
    trained = G2P.build(G2P.configure(examples, settings))
    objective = objective_of("softmax-margin", G2P.loss)
    (optimizer,) = trained.optimizers(0.01, 0.0, len(examples))
    trained.train()
    for _ in range(6):
        for i in range(0, len(examples), 20):
            batch = examples[i : i + 20]
            optimizer.zero_grad()
            value = objective(
                trained.structure([trained.encode(e) for e in batch]), [trained.reference(e) for e in batch]
            )
            value.backward()
            optimizer.step()
    metrics = G2P.evaluate(held, predict(trained, held))
    assert metrics["wer"] < 0.1
    save(tmp_path / "model", G2P, trained, metrics)
    _, again = load(tmp_path / "model", TASKS)
    assert predict(again, held) == predict(trained, held)
    best = nbest_answers(again, held[:5], 3)
    assert all(sum(answer.probability for answer in answers) <= 1 + 1e-5 for answers in best)
    rows = written_marginals(again, held[:5])
    assert [len(row) for row in rows] == [len(example.x) for example in held[:5]]
    silent = next(i for i, example in enumerate(held) if example.source.endswith("e") and len(example.source) > 2)
    assert written_marginals(again, held[silent : silent + 1])[0][-1].startswith("-:")


def test_few_words_are_read_more_often_and_in_longer_steps() -> None:
    few, middle, many, most = (G2P.defaults({**G2P.settings, "words": n}) for n in (10, 800, 8000, 10**6))
    assert (few.lr, few.epochs) == (0.006, 200)
    assert (middle.lr, middle.epochs, middle.patience) == (0.006, 60, 40)
    assert (many.lr, many.epochs) == (most.lr, most.epochs) == (0.002, 30)


def learned(examples: list[Example], held: list[Example], epochs: int) -> dict[str, float]:
    """The metrics of a small model with the default settings otherwise, on held-out words."""
    torch.manual_seed(0)
    model = G2P.build(G2P.configure(examples, {**G2P.settings, "networks": 2, "width": 32, "layers": 1}))
    objective, (optimizer,) = objective_of("nll"), model.optimizers(0.01, 0.0, len(examples))
    model.train()
    for _ in range(epochs):
        for i in range(0, len(examples), 20):
            batch = examples[i : i + 20]
            optimizer.zero_grad()
            structure = model.structure_to_train([model.encode(e) for e in batch])
            objective(structure, [model.reference(e) for e in batch] * 2).backward()
            optimizer.step()
    return G2P.evaluate(held, predict(model, held))


def drawn(sounds: dict[str, tuple[str, ...]], count: int, longest: int, seed: int) -> list[Example]:
    """Words of random letters, each of which always sounds the same."""
    generator, letters = random.Random(seed), sorted(sounds)
    words = ["".join(generator.choices(letters, k=generator.randint(1, longest))) for _ in range(count)]
    return [
        Example(tuple(w), tuple(p for x in w for p in sounds[x]), w, f"made, line {i}") for i, w in enumerate(words)
    ]


def test_a_letter_may_write_five_phones() -> None:
    generator = random.Random(0)
    sounds = {chr(0xAC00 + 28 * i): tuple(generator.choices("ABCDEFGH", k=1 + i % 5)) for i in range(25)}
    words = drawn(sounds, 400, 4, 1)
    assert G2P.configure(words[:300], G2P.settings)["longest"] == 5
    assert learned(words[:300], words[300:], 8)["wer"] < 0.05


def test_syllables_that_training_lacks_are_read_by_their_parts() -> None:
    """Two parts of twenty make a syllable: training has two thirds of the 400, and the others follow."""
    sounds = {
        unicodedata.normalize("NFC", chr(0x1100 + i) + chr(0x1161 + j)): (f"C{i % 9}", f"V{j % 9}", *"N"[: j % 2])
        for i in range(19)
        for j in range(21)
    }
    assert all(len(syllable) == 1 for syllable in sounds)
    words = drawn(sounds, 340, 3, 2)
    seen = {syllable for word in words[:240] for syllable in word.x}
    held = [word for word in words[240:] if not seen.issuperset(word.x)]
    assert len(held) > 20
    config = G2P.configure(words[:240], G2P.settings)
    assert config["spelling"] == "parts"
    assert len(config["letters"]) == 40
    assert learned(words[:240], held, 10)["wer"] < 0.05


def test_an_accent_that_changes_nothing_is_no_letter() -> None:
    sounds = {"a": ("A",), "á": ("A", "'"), "b": ("B",), "s": ("S",)}
    words = [(word.x, word.y) for word in drawn(sounds, 100, 5, 3)]
    assert choose(words) == ("whole", 2)
    assert choose(words, "parts", 0) == ("parts", 2)
    assert choose(words, "auto", 7) == ("whole", 7)


@given(st.text("ab", min_size=1, max_size=4), st.lists(st.sampled_from("AB"), max_size=5))
def test_a_held_out_word_is_as_probable_as_enumeration_says(letters: str, phones: list[str]) -> None:
    string = tuple(phones)
    counts = {("a", ("A",)): 3.0, ("a", ()): 1.0, ("b", ("B", "A")): 2.0}
    model = spelling._Model(counts, [("aab", ("A", "B", "A")), ("b", ("B",))])
    span, total = max(2, -(-len(string) // len(letters))), 0.0
    for ends in itertools.combinations_with_replacement(range(len(string) + 1), len(letters) - 1):
        cut = list(itertools.pairwise((0, *ends, len(string))))
        if all(j - i <= span for i, j in cut):
            total += math.prod(model(x, string[i:j]) for x, (i, j) in zip(letters, cut, strict=True))
    assert spelling._log_probability((letters, string), 2, model) == pytest.approx(math.log(total))
    everything = sum(model("a", s) for n in range(9) for s in itertools.product("ABC", repeat=n))
    assert everything == pytest.approx(1, abs=1e-2)  # of two phones, and one that training lacks


def test_a_layer_reads_both_ways_as_a_packed_lstm_does_whatever_stands_beyond() -> None:
    torch.manual_seed(0)
    layer, lengths = BothWays(3, 4), torch.tensor([5, 2, 1])
    packed = torch.nn.LSTM(3, 4, batch_first=True, bidirectional=True)
    for name, weight in layer.named_parameters():
        direction, _, own = name.partition(".")
        packed.get_parameter(own + ("_reverse" if direction == "backward" else "")).data = weight.data
    x, places = torch.randn(3, 5, 3), torch.arange(5)
    turned = torch.where(places < lengths[:, None], lengths[:, None] - 1 - places, places)
    rows = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    wanted, _ = torch.nn.utils.rnn.pad_packed_sequence(packed(rows)[0], batch_first=True)
    found = layer(x, turned)
    for row, other, length in zip(found, wanted, lengths, strict=True):
        torch.testing.assert_close(row[:length], other[:length])


@pytest.mark.parametrize("kind", ["bilstm", "transformer"])
def test_networks_are_trained_apart_and_answer_together(kind: str) -> None:
    examples = made(30, 0)
    settings = {**G2P.settings, "model": kind, "networks": 3, "width": 8, "layers": 1, "dropout": 0.0, "order": 2}
    model = G2P.build(G2P.configure(examples, settings))
    batch, references = [model.encode(e) for e in examples], [model.reference(e) for e in examples]
    objective = objective_of("nll")
    together = objective(model.structure_to_train(batch), references * 3)
    apart = []
    networks, model.networks = model.networks, torch.nn.ModuleList()
    for network in networks:
        model.networks = torch.nn.ModuleList([network])
        apart.append(objective(model.structure(batch), references))
    torch.testing.assert_close(together, torch.stack(apart).mean())
    model.networks = networks
    letters = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
    alone = [network(letters, torch.tensor([len(x) for x in batch])) for network in networks]
    lengths = [len(x) - 2 for x in batch]
    wanted = model.chain(torch.stack(alone).mean(0) + model.habits(letters[:, 1:-1]), lengths).log_partition()
    torch.testing.assert_close(model.structure(batch).log_partition(), wanted)


def test_letters_that_training_lacks_are_read_and_phones_count_as_wrong(caplog: pytest.LogCaptureFixture) -> None:
    examples = made(50, 0)
    model = G2P.build(G2P.configure(examples, {**G2P.settings, "width": 8, "layers": 1}))
    strange = Example(tuple("aŷb"), ("A", "Q"), "aŷb", "dev.tsv, line 7")
    assert len(predict(model, [strange])) == 1
    with pytest.raises(DataError, match=r"dev.tsv, line 7: got the label 'Q', which the training data lack"):
        model.reference(strange)
    with caplog.at_level("WARNING"):
        check_answers(model, [strange, *examples, strange])
    assert "dev.tsv, line 7: got the label 'Q', which the training data lack: counted as wrong, as are 1" in caplog.text
    with pytest.raises(DataError, match=r"dev.tsv, line 8: got a word without phones"):
        model.reference(Example(("a",), (), "a", "dev.tsv, line 8"))
    with pytest.raises(DataError, match=r"dev.tsv, line 8: got a word without phones"):
        G2P.configure([Example(("a",), (), "a", "dev.tsv, line 8")], G2P.settings)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"model": "gru"}, "wanted bilstm or transformer"),
        ({"order": 9}, "order: got 9"),
        ({"width": 4}, "width: got 4"),
        ({"networks": 65}, "networks: got 65"),
        ({"spelling": "syllables"}, "spelling: got 'syllables', but wanted auto, whole or parts"),
    ],
)
def test_settings_are_checked(changed: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        G2P.build(G2P.configure(made(20, 0), {**G2P.settings, **changed}))
    with pytest.raises(ValueError, match="wanted a multiple of 4"):
        G2P.build(G2P.configure(made(20, 0), {**G2P.settings, "model": "transformer", "width": 9}))


@pytest.mark.parametrize(("count", "networks", "width"), [(3999, 4, 64), (4000, 1, 128)])
def test_many_words_have_one_network_of_twice_the_width(count: int, networks: int, width: int) -> None:
    examples = [Example(("a",), ("A",), "a", f"line {i}") for i in range(count)]
    config = G2P.configure(examples, G2P.settings)
    assert (config["networks"], config["width"]) == (networks, width)
    config = G2P.configure(examples, {**G2P.settings, "networks": 2, "width": 32})
    assert (config["networks"], config["width"]) == (2, 32)


def test_metrics() -> None:
    examples = [Example((), tuple("ABC"), "", ""), Example((), tuple("AB"), "", "")]
    assert G2P.evaluate(examples, [tuple("ABC"), tuple("ABBQ")]) == {"wer": 0.5, "per": pytest.approx(2 / 5)}
    assert G2P.evaluate([], []) == {"wer": 0.0, "per": 0.0}
