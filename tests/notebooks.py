"""Make the notebooks of examples/ from scripts: `python tests/notebooks.py`.

That of Hugging Face is made from the example of that name, that of `structloss gpu-report` from the text here. A line
`# %%` begins a cell of code, `# %% [markdown]` one of text, and `# %% script` what is the script's alone.
"""

import json
import re
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent.parent / "examples"
MARK = re.compile(r"^# %%(.*)\n", re.MULTILINE)

GPU_REPORT = '''"""The notebook of gpu-report."""
# %% [markdown]
# # structloss on this machine's GPU
#
# Nobody has measured the kernels for GPUs of structloss yet. This notebook does: it installs the library, checks every
# operation on the GPU, times it beside pytorch-crf, torch-struct and torch's CTC, and writes one page and one JSON.
#
# Choose a runtime with a GPU first (Colab: *Runtime*, *Change runtime type*; Kaggle: *Settings*, *Accelerator*). A free
# T4 will do. Without a GPU it runs the kernels in Triton's interpreter instead, says so, and times nothing.
# %% [markdown]
# ## Install
#
# `SOURCE` is what pip installs structloss from: the folder of a clone, in which this notebook is (`..`), the address of
# one (`git+https://...`), or a wheel that you have uploaded. torch is there already, with its Triton, and stays.
# %%
import os
import subprocess
import sys

SOURCE = ".."
PEERS = ["pytorch-crf", "torch-struct"]
subprocess.run([sys.executable, "-m", "pip", "install", "-q", f"{SOURCE}[cli]", *PEERS], check=True)
# %% [markdown]
# ## Run
#
# It takes a few minutes. The exit code is 1 if anything is not as it should be: then the report says what.
# %%
options = os.environ.get("STRUCTLOSS_REPORT", "").split()
done = subprocess.run([sys.executable, "-m", "structloss", "gpu-report", "--out", "report", *options], check=False)
print("exit code", done.returncode)
# %% [markdown]
# ## Look at it, and send it
#
# Both files are in the folder `report`. The JSON names the GPU, the system and the versions of packages, and nothing
# else of this machine.
# %%
import json
from pathlib import Path

found = json.loads(Path("report/gpu-report.json").read_text())
print(json.dumps(found["about"], indent=1))
for note in found["notes"]:
    print(note)
print("all as it should be" if found["passed"] else "something is NOT as it should be")
'''


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


def notebooks() -> dict[Path, str]:
    """Each notebook, and the text of its file."""
    scripts = {"hugging_face": (EXAMPLES / "hugging_face.py").read_text(), "gpu_report": GPU_REPORT}
    return {EXAMPLES / f"{name}.ipynb": as_text(script) for name, script in scripts.items()}


if __name__ == "__main__":
    for path, text in notebooks().items():
        path.write_text(text)
