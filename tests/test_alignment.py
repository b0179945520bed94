"""Forced alignment end to end, on tones that stand for phones: features, training, and the commands."""

import json
import math
import random
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from tones import TONES, spoken

pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")
pytest.importorskip("soundfile", reason="soundfile (the extra speech) is not installed")
pytest.importorskip("kaldi_native_fbank", reason="kaldi-native-fbank (the extra speech) is not installed")

import structloss as sl
from structloss.cli import app
from structloss.reproduce.alignment import (
    DIRECT,
    METHODS,
    OFF_THE_SHELF,
    SVM,
    WITHOUT_TIMES,
    Run,
    Table,
    with_gross_errors,
)
from structloss.reproduce.finding import Finding
from structloss.tasks.alignment import audio, transcripts
from structloss.tasks.alignment.apply import jobs_of
from structloss.tasks.alignment.classifier import KernelClassifier
from structloss.tasks.alignment.feature_map import Durations, Features, segmentation
from structloss.tasks.alignment.resample import resample
from structloss.tasks.alignment.task import Aligner, Alignment, Steps
from structloss.tasks.alignment.train import AnnealedDirectLoss, Parts, candidates
from structloss.tasks.alignment.utterance import Utterance, start_frames
from structloss.training.batches import LengthBatches
from structloss.training.fit import Training


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for part, seeds in (("train", range(40)), ("test", range(100, 110))):
        (folder / part).mkdir()
        for seed in seeds:
            speech = spoken(seed)
            audio.write(folder / part / f"u{seed}.wav", speech.samples)
            transcripts.write(folder / part / f"u{seed}.TextGrid", speech.segments)
            (folder / part / f"u{seed}.txt").write_text(" ".join(speech.segments.phones) + "\n")
    return folder


pytestmark = pytest.mark.usefixtures("one_thread")


def run(*arguments: object):
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(x) for x in arguments])


@pytest.fixture(scope="module")
def model(corpus: Path) -> Path:
    out = corpus / "model"
    more = ("--epochs", 2, "--epsilon", 3.5, "--epsilon", 11, "--test", corpus / "test")
    result = run("align", "train", corpus / "train", "--out", out, *more)
    assert result.exit_code == 0, result.output
    assert "direct:epsilon=3.5" in result.output
    return out


def test_the_score_is_the_weights_times_the_features() -> None:
    utterances = [Utterance.of(spoken(seed), 10.0) for seed in range(3)]
    durations = Durations.of(utterances)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(7, generator=generator)
    features = []
    for u in utterances:
        confidence = torch.randn(len(u.phones), len(u.x), generator=generator)
        features.append(Features.of(u.x, confidence, u.phones, durations))
    structure = segmentation(weights, features)
    references = [list(u.starts) for u in utterances]
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(r) for r in references], batch_first=True, padding_value=-1)
    wanted = torch.stack([weights @ f.at(u.starts) for f, u in zip(features, utterances, strict=True)])
    torch.testing.assert_close(structure.score(padded), wanted, rtol=1e-4, atol=1e-4)
    shifted = [[0, *(s - 1 for s in u.starts[1:])] for u in utterances]
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(r) for r in shifted], batch_first=True, padding_value=-1)
    wanted = torch.stack([weights @ f.at(r) for f, r in zip(features, shifted, strict=True)])
    torch.testing.assert_close(structure.score(padded), wanted, rtol=1e-4, atol=1e-4)


def test_the_gradient_of_direct_loss_is_the_difference_of_features() -> None:
    """McAllester 2010, update (8)."""
    u = Utterance.of(spoken(1), 10.0)
    confidence = torch.randn(len(u.phones), len(u.x), generator=torch.Generator().manual_seed(0))
    f = Features.of(u.x, confidence, u.phones, Durations.of([u]))
    weights = torch.randn(7, generator=torch.Generator().manual_seed(1)).requires_grad_()
    loss, epsilon = sl.BoundaryTolerance(1), 2.0
    sl.DirectLoss(loss, epsilon)(segmentation(weights, [f]), [list(u.starts)]).backward()
    s = segmentation(weights.detach(), [f])
    best, toward = s.decode()[0], s.augment(loss, [list(u.starts)], -epsilon).decode()[0]
    assert best != toward
    torch.testing.assert_close(weights.grad, (f.at(best) - f.at(toward)) / epsilon, rtol=1e-3, atol=1e-4)


