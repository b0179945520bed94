"""Kill training at random moments, resume it, and compare what came of it with an undisturbed run, bit for bit.

    python tests/kill.py --task tagging --number 20 --seed 1      # kill -9; also g2p, ocr, align, speech
    python tests/kill.py --task compare --number 10               # Ctrl-C and SIGTERM, by turns

A run is killed in its middle, once a checkpoint of a random number of steps is there. A comparison gets a signal at any
moment: it must have ended after five seconds, with nobody left behind. Data are made on the spot, or --train and --dev
name some.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from itertools import count
from pathlib import Path

import numpy as np

from structloss.training import checkpoints
from structloss.training.record import digest

STRUCTLOSS = str(Path(sys.executable).with_name("structloss"))
ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
ENDED_AFTER = 5.0  # seconds
STATE = ("history", "batches", "stops", "state_dict", "optimizer_states", "callbacks", "made")


def make_tagging(folder: Path) -> list[str]:
    from test_training import made

    for name, sentences in (("train", 120), ("dev", 30)):
        (folder / f"{name}.txt").write_text(made(sentences, len(name)))
    return ["--train", str(folder / "train.txt"), "--dev", str(folder / "dev.txt")]


def make_g2p(folder: Path) -> list[str]:
    generator = random.Random(0)
    for name, words in (("train", 160), ("dev", 40)):
        lines = []
        for _ in range(words):
            word = [generator.choice("abcdefgh") for _ in range(generator.randint(2, 8))]
            phones = [letter.upper() for letter in word if letter != "h"] or ["A"]
            lines.append(f"{''.join(word)}\t{' '.join(phones)}\n")
        (folder / f"{name}.tsv").write_text("".join(lines))
    return ["--train", str(folder / "train.tsv"), "--dev", str(folder / "dev.tsv")]


def make_ocr(folder: Path) -> list[str]:
    generator = np.random.default_rng(0)
    lengths = generator.integers(2, 8, 150).astype(np.uint8)
    labels = generator.integers(0, 6, int(lengths.sum())).astype(np.uint8)
    patterns = generator.random((26, 128)) < 0.5
    pixels = (patterns[labels] ^ (generator.random((len(labels), 128)) < 0.15)).astype(np.uint8)
    folds = (np.arange(len(lengths)) % 5).astype(np.uint8)
    np.savez_compressed(
        folder / "letters.npz", bits=np.packbits(pixels, axis=1), labels=labels, lengths=lengths, folds=folds
    )
    return ["--train", f"{folder / 'letters.npz'}:1-4", "--dev", f"{folder / 'letters.npz'}:0"]


def make_align(folder: Path) -> list[str]:
    from structloss.tasks.alignment import audio, transcripts
    from test_alignment import spoken

    for seed in range(40):
        speech = spoken(seed)
        audio.write(folder / f"u{seed}.wav", speech.samples)
        transcripts.write(folder / f"u{seed}.TextGrid", speech.segments)
    return [str(folder)]


def make_parsing(folder: Path) -> list[str]:
    from test_parsing import sentence

    draw = random.Random(0)
    for name, sentences in (("train", 60), ("dev", 15)):
        (folder / f"{name}.conllu").write_text("".join(sentence(draw) for _ in range(sentences)))
    return ["--train", str(folder / "train.conllu"), "--dev", str(folder / "dev.conllu")]


def make_speech(folder: Path) -> list[str]:
    from test_speech import made, texts

    return ["--train", str(made(folder, "train", texts(60, 0))), "--dev", str(made(folder, "dev", texts(10, 1), 1))]


MADE = {
    "tagging": make_tagging, "g2p": make_g2p, "ocr": make_ocr, "parsing": make_parsing, "align": make_align,
    "speech": make_speech,
    "compare": make_tagging,
}  # fmt: skip
SETTINGS = {
    "tagging": ["train", "tagging", "--set", "model=bilstm", "--batch-size", "4", "--epochs", "5", "--patience", "5"],
    "g2p": ["train", "g2p", "--epochs", "4", "--batch-size", "8", "--set", "width=32", "--warm-up", "2",
            "--objective", "risk"],
    "ocr": ["train", "ocr", "--epochs", "6", "--batch-size", "4", "--set", "model=cnn", "--set", "width=32",
            "--objective", "softmax-margin"],
    "parsing": ["train", "parsing", "--epochs", "5", "--batch-size", "4", "--set", "width=32"],
    "speech": ["train", "speech", "--epochs", "5", "--batch-size", "4", "--set", "width=32", "--warm-up", "2",
               "--objective", "risk"],
    "align": ["align", "train", "--epochs", "3", "--epsilon", "1.1", "--epsilon", "11"],
    "compare": ["compare", "tagging", "--set", "model=bilstm", "--epochs", "5", "--warm-up", "2", "--batch-size", "4",
                "--objective", "nll", "--objective", "hinge", "--objective", "risk", "--seeds", "1", "--jobs", "2"],
}  # fmt: skip


def command(given: argparse.Namespace, data: list[str], out: Path, *more: str) -> list[str]:
    shown = [] if given.task == "align" else ["--no-progress"]
    own = ["--checkpoint-seconds", str(given.checkpoint_seconds), *shown, *given.more, *more]
    return [STRUCTLOSS, *SETTINGS[given.task], *data, "--out", str(out), *own]


def finish(arguments: list[str]) -> str:
    """Run to the end; what it says of where it went on."""
    done = subprocess.run(arguments, capture_output=True, text=True, env=ALONE, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}\nended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stderr


def state_of(out: Path) -> dict[str, str]:
    """Everything that a run leaves but its times: models, metrics, results, and the last checkpoints' contents."""
    found = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.name in ("config.json", "metrics.json", "model.safetensors"):
            found[name] = digest(path.read_bytes())
        elif path.name in ("result.json", "results.json"):
            found[name] = digest(re.sub(r'"seconds": [^,}]*', "", path.read_text()))
        elif path.name == checkpoints.FOLDER and (newest := checkpoints.newest(path)):
            found.update({f"{name}, {key}": digest(newest[1][key]) for key in STATE})
    return found


