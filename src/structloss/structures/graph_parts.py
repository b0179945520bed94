"""What factor graphs are made of, as the engines read them: flat scores, and the graphs of a batch in one row."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels.elimination import Graph, Plan
from structloss.kernels.graph_messages import Slots
from structloss.structures.derivatives import apply
from structloss.structures.elimination import Order, elimination

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Variables:
    """Some variables with as many labels each: counts[b] of example b, its scores after those of the one before."""

    counts: Ints  # (B,)
    scores: Tensor  # (sum of the counts, K)


@dataclass(frozen=True)
class Factors:
    """Some factors over as many labels each: counts[b] of example b, over the variables of its rows of scopes."""

    counts: Ints  # (B,)
    scopes: Ints  # (sum of the counts, arity), variables by their number in the example
    scores: Tensor  # (sum of the counts, cells)


@dataclass(frozen=True, eq=False)
class Topology:
    """The graphs of a batch, without scores. In each example the variables of outputs come first, then hidden ones."""

    graph: Graph
    visible: Ints  # (B,): how many variables of each example are not hidden
    own: Ints  # (B,): how many factors of each example the user gave

    @property
    def batch(self) -> int:
        """How many examples there are."""
        return len(self.visible)

    @functools.cached_property
    def sizes(self) -> Ints:
        """How many labels each variable has, (V,)."""
        return np.diff(self.graph.labels)

    @functools.cached_property
    def shown(self) -> Ints:
        """For each label of a variable that is not hidden its example, variable and label, and its place, (4, n)."""
        g = self.graph
        owner = np.repeat(np.arange(self.batch), np.diff(g.variables))
        number = np.arange(len(owner)) - g.variables[owner]
        cell = np.repeat(np.arange(len(owner)), self.sizes)
        label = np.arange(len(cell)) - g.labels[cell]
        rows = np.stack([owner[cell], number[cell], label, np.arange(len(cell))])
        return rows[:, number[cell] < self.visible[owner[cell]]]

    @functools.cached_property
    def unary_owner(self) -> Tensor:
        """The example of each label's score."""
        g = self.graph
        return _owners(g.labels[g.variables[1:]] - g.labels[g.variables[:-1]])

    @functools.cached_property
    def table_owner(self) -> Tensor:
        """The example of each cell of a table."""
        g = self.graph
        return _owners(g.cells[g.factors[1:]] - g.cells[g.factors[:-1]])

    @functools.cached_property
    def strides(self) -> Ints:
        """How far apart neighbouring labels of each slot's variable are in its factor's table, (S,)."""
        g, result = self.graph, np.ones(len(self.graph.scope), np.int64)
        extents = self.sizes[g.scope]
        arity = np.diff(g.slots)
        for back in range(2, int(arity.max(initial=0)) + 1):  # from the last slot but one to the first
            at = g.slots[1:][arity >= back] - back
            result[at] = result[at + 1] * extents[at + 1]
        return result

    @functools.cached_property
    def factor(self) -> Ints:
        """The factor of each slot, (S,)."""
        return np.repeat(np.arange(len(self.graph.cells) - 1), np.diff(self.graph.slots))

    @functools.cached_property
    def links(self) -> Slots:
        """What variables and factors know of each other, variables in the order of their numbers."""
        g, arity = self.graph, np.diff(self.graph.slots)
        factor = self.factor
        sizes, cells = self.sizes[g.scope], np.diff(g.cells)[factor]
        messages, begins = _starts(sizes), _starts(cells)
        of = np.argsort(g.scope, kind="stable")
        within = np.arange(begins[-1]) - np.repeat(begins[:-1], cells)
        entry = np.repeat(messages[:-1], cells) + within // np.repeat(self.strides, cells) % np.repeat(sizes, cells)
        first = np.zeros(len(factor), bool)
        last = np.zeros(len(factor), bool)
        if len(factor):
            some = g.slots[:-1][arity > 0]
            lowest, highest = np.minimum.reduceat(g.scope, some), np.maximum.reduceat(g.scope, some)
            first, last = g.scope == np.repeat(lowest, arity), g.scope == np.repeat(highest, arity)
        variables = len(self.sizes)
        ahead, back = (np.bincount(g.scope[~x], minlength=variables) for x in (last, first))
        return Slots(
            factor, self.strides, messages, _starts(np.bincount(g.scope, minlength=variables)), of, begins, entry,
            first.astype(np.int64), last.astype(np.int64), 1 / np.maximum(1, np.maximum(ahead, back)),
        )  # fmt: skip

    def local(self, b: int) -> tuple[Ints, Ints, Ints]:
        """The sizes, slots and scope of one example's graph, counted from its own first."""
        g = self.graph
        first, last = g.factors[b], g.factors[b + 1]
        slots = g.slots[first : last + 1]
        return (
            self.sizes[g.variables[b] : g.variables[b + 1]],
            slots - slots[0],
            g.scope[slots[0] : slots[-1]] - g.variables[b],
        )

    @functools.cached_property
    def same(self) -> list[Ints]:
        """The examples with the same graph, together."""
        groups: dict[tuple[bytes, ...], list[int]] = {}
        for b in range(self.batch):
            groups.setdefault(tuple(x.tobytes() for x in (*self.local(b), self.visible[b])), []).append(b)
        return [np.array(group) for group in groups.values()]

    def orders(self, most: float) -> list[tuple[Ints, Order, Plan | None]]:
        """For examples with the same graph how to eliminate their variables."""
        return [(group, *elimination(*self.local(int(group[0])), most)) for group in self.same]