def test_start_frames_leave_a_frame_for_every_phone() -> None:
    assert start_frames([0.0, 0.1, 0.1001, 0.1002], 10.0, 12) == (0, 9, 10, 11)
    for frames in range(4, 12):
        starts = start_frames([0.0, 0.1, 0.1001, 0.1002], 10.0, frames)
        assert starts[0] == 0
        assert all(b > a for a, b in zip(starts, (*starts[1:], frames), strict=True))
    with pytest.raises(ValueError, match="every phone needs one"):
        start_frames([0.0, 0.1], 10.0, 1)


def test_parts_are_disjoint_and_in_the_papers_proportions() -> None:
    utterances = [Utterance(str(i), torch.zeros(1, 1), ("a",), 10.0) for i in range(3396)]
    parts = Parts.of(utterances, seed=1)
    assert [len(p) for p in (parts.classifier, parts.weights, parts.held)] == [1500, 1796, 100]
    assert len({u.name for p in (parts.classifier, parts.weights, parts.held) for u in p}) == 3396
    assert [len(p) for p in vars(Parts.of(utterances[:3], 0)).values()] == [1, 1, 1]
    with pytest.raises(ValueError, match="at least 3"):
        Parts.of(utterances[:2], 0)


def test_the_kernel_classifier_learns_tones() -> None:
    utterances = [Utterance.of(spoken(seed), 10.0) for seed in range(12)]
    names = sorted(TONES)
    frames = [(u.x, torch.tensor([names.index(p) for p in u.frame_phones()])) for u in utterances]
    classifier = KernelClassifier(utterances[0].x.shape[1], len(names), landmarks=100)
    assert list(classifier.fit(frames[:9]))[-1] == 1.0
    right = torch.cat([classifier(x[None])[0].argmax(1) == y for x, y in frames[9:]])
    assert right.double().mean() > 0.8


def test_the_theorys_schedule() -> None:
    structure = sl.Segmentation(torch.tensor([[[0.0, 0.0, 0.0], [0.0, 1.0, 3.0]]], requires_grad=True))
    loss, reference = sl.BoundaryTolerance(0), [[0, 1]]
    objective = AnnealedDirectLoss(loss)
    for t in (1, 2, 3):
        epsilon = 1 / math.sqrt(t)
        wanted = epsilon * epsilon * sl.DirectLoss(loss, epsilon)(structure, reference)
        assert objective(structure, reference).item() == pytest.approx(wanted.item())


@pytest.mark.parametrize(("C", "wanted"), [(10.0, 0.0), (0.01, 0.99)])
def test_passive_aggressive_steps_are_as_long_as_needed_and_no_longer_than_c(C: float, wanted: float) -> None:
    # The hinge 1 - w.phi with |phi| = 1 falls to 0 where C allows it, and by C where it does not.
    weights, phi = torch.nn.Parameter(torch.zeros(2)), torch.tensor([0.6, 0.8])
    value = (1 - weights @ phi).clamp(min=0)
    value.backward()
    Steps(weights, 1.0, C).step(lambda: value)
    assert (1 - weights @ phi).item() == pytest.approx(wanted, abs=1e-6)


