"""Sparse features: strings that a token has or has not, numbered, and a linear layer over them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from structloss.kernels.workers import run
from structloss.tasks import sparse_kernels

Token = Sequence[str] | Mapping[str, Any]  # its features: names, or names and values


def named(token: Token) -> Iterable[tuple[str, float]]:
    """The features of a token by name and value: text is part of the name, numbers are values, False is nothing."""
    if not isinstance(token, Mapping):
        return ((name, 1.0) for name in token)
    return (_named(name, value) for name, value in token.items() if value is not False)


def _named(name: str, value: Any) -> tuple[str, float]:
    if isinstance(value, str):
        return f"{name}:{value}", 1.0
    return name, 1.0 if value is True else float(value)


@dataclass(frozen=True)
class SparseTokens:
    """The features of many tokens: those of token n are ids[begin[n]:begin[n + 1]]; values of size 0 are all 1."""

    ids: NDArray[np.int64]
    values: NDArray[np.float32]
    begin: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.begin) - 1

    @classmethod
    def joined(cls, parts: Sequence["SparseTokens"]) -> "SparseTokens":
        """All of them in a row."""
        begin = np.concatenate([np.zeros(1, np.int64), *(np.diff(x.begin) for x in parts)]).cumsum()
        return cls(
            np.concatenate([np.zeros(0, np.int64), *(x.ids for x in parts)]),
            np.concatenate([np.zeros(0, np.float32), *(x.values for x in parts)]),
            begin,
        )


class FeatureIndex:
    """Numbers for the features seen at least `min_count` times; others are left out.

    Example:
        >>> from structloss.tasks.sparse import FeatureIndex
        >>> index = FeatureIndex.of([[["word=a", "first"], ["word=b"]], [["word=a"]]], min_count=2)
        >>> index.names, index.tokens([["word=b"], ["word=a", "first"]]).ids
        (['word=a'], array([0]))
    """

    def __init__(self, names: Sequence[str], weighted: bool = False) -> None:
        self.names, self.weighted = list(names), weighted
        self._numbers = {name: i for i, name in enumerate(self.names)}

    @classmethod
    def of(cls, sentences: Iterable[Sequence[Token]], min_count: int = 1) -> "FeatureIndex":
        """From sentences, in the order features are first seen."""
        counts: Counter[str] = Counter()
        weighted = False
        for sentence in sentences:
            for token in sentence:
                if isinstance(token, Mapping):
                    for name, value in named(token):
                        counts[name] += 1
                        weighted = weighted or value != 1.0
                else:
                    counts.update(token)
        return cls([name for name, count in counts.items() if count >= min_count], weighted)

    def __len__(self) -> int:
        return len(self.names)

    def tokens(self, sentence: Sequence[Token]) -> SparseTokens:
        """The features of a sentence's tokens, by number."""
        numbers = self._numbers
        ids, values, begin = [], [], [0]
        for token in sentence:
            if self.weighted or isinstance(token, Mapping):
                for name, value in named(token):
                    if name in numbers:
                        ids.append(numbers[name])
                        values.append(value)
            else:
                ids.extend([numbers[name] for name in token if name in numbers])
            begin.append(len(ids))
        weights = np.array(values if self.weighted else [], np.float32)
        return SparseTokens(np.array(ids, np.int64), weights, np.array(begin, np.int64))


class SparseLinear(nn.Module):
    """Scores (N, K) of N tokens from their sparse features: the sum of the rows of `weight` (F, K).

    Its gradient is a sparse tensor of the rows that were used (`sparse=True`), as torch.optim.Adagrad and SparseAdam
    take it, or a whole one.
    """

    def __init__(self, num_features: int, num_labels: int, sparse: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_features, num_labels))
        self.sparse = sparse

    def forward(self, tokens: SparseTokens) -> Tensor:
        return cast(Tensor, cast(Any, _Gather).apply(self.weight, tokens, self.sparse))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: SparseTokens, sparse_gradient: bool) -> Tensor:
        out = torch.empty(len(tokens), weight.shape[1], dtype=weight.dtype)
        steps = len(tokens.ids) * (4 + weight.shape[1] // 4)
        arrays = (tokens.ids, tokens.values, tokens.begin, weight.detach().numpy(), out.numpy())
        run(sparse_kernels.gather, torch.get_num_threads(), len(tokens), steps, *arrays)
        ctx.tokens, ctx.shape, ctx.sparse = tokens, weight.shape, sparse_gradient
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        t, (features, labels) = ctx.tokens, ctx.shape
        rows = g.contiguous().numpy()
        if not ctx.sparse:
            whole = torch.zeros(features, labels, dtype=g.dtype)
            sparse_kernels.scatter(t.ids, t.values, t.begin, rows, whole.numpy())
            return whole, None, None
        found, places = np.empty(min(features, len(t.ids)), np.int64), np.empty(len(t.ids), np.int64)
        count = sparse_kernels.distinct(t.ids, np.full(features, -1, np.int32), found, places)
        used = torch.zeros(count, labels, dtype=g.dtype)
        sparse_kernels.scatter(places, t.values, t.begin, rows, used.numpy())
        index = torch.from_numpy(found[:count])[None]
        return torch.sparse_coo_tensor(index, used, (features, labels), check_invariants=False), None, None


class RowAdagrad(torch.optim.Optimizer):
    r"""AdaGrad on the rows of a `SparseLinear` that a batch has used, with an L2 penalty that the others owe.

    A row that comes up after m steps decays for all of them at once. Cost: the rows that were used.

    Args:
        parameters: matrices whose gradients are sparse, or whole.
        lr: the step.
        decay: of the penalty :math:`\tfrac{\text{decay}}2 \|w\|^2` added to what each step minimises.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float = 0.1, decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; closures are not for stochastic gradients."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["squares"] = torch.zeros_like(p)
                    state["last"] = torch.zeros(p.shape[0], dtype=torch.int64)
                    state["step"] = 0
                state["step"] += 1
                g = p.grad
                if g.is_sparse:
                    rows, values = g._indices()[0], g._values()
                else:
                    rows, values = torch.arange(p.shape[0]), g
                gradient, weight, squares = (x.reshape(len(x), -1).numpy() for x in (values, p.data, state["squares"]))
                state["last"] = state["last"].long()  # whoever loads a state makes every tensor the weights' type
                last = state["last"].numpy()
                sparse_kernels.adagrad(
                    rows.numpy(), gradient, weight, squares, last, state["step"], group["lr"], group["decay"]
                )
