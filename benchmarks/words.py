"""WordErrors beside EditDistance: states, compiling, and a step of an objective, on every structure that carries both.

    python benchmarks/words.py [--quick] [--json benchmarks/results/words.json]

References are made-up sentences. CPU time on one thread, best of several; a step has its machines compiled before.
"""

import argparse
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import structloss as sl

WORDS = re.findall(
    "[a-z]+",
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over "
    "did down only way find use may water long little very after words called just where most know",
)
CHARACTERS = "abcdefghijklmnopqrstuvwxyz '-.,?!012345"  # 39, and a blank
MOST = 40  # labels of a reference


def cpu(run: Callable[[], object], times: int = 5) -> float:
    """The least CPU time of several runs."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        run()
        best = min(best, time.process_time() - start)
    return best


def of_characters(pick: random.Random) -> list[int]:
    """A sentence of at most MOST characters."""
    return [CHARACTERS.index(c) for c in " ".join(pick.choices(WORDS, k=MOST))[:MOST].rstrip()]


def vocabulary(size: int, pick: random.Random) -> list[str]:
    """Words, letters and stretches of words, some with another letter behind them."""
    pieces = {"▁" + word for word in WORDS} | {mark + c for mark in ("▁", "") for c in CHARACTERS[:26]} | {"▁"}
    while len(pieces) < size:
        word = pick.choice(WORDS)
        begin = pick.randrange(len(word))
        stretch = word[begin : pick.randint(begin + 1, len(word))]
        pieces.add(pick.choice(["▁", "", ""]) + stretch + pick.choice(["", pick.choice(CHARACTERS[:26])]))
    return sorted(pieces)


def of_pieces(pieces: list[str], pick: random.Random) -> list[int]:
    """A sentence of at most MOST pieces, longer ones more often."""
    labels: list[int] = []
    text = "".join("▁" + word for word in pick.choices(WORDS, k=MOST))
    while len(labels) < MOST:
        fitting = sorted((len(piece), k) for k, piece in enumerate(pieces) if text.startswith(piece))
        length, label = pick.choice(fitting[-3:])
        labels.append(label)
        text = text[length:]
    return labels


class Case:
    """A structure with references: how it is built, and the machine that a loss compiles for it."""

    def __init__(self, name: str, batch: int) -> None:
        pick, generator = random.Random(0), torch.Generator().manual_seed(0)
        self.spelling: list[str] | str = CHARACTERS
        self.objective: type[sl.Risk | sl.SoftmaxMargin] = sl.Risk if "CTC" in name else sl.SoftmaxMargin
        if "pieces" in name:
            self.spelling = vocabulary(999, pick)
            self.references = [of_pieces(self.spelling, pick) for _ in range(batch)]
        else:
            self.references = [of_characters(pick) for _ in range(batch)]
        K, lengths = len(self.spelling), list(map(len, self.references))
        normal = lambda *shape: torch.randn(shape, generator=generator).requires_grad_()  # noqa: E731
        if "CTC" in name:
            frames, scores = (100 if "pieces" in name else 200), normal(batch, 100 if "pieces" in name else 200, K + 1)
            self.leaves, self.build = [scores], lambda: sl.CTC(scores.log_softmax(2), blank=K)
            self.size = lambda loss, r: len(loss.open(r, K + 1, True).explored(frames)[1])
        elif name == "Lattice":
            arcs = [
                [[i, i + 1, k] for i, own in enumerate(r) for k in {own, pick.randrange(K), pick.randrange(K), -1}]
                for r in self.references
            ]
            scores = normal(sum(map(len, arcs)))
            self.leaves, self.build = [scores], lambda: sl.Lattice(arcs, scores, num_labels=K)
            self.size = lambda loss, r: len(loss.open(r, K, False).explored(len(r))[1])
        elif name == "Chain that emits":
            emits = ((), *((k,) for k in range(K)))
            scores, transitions = normal(batch, 50, K + 1), normal(K + 1, K + 1)
            self.leaves = [scores, transitions]
            self.build = lambda: sl.Chain.from_emissions(scores, transitions, emits=emits)
            self.size = lambda loss, r: loss.written(r, K, emits, 50, False).num_states
        else:
            scores, transitions = normal(batch, MOST, K), normal(K, K)
            self.leaves = [scores, transitions]
            self.build = lambda: sl.Chain.from_emissions(scores, transitions, lengths=lengths)
            self.size = lambda loss, r: loss.machine(r, K, len(r), False).num_states

    def measured(self, loss: sl.MachineLoss) -> tuple[float, float, float]:
        """Mean states, seconds to compile all machines, and of a step."""
        strings = [np.array(r, np.int64) for r in self.references]

        def compiled() -> float:
            sl.clear_cache()
            return float(np.mean([self.size(loss, r) for r in strings]))

        def step() -> object:
            return torch.autograd.grad(self.objective(loss)(self.build(), self.references), self.leaves)

        states, compiling = compiled(), cpu(compiled)
        step()
        return states, compiling, cpu(step)


CASES = ("CTC", "CTC of 1,000 pieces", "Lattice", "Chain that emits", "Chain")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="cap 2 only")
    parser.add_argument("--json", type=Path, default=Path("benchmarks/results/words.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    console, results = Console(), []
    columns = (
        "structure",
        "cap",
        "states",
        "compiling, ms",
        "a step, ms",
        "states",
        "compiling",
        "a step",
        "both times",
    )
    table = Table(
        *columns, title="EditDistance of labels, and WordErrors of the same labels, 4 references of 40 labels"
    )
    for name in CASES:
        for cap in (2,) if arguments.quick else (2, 3):
            case = Case(name, 4)
            edit = case.measured(sl.EditDistance(cap=cap))
            words = case.measured(sl.WordErrors(case.spelling, cap=cap))
            ratio = (words[1] + words[2]) / (edit[1] + edit[2])
            cells = [f"{x:.0f}" if i == 0 else f"{1e3 * x:.1f}" for own in (edit, words) for i, x in enumerate(own)]
            table.add_row(name, str(cap), *cells, f"{ratio:.2f}")
            results.append({"structure": name, "cap": cap, "edit": edit, "words": words, "ratio": ratio})
    console.print(table)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    temporary = arguments.json.with_suffix(".tmp")
    temporary.write_text(json.dumps(results, indent=1))
    temporary.rename(arguments.json)
    console.print(f"wrote {arguments.json}")


if __name__ == "__main__":
    main()