def test_metrics_are_the_losses_of_times_to_the_bit() -> None:
    task, generator = Alignment(), random.Random(0)
    for hop in (5.0, 10.0):
        examples = task.examples([Utterance.of(spoken(seed), hop) for seed in range(4)])
        for _ in range(20):
            found = [[max(0, round(place) + generator.randint(-4, 4)) for place in example.y] for example in examples]
            metrics = task.evaluate(examples, found)
            for tolerance in (10, 20, 30, 40):
                loss = sl.BoundaryTolerance(tau_ms=tolerance, frame_ms=hop)
                off = [
                    (len(e.y) - 1) * loss([y[1:]], [list(e.y[1:])]).item() for e, y in zip(examples, found, strict=True)
                ]
                late = [
                    abs(frame * hop / 1000 - time) > tolerance / 1000 + 1e-9
                    for e, y in zip(examples, found, strict=True)
                    for frame, time in zip(y[1:], e.x.times[1:], strict=True)
                ]
                assert round(sum(off)) == sum(late)
                assert metrics[f"{tolerance}ms"] == pytest.approx(1 - sum(late) / len(late))


def test_the_first_target_of_direct_loss_is_not_early() -> None:
    """At weights of 0 it would be: of all alignments without loss the first is taken."""
    utterances = [Utterance.of(spoken(seed), 10.0) for seed in range(6)]
    durations = Durations.of(utterances)
    model = Aligner({**Alignment.settings, "labels": sorted(TONES), "inputs": 42, "durations": asdict(durations),
                     "scale": [1.0] * 7, "hop_ms": 10.0})  # fmt: skip
    early = []
    for u in utterances:
        right = torch.tensor([[float(p == q) for q in u.frame_phones()] for p in u.phones])
        s = segmentation(model.weights.detach(), [Features.of(u.x, right, u.phones, durations)])
        (found,) = s.augment(sl.BoundaryTolerance(1), [list(u.places)], -1.0).decode()
        early += [found[n] - place for n, place in enumerate(u.places[1:], 1)]
    assert abs(sum(early) / len(early)) < 0.3


def test_epochs_of_updates_are_drawn_and_go_on_where_they_were() -> None:
    batches = LengthBatches([5] * 7, 1, seed=3, updates=50)
    assert len(batches) == 50
    drawn = list(batches)
    assert len(drawn) == 50
    assert {i for (i,) in drawn} == set(range(7))
    batches.set_place(0, 20)
    assert list(batches) == drawn[20:]
    batches.set_place(1)
    assert list(batches) != drawn


def test_a_bootstrap_over_utterances_holds_the_difference() -> None:
    table = Table(boundaries={"t": [10] * 40})
    generator = random.Random(1)
    for _ in range(2):
        table.add("t", SVM, Run([[generator.randint(3, 6), 9, 9, 10] for _ in range(40)]))
        table.add("t", "other", Run([[generator.randint(5, 8), 9, 9, 10] for _ in range(40)]))
    mean, low, high = table.difference("t", "other", SVM, 10)
    assert mean == pytest.approx(table.summary("t", "other", 10)[0] - table.summary("t", SVM, 10)[0])
    assert 13 < low < mean < high < 27
    assert table.difference("t", "other", SVM, 20) == (0, 0, 0)


def test_gross_errors_move_boundaries_between_their_neighbours() -> None:
    u = Utterance.of(spoken(3), 10.0)
    assert with_gross_errors(u, 0.0, random.Random(0)).times == u.times
    moved = with_gross_errors(u, 1.0, random.Random(0))
    assert moved.times[0] == 0.0
    assert list(moved.times) == sorted(moved.times)
    assert all(a != b for a, b in zip(moved.times[1:], u.times[1:], strict=True))
    assert moved.starts == start_frames(moved.times, 10.0, len(u.x))


def test_steps_that_move_nothing_are_counted() -> None:
    weights = torch.nn.Parameter(torch.ones(2))
    steps = Steps(weights, 0.5)
    for gradient in (torch.zeros(2), torch.tensor([1.0, 2.0])):
        weights.grad = gradient
        steps.step(lambda: torch.zeros(()))
    assert (steps.taken, steps.moved, weights.tolist()) == (2, 1, [0.5, 0.0])


