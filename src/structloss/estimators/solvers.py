"""One pass over a corpus: what is minimised is the sum of the objective and a penalty of the weights."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from structloss.estimators.corpus import Batch, Corpus, LinearTagger
from structloss.objectives import Objective
from structloss.tasks.sparse import RowAdagrad


class Solver(ABC):
    r"""Minimises :math:`\sum_i \text{objective}(x_i, y_i) + \tfrac1{2C} \|w\|^2`, pass by pass.

    The objective is handed over for each pass: it may be another one each time.
    """

    def __init__(self, model: LinearTagger, corpus: Corpus, C: float, rate: float, batch_size: int, seed: int) -> None:
        self.model, self.corpus, self.C = model, corpus, C
        self.parameters = list(model.parameters())
        self.batch_size, self.generator = min(batch_size, len(corpus)), torch.Generator().manual_seed(seed)
        self.optimizer, self.passes = self._optimizer(rate), 0

    @abstractmethod
    def _optimizer(self, rate: float) -> torch.optim.Optimizer: ...

    def run(self, objective: Objective) -> float:
        """One pass; the objective's sum before its updates, with the penalty after them."""
        total = 0.0
        for batch in self.corpus.shuffled(self.batch_size, self.generator):
            self.optimizer.zero_grad()
            value = self._value(batch, objective)
            value.backward()
            self._step(len(batch.lengths))
            total += value.item()
        with torch.no_grad():
            return total + self._penalty().item()

    def _step(self, sentences: int) -> None:
        self.optimizer.step()

    @torch.no_grad()
    def note(self) -> None:
        """Take the weights after a pass into their mean, in which pass p counts p times."""
        self.passes += 1
        if self.passes == 1:
            self.means = [p.clone() for p in self.parameters]
        for mean, p in zip(self.means, self.parameters, strict=True):
            mean.lerp_(p, 2 / (self.passes + 1))

    @torch.no_grad()
    def finish(self) -> None:
        """Give the model that mean: the last weights alone depend on which sentences came last."""
        for mean, p in zip(self.means, self.parameters, strict=True):
            p.copy_(mean)

    def _value(self, batch: Batch, objective: Objective) -> Tensor:
        values: Tensor = objective(self.model(batch), batch.labels)
        return values.sum() if batch.weights is None else (batch.weights * values).sum()

    def _penalty(self) -> Tensor:
        return sum(((p * p).sum() for p in self.parameters), torch.zeros(())) / (2 * self.C)


class Adagrad(Solver):
    """AdaGrad; a step costs the features of its sentences, however many there are in all."""

    def _optimizer(self, rate: float) -> torch.optim.Optimizer:
        return RowAdagrad(self.parameters, rate, self.batch_size / (self.C * len(self.corpus)))


class Adam(Solver):
    """Adam; a step costs all features."""

    def _optimizer(self, rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters, rate)

    def _step(self, sentences: int) -> None:
        for p in self.parameters:
            if p.grad is not None:
                p.grad += (sentences / (self.C * len(self.corpus))) * p.detach()
        self.optimizer.step()


class LBFGS(Solver):
    """L-BFGS with a line search on all sentences at once."""

    def _optimizer(self, rate: float) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(
            self.parameters, max_iter=1, max_eval=10, history_size=6, line_search_fn="strong_wolfe"
        )

    def _by_length(self) -> Iterator[Batch]:
        order = np.argsort(self.corpus.sizes, kind="stable")
        for i in range(0, len(order), 256):
            yield self.corpus.batch(order[i : i + 256])

    def note(self) -> None:
        """Nothing: no step depends on an order of the sentences."""

    def finish(self) -> None:
        """The last weights are the best."""

    def run(self, objective: Objective) -> float:
        def closure() -> float:
            self.optimizer.zero_grad()
            penalty = self._penalty()
            penalty.backward()
            total = penalty.item()
            for batch in self._by_length():
                value = self._value(batch, objective)
                value.backward()
                total += value.item()
            return total

        return float(self.optimizer.step(closure))


SOLVERS: dict[str, type[Solver]] = {"adagrad": Adagrad, "adam": Adam, "lbfgs": LBFGS}
