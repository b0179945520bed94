"""What factor graphs are made of, as the engines read them: flat scores, and the graphs of a batch in one row."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from structloss.kernels.factors import Graph, Slots
from structloss.structures.derivatives import Linear, apply
from structloss.structures.factor_graph.elimination import Order, remembered_order
from structloss.structures.rows import Floats, Ints, begins, pieces


class Block(NamedTuple):
    """Some variables, with the scores of their labels, and factors, with those of the cells of their tables."""

    owner: Ints  # (n,): the example of each
    sizes: Ints  # (n,): how many scores each has
    scores: Tensor  # (sum of the sizes,)
    arity: Ints  # (n,): how many variables a factor is over; 0 for a variable itself
    scopes: Ints  # (sum of the arities,): these variables by their number in the example

    @classmethod
    def variables(cls, owner: Ints, sizes: Ints, scores: Tensor) -> Self:
        """A block of variables."""
        return cls(owner, sizes, scores, np.zeros_like(sizes), sizes[:0])

    def taken(self, order: Ints) -> "Block":
        """Some of them, or all, in another order."""
        at = torch.from_numpy(pieces(self.sizes, order)).to(self.scores.device)
        size, scopes = len(self.scores), self.scopes[pieces(self.arity, order)]
        scores = apply(Linear, self.scores, lambda x: x[at], lambda g: g.new_zeros(size).index_add(0, at, g))
        return Block(self.owner[order], self.sizes[order], scores, self.arity[order], scopes)


@dataclass(eq=False)
class Topology:
    """The graphs of a batch, without scores. In each example the variables of outputs come first, then hidden ones."""

    graph: Graph
    visible: Ints  # (B,): how many variables of each example are not hidden
    width: int  # N: how many there are in outputs
    num_labels: int  # K: the most labels that one of them has

    def __post_init__(self) -> None:
        g, number, self.batch = self.graph, np.arange(self.width), len(self.visible)
        counts = np.diff([g.variables, g.factors])
        self.sizes = np.diff(g.labels)  # (V,): how many labels each variable has
        self.begin = np.append(g.labels[:-1], g.cells)  # (V + F + 1,): where the scores of variables and factors begin
        # (V + F,): the example of each score that an assignment uses, one of every variable and factor.
        self.used_owner = np.repeat(np.tile(np.arange(self.batch), 2), counts.ravel())
        # (B, N): where the variables of outputs stand among all, -1 beyond; and how many labels each has, 1 beyond.
        self.variable_at = np.where(number < self.visible[:, None], g.variables[:-1, None] + number, -1)
        self.extents = np.where(self.variable_at < 0, 1, np.append(self.sizes, 1)[self.variable_at])

    @functools.cached_property
    def owner(self) -> Ints:
        """The example of each score."""
        return np.repeat(self.used_owner, np.diff(self.begin))

    @functools.cached_property
    def label_at(self) -> Ints:
        """Where the scores of their labels stand, (B, N, K); -1 beyond."""
        label, at = np.arange(self.num_labels), self.variable_at[..., None]
        return np.where((at >= 0) & (label < self.extents[..., None]), self.graph.labels[at] + label, -1)

    @functools.cached_property
    def links(self) -> Slots:
        """What variables and factors know of each other, variables in the order of their numbers."""
        g, arity, variables = self.graph, np.diff(self.graph.slots), len(self.sizes)
        factor, extents = np.repeat(np.arange(len(arity)), arity), self.sizes[g.scope]
        inner = np.ones(len(g.scope), np.int64)
        for back in range(2, int(arity.max(initial=0)) + 1):  # from the last slot but one to the first
            at = g.slots[1:][arity >= back] - back
            inner[at] = inner[at + 1] * extents[at + 1]
        ends = (np.repeat(end.reduceat(g.scope, g.slots[:-1]), arity) for end in (np.minimum, np.maximum))
        first, last = (g.scope == end for end in ends)
        chains = [np.bincount(g.scope[~x], minlength=variables) for x in (last, first)]
        return Slots(
            factor, np.diff(g.cells)[factor] // (extents * inner), inner, begins(extents),
            begins(np.bincount(g.scope, minlength=variables)), np.argsort(g.scope, kind="stable"),
            first.astype(np.int64), last.astype(np.int64), 1 / np.maximum(1, np.maximum(*chains)),
        )  # fmt: skip

    @functools.cached_property
    def entries(self) -> tuple[Ints, Ints, Ints]:
        """Where the score of each message's label is, (M,); of each slot's cells the message, and where they are."""
        g, s = self.graph, self.links
        sizes, counts = np.diff(s.messages), np.diff(g.cells)[s.factor]
        slot = np.repeat(np.arange(len(counts)), counts)
        cell = np.arange(len(slot)) - begins(counts)[slot]
        message = s.messages[slot] + cell // s.inner[slot] % sizes[slot]
        label = np.arange(s.messages[-1]) + np.repeat(g.labels[g.scope] - s.messages[:-1], sizes)
        return label, message, cell + g.cells[s.factor[slot]]

    def places(self, whole: Ints) -> Ints:
        """Where the scores that assignments (n, V) use stand: of their labels and of their cells, (n, V + F)."""
        g = self.graph
        cells = np.add.reduceat(whole[:, g.scope] * self.links.inner, g.slots[:-1], 1)
        places: Ints = self.begin[:-1] + np.concatenate([whole, cells], 1)
        return places

    def outputs(self, whole: Ints) -> Tensor:
        """Outputs (n, B, N) of assignments (n, V); -1 beyond."""
        padded = np.pad(whole, ((0, 0), (0, 1)), constant_values=-1)
        return torch.from_numpy(padded[:, self.variable_at])

    def most_probable(self, mu: Floats) -> Ints:
        """The label (V,) of each variable that has most, of a number for each score."""
        return np.array([mu[a:b].argmax() for a, b in itertools.pairwise(self.graph.labels)], np.int64)

    def local(self, b: int) -> tuple[Ints, Ints, Ints]:
        """The sizes, slots and scope of one example's graph, counted from its own first."""
        g = self.graph
        slots = g.slots[g.factors[b] : g.factors[b + 1] + 1]
        sizes = self.sizes[g.variables[b] : g.variables[b + 1]]
        return sizes, slots - slots[0], g.scope[slots[0] : slots[-1]] - g.variables[b]

    @functools.cached_property
    def same(self) -> list[Ints]:
        """The examples with the same graph, together."""
        groups: dict[tuple[bytes, ...], list[int]] = {}
        for b in range(self.batch):
            groups.setdefault(tuple(x.tobytes() for x in (*self.local(b), self.visible[b])), []).append(b)
        return [np.array(group) for group in groups.values()]

    def orders(self, most: float) -> list[tuple[Ints, Order]]:
        """For examples with the same graph how to eliminate their variables."""
        return [(x, remembered_order(*(a.tobytes() for a in self.local(int(x[0]))), most)) for x in self.same]


