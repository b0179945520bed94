"""ChainTagger: a linear chain over sparse or dense features, trained on any objective."""

import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.estimators.class_weights import class_costs
from structloss.estimators.corpus import Corpus, LinearTagger
from structloss.estimators.features import FeatureTable
from structloss.estimators.solvers import SOLVERS, Solver
from structloss.losses import Hamming, Loss
from structloss.naming import default_objective, loss_of, objective_of
from structloss.objectives import Objective
from structloss.structures import Chain
from structloss.tasks.sparse import FeatureIndex, Token
from structloss.tasks.tagging.chunks import chunk_score

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("estimators need scikit-learn: pip install 'structloss[sklearn]'") from missing

Sentences = Sequence[Sequence[Token]] | Sequence[NDArray[np.floating[Any]]]


class ChainTagger(BaseEstimator):  # type: ignore[misc]
    r"""A linear-chain tagger with scikit-learn's contract.

    It minimises :math:`\sum_i \text{objective}(x_i, y_i) + \tfrac1{2C} \|w\|^2` over the weights of features for labels
    and of transitions.

    Args:
        objective: "nll", "softmax-margin", "perceptron", "hinge", "slack-hinge", "direct:epsilon=1", "risk", "reward",
            or an `Objective`. By default "nll", and where there is a loss what suits it, mostly "softmax-margin".
        loss: what it is about, "hamming", "chunk-errors:miss=2", "edit:cap=5", ..., or a `Loss`. "f1" (and
            "fbeta:beta=2") is that of the chunks of all sentences: what a missed chunk and one made up cost follows the
            F1 of a model of four fifths of the sentences on the last fifth, pass by pass; then all are trained on.
        C: the larger, the weaker the L2 penalty; as in scikit-learn. CRFsuite's c2 is 1 / (2C). By default 1, and no
            penalty for "direct", to which the norm of the weights says nothing.
        order: of the chain; 2 is the usual CRF.
        class_weight: what a wrong label costs, by the label that is right: {label: weight}, 1 for those it lacks, or
            "balanced", tokens / (labels * tokens of that label). It multiplies the costs of the Hamming loss; so it is
            for objectives that have a loss ("softmax-margin", "hinge", "risk", ...), not for "nll" and "perceptron".
            Under "risk" and "direct" an error counts so much; margins ("softmax-margin", "hinge") are widened by it,
            which need not turn the answer where features say little.
        solver: "adagrad", mini-batches, the fastest on sparse features; "adam", mini-batches; "lbfgs", all sentences at
            once, for objectives that are smooth (nll, softmax-margin, risk).
            With mini-batches the weights are the mean of those after each pass, pass p counted p times.
        max_iter: passes over the sentences (for "lbfgs", steps).
        learning_rate: of "adagrad" and "adam".
        batch_size: sentences in a mini-batch; None: a fiftieth of all, but 8 to 64.
        min_count: leave out features seen less often.
        tol: stop when a pass lowers the objective by less than this part of it.
        random_state: seed.
        verbose: print a line for each pass.

    Attributes:
        classes_: the labels, sorted; K of them.
        n_iter_: passes that were made.
        n_features_in_, feature_names_in_: how many features there are, F, and their names (of arrays, none).
        objective_curve_: the mean objective, penalty included, after each pass (before its updates, for mini-batches).
        loss_curve_: the mean loss of the best labels on a tenth of the sentences, at most a thousand, after each pass.

    X is a list of sentences: of tokens that are lists of feature strings, or dicts as sklearn-crfsuite takes them (text
    values become part of the name, numbers are weights); or of arrays (tokens, features). y is a list of label lists.

    Example:
        >>> from structloss.estimators import ChainTagger
        >>> X = [[["w=the"], ["w=dog"], ["w=runs"]], [["w=a"], ["w=dog"]]]
        >>> y = [["D", "N", "V"], ["D", "N"]]
        >>> tagger = ChainTagger().fit(X, y)
        >>> tagger.predict([[["w=the"], ["w=cat"]]])
        [['D', 'N']]
        >>> tagger.coef_.shape, tagger.transitions_.shape, tagger.n_iter_
        ((3, 4), (3, 3), 7)
    """

    def __init__(
        self,
        objective: str | Objective | None = None,
        loss: str | Loss | None = None,
        C: float | None = None,
        order: int = 2,
        class_weight: Mapping[Any, float] | str | None = None,
        solver: str = "adagrad",
        max_iter: int = 10,
        learning_rate: float = 1.0,
        batch_size: int | None = None,
        min_count: int = 1,
        tol: float = 1e-3,
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.objective = objective
        self.loss = loss
        self.C = C
        self.order = order
        self.class_weight = class_weight
        self.solver = solver
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.min_count = min_count
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    # --- training -----------------------------------------------------------------------------------------------------

    def fit(self, X: Sentences, y: Sequence[Sequence[Any]], sample_weight: Sequence[float] | None = None) -> Self:
        """Train. Cost a pass: the features of all tokens times the labels, and the chains.

        Args:
            X, y: sentences and their labels.
            sample_weight: a number for each sentence, that its objective is multiplied by; by default 1.
        """
        if self.max_iter < 1:
            raise ValueError(f"max_iter: got {self.max_iter!r}, but wanted at least 1")
        if self.C is not None and not self.C > 0:
            raise ValueError(f"C: got {self.C!r}, but wanted a number above 0")
        if self.solver not in SOLVERS:
            raise ValueError(f"solver: got {self.solver!r}, but wanted one of {', '.join(SOLVERS)}")
        self._objective("hamming" if self.loss is None else self.loss, ["O"])  # said before the sentences are read
        corpus = self._read(X, y, sample_weight)
        loss = self._loss(corpus)
        solver = self._solver(corpus)
        self.model_ = solver.model
        self.objective_curve_: list[float] = []
        self.loss_curve_: list[float] = []
        begin = time.perf_counter()
        for _ in range(self.max_iter):
            value = self._pass(solver, loss)
            if self._is_last(value / len(corpus), corpus, loss, begin):
                break
        solver.finish()
        self.n_iter_ = len(self.objective_curve_)
        return self

    def _objective(self, loss: str | Loss, labels: Sequence[str] | None = None) -> Objective:
        named = default_objective(self.loss) if self.objective is None else self.objective
        return objective_of(named, loss, labels)

    def _solver(self, corpus: Corpus) -> Solver:
        """With a new model."""
        sparse, K = self.index_ is not None, max(1, len(self.classes_))
        model = LinearTagger(self.n_features_in_, K, self.order, sparse, self.solver == "adagrad")
        size = self.batch_size or min(64, max(8, len(corpus) // 50))
        penalised = self._objective("hamming" if self.loss is None else self.loss, ["O"]).norm_matters
        C = self.C if self.C is not None else 1.0 if penalised else math.inf
        return SOLVERS[self.solver](model, corpus, C, self.learning_rate, size, self.random_state)

    def _pass(self, solver: Solver, loss: Loss) -> float:
        """One pass; the sum of the objective and the penalty."""
        objective = self._objective(loss)
        before = objective.reduction
        objective.reduction = "sum" if solver.corpus.weights is None else "none"
        try:
            value = solver.run(objective)
        finally:
            objective.reduction = before
        solver.note()
        return value

    def _loss(self, corpus: Corpus) -> Loss:
        assert corpus.labels is not None
        loss = loss_of("hamming" if self.loss is None else self.loss, self.classes_)
        if self.class_weight is not None:
            named = default_objective(self.loss) if self.objective is None else self.objective
            loss = class_costs(self.class_weight, loss, named, self.classes_, corpus.labels)
        return self._followed(loss, corpus) if loss.weights else loss

    def _followed(self, loss: Loss, corpus: Corpus) -> Loss:
        """The loss with the weights that follow from what is reached on every fifth sentence, trained on the others."""
        held = np.arange(0, len(corpus), 5)
        rest = np.setdiff1d(np.arange(len(corpus)), held) if len(corpus) > 1 else held
        measured, solver = corpus.part(held), self._solver(corpus.part(rest))
        for _ in range(self.max_iter):
            self._pass(solver, loss)
            score = chunk_score(*self._answers(solver.model, measured))
            loss = loss.following(score._asdict())
            if self.verbose:
                print(f"F1 {score.f1:.4f} on held-out sentences: {loss!r}", flush=True)
        return loss

    @torch.no_grad()
    def _answers(self, model: LinearTagger, corpus: Corpus) -> tuple[list[list[Any]], list[list[Any]]]:
        """The best labels of each sentence, and its own."""
        found, wanted = [], []
        for batch in corpus.in_order(256):
            found += [[self.classes_[k] for k in path] for path in model(batch).decode()]
            wanted += [[self.classes_[k] for k in row if k >= 0] for row in batch.labels.tolist()]
        return found, wanted

    def _read(self, X: Sentences, y: Sequence[Sequence[Any]], sample_weight: Sequence[float] | None) -> Corpus:
        """The sentences and labels as numbers, and the names of both."""
        X, y = cast(Sentences, list(X)), list(y)
        if len(X) != len(y):
            raise ValueError(f"y: got {len(y)} sentences, but X has {len(X)}")
        if not X:
            raise ValueError("X: got no sentence, but wanted at least one")
        for i, (x, labels) in enumerate(zip(cast(Sequence[Sequence[Any]], X), y, strict=True)):
            if len(x) != len(labels):
                raise ValueError(f"y: y[{i}] has {len(labels)} labels, but X[{i}] has {len(x)} tokens")
        weights = None if sample_weight is None else torch.as_tensor(np.asarray(sample_weight), dtype=torch.float32)
        if weights is not None and (weights.shape != (len(X),) or not (weights.isfinite() & (weights >= 0)).all()):
            raise ValueError(
                f"sample_weight: got shape {tuple(weights.shape)}, but wanted ({len(X)},), a finite number from 0 for "
                "each sentence"
            )
        self.classes_ = sorted(set(itertools.chain.from_iterable(y)))
        numbers = {label: k for k, label in enumerate(self.classes_)}
        gold = np.fromiter(map(numbers.__getitem__, itertools.chain.from_iterable(y)), np.int64)
        if isinstance(X[0], np.ndarray | Tensor):
            self.index_ = None
            rows = _dense(X)
            self.n_features_in_ = rows.shape[1]
            return Corpus(rows, _sizes(X), gold, weights)
        self.index_, tokens = FeatureIndex.read(_sparse(X), self.min_count)
        self.n_features_in_ = len(self.index_)
        return Corpus(tokens, _sizes(X), gold, weights)

    def _is_last(self, value: float, corpus: Corpus, loss: Loss, begin: float) -> bool:
        """Note a pass; whether it was the last that is worth it."""
        batch = corpus.batch(np.arange(min(1000, max(1, len(corpus) // 10))))
        with torch.no_grad():
            found, wanted = self.model_(batch).argmax(), cast(Any, batch.labels)
            wrong = loss(found, wanted, batch.lengths) if isinstance(loss, Hamming) else loss(found, wanted)
        self.objective_curve_.append(value)
        self.loss_curve_.append(wrong.double().mean().item())
        if self.verbose:
            print(
                f"pass {len(self.objective_curve_)}: objective {value:.4f}, loss {self.loss_curve_[-1]:.4f}, "
                f"{time.perf_counter() - begin:.1f} s",
                flush=True,
            )
        before = self.objective_curve_[-2:-1]
        return bool(before) and abs(before[0] - value) < self.tol * max(abs(value), 1e-12)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _chains(self, X: Sentences) -> Iterable[Chain]:
        check_is_fitted(self, "n_iter_")
        X = cast(Sentences, list(X))
        features = _dense(X) if self.index_ is None else self.index_.tokens(itertools.chain.from_iterable(_sparse(X)))
        return map(self.model_, Corpus(features, _sizes(X)).in_order(256))

    @torch.no_grad()
    def predict(self, X: Sentences) -> list[list[Any]]:
        """The best labels of each sentence."""
        return [[self.classes_[k] for k in path] for chain in self._chains(X) for path in chain.decode()]

    @torch.no_grad()
    def predict_proba(self, X: Sentences) -> list[NDArray[np.float32]]:
        """The probability of each label at each token: for each sentence an array (tokens, K), columns as `classes_`.

        Example:
            >>> from structloss.estimators import ChainTagger
            >>> tagger = ChainTagger().fit([[["w=a"], ["w=b"]], [["w=b"]]], [["A", "B"], ["B"]])
            >>> [p.shape for p in tagger.predict_proba([[["w=a"]], [["w=b"], ["w=a"], ["w=b"]]])]
            [(1, 2), (3, 2)]
        """
        result = []
        for chain in self._chains(X):
            table = chain.marginals()
            table = table.sum(tuple(range(2, table.dim() - 1)))  # over what comes before
            result += [row[:length].numpy() for row, length in zip(table, chain.lengths.tolist(), strict=True)]
        return result

    def predict_marginals(self, X: Sentences) -> list[list[dict[Any, float]]]:
        """`predict_proba` with the labels' names: {label: probability} for each token of each sentence."""
        return [[dict(zip(self.classes_, p, strict=True)) for p in table.tolist()] for table in self.predict_proba(X)]

    @torch.no_grad()
    def predict_nbest(self, X: Sentences, n: int = 5) -> list[list[tuple[float, list[Any]]]]:
        """The n best label sequences of each sentence, best first, with their probabilities."""
        result = []
        for chain in self._chains(X):
            scores, paths = chain.topk(n)
            probabilities = (scores - chain.log_partition()).exp()  # (n, B)
            for b, length in enumerate(chain.lengths.tolist()):
                pairs = zip(probabilities[:, b].tolist(), paths[:, b, :length].tolist(), strict=True)
                result.append([(p, [self.classes_[k] for k in path]) for p, path in pairs if p > 0])
        return result

    def score(self, X: Sentences, y: Sequence[Sequence[Any]]) -> float:
        """The part of the tokens whose label is right."""
        right = total = 0
        for found, wanted in zip(self.predict(X), y, strict=True):
            right += sum(a == b for a, b in zip(found, wanted, strict=True))
            total += len(wanted)
        return right / total if total else 1.0

    # --- what was learnt ----------------------------------------------------------------------------------------------

    def _weights(self, name: str) -> NDArray[np.float32]:
        check_is_fitted(self, "n_iter_")
        return cast(Tensor, self.model_.get_parameter(name)).detach().numpy()

    @property
    def feature_names_in_(self) -> NDArray[np.object_]:
        """The names of the features, (F,); arrays have none."""
        check_is_fitted(self, "n_iter_")
        if self.index_ is None:
            raise AttributeError("feature_names_in_: X was arrays, whose features have no names")
        return np.array(self.index_.names, dtype=object)

    @property
    def coef_(self) -> NDArray[np.float32]:
        """The weight of each feature for each label, (K, F), rows as `classes_`, columns as `feature_names_in_`."""
        weights = self._weights("emissions.weight")
        return weights if self.index_ is None else weights[: self.n_features_in_].T

    @property
    def intercept_(self) -> NDArray[np.float32]:
        """What each label scores without any feature, (K,); 0 unless X was arrays."""
        return self._weights("emissions.bias") if self.index_ is None else np.zeros(len(self.classes_), np.float32)

    @property
    def transitions_(self) -> NDArray[np.float32]:
        """The score of one label after another, (K, K), from row to column; with `order` axes, oldest first."""
        return self._weights("layer.transitions")

    @property
    def start_(self) -> NDArray[np.float32]:
        """The score of each label as the first, (K,)."""
        return self._weights("layer.start")

    @property
    def end_(self) -> NDArray[np.float32]:
        """The score of each label as the last, (K,)."""
        return self._weights("layer.end")

    def top_features(self, n: int = 10) -> FeatureTable:
        """The n features of largest weight for each label, above or below 0: a table, and `.plot()` draws it.

        Example:
            >>> from structloss.estimators import ChainTagger
            >>> X, y = [[["w=a"], ["w=b"]], [["w=b"], ["w=a"]]], [["A", "B"], ["B", "A"]]
            >>> ChainTagger(max_iter=1, learning_rate=1.0, C=1e9).fit(X, y).top_features(2)
            label  feature   weight
            A      w=a       1.0000
            A      w=b      -1.0000
            B      w=b       1.0000
            B      w=a      -1.0000
        """
        names = [f"column {i}" for i in range(self.n_features_in_)] if self.index_ is None else self.feature_names_in_
        return FeatureTable(self.coef_, self.classes_, cast(Sequence[str], names), n)


def _sizes(X: Sentences) -> NDArray[np.int64]:
    return np.fromiter(map(len, X), np.int64, len(X))


def _dense(X: Sentences) -> Tensor:
    """Arrays of sentences one below the other, (N, D)."""
    rows = [torch.as_tensor(np.asarray(x), dtype=torch.float32).reshape(len(x), -1) for x in X]
    return torch.cat(rows) if rows else torch.zeros(0, 0)


def _sparse(X: Sentences) -> Sequence[Sequence[Token]]:
    """Sentences of tokens with their features' names; a text is not one."""
    for i, x in enumerate(X):
        if not isinstance(x, str) and not any(issubclass(kind, str) for kind in set(map(type, x))):
            continue
        for t, token in enumerate([x] if isinstance(x, str) else x):
            if isinstance(token, str):
                where = f"X[{i}]" if isinstance(x, str) else f"X[{i}][{t}]"
                word = token.split()[0] if token.split() else token
                raise TypeError(
                    f"X: {where} is the text {token!r}, but wanted a sentence of tokens that are lists of features, "
                    f"such as [['word={word}'], ...], or dicts, such as [{{'word': {word!r}}}, ...]"
                )
    return cast(Sequence[Sequence[Token]], X)
