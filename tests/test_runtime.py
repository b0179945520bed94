"""structloss reproduce runtime: Cortes 2018, Figure 5."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("matplotlib", reason="matplotlib (the extra plot) is not installed")

import structloss as sl
from structloss.cli import app
from structloss.reproduce import pruning, runtime
from structloss.reproduce.finding import Finding
from structloss.reproduce.gradients import grad_naive


def test_growth_finds_the_factor_of_an_exponential_and_the_exponent_of_a_power() -> None:
    lengths = list(range(2, 20))
    assert runtime.growth(lengths, [3e-4 * 2.5**n for n in lengths]).factor == pytest.approx(2.5)
    assert runtime.growth(lengths, [3e-4 * n**1.5 for n in lengths]).exponent == pytest.approx(1.5)


def test_growth_leaves_out_the_shorter_half() -> None:
    lengths = list(range(2, 12))
    seconds = [1e-3] * 5 + [1e-3 * 3.0**n for n in range(5)]
    assert runtime.growth(lengths, seconds).factor == pytest.approx(3.0)
    assert runtime.growth([2, 3, 4], [1.0, 10.0, 100.0]).factor == pytest.approx(10.0)  # three points are all used
    assert math.isnan(runtime.growth([2], [1.0]).factor)


def test_every_trial_has_weights_and_a_reference_of_its_own() -> None:
    potentials, reference = runtime.draw(6, seed=0, trial=3)
    assert potentials.shape == (6, 10, 10)
    assert not potentials[0].any()  # no bigram ends there
    assert (potentials[1] == potentials[5]).all()
    again, same = runtime.draw(6, seed=0, trial=3)
    assert same == reference
    assert (again == potentials).all()
    others = [runtime.draw(6, 0, 4), runtime.draw(6, 1, 3)]
    assert all((p != potentials).any() and r != reference for p, r in others)


def by_definition(loss: sl.Loss, potentials: np.ndarray, reference: list[int]) -> np.ndarray:
    def value(y: tuple[int, ...]) -> float:
        found = loss.distance(np.array(y), np.array(reference))
        return found if found < math.inf else -math.inf

    return grad_naive(potentials, value)


@pytest.mark.parametrize(
    "loss", [sl.EditDistance(cap=2), sl.EditDistance(threshold=2), sl.SmithWaterman(cap=3), sl.NGram(2, smoothing=0)]
)
def test_ours_is_the_enumeration_for_capped_losses_too(loss: sl.Loss) -> None:
    example = runtime.draw(4, seed=5, trial=0)
    np.testing.assert_allclose(runtime.ours(loss)(*example), by_definition(loss, *example), atol=1e-12)


@pytest.mark.parametrize("loss", [sl.EditDistance(), sl.SmithWaterman(), sl.NGram(2, smoothing=0)])
def test_the_compiled_loop_is_the_loop(loss: sl.Loss) -> None:
    example = runtime.draw(4, seed=6, trial=0)
    np.testing.assert_allclose(runtime.naive(loss)(*example), by_definition(loss, *example), atol=1e-12)


def test_the_error_of_pruning_is_the_share_of_the_weight_that_moved() -> None:
    exact = np.zeros((2, 2, 2))
    exact[:, 0, 0] = 1.0
    found = exact.copy()
    found[1, 0] = [0.75, 0.25]
    assert pruning.moved(exact, found) == pytest.approx(0.125)
    errors = {(e.loss, e.kind, e.limit): e.mean for e in pruning.errors([3], 2, 0, lambda text: None)}
    for loss in ("edit distance", "Smith-Waterman"):
        assert errors[loss, "threshold", 1] > errors[loss, "threshold", 3] > errors[loss, "cap", 3] - 1e-12
    assert errors["edit distance", "threshold", 6] < 1e-12  # three labels cannot be so far from three


def test_openfst_with_the_papers_pruning_keeps_the_strings_within_the_threshold() -> None:
    pytest.importorskip("pywrapfst", reason="OpenFst (the extra fst) is not installed")
    for m in pruning.machines(5, 0, lambda text: None):
        assert m.openfst_strings == m.strings == m.shared
        assert m.states < m.openfst_states
    assert pruning.strings(sl.EditDistance(threshold=1).automaton([0, 1, 2], 10, 3)) == 1 + 3 * 9


def test_ours_compiles_its_machine_anew() -> None:
    loss = sl.EditDistance(cap=2)
    compiled = []
    compile_it = loss.compile
    loss.compile = lambda *arguments: compiled.append(1) or compile_it(*arguments)
    gradient, example = runtime.ours(loss), runtime.draw(4, 0, 0)
    gradient(*example), gradient(*example)
    assert len(compiled) == 2


def test_a_curve_ends_where_the_next_point_would_take_too_long() -> None:
    plan = runtime.Plan(trial_seconds=5.0, curve_seconds=20.0)
    curve = runtime.Curve(
        "edit distance", runtime.OPENFST, [runtime.Point(7, 3, 0.1, 0.0), runtime.Point(8, 3, 1.0, 0.0)]
    )
    assert runtime._ends(curve, 9, plan) == "about 10 s a trial expected at l = 9"
    curve.points[0] = runtime.Point(7, 3, 0.5, 0.0)
    assert runtime._ends(curve, 9, plan) == ""
    curve.spent = 15.0
    assert runtime._ends(curve, 9, plan) == "20 s were over before l = 9"


def quick(out: Path) -> dict[str, object]:
    result = CliRunner(env={"COLUMNS": "150"}).invoke(app, ["reproduce", "runtime", "--quick", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert (out / "runtime.png").stat().st_size > 0
    return json.loads((out / "results.json").read_text())


@pytest.mark.slow
def test_the_quick_form(tmp_path: Path) -> None:
    data = quick(tmp_path)
    reach = {(curve["loss"], curve["method"]): curve["points"][-1]["length"] for curve in data["curves"]}
    assert reach["edit distance", "structloss, cap 5"] == reach["bigram", "structloss"] == 30
    assert reach["edit distance", "naive"] == 4
    assert data["compared"]["naive"] >= 18
    assert data["difference"]["naive"] < 1e-8
    finding = Finding.read(tmp_path)
    captions = [grid.caption.split(":")[0].split(" at ")[0] for grid in finding.grids]
    machines = ["Det(M) of the edit distance"] if runtime.has_openfst() else []
    assert captions == ["edit distance", "Smith-Waterman", "bigram", *machines, "edit distance", "Smith-Waterman"]
    assert finding.command == "structloss reproduce runtime --quick"
    if runtime.has_openfst():
        assert data["difference"]["OpenFst"] < 1e-6
        assert all(data["compared"][name] >= 10 and data["difference"][name] < 1e-6 for name in runtime.PRUNED)
        for m in data["machines"]:
            assert m["openfst_strings"] == m["strings"] == m["shared"] > 0
        assert "OpenFst" in {row[0] for row in finding.grids[0].rows}


def test_without_openfst_its_curves_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "has_openfst", lambda: False)
    data = quick(tmp_path)
    assert not any("OpenFst" in curve["method"] for curve in data["curves"])
    assert any("OpenFst is not installed" in remark for remark in Finding.read(tmp_path).remarks)