@dataclass(eq=False)
class Parts:
    """A batch of factor graphs with their scores."""

    topology: Topology
    scores: Tensor  # flat: the labels of all variables, then the cells of all tables

    def __post_init__(self) -> None:
        self.graph, self.batch = self.topology.graph, self.topology.batch

    @classmethod
    def of(cls, blocks: Sequence[Block], visible: Ints, width: int, num_labels: int) -> Self:
        """Put blocks together: variables, then factors, example by example."""
        owner, sizes, scores, arity, scopes = zip(*blocks, strict=True)
        ints = (np.concatenate(x) for x in (owner, sizes, arity, scopes))
        whole = Block(next(ints), next(ints), torch.cat(scores), *ints)
        order = np.lexsort((whole.owner, whole.arity > 0))
        whole = whole.taken(order) if (np.diff(order) != 1).any() else whole
        number, at = np.count_nonzero(whole.arity == 0), begins(whole.sizes)
        kinds = whole.owner[:number], whole.owner[number:]
        variables, factors = (begins(np.bincount(x, minlength=len(visible))) for x in kinds)
        scope = whole.scopes + np.repeat(variables[whole.owner], whole.arity)
        graph = Graph(variables, factors, at[: number + 1], at[number:], begins(whole.arity[number:]), scope)
        return cls(Topology(graph, visible, width, num_labels), whole.scores)

    def _with(self, blocks: Sequence[Block], visible: Ints) -> Self:
        return self.of(blocks, visible, self.topology.width, self.topology.num_labels)

    def extended(self, blocks: Sequence[Block]) -> Self:
        """With hidden variables and further factors."""
        return self._with([self._block, *blocks], self.topology.visible)  # what was there comes first

    def bare(self, scores: Tensor) -> Self:
        """The variables that are not hidden, by themselves, with scores (B, N, K)."""
        t = self.topology
        owner, number = (t.variable_at >= 0).nonzero()
        flat = scores[torch.from_numpy(t.label_at >= 0).to(scores.device)]
        return self._with([Block.variables(owner, t.extents[owner, number], flat)], t.visible)

    def examples(self, index: Ints) -> Self:
        """Some of the examples."""
        whole = self._block
        counts = np.bincount(whole.owner, minlength=self.batch)
        taken = whole.taken(np.argsort(whole.owner, kind="stable")[pieces(counts, index)])
        owner = np.repeat(np.arange(len(index)), counts[index])
        return self._with([taken._replace(owner=owner)], self.topology.visible[index])

    @property
    def _block(self) -> Block:
        """Its variables and its factors."""
        t, g = self.topology, self.graph
        arity = np.append(np.zeros_like(t.sizes), np.diff(g.slots))
        scopes = g.scope - np.repeat(g.variables[t.used_owner], arity)
        return Block(t.used_owner, np.diff(t.begin), self.scores, arity, scopes)

    def summed(self, values: Tensor) -> Tensor:
        """The sums (B,) over what there is for each of an example's scores, in float64."""
        total = values.new_zeros(self.batch, dtype=torch.float64)
        return total.index_add(0, torch.from_numpy(self.topology.owner).to(values.device), values.double())

    def score(self, whole: Ints) -> Tensor:
        """The scores (n, B) of assignments (n, V), in float64; -inf, with zero gradient, where one is forbidden."""
        t, device = self.topology, self.scores.device
        used = self.scores[torch.from_numpy(t.places(whole)).to(device)].double()
        total = used.new_zeros(len(whole), self.batch).index_add(1, torch.from_numpy(t.used_owner).to(device), used)
        return torch.where(total > -torch.inf, total, -torch.inf)

    def by_label(self, values: Tensor) -> Tensor:
        """(B, N, K) from a number for each score; 0 beyond."""
        at = torch.from_numpy(self.topology.label_at).to(values.device)
        return torch.cat([values, values.new_zeros(1)])[at]

    def flat(self, values: Tensor) -> Tensor:
        """For each label of each variable its value of (B, N, K); 0 for hidden ones and for cells."""
        at = torch.from_numpy(self.topology.label_at).to(values.device)
        return values.new_zeros(self.scores.shape).index_put((at[at >= 0],), values[at >= 0])

    def with_scores(self, scores: Tensor) -> Self:
        """The same graphs, scored otherwise."""
        return replace(self, scores=scores)

    @functools.cached_property
    def array(self) -> Floats:
        """The scores in float64, without a gradient."""
        return np.ascontiguousarray(self.scores.detach().cpu().double().numpy())
