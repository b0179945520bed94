"""structloss reproduce genome: Cortes 2018, section 6."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("matplotlib", reason="matplotlib (the extra plot) is not installed")

import structloss as sl
from structloss.cli import app
from structloss.reproduce import genome
from structloss.reproduce.finding import Finding


def source(seed: int = 0, **choices: float) -> genome.Source:
    return genome.Source(genome.Setting(**choices), np.random.default_rng(seed))


def test_sequences_have_fifty_letters_and_the_same_seed_gives_the_same() -> None:
    first, again, other = (source(seed).sample(20) for seed in (0, 0, 1))
    for letters in first:
        assert letters.shape == (20, 50)
        assert set(np.unique(letters)) <= set(range(genome.ALPHABET))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert (first.native != other.native).any()


def test_a_homolog_without_noise_is_the_native() -> None:
    examples = source(substitution=0.0, indel=0.0).sample(10)
    assert (examples.homolog == examples.native).all()
    assert (examples.decoy != examples.native).any()


def test_so_many_letters_of_a_homolog_are_substituted() -> None:
    examples = source(substitution=0.2, indel=0.0).sample(400)
    assert (examples.homolog != examples.native).mean() == pytest.approx(0.2, abs=0.02)


def test_indels_shift_letters_and_smith_waterman_forgives_it() -> None:
    examples = source(substitution=0.0, indel=0.02, concentration=5.0).sample(200)
    own, others = (-sl.SmithWaterman()(torch.from_numpy(y), torch.from_numpy(examples.native)) for y in examples[1:])
    assert (examples.homolog != examples.native).mean() > 0.2
    assert own.mean() > 90 > 60 > others.mean()


def test_a_noise_that_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match=r"indel: got 1\.5, but wanted a probability"):
        source(indel=1.5)


def test_the_score_of_the_model_is_the_sum_of_its_features() -> None:
    torch.manual_seed(0)
    examples = source().sample(2)
    x, model = genome.inputs(examples), genome.Model()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    y = np.random.default_rng(3).integers(0, 4, 50)
    reach, width = genome.REACH, 2 * genome.REACH + 1
    letters = model.letters.reshape(2 * width, genome.ALPHABET + 1, genome.ALPHABET)
    wanted = 0.0
    for which, given in enumerate((examples.homolog[1], examples.decoy[1])):
        for o in range(width):
            for t in range(50):
                place, weight = t + o - reach, which * width + o
                inside = 0 <= place < 50
                wanted += letters[weight, given[place] if inside else genome.ALPHABET, y[t]].item()
                if t > 0 and 0 < place < 50 and (given[place - 1], given[place]) == (y[t - 1], y[t]):
                    wanted += model.pairs[weight].item()
    wanted += sum(model.transitions[a, b].item() for a, b in itertools.pairwise(y))
    score = model(x).score(torch.from_numpy(np.stack([y, y])))[1].item()
    assert score == pytest.approx(wanted, abs=1e-3)


def test_paired_differences_are_judged_by_two_standard_errors() -> None:
    def rows(*differences: float) -> list[dict[str, genome.Outcome]]:
        return [
            {"cross-entropy": genome.Outcome(90.0 + i, 0.9), "risk": genome.Outcome(90.0 + i + d, 0.9)}
            for i, d in enumerate(differences)
        ]

    found = genome.paired(rows(1.0, 2.0, 3.0), "risk")
    assert (found.mean, found.above, found.sign) == (pytest.approx(2.0), 3, 1)
    assert found.error == pytest.approx(1 / math.sqrt(3))
    assert genome.paired(rows(-1.0, -2.0, -3.0), "risk").sign == -1
    assert genome.paired(rows(-1.0, 2.0, -3.0), "risk").sign == 0
    assert genome.paired(rows(0.0, 0.0), "risk").sign == 0


def test_training_learns_more_than_to_copy() -> None:
    examples = source(substitution=0.1, indel=0.0, concentration=0.1)
    train, test = genome.inputs(examples.sample(30)), examples.sample(60)
    model = genome.minimum(sl.NegativeLogLikelihood(), train, strength=0.03, iterations=40)
    native = torch.from_numpy(test.native)
    found = genome.outcome(model(genome.inputs(test)).argmax(), native)
    assert found.score > genome.outcome(torch.from_numpy(test.homolog), native).score + 1


@pytest.mark.slow
def test_the_quick_form_twice(tmp_path: Path) -> None:
    written = []
    for name in ("first", "again"):
        out = tmp_path / name
        result = CliRunner(env={"COLUMNS": "150"}).invoke(app, ["reproduce", "genome", "--quick", "--out", str(out)])
        assert result.exit_code == 0, result.output
        assert (out / "genome.png").stat().st_size > 0
        written.append(json.loads((out / "results.json").read_text()))
    assert written[0] == written[1]
    finding = Finding.read(out)
    assert finding.command == "structloss reproduce genome --quick"
    rows = {row[0] for row in finding.grids[0].rows}
    assert rows == {genome.COPY, genome.COPY_DECOY, *genome.objectives(6.0)}
    assert any("on the same 2 folds" in remark for remark in finding.remarks)
