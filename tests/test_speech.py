"""Speech recognition: corpora, pieces, the network, what is searched and counted, and the command line."""

import itertools
import json
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

pytest.importorskip("kaldi_native_fbank", reason="kaldi-native-fbank (the extra speech) is not installed")
pytest.importorskip("soundfile", reason="soundfile (the extra speech) is not installed")

import structloss as sl
from structloss.cli import app
from structloss.tasks import TASKS
from structloss.tasks.alignment import audio
from structloss.tasks.speech import corpus, pieces
from structloss.tasks.speech.network import STRIDES, Network, frames_left, varied
from structloss.tasks.speech.search import best_strings
from structloss.tasks.speech.task import counts
from structloss.training.task import DataError, Example, nbest_answers, written_marginals

SPEECH = TASKS["speech"]
TONES = {"a": 500.0, "b": 1200.0, "c": 2800.0}
SMALL = ("width=32", "layers=1", "subsample=3", "dropout=0", "speed=0", "pitch=0", "masks=0")


def tone(text: str, seed: int) -> np.ndarray:
    """A tone of 60 ms for each letter, 30 ms of silence after each, 90 ms for a space, and noise."""
    generator, pieces_ = np.random.default_rng(seed), []
    for letter in text:
        t = np.arange(int(0.06 * audio.RATE)) / audio.RATE
        if letter in TONES:
            pieces_ += [0.3 * np.sin(2 * math.pi * TONES[letter] * generator.uniform(0.95, 1.05) * t)]
        pieces_.append(np.zeros(int((0.03 if letter in TONES else 0.09) * audio.RATE)))
    samples = np.concatenate(pieces_)
    return (samples + 0.003 * generator.standard_normal(len(samples))).astype(np.float32)


def texts(count: int, seed: int) -> list[str]:
    generator = random.Random(seed)
    return [
        " ".join("".join(generator.choices("abc", k=generator.randint(1, 3))) for _ in range(generator.randint(1, 3)))
        for _ in range(count)
    ]


def made(folder: Path, name: str, spoken: list[str], seed: int = 0) -> Path:
    """A list of recordings."""
    folder.mkdir(exist_ok=True)
    for i, text in enumerate(spoken):
        audio.write(folder / f"{name}{i}.wav", tone(text, 1000 * seed + i))
    path = folder / f"{name}.tsv"
    path.write_text("".join(f"{name}{i}.wav\t{text}\n" for i, text in enumerate(spoken)))
    return path


def run(*arguments: str | Path) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])


def trained(train: Path, dev: Path, out: Path, *more: str | Path) -> Result:
    settings = [part for one in SMALL for part in ("--set", one)]
    return run("train", "speech", "--train", train, "--dev", dev, "--out", out, "--no-progress", *settings, *more)


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tones")
    return made(folder, "train", texts(60, 0)), made(folder, "dev", texts(16, 1), 1)


