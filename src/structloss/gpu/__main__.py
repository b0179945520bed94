"""`python -m structloss.gpu`: both tables of a machine without a GPU, and status 1 if anything in them is wrong."""

import os
import subprocess
import sys
import warnings


def interpret() -> bool:
    """Print the table of operations, and what else holds."""
    from structloss.gpu.checks import check_behaviour, check_operations

    warnings.filterwarnings("ignore", category=RuntimeWarning)  # numpy says that log(0) is -inf
    print(f"{'operation':14} {'dtype':9} {'cases':>5} {'numbers':>7} {'value':>8} {'gradient':>8}", flush=True)
    good = True
    for row in check_operations():
        verdict = "" if row.passed else "  WRONG"
        print(
            f"{row.operation:14} {row.dtype:9} {row.cases:5} {row.numbers:7} {row.largest_error:8.1e} "
            f"{row.of_gradients:8.1e}{verdict}",
            flush=True,
        )
        good &= row.passed
    for sentence, holds in check_behaviour():
        print(f"{'yes' if holds else 'NO':4} {sentence}", flush=True)
        good &= holds
    return good


def compile_all() -> bool:
    """Print the table of kernels: of each on each target, the most of its variants."""
    from structloss.gpu.compiling import Row, compiled

    found: dict[tuple[str, str], list[Row]] = {}
    for row in compiled():
        found.setdefault((row.kernel, row.target), []).append(row)
    columns = ("registers", "spilled", "scalars", "shared", "atomics")
    print(f"{'kernel':22} {'target':7} {'variants':>8} " + " ".join(f"{name:>9}" for name in columns))
    for (kernel, target), rows in found.items():
        most = " ".join(f"{max(getattr(row, name) for row in rows):9}" for name in columns)
        print(f"{kernel:22} {target:7} {len(rows):8} {most}")
    wrong = [row for rows in found.values() for row in rows if not row.passed]
    for row in wrong:
        print("WRONG", row)
    return not wrong


def main() -> int:
    """Each table in a process of its own: a kernel is interpreted or compiled, but not both in one."""
    if len(sys.argv) > 1:
        return int(not {"interpret": interpret, "compile": compile_all}[sys.argv[1]]())
    command = [sys.executable, "-m", "structloss.gpu"]
    interpreted = {**os.environ, "TRITON_INTERPRET": "1"}
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    compiling = subprocess.Popen([*command, "compile"], env=plain, stdout=subprocess.PIPE, text=True)
    print("Triton's interpreter, against a list of all outputs in float64; largest errors\n", flush=True)
    status = subprocess.run([*command, "interpret"], env=interpreted, check=False).returncode
    table, _ = compiling.communicate()
    print(f"\nCompiled here for GPUs that are not here; the most of all variants\n\n{table}", end="")
    return int(bool(status or compiling.returncode))


if __name__ == "__main__":
    sys.exit(main())
