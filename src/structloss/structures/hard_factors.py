"""Factors that allow or forbid, without a table: small machines that read variables of two labels one after another.

A machine that reads n variables becomes n - 1 *hidden* variables, its states on the way, and factors between
neighbours that forbid what the machine cannot do. A hidden variable is a function of the others, so nothing is counted
twice; and because the machine is a chain, its linear relaxation is as tight as that of one factor over all n.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from structloss.structures.graph_parts import Factors, Ints, Variables

_AS_A_TABLE = 3  # so many variables and fewer need no hidden ones


@dataclass(frozen=True)
class HardFactor:
    """A machine, and the variables it reads, label 1 for yes."""

    name: str
    variables: tuple[int, ...]
    step: Ints  # (states, 2): the state after a no and after a yes, -1 for none; it begins in state 0
    accepts: Ints  # the states it may end in

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from others."""
        return self.name, self.variables, self.step.tobytes(), self.accepts.tobytes()

    def allows(self, y: Tensor) -> Tensor:
        """Whether it accepts what outputs (..., N) say of its variables."""
        step = torch.from_numpy(np.concatenate([self.step, np.full((1, 2), len(self.step))])).to(y.device)
        step = torch.where(step < 0, len(self.step), step)
        state = torch.zeros(y.shape[:-1], dtype=torch.int64, device=y.device)
        for v in self.variables:
            state = step[state, y[..., v].clamp(0, 1)]
        return torch.isin(state, torch.from_numpy(self.accepts).to(y.device))

    def parts(self, visible: Ints, begin: int, like: Tensor) -> tuple[list[Variables], list[Factors]]:
        """Its hidden variables, numbered from visible[b] + begin on in example b, and its factors."""
        batch, n = len(visible), len(self.variables)
        once = np.ones(batch, np.int64)

        def factor(scope: Sequence[Ints], allowed: Ints) -> Factors:
            table = like.new_full((allowed.size,), -torch.inf)
            table[torch.from_numpy(allowed.ravel() > 0).to(like.device)] = 0
            return Factors(once, np.stack(scope, 1), table.expand(batch, -1))

        seen = [np.full(batch, v) for v in self.variables]
        if n <= _AS_A_TABLE:
            bits = torch.cartesian_prod(*[torch.arange(2)] * n).reshape(-1, n)
            whole = HardFactor(self.name, tuple(range(n)), self.step, self.accepts)
            return [], [factor(seen, whole.allows(bits).numpy().astype(np.int64))]
        states = len(self.step)
        moves = np.zeros((states, 2, states), np.int64)
        for state, label in zip(*np.nonzero(self.step >= 0), strict=True):
            moves[state, label, self.step[state, label]] = 1
        hidden = [visible + begin + i for i in range(n - 1)]
        last = moves[:, :, self.accepts].sum(2)
        factors = [factor((seen[0], hidden[0]), moves[0])]
        factors += [factor((hidden[i - 1], seen[i], hidden[i]), moves) for i in range(1, n - 1)]
        factors.append(factor((hidden[-1], seen[-1]), last))
        return [Variables(once, like.new_zeros(batch, states)) for _ in hidden], factors


def _machine(name: str, variables: Sequence[int], step: list[tuple[int, int]], accepts: list[int]) -> HardFactor:
    return HardFactor(name, tuple(variables), np.array(step, np.int64), np.array(accepts, np.int64))


def exactly_one(variables: Sequence[int]) -> HardFactor:
    """One of them is 1."""
    return _machine("exactly_one", variables, [(0, 1), (1, -1)], [1])


def at_most_one(variables: Sequence[int]) -> HardFactor:
    """None or one of them is 1."""
    return _machine("at_most_one", variables, [(0, 1), (1, -1)], [0, 1])


def at_least_one(variables: Sequence[int]) -> HardFactor:
    """Their logical or: some of them is 1."""
    return _machine("at_least_one", variables, [(0, 1), (1, 1)], [1])


def implies(variables: Sequence[int], consequence: int) -> HardFactor:
    """Where all of them are 1, so is the consequence, which is read first."""
    return _machine("implies", (consequence, *variables), [(1, 2), (2, 1), (2, 2)], [2])


def budget(variables: Sequence[int], most: int) -> HardFactor:
    """At most so many of them are 1. Its machine counts: the cost is n * most**2."""
    step = [(i, i + 1 if i < most else -1) for i in range(most + 1)]
    return _machine("budget", variables, step, list(range(most + 1)))
