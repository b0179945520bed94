"""The graphs of a batch of lattices as arrays: sorted, without what is of no use, and multiplied with loss machines."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.automata.automaton import TooManyStatesError
from structloss.automata.open import OpenAutomaton
from structloss.kernels.graph import Graph, Weights, walk
from structloss.kernels.topological import arrange
from structloss.kernels.workers import run
from structloss.structures.rows import Floats, Ints, begins, ranges

Bools = NDArray[np.bool_]
Machines = tuple[OpenAutomaton, ...]  # one for each example
X = TypeVar("X")

MOST_ARCS = 50_000_000  # of a lattice times its loss machines


class Recent(Generic[X]):
    """The last few things that were asked for. They are not pickled."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept: dict[Hashable, X] = {}

    def get(self, key: Hashable, make: Callable[[], X]) -> X:
        """What is kept under this key, made if it is not."""
        value = self._kept.pop(key, None)
        if value is None:
            value = make()
        self._kept[key] = value
        for old in list(self._kept)[: -self._size]:
            self._kept.pop(old, None)
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return Recent, (self._size,)


@dataclass(eq=False)
class Topology:
    """The graphs of a batch, or their product with machines: N nodes on D levels, A arcs.

    A node of a product is a node of the lattice and a state of each machine. Nodes and arcs are sorted as
    `kernels.graph` says, and every one lies on a path from the start of its example to an end (but for a start from
    which no path ends). A machine is deterministic, so that the paths of a product are those of the lattice.
    """

    sizes: Ints  # (B,): how many arcs a caller named, each with a score
    graph: Graph
    label: Ints  # (A,), -1 for epsilon
    ends: Bools  # (N,): whether a path may end here
    origin: Ints  # (N,): the node of the lattice
    # The weights that machines give arcs (A,) and ends (N,), inf where the machine has the string outside.
    machines: dict[Machines, tuple[Floats, Floats]] = field(default_factory=dict)
    recent_products: "Recent[Topology]" = field(default_factory=lambda: Recent(4), repr=False)
    recent_machines: "Recent[Machines]" = field(default_factory=lambda: Recent(8), repr=False)
    recent_plans: "Recent[Any]" = field(default_factory=lambda: Recent(2), repr=False)  # of the torch engine, by device

    def __post_init__(self) -> None:
        cells, self.batch = len(self.graph.cell_begin) - 1, len(self.sizes)
        self.num_nodes, self.num_arcs, self.num_scores = len(self.ends), len(self.label), int(self.sizes.sum())
        self.num_levels = cells // self.batch if self.batch else 1  # D, one more than the longest path has arcs
        self.offset = np.cumsum(self.sizes) - self.sizes  # (B,), where the scores of each example begin

    @cached_property
    def level_and_example(self) -> tuple[Ints, Ints]:
        """(N,) each, of the nodes."""
        counts = np.diff(self.graph.cell_begin)
        level, example = np.divmod(np.repeat(np.arange(len(counts)), counts), max(1, self.batch))
        return level, example

    @cached_property
    def level_begin(self) -> Ints:
        """(D + 1,), where the nodes of each level begin."""
        return np.searchsorted(self.level_and_example[0], np.arange(self.num_levels + 1))

    @cached_property
    def owners(self) -> tuple[Tensor, None, Tensor]:
        """The example of each score, of each constant (nobody asks) and of each end."""
        of_scores, of_ends = np.repeat(np.arange(self.batch), self.sizes), self.level_and_example[1]
        return torch.from_numpy(of_scores), None, torch.from_numpy(of_ends)

    @cached_property
    def zeros(self) -> Floats:
        """(A,)."""
        return np.zeros(self.num_arcs)

    def same_paths(self, other: "Topology") -> bool:
        """Whether two lattices (not products) have the same arcs and ends."""
        mine, theirs = ((*t.graph, t.sizes, t.label, t.ends) for t in (self, other))
        return self is other or all(np.array_equal(x, y) for x, y in zip(mine, theirs, strict=True))

    def walk(self, choices: Tensor) -> tuple[Tensor, Tensor]:
        """The arcs (n, B, L) of paths that use these scores, -1 after an end; and their ends (n, B), -1: no path."""
        paths = np.ascontiguousarray(choices.cpu().numpy())
        arcs, ends = np.full(paths.shape, -1), np.empty(paths.shape[:2], np.int64)
        run(walk, torch.get_num_threads(), self.batch, 5 * paths.size, self.graph, paths, arcs, ends)
        return torch.from_numpy(arcs).to(choices.device), torch.from_numpy(ends).to(choices.device)

    def times(self, machines: Machines, forbid: bool = True) -> "Topology":
        """The product with one machine more for each example; `forbid`: without what the machine has outside.

        Machines are explored as far as the lattice reaches. Cost: the arcs of the product, once.
        """
        if machines in self.machines:
            return self
        return self.recent_products.get((machines, forbid), lambda: _product(self, machines, forbid))


