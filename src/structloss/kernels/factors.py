"""What kernels of factor graphs read: the graphs of a batch, and tables seen along one of their variables.

Scores are one flat array: the labels of all variables, then the cells of all tables, the last variable of a scope
fastest. Seen along the variable of one *slot*, a variable's place in the scope of a factor, a table is an array (outer,
size, inner). What factors and variables tell each other, *messages*, is flat too: one number for each label of a slot.
"""

from typing import NamedTuple

import numpy as np

from structloss.kernels.compile import helper, inlined_helper
from structloss.kernels.types import Array, Ints

ADD, SCALE, SUM, MAX = 0, 1, 2, 3  # what cells and messages do with each other


class Graph(NamedTuple):
    """The graphs of a batch, one after the other."""

    variables: Ints  # (B + 1,): the first variable of each example
    factors: Ints  # (B + 1,): its first factor
    labels: Ints  # (V + 1,): where the scores of each variable begin
    cells: Ints  # (F + 1,): where the table of each factor begins
    slots: Ints  # (F + 1,): where the scope of each factor begins
    scope: Ints  # (S,): the variables of the scopes


class Slots(NamedTuple):
    """What variables and factors know of each other."""

    factor: Ints  # (S,): whose slot it is
    outer: Ints  # (S,): how many assignments the variables before it in the scope have
    inner: Ints  # (S,): and those after it, which is how far apart neighbouring labels are
    messages: Ints  # (S + 1,): where its messages begin
    begin: Ints  # (V + 1,): where each variable's slots begin in the next
    of: Ints  # (S,)
    first: Ints  # (S,): whether no variable of the factor comes before
    last: Ints  # (S,): or after
    share: Array  # (V,): one over the number of monotone chains through the variable


@inlined_helper
def along(what: int, g: Graph, s: Slots, at: int, x: Array, message: Array) -> None:
    """Go through the cells x of a factor, each with the message of its label at this slot.

    ADD: x += message. SCALE: x *= message. SUM and MAX: message = the sum of x, or the largest, over its cells.
    """
    if what >= SUM:
        for i in range(s.messages[at], s.messages[at + 1]):
            message[i] = 0.0 if what == SUM else -np.inf
    c = g.cells[s.factor[at]]
    for _ in range(s.outer[at]):
        for i in range(s.messages[at], s.messages[at + 1]):
            for _ in range(s.inner[at]):
                if what == ADD:
                    x[c] += message[i]
                elif what == SCALE:
                    x[c] *= message[i]
                elif what == SUM:
                    message[i] += x[c]
                else:
                    message[i] = max(message[i], x[c])
                c += 1


@inlined_helper
def gather(g: Graph, s: Slots, f: int, scores: Array, message: Array, x: Array) -> float:
    """x = theta_f + the sum of the messages of factor f's slots, cell by cell. Returns the largest."""
    for c in range(g.cells[f], g.cells[f + 1]):
        x[c] = scores[c]
    for at in range(g.slots[f], g.slots[f + 1]):
        along(ADD, g, s, at, x, message)
    top = -np.inf
    for c in range(g.cells[f], g.cells[f + 1]):
        top = max(top, x[c])
    return top


@helper
def forbid(g: Graph, s: Slots, b: int, scores: Array, allowed: Ints, message: Array, best: Array, x: Array) -> bool:
    """Strike labels that no cell of some factor allows, until nothing changes. False where a variable has none left.

    message is then 0 for what is allowed and -inf for the rest.
    """
    for i in range(g.labels[g.variables[b]], g.labels[g.variables[b + 1]]):
        allowed[i] = scores[i] > -np.inf
    changed = True
    while changed:
        changed = False
        for f in range(g.factors[b], g.factors[b + 1]):
            for at in range(g.slots[f], g.slots[f + 1]):
                for i in range(s.messages[at], s.messages[at + 1]):
                    message[i] = 0.0 if allowed[g.labels[g.scope[at]] + i - s.messages[at]] else -np.inf
            gather(g, s, f, scores, message, x)
            for at in range(g.slots[f], g.slots[f + 1]):
                along(MAX, g, s, at, x, best)
                for i in range(s.messages[at], s.messages[at + 1]):
                    if best[i] == -np.inf and message[i] == 0:
                        allowed[g.labels[g.scope[at]] + i - s.messages[at]] = 0
                        changed = True
    for v in range(g.variables[b], g.variables[b + 1]):
        some = False
        for i in range(g.labels[v], g.labels[v + 1]):
            some = some or allowed[i] > 0
        if not some:
            return False
    return True
