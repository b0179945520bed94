"""Risk over lists of hypotheses, and the study of recognisers trained on their errors."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("kaldi_native_fbank", reason="kaldi-native-fbank (the extra speech) is not installed")
pytest.importorskip("lightning", reason="Lightning (the extra train) is not installed")

import structloss as sl
from structloss.cli import app
from structloss.naming import objective_of
from structloss.reproduce.finding import Finding
from structloss.reproduce.wer import people, study
from structloss.reproduce.wer.gradients import gap
from structloss.reproduce.wer.lists import ListRisk
from structloss.tasks.alignment import audio
from structloss.tasks.speech.search import best_strings
from structloss.tasks.speech.task import Speech
from structloss.training.task import Example

BLANK = 3
LOSS = sl.EditDistance(cap=2)


def scores(seed: int, frames: int = 4) -> torch.Tensor:
    torch.manual_seed(seed)
    return torch.randn(2, frames, BLANK + 1, dtype=torch.float64, requires_grad=True)


def ctc(logits: torch.Tensor) -> sl.CTC:
    return sl.CTC(logits.log_softmax(2), blank=BLANK)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_the_risk_of_a_list_is_that_of_an_nbest_lattice(k: int) -> None:
    logits, reference = scores(k), [[0, 1], [2]]
    value = ListRisk(LOSS, k, BLANK, reduction="none")(ctc(logits), reference)
    found, strings = best_strings(ctc(logits), BLANK, k)
    lists = [[row[b] for row in strings] for b in range(2)]
    wanted = sl.Lattice.nbest(lists, found.T, BLANK).expected(LOSS, reference)
    torch.testing.assert_close(value, wanted)
    (ours,) = torch.autograd.grad(value.sum(), logits, retain_graph=True)
    (theirs,) = torch.autograd.grad(wanted.sum(), logits)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ["best", "drawn"])
def test_a_list_of_everything_is_exact_and_a_short_one_is_not(kind: str) -> None:
    logits, reference = scores(0, 3), [[0, 1], [2]]
    exact = sl.Risk(LOSS, reduction="none")(ctc(logits), reference)
    torch.manual_seed(1)
    everything = ListRisk(LOSS, 4000, BLANK, kind, reduction="none")(ctc(logits), reference)
    # What 4,000 draws have not seen is hardly worth anything.
    torch.testing.assert_close(everything, exact, atol=1e-12 if kind == "best" else 3e-3, rtol=0)
    short = ListRisk(LOSS, 2, BLANK, kind, reduction="none")(ctc(logits), reference)
    assert (short - exact).abs().max() > 0.01


def test_lists_are_of_ctc() -> None:
    with pytest.raises(TypeError, match="got Chain, but wanted CTC"):
        ListRisk(LOSS, 2, BLANK)(sl.Chain(torch.zeros(1, 2, 2)), [[0]])


def test_the_gradient_of_everything_is_the_exact_one() -> None:
    torch.manual_seed(0)
    examples = [Example(torch.randn(9, 40), tuple(text), "", "") for text in ("ab a", "b")]
    task = Speech()
    model = task.build(task.configure(examples, {**task.settings, "width": 8, "layers": 1, "subsample": 4}))
    blank = len(model.names)
    same = gap(model, examples, ListRisk(LOSS, 4000, blank), sl.Risk(LOSS))
    assert same.relative < 1e-3
    assert same.cosine == pytest.approx(1, abs=1e-5)
    assert same.value == pytest.approx(same.exact, abs=1e-5)
    assert gap(model, examples, ListRisk(LOSS, 2, blank), sl.Risk(LOSS)).relative > 0.01


def outcome(table: list[list[int]]) -> study.Outcome:
    return study.Outcome(1, {"wer": 0.0, "cer": 0.0}, np.array(table), 0.0)


def test_the_bootstrap_is_paired_and_means_are_of_seeds() -> None:
    generator = np.random.default_rng(0)
    worse = [[int(e), 5, int(2 * e), 20] for e in generator.integers(0, 4, 200)]
    better = [[max(0, e - 1), w, c, n] for e, w, c, n in worse]
    found = study.Study({study.ON: [outcome(worse)] * 2, "a": [outcome(better)] * 2, "b": [outcome(worse)] * 2}, {})
    wer, cer = study.rates([outcome(worse).test])
    assert wer == pytest.approx(100 * sum(row[0] for row in worse) / 1000)
    versus = study.against(found, study.ON, 0, 500)
    assert versus["b"][0] == (0, 0, 0)
    gain, same = versus["a"]
    assert gain.value == pytest.approx(study.rates([outcome(better).test])[0] - wer)
    assert gain.low < gain.value < gain.high < 0
    assert same == (0, 0, 0)
    assert cer > 0


def test_everybody_is_tested_on_once_and_never_trained_on() -> None:
    pairs = [people.held_out(seed) for seed in range(6)]
    assert sorted(test for test, _ in pairs) == sorted(people.PEOPLE)
    assert all(test != dev for test, dev in pairs)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A digit is two tones, higher for some people than for others."""
    folder = tmp_path_factory.mktemp("digits")
    t = np.arange(int(0.25 * audio.RATE)) / audio.RATE
    for (i, name), digit in itertools.product(enumerate(people.PEOPLE), range(10)):
        low, high = (1 + 0.05 * i) * (200 + 60 * digit), (1 + 0.05 * i) * (1500 + 190 * digit)
        samples = 0.2 * np.sin(2 * math.pi * low * t) + 0.2 * np.sin(2 * math.pi * high * t)
        audio.write(folder / f"{digit}_{name}_0.wav", samples.astype(np.float32))
    return folder


def test_nobody_is_in_two_parts(digits: Path) -> None:
    data = people.data(digits, 1, people.Sizes(8, 3, 3))
    test, dev = people.held_out(1)
    spoken = [{example.source.split("-")[0] for example in part} for part in (data.train, data.dev, data.test)]
    assert spoken[1:] == [{dev}, {test}]
    assert not spoken[0] & {dev, test}
    assert all(3 <= len("".join(example.y).split()) <= 7 for example in data.train)


@pytest.mark.slow
def test_the_quick_form_twice(digits: Path, tmp_path: Path) -> None:
    arguments = ["reproduce", "wer", "--data", digits, "--quick", "--out", tmp_path, "--jobs", "1"]
    written = []
    for _ in range(2):
        result = CliRunner(env={"COLUMNS": "150"}).invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        written.append(json.loads((tmp_path / "results.json").read_text()))
    assert written[0] == written[1]  # the second time nothing is trained
    effort = study.Effort.quick()
    names = {study.CONVERGED, *study.objectives(["a", " "], effort)}
    assert set(written[0]["methods"]) == names
    assert {row[0] for row in Finding.read(tmp_path).grids[0].rows} == names


def test_missing_digits_are_one_sentence(tmp_path: Path) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["reproduce", "wer", "--data", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "wanted a folder of spoken digits" in result.output


def test_sums_of_objectives_have_a_name() -> None:
    found = objective_of("risk:temperature=1e+1+0.5*nll + 2*hinge", "hamming")
    assert [(factor, type(o).__name__) for factor, o in found.terms] == [
        (1.0, "Risk"), (0.5, "NegativeLogLikelihood"), (2.0, "Hinge"),
    ]  # fmt: skip
    assert objective_of("0.25*nll").terms[0][0] == 0.25
    with pytest.raises(ValueError, match="got the factor 'x'"):
        objective_of("risk+x*nll")
    with pytest.raises(ValueError, match="wanted one of"):
        objective_of("risk+0.1*unknown")