def steps(out: Path) -> int:
    """How many steps the last checkpoints have, of all runs together."""
    last: dict[Path, int] = {}
    for path in out.rglob("step-*.ckpt"):
        last[path.parent] = max(last.get(path.parent, 0), int(path.name.split("-")[1]))
    return sum(last.values())


def differing(a: dict[str, str], b: dict[str, str]) -> list[str]:
    return sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))


def kill_runs(given: argparse.Namespace, data: list[str], work: Path) -> Counter[str]:
    """kill -9 some time after a checkpoint of a random number of steps is there, then --resume."""
    whole, generator, counts = work / "whole", random.Random(given.seed), Counter[str]()
    finish(command(given, data, whole))
    total, wanted = steps(whole), state_of(whole)
    print(f"undisturbed: {total} steps", flush=True)
    for i in range(given.number):
        out, wait_for = work / f"killed{i}", generator.randint(1, int(0.95 * total))
        with subprocess.Popen(command(given, data, out), env=ALONE, stdout=-3, stderr=-3) as process:
            while steps(out) < wait_for and process.poll() is None:
                time.sleep(0.01)
            time.sleep(generator.uniform(0, 0.5))
            process.kill()
        reached, ended = steps(out), process.returncode == 0
        said = finish(command(given, data, out, "--resume"))
        places = re.findall(r"goes on after epoch (\d+)(?: and (\d+) batches more)?", said)
        within = any(batches for _, batches in places)
        went_on = any(int(epochs) or batches for epochs, batches in places)
        other = differing(wanted, state_of(out))
        counts["ended before it was killed" if ended else "killed"] += 1
        counts["went on from the last checkpoint" if went_on else "BEGAN FROM 0"] += 1
        counts["of these within an epoch"] += within
        counts["DIFFERS" if other else "bitwise the same"] += 1
        print(f"{i + 1}: killed at step {reached}, {places}, {', '.join(other) or 'the same'}", flush=True)
    return counts


def left_behind(session: int) -> list[int]:
    """The processes of a session that still live."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] not in "ZX":
                found.append(int(entry.name))
    return found


def interrupt_comparisons(given: argparse.Namespace, data: list[str], work: Path) -> Counter[str]:
    """Ctrl-C to the whole group, SIGTERM or SIGKILL to the parent alone, then --resume."""
    whole, generator, counts = work / "whole", random.Random(given.seed), Counter[str]()
    begin = time.monotonic()
    finish(command(given, data, whole))
    lasts, wanted, longest = time.monotonic() - begin, state_of(whole), 0.0
    print(f"undisturbed: {lasts:.1f} s", flush=True)
    todo = deque([signal.Signals[name] for name in given.signals] * given.number)
    numbers = count(1)
    while todo:
        i, signum = next(numbers), todo.popleft()
        out, moment = work / f"{signum.name}{i}", generator.uniform(0.5, 0.95 * lasts)
        with subprocess.Popen(
            command(given, data, out), env=ALONE, stdout=-3, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            time.sleep(moment)
            if process.poll() is not None:
                lasts = 0.8 * moment
                todo.append(signum)
                print(f"{i}: had ended after {moment:.1f} s", flush=True)
                continue
            sent = time.monotonic()
            (os.killpg if signum == signal.SIGINT else os.kill)(process.pid, signum)
            while left_behind(process.pid) and time.monotonic() < sent + 4 * ENDED_AFTER:
                time.sleep(0.02)
            took, left = time.monotonic() - sent, left_behind(process.pid)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            said = process.communicate()[1]
        finish(command(given, data, out, "--resume"))
        other = differing(wanted, state_of(out))
        longest = max(longest, took)
        late = bool(left) or took > ENDED_AFTER
        counts[f"{signum.name}: {'LATE' if late else 'ended, nobody left'}"] += 1
        counts[f"{signum.name}: exit code {process.returncode}"] += 1
        counts["TRACEBACK"] += "Traceback" in said and process.returncode > 0  # else Python itself was starting
        counts["resumed: DIFFERS" if other else "resumed: bitwise the same"] += 1
        print(f"{i}: {signum.name} after {moment:.1f} s, ended {took:.2f} s later with {process.returncode}, "
              f"{', '.join(other) or 'the same'}", flush=True)  # fmt: skip
    print(f"the longest took {longest:.2f} s")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=MADE, default="tagging")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--number", type=int, default=20)
    parser.add_argument("--train", help="a file; of align, a folder")
    parser.add_argument("--dev")
    parser.add_argument("--checkpoint-seconds", type=float, default=0.05)
    parser.add_argument("--signals", nargs="+", default=["SIGINT", "SIGTERM"], help="for compare; also SIGKILL")
    parser.add_argument("--more", nargs="*", default=[], help="further options of the command, after `--more=...`")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (data := Path(folder) / "data").mkdir()
        named = [given.train] if given.task == "align" else ["--train", given.train, "--dev", given.dev]
        found = [str(x) for x in named] if given.train else MADE[given.task](data)
        counts = (interrupt_comparisons if given.task == "compare" else kill_runs)(given, found, Path(folder))
    print(json.dumps(counts, indent=1))
    sys.exit(any(counts[key] for key in counts if re.search("DIFFERS|FROM 0|LATE|TRACEBACK", key)))


if __name__ == "__main__":
    main()
