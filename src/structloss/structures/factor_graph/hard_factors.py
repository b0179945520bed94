"""Factors that allow or forbid, without a table: small machines that read variables of two labels, label 1 for yes."""

from collections.abc import Sequence

import numpy as np

from structloss.structures.factor_graph.readers import Reader, Reading


def _machine(
    name: str, batch: int, variables: Sequence[int], step: list[tuple[int, int]], accepts: Sequence[int]
) -> Reading:
    """A machine that every example has: step[state] is the state after a no and after a yes, -1 for none."""
    following = np.array(step)
    last = np.where(np.isin(following, accepts), following, -1)
    steps = [following] * (len(variables) - 1) + [last]
    steps[0] = steps[0][:1]
    reader = Reader(np.array(variables), tuple(steps), tuple(np.zeros(x.shape) for x in steps))
    return Reading(name, (reader,), np.zeros(batch, np.int64))


def exactly_one(batch: int, variables: Sequence[int]) -> Reading:
    """One of them is 1."""
    return _machine("exactly_one", batch, variables, [(0, 1), (1, -1)], [1])


def at_most_one(batch: int, variables: Sequence[int]) -> Reading:
    """None or one of them is 1."""
    return _machine("at_most_one", batch, variables, [(0, 1), (1, -1)], [0, 1])


def at_least_one(batch: int, variables: Sequence[int]) -> Reading:
    """Their logical or: some of them is 1."""
    return _machine("at_least_one", batch, variables, [(0, 1), (1, 1)], [1])


def implies(batch: int, variables: Sequence[int], consequence: int) -> Reading:
    """Where all of them are 1, so is the consequence, which is read first."""
    return _machine("implies", batch, (consequence, *variables), [(1, 2), (2, 1), (2, 2)], [2])


def budget(batch: int, variables: Sequence[int], most: int) -> Reading:
    """At most so many of them are 1. Its machine counts: the cost is n * most**2."""
    step = [(i, i + 1 if i < most else -1) for i in range(most + 1)]
    return _machine("budget", batch, variables, step, range(most + 1))