def test_what_the_held_out_part_chooses_among() -> None:
    assert candidates("direct:toward=false", [0.5]) == ["direct:toward=false,epsilon=0.5"]
    assert candidates("direct:epsilon=2") == ["direct:epsilon=2"]
    assert candidates("passive-aggressive") == [f"passive-aggressive:C={C}" for C in ("0.03", "0.3", "3")]
    assert candidates("hinge") == ["hinge"]
    with pytest.raises(ValueError, match=r"epsilon: got \[1.0\] for the objective 'hinge'"):
        candidates("hinge", [1.0])


def test_training_beats_guessing_and_evaluate_agrees(corpus: Path, model: Path) -> None:
    result = run("align", "evaluate", model, corpus / "test")
    assert result.exit_code == 0, result.output
    values = [float(x) for x in result.output.replace("│", " ").split() if x.replace(".", "").isdigit()]
    assert len(values) == 4
    assert values == sorted(values)
    assert values[1] > 80  # within 20 ms


def test_a_whole_folder_in_which_some_files_are_broken(corpus: Path, model: Path, tmp_path: Path) -> None:
    for i in (100, 101, 102, 103):
        shutil.copy(corpus / "test" / f"u{i}.wav", tmp_path / f"u{i}.wav")
        shutil.copy(corpus / "test" / f"u{i}.txt", tmp_path / f"u{i}.txt")
    (tmp_path / "broken.wav").write_bytes(b"RIFF\x00\x00")
    (tmp_path / "broken.txt").write_text("sil aa sil\n")
    (tmp_path / "u101.txt").write_text("sil " + "aa iy " * 200 + "sil\n")
    (tmp_path / "u102.txt").write_text("\n")
    (tmp_path / "u103.txt").write_text("hello xyzzyq\n")
    result = run("align", "apply", model, tmp_path, tmp_path, "-o", tmp_path / "out", "--jobs", 1)
    assert result.exit_code == 1
    said = result.output.replace("\n", " ")
    for sentence in (
        "broken.wav: cannot be read as a recording", "u101.wav: got 402 phones for", "u102.txt, line 1: got an empty",
        "u103.txt, line 1: the dictionary lacks 'xyzzyq'", "aligned 1 of 5",
    ):  # fmt: skip
        assert sentence in said
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["done.jsonl", "failed.tsv", "u100.TextGrid"]
    listed = (tmp_path / "out" / "failed.tsv").read_text().splitlines()
    assert sorted(Path(line.split("\t")[0]).stem for line in listed) == ["broken", "u101", "u102", "u103"]
    found, wanted = transcripts.read(tmp_path / "out" / "u100.TextGrid"), spoken(100).segments
    assert found.phones == wanted.phones
    picture = tmp_path / "picture.png"
    one = (
        "align",
        "apply",
        model,
        tmp_path / "u100.wav",
        corpus / "test" / "u100.TextGrid",
        "-o",
        tmp_path / "one.lab",
    )
    assert run(*one, "--picture", picture).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    errors = [abs(a - b) for a, b in zip(found.starts, wanted.starts, strict=True)]
    assert sorted(errors)[len(errors) // 2] < 0.02


def test_the_network_learns_through_the_alignments(corpus: Path, tmp_path: Path) -> None:
    plan = ("--learns", "all", "--objective", "hinge", "--loss", "insensitive:tau_ms=10", "--epochs", 3)
    result = run("align", "train", corpus / "train", "--test", corpus / "test", "--out", tmp_path / "model", *plan)
    assert result.exit_code == 0, result.output
    began, ended = (load_file(tmp_path / "model" / part / "model.safetensors") for part in ("classifier", "."))
    names = [name for name in ended if name.startswith("classifier.")]
    assert any((ended[name] != began[name.replace("classifier.", "network.", 1)]).any() for name in names)
    metrics = json.loads((tmp_path / "model" / "metrics.json").read_text())
    assert metrics["dev_20ms"] > 0.8


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_model_that_is_not_there_is_said_once(corpus: Path, tmp_path: Path, jobs: int) -> None:
    test = corpus / "test"
    result = run("align", "apply", tmp_path / "none", test, test, "-o", tmp_path / "out", "--jobs", jobs)
    assert result.exit_code == 2
    assert "none" in result.output
    assert not (tmp_path / "out").exists()


def test_recordings_of_one_name_in_two_folders_stay_apart(tmp_path: Path) -> None:
    for name in ("a/u.wav", "a/u.txt", "a/u.TextGrid", "b/u.wav", "b/u.lab", "b/v.wav"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [(job.audio, job.transcript, job.out) for job in jobs_of(tmp_path, tmp_path, tmp_path / "out")]
    names = [("a/u.wav", "a/u.txt", "out/a/u"), ("b/u.wav", "b/u.lab", "out/b/u"), ("b/v.wav", "b/v.txt", "out/b/v")]
    assert found == [(tmp_path / a, tmp_path / t, tmp_path / f"{o}.TextGrid") for a, t, o in names]


def test_stereo_and_other_rates_are_aligned_alike(corpus: Path, model: Path, tmp_path: Path) -> None:
    import soundfile

    samples = spoken(100).samples
    soundfile.write(tmp_path / "stereo.wav", np.stack([samples, samples], 1), audio.RATE)
    soundfile.write(tmp_path / "mono.wav", samples, audio.RATE)
    rates = {"telephone": 8_000, "disc": 44_100, "video": 48_000}
    for name, rate in rates.items():
        soundfile.write(tmp_path / f"{name}.wav", resample(samples, audio.RATE, rate), rate)
    starts = {}
    for name in ("mono", "stereo", *rates):
        out = tmp_path / f"{name}.TextGrid"
        result = run("align", "apply", model, tmp_path / f"{name}.wav", corpus / "test" / "u100.txt", "-o", out)
        assert result.exit_code == 0, result.output
        starts[name] = transcripts.read(out).starts
    assert starts["mono"] == starts["stereo"]
    for name in rates:
        assert np.median(np.abs(np.array(starts["mono"]) - np.array(starts[name]))) <= 0.01, name


def test_silence_is_aligned_somehow(model: Path, tmp_path: Path) -> None:
    audio.write(tmp_path / "a.wav", np.zeros(audio.RATE, np.float32))
    (tmp_path / "a.txt").write_text("sil aa sil\n")
    result = run("align", "apply", model, tmp_path / "a.wav", tmp_path / "a.txt", "-o", tmp_path / "a.TextGrid")
    assert result.exit_code == 0, result.output
    assert transcripts.read(tmp_path / "a.TextGrid").duration == pytest.approx(1.0)


@pytest.mark.skipif(
    shutil.which("festival") is None or shutil.which("flite") is None,
    reason="festival or flite is not installed: apt-get install festival festvox-kallpc16k flite",
)
def test_synthetic_speech_end_to_end(tmp_path: Path) -> None:
    """Made, trained on, and aligned again, one recording from its words alone."""
    more = ("--voice", "flite-slt", "--voice", "festival-kal", "--seed", 1)
    made = run("speech", "make", "--out", tmp_path / "train", "--sentences", 24, *more)
    assert made.exit_code == 0, made.output
    assert "flite-slt: 24 recordings" in made.output
    more = ("--objective", "hinge", "--loss", "insensitive:tau_ms=10", "--epochs", 1)
    result = run("align", "train", tmp_path / "train", "--out", tmp_path / "model", *more)
    assert result.exit_code == 0, result.output
    (tmp_path / "some").mkdir()
    for i in range(4):
        for suffix in (".wav", ".TextGrid"):
            shutil.copy(tmp_path / "train" / "flite-slt" / f"flite-slt-0000{i}{suffix}", tmp_path / "some")
    more = (tmp_path / "some", tmp_path / "some", "-o", tmp_path / "out", "--jobs", 2)
    result = run("align", "apply", tmp_path / "model", *more)
    assert result.exit_code == 0, result.output
    assert "aligned 4 of 4 recordings" in result.output
    near = []
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".TextGrid"] * 4 + [".jsonl"]
    for path in sorted((tmp_path / "out").glob("*.TextGrid")):
        found, wanted = transcripts.read(path), transcripts.read(tmp_path / "some" / path.name)
        near += [abs(a - b) < 0.05 for a, b in zip(found.starts, wanted.starts, strict=True)]
    assert sum(near) / len(near) > 0.7
    one = tmp_path / "train" / "flite-slt" / "flite-slt-00000"
    more = (one.with_suffix(".wav"), one.with_suffix(".txt"), "-o", tmp_path / "one.TextGrid")
    result = run("align", "apply", tmp_path / "model", *more)
    assert result.exit_code == 0, result.output
    assert transcripts.read(tmp_path / "one.TextGrid").phones[0] == "sil"


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("festival") is None or shutil.which("flite") is None,
    reason="festival or flite is not installed: apt-get install festival festvox-kallpc16k festvox-us-slt-hts flite",
)
def test_the_quick_table_twice(tmp_path: Path) -> None:
    written = []
    for _ in range(2):
        result = run("reproduce", "alignment", "--quick", "--out", tmp_path)
        assert result.exit_code == 0, result.output
        written.append(json.loads((tmp_path / "results.json").read_text()))
    assert written[0] == written[1]
    assert "classifier:" not in result.output  # the second time nothing is trained
    finding = Finding.read(tmp_path)
    assert (tmp_path / "alignment.png").stat().st_size > 0
    methods = [OFF_THE_SHELF, *METHODS, DIRECT + WITHOUT_TIMES]
    for grid in finding.grids[:2]:
        percent = {row[0]: [float(cell) for cell in row[1:]] for row in grid.rows}
        assert list(percent) == methods
        assert all(row == sorted(row) and row[1] > 70 for row in percent.values())
    assert sum("Trained without times" in remark for remark in finding.remarks) == 2


