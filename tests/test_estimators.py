"""ChainTagger: scikit-learn's contract, and what it learns."""

import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn (the extra sklearn) is not installed")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

import structloss as sl
from structloss.estimators import ChainTagger, chunk_f1_scorer
from structloss.estimators.class_weights import class_costs
from structloss.tasks.sparse import FeatureIndex


def made(n: int, seed: int) -> tuple[list, list]:
    """Labels that repeat the last one where the word is silent: only transitions tell."""
    generator = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        words, labels, last = [], [], "A"
        for _ in range(generator.integers(1, 9)):
            word = generator.choice(["a", "b", "silent", "silent"])
            last = {"a": "A", "b": "B"}.get(word, last)
            words.append([f"w={word}", "bias"])
            labels.append(last)
        X.append(words)
        y.append(labels)
    return X, y


TRAIN, TEST = made(120, 0), made(60, 1)
FAST = {"learning_rate": 0.5, "C": 10.0}  # few sentences, few features


@pytest.mark.parametrize("solver", ["adagrad", "adam", "lbfgs"])
def test_every_solver_learns(solver: str) -> None:
    tagger = ChainTagger(solver=solver, max_iter=30, tol=0.0, **FAST).fit(*TRAIN)
    assert tagger.score(*TEST) > 0.98
    assert tagger.objective_curve_[-1] < tagger.objective_curve_[0]
    assert tagger.loss_curve_[-1] < 0.1
    assert len(tagger.loss_curve_) == len(tagger.objective_curve_)


@pytest.mark.parametrize(
    "objective", ["softmax-margin", "perceptron", "hinge", "slack-hinge", "risk", "reward:temperature=0.3"]
)
def test_every_objective_learns(objective: str) -> None:
    tagger = ChainTagger(objective, max_iter=15, learning_rate=0.3, tol=0.0).fit(*TRAIN)
    assert tagger.score(*TEST) > 0.95, objective


def test_direct_loss_has_no_penalty_unless_one_is_asked_for() -> None:
    weights = {
        (objective, C): ChainTagger(objective, C=C, max_iter=2, learning_rate=0.3).fit(*TRAIN).coef_
        for objective in ("nll", "direct:epsilon=2")
        for C in (None, 1.0, 1e30)
    }
    for objective, same, other in (("nll", 1.0, 1e30), ("direct:epsilon=2", 1e30, 1.0)):
        np.testing.assert_array_equal(weights[objective, None], weights[objective, same])
        assert (weights[objective, None] != weights[objective, other]).any()


def test_direct_loss_starts_from_another_objectives_weights_or_learns_little() -> None:
    """From weights of 0 both its outputs are the same but for ties, so that it moves slowly; it must move."""
    tagger = ChainTagger("direct:epsilon=4", max_iter=15, learning_rate=0.3, tol=0.0, batch_size=16).fit(*TRAIN)
    assert tagger.loss_curve_[-1] <= tagger.loss_curve_[0]


def test_losses_by_name_and_as_objects() -> None:
    for loss in ("edit:cap=3", sl.EditDistance(cap=3), "ngram:n=2"):
        tagger = ChainTagger("softmax-margin", loss, max_iter=10, **FAST).fit(*TRAIN)
        assert tagger.score(*TEST) > 0.95
    for bad, sentence in (
        ("edit:cap", "key=value"),
        ("edit:cup=3", "cup"),
        ("loss", "one of .*hamming"),
        ("edit:cap=x", "number"),
    ):
        with pytest.raises(ValueError, match=sentence):
            ChainTagger("softmax-margin", bad).fit(*TRAIN)
    with pytest.raises(ValueError, match="objective: got 'nl', but wanted one of nll"):
        ChainTagger("nl").fit(*TRAIN)


def test_the_same_seed_gives_the_same_numbers() -> None:
    first, second, other = (ChainTagger(max_iter=3, random_state=s).fit(*TRAIN).objective_curve_ for s in (1, 1, 2))
    assert first == second != other


def test_dicts_as_sklearn_crfsuite_takes_them() -> None:
    X = [[{"word": t[0], "bias": True, "length": len(t[0]) / 10, "no": False} for t in x] for x in TRAIN[0]]
    tagger = ChainTagger(max_iter=30, **FAST).fit(X, TRAIN[1])
    assert "word:w=a" in tagger.index_.names
    assert {"bias", "length"} <= set(tagger.index_.names)
    assert "no" not in tagger.index_.names
    assert tagger.index_.weighted
    assert tagger.score(X, TRAIN[1]) > 0.95


def test_arrays() -> None:
    names = ["w=a", "w=b", "w=silent", "bias"]
    X = [np.array([[float(name in t) for name in names] for t in x]) for x in TRAIN[0]]
    tagger = ChainTagger(solver="adam", max_iter=40, learning_rate=0.1, C=10.0).fit(X, TRAIN[1])
    assert tagger.score(X, TRAIN[1]) > 0.95


