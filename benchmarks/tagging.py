"""CoNLL-2000 chunking: ChainTagger against python-crfsuite, in one run, on the same features.

The data are looked for in $STRUCTLOSS_DATA/tagging/conll2000 (by default ../shared/data); without them there is nothing
to run. Times are wall times of training alone, indexing of the features included, features made beforehand.
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
DATA = Path(os.environ.get("STRUCTLOSS_DATA", ROOT.parent / "shared" / "data")) / "tagging" / "conll2000"


def load(name: str, most: int | None) -> tuple[list, list]:
    sentences = conll.read(DATA / name)[:most]
    return [window([token[:2] for token in s.tokens]) for s in sentences], [s.column(2) for s in sentences]


def crfsuite(X: list, y: list, X_test: list, iterations: int) -> tuple[float, list]:
    import pycrfsuite

    begin = time.perf_counter()
    trainer = pycrfsuite.Trainer(algorithm="lbfgs", verbose=False)
    for x, labels in zip(X, y, strict=True):
        trainer.append(x, labels)
    trainer.set_params({"c1": 0.0, "c2": 1.0, "max_iterations": iterations, "feature.possible_transitions": True})
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model")
        trainer.train(path)
        seconds = time.perf_counter() - begin
        tagger = pycrfsuite.Tagger()
        tagger.open(path)
        found = [tagger.tag(x) for x in X_test]
        tagger.close()
    return seconds, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sentences, 20 iterations")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--passes", type=int, default=10, help="of ours over the sentences")
    options = parser.parse_args()
    if not DATA.exists():
        print(f"{DATA} is not there: nothing to run")
        return
    most = 900 if options.quick else None
    (X, y), (X_test, y_test) = load("train.txt", most), load("test.txt", most)
    ChainTagger(max_iter=1).fit(X[:20], y[:20])  # compiles kernels
    rows = []
    for name, settings in (
        ("ours, adagrad, nll", {}),
        ("ours, adagrad, softmax-margin (hamming)", {"objective": "softmax-margin"}),
    ):
        begin = time.perf_counter()
        tagger = ChainTagger(
            C=1.0, max_iter=2 if options.quick else options.passes, tol=0.0, random_state=options.seed, **settings
        ).fit(X, y)
        seconds = time.perf_counter() - begin
        rows.append((name, seconds, tagger.predict(X_test)))
    iterations = 20 if options.quick else 200
    rows.append((f"python-crfsuite, L-BFGS, {iterations} iterations", *crfsuite(X, y, X_test, iterations)))
    print(f"{len(X)} sentences, {len(X_test)} to test, {torch.get_num_threads()} threads")
    print(f"{'':46} {'train':>8} {'ratio':>6} {'F1':>7} {'accuracy':>9}")
    results = []
    for name, seconds, found in rows:
        score = chunk_score(found, y_test)
        tokens = sum(map(len, y_test))
        right = sum(a == b for x, r in zip(found, y_test, strict=True) for a, b in zip(x, r, strict=True))
        print(
            f"{name:46} {seconds:6.1f} s {rows[-1][1] / seconds:6.1f} {100 * score.f1:7.2f} {100 * right / tokens:9.2f}"
        )
        results.append({"name": name, "seconds": seconds, "f1": score.f1, "accuracy": right / tokens})
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    (folder / "tagging.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
