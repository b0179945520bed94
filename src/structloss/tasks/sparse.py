"""Sparse features: strings that a token has or has not, numbered, and a linear layer over them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
    """The features of many tokens: those of token n are ids[begin[n]:end[n]]; values of size 0 are all 1.

    begin and end are (N,), or (B, T) for a batch of sentences, where padding has no features.
    """

    ids: NDArray[np.int32]
    values: NDArray[np.float32]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.begin)

    @classmethod
    def of(cls, ids: NDArray[np.int32], values: NDArray[np.float32], counts: NDArray[np.int64]) -> "SparseTokens":
        """Tokens in a row, with `counts` (N,) features each."""
        end = counts.cumsum()
        return cls(ids, values, end - counts, end)

    @classmethod
    def padded(cls, sentences: Sequence["SparseTokens"]) -> "SparseTokens":
        """Sentences as the rows of a batch (B, T)."""
        shape = len(sentences), max((len(x) for x in sentences), default=0)
        begin, end, offset = np.zeros(shape, np.int64), np.zeros(shape, np.int64), 0
        for row, x in enumerate(sentences):
            begin[row, : len(x)], end[row, : len(x)] = x.begin + offset, x.end + offset
            offset += len(x.ids)
        ids = np.concatenate([np.zeros(0, np.int32), *(x.ids for x in sentences)])
        return cls(ids, np.concatenate([np.zeros(0, np.float32), *(x.values for x in sentences)]), begin, end)

    def take(self, tokens: NDArray[np.int64]) -> "SparseTokens":
        """These tokens, -1 for padding, as an array of any shape; the features stay where they are."""
        inside = tokens >= 0
        return SparseTokens(
            self.ids, self.values, np.where(inside, self.begin[tokens], 0), np.where(inside, self.end[tokens], 0)
        )


class FeatureIndex:
    """Numbers for the features seen at least `min_count` times; others are left out.

    Example:
        >>> from structloss.tasks.sparse import FeatureIndex
        >>> index = FeatureIndex.of([[["word=a", "first"], ["word=b"]], [["word=a"]]], min_count=2)
        >>> index.names, index.tokens([["word=b"], ["word=a", "first"]]).ids.tolist()
        (['word=a'], [0])
    """

    def __init__(self, names: Iterable[str], weighted: bool = False) -> None:
        self.names, self.weighted = list(names), weighted
        # Of names that are numbered already the dict is copied, which asks for no string's hash again.
        self._numbers = dict(names) if isinstance(names, dict) else {name: i for i, name in enumerate(self.names)}

    @classmethod
    def of(cls, sentences: Iterable[Sequence[Token]], min_count: int = 1) -> "FeatureIndex":
        """From sentences, in the order features are first seen."""
        return cls.read(sentences, min_count)[0]

    @classmethod
    def read(cls, sentences: Iterable[Sequence[Token]], min_count: int = 1) -> "tuple[FeatureIndex, SparseTokens]":
        """The index and, in a row, all tokens of the sentences that it is from. Cost: one look-up for each feature."""
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__  # who is asked for the first time gets the next number
        tokens = _encoded(chain.from_iterable(sentences), numbers.__getitem__)
        names: Iterable[str] = numbers
        if min_count > 1:
            kept = np.bincount(tokens.ids, minlength=len(numbers)) >= min_count
            names = [name for name, enough in zip(numbers, kept.tolist(), strict=True) if enough]
            tokens = _kept(tokens, np.where(kept, kept.cumsum() - 1, -1)[tokens.ids])
        return cls(names, bool(tokens.values.size)), tokens

    def __len__(self) -> int:
        return len(self.names)

    def tokens(self, sentence: Iterable[Token]) -> SparseTokens:
        """The features of a sentence's tokens, by number."""
        numbers = self._numbers
        tokens = _encoded(sentence, lambda name: numbers.get(name, -1))
        if not self.weighted:
            tokens = replace(tokens, values=np.zeros(0, np.float32))
        elif not tokens.values.size:
            tokens = replace(tokens, values=np.ones(len(tokens.ids), np.float32))
        return _kept(tokens, tokens.ids) if len(tokens.ids) and tokens.ids.min() < 0 else tokens


def _encoded(tokens: Iterable[Token], number: Callable[[str], int]) -> SparseTokens:
    """Tokens with the numbers of their features; values only where one is not 1."""
    rows = list(tokens)
    if any(issubclass(kind, Mapping) for kind in set(map(type, rows))):
        pairs = [list(named(token)) for token in rows]
        counts = np.fromiter(map(len, pairs), np.int64, len(pairs))
        ids = np.fromiter((number(name) for row in pairs for name, _ in row), np.int32, counts.sum())
        values = np.fromiter((value for row in pairs for _, value in row), np.float32, counts.sum())
        return SparseTokens.of(ids, values if (values != 1.0).any() else values[:0], counts)
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    ids = np.fromiter(map(number, chain.from_iterable(rows)), np.int32, counts.sum())
    return SparseTokens.of(ids, np.zeros(0, np.float32), counts)


def _kept(tokens: SparseTokens, ids: NDArray[Any]) -> SparseTokens:
    """Tokens in a row with other ids for their features, without those whose id is negative."""
    inside = ids >= 0
    before = np.append(0, inside.cumsum())
    values = tokens.values[inside] if tokens.values.size else tokens.values
    return SparseTokens(ids[inside].astype(np.int32), values, before[tokens.begin], before[tokens.end])


class SparseLinear(nn.Module):
    """Scores (..., K) of tokens (...) from their sparse features: the sum of the rows of `weight` (F, K).

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
        labels = weight.shape[1]
        begin, end = tokens.begin.reshape(-1), tokens.end.reshape(-1)
        out = torch.empty(*tokens.begin.shape, labels, dtype=weight.dtype)
        steps = int((end - begin).sum()) * (4 + labels // 4)
        scores = out.numpy().reshape(-1, labels)
        arrays = (tokens.ids, tokens.values, begin, end)
        run(sparse_kernels.gather, torch.get_num_threads(), len(begin), steps, *arrays, weight.detach().numpy(), scores)
        ctx.arrays, ctx.shape, ctx.sparse = arrays, weight.shape, sparse_gradient
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (ids, values, begin, end), (features, labels) = ctx.arrays, ctx.shape
        rows = g.contiguous().numpy().reshape(-1, labels)
        if not ctx.sparse:
            whole = torch.zeros(features, labels, dtype=g.dtype)
            sparse_kernels.scatter(ids, values, begin, end, rows, np.zeros(0, np.int32), whole.numpy())
            return whole, None, None
        place = np.full(features, -1, np.int32)
        found = np.empty(min(features, int((end - begin).sum())), np.int64)
        count = sparse_kernels.distinct(ids, begin, end, place, found)
        used = torch.zeros(count, labels, dtype=g.dtype)
        sparse_kernels.scatter(ids, values, begin, end, rows, place, used.numpy())
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
        super().__init__(parameters, {"lr": lr, "weight_decay": decay})

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
                    rows.numpy(), gradient, weight, squares, last, state["step"], group["lr"], group["weight_decay"]
                )
