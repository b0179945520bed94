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
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from structloss.automata import LossAutomaton
from structloss.structures.chain.strata import distinct
from structloss.structures.factor_graph.parts import Block, Floats, Ints, Parts


class Layout(NamedTuple):
    """What a machine is as a part of a graph. In a scope, -1 - h stands for the hidden variable h."""

    hidden: Ints  # how many labels each hidden variable has
    scopes: list[Ints]  # of each factor
    gains: list[Floats]  # of the cells of its table, in a row; inf: outside, NaN: no such step


@dataclass(frozen=True, eq=False)
class Reader:
    """A machine, and the variables that it reads; it begins in state 0. n steps, of S states and K labels each."""

    variables: Ints  # (n,)
    following: tuple[Ints, ...]  # n of (S, K): the state after each label, -1 where it cannot go
    gains: tuple[Floats, ...]  # n of (S, K): what that adds, the last one with what ending there adds; inf: outside
    nothing: float = 0.0  # what reading no variable at all adds

    @classmethod
    def of(cls, machine: LossAutomaton, sizes: Ints) -> "Reader":
        """That of a loss, which reads all variables of an example; they have so many labels."""
        here, following, gains = np.zeros(1, np.int64), [], []
        for t, size in enumerate(sizes.tolist()):
            at = (machine.offsets[t] + here)[:, None], machine.class_of[:size]
            leads = machine.next_state[at]
            gain = np.zeros(leads.shape) if machine.is_absolute else machine.weights[at]
            gains.append(gain + machine.final[machine.offsets[-2] + leads] if t == len(sizes) - 1 else gain)
            here, place = np.unique(leads, return_inverse=True)
            following.append(place.reshape(leads.shape))
        nothing = 0.0 if len(sizes) else float(machine.final[0])
        return cls(np.arange(len(sizes)), tuple(following), tuple(gains), nothing)

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from others."""
        arrays = (self.variables, *self.following, *self.gains)
        return self.nothing, *((x.shape, x.tobytes()) for x in arrays)

    @functools.cached_property
    def _extents(self) -> list[tuple[int, int, int]]:
        """Of each step, how many states there are, labels, and states after it; one at the end."""
        after = [*(len(x) for x in self.following[1:]), 1]
        return [(*x.shape, n) for x, n in zip(self.following, after, strict=False)]

    @functools.cached_property
    def _as_table(self) -> bool:
        return math.prod(k for _, k, _ in self._extents) <= sum(map(math.prod, self._extents))

    @property
    def num_cells(self) -> int:
        """How many cells its tables have."""
        return math.prod(k for _, k, _ in self._extents) if self._as_table else sum(map(math.prod, self._extents))

    @property
    def forbids(self) -> bool:
        """Whether something that it reads is outside, or ends where it cannot go."""
        outside = math.isinf(self.nothing) or any(np.isinf(x).any() for x in self.gains)
        return outside or any((x < 0).any() for x in self.following)

    @property
    def num_hidden(self) -> int:
        """How many hidden variables it has."""
        return 1 if not len(self.variables) else 0 if self._as_table else len(self.variables) - 1

    @functools.cached_property
    def layout(self) -> Layout:
        """Its hidden variables and factors."""
        if not len(self.variables):  # what it adds needs a variable to stand at
            return Layout(np.array([1]), [np.array([-1])], [np.array([self.nothing])])
        if self._as_table:
            return Layout(self.variables[:0], [self.variables], [self._table()])
        scopes, gains = [], []
        for i, (following, gain, extent) in enumerate(zip(self.following, self.gains, self._extents, strict=True)):
            last = i == len(self.variables) - 1
            state, label = np.nonzero(following >= 0)
            cells = np.full(extent, np.nan)
            cells[state, label, 0 if last else following[state, label]] = gain[state, label]
            gains.append(cells.ravel())
            scopes.append(np.array([*([-i] if i else []), self.variables[i], *([] if last else [-1 - i])]))
        return Layout(np.array([after for _, _, after in self._extents[:-1]]), scopes, gains)

    def _table(self) -> Floats:
        """What reading each assignment of its variables gains."""
        state, total = np.zeros(1, np.int64), np.zeros(1)
        for following, gain in zip(self.following, self.gains, strict=True):
            after = following[state]
            total = (total[:, None] + np.where(after >= 0, gain[state], np.nan)).ravel()
            state = after.clip(0).ravel()
        return total

    def states(self, y: Ints) -> Ints:
        """What its hidden variables are, (..., h), where its variables have the labels y (..., n)."""
        state = np.zeros(y.shape[:-1], np.int64)
        found = np.zeros((*y.shape[:-1], self.num_hidden), np.int64)
        for i in range(min(self.num_hidden, len(self.variables))):
            state = self.following[i][state, y[..., i]].clip(0)  # a step that it cannot make is forbidden by its cell
            found[..., i] = state
        return found

    @property
    def values(self) -> Floats:
        """What an absolute machine, whose gains are those of its last step, can come to, ascending."""
        return distinct(self.gains[-1] if self.gains else np.array([self.nothing]))

    def coming_to(self, value: float) -> "Reader":
        """An absolute machine restricted to what comes to a value, at no gain; to nothing at all for NaN."""

        def only(gain: Floats) -> Floats:
            return np.where(np.abs(gain - value) < 1e-8, 0.0, np.inf)

        nothing = float(only(np.array(self.nothing)))
        return replace(self, gains=(*self.gains[:-1], only(self.gains[-1])) if self.gains else (), nothing=nothing)


@dataclass(frozen=True, eq=False)
class Reading:
    """A reader for each example of a batch, and its name."""

    name: str
    readers: tuple[Reader, ...]
    of: Ints  # (B,): which of them

    @functools.cached_property
    def key(self) -> tuple[object, ...]:
        """What tells it from others."""
        return self.name, self.of.tobytes(), *(reader.key for reader in self.readers)

    @property
    def forbids(self) -> bool:
        """Whether some output is outside."""
        return any(reader.forbids for reader in self.readers)

    @property
    def num_cells(self) -> int:
        """How many cells its tables have in all examples."""
        return int(np.array([reader.num_cells for reader in self.readers])[self.of].sum()) if self.readers else 0

    @property
    def num_hidden(self) -> Ints:
        """How many hidden variables each example gets, (B,)."""
        return np.array([reader.num_hidden for reader in self.readers], np.int64)[self.of]

    @classmethod
    def hard(
        cls, name: str, batch: int, variables: Sequence[int], step: Sequence[tuple[int, int]], accepts: Sequence[int]
    ) -> Self:
        """A hard factor over variables of two labels, which every example has.

        step[state] is the state after a no and after a yes, -1 for none; it may end in the states that it accepts.
        """
        following = np.array(step)
        steps = [following] * (len(variables) - 1) + [np.where(np.isin(following, accepts), following, -1)]
        steps[0] = steps[0][:1]
        reader = Reader(np.array(variables), tuple(steps), tuple(np.zeros(x.shape) for x in steps))
        return cls(name, (reader,), np.zeros(batch, np.int64))

    def examples(self, index: Ints) -> "Reading":
        """Those of some examples."""
        return replace(self, of=self.of[index])

    def parts(self, first: Ints, like: Tensor, scale: float | None) -> tuple[list[Block], list[Block]]:
        """Its hidden variables, numbered from first[b] on in example b, and its factors: scale times its gains.

        With no scale it says nothing of outputs: it adds 0 even to what is outside.
        """
        variables, factors = [], []
        for i, reader in enumerate(self.readers):
            examples, x = np.flatnonzero(self.of == i), reader.layout
            n, gains, scope = len(examples), np.concatenate(x.gains), np.concatenate(x.scopes)
            worth = np.where(np.isinf(gains), 0.0 if scale is None else np.nan, gains) * (scale or 0.0)
            scores = torch.from_numpy(np.where(np.isnan(worth), -np.inf, worth)).to(like)
            hidden = np.repeat(examples, len(x.hidden)), np.tile(x.hidden, n)
            variables.append(Block.variables(*hidden, like.new_zeros(int(hidden[1].sum()))))
            sizes, arity = ([len(part) for part in parts] for parts in (x.gains, x.scopes))
            scopes = np.where(scope < 0, first[examples][:, None] - 1 - scope, scope).ravel()
            owner = np.repeat(examples, len(arity))
            factors.append(Block(owner, np.tile(sizes, n), scores.repeat(n), np.tile(arity, n), scopes))
        return variables, factors

    def fill(self, y: Ints, first: Ints, whole: Ints) -> None:
        """Put what the hidden variables are into assignments (n, V), from first[b] on, for outputs y (n, B, N)."""
        for i, reader in enumerate(self.readers):
            examples = np.flatnonzero(self.of == i)
            labels = y[:, examples][:, :, reader.variables].clip(0)
            whole[:, first[examples][:, None] + np.arange(reader.num_hidden)] = reader.states(labels)


def attached(p: Parts, readings: Sequence[tuple[Reading, float | None]]) -> Parts:
    """Graphs with what readings add to them, times a scale."""
    variables: list[Block] = []
    factors: list[Block] = []
    begin = np.diff(p.graph.variables)
    for reading, scale in readings:
        more = reading.parts(begin, p.scores, scale)
        variables += more[0]
        factors += more[1]
        begin = begin + reading.num_hidden
    return p.extended(variables, factors) if readings else p
