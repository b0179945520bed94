"""The examples run as they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path: Path, tmp_path: Path) -> None:
    # Small operations in several threads crawl where other tests want the same cores.
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, path], cwd=tmp_path, capture_output=True, text=True, timeout=600, env=alone)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