class Weighted(NamedTuple):
    """A topology with its scores: arc a has scores[base[a]] + constant[a], a path that ends in node n final[n]."""

    topology: Topology
    scores: Tensor  # (sum n_b,)
    constant: Floats  # (A,)
    final: Floats  # (N,), -inf where no path ends

    @property
    def arrays(self) -> Weights:
        """As the kernels read it (CPU only)."""
        return Weights(self.scores.detach().contiguous().numpy(), self.constant, self.final)

    @property
    def potentials(self) -> tuple[Tensor, Tensor, Tensor]:
        """As derivatives are told (CPU only)."""
        return self.scores, torch.from_numpy(self.constant), torch.from_numpy(self.final)


def build(arcs: Sequence[Ints], final: Sequence[dict[int, float]]) -> tuple[Topology, Floats]:
    """The sorted graphs of arcs (n_b, 3) with their ends, and the score (N,) of ending in each node.

    States are numbers of at least 0, as they come. Raises ValueError for a loop.
    """
    begin, sizes, nodes = [0], np.array([len(rows) for rows in arcs], np.int64), 0
    states, ends, ending = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.int64)], [np.zeros(0)]
    for rows, stops in zip(arcs, final, strict=True):
        named = np.concatenate([[0], rows[:, :2].reshape(-1), np.fromiter(stops, np.int64, len(stops))])
        if named.max() > 2 * len(named):  # far apart: numbered anew
            named = np.unique(named, return_inverse=True)[1]
        states.append(nodes + named[1 : 1 + 2 * len(rows)].reshape(-1, 2))
        ends.append(nodes + named[1 + 2 * len(rows) :])
        ending.append(np.fromiter(stops.values(), np.float64, len(stops)))
        nodes += int(named.max()) + 1
        begin.append(nodes)
    source, target = np.ascontiguousarray(np.concatenate(states).T)
    depth, score = np.empty(nodes, np.int64), np.full(nodes, -np.inf)
    score[np.concatenate(ends)] = np.concatenate(ending)
    loop = arrange(source, target, np.array(begin[:-1], np.int64), score > -np.inf, depth)
    if loop >= 0:
        b = int(np.searchsorted(np.cumsum(sizes), loop, side="right"))
        row = loop - int(sizes[:b].sum())
        raise ValueError(
            f"arcs: example {b} has a loop through its arc {row}, {arcs[b][row].tolist()}, but wanted none"
        )
    cell = depth * len(arcs) + np.repeat(np.arange(len(arcs)), np.diff(begin))
    kept = np.flatnonzero(depth >= 0)
    kept = kept[np.argsort(cell[kept], kind="stable")]
    cells = (int(depth.max(initial=0)) + 1) * len(arcs)
    graph, used = _graph(nodes, kept, cell[kept], cells, source, target, np.arange(len(source)))
    label = np.concatenate([np.zeros(0, np.int64), *(rows[:, 2] for rows in arcs)])[used]
    return Topology(sizes, graph, label, score[kept] > -np.inf, np.arange(len(kept))), score[kept]


def _graph(
    nodes: int, kept: Ints, cell: Ints, cells: int, source: Ints, target: Ints, base: Ints
) -> tuple[Graph, Ints]:
    """The graph of those of the nodes that are `kept`, in this order, which fills these cells; and the arcs it has."""
    number = np.full(nodes, -1, np.int64)
    number[kept] = np.arange(len(kept))
    head, tail = number[source], number[target]
    used = np.flatnonzero((head >= 0) & (tail >= 0))
    used = used[np.argsort(head[used], kind="stable")]
    arc_begin = begins(np.bincount(head[used], minlength=len(kept)))
    return Graph(begins(np.bincount(cell, minlength=cells)), arc_begin, tail[used], base[used]), used