@dataclass(frozen=True)
class Parts:
    """A batch of factor graphs with their scores."""

    topology: Topology
    unary: Tensor  # (L,): the scores of the labels of all variables
    tables: Tensor  # (C,): the cells of all tables

    @classmethod
    def of(
        cls, seen: Sequence[Variables], hidden: Sequence[Variables], given: Sequence[Factors], hard: Sequence[Factors]
    ) -> Self:
        """Put blocks together, example by example."""
        like, batch = seen[0].scores, len(seen[0].counts)
        variables, factors = _row([*seen, *hidden], batch, like), _row([*given, *hard], batch, like)
        scopes = [x.scopes for x in (*given, *hard)]
        arity = np.concatenate([np.repeat(x.shape[1], len(x)) for x in scopes] or [_NONE])
        flat = np.concatenate([x.ravel() for x in scopes] or [_NONE])
        counts = arity[factors.order]
        first = np.repeat(variables.examples[factors.owner], counts)
        graph = Graph(
            variables.examples, factors.examples, _starts(variables.sizes), _starts(factors.sizes), _starts(counts),
            flat[_pieces(arity, factors.order)] + first,
        )  # fmt: skip
        visible, own = (np.sum([np.zeros_like(seen[0].counts), *(x.counts for x in xs)], 0) for xs in (seen, given))
        return cls(Topology(graph, visible, own), variables.scores, factors.scores)

    @property
    def graph(self) -> Graph:
        """The graphs, as kernels read them."""
        return self.topology.graph

    @property
    def batch(self) -> int:
        """How many examples there are."""
        return self.topology.batch

    def summed(self, unary: Tensor, tables: Tensor) -> Tensor:
        """The sums (B,) over each example's labels and cells."""
        total = unary.new_zeros(self.batch, dtype=torch.float64)
        for x, owner in ((unary, self.topology.unary_owner), (tables, self.topology.table_owner)):
            total = total.index_add(0, owner.to(x.device), x.double())
        return total.to(unary.dtype)

    def with_scores(self, unary: Tensor, tables: Tensor | None = None) -> Self:
        """The same graphs, scored otherwise."""
        return replace(self, unary=unary, tables=self.tables if tables is None else tables)

    @functools.cached_property
    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Unary scores and tables in float64, without a gradient."""
        a, b = (x.detach().cpu().double().numpy() for x in (self.unary, self.tables))
        return np.ascontiguousarray(a), np.ascontiguousarray(b)


def _owners(counts: Ints) -> Tensor:
    return torch.from_numpy(np.repeat(np.arange(len(counts)), counts))


def _starts(sizes: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


_NONE = np.zeros(0, np.int64)


class _Row(NamedTuple):
    """Variables or factors of several blocks, example by example."""

    order: Ints  # where each stood before
    owner: Ints  # the example of each
    examples: Ints  # (B + 1,): where each example begins
    sizes: Ints  # how many scores each has
    scores: Tensor  # flat


class _Reordered(torch.autograd.Function):
    """x in another order. It saves no tensor, so that one graph may be differentiated again and again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor) -> Tensor:
        ctx.back = order.argsort()
        return x[order]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g[ctx.back], None


def _row(blocks: Sequence[Variables | Factors], batch: int, like: Tensor) -> _Row:
    owner = np.concatenate([np.repeat(np.arange(batch), x.counts) for x in blocks] or [_NONE])
    sizes = np.concatenate([np.repeat(x.scores.shape[1], x.counts.sum()) for x in blocks] or [_NONE])
    order = np.argsort(owner, kind="stable")
    scores = torch.cat([x.scores.reshape(-1) for x in blocks] or [like.new_zeros(0)])
    if (np.diff(order) != 1).any():
        scores = apply(_Reordered, scores, torch.from_numpy(_pieces(sizes, order)).to(scores.device))
    return _Row(order, owner[order], _starts(np.bincount(owner, minlength=batch)), sizes[order], scores)


def _pieces(sizes: Ints, order: Ints) -> Ints:
    """The indices of pieces of these sizes, taken in another order."""
    starts, taken = _starts(sizes)[:-1][order], sizes[order]
    return np.repeat(starts - _starts(taken)[:-1], taken) + np.arange(taken.sum())
