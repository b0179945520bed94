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
from structloss.reproduce.finding import Finding
from structloss.reproduce.genome import choosing, study, training, writing
from structloss.reproduce.genome.sequences import Joachims, Markov, closeness

DRAWN = np.random.default_rng


def test_the_same_seed_gives_the_same_sequences() -> None:
    first, again, other = (Joachims().sample(5, DRAWN(seed)) for seed in (0, 0, 1))
    assert first.native.shape == (5, 50)
    assert first.candidates.shape == (5, 11, 50)
    assert set(np.unique(first.candidates)) == {0, 1, 2, 3}
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert (first.native != other.native).any()


def test_a_homolog_of_matches_has_a_stretch_of_its_native_and_one_of_substitutions_the_next_letters() -> None:
    for operations, shift in (((1.0, 0.0, 0.0, 0.0), 0), ((0.0, 1.0, 0.0, 0.0), 1)):
        found = Joachims(operations, letters=20).sample(4, DRAWN(2))
        for native, homolog in zip(found.native, found.candidates[:, 0], strict=True):
            wanted = (native + shift) % 20
            stretches = [(wanted[i : i + 30] == homolog[j : j + 30]).all() for i in range(21) for j in range(21)]
            assert sum(stretches) == 1


def test_operations_come_as_often_as_they_are_probable() -> None:
    """Deletions alone leave random letters; insertions alone, too; letters come in proportion to their number."""
    found = Joachims((0.2, 0.4, 0.2, 0.2), letters=20, rising=True).sample(300, DRAWN(3))
    counts = np.bincount(found.native.ravel(), minlength=20) / found.native.size
    assert np.abs(counts - np.arange(1, 21) / 210).max() < 0.01
    alone = Joachims((0.0, 0.0, 0.0, 1.0), letters=20).sample(50, DRAWN(4))
    assert closeness(*alone)[:, 0].mean() == pytest.approx(closeness(*alone)[:, 1:].mean(), abs=0.7)
    with pytest.raises(ValueError, match=r"operations: got .*, but wanted probabilities that sum to 1"):
        Joachims((0.5, 0.5, 0.5, 0.0))


def test_closeness_is_that_of_each_pair() -> None:
    native, others = Joachims().sample(3, DRAWN(5))
    found = closeness(native, others)
    for b in range(3):
        for k in range(11):
            loss = sl.SmithWaterman()([others[b, k].tolist()], [native[b].tolist()])
            assert found[b, k] == -loss.item()


@pytest.fixture
def problems() -> choosing.Problems:
    return choosing.Problems(Joachims().sample(4, DRAWN(6)))


@pytest.mark.parametrize("alignments", ["best", "all"])
def test_softmax_margin_over_candidates_is_that_over_the_list_of_their_strings(
    problems: choosing.Problems, alignments: str
) -> None:
    """The loss reads the native, the reference is the homolog: with a lattice these are two lines."""
    model = choosing.Aligner(4, "best" if alignments == "best" else "all")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    chain, homolog = model(problems), torch.zeros(4, 1, dtype=torch.int64)
    found = sl.SoftmaxMargin(training.Listed(-problems.scores), reduction="none")(chain, homolog)
    scores = torch.stack([chain.score(torch.full((4, 1), k)) for k in range(11)], 1)
    lattice = sl.Lattice.nbest(problems.candidates.tolist(), scores)
    augmented = lattice.augment(sl.SmithWaterman(), problems.native.tolist()).log_partition()
    wanted = augmented - lattice.given(problems.candidates[:, 0].tolist()).log_partition()
    assert torch.allclose(found, wanted)


def test_smith_waterman_as_the_weights_finds_the_closest(problems: choosing.Problems) -> None:
    model = choosing.Aligner(4, "best")
    with torch.no_grad():
        model.pairs.copy_(3.0 * torch.eye(4) - 1.0)
        model.gap.fill_(-1.0)
    assert torch.equal(model(problems).max(), problems.scores.amax(1))
    outcome = problems.outcome(model.answers(problems))
    assert (outcome.score, outcome.closest) == (problems.scores.amax(1).mean().item(), 1.0)


def test_the_best_alignment_scores_what_the_library_says_and_has_its_gradient(problems: choosing.Problems) -> None:
    model, (native, others) = choosing.Aligner(4, "best"), problems.pairs
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    for gap in (-1.0, 0.3):
        model.gap.data.fill_(gap)
        weights = list(model.parameters())
        table = model.pairs[native[:, :, None], others[:, None]]
        wanted = sl.Alignment(table, model.gap, mode="local").max().reshape(4, 1, 11)
        found = torch.stack([model(problems).score(torch.full((4, 1), k)) for k in range(11)], 1)
        assert torch.allclose(found, wanted[:, 0])
        factors = torch.randn(4, 11, dtype=torch.float64)
        gradients = [torch.autograd.grad((x * factors).sum(), weights) for x in (found, wanted[:, 0])]
        assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))


def test_what_is_listed_costs_what_was_given() -> None:
    loss, y = training.Listed(torch.tensor([[1.0, 5.0], [2.0, 7.0]])), torch.tensor([[1], [0]])
    chain = sl.Chain(torch.zeros(2, 1, 2))
    assert loss(y, y).tolist() == [5.0, 2.0]
    assert chain.augment(loss, y).score(y).tolist() == [5.0, 2.0]
    assert chain.expected(loss, y).tolist() == [3.0, 4.5]


