"""Make examples/hugging_face.ipynb from the script of that name: `python tests/notebooks.py`.

A line `# %%` begins a cell of code, `# %% [markdown]` one of text, and `# %% script` what is the script's alone.
"""

import json
import re
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent.parent / "examples" / "hugging_face.py"
NOTEBOOK = SCRIPT.with_suffix(".ipynb")
MARK = re.compile(r"^# %%(.*)\n", re.MULTILINE)


def cells(script: str) -> list[tuple[str, str]]:
    """The kind, markdown or code, and the text of each cell."""
    _, *parts = MARK.split(script)  # the docstring is the script's
    found = []
    for kind, text in zip(parts[::2], parts[1::2], strict=True):
        if kind.strip() == "[markdown]":
            found.append(("markdown", re.sub(r"^# ?", "", text.strip(), flags=re.MULTILINE)))
        elif kind.strip() != "script":
            found.append(("code", text.strip()))
    return found


def notebook(script: str) -> dict[str, Any]:
    """The notebook, without outputs."""
    made = []
    for number, (kind, text) in enumerate(cells(script)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        made.append(cell | ({"execution_count": None, "outputs": []} if kind == "code" else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def as_text(script: str) -> str:
    """The file."""
    return json.dumps(notebook(script), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(as_text(SCRIPT.read_text()))
