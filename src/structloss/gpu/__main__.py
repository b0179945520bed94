"""`python -m structloss.gpu`: both tables of a machine without a GPU, and status 1 if anything in them is wrong."""

import json
import sys
from typing import Any

from structloss.gpu import tables


def as_line(row: dict[str, Any]) -> str:
    """A line of the terminal, for a line of the tables."""
    verdict = "" if row["passed"] else "  WRONG " + ", ".join(row.get("wrong", ()))
    if "sentence" in row:
        return f"{'yes' if row['passed'] else 'NO':4} {row['sentence']}"
    if "kernel" in row:
        most = " ".join(f"{row[name]:9}" for name in tables.COLUMNS)
        return f"{row['kernel']:22} {row['target']:7} {row['variants']:8} {most}{verdict}"
    return (
        f"{row['operation']:14} {row['dtype']:9} {row['cases']:5} {row['numbers']:7} {row['largest_error']:8.1e} "
        f"{row['of_gradients']:8.1e}{verdict}"
    )


def main() -> int:
    """Print the tables; or, as a process that `tables.begin` has started, one of them in JSON."""
    if len(sys.argv) > 1:
        what = sys.argv[1]
        for row in tables.compiled() if what == "compiled" else tables.interpreted(quick=what == "quick"):
            print(json.dumps(row), flush=True)
        return 0
    processes = {what: tables.begin(what) for what in ("interpreted", "compiled")}
    good = True
    for what, process in processes.items():
        if what == "interpreted":
            print("Triton's interpreter, against a list of all outputs in float64; largest errors\n")
            print(f"{'operation':14} {'dtype':9} {'cases':>5} {'numbers':>7} {'value':>8} {'gradient':>8}", flush=True)
        else:
            print("\nCompiled here for GPUs that are not here; the most of all variants\n")
            print(f"{'kernel':22} {'target':7} {'variants':>8} " + " ".join(f"{name:>9}" for name in tables.COLUMNS))
        for row in tables.lines_of(process, what):
            print(as_line(row), flush=True)
            good &= row["passed"]
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
