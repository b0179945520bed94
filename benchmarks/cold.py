"""What a first call costs: CPU seconds from an empty kernel cache to a first value with its gradient.

    python benchmarks/cold.py

Each in a process of its own with an empty cache: the first CRF loss, the first softmax-margin under the edit distance,
the first risk of the edit distance under CTC. CPU seconds (user and system, of all threads) without the imports, and
how many functions numba compiled. Then the time to import structloss, against torch's own.
"""

import os
import subprocess
import sys
import tempfile

from rich.console import Console
from rich.table import Table

SETUP = """
import os, sys, torch, structloss as sl
from numba.core import event

class Count(event.Listener):
    number = 0
    def on_start(self, happening): Count.number += 1
    def on_end(self, happening): pass

event.register("numba:compile", Count())
x = torch.randn(4, 6, 5, requires_grad=True)
y = torch.randint(1, 5, (4, 6))
lengths = torch.tensor([6, 5, 4, 3])
begin = sum(os.times()[:2])
{work}
print(sum(os.times()[:2]) - begin, Count.number)
"""

WORK = {
    "NegativeLogLikelihood of a ChainLayer": "sl.NegativeLogLikelihood()(sl.ChainLayer(5)(x, lengths), y).backward()",
    "SoftmaxMargin(EditDistance(cap=5))": (
        "sl.SoftmaxMargin(sl.EditDistance(cap=5))(sl.ChainLayer(5)(x, lengths), y).backward()"
    ),
    "Risk(EditDistance(cap=3)) of a CTC": (
        "sl.Risk(sl.EditDistance(cap=3))(sl.CTC(x.log_softmax(2), lengths), [[1, 2], [3], [4, 1], [2]]).backward()"
    ),
}

IMPORT = "import time; begin = time.process_time(); import {name}; print(time.process_time() - begin)"


def printed(program: str) -> list[float]:
    """The numbers that a program prints, run with an empty kernel cache."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
        )
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    console = Console()
    table = Table("first call", "CPU s", "functions compiled", title="From an empty kernel cache")
    for name, work in WORK.items():
        with console.status(name):
            seconds, functions = printed(SETUP.format(work=work))
        table.add_row(name, f"{seconds:.1f}", f"{functions:.0f}")
    console.print(table)
    ours, torchs = (min(printed(IMPORT.format(name=name))[0] for _ in range(3)) for name in ("structloss", "torch"))
    console.print(f"import structloss: {ours:.2f} CPU s, of which torch {torchs:.2f}")


if __name__ == "__main__":
    main()
