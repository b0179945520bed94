"""Machines that read variables one after another: hard factors, and losses of the string that an output writes.

A machine that reads n variables becomes n - 1 *hidden* variables, its states on the way, and factors between
neighbours that add what a step is worth and forbid what the machine cannot do. A hidden variable is a function of the
others, so nothing is counted twice; and because the machine is a chain, its linear relaxation is as tight as that of
one factor over all n. Where one table over all n has no more cells, that is what it becomes.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from structloss.automata import LossAutomaton
from structloss.structures.factor_graph.parts import Block, Parts
from structloss.structures.rows import Floats, Ints


@dataclass(frozen=True, eq=False)
class Reader:
    """A machine, and the variables that it reads; it begins in state 0. n steps, of S states and K labels each."""

    scopes: tuple[Ints, ...]  # n of what is read: a variable at each step, or all of them, or none, in the only one
    following: tuple[Ints, ...]  # n of (S, K): the state after each label, -1 where it cannot go
    gains: tuple[Floats, ...]  # n of (S, K): what that adds, the last one with what ending there adds; inf: outside

    @classmethod
    def of(cls, machine: LossAutomaton, sizes: Ints) -> "Reader":
        """That of a loss, which reads all variables of an example; they have so many labels."""
        if not len(sizes):
            return cls((sizes,), (np.zeros((1, 1), np.int64),), (machine.final[:1].reshape(1, 1),))
        here, following, gains = np.zeros(1, np.int64), [], []
        for t, size in enumerate(sizes.tolist()):
            at = (machine.offsets[t] + here)[:, None], machine.class_of[:size]
            leads = machine.next_state[at]
            gain = np.zeros(leads.shape) if machine.is_absolute else machine.weights[at]
            gains.append(gain + machine.final[machine.offsets[-2] + leads] if t == len(sizes) - 1 else gain)
            here, place = np.unique(leads, return_inverse=True)
            following.append(place.reshape(leads.shape))
        return cls.over(np.arange(len(sizes)), following, gains)

    @classmethod
    def over(cls, variables: Ints, following: Sequence[Ints], gains: Sequence[Floats]) -> "Reader":
        """One step for each variable; or one for all of them, where that table has no more cells."""
        reader = cls(tuple(variables[:, None]), tuple(following), tuple(gains))
        if math.prod(x.shape[1] for x in following) > reader.num_cells:
            return reader
        state, total = np.zeros(1, np.int64), np.zeros(1)
        for leads, gain in zip(following, gains, strict=True):
            after = leads[state].ravel()
            total = (total[:, None] + gain[state]).ravel()
            total[after < 0] = np.nan
            state = np.maximum(after, 0)
        return cls((variables,), (np.where(np.isnan(total), -1, 0)[None],), (total[None],))

    @property
    def _extents(self) -> list[tuple[int, int, int]]:
        """Of each step, how many states there are, labels, and states after it; one at the end."""
        after = [*(len(x) for x in self.following[1:]), 1]
        return [(*x.shape, n) for x, n in zip(self.following, after, strict=True)]

    @property
    def num_cells(self) -> int:
        """How many cells its tables have."""
        return sum(map(math.prod, self._extents))

    @functools.cached_property
    def layout(self) -> Block:
        """Its hidden variables and factors, scored by gains: inf: outside, NaN: no such step.

        In scopes -1 - h is the hidden variable h. One that reads nothing is a variable of one label, which it scores.
        """
        hidden, last = [len(x) for x in self.following[1:]], len(self.following) - 1
        scopes, gains = [self.scopes[0][:0]] * last, [np.zeros(n) for n in hidden]
        for i, (scope, following, gain) in enumerate(zip(self.scopes, self.following, self.gains, strict=True)):
            state, label = np.nonzero(following >= 0)
            cells = np.full(self._extents[i], np.nan)
            cells[state, label, 0 if i == last else following[state, label]] = gain[state, label]
            gains.append(cells.ravel())
            scopes.append(np.concatenate([[-i][: i > 0], scope, [-1 - i][: i < last]]).astype(np.int64))
        sizes, arity = (np.array([len(x) for x in parts]) for parts in (gains, scopes))
        return Block(0 * sizes, sizes, torch.from_numpy(np.concatenate(gains)), arity, np.concatenate(scopes))

    def coming_to(self, value: float) -> "Reader":
        """An absolute machine restricted to what comes to a value, at no gain; to nothing at all for NaN."""
        only = np.where(np.abs(self.gains[-1] - value) < 1e-8, 0.0, np.inf)
        return replace(self, gains=(*self.gains[:-1], only))


@dataclass(frozen=True, eq=False)
class Reading:
    """A reader for each example of a batch, and its name."""

    name: str
    readers: tuple[Reader, ...]
    of: Ints  # (B,): which of them

    @functools.cached_property
    def key(self) -> tuple[object, ...]:
        """What tells it from others."""
        arrays = ((*x.scopes, *x.following, *x.gains) for x in self.readers)
        return self.name, self.of.tobytes(), *(tuple((x.shape, x.tobytes()) for x in own) for own in arrays)

    @property
    def forbids(self) -> bool:
        """Whether some output is outside, or ends where a machine cannot go."""
        steps = [step for x in self.readers for step in zip(x.following, x.gains, strict=True)]
        return any((following < 0).any() or np.isinf(gains).any() for following, gains in steps)

    @property
    def num_cells(self) -> int:
        """How many cells its tables have in all examples."""
        return int(np.array([reader.num_cells for reader in self.readers])[self.of].sum()) if self.readers else 0

    @property
    def num_hidden(self) -> Ints:
        """How many hidden variables each example gets, (B,)."""
        return np.array([(x.layout.arity == 0).sum() for x in self.readers], np.int64)[self.of]

    @classmethod
    def hard(
        cls, name: str, batch: int, variables: Sequence[int], step: Sequence[tuple[int, int]], accepts: Sequence[int]
    ) -> Self:
        """A hard factor over variables of two labels, which every example has.

        step[state] is the state after a no and after a yes, -1 for none; it may end in the states that it accepts.
        """
        last = [[state if state in accepts else -1 for state in states] for states in step]
        steps = [np.array(step)] * (len(variables) - 1) + [np.array(last)]
        steps[0] = steps[0][:1]
        reader = Reader.over(np.array(variables), steps, [np.zeros(x.shape) for x in steps])
        return cls(name, (reader,), np.zeros(batch, np.int64))

    def blocks(self, first: Ints, like: Tensor, scale: float | None) -> list[Block]:
        """Its hidden variables, numbered from first[b] on in example b, and its factors: scale times its gains.

        With no scale it says nothing of outputs: it adds 0 even to what is outside.
        """
        blocks = []
        for i, reader in enumerate(self.readers):
            examples, x = np.flatnonzero(self.of == i), reader.layout
            n, worth = len(examples), torch.where(x.scores.isinf(), 0.0 if scale is None else math.nan, x.scores)
            scores = (worth * (scale or 0.0)).nan_to_num(-math.inf, math.inf, -math.inf).to(like)
            scopes = np.where(x.scopes < 0, first[examples][:, None] - 1 - x.scopes, x.scopes).ravel()
            owner = np.repeat(examples, len(x.sizes))
            blocks.append(Block(owner, np.tile(x.sizes, n), scores.repeat(n), np.tile(x.arity, n), scopes))
        return blocks

    def fill(self, y: Ints, first: Ints, whole: Ints) -> None:
        """Put what the hidden variables are into assignments (n, V), from first[b] on, for outputs y (n, B, N)."""
        for i, reader in enumerate(self.readers):
            examples = np.flatnonzero(self.of == i)
            state = np.zeros((len(y), len(examples)), np.int64)
            for h, (scope, following) in enumerate(zip(reader.scopes[:-1], reader.following, strict=False)):
                state = following[state, y[:, examples, scope[0]]].clip(0)  # the cell forbids a step it cannot make
                whole[:, first[examples] + h] = state


def attached(p: Parts, readings: Sequence[tuple[Reading, float | None]]) -> Parts:
    """Graphs with what readings add to them, times a scale."""
    blocks, begin = [], np.diff(p.graph.variables)
    for reading, scale in readings:
        blocks += reading.blocks(begin, p.scores, scale)
        begin = begin + reading.num_hidden
    return p.extended(blocks) if readings else p
