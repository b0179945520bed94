"""structloss reproduce lecture: margins and slacks against enumeration, the curves against formulas, the command."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("matplotlib", reason="matplotlib (the extra plot) is not installed")

from structloss.cli import app
from structloss.reproduce import lecture


def test_margins_and_slacks_agree_with_enumeration() -> None:
    generator = torch.Generator().manual_seed(0)
    chain = lecture.Chain(torch.randn(5, 3, 3, 3, generator=generator, dtype=torch.float64), lengths=[3, 2, 3, 1, 3])
    labels = torch.randint(3, (5, 3), generator=generator)
    found = lecture.margins(chain, labels)
    for b, length in enumerate(chain.lengths.tolist()):
        outputs = torch.zeros(3**length, 5, 3, dtype=torch.int64)
        outputs[:, b, :length] = torch.tensor(list(product(range(3), repeat=length)))
        scores = chain.score(outputs)[:, b]
        losses = (outputs[:, b, :length] != labels[b, :length]).sum(1)
        other = losses > 0
        gold = scores[~other].item()
        assert found.margin[b] == pytest.approx(gold - scores[other].max().item())
        assert found.rescaled[b] == pytest.approx(gold - (scores + losses)[other].max().item())
        assert found.slack[b] == pytest.approx((scores + losses).max().item() - gold)
        assert found.slack[b] == pytest.approx(max(0.0, -found.rescaled[b]))


@pytest.mark.parametrize("loss", [1.0, 3.0])
def test_objectives_along_the_margin_are_their_formulas(loss: float) -> None:
    m = torch.linspace(-4, 6, 41) + 0.01
    wanted = {
        "the loss itself": loss * (m < 0).float(),
        "perceptron": (-m).clamp(min=0),
        "structural SVM": (loss - m).clamp(min=0),
        "slack rescaling": loss * (1 - m).clamp(min=0),
        "CRF": (1 + (-m).exp()).log(),
        "softmax-margin": (1 + (loss - m).exp()).log(),
    }
    found = lecture.along_margin(loss, m)
    assert list(found) == list(wanted)
    for name, values in wanted.items():
        assert torch.allclose(found[name], values, atol=1e-5), name


def test_sentences_are_padded_and_the_same_seed_gives_the_same() -> None:
    def made() -> lecture.Sentences:
        generator = torch.Generator().manual_seed(2)
        return lecture.Language(generator).sentences(20, generator)

    a, b = made(), made()
    assert torch.equal(a.words, b.words)
    assert a.lengths.min() >= 5
    assert a.lengths.max() <= 12
    beyond = torch.arange(12) >= a.lengths[:, None]
    assert not a.words[beyond].any()
    assert not a.labels[beyond].any()


@pytest.mark.slow
def test_the_quick_command(tmp_path: Path) -> None:
    def run(name: str) -> dict[str, object]:
        arguments = ["reproduce", "lecture", "--quick", "--out", str(tmp_path / name)]
        result = CliRunner(env={"COLUMNS": "120"}).invoke(app, arguments)
        assert result.exit_code == 0, result.output
        read: dict[str, object] = json.loads((tmp_path / name / "results.json").read_text())
        return read

    first = run("a")
    assert first == run("b")
    finding = json.loads((tmp_path / "a" / "finding.json").read_text())
    assert finding["command"] == "structloss reproduce lecture --quick"
    assert [row[0] for row in finding["grids"][0]["rows"]] == list(lecture.OBJECTIVES)
    for name in finding["pictures"]:
        assert (tmp_path / "a" / name).read_bytes().startswith(b"\x89PNG")
    for name, runs in first["runs"].items():
        for one in runs:
            assert one["held_out"][-1] < 40, name  # guessing gives 83
