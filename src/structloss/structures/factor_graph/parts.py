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
from structloss.structures.factor_graph.elimination import Order, elimination

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Variables:
    """Some variables: the example of each, how many labels it has, and the scores of these in a row."""

    owner: Ints  # (n,)
    sizes: Ints  # (n,)
    scores: Tensor  # (sum of the sizes,)


@dataclass(frozen=True)
class Factors:
    """Some factors: the example of each, the variables it is over, and the cells of their tables in a row."""

    owner: Ints  # (n,)
    arity: Ints  # (n,)
    scopes: Ints  # (sum of the arities,), variables by their number in the example
    sizes: Ints  # (n,): how many cells each has
    scores: Tensor  # (sum of the sizes,)


@dataclass(frozen=True, eq=False)
class Topology:
    """The graphs of a batch, without scores. In each example the variables of outputs come first, then hidden ones."""

    graph: Graph
    visible: Ints  # (B,): how many variables of each example are not hidden
    width: int  # N: how many there are in outputs
    num_labels: int  # K: the most labels that one of them has

    @property
    def batch(self) -> int:
        """How many examples there are."""
        return len(self.visible)

    @functools.cached_property
    def sizes(self) -> Ints:
        """How many labels each variable has, (V,)."""
        return np.diff(self.graph.labels)

    @functools.cached_property
    def variable_owner(self) -> Ints:
        """The example of each variable, (V,)."""
        return np.repeat(np.arange(self.batch), np.diff(self.graph.variables))

    @functools.cached_property
    def factor_owner(self) -> Ints:
        """The example of each factor, (F,)."""
        return np.repeat(np.arange(self.batch), np.diff(self.graph.factors))

    @functools.cached_property
    def seen(self) -> Ints:
        """The example, the number and the place of each variable that is not hidden, (3, n)."""
        owner = self.variable_owner
        number = np.arange(len(owner)) - self.graph.variables[owner]
        rows = np.stack([owner, number, np.arange(len(owner))])
        return rows[:, number < self.visible[owner]]

    @functools.cached_property
    def shown(self) -> Ints:
        """For each label of a variable that is not hidden its example, variable and label, and its place, (4, n)."""
        owner, number, place = self.seen
        sizes = self.sizes[place]
        label = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        begin = self.graph.labels[place]
        return np.stack([*(np.repeat(x, sizes) for x in (owner, number)), label, np.repeat(begin, sizes) + label])

    @functools.cached_property
    def size_table(self) -> Ints:
        """How many labels each variable of outputs has, (B, N); 1 beyond."""
        owner, number, place = self.seen
        table = np.ones((self.batch, self.width), np.int64)
        table[owner, number] = self.sizes[place]
        return table

    @property
    def unary_owner(self) -> Tensor:
        """The example of each label's score."""
        return torch.from_numpy(self._owners[0])

    @property
    def table_owner(self) -> Tensor:
        """The example of each cell of a table."""
        return torch.from_numpy(self._owners[1])

    @functools.cached_property
    def _owners(self) -> tuple[Ints, Ints]:
        labels, cells = self.sizes, np.diff(self.graph.cells)
        return np.repeat(self.variable_owner, labels), np.repeat(self.factor_owner, cells)

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

    def places(self, whole: Ints) -> tuple[Ints, Ints]:
        """Where the scores of assignments (n, V) stand: of their labels (n, V), and of their cells (n, F)."""
        g = self.graph
        if not len(g.scope):
            return g.labels[:-1] + whole, np.zeros((len(whole), 0), np.int64)
        offsets = np.add.reduceat(whole[:, g.scope] * self.strides, g.slots[:-1], 1)
        return g.labels[:-1] + whole, g.cells[:-1] + offsets

    def outputs(self, whole: Ints) -> Ints:
        """Outputs (n, B, N) of assignments (n, V); -1 beyond."""
        owner, number, place = self.seen
        found = np.full((len(whole), self.batch, self.width), -1)
        found[:, owner, number] = whole[:, place]
        return found

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
        cls, variables: Sequence[Variables], factors: Sequence[Factors], batch: int, width: int, num_labels: int
    ) -> Self:
        """Put blocks together, example by example."""
        graph, unary, tables = _assembled(variables, factors, batch)
        return cls(Topology(graph, np.diff(graph.variables), width, num_labels), unary, tables)

    def extended(self, hidden: Sequence[Variables], factors: Sequence[Factors]) -> Self:
        """With hidden variables and further factors."""
        graph, unary, tables = _assembled(
            [self._variables, *hidden], [self._factors, *factors], self.batch
        )  # what was there comes first
        return type(self)(replace(self.topology, graph=graph), unary, tables)

    def bare(self, scores: Tensor) -> Self:
        """The variables that are not hidden, by themselves, with scores (B, N, K)."""
        t = self.topology
        owner, _, place = t.seen
        b, v, k = torch.from_numpy(t.shown[:3]).to(scores.device)
        graph, unary, tables = _assembled([Variables(owner, t.sizes[place], scores[b, v, k])], [], self.batch)
        return type(self)(replace(t, graph=graph), unary, tables)

    def examples(self, index: Ints) -> Self:
        """Some of the examples."""
        v, f, t = self._variables, self._factors, self.topology
        variables, variable_owner = _of_examples(t.graph.variables, index)
        factors, factor_owner = _of_examples(t.graph.factors, index)
        labels, cells = (
            torch.from_numpy(_pieces(x.sizes, order)).to(self.unary.device)
            for x, order in ((v, variables), (f, factors))
        )
        graph, unary, tables = _assembled(
            [Variables(variable_owner, v.sizes[variables], v.scores[labels])],
            [Factors(factor_owner, f.arity[factors], f.scopes[_pieces(f.arity, factors)], f.sizes[factors],
                     f.scores[cells])],
            len(index),
        )  # fmt: skip
        return type(self)(replace(t, graph=graph, visible=t.visible[index]), unary, tables)

    @property
    def _variables(self) -> Variables:
        return Variables(self.topology.variable_owner, self.topology.sizes, self.unary)

    @property
    def _factors(self) -> Factors:
        g, owner = self.graph, self.topology.factor_owner
        arity = np.diff(g.slots)
        scopes = g.scope - np.repeat(g.variables[owner], arity)
        return Factors(owner, arity, scopes, np.diff(g.cells), self.tables)

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

    def score(self, whole: Ints) -> Tensor:
        """The scores (n, B) of assignments (n, V), in float64; -inf, with zero gradient, where one is forbidden."""
        t, device = self.topology, self.unary.device
        total = torch.zeros(len(whole), self.batch, dtype=torch.float64, device=device)
        owners = t.variable_owner, t.factor_owner
        for scores, place, owner in zip((self.unary, self.tables), t.places(whole), owners, strict=True):
            used = scores[torch.from_numpy(place).to(device)].double()
            total = total.index_add(1, torch.from_numpy(owner).to(device), used)
        return torch.where(total > -torch.inf, total, -torch.inf)

    def by_label(self, values: Tensor) -> Tensor:
        """(B, N, K) from a number for each label of each variable; 0 beyond."""
        t = self.topology
        shown = torch.from_numpy(t.shown).to(values.device)
        result = values.new_zeros(t.batch, t.width, t.num_labels)
        return result.index_put((shown[0], shown[1], shown[2]), values[shown[3]])

    def flat(self, values: Tensor) -> Tensor:
        """For each label of each variable its value of (B, N, K); 0 for hidden ones."""
        shown = torch.from_numpy(self.topology.shown).to(values.device)
        result = values.new_zeros(self.unary.shape)
        return result.index_put((shown[3],), values[shown[0], shown[1], shown[2]])

    def with_scores(self, unary: Tensor, tables: Tensor | None = None) -> Self:
        """The same graphs, scored otherwise."""
        return replace(self, unary=unary, tables=self.tables if tables is None else tables)

    @functools.cached_property
    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Unary scores and tables in float64, without a gradient."""
        a, b = (x.detach().cpu().double().numpy() for x in (self.unary, self.tables))
        return np.ascontiguousarray(a), np.ascontiguousarray(b)


def _starts(sizes: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _of_examples(begin: Ints, index: Ints) -> tuple[Ints, Ints]:
    """What belongs to some examples, and the place of its example among these; it begins at begin[b] for example b."""
    counts = np.diff(begin)
    return _pieces(counts, index), np.repeat(np.arange(len(index)), counts[index])


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


def _assembled(variables: Sequence[Variables], factors: Sequence[Factors], batch: int) -> tuple[Graph, Tensor, Tensor]:
    """The graphs of all blocks, example by example, and the scores of labels and cells."""
    v, f = _row(variables, batch, variables[0].scores), _row(factors, batch, variables[0].scores)
    arity = np.concatenate([_NONE, *(x.arity for x in factors)])
    scopes = np.concatenate([_NONE, *(x.scopes for x in factors)])
    counts = arity[f.order]
    graph = Graph(
        v.examples, f.examples, _starts(v.sizes), _starts(f.sizes), _starts(counts),
        scopes[_pieces(arity, f.order)] + np.repeat(v.examples[f.owner], counts),
    )  # fmt: skip
    return graph, v.scores, f.scores


_NONE = np.zeros(0, np.int64)


def _row(blocks: Sequence[Variables | Factors], batch: int, like: Tensor) -> _Row:
    owner, sizes = (np.concatenate([_NONE, *x]) for x in ([x.owner for x in blocks], [x.sizes for x in blocks]))
    order = np.argsort(owner, kind="stable")
    scores = torch.cat([x.scores for x in blocks] or [like.new_zeros(0)])
    if (np.diff(order) != 1).any():
        scores = apply(_Reordered, scores, torch.from_numpy(_pieces(sizes, order)).to(scores.device))
    return _Row(order, owner[order], _starts(np.bincount(owner, minlength=batch)), sizes[order], scores)


def _pieces(sizes: Ints, order: Ints) -> Ints:
    """The indices of pieces of these sizes, taken in another order."""
    starts, taken = _starts(sizes)[:-1][order], sizes[order]
    return np.repeat(starts - _starts(taken)[:-1], taken) + np.arange(taken.sum())