class _Tables:
    """What is known of the machines of a batch, side by side: looked up at once, and asked where it is not known."""

    def __init__(self, machines: Machines) -> None:
        self.distinct = list(dict.fromkeys(machines))
        place = {machine: i for i, machine in enumerate(self.distinct)}
        self.machine_of = np.array([place[machine] for machine in machines], np.int64)
        rows = [machine.num_states for machine in self.distinct]
        tables = [machine.next_state[:n] for machine, n in zip(self.distinct, rows, strict=True)]
        weights = [machine.weights[:n].reshape(-1) for machine, n in zip(self.distinct, rows, strict=True)]
        self.classes = np.array([table.shape[1] for table in tables], np.int64)
        self.class_of = np.stack([machine.class_of for machine in self.distinct])
        self.rows, self.begin = np.array(rows, np.int64), begins(np.array([table.size for table in tables]))
        self.next_state = np.concatenate([*(table.reshape(-1) for table in tables), [-1]])  # the last: not known
        self.weights = np.concatenate([*weights, [0.0]])

    def follow(self, example: Ints, states: Ints, labels: Ints) -> tuple[Ints, Floats]:
        """The states that these labels lead to, and the weights; epsilon (-1) leads nowhere and weighs nothing."""
        found, weights = states.copy(), np.zeros(len(states))
        reads = np.flatnonzero(labels >= 0)
        machine, states = self.machine_of[example[reads]], states[reads]
        classes = self.class_of[machine, labels[reads]]
        place = self.begin[machine] + states * self.classes[machine] + classes
        place[states >= self.rows[machine]] = len(self.weights) - 1
        following, added = self.next_state[place], self.weights[place]
        missing = np.flatnonzero(following < 0)
        for i in np.unique(machine[missing]):
            here = missing[machine[missing] == i]
            following[here], added[here] = self.distinct[i].follow(states[here], classes[here])
        found[reads], weights[reads] = following, added
        return found, weights

    def final(self, example: Ints, states: Ints) -> Floats:
        """The final weights of states."""
        begin = begins(np.array([machine.num_states for machine in self.distinct]))
        weights = np.concatenate([machine.final[: machine.num_states] for machine in self.distinct])
        found: Floats = weights[begin[self.machine_of[example]] + states]
        return found


def _product(parent: Topology, machines: Machines, forbid: bool) -> Topology:
    """See `Topology.times`. The nodes of a level are found when all arcs of the levels before it are."""
    if not parent.batch:
        added = parent.machines | {machines: (np.zeros(0), np.zeros(0))}
        return replace(parent, machines=added, recent_products=Recent(4))
    tables, g, (level, example) = _Tables(machines), parent.graph, parent.level_and_example
    room = min(max(machine.max_states for machine in machines) + 2, 2**62 // max(1, parent.num_nodes))
    waiting: list[list[Ints]] = [[] for _ in range(parent.num_levels)]
    waiting[0].append(np.arange(parent.batch) * room)  # a node n with a state s is n * room + s
    found, total = [], 0
    for d in range(parent.num_levels):
        here = np.unique(np.concatenate(waiting[d])) if waiting[d] else np.zeros(0, np.int64)
        waiting[d] = []
        nodes, states = np.divmod(here, room)
        counts = g.arc_begin[nodes + 1] - g.arc_begin[nodes]
        total += int(counts.sum())
        if total > MOST_ARCS:
            raise TooManyStatesError(
                f"augment: the lattice times its loss machines passed {MOST_ARCS} arcs on level {d} of "
                f"{parent.num_levels}; a cap, which tells losses apart up to so much above the reference's own, makes "
                "it smaller, as does a lattice with fewer arcs"
            )
        leaving = ranges(g.arc_begin[nodes], counts)
        following, weight = tables.follow(
            np.repeat(example[nodes], counts), np.repeat(states, counts), parent.label[leaving]
        )
        if following.max(initial=0) >= room:
            raise TooManyStatesError(f"augment: a loss machine passed {room} states, too many for this lattice")
        target = g.tail[leaving] * room + following
        found.append((here, leaving, target, weight))
        ahead = np.unique(target)
        for part in np.split(ahead, np.flatnonzero(np.diff(level[ahead // room])) + 1) if len(ahead) else ():
            waiting[level[part[0] // room]].append(part)
    key, arc, target, weight = (np.concatenate(x) for x in zip(*found, strict=True))
    node, state = np.divmod(key, room)
    final, ends = tables.final(example[node], state), parent.ends[node]
    if forbid:
        ends &= final < np.inf
    counts = g.arc_begin[node + 1] - g.arc_begin[node]
    source, target, depth = np.repeat(np.arange(len(key)), counts), np.searchsorted(key, target), np.empty_like(key)
    arrange(source, target, np.arange(parent.batch), ends, depth)
    kept = np.flatnonzero(depth >= 0)
    node = node[kept]
    cell, cells = level[node] * parent.batch + example[node], parent.num_levels * parent.batch
    graph, used = _graph(len(key), kept, cell, cells, source, target, g.base[arc])
    arc = arc[used]
    added = {own: (of_arcs[arc], of_ends[node]) for own, (of_arcs, of_ends) in parent.machines.items()}
    added[machines] = weight[used], final[kept]
    return Topology(parent.sizes, graph, parent.label[arc], ends[kept], parent.origin[node], added)
