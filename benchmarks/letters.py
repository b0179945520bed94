"""Letters to sounds: `structloss train g2p` with no setting, beside the baseline of SIGMORPHON 2021's shared task.

Its languages are looked for in $STRUCTLOSS_DATA/g2p/sigmorphon2021 (by default ../shared/data); without them there is
nothing to run. One thread a run; a run that was interrupted goes on, one that has ended is read. What follows -- goes
to `structloss train`, as in: python benchmarks/letters.py --size low -- --set networks=1
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("STRUCTLOSS_DATA", ROOT.parent / "shared" / "data")) / "g2p" / "sigmorphon2021"
BASELINE = {  # word error rates on test, from the shared task's repository
    "low": {"ady": 22.0, "gre": 21.0, "ice": 12.0, "ita": 19.0, "khm": 34.0},
    "medium": {"bul": 18.3, "dut": 14.7, "fre": 8.5, "geo": 0.0, "hun": 1.8},
}


def trained(files: dict[str, Path], out: Path, more: list[str]) -> dict:
    """The result of a run, which is made if it is not there."""
    begun = ["--resume"] if (out / "checkpoints").exists() else []
    options = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    command = [sys.executable, "-m", "structloss", "train", "g2p", *options, "--out", str(out), "--quiet"]
    if not (out / "result.json").exists():
        subprocess.run([*command, *begun, *more], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return json.loads((out / "result.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=list(BASELINE), default="low", help="of the training sets: 800, 8,000 words")
    parser.add_argument("--languages", help="with commas between them; by default all of the size")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "letters")
    parser.add_argument("more", nargs="*", help="options of structloss train")
    options = parser.parse_args()
    baseline, rows = BASELINE[options.size], []
    print(f"{'':10} {'dev wer':>8} {'test wer':>8} {'baseline':>8} {'seconds':>8}")
    for name in options.languages.split(",") if options.languages else baseline:
        files = {part: DATA / options.size / f"{name}_{part}.tsv" for part in ("train", "dev", "test")}
        if not files["train"].exists():
            print(f"{files['train']} is not there: nothing to run")
            continue
        result = trained(files, options.out / name, options.more)
        dev, test = (100 * result["metrics"][part]["wer"] for part in ("dev", "test"))
        rows.append({"language": name, "dev": dev, "test": test, "baseline": baseline[name], **result})
        print(f"{name:10} {dev:8.2f} {test:8.2f} {baseline[name]:8.2f} {result['seconds']:8.0f}", flush=True)
    if rows:
        print(f"{'mean':10} " + " ".join(f"{fmean(r[key] for r in rows):8.2f}" for key in ("dev", "test", "baseline")))
        folder = Path(__file__).parent / "results"
        folder.mkdir(exist_ok=True)
        (folder / f"letters_{options.size}.json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
