"""Chunks and names: ChainTagger against python-crfsuite, in one run, on the same features.

CoNLL-2000 chunking and names in four languages are looked for in $STRUCTLOSS_DATA/tagging
(by default ../shared/data); without them there is nothing to run. Times are CPU and wall seconds of training alone,
indexing of the features included, features made beforehand. Ours has its defaults. CRFsuite has its own penalty
(c2 = 1), and with --same-penalty also ours (c2 = 0.5).

--price: instead, what training on chunks costs. CPU seconds of fit in one thread, the best of three by turns, against
the likelihood's; of ChunkF1, whose machines grow with the square of a sentence, two passes over a few sentences.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import torch

from structloss.estimators import ChainTagger
from structloss.tasks.tagging import conll
from structloss.tasks.tagging.chunks import chunk_score
from structloss.tasks.tagging.features import window

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("STRUCTLOSS_DATA", ROOT.parent / "shared" / "data")) / "tagging"


def load(path: Path, most: int | None) -> tuple[list, list]:
    sentences = conll.read(path)[:most]
    return [window([token[:-1] for token in s.tokens]) for s in sentences], [s.column(-1) for s in sentences]


def files(name: str) -> tuple[Path, Path]:
    """To train on, and to test on."""
    if name == "conll2000":
        return DATA / name / "train.txt", DATA / name / "test.txt"
    return DATA / "uner" / f"{name}-train.txt", DATA / "uner" / f"{name}-test.txt"


def crfsuite(X: list, y: list, X_test: list, iterations: int, c2: float) -> tuple[float, float, list]:
    import pycrfsuite

    cpu, wall = time.process_time(), time.perf_counter()
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    for x, labels in zip(X, y, strict=True):
        trainer.append(x, labels)
    trainer.set_params({"c1": 0.0, "c2": c2, "max_iterations": iterations, "feature.possible_transitions": True})
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        trainer.train(path)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        tagger = pycrfsuite.Tagger()
        tagger.open(path)
        found = [tagger.tag(x) for x in X_test]
        tagger.close()
    return cpu, wall, found


def ours(X: list, y: list, X_test: list, **settings: object) -> tuple[float, float, list]:
    cpu, wall = time.process_time(), time.perf_counter()
    tagger = ChainTagger(**settings).fit(X, y)
    return time.process_time() - cpu, time.perf_counter() - wall, tagger.predict(X_test)


def fit_seconds(X: list, y: list, objective: str, **settings: object) -> float:
    begin = time.process_time()
    ChainTagger(objective, **settings).fit(X, y)
    return time.process_time() - begin


def price(name: str, X: list, y: list) -> list[dict[str, object]]:
    """Print what each objective on chunks costs, in likelihoods."""
    errors = {"loss": "chunk-errors"}
    objectives = {
        "SoftmaxMargin(ChunkErrors)": ("softmax-margin", errors, X, y),
        "Hinge(ChunkErrors)": ("hinge", errors, X, y),
        "SoftmaxMargin(ChunkF1)": ("softmax-margin", {"loss": "chunk-f1", "max_iter": 2, "tol": 0.0}, X[:32], y[:32]),
    }
    results = []
    for label, (objective, settings, sentences, labels) in objectives.items():
        plain = {**settings, "loss": None}
        fit_seconds(X[:32], y[:32], objective, **{**settings, "max_iter": 1})  # compiles kernels
        mine, theirs = float("inf"), float("inf")
        for _ in range(3):
            theirs = min(theirs, fit_seconds(sentences, labels, "nll", **plain))
            mine = min(mine, fit_seconds(sentences, labels, objective, **settings))
        print(f"{name}: {label:28} {mine:7.2f} CPU s, the likelihood {theirs:6.2f}: {mine / theirs:6.2f}", flush=True)
        results.append({"set": name, "name": label, "cpu": mine, "likelihood": theirs, "ratio": mine / theirs})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="900 sentences of each, 20 iterations, 2 passes")
    parser.add_argument("--seeds", type=int, default=1, help="of ours: 0, 1, ...")
    parser.add_argument("--sets", default="conll2000,danish,portuguese,croatian,swedish")
    parser.add_argument("--same-penalty", action="store_true", help="CRFsuite with c2 = 0.5 too")
    parser.add_argument("--price", action="store_true", help="what training on chunks costs, in likelihoods")
    options = parser.parse_args()
    most, iterations, few = (900, 20, {"max_iter": 2}) if options.quick else (None, 100, {})
    toy = [[["a"]], [["b"]]] * 40, [["A"], ["B"]] * 40
    for objective in ("nll", "softmax-margin"):  # compiles kernels
        ChainTagger(objective, max_iter=1).fit(*toy).predict(toy[0])
    results = []
    for name in options.sets.split(","):
        train, test = files(name)
        if not train.exists():
            print(f"{train} is not there: nothing to run")
            continue
        (X, y), (X_test, y_test) = load(train, most), load(test, most)
        if options.price:
            torch.set_num_threads(1)
            results += price(name, X, y)
            continue
        rows = [(f"CRFsuite, {iterations} iterations", *crfsuite(X, y, X_test, iterations, 1.0))]
        if options.same_penalty:
            rows.append((f"CRFsuite, {iterations} iterations, c2=0.5", *crfsuite(X, y, X_test, iterations, 0.5)))
        for seed in range(options.seeds):
            for objective in ("nll", "softmax-margin"):
                found = ours(X, y, X_test, objective=objective, random_state=seed, **few)
                rows.append((f"ours, {objective}, seed {seed}", *found))
        print(f"{name}: {len(X)} sentences, {len(X_test)} to test, {torch.get_num_threads()} threads")
        print(f"{'':38} {'CPU s':>7} {'wall s':>7} {'ratio':>6} {'F1':>7}")
        for label, cpu, wall, found in rows:
            f1 = chunk_score(found, y_test).f1
            print(f"{label:38} {cpu:7.1f} {wall:7.1f} {rows[0][1] / cpu:6.1f} {100 * f1:7.2f}", flush=True)
            results.append({"set": name, "name": label, "cpu": cpu, "seconds": wall, "f1": f1})
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"tagging{'_price' * options.price}.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
