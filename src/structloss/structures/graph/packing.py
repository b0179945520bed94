"""Packed forests as all engines read them, without scores and with them: those of trees, and graphs, of paths."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from structloss.kernels.forest import Packed, walk
from structloss.kernels.workers import run
from structloss.structures.rows import Floats, Ints

X = TypeVar("X")
P = TypeVar("P", bound="Packing", covariant=True)


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
class Packing:
    """The packed forests of a batch: N items on D levels, A arcs, sorted as `kernels.forest` says.

    Their numbers are first those of the arcs that end paths, then those that a caller gave to arcs, example by example.
    """

    packed: Packed
    ends: Ints  # (B,): how many ends of paths each example has; none where it has trees
    sizes: Ints  # (B,): how many arcs a caller named, each with a score

    def __post_init__(self) -> None:
        self.batch, self.num_ends = len(self.sizes), int(self.ends.sum())
        self.num_items, self.num_arcs = len(self.packed.arc_begin) - 1, len(self.packed.number)
        self.offset = self.num_ends + np.cumsum(self.sizes) - self.sizes  # (B,), where its numbers begin

    @property
    def longest(self) -> int:
        """L, how many arcs the largest tree has."""
        raise NotImplementedError

    @cached_property
    def owner(self) -> Tensor:
        """The example of each number."""
        examples = np.arange(self.batch)
        return torch.from_numpy(np.concatenate([np.repeat(examples, self.ends), np.repeat(examples, self.sizes)]))

    @cached_property
    def level_and_example(self) -> tuple[Ints, Ints]:
        """(N,) each, of the items."""
        counts = np.diff(self.packed.cell_begin)
        level, example = np.divmod(np.repeat(np.arange(len(counts)), counts), max(1, self.batch))
        return level, example

    @cached_property
    def heads(self) -> Ints:
        """The head of each arc, (A,)."""
        return np.repeat(np.arange(self.num_items), np.diff(self.packed.arc_begin))

    @cached_property
    def owner_of_arcs(self) -> Tensor:
        """(A,)"""
        return torch.from_numpy(self.level_and_example[1][self.heads])

    @cached_property
    def plans(self) -> Recent[Any]:
        """Of the torch engine, by device."""
        return Recent(2)

    def same_outputs(self, other: "Packing") -> bool:
        """Whether both have the same arcs and ends."""
        mine, theirs = ((*own.packed, own.ends, own.sizes) for own in (self, other))
        return self is other or all(np.array_equal(x, y) for x, y in zip(mine, theirs, strict=True))

    def walk(self, choices: Tensor) -> tuple[Tensor, Tensor]:
        """The arcs (n, B, L) of trees of these numbers, as far as they are some, then -1; whether they are, (n, B)."""
        numbers = np.ascontiguousarray(choices.cpu().numpy())
        arcs, whole = np.full(numbers.shape, -1), np.zeros(numbers.shape[:2], np.bool_)
        run(
            walk,
            torch.get_num_threads(),
            self.batch,
            5 * numbers.size,
            self.packed,
            self.num_ends,
            numbers,
            arcs,
            whole,
        )
        return torch.from_numpy(arcs).to(choices.device), torch.from_numpy(whole).to(choices.device)


class Weighted(NamedTuple, Generic[P]):
    """Packed forests with their scores: an arc has that of its number, and a constant of its own."""

    packing: P
    scores: Tensor  # of each number
    constant: Floats  # (A,), or (0,) where there are none

    @property
    def potentials(self) -> tuple[Tensor, Tensor]:
        """As derivatives are told (CPU only)."""
        return self.scores, torch.from_numpy(self.constant)

    @property
    def of_arcs(self) -> Floats:
        """What each arc scores, (A,)."""
        own: Floats = self.scores.detach().double().cpu().numpy()[self.packing.packed.number]
        return own + self.constant if self.constant.size else own

    @property
    def owners(self) -> tuple[Tensor, Tensor]:
        """The example of each of them."""
        p: Packing = self.packing
        return p.owner, p.owner_of_arcs[: len(self.constant)]