@pytest.mark.parametrize(
    "more",
    [
        ("--epsilon", 0.1, "--epsilon", 0.3),
        ("--learns", "all", "--objective", "hinge", "--loss", "insensitive:tau_ms=10"),
        ("--classifier", "kernel", "--objective", "annealed"),
    ],
)
def test_a_killed_training_goes_on_wherever_it_was(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[object, ...]
) -> None:
    """The classifier, each candidate, the choice: killed in any of them, the aligner is the same."""

    def trained(out: Path, *further: object):
        return run("align", "train", few, "--out", out, "--epochs", 2, "--checkpoint-seconds", 0, *more, *further)

    few = tmp_path / "few"
    few.mkdir()
    for path in (corpus / "train").glob("u1?.*"):
        (few / path.name).write_bytes(path.read_bytes())
    taken, original = [0], Training.training_step

    def counted(self, *arguments):
        taken[0] += 1
        if taken[0] == stops_at:
            raise ValueError("killed")
        original(self, *arguments)

    monkeypatch.setattr(Training, "training_step", counted)
    stops_at = 0
    whole = trained(tmp_path / "whole")
    assert whole.exit_code == 0, whole.output
    total = taken[0]
    for part in (0.3, 0.6, 0.9):
        out = tmp_path / f"killed{part}"
        taken[0], stops_at = 0, int(part * total)
        assert "killed" in trained(out).output
        taken[0], stops_at = 0, 0
        resumed = trained(out, "--resume")
        assert resumed.exit_code == 0, resumed.output
        assert "goes on after" in resumed.output
        assert taken[0] == total - int(part * total) + 1
        for name in ("config.json", "model.safetensors", "metrics.json"):
            assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        assert resumed.output.splitlines()[-6:] == [
            line.replace("whole", out.name) for line in whole.output.splitlines()[-6:]
        ]
    again = trained(tmp_path / "whole")
    assert again.exit_code == 2
    assert "whole: holds a run; --resume goes on with it" in again.output
    other = trained(tmp_path / "whole", "--resume", "--seed", 5)
    assert other.exit_code == 2
    assert "is of another run" in other.output
    assert trained(tmp_path / "whole", "--overwrite").exit_code == 0
