"""The examples run as they are, and so does every Python block of the README and of the documentation."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import notebooks

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SMALL = {
    "edit_distance_gradients": ["--seconds", "0.05"],
    "parsers": ["--every", "300", "--epochs", "1", "--seeds", "1"],
    "proteins": ["--epochs", "1"],
    "snakes": ["--epochs", "1", "--images", "20"],
    "scene": ["--epochs", "2", "--seeds", "1", "--pictures", "100"],
}
DATA = Path(os.environ.get("STRUCTLOSS_DATA", ROOT.parent / "shared" / "data"))
NEEDS = {
    "parsers": DATA / "tagging" / "ud_ewt" / "en_ewt-ud-train.conllu.gz",
    "snakes": DATA / "graphs" / "snakes.npz",
    "scene": DATA / "graphs" / "scene.npz",
}
PAGES = [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if "_build" not in p.parts)]
FENCE = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
# What is not run: commands, changes, text, and (py) the scripts of the gallery, which are examples.
OTHER_LANGUAGES = {"sh", "diff", "text", "py"}


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    if path.stem in NEEDS and not NEEDS[path.stem].exists():
        pytest.skip(f"{NEEDS[path.stem].name} is not there: set STRUCTLOSS_DATA")
    # Small operations in several threads crawl where other tests want the same cores.
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, path, *SMALL.get(path.stem, ()), "--out", "picture.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=alone)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert (tmp_path / "picture.png").stat().st_size > 1000


@pytest.mark.parametrize(("path", "text"), notebooks.notebooks().items(), ids=lambda x: getattr(x, "stem", ""))
def test_the_notebook_is_the_script(path: Path, text: str) -> None:
    """Else run `python tests/notebooks.py`."""
    assert path.read_text() == text


@pytest.mark.slow
@pytest.mark.parametrize(("name", "said"), [("hugging_face", "by seqeval"), ("gpu_report", "all as it should be")])
def test_the_cells_of_a_notebook_run_one_after_the_other(name: str, said: str, tmp_path: Path) -> None:
    cells = json.loads((ROOT / "examples" / f"{name}.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg", "STRUCTLOSS_REPORT": "--quick"}
    if name == "gpu_report":  # without installing anything
        (tmp_path / "pip.py").touch()
        alone["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, env=alone)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def blocks(page: Path) -> list[tuple[int, str, str]]:
    """The line where it starts, the language and the text of every code block."""
    text = page.read_text()
    found = FENCE.finditer(text)
    return [(text.count("\n", 0, block.start(3)), block[2], block[3]) for block in found]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(language == "python" for _, language, _ in blocks(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for line, language, text in blocks(page):
        if language == "python":
            exec(compile("\n" * line + text, page, "exec"), names)  # a traceback names the page's own line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_says_its_language(page: Path) -> None:
    assert page.read_text().count("```") == 2 * len(blocks(page))
    assert {language for _, language, _ in blocks(page)} <= {"python", *OTHER_LANGUAGES}