def test_marginals_and_nbest() -> None:
    tagger = ChainTagger(max_iter=5).fit(*TRAIN)
    X = TEST[0][:5]
    for sentence, x in zip(tagger.predict_marginals(X), X, strict=True):
        assert len(sentence) == len(x)
        for token in sentence:
            assert sum(token.values()) == pytest.approx(1.0, abs=1e-5)
    for sentence, x, best in zip(tagger.predict_nbest(X, 3), X, tagger.predict(X), strict=True):
        assert sentence[0][1] == best
        assert len(sentence) == min(3, 2 ** len(x))
        assert [p for p, _ in sentence] == sorted((p for p, _ in sentence), reverse=True)


def test_the_contract() -> None:
    tagger = ChainTagger(C=0.5, max_iter=3)
    again = clone(tagger)
    assert again.get_params() == tagger.get_params()
    with pytest.raises(NotFittedError):
        tagger.predict(TEST[0])
    tagger.fit(*TRAIN)
    assert pickle.loads(pickle.dumps(tagger)).predict(TEST[0]) == tagger.predict(TEST[0])
    search = GridSearchCV(ChainTagger(max_iter=5, learning_rate=0.5), {"C": [0.01, 10.0]}, cv=2).fit(*TRAIN)
    assert search.best_score_ > 0.9
    pipeline = Pipeline([("same", FunctionTransformer()), ("tag", ChainTagger(max_iter=8, **FAST))]).fit(*TRAIN)
    assert pipeline.score(*TEST) > 0.9


def test_features_and_labels_that_training_lacks() -> None:
    tagger = ChainTagger(max_iter=3).fit(*TRAIN)
    assert tagger.predict([[["never seen"]], []])[0][0] in ("A", "B")
    assert tagger.predict([]) == []
    assert tagger.score([[["w=a"]]], [["Z"]]) == 0.0


def test_bad_arguments_are_named() -> None:
    for settings, sentence in (
        ({"C": 0}, "C: got 0"),
        ({"max_iter": 0}, "max_iter: got 0"),
        ({"solver": "newton"}, "solver: got 'newton', but wanted one of adagrad"),
    ):
        with pytest.raises(ValueError, match=sentence):
            ChainTagger(**settings).fit(*TRAIN)
    with pytest.raises(ValueError, match=r"y: y\[0\] has 1 labels, but X\[0\] has 2 tokens"):
        ChainTagger().fit([[["a"], ["b"]]], [["A"]])
    with pytest.raises(ValueError, match="y: got 2 sentences, but X has 1"):
        ChainTagger().fit([[["a"]]], [["A"], ["B"]])
    with pytest.raises(ValueError, match="X: got no sentence"):
        ChainTagger().fit([], [])


def test_class_weights_are_costs_of_the_label_that_is_right() -> None:
    ambiguous = [[["x"]]] * 40, [["A"]] * 30 + [["B"]] * 10  # nothing tells them apart but how many there are
    settings = {"objective": "risk", "max_iter": 40, "C": 10.0, "tol": 0.0}
    assert ChainTagger(**settings).fit(*ambiguous).predict([[["x"]]]) == [["A"]]
    assert ChainTagger(**settings, class_weight={"B": 20.0}).fit(*ambiguous).predict([[["x"]]]) == [["B"]]
    labels = np.array([0] * 30 + [1] * 10)
    for weights, wanted in (("balanced", [[0, 40 / 60], [2, 0]]), ({"B": 3.0}, [[0, 1], [3, 0]])):
        loss = class_costs(weights, sl.Hamming(), "hinge", ["A", "B"], labels)
        assert loss.costs.numpy() == pytest.approx(np.array(wanted))
    own = sl.Hamming(torch.tensor([[0.0, 2.0], [5.0, 0.0]]), normalize=True)
    loss = class_costs({"B": 3.0}, own, "risk", ["A", "B"], labels)
    assert loss.costs.tolist() == [[0, 2], [15, 0]]
    assert loss.normalize
    for settings, sentence in (
        ({"objective": "nll"}, "class_weight: got 'balanced' with the objective 'nll', .*softmax-margin, hinge"),
        ({"objective": "hinge", "loss": "edit"}, "class_weight: got the loss Edit"),
        ({"objective": "hinge", "class_weight": "even"}, "class_weight: got 'even'"),
        ({"objective": "hinge", "class_weight": {"Z": 1}}, "class_weight: got the label 'Z', but y has A, B"),
        ({"objective": "hinge", "class_weight": {"A": -1}}, "wanted finite numbers from 0"),
    ):
        with pytest.raises(ValueError, match=sentence):
            ChainTagger(**{"class_weight": "balanced"} | settings).fit(*TRAIN)


