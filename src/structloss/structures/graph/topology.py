"""The graphs of a batch of lattices as arrays: sorted, without what is of no use, and multiplied with loss machines."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from structloss.automata.automaton import TooManyStatesError
from structloss.automata.open import OpenAutomaton
from structloss.kernels.forest import Packed
from structloss.kernels.topological import arrange
from structloss.structures.graph.packing import Packing, Recent
from structloss.structures.rows import Floats, Ints, begins, ranges

Machines = tuple[OpenAutomaton, ...]  # one for each example

MOST_ARCS = 50_000_000  # of a lattice times its loss machines
END = -2  # the label of an arc that ends a path


@dataclass(eq=False)
class Topology(Packing):
    """The graphs of a batch, or their product with machines: N nodes on D levels, A arcs.

    A node of a product is a node of the lattice and a state of each machine. Every node and arc lies on a path from the
    start of its example, node b, to an end (but for a start from which no path ends). A machine is deterministic, so
    that the paths of a product are those of the lattice.
    """

    label: Ints  # (A,), -1 for epsilon, END
    # The weights that machines give arcs (A,), inf at an end where the machine has the string outside.
    machines: dict[Machines, Floats] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """D: a path has an arc less than it has levels, and the one that ends it."""
        return (len(self.packed.cell_begin) - 1) // self.batch if self.batch else 1

    @cached_property
    def recent_products(self) -> Recent["Topology"]:
        """The last that were made."""
        return Recent(4)

    @cached_property
    def recent_machines(self) -> Recent[Machines]:
        """The last that were asked for."""
        return Recent(8)

    def times(self, machines: Machines, forbid: bool = True) -> "Topology":
        """The product with one machine more for each example; `forbid`: without what the machine has outside.

        Machines are explored as far as the lattice reaches. Cost: the arcs of the product, once.
        """
        if machines in self.machines:
            return self
        return self.recent_products.get((machines, forbid), lambda: _product(self, machines, forbid))


def build(arcs: Sequence[Ints], final: Sequence[dict[int, float]]) -> tuple[Topology, Floats]:
    """The sorted graphs of arcs (n_b, 3) with their ends, and the scores of these, in order.

    States are numbers of at least 0, as they come. Raises ValueError for a loop.
    """
    begin, sizes, nodes = [0], np.array([len(rows) for rows in arcs], np.int64), 0
    states, ending = [np.zeros((0, 2), np.int64)], [np.zeros(0, np.int64)]
    for rows, stops in zip(arcs, final, strict=True):
        named = np.concatenate([[0], rows[:, :2].reshape(-1), np.fromiter(stops, np.int64, len(stops))])
        if named.max() > 2 * len(named):  # far apart: numbered anew
            named = np.unique(named, return_inverse=True)[1]
        states.append(nodes + named[1 : 1 + 2 * len(rows)].reshape(-1, 2))
        ending.append(nodes + named[1 + 2 * len(rows) :])
        nodes += int(named.max()) + 1
        begin.append(nodes)
    source, target = np.ascontiguousarray(np.concatenate(states).T)
    last, depth = np.concatenate(ending), np.empty(nodes, np.int64)
    loop = arrange(source, target, np.array(begin[:-1], np.int64), np.isin(np.arange(nodes), last), depth)
    if loop >= 0:
        b = int(np.searchsorted(np.cumsum(sizes), loop, side="right"))
        row = loop - int(sizes[:b].sum())
        raise ValueError(
            f"arcs: example {b} has a loop through its arc {row}, {arcs[b][row].tolist()}, but wanted none"
        )
    example = np.repeat(np.arange(len(arcs)), np.diff(begin))
    source, target = np.append(last, source), np.append(np.full(len(last), nodes), target)
    levels = int(depth.max(initial=0)) + 1
    packed, used = _packed(depth, example, len(arcs), levels, source, target, np.arange(len(source)))
    label = np.concatenate([np.full(len(last), END), *(rows[:, 2] for rows in arcs)])
    scores = [np.fromiter(stops.values(), np.float64, len(stops)) for stops in final]
    ends = np.array([len(stops) for stops in final], np.int64)
    return Topology(packed, ends, sizes, label[used]), np.concatenate([np.zeros(0), *scores])


def _packed(
    level: Ints, example: Ints, batch: int, levels: int, source: Ints, target: Ints, number: Ints
) -> tuple[Packed, Ints]:
    """The graph of arcs with these numbers between nodes of these levels, -1 for no use; and the arcs that it has.

    An arc whose target is one more than the last node ends a path.
    """
    kept = np.flatnonzero(level >= 0)
    cell = level[kept] * batch + example[kept]
    kept, place = kept[np.argsort(cell, kind="stable")], np.full(len(level) + 1, -1, np.int64)
    place[kept], place[-1] = np.arange(len(kept)), len(kept)
    head, tail = place[source], place[target]
    used = np.flatnonzero((head >= 0) & (tail >= 0))
    used = used[np.argsort(head[used], kind="stable")]
    arc_begin = begins(np.bincount(head[used], minlength=len(kept)))
    cell_begin = begins(np.bincount(cell, minlength=levels * batch))
    return Packed(cell_begin, np.arange(batch), arc_begin, tail[None, used], number[used], number[:0]), used


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
        return replace(parent, machines=parent.machines | {machines: np.zeros(0)})
    tables, p, (level, example) = _Tables(machines), parent.packed, parent.level_and_example
    room = min(max(machine.max_states for machine in machines) + 2, 2**62 // (1 + parent.num_items))
    end = parent.num_items * room  # a node n with a state s is n * room + s
    waiting: list[list[Ints]] = [[] for _ in range(parent.longest)]
    waiting[0].append(np.arange(parent.batch) * room)
    found, total = [], 0
    for d in range(parent.longest):
        here = np.unique(np.concatenate(waiting[d])) if waiting[d] else np.zeros(0, np.int64)
        waiting[d] = []
        nodes, states = np.divmod(here, room)
        counts = p.arc_begin[nodes + 1] - p.arc_begin[nodes]
        total += int(counts.sum())
        if total > MOST_ARCS:
            raise TooManyStatesError(
                f"augment: the lattice times its loss machines passed {MOST_ARCS} arcs on level {d} of "
                f"{parent.longest}; a cap, which tells losses apart up to so much above the reference's own, makes "
                "it smaller, as does a lattice with fewer arcs"
            )
        leaving = ranges(p.arc_begin[nodes], counts)
        following, weight = tables.follow(
            np.repeat(example[nodes], counts), np.repeat(states, counts), parent.label[leaving]
        )
        if following.max(initial=0) >= room:
            raise TooManyStatesError(f"augment: a loss machine passed {room} states, too many for this lattice")
        target = p.tails[0, leaving] * room + following
        found.append((here, leaving, target, weight))
        ahead = np.unique(target[target < end])
        for part in np.split(ahead, np.flatnonzero(np.diff(level[ahead // room])) + 1) if len(ahead) else ():
            waiting[level[part[0] // room]].append(part)
    key, arc, target, weight = (np.concatenate(x) for x in zip(*found, strict=True))
    node, state = np.divmod(key, room)
    source = np.repeat(np.arange(len(key)), p.arc_begin[node + 1] - p.arc_begin[node])
    ends = parent.label[arc] == END
    weight[ends] = tables.final(example[node[source[ends]]], state[source[ends]])
    inside = np.flatnonzero(weight < np.inf) if forbid else np.arange(len(arc))
    arc, weight, source, target = arc[inside], weight[inside], source[inside], np.searchsorted(key, target[inside])
    goes_on, may_end, depth = target < len(key), np.zeros(len(key), np.bool_), np.empty_like(key)
    may_end[source[~goes_on]] = True
    arrange(source[goes_on], target[goes_on], np.arange(parent.batch), may_end, depth)
    depth = np.where(depth >= 0, level[node], -1)  # as in the lattice, however long the ways are that are left
    packed, used = _packed(depth, example[node], parent.batch, parent.longest, source, target, p.number[arc])
    added = {own: weights[arc[used]] for own, weights in parent.machines.items()} | {machines: weight[used]}
    return Topology(packed, parent.ends, parent.sizes, parent.label[arc[used]], added)
