"""Aligners of other phones, other languages and other files: own phones, dictionaries, units of .lab, and no times."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tones import spoken

pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")
pytest.importorskip("soundfile", reason="soundfile (the extra speech) is not installed")
pytest.importorskip("kaldi_native_fbank", reason="kaldi-native-fbank (the extra speech) is not installed")

from structloss.cli import app
from structloss.tasks.alignment import audio, transcripts, words
from structloss.tasks.alignment.flat_start import Gaussians, flat_start
from structloss.tasks.alignment.recordings import Speech, in_folder, untimed_in_folder
from structloss.tasks.alignment.segments import Segments
from structloss.tasks.alignment.utterance import Utterance
from structloss.text import DataError

OWN = {"sil": "_", "aa": "a\u02d0", "iy": "\u0283", "s": "K"}  # small letters, capitals and others


def renamed(seed: int) -> Speech:
    speech = spoken(seed)
    phones = tuple(OWN[phone] for phone in speech.segments.phones)
    return Speech(speech.name, speech.speaker, speech.samples, Segments(phones, speech.segments.boundaries))


def run(*arguments: object):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(x) for x in arguments])


def said(result) -> str:
    return " ".join(result.output.split())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An aligner of phones of one's own, trained on .lab in seconds."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "train").mkdir()
    for seed in range(30):
        speech = renamed(seed)
        audio.write(folder / "train" / f"u{seed}.wav", speech.samples)
        rows = [f"{start:.6f} {end:.6f} {phone}" for start, end, phone in speech.segments]
        (folder / "train" / f"u{seed}.lab").write_text("\n".join(rows) + "\n")
    audio.write(folder / "u.wav", renamed(100).samples)
    more = ("--objective", "hinge", "--loss", "insensitive:tau_ms=10", "--epochs", 1)
    result = run("align", "train", folder / "train", "--out", folder / "model", *more)
    assert result.exit_code == 0, result.output
    return folder / "model"


def test_a_text_of_the_models_own_phones_is_one_of_phones(model: Path, tmp_path: Path) -> None:
    phones = renamed(100).segments.phones
    (tmp_path / "u.txt").write_text(" ".join(phones) + "\n")
    result = run("align", "apply", model, model.parent / "u.wav", tmp_path / "u.txt", "-o", tmp_path / "u.TextGrid")
    assert result.exit_code == 0, result.output
    found = transcripts.read(tmp_path / "u.TextGrid")
    assert found.phones == phones
    assert np.median(np.abs(np.subtract(found.starts, renamed(100).segments.starts))) < 0.03


def test_a_dictionary_of_ones_own_says_how_words_are_pronounced(model: Path, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("CH\u00c2TEAU\ta\u02d0 \u0283\nl'  K\n")
    (tmp_path / "u.txt").write_text("L\u2019cha\u0302teau, cha\u0302teau!\n")
    one = (model, model.parent / "u.wav", tmp_path / "u.txt", "-o", tmp_path / "u.TextGrid")
    result = run("align", "apply", *one, "--dictionary", tmp_path / "words")
    assert result.exit_code == 0, result.output
    assert transcripts.read(tmp_path / "u.TextGrid").phones == ("K", "a\u02d0", "\u0283", "a\u02d0", "\u0283")
    lacks = run("align", "apply", *one)
    assert lacks.exit_code == 2
    assert "u.txt, line 1: the dictionary lacks " in said(lacks)
    assert "; --dictionary FILE says how the words of any language are pronounced" in said(lacks)
    assert "none but the model's: K _ a\u02d0 \u0283" in said(lacks)
    (tmp_path / "u.txt").write_text("the cat\n")
    others = run("align", "apply", *one)
    assert "its words are pronounced with 'dh', which the model's training data lack; --dictionary FILE" in said(others)
    nowhere = run("align", "apply", *one, "--dictionary", tmp_path / "none")
    assert "none: is not there, but wanted a dictionary" in said(nowhere)


def test_dictionaries_in_every_form(tmp_path: Path) -> None:
    (tmp_path / "cmu").write_text(
        ";;; a comment\nHELLO  HH AH0 L OW1 # greeting\nHELLO(2)  HH EH0 L OW1\nb\u00e9b\u00e9\t0.99\t1.0\tb e\n\n"
    )
    found = words.read_dictionary(tmp_path / "cmu")
    assert found == {"hello": ("HH", "AH0", "L", "OW1"), "b\u00e9b\u00e9": ("b", "e")}
    (tmp_path / "a.txt").write_text("Hello, hello\n")
    for phones, wanted in (
        (("hh", "ah", "l", "ow", "sil"), ("sil", "hh", "ah", "l", "ow", "sil", "hh", "ah", "l", "ow", "sil")),
        (("HH", "AH", "L", "OW"), ("HH", "AH", "L", "OW") * 2),
        (("HH", "AH0", "L", "OW1"), ("HH", "AH0", "L", "OW1") * 2),
    ):
        assert words.read(tmp_path / "a.txt", phones, tmp_path / "cmu") == wanted
    (tmp_path / "cmu").write_text("hello\n")
    with pytest.raises(DataError, match="cmu, line 1: got 'hello', but wanted a word and its phones"):
        words.read_dictionary(tmp_path / "cmu")
    (tmp_path / "cmu").write_text("\n")
    with pytest.raises(DataError, match="cmu: got no word at all"):
        words.read_dictionary(tmp_path / "cmu")


def test_words_in_a_dictionary_with_marks_in_them_are_found_whole() -> None:
    known = {"rendez-vous": ("R",), "l'": ("l",), "ami": ("a",), "aujourd'hui": ("O",)}
    assert words.phones_of("rendez-vous aujourd'hui, l'ami", "text", known) == ("sil", "R", "O", "sil", "l", "a", "sil")


@pytest.mark.parametrize(
    ("content", "unit", "ends"),
    [
        ("0 0.5 a\n0.5 1.25 b\n", None, (0.5, 1.25)),
        ("0 5000000 a\n5000000 12500000 b\n", None, (0.5, 1.25)),
        ("0 1 a\n1 3 b\n", "seconds", (1.0, 3.0)),
        ("0 500 a\n500 1250 b\n", "ms", (0.5, 1.25)),
        ("0 8000 a\n8000 20000 b\n", "samples", (0.5, 1.25)),
        ("#\n0.5 1 a\n1.25 1 b\n", "ms", (0.5, 1.25)),  # xwaves' are seconds, whatever is said
    ],
)
def test_times_of_a_lab_are_in_the_unit_they_tell_or_that_is_said(
    tmp_path: Path, content: str, unit: str | None, ends: tuple[float, ...]
) -> None:
    (tmp_path / "a.lab").write_text(content)
    assert transcripts.read(tmp_path / "a.lab", lab_unit=unit).ends == ends


def test_a_lab_whose_unit_nobody_can_tell_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "a.lab").write_text("0 1 a\n1 3 b\n")
    with pytest.raises(DataError, match=r"a\.lab: ends at 3, too little .* --lab-unit 100ns\|samples\|ms"):
        transcripts.read(tmp_path / "a.lab")
    with pytest.raises(ValueError, match="lab_unit: got 'hours', but wanted one of 100ns, samples, ms, seconds"):
        transcripts.read(tmp_path / "a.lab", lab_unit="hours")


def test_only_a_folder_without_any_times_is_untimed(tmp_path: Path) -> None:
    for name in ("a.wav", "a.txt", "b.wav", "c.txt"):
        (tmp_path / name).touch()
    assert [one.name for one in untimed_in_folder(tmp_path)] == ["a"]
    with pytest.raises(DataError, match=r"got no recording with a transcript beside it that has times"):
        in_folder(tmp_path)
    (tmp_path / "b.lab").touch()
    assert untimed_in_folder(tmp_path) == []
    assert [one.name for one in in_folder(tmp_path)] == ["b"]


def test_a_round_of_the_flat_start_takes_the_gaussians_of_what_enumeration_says_states_hold() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 2, generator=generator)
    utterance = Utterance("u", x, ("a",), 10.0)
    (found,) = flat_start([utterance], rounds=1)
    assert found.starts == (0,)
    even = [0, 0, 0, 1, 1, 2, 2]  # state of each frame
    gaussians = Gaussians(3, [x])
    for t, state in enumerate(even):
        gaussians.add(x[t : t + 1], torch.tensor([state]), torch.ones(1, 1))
    gaussians.estimate()
    density = gaussians.log_density(x)
    for state in range(3):
        mean, deviation = gaussians.means[state], gaussians.variances[state].sqrt()
        wanted = torch.distributions.Normal(mean, deviation).log_prob(x.double()).sum(1)
        torch.testing.assert_close(density[:, state], wanted)
    ways = [(0, a, b) for a, b in combinations(range(1, 7), 2)]
    scores = []
    for _, a, b in ways:
        states = [0] * a + [1] * (b - a) + [2] * (7 - b)
        scores.append(density[torch.arange(7), torch.tensor(states)].sum())
    shares = torch.zeros(3, 7, dtype=torch.float64)
    for p, (_, a, b) in zip(torch.stack(scores).softmax(0), ways, strict=True):
        for state, (first, last) in enumerate(((0, a), (a, b), (b, 7))):
            shares[state, first:last] += p
    said: list[str] = []
    flat_start([utterance], rounds=1, say=said.append)
    assert said == [f"flat start: round 1 of 1, log-likelihood of a frame {torch.stack(scores).logsumexp(0) / 7:.2f}"]
    likelihoods: list[str] = []
    flat_start([utterance], rounds=2, say=likelihoods.append)
    counts = shares.sum(1, keepdim=True) + 10
    means = (shares @ x.double() + 10 * x.double().mean(0)) / counts
    squares = (shares @ x.double().square() + 10 * x.double().square().mean(0)) / counts
    gaussians.means, gaussians.variances = means, squares - means.square()
    density = gaussians.log_density(x)
    scores = [density[torch.arange(7), torch.tensor([0] * a + [1] * (b - a) + [2] * (7 - b))].sum() for _, a, b in ways]
    assert likelihoods[1].endswith(f"frame {torch.stack(scores).logsumexp(0) / 7:.2f}")


def test_too_many_phones_for_the_frames_are_an_error_and_few_frames_are_not() -> None:
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    (short, _) = flat_start([Utterance("u", x, ("a", "b"), 10.0), Utterance("v", x[:3], ("a", "b", "a"), 10.0)])
    assert short.starts[0] == 0 < short.starts[1] < 4
    with pytest.raises(DataError, match="v: has 4 frames, into which 5 phones cannot be cut"):
        flat_start([Utterance("v", x, ("a",) * 5, 10.0)])


def test_recordings_and_texts_alone_are_enough_to_train_an_aligner(tmp_path: Path) -> None:
    for part, seeds in (("train", range(40)), ("test", range(100, 110))):
        (tmp_path / part).mkdir()
        for seed in seeds:
            speech = spoken(seed)
            audio.write(tmp_path / part / f"u{seed}.wav", speech.samples)
            if part == "train":
                (tmp_path / part / f"u{seed}.txt").write_text(" ".join(speech.segments.phones) + "\n")
            else:
                transcripts.write(tmp_path / part / f"u{seed}.TextGrid", speech.segments)
    more = ("--objective", "hinge", "--loss", "insensitive:tau_ms=10", "--epochs", 1)
    result = run("align", "train", tmp_path / "train", "--test", tmp_path / "test", "--out", tmp_path / "out", *more)
    assert result.exit_code == 0, result.output
    assert "no recording has times, 40 have a text: a flat start finds when phones start" in said(result)
    assert "held out, times that were found" in said(result)
    row = next(line for line in result.output.splitlines() if "test" in line and "%" not in line and "│" in line)
    assert float(row.replace("│", " ").split()[2]) > 80, result.output  # within 20 ms
