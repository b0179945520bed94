"""The playground computes what the library does, in a real browser."""

import html
import importlib.util
import json
import re
import shutil
import subprocess
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
import torch

import structloss as sl

BUILD = Path(__file__).parent.parent / "docs/playground/build.py"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
    "--enable-logging=stderr",
]  # fmt: skip
LOSSES = {
    "hamming": sl.Hamming(), "edit": sl.EditDistance(), "edit:cap=2": sl.EditDistance(cap=2),
    "smith-waterman": sl.SmithWaterman(), "smith-waterman:cap=4": sl.SmithWaterman(cap=4), "ngram": sl.NGram(2),
}  # fmt: skip
OBJECTIVES: dict[str, Any] = {
    "NegativeLogLikelihood": lambda loss, _: sl.NegativeLogLikelihood(), "Perceptron": lambda loss, _: sl.Perceptron(),
    "SoftmaxMargin": lambda loss, _: sl.SoftmaxMargin(loss), "Hinge": lambda loss, _: sl.Hinge(loss),
    "DirectLoss": lambda loss, epsilon: sl.DirectLoss(loss, epsilon=epsilon), "Risk": lambda loss, _: sl.Risk(loss),
}  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    spec = importlib.util.spec_from_file_location("playground_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    path = tmp_path_factory.mktemp("playground") / "playground.html"
    path.write_text(build.page())
    return path


def opened(page: Path, state: dict[str, str], folder: Path) -> str:
    """The page as it stands after its scripts, from which nothing came on the console."""
    url = f"{page.as_uri()}#{urllib.parse.urlencode(state)}"
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder}", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    return done.stdout


def said(dom: str) -> str:
    found = re.search(r'<p id="said"[^>]*>(.*?)</p>', dom, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])


def case(loss: str, objective: str, generator: torch.Generator) -> dict[str, Any]:
    length, labels = (int(torch.randint(low, 6, (), generator=generator)) for low in (1, 2))
    other = length if loss == "hamming" else int(torch.randint(1, 6, (), generator=generator))
    reference = torch.randint(labels, (other,), generator=generator).tolist()
    scores = (2 * torch.randn(length, labels, generator=generator, dtype=torch.float64)).tolist()
    return {"loss": loss, "objective": objective, "reference": reference, "scores": scores, "epsilon": 0.5}


def test_the_page_computes_what_the_library_does(page: Path, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    cases = [case(loss, objective, generator) for loss in LOSSES for objective in OBJECTIVES for _ in range(3)]
    found = json.loads(said(opened(page, {"check": json.dumps(cases)}, tmp_path)))
    values = 0
    for x, got in zip(cases, found, strict=True):
        loss, scores = LOSSES[x["loss"]], torch.tensor([x["scores"]], dtype=torch.float64, requires_grad=True)
        chain, objective = sl.Chain(scores), OBJECTIVES[x["objective"]](loss, x["epsilon"])
        assert got["risk"] == pytest.approx(float(chain.detach().expected(loss, [x["reference"]])))
        outputs = min(5, len(x["scores"][0]) ** len(x["scores"]))
        wanted = chain.topk(outputs)[1][:, 0].tolist()
        assert [best["string"] for best in got["model"]] == wanted
        if got["result"] is None:
            with pytest.raises(ValueError, match="reference"):
                objective(chain, [x["reference"]])
            assert x["objective"] not in ("Risk", "DirectLoss")
            continue
        values += 1
        value = objective(chain, [x["reference"]])
        (gradient,) = torch.autograd.grad(value, scores)
        assert got["result"]["value"] == pytest.approx(float(value.detach()), abs=1e-9), x
        assert torch.allclose(torch.tensor(got["result"]["gradient"], dtype=torch.float64), gradient[0]), x
    assert values > len(cases) / 2


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_is_drawn(page: Path, objective: str, tmp_path: Path) -> None:
    dom = opened(page, {"reference": "abca", "answer": "bcac", "loss": "edit", "objective": objective}, tmp_path)
    assert f"{objective}: " in said(dom)
    assert dom.count("<circle") > 4
    assert dom.count('class="string"') == 10


def test_what_has_no_value_is_said(page: Path, tmp_path: Path) -> None:
    assert "has no value" in said(opened(page, {"reference": "ab", "answer": "abc", "loss": "edit"}, tmp_path))
    assert "wants two strings of one length" in said(
        opened(page, {"reference": "ab", "answer": "abc", "loss": "hamming"}, tmp_path)
    )
    assert "wanted 1 to 5" in said(opened(page, {"reference": "", "answer": "abc"}, tmp_path))
