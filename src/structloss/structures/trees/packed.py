"""Packed forests as arrays: sorted by height, and with the values that a loss can come to."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from structloss.kernels.forest import Packed, largest
from structloss.kernels.topological import arrange
from structloss.structures.graph.packing import Packing
from structloss.structures.rows import Floats, Ints, begins

_MOST_ARCS = 1_000_000  # of a tree
_MOST_STRATA = 20_000_000  # arcs of a forest times the values of a loss


@dataclass(eq=False)
class Forests(Packing):
    """The forests of a batch. Their items are sorted by height, so that tails come after heads."""

    names: Ints  # (N,): the item's number in the example, as the caller has it

    @cached_property
    def longest(self) -> int:
        found = int(largest(self.packed, _MOST_ARCS))
        if found > _MOST_ARCS:
            raise ValueError(f"arcs: a tree may have more than {_MOST_ARCS} arcs, too many to write down")
        return found

    @property
    def numbered_heads(self) -> Ints:
        """The head of each arc in the caller's order, (A,)."""
        heads = np.empty_like(self.heads)
        heads[self.packed.number] = self.heads
        return heads


def build(arcs: Sequence[Ints], mark: Ints | None = None) -> Forests:
    """Sorted forests from arcs (n_b, 3): head, first and second tail, -1 for none; item 0 is the root.

    Raises ValueError for a cycle. `mark` (A,) is what trees are ordered by, if not the numbers of arcs.
    """
    sizes = np.array([len(rows) for rows in arcs], np.int64)
    names, items, begin = [], [], 0
    for rows in arcs:
        own, place = np.unique(np.concatenate([[0, -1], rows.reshape(-1)]), return_inverse=True)  # the first is -1
        names.append(own[1:])
        place = np.where(place > 0, place - 1 + begin, -1)
        items.append(place.reshape(-1)[2:].reshape(-1, 3))
        begin += len(own) - 1
    root = np.cumsum([0, *(len(own) for own in names)])[:-1].astype(np.int64)  # 0 is the smallest
    rows = np.concatenate([np.zeros((0, 3), np.int64), *items])
    height, arc = heights(rows, begin)
    if arc >= 0:
        b = int(np.searchsorted(np.cumsum(sizes), arc, side="right"))
        row = arc - int(sizes[:b].sum())
        raise ValueError(
            f"arcs: example {b} has a cycle through its arc {row}, {arcs[b][row].tolist()}, but wanted none"
        )
    example = np.repeat(np.arange(len(arcs)), [len(own) for own in names])
    cell = (height.max(initial=0) - height) * len(arcs) + example
    order = np.argsort(cell, kind="stable")
    place = np.empty(begin + 1, np.int64)
    place[order], place[-1] = np.arange(begin), begin  # -1 is the last, which is none
    rows = place[rows]
    sorted_arcs = np.argsort(rows[:, 0], kind="stable")
    cells = (int(height.max(initial=0)) + 1) * len(arcs)
    marked = sorted_arcs[:0] if mark is None else mark[sorted_arcs]
    packed = Packed(
        begins(np.bincount(cell, minlength=cells)), place[root], begins(np.bincount(rows[:, 0], minlength=begin)),
        np.ascontiguousarray(rows[sorted_arcs, 1:].T), sorted_arcs, marked,
    )  # fmt: skip
    return Forests(packed, 0 * sizes, sizes, np.concatenate([np.zeros(0, np.int64), *names])[order])


def heights(arcs: Ints, items: int) -> tuple[Ints, int]:
    """How many arcs the longest way down from each item takes; and an arc of a cycle, or -1."""
    there = arcs[:, 1:] >= 0
    number = np.repeat(np.arange(len(arcs)), 2).reshape(-1, 2)[there]
    height, everything = np.empty(items, np.int64), np.arange(items)
    loop = int(arrange(arcs[:, 1:][there], arcs[number, 0], everything, np.ones(items, np.bool_), height))
    return height, int(number[loop]) if loop >= 0 else -1


def with_values(f: Forests, costs: Floats) -> tuple[Forests, Ints, list[Floats], Ints]:
    """The forests whose items are an item and what the costs (A,) of its tree sum up to.

    Returns them, the arc of `f` that each arc is, of each example the values of trees, and the items (V, B) that have
    these, -1 where there are fewer.
    """
    p, none, examples = f.packed, f.num_items, len(f.sizes)
    sums: list[Floats] = [np.zeros(0)] * none + [np.zeros(1)]
    first, count = np.zeros(none + 1, np.int64), 0
    rows: list[list[Ints]] = [[] for _ in range(examples)]
    origin: list[list[Ints]] = [[] for _ in range(examples)]
    owner, total = f.owner.numpy(), 0
    for n in range(none - 1, -1, -1):  # tails come first
        own = range(p.arc_begin[n], p.arc_begin[n + 1])
        totals = [costs[p.number[a]] + np.add.outer(*(sums[t] for t in p.tails[:, a])).reshape(-1) for a in own]
        found = np.unique(np.concatenate([np.zeros(0), *totals]))
        sums[n] = found[np.diff(found, prepend=-np.inf) > 1e-9 * np.maximum(1.0, np.abs(found))]
        first[n], count = count, count + len(sums[n])
        for a, values in zip(own, totals, strict=True):
            b, (left, right) = owner[p.number[a]], p.tails[:, a]
            head = first[n] + np.searchsorted(sums[n], values + 1e-9 * np.maximum(1.0, np.abs(values)), "right") - 1
            i, j = np.divmod(np.arange(len(values)), len(sums[right]))
            tails = [np.full(len(values), -1) if t == none else first[t] + k for t, k in ((left, i), (right, j))]
            rows[b].append(np.stack([head, *tails], 1))
            origin[b].append(np.full(len(values), p.number[a]))
            total += len(values)
        if total > _MOST_STRATA:
            raise ValueError(
                f"loss: its values times the arcs of the forest are more than {_MOST_STRATA}, too many to search one "
                "by one; wanted costs that are multiples of one number, or fewer or smaller examples"
            )
    arcs = [np.concatenate([np.zeros((0, 3), np.int64), *own]) for own in rows]
    arcs = [np.where(own >= 0, own + 1, -1) for own in arcs]  # item 0 is a root that has no arc
    mark = np.concatenate([np.zeros(0, np.int64), *(x for own in origin for x in own)])
    made, values = build(arcs, mark), [sums[root] for root in p.root]
    of_name = np.full(count + 1, -1)
    of_name[made.names] = np.arange(made.num_items)
    roots = np.full((max([1, *map(len, values)]), examples), -1)
    for b, root in enumerate(p.root):
        roots[: len(values[b]), b] = of_name[first[root] + 1 + np.arange(len(values[b]))]
    return made, mark, values, roots
