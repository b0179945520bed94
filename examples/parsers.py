"""Which objective makes the best parser? One network, trained on a part of UD English EWT under six of them.

The likelihood of the tree among all trees, and among projective ones; softmax-margin, hinge and risk on the words whose
head or relation is wrong, from where the likelihood's last third begins; and the cross-entropy of each word's arc by
itself, with a tree only in the end, as most parsers are trained. All have as many updates, and begin alike from a seed.
The treebank is looked for in $STRUCTLOSS_DATA/tagging/ud_ewt, where .gz files are read too.

    python examples/parsers.py --every 3 --epochs 10 --seeds 3 --out parsers.png
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import torch
from numpy.typing import NDArray

import structloss as sl
from structloss.tasks.parsing.task import Parser, Parsing
from structloss.tasks.parsing.treebank import Arc, attachment
from structloss.training.compare import Trial, compare, folder_of
from structloss.training.directory import load
from structloss.training.experiment import Data, Result
from structloss.training.plan import Plan
from structloss.training.task import Example, predict

LOSS = sl.Hamming()
NLL, PROJECTIVE = sl.NegativeLogLikelihood(), sl.NegativeLogLikelihood(impossible="skip")
TRIALS: dict[str, tuple[sl.Objective, dict[str, int]]] = {
    "likelihood": (NLL, {}),
    "likelihood, projective trees": (PROJECTIVE, {"projective": 1}),
    "softmax-margin": (sl.SoftmaxMargin(LOSS), {}),
    "hinge": (sl.Hinge(LOSS), {}),
    "risk": (sl.Risk(LOSS), {}),
    "each arc by itself": (NLL, {"tree": 0}),
}
EXPECTED = "likelihood, most expected arcs"
Counts = NDArray[np.int64]  # (seeds, sentences, 3): words that are right for LAS and for UAS, and all


class Said:
    """A line for each run that has ended."""

    def epoch(self, name: str, seed: int, row: dict[str, float]) -> None:
        """Nothing is said within a run."""

    def end(self, name: str, seed: int, result: Result) -> None:
        """What it has reached on dev."""
        best = 100 * result.metrics["dev"]["las"]
        print(f"{name}, seed {seed}: dev LAS {best:.2f}, {result.seconds:.0f} seconds", flush=True)


class MostExpected(Parser):
    """A parser that answers with the trees that have the most arcs that are expected to be right."""

    def structure(self, encoded: Sequence[torch.Tensor]) -> sl.DependencyTree:
        """The best trees under the marginals."""
        trees = super().structure(encoded)
        return sl.DependencyTree(trees.marginals(), trees.lengths, projective=False)


def answers(folder: Path, task: Parsing, examples: Sequence[Example], expected: bool) -> list[tuple[Arc, ...]]:
    """The best trees of a model, or the most expected ones."""
    _, model = load(folder, {task.name: task})
    if expected:
        other = MostExpected(model.config)
        other.load_state_dict(model.state_dict())
        model = other
    return predict(model, examples)


def counted(examples: Sequence[Example], found: Sequence[Sequence[Arc]]) -> list[list[int]]:
    """Of each sentence the words that are right for LAS, for UAS, and all."""
    rows = []
    for example, tree in zip(examples, found, strict=True):
        las, uas = attachment([tree], [example.y])
        rows.append([round(las * len(tree)), round(uas * len(tree)), len(tree)])
    return rows


def percent(counts: Counts) -> NDArray[np.float64]:
    """LAS and UAS of sums over sentences (..., 3)."""
    return 100 * counts[..., :2] / counts[..., 2:]


def interval(a: Counts, b: Counts, weights: Counts) -> tuple[float, float, float]:
    """How much more LAS b has than a, the mean over seeds; and the central 95 % over resampled sentences."""
    gained = [percent(b.sum(1)) - percent(a.sum(1))]
    gained += [percent(np.einsum("rs,nsc->rnc", weights, x)) for x in (a, b)]
    low, high = np.quantile((gained[2] - gained[1])[..., 0].mean(1), [0.025, 0.975])
    return float(gained[0][:, 0].mean()), float(low), float(high)


def main() -> None:
    """A table: mean and deviation over seeds, and the difference to the likelihood."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="draw the differences into this file")
    parser.add_argument("--runs", type=Path, default=Path("parsers"), help="the folder of the models")
    parser.add_argument("--every", type=int, default=3, help="train on every so many sentences")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each in one thread")
    arguments = parser.parse_args()
    treebank = Path(os.environ.get("STRUCTLOSS_DATA", Path(__file__).parents[2] / "shared" / "data")) / "tagging/ud_ewt"
    task, seeds = Parsing(), range(arguments.seeds)
    train, dev, test = (
        task.read(treebank / f"en_ewt-ud-{part}") for part in ("train.conllu.gz", "dev.conllu", "test.conllu")
    )
    train = train[:: arguments.every]
    configs = {name: task.configure(train, {**task.settings, **own}) for name, (_, own) in TRIALS.items()}
    trials = [Trial(name, configs[name], objective) for name, (objective, _) in TRIALS.items()]
    usual, epochs = task.defaults(task.settings), arguments.epochs
    plan = Plan(
        epochs=epochs, batch_size=usual.batch_size, lr=usual.lr, l2=usual.l2, patience=epochs, average=usual.average,
        decays=usual.decays, warm_up=2 * epochs // 3, resume=arguments.runs.exists(), progress=False,
    )  # fmt: skip
    words = sum(len(example.y) for example in train)
    print(f"{len(train)} sentences to learn from, {words} words; {len(test)} to parse", flush=True)
    data = Data(train, dev, test)
    compare(task, data, trials, arguments.runs, plan, seeds, arguments.jobs, Said())

    counts = {}
    torch.set_num_threads(1)
    for name in (*TRIALS, EXPECTED):
        folders = [folder_of(arguments.runs, name.replace(EXPECTED, "likelihood"), seed) for seed in seeds]
        found = [counted(test, answers(folder, task, test, name == EXPECTED)) for folder in folders]
        counts[name] = np.array(found)
    generator = np.random.default_rng(0)
    weights = generator.multinomial(len(test), np.full(len(test), 1 / len(test)), 2000)
    gains = {}
    print(f"{'test, %':32} {'LAS':>14} {'UAS':>14}   LAS - likelihood, 95 % over sentences")
    for name, own in counts.items():
        cells = [
            f"{fmean(column):7.2f} ± {stdev(column) if len(column) > 1 else 0:.2f}"
            for column in percent(own.sum(1)).T.tolist()
        ]
        gains[name] = interval(counts["likelihood"], own, weights)
        value, low, high = gains[name]
        print(f"{name:32} {' '.join(f'{cell:>14}' for cell in cells)}   {value:+.2f} [{low:+.2f}, {high:+.2f}]")
    if arguments.out:
        draw(gains, arguments.out)


def draw(gains: dict[str, tuple[float, float, float]], out: Path) -> None:
    """A point with its interval for each way to train."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 2.8), layout="constrained")
    axes = figure.subplots()
    others = [(name, gain) for name, gain in gains.items() if name != "likelihood"]
    for place, (_, (value, low, high)) in enumerate(others):
        axes.errorbar(value, -place, xerr=[[value - low], [high - value]], fmt="o", color="#0072B2", capsize=3)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks([-place for place in range(len(others))], [name for name, _ in others])
    axes.set_xlabel("LAS on test minus the likelihood's, 95 %")
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main()