def test_a_weight_of_two_is_the_sentence_twice() -> None:
    X, y = TRAIN[0][:10], TRAIN[1][:10]
    settings = {"solver": "lbfgs", "max_iter": 30, "tol": 0.0}
    weighted = ChainTagger(**settings).fit(X, y, sample_weight=[2.0, 0.0, *[1.0] * 8])
    repeated = ChainTagger(**settings).fit([X[0], X[0], *X[2:]], [y[0], y[0], *y[2:]])
    names = [weighted.feature_names_in_.tolist().index(name) for name in repeated.feature_names_in_]
    assert weighted.coef_[:, names] == pytest.approx(repeated.coef_, abs=1e-3)
    for bad in ([1.0], [-1.0] * 10):
        with pytest.raises(ValueError, match=r"sample_weight: got shape .* but wanted \(10,\)"):
            ChainTagger().fit(X, y, sample_weight=bad)


def test_weights_give_the_scores_of_labels() -> None:
    tagger = ChainTagger(max_iter=4).fit(*TRAIN)
    F, K = len(tagger.feature_names_in_), len(tagger.classes_)
    assert tagger.coef_.shape == (K, F)
    assert tagger.transitions_.shape == (K, K)
    assert tagger.n_iter_ == len(tagger.objective_curve_) == 4
    x = [["w=a", "bias"], ["w=silent", "bias"]]
    has = np.array([[name in token for name in tagger.feature_names_in_] for token in x], np.float32)
    scores = torch.from_numpy(has @ tagger.coef_.T + tagger.intercept_)[None]
    rest = (torch.from_numpy(w) for w in (tagger.transitions_, tagger.start_, tagger.end_))
    wanted = sl.Chain.from_emissions(scores, *rest).marginals().sum(2)[0]
    assert tagger.predict_proba([x])[0] == pytest.approx(wanted.numpy(), abs=1e-5)
    table = tagger.top_features(1)
    assert {(label, name) for label, name, weight in table if weight > 0} <= {("A", "w=a"), ("B", "w=b")}
    assert len(table) == K
    with pytest.raises(NotFittedError):
        ChainTagger().coef_  # noqa: B018


def test_top_features_are_drawn() -> None:
    pytest.importorskip("matplotlib")
    figure = ChainTagger(max_iter=2).fit(*TRAIN).top_features(3).plot()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["A", "B"]


def test_grid_search_over_losses_and_chunk_f1() -> None:
    X = [[["w=in"], ["w=New"], ["w=York"]], [["w=New"], ["w=York"]], [["w=in"]]] * 4
    y = [["O", "B-LOC", "I-LOC"], ["B-LOC", "I-LOC"], ["O"]] * 4
    losses = ["hamming", sl.EditDistance(cap=2), sl.Hamming(torch.ones(3, 3) - torch.eye(3))]
    search = GridSearchCV(ChainTagger("softmax-margin"), {"loss": losses}, scoring=chunk_f1_scorer, cv=2).fit(X, y)
    assert search.best_score_ == 1.0
    assert not np.isnan(search.cv_results_["mean_test_score"]).any()


def test_text_in_place_of_features_is_refused() -> None:
    tagger = ChainTagger(max_iter=1).fit(*TRAIN)
    for bad, where in (([["the", "dog"]], r"X\[0\]\[0\] is the text 'the'"), (["the dog"], r"X\[0\] is the text")):
        with pytest.raises(TypeError, match=where + r".*\[\['word=the'\], \.\.\.\]"):
            tagger.predict(bad)
        with pytest.raises(TypeError, match=where):
            ChainTagger().fit(bad, [["A"] * len(bad[0])])


def test_features_that_are_rare_or_weighted() -> None:
    index, tokens = FeatureIndex.read([[["a", "b"], []], [["a"], ["c", "a"]]], min_count=2)
    assert index.names == ["a"]
    assert tokens.ids.tolist() == [0, 0, 0]
    assert list(zip(tokens.begin.tolist(), tokens.end.tolist(), strict=True)) == [(0, 1), (1, 1), (1, 2), (2, 3)]
    index, tokens = FeatureIndex.read([[{"a": 0.5, "b": True}]])
    assert tokens.values.tolist() == [0.5, 1.0]
    assert index.tokens([["b"], {"a": 2, "z": 3}]).values.tolist() == [1.0, 2.0]


def test_training_for_f1_weighs_misses_by_what_is_reached_on_held_out_sentences(capsys: pytest.CaptureFixture) -> None:
    generator = np.random.default_rng(0)
    X, y = [], []
    for _ in range(60):  # names are rare, and their words doubtful: without the weights hardly any is found
        words = generator.choice(["a", "b", "c", "x"], size=6, p=[0.3, 0.3, 0.2, 0.2])
        X.append([[f"w={w}"] for w in words])
        y.append(["B-N" if w == "x" and generator.random() < 0.45 else "O" for w in words])
    likely, tagger = ChainTagger().fit(X, y), ChainTagger(loss="f1", verbose=True).fit(X, y)
    assert chunk_f1_scorer(tagger, X, y) > 0.5 > 0.1 > chunk_f1_scorer(likely, X, y)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("F1 ")]
    assert len(lines) == 10
    assert "CorpusFBeta(2 labels, beta=1.0, reached=" in lines[-1]
    with pytest.raises(ValueError, match="labels: got 'D', but wanted O, or one of"):
        ChainTagger(loss="f1").fit([[["w=the"]]], [["D"]])
