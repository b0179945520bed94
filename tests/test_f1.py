"""structloss reproduce f1: taggers trained on the F1 that they are judged by."""

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("matplotlib", reason="matplotlib (the extra plot) is not installed")
pytest.importorskip("sklearn", reason="scikit-learn (the extra sklearn) is not installed")

import structloss as sl
from structloss.cli import app
from structloss.losses.schemes import Tags, chunks
from structloss.reproduce.f1 import bootstrap, counts, data, methods, posteriors, study
from structloss.reproduce.f1.cells import ARGMAX, Cell, Recipe, train
from structloss.reproduce.f1.experiment import Bench, Choice, Method, Result
from structloss.reproduce.finding import Finding
from structloss.tasks.tagging.chunks import chunk_score

LABELS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


def sentence(draw: random.Random) -> list[str]:
    """Names of one or two words between words that are none."""
    rows = []
    while len(rows) < 5:
        kind = draw.choice(["PER", "LOC", "", ""])
        if kind:
            first = [f"{draw.choice('ABC')}{kind.lower()}\tB-{kind}"]
            rows += first + [f"{draw.choice('XY')}son\tI-{kind}"] * draw.randrange(2)
        else:
            rows.append(f"{draw.choice(['in', 'of', 'Apex', 'sees', 'to'])}\tO")
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Danish and Croatian that nobody speaks; Danish has few names in dev, Croatian many."""
    root, draw = tmp_path_factory.mktemp("tagging"), random.Random(0)
    (root / "uner").mkdir()
    for name, sizes in (("danish", (40, 10, 20)), ("croatian", (60, 250, 20))):
        for part, size in zip(("train", "dev", "test"), sizes, strict=True):
            text = "\n\n".join("\n".join(sentence(draw)) for _ in range(size))
            (root / "uner" / f"{name}-{part}.txt").write_text(text + "\n")
    return root


def labels_of(y: np.ndarray, sizes: list[int]) -> list[list[str]]:
    cuts = np.cumsum([0, *sizes])
    return [[LABELS[k] for k in y[a:b]] for a, b in itertools.pairwise(cuts)]


def test_counts_are_those_of_chunk_score() -> None:
    generator = np.random.default_rng(0)
    sizes = [0, 3, 1, 7, 0, 4]
    for _ in range(200):
        y, r = generator.integers(0, 5, (2, sum(sizes)))
        found = counts.of_sentences(y, r, np.array(sizes), Tags.of(LABELS))
        ours, theirs = labels_of(y, sizes), labels_of(r, sizes)
        wanted = [
            [len(chunks(a) & chunks(b)), len(chunks(a)), len(chunks(b)), sum(map(str.__eq__, a, b)), len(a)]
            for a, b in zip(ours, theirs, strict=True)
        ]
        assert found.tolist() == wanted
        assert counts.f1(found.sum(0)) == pytest.approx(chunk_score(ours, theirs).f1)


def test_posteriors_of_chunks_and_the_best_set_are_those_of_enumeration() -> None:
    torch.manual_seed(0)
    labels, length = ("B-LOC", "B-PER", "I-PER", "O"), 4
    chain = sl.Chain.from_emissions(2 * torch.randn(2, length, 4), torch.randn(4, 4), lengths=[4, 3])
    tables = posteriors.chunk_posteriors(chain, labels)
    errors = sl.ChunkErrors(labels, miss=0.7, false_alarm=0.3)
    for b, n in enumerate((4, 3)):
        every = list(itertools.product(range(4), repeat=n))
        padded = [torch.tensor([[*y, *[-1] * (length - n)]]) for y in every]
        scores = torch.cat([chain[[b]].score(y) for y in padded])
        p = scores.double().softmax(0).numpy()
        wanted = np.zeros(tables.shape[1:])
        for y, q in zip(every, p, strict=True):
            for kind, begin, end in chunks([labels[k] for k in y]):
                wanted[begin, end - begin - 1, ["LOC", "PER"].index(kind)] += q
        assert np.allclose(tables[b], wanted, atol=1e-5)
        risks = [float(errors([list(y)] * len(every), [list(r) for r in every]).double().numpy() @ p) for y in every]
        found = posteriors.best_chunks(tables[[b]], np.array([n]), 0.3, labels)[0]
        assert risks[every.index(tuple(found.tolist()))] == pytest.approx(min(risks), abs=1e-6)


def test_few_names_in_dev_are_cross_validated(folder: Path) -> None:
    assert data.available(folder) == ["danish", "croatian"]
    few, many = data.read(folder, "danish"), data.read(folder, "croatian")
    assert few.crossed
    assert not many.crossed
    assert sorted(np.concatenate([part.held for part in few.parts])) == list(range(50))
    assert len(few.final.train) == 50
    assert len(many.final.train) == 60
    for part in (*few.parts, *many.parts):
        assert not set(part.train) & set(part.held)
        assert not set(part.train) & set(many.test)


def test_labels_are_flipped_in_training_only_and_by_the_seed(folder: Path) -> None:
    clean = data.read(folder, "danish")
    noisy, again = (data.flipped(clean, 0.5, 3) for _ in range(2))
    assert 0.3 < (noisy.gold(clean.everything) != clean.gold(clean.everything)).mean() < 0.7
    assert (noisy.gold(clean.everything) == again.gold(clean.everything)).all()


@pytest.mark.parametrize("model", ["linear", "bilstm"])
def test_a_tagger_learns_and_its_cell_is_kept(folder: Path, tmp_path: Path, model: str) -> None:
    few = data.read(folder, "danish")
    recipe = Recipe("hinge", "f1", warm_up=2, model=model)
    cell = train(few, few.parts[0], recipe, 0, (2, 8), [ARGMAX, ("bias", 1.0)], test=True)
    assert cell.held.shape == (2, 2, 5)
    assert cell.test.shape == (2, 2, 20, 5)
    assert counts.f1(cell.test.sum(2)).max() > 0.7
    assert cell.held[0, 1, counts.MADE] >= cell.held[0, 0, counts.MADE]  # a bias against O makes more chunks
    cell.write(tmp_path / "cell.npz")
    read = Cell.read(tmp_path / "cell.npz")
    assert read.decoders == cell.decoders
    assert read.passes == cell.passes
    assert (read.test == cell.test).all()
    assert (read.held == cell.held).all()


def test_a_finished_training_is_not_done_again(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    many = data.read(folder, "croatian")
    bench = Bench(tmp_path, (1, 2), (0, 1), said.append)
    method = Method("likelihood", (Recipe("nll"), Recipe("nll", C=4.0)))
    first = bench.run(many, [method], counts.f1)
    trained = len(said)
    assert trained == 2 + 1 + 1  # both recipes with the first seed, the better one with the second, and the result
    again = bench.run(many, [method], counts.f1)
    assert len(said) == trained + 1
    assert (first["likelihood"].test == again["likelihood"].test).all()


def test_the_bootstrap_is_paired() -> None:
    generator = np.random.default_rng(0)
    right = generator.integers(0, 2, (1, 300))
    table = np.stack([right, np.ones_like(right), np.ones_like(right), right, np.ones_like(right)], 2)
    better = table.copy()
    better[0, :60, 0] = 1
    choice = Choice(Recipe("nll"), 1, ARGMAX, 0.0)
    results = {"danish": {methods.BIASED: Result(choice, table), "hinge, F1": Result(choice, better)}}
    found = study.versus(results, {"danish": "hinge, F1"}, seed=0, resamples=500)
    gain = found.means[study.CHOSEN]
    value = bootstrap.mean_f1(better) - bootstrap.mean_f1(table)
    assert gain.value == pytest.approx(value)
    assert 0 < gain.low < value < gain.high < 2 * value
    same = found.means[methods.BIASED]
    assert (same.value, same.low, same.high) == (0, 0, 0)


def test_missing_data_are_one_sentence(tmp_path: Path) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["reproduce", "f1", "--data", str(tmp_path)])
    assert result.exit_code == 2
    assert "wanted a folder with uner/LANGUAGE-train.txt" in result.output


@pytest.mark.slow
def test_the_quick_form_twice(folder: Path, tmp_path: Path) -> None:
    written = []
    for name in ("first", "again"):
        out = tmp_path / name
        arguments = ["reproduce", "f1", "--data", str(folder), "--quick", "--out", str(out)]
        result = CliRunner(env={"COLUMNS": "150"}).invoke(app, arguments)
        assert result.exit_code == 0, result.output
        written.append(json.loads((out / "results.json").read_text()))
    assert written[0] == written[1]
    finding = Finding.read(out)
    assert set(finding.pictures) == {"f1.png", "f1_flips.png", "f1_costs.png"}
    assert {row[0] for row in finding.grids[0].rows} == {method.name for method in methods.rows(small=True)}
