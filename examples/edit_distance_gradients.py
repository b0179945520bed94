"""What the library is for: the time of one exact edit-distance gradient against the length, done in four ways.

Each way goes on to longer strings until one gradient takes more than --seconds. The answers are compared.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import structloss as sl
from structloss.reproduce.gradients import grad_tropical
from structloss.reproduce.runtime import naive
from structloss.reproduce.transducers import edit_transducer

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, help="draw the times into this file")
parser.add_argument("--seconds", type=float, default=0.5, help="stop a way when one gradient takes longer")
arguments = parser.parse_args()
LABELS = 10


def openfst(potentials: np.ndarray, reference: list[int]) -> np.ndarray:
    """The algorithm of Cortes 2018, by OpenFst's operations."""
    return grad_tropical(potentials, reference, edit_transducer(LABELS, 1, 1, 1))


def ours(loss: Callable[[], sl.Loss]) -> Callable[[np.ndarray, list[int]], np.ndarray]:
    """A new loss every time, so that the machine is compiled every time too."""

    def gradient(potentials: np.ndarray, reference: list[int]) -> np.ndarray:
        return sl.Chain(torch.from_numpy(potentials)[None]).augment(loss(), [reference]).marginals()[0].numpy()

    return gradient


ways = {
    "naive, all strings": naive(sl.EditDistance()),  # a compiled loop
    "OpenFst": openfst,
    "structloss, exact": ours(sl.EditDistance),
    "structloss, cap=5": ours(lambda: sl.EditDistance(cap=5)),
}
lengths = [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 32, 64, 128, 256, 512, 1024]
times: dict[str, list[float]] = {name: [] for name in ways}
for gradient in ways.values():
    gradient(np.zeros((2, LABELS, LABELS)), [0, 1])  # compiles or loads what is needed
for length in lengths:
    generator = np.random.default_rng(length)
    potentials = generator.standard_normal((length, LABELS, LABELS))
    reference = generator.integers(0, LABELS, length).tolist()
    answers = {}
    for name, gradient in ways.items():
        if len(times[name]) < lengths.index(length) or (times[name] and times[name][-1] > arguments.seconds):
            continue  # it gave up
        best, spent = float("inf"), 0.0
        try:
            while spent < 0.1:  # the best of as many runs as that allows
                start = time.perf_counter()
                answers[name] = gradient(potentials, reference)
                best = min(best, time.perf_counter() - start)
                spent += time.perf_counter() - start
        except sl.TooManyStatesError:
            continue
        times[name].append(best)
    exact = [Q for name, Q in answers.items() if "cap" not in name]
    for Q in exact[1:]:
        np.testing.assert_allclose(Q, exact[0], atol=1e-8)
for name, seconds in times.items():
    print(f"{name:20} length {lengths[len(seconds) - 1]:4} in {seconds[-1]:7.3f} s")

if arguments.out:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for (name, seconds), style in zip(times.items(), ("s:", "^--", "o-", "o-"), strict=True):
        axes.loglog(lengths[: len(seconds)], seconds, style, label=name, markersize=4)
    axes.set(xlabel="length of the strings", ylabel="seconds a gradient")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(arguments.out, dpi=110)