@pytest.fixture(scope="module")
def model(files: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained on tones until it knows them."""
    pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")
    out = tmp_path_factory.mktemp("model") / "model"
    result = trained(*files, out, "--epochs", "12", "--lr", "0.01", "--batch-size", "4", "--patience", "12")
    assert result.exit_code == 0, result.output
    return out


# --- Files -----------------------------------------------------------------------------------------------------------


def test_a_list_and_a_folder_say_the_same(tmp_path: Path) -> None:
    path = made(tmp_path, "a", ["ab c", "b"])
    for i, text in enumerate(["Ab\n", "\n", "C!"]):
        (tmp_path / f"a{i}.txt").write_text(text * (i != 1) or "b")
    listed = SPEECH.read(path)
    assert ["".join(e.y) for e in listed] == ["ab c", "b"]
    assert [e.where for e in listed] == [f"{path}, line 1", f"{path}, line 2"]
    (tmp_path / "a0.txt").write_text("Ab,\nC!\n")
    (tmp_path / "a2.txt").unlink()
    inside = SPEECH.read(tmp_path)
    assert [("".join(e.y), e.source) for e in inside] == [("ab c", "a0.wav"), ("b", "a1.wav")]
    assert torch.equal(inside[0].x, listed[0].x)
    assert list(SPEECH.write(inside[0], "c")) == ["a0.wav\tc"]
    (alone,) = SPEECH.read(tmp_path / "a0.wav", {})
    assert alone.y == tuple("ab c")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("  Hello,   WORLD! ", "hello world"),
        ("it\u2019s \u2014 don't 'quote'", "it's don't quote"),
        ("well-known 3.5", "well known 3 5"),
        ("\u00c9t\u0065\u0301", "\u00e9t\u00e9"),
        ("?!", ""),
    ],
)
def test_transcripts_are_compared_as_scorers_do(text: str, wanted: str) -> None:
    assert corpus.plain(text) == wanted


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("gone.wav\tab", "line 2: .*gone.wav: is not there"),
        ("noise.wav\tab", "line 2: .*noise.wav: cannot be read as a recording"),
        ("empty.wav\tab", "line 2: .*empty.wav: is empty"),
        ("good.wav\t", "line 2: got an empty transcript"),
        ("good.wav\t?!", "line 2: got an empty transcript"),
        ("good.wav", "line 2: got no transcript"),
        ("good.wav\ta\tb", "line 2: got 3 columns"),
        ("\tab", "line 2: got no recording before the tab"),
        (f"{'x' * 300}.wav\tab", "line 2: .*"),
    ],
)
def test_what_is_wrong_with_a_list_is_said_with_its_line(tmp_path: Path, line: str, sentence: str) -> None:
    audio.write(tmp_path / "good.wav", tone("ab", 0))
    (tmp_path / "noise.wav").write_bytes(b"RIFF and nothing else")
    (tmp_path / "empty.wav").touch()
    (tmp_path / "a.tsv").write_text(f"good.wav\tab\n{line}\n")
    with pytest.raises(DataError, match=sentence):
        SPEECH.read(tmp_path / "a.tsv")


def test_what_is_wrong_with_a_folder_is_said_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="got no recording"):
        SPEECH.read(tmp_path)
    audio.write(tmp_path / "a.wav", tone("ab", 0))
    with pytest.raises(DataError, match=r"a\.wav: got no transcript"):
        SPEECH.read(tmp_path)
    assert len(SPEECH.read(tmp_path, {})) == 1  # to be answered
    (tmp_path / "a.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"a\.txt, line 1: got an empty transcript"):
        SPEECH.read(tmp_path)
    (tmp_path / "a.txt").write_text("ab")
    (tmp_path / "a.wav").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"a\.wav: cannot be read as a recording"):
        SPEECH.read(tmp_path)


def example(text: str, frames: int = 40, where: str = "dev.tsv, line 7") -> Example:
    return Example(torch.randn(frames, 40), tuple(text), "a.wav", where)


def untrained(spoken: list[str], **settings: object) -> "object":
    quiet = {"width": 8, "layers": 1, "dropout": 0.0}
    return SPEECH.build(SPEECH.configure([example(text) for text in spoken], {**SPEECH.settings, **quiet, **settings}))


def test_characters_that_training_lacks_and_transcripts_that_do_not_fit_are_named() -> None:
    model = untrained(["ab a"], subsample=2)
    with pytest.raises(DataError, match=r"dev.tsv, line 7: got the character 'q', which the training data lack"):
        model.reference(example("aqb"))
    assert model.impossible(example("abab", 8)) == ""
    assert "3 labels need 4 frames, but its recording has 3 of 20 ms" in model.impossible(example("aab", 6))


@pytest.mark.parametrize(("part", "line"), [("train", 3), ("dev", 2)])
def test_a_transcript_longer_than_its_frames_is_said_before_training(
    files: tuple[Path, Path], tmp_path: Path, part: str, line: int
) -> None:
    pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")
    paths = {"train": made(tmp_path, "train", ["a b", "bc"]), "dev": made(tmp_path, "dev", ["c"])}
    with paths[part].open("a") as file:
        file.write(f"{part}0.wav\t{'abc ' * 20}\n")
    result = trained(paths["train"], paths["dev"], tmp_path / "out", "--epochs", "1")
    assert result.exit_code == 2
    assert re.search(rf"{part}.tsv, line {line}: got a transcript whose 79 labels need 79 frames", result.output)
    assert not (tmp_path / "out").exists()
    more = ["--unknown-labels"] if part == "dev" else ["--objective", "nll:impossible=skip"]
    result = trained(paths["train"], paths["dev"], tmp_path / "out", "--epochs", "1", *more)
    assert result.exit_code == 0, result.output
    log = (tmp_path / "out" / "logs" / "metrics.csv").read_text()
    assert ("skipped" in log) == (part == "train")


def test_unknown_characters_in_dev_stop_or_count(files: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")
    train, dev = made(tmp_path, "train", ["ab", "bc"]), made(tmp_path, "dev", ["c"])
    dev.write_text("dev0.wav\tq\n")
    result = trained(train, dev, tmp_path / "out", "--epochs", "1")
    assert result.exit_code == 2
    assert "dev.tsv, line 1: got the character 'q', which the training data lack" in result.output
    assert trained(train, dev, tmp_path / "out", "--epochs", "1", "--unknown-labels").exit_code == 0
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["dev_wer"] >= 1


# --- Pieces ----------------------------------------------------------------------------------------------------------

sentences = st.lists(st.text("abc", min_size=1, max_size=6), min_size=1, max_size=5).map(" ".join)


@given(st.lists(sentences, min_size=1, max_size=6), st.integers(1, 20))
def test_pieces_spell_what_they_were_cut_from(spoken: list[str], number: int) -> None:
    labels, merges = pieces.learn(spoken, number)
    single = {pieces.MARK, *"".join(spoken)} - {" "}
    assert single <= set(labels)
    assert len(labels) <= max(number, len(single))
    known = {pair: i for i, pair in enumerate(merges)}
    for text in spoken:
        cut = pieces.cut(text, known)
        assert set(cut) <= set(labels)
        assert "".join(cut).replace(pieces.MARK, " ").strip() == text


def test_a_model_of_pieces_answers_in_words() -> None:
    model = untrained(["seven six seven", "six"], pieces=40)
    assert "\u2581six" in model.names
    reference = model.reference(example("seven six"))
    assert len(reference) < len("seven six")
    assert "".join(model.named(reference)) == "seven six"


# --- The network -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subsample", STRIDES)
@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_scores_do_not_depend_on_the_rest_of_the_batch(kind: str, subsample: int) -> None:
    torch.manual_seed(0)
    network = Network(kind, 5, 8, 1, subsample, 0.0, 3).double().eval()
    lengths = torch.tensor([13, 7, 1])
    frames = torch.randn(3, 13, 5, dtype=torch.float64)
    frames = frames * (torch.arange(13) < lengths[:, None])[..., None]
    scores, left = network(frames, lengths)
    assert left.tolist() == [frames_left(int(n), subsample) for n in lengths]
    for b, n in enumerate(lengths.tolist()):
        alone, _ = network(frames[b : b + 1, :n], lengths[b : b + 1])
        torch.testing.assert_close(scores[b, : left[b]], alone[0])


@given(st.integers(1, 60), st.floats(0, 1), st.floats(0, 1), st.integers(0, 4), st.integers(0, 100))
def test_varied_frames_still_fit_their_transcript(
    frames: int, speed: float, pitch: float, masks: int, seed: int
) -> None:
    torch.manual_seed(seed)
    x = torch.randn(frames, 8)
    least = frames - frames // 10
    before = x.clone()
    found = varied(x, speed, pitch, masks, least)
    assert torch.equal(x, before)
    assert found.shape[1] == 8
    assert least <= len(found) <= max(least, round(frames * (1 + speed)) + 1)
    assert found.isfinite().all()
    assert torch.equal(varied(x, 0.0, 0.0, 0, least), x)


# --- Answers ---------------------------------------------------------------------------------------------------------


def by_enumeration(log_probs: torch.Tensor, blank: int) -> dict[tuple[int, ...], float]:
    """The probability of every string of one example (T, C)."""
    found: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(log_probs.shape[1]), repeat=len(log_probs)):
        string = tuple(k for k, _ in itertools.groupby(path) if k != blank)
        found[string] = found.get(string, 0.0) + math.exp(sum(log_probs[t, k].item() for t, k in enumerate(path)))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_best_strings_are_those_of_enumeration(seed: int) -> None:
    torch.manual_seed(seed)
    log_probs = (2 * torch.randn(2, 5, 3, dtype=torch.float64)).log_softmax(2)
    lengths = [5, 3]
    scores, strings = best_strings(sl.CTC(log_probs, lengths, blank=2), 2, 6, beam=400)
    for b, n in enumerate(lengths):
        known = by_enumeration(log_probs[b, :n], 2)
        wanted = sorted(known.values(), reverse=True)[:6]
        assert scores[:, b].exp().tolist() == pytest.approx(wanted)
        assert [known[tuple(row[b])] for row in strings] == pytest.approx(wanted)
    scores, strings = best_strings(sl.CTC(log_probs[:, :1], blank=2), 2, 6)
    assert scores.isinf().sum(0).tolist() == [3, 3]


def test_times_are_those_of_the_path() -> None:
    model = untrained(["ab ba"], subsample=3)
    a, b, space, blank = (model.names.index("a"), model.names.index("b"), model.names.index(" "), 3)
    path = torch.tensor([blank, a, a, blank, a, b, space, blank, b, blank, a, space, -1])
    assert model.times(path) == [("aab", 0.03, 0.18), ("ba", 0.24, 0.33)]
    assert model.times(torch.tensor([space, blank, -1])) == []
    model = untrained(["ab ab ab ba"], pieces=5)
    mark, joined = model.names.index("\u2581"), model.names.index("\u2581ab")
    path = torch.tensor([joined, joined, 5, joined, mark, model.names.index("b"), 5, model.names.index("a")])
    assert model.times(path) == [("ab", 0.0, 0.06), ("ab", 0.09, 0.12), ("ba", 0.15, 0.24)]


def distance(y: list[str], r: list[str]) -> int:
    """By the textbook."""
    row = list(range(len(r) + 1))
    for i, a in enumerate(y, 1):
        above, row = row, [i]
        for j, b in enumerate(r, 1):
            row.append(min(above[j] + 1, row[-1] + 1, above[j - 1] + (a != b)))
    return row[-1]


@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=4))
def test_errors_are_counted_by_words_and_by_characters(pairs: list[tuple[str, str]]) -> None:
    table = counts([example(r) for r, _ in pairs], [tuple(y) for _, y in pairs])
    for (r, y), row in zip(pairs, table.tolist(), strict=True):
        assert row == [distance(y.split(), r.split()), len(r.split()), distance(list(y), list(r)), len(r)]


def test_what_has_no_transcript_is_not_counted() -> None:
    with pytest.raises(DataError, match=r"dev.tsv, line 7: got no transcript"):
        SPEECH.evaluate([example("")], [("a",)])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [({"model": "cnn"}, "wanted gru or lstm"), ({"subsample": 5}, "subsample: got 5"), ({"pieces": -1}, "pieces")],
)
def test_settings_are_checked(changed: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        untrained(["ab"], **changed)


# --- From the command line -------------------------------------------------------------------------------------------


def test_it_learns_tones_and_answers(model: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    result = run("evaluate", model, files[1], "--json")
    assert json.loads(result.output)["wer"] < 0.1, result.output
    result = run("predict", model, files[1])
    lines = [line.split("\t") for line in result.output.splitlines()]
    assert [name for name, _ in lines] == [f"dev{i}.wav" for i in range(16)]
    assert [text for _, text in lines[:3]] == texts(16, 1)[:3]
    bare = tmp_path / "bare.tsv"
    bare.write_text(f"{files[1].parent / 'dev0.wav'}\n")
    (line,) = run("predict", model, bare, "--times").output.splitlines()
    _, text, times = line.split("\t")
    words = [word.rsplit(":", 1) for word in times.split(" ")]
    assert [word for word, _ in words] == text.split()
    spans = [tuple(map(float, span.split("-"))) for _, span in words]
    assert all(begin < end for begin, end in spans)
    several = run("predict", model, files[1], "--nbest", "4").output.splitlines()
    assert 32 <= sum(line.startswith("# probability = ") for line in several) <= 4 * 16
    assert "has no positions of its answer" in run("predict", model, files[1], "--marginals").output
    (alone,) = run("predict", model, files[1].parent / "dev0.wav").output.splitlines()
    assert alone == f"dev0.wav\t{texts(16, 1)[0]}"


def test_nbest_probabilities_are_those_of_all_strings_of_an_answer(model: Path, files: tuple[Path, Path]) -> None:
    """Strings that differ in their spaces alone are one answer."""
    from structloss.training.directory import load

    _, loaded = load(model, TASKS)
    examples = SPEECH.read(files[1])[:3]
    for e, answers in zip(examples, nbest_answers(loaded, examples, 5), strict=True):
        structure = loaded.structure([loaded.encode(e)])
        scores, strings = best_strings(structure, len(loaded.names), 5)
        for answer in answers:
            assert loaded.named(structure.decode(answer.output[None])[0]) == answer.names
            same = [p for p, row in zip(scores[:, 0].exp().tolist(), strings, strict=True)
                    if loaded.named(row[0]) == answer.names]  # fmt: skip
            assert answer.probability == pytest.approx(sum(same), rel=1e-4)
    with pytest.raises(ValueError, match="has no positions of its answer"):
        written_marginals(loaded, examples)


def test_training_goes_on_from_a_model_under_a_sum(model: Path, files: tuple[Path, Path], tmp_path: Path) -> None:
    more = ["--epochs", "1", "--lr", "0.001", "--init", model, "--loss", "edit:cap=2", "--objective", "risk+0.1*nll"]
    assert trained(*files, tmp_path / "on", *more).exit_code == 0
    assert json.loads((tmp_path / "on" / "metrics.json").read_text())["dev_wer"] < 0.1
    record = json.loads((tmp_path / "on" / "result.json").read_text())["made"]
    assert record["init"] == json.loads((model / "config.json").read_text())["checksum"]
    result = trained(*files, tmp_path / "other", "--init", model, "--set", "width=16")
    assert result.exit_code == 2
    assert "is a model of other sizes" in result.output
    tagged = tmp_path / "a.txt"
    tagged.write_text("a B\nb I\n\na B\n")
    result = run("train", "tagging", "--train", tagged, "--init", model, "--out", tmp_path / "t")
    assert result.exit_code == 2
    assert "is a model for speech, but wanted one for tagging" in result.output


def test_a_run_that_was_stopped_ends_as_one_that_was_not(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Augmentation, too, is drawn anew as it would have been."""
    pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")
    from dataclasses import replace

    from structloss.training.experiment import Data
    from structloss.training.experiment import run as train
    from structloss.training.plan import Plan

    data = Data(SPEECH.read(files[0])[:12], SPEECH.read(files[1])[:4])
    config = SPEECH.configure(data.train, {**SPEECH.settings, "width": 8, "layers": 1})
    plan = Plan(epochs=3, patience=3, lr=0.01, batch_size=4, progress=False, average=0.9, decays=True)
    objective = sl.NegativeLogLikelihood()
    whole = train(SPEECH, data, config, objective, tmp_path / "whole", plan)
    train(SPEECH, data, config, objective, tmp_path / "parts", replace(plan, stop_after=1))
    parts = train(SPEECH, data, config, objective, tmp_path / "parts", replace(plan, resume=True))
    assert whole is not None
    assert parts is not None
    assert parts.history == whole.history
    written = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert written[0] == written[1]
