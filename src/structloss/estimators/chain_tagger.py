"""ChainTagger: a linear chain over sparse or dense features, trained on any objective."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from structloss.losses import Hamming, Loss
from structloss.naming import loss_of, objective_of
from structloss.objectives import Objective
from structloss.structures import Chain, ChainLayer
from structloss.tasks.sparse import FeatureIndex, RowAdagrad, SparseLinear, SparseTokens, Token

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
            or an `Objective`.
        loss: what it is about, "hamming", "chunk-errors:miss=2", "edit:cap=5", ..., or a `Loss`.
        C: the larger, the weaker the L2 penalty; as in scikit-learn. CRFsuite's c2 is 1 / (2C).
        order: of the chain; 2 is the usual CRF.
        solver: "adagrad", mini-batches, the fastest on sparse features; "adam", mini-batches; "lbfgs", all sentences at
            once, for objectives that are smooth (nll, softmax-margin, risk).
        max_iter: passes over the sentences (for "lbfgs", steps).
        learning_rate: of "adagrad" and "adam".
        batch_size: sentences in a mini-batch.
        min_count: leave out features seen less often.
        tol: stop when a pass lowers the objective by less than this part of it.
        random_state: seed.
        verbose: print a line for each pass.

    Attributes:
        classes_: the labels, sorted.
        objective_curve_: the mean objective, penalty included, after each pass (before its updates, for mini-batches).
        loss_curve_: the mean loss of the best labels on a tenth of the sentences, at most a thousand, after each pass.

    X is a list of sentences: of tokens that are lists of feature strings, or dicts as sklearn-crfsuite takes them (text
    values become part of the name, numbers are weights); or of arrays (tokens, features). y is a list of label lists.

    Example:
        >>> from structloss.estimators import ChainTagger
        >>> X = [[["w=the"], ["w=dog"], ["w=runs"]], [["w=a"], ["w=dog"]]]
        >>> y = [["D", "N", "V"], ["D", "N"]]
        >>> tagger = ChainTagger(max_iter=20).fit(X, y)
        >>> tagger.predict([[["w=the"], ["w=cat"]]])
        [['D', 'N']]
    """

    def __init__(
        self,
        objective: str | Objective = "nll",
        loss: str | Loss = "hamming",
        C: float = 1.0,
        order: int = 2,
        solver: str = "adagrad",
        max_iter: int = 20,
        learning_rate: float = 0.1,
        batch_size: int = 16,
        min_count: int = 1,
        tol: float = 1e-3,
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.objective = objective
        self.loss = loss
        self.C = C
        self.order = order
        self.solver = solver
        self.max_iter = max_iter
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.min_count = min_count
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    # --- features and chains ------------------------------------------------------------------------------------------

    def _encode(self, X: Sentences) -> list[Any]:
        """Sparse tokens or tensors of each sentence."""
        if self.index_ is None:
            return [torch.as_tensor(np.asarray(x), dtype=torch.float32).reshape(len(x), -1) for x in X]
        return [self.index_.tokens(cast(Sequence[Token], x)) for x in X]

    def _chain(self, encoded: Sequence[Any]) -> Chain:
        lengths = [len(x) for x in encoded]
        emissions = self.emissions_(
            SparseTokens.joined(encoded) if self.index_ is not None else torch.cat(list(encoded))
        )
        chain: Chain = self.layer_(nn.utils.rnn.pad_sequence(emissions.split(lengths), batch_first=True), lengths)
        return chain

    def _build(self, X: Sentences, y: Sequence[Sequence[Any]]) -> tuple[list[Any], list[Tensor]]:
        """The model, all weights 0; the sentences and labels it reads."""
        if len(X) != len(y):
            raise ValueError(f"y: got {len(y)} sentences, but X has {len(X)}")
        if not len(X):
            raise ValueError("X: got no sentence, but wanted at least one")
        for i, labels in enumerate(y):
            x: Any = X[i]
            if len(x) != len(labels):
                raise ValueError(f"y: y[{i}] has {len(labels)} labels, but X[{i}] has {len(x)} tokens")
        self.classes_ = sorted({label for labels in y for label in labels})
        numbers = {label: k for k, label in enumerate(self.classes_)}
        dense = any(isinstance(x, np.ndarray | Tensor) for x in X[:1])
        self.index_ = None if dense else FeatureIndex.of(X, self.min_count)  # type: ignore[arg-type]
        K = len(self.classes_)
        if self.index_ is None:
            self.n_features_in_ = int(np.asarray(X[0]).reshape(len(X[0]), -1).shape[1])
            self.emissions_: nn.Module = nn.Linear(self.n_features_in_, K)
        else:
            self.n_features_in_ = len(self.index_)
            self.emissions_ = SparseLinear(max(1, len(self.index_)), K, sparse=self.solver == "adagrad")
        self.layer_ = ChainLayer(max(1, K), self.order)
        with torch.no_grad():
            for p in self._parameters():
                p.zero_()
        return self._encode(X), [torch.tensor([numbers[label] for label in labels], dtype=torch.int64) for labels in y]

    def _parameters(self) -> list[Tensor]:
        return [*self.emissions_.parameters(), *self.layer_.parameters()]

    # --- scikit-learn's contract --------------------------------------------------------------------------------------

    def fit(self, X: Sentences, y: Sequence[Sequence[Any]]) -> Self:
        """Train. Cost a pass: the features of all tokens times the labels, and the chains."""
        if not self.C > 0:
            raise ValueError(f"C: got {self.C!r}, but wanted a number above 0")
        solvers: dict[str, Callable[..., None]] = {"adagrad": self._adagrad, "adam": self._adam, "lbfgs": self._lbfgs}
        if self.solver not in solvers:
            raise ValueError(f"solver: got {self.solver!r}, but wanted one of {', '.join(solvers)}")
        encoded, labels = self._build(X, y)
        reported = loss_of(self.loss, self.classes_)
        objective = objective_of(self.objective, reported)
        self.objective_curve_: list[float] = []
        self.loss_curve_: list[float] = []
        self._begin = time.perf_counter()
        held = min(1000, max(1, len(encoded) // 10))
        self._measured = (encoded[:held], labels[:held], reported)
        before = objective.reduction
        objective.reduction = "sum"
        try:
            solvers[self.solver](encoded, labels, objective, torch.Generator().manual_seed(self.random_state))
        finally:
            objective.reduction = before
        del self._measured, self._begin
        return self

    def _penalty(self) -> Tensor:
        return sum(((p * p).sum() for p in self._parameters()), torch.zeros(())) / (2 * self.C)

    def _report(self, value: float, sentences: int) -> bool:
        """Note a pass; whether it was the last that is worth it."""
        encoded, labels, loss = self._measured
        with torch.no_grad():
            found = self._chain(encoded).argmax()
            reference: Any = nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-1)
            lengths = torch.tensor([len(x) for x in labels])
            wrong = loss(found, reference, lengths) if isinstance(loss, Hamming) else loss(found, reference)
        self.objective_curve_.append(value / sentences)
        self.loss_curve_.append(wrong.double().mean().item())
        if self.verbose:
            print(
                f"pass {len(self.objective_curve_)}: objective {self.objective_curve_[-1]:.4f}, "
                f"loss {self.loss_curve_[-1]:.4f}, {time.perf_counter() - self._begin:.1f} s",
                flush=True,
            )
        curve = self.objective_curve_
        return len(curve) > 1 and abs(curve[-2] - curve[-1]) < self.tol * max(abs(curve[-1]), 1e-12)

    def _batches(self, sizes: Sequence[int], generator: torch.Generator) -> list[list[int]]:
        """Sentences of about one length together, in a random order."""
        noise = torch.rand(len(sizes), generator=generator).tolist()
        order = sorted(range(len(sizes)), key=lambda i: sizes[i] + 3 * noise[i])
        batches = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]

    def _passes(
        self, encoded: list[Any], labels: list[Tensor], objective: Objective, generator: torch.Generator,
        step: Callable[..., None],
    ) -> None:  # fmt: skip
        sizes = [len(x) for x in encoded]
        for _ in range(self.max_iter):
            total = 0.0
            for batch in self._batches(sizes, generator):
                for p in self._parameters():
                    p.grad = None
                reference = nn.utils.rnn.pad_sequence([labels[i] for i in batch], batch_first=True, padding_value=-1)
                value = objective(self._chain([encoded[i] for i in batch]), reference)
                value.backward()
                step(len(batch))
                total += value.item()
            with torch.no_grad():
                total += self._penalty().item()
            if self._report(total, len(encoded)):
                break

    def _adagrad(
        self, encoded: list[Any], labels: list[Tensor], objective: Objective, generator: torch.Generator
    ) -> None:
        decay = min(self.batch_size, len(encoded)) / (self.C * len(encoded))
        optimizer = RowAdagrad(self._parameters(), self.learning_rate, decay)
        self._passes(encoded, labels, objective, generator, lambda _: optimizer.step())

    def _adam(self, encoded: list[Any], labels: list[Tensor], objective: Objective, generator: torch.Generator) -> None:
        optimizer = torch.optim.Adam(self._parameters(), self.learning_rate)

        def step(size: int) -> None:
            for p in self._parameters():
                if p.grad is not None:
                    p.grad += (size / (self.C * len(encoded))) * p.detach()
            optimizer.step()

        self._passes(encoded, labels, objective, generator, step)

    def _lbfgs(
        self, encoded: list[Any], labels: list[Tensor], objective: Objective, generator: torch.Generator
    ) -> None:
        optimizer = torch.optim.LBFGS(
            self._parameters(), max_iter=1, max_eval=10, history_size=6, line_search_fn="strong_wolfe"
        )
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        batches = [order[i : i + 256] for i in range(0, len(order), 256)]

        def closure() -> Tensor:
            optimizer.zero_grad()
            total = self._penalty()
            for batch in batches:
                reference = nn.utils.rnn.pad_sequence([labels[i] for i in batch], batch_first=True, padding_value=-1)
                total = total + objective(self._chain([encoded[i] for i in batch]), reference)
            total.backward()
            return total

        for _ in range(self.max_iter):
            value: Any = optimizer.step(closure)
            if self._report(value.item(), len(encoded)):
                break

    def _chains(self, X: Sentences) -> list[Chain]:
        check_is_fitted(self, "classes_")
        encoded = self._encode(X)
        with torch.no_grad():
            return [self._chain(encoded[i : i + 256]) for i in range(0, len(encoded), 256)]

    def predict(self, X: Sentences) -> list[list[Any]]:
        """The best labels of each sentence."""
        return [[self.classes_[k] for k in path] for chain in self._chains(X) for path in chain.decode()]

    def predict_marginals(self, X: Sentences) -> list[list[dict[Any, float]]]:
        """The probability of each label, for each token of each sentence."""
        result = []
        for chain in self._chains(X):
            with torch.no_grad():
                table = chain.marginals()
            table = table.sum(tuple(range(2, table.dim() - 1)))  # over what comes before
            for row, length in zip(table.tolist(), chain.lengths.tolist(), strict=True):
                result.append([dict(zip(self.classes_, token, strict=True)) for token in row[:length]])
        return result

    def predict_nbest(self, X: Sentences, n: int = 5) -> list[list[tuple[float, list[Any]]]]:
        """The n best label sequences of each sentence, best first, with their probabilities."""
        result = []
        for chain in self._chains(X):
            with torch.no_grad():
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