def test_copies_are_as_noisy_as_asked_and_have_one_source() -> None:
    found = Markov(concentration=0.2, substitution=0.3, indel=0.0).sample(200, DRAWN(7))
    assert (found.native != found.candidates[:, 0]).mean() == pytest.approx(0.3, abs=0.02)
    counts = np.zeros((4, 4))
    np.add.at(counts, (found.native[:, :-1], found.native[:, 1:]), 1)
    wanted = Markov(concentration=0.2).transitions()
    assert np.abs(counts / counts.sum(1, keepdims=True) - wanted).max() < 0.05
    still = Markov(substitution=0.0).sample(5, DRAWN(8))
    assert (still.native == still.candidates[:, 0]).all()
    shifted = Markov(substitution=0.0, indel=0.05).sample(20, DRAWN(9))
    assert (shifted.native != shifted.candidates[:, 0]).mean() > 0.3
    with pytest.raises(ValueError, match=r"indel: got 1\.5, but wanted a probability"):
        Markov(indel=1.5)


def short(features: str = "pairs") -> tuple[writing.Writer, writing.Strings]:
    """A model with random weights, and strings of four letters, of which there are 256."""
    torch.manual_seed(3)
    model = writing.Writer(4, "pairs" if features == "pairs" else "copies").double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return model, writing.Strings(Joachims(length=4, aligned=3).sample(2, DRAWN(10)))


@pytest.mark.parametrize("features", ["pairs", "copies"])
def test_a_string_scores_the_sum_of_its_features(features: str) -> None:
    model, strings = short(features)
    x, y = strings.homolog[0].tolist(), strings.native[0].tolist()
    own = [model.own[a, b] if features == "pairs" else model.own * (a == b) for a, b in zip(x, y, strict=True)]
    wanted = torch.stack([*own, *(model.bigrams[a, b] for a, b in itertools.pairwise(y))]).sum().detach()
    assert model(strings).score(strings.native)[0].item() == pytest.approx(wanted.item())


@pytest.mark.parametrize("objective", [sl.SoftmaxMargin, sl.Risk])
@pytest.mark.parametrize(("kind", "listed", "error"), [("best", 256, 1e-6), ("drawn", 5_000, 0.1)])
def test_a_list_of_all_strings_or_of_many_that_were_drawn_has_the_exact_objective(
    objective: writing.Objectives, kind: str, listed: int, error: float
) -> None:
    model, strings = short()
    setting, draws = writing.Writing(listed=listed), torch.Generator().manual_seed(0)
    exact = objective(sl.SmithWaterman())(model(strings), strings.native)
    found = writing.Renewed(model, strings, setting, objective, "best" if kind == "best" else "drawn", draws)()
    assert found.item() == pytest.approx(exact.item(), abs=error)
    for a, b in zip(*(torch.autograd.grad(x, list(model.parameters())) for x in (found, exact)), strict=True):
        assert torch.allclose(a, b, atol=error)


def test_strings_that_were_drawn_stand_for_a_model_that_has_moved_on() -> None:
    model, strings = short()
    found = writing.Renewed(model, strings, writing.Writing(listed=5_000), sl.Risk, "drawn", torch.Generator())
    found()
    with torch.no_grad():
        model.bigrams += 0.3 * torch.randn(4, 4)
    exact = sl.Risk(sl.SmithWaterman())(model(strings), strings.native)
    assert found().item() == pytest.approx(exact.item(), abs=0.1)


def test_paired_differences_are_judged_by_two_standard_errors() -> None:
    def rows(*differences: float) -> list[dict[str, training.Outcome]]:
        return [
            {"cross-entropy": training.Outcome(90.0 + i, 0.9), "risk": training.Outcome(90.0 + i + d, 0.9)}
            for i, d in enumerate(differences)
        ]

    found = training.paired(rows(1.0, 2.0, 3.0), "risk")
    assert (found.mean, found.above, found.sign) == (pytest.approx(2.0), 3, 1)
    assert found.error == pytest.approx(1 / math.sqrt(3))
    assert training.paired(rows(-1.0, -2.0, -3.0), "risk").sign == -1
    assert training.paired(rows(-1.0, 2.0, -3.0), "risk").sign == 0
    assert training.paired(rows(0.0, 0.0), "risk").sign == 0


def test_a_run_that_was_ended_goes_on(tmp_path: Path) -> None:
    asked: list[int] = []

    class Once:
        def fold(self, seed: int, number: int) -> dict[str, training.Outcome]:
            asked.append(number)
            return {"cross-entropy": training.Outcome(float(number), 0.5)}

        def __repr__(self) -> str:
            return "once"

    for folds in (2, 3, 3):
        found = study.run([study.Configuration("any", Once(), folds)], tmp_path, 0, lambda _: None)
    assert asked == [0, 1, 2]
    assert [fold["cross-entropy"].score for rows in found.values() for fold in rows] == [0.0, 1.0, 2.0]
    study.run([study.Configuration("any", Once(), 1)], tmp_path, 1, lambda _: None)
    assert asked == [0, 1, 2, 0]  # of another seed


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
    names = [one.name for one in study.configurations(10, quick=True)]
    assert [row[0] for row in finding.grids[0].rows] == names
    assert {row[0] for row in finding.grids[4].rows} >= set(choosing.LEARNED)
    assert {row[0] for row in finding.grids[-1].rows} >= {writing.COPY, writing.NBEST, training.RISK}
