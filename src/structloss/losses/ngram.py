"""The n-gram loss: how few n-grams the answer shares with the reference."""

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from structloss.automata import LossAutomaton, OpenAutomaton, TooManyStatesError
from structloss.automata.automaton import MAX_STATES
from structloss.automata.open import ExplicitAutomaton
from structloss.automata.rational import RationalAutomaton
from structloss.kernels.machines import compose
from structloss.losses.machine import MachineLoss
from structloss.losses.numbers import check_at_least_zero
from structloss.losses.references import UNKNOWN, String


class NGram(MachineLoss, name="ngram"):
    r"""Minus the inner product of n-gram counts, or its logarithm (Cortes 2018, sections 2.1 and 4).

    .. math:: L(y, r) = -\log\Big(\text{smoothing} + \sum_{g \in \Delta^n} |y|_g \, |r|_g\Big)
              \qquad\text{or}\qquad L(y, r) = -\sum_{g \in \Delta^n} |y|_g \, |r|_g

    Args:
        n: the length of the n-grams.
        smoothing: added to the inner product, so that every string has a finite loss: 1 unless you say otherwise. 0 is
            the paper's definition: the loss of a string with no n-gram in common is inf, and it is outside every sum.
        max_states: raise `TooManyStatesError` rather than build a larger machine.
        log: False for minus the inner product itself, which is finite for every string and takes no smoothing.

    n-grams of the reference that have an unknown label (-100) are not counted. A state of the machine is the last n - 1
    labels that can still matter and the running total: polynomially many. Without the logarithm each n-gram adds its
    count, so that the total need not be told apart, and the states are the last n - 1 labels alone.

    Example:
        >>> import structloss as sl
        >>> sl.NGram(2)([[0, 1, 2]], [[0, 1, 2, 3]])  # -log(1 + 2)
        tensor([-1.0986])
        >>> sl.NGram(2, log=False)([[0, 1, 2]], [[0, 1, 2, 3]])
        tensor([-2.])
    """

    def __init__(
        self, n: int = 2, smoothing: float | None = None, max_states: int = MAX_STATES, log: bool = True
    ) -> None:
        super().__init__(max_states)
        if not isinstance(n, int) or n < 1:
            raise ValueError(f"n: got {n!r}, but wanted a whole number of at least 1")
        if not log and smoothing is not None:
            raise ValueError(f"smoothing: got {smoothing!r} beside log=False, but only a logarithm wants it")
        self.n, self.log = n, log
        self.smoothing = check_at_least_zero(float(log) if smoothing is None else smoothing, "smoothing")

    def __repr__(self) -> str:
        return f"NGram(n={self.n}, {f'smoothing={self.smoothing}' if self.log else 'log=False'})"

    def _counts(self, string: String) -> Counter[tuple[int, ...]]:
        """How often each n-gram of known labels is in a string."""
        if string.ndim > 1:
            raise TypeError(f"reference: got sets of labels, but {self!r} counts n-grams of labels, or of {UNKNOWN}")
        labels = string.tolist()
        grams = (tuple(labels[i : i + self.n]) for i in range(len(labels) - self.n + 1))
        return Counter(gram for gram in grams if min(gram) >= 0)

    def distance(self, y: String, reference: String) -> float:
        ours, theirs = self._counts(y), self._counts(reference)
        product = self.smoothing + sum(count * theirs[gram] for gram, count in ours.items())
        if not self.log:
            return -product
        return -math.log(product) if product > 0 else math.inf

    def _counter(self, reference: String, num_labels: int) -> "_Counter":
        counts = Counter({g: c for g, c in self._counts(reference).items() if max(g) < num_labels})
        symbols = sorted({label for gram in counts for label in gram})
        class_of = np.full(num_labels, len(symbols), np.int64)
        class_of[symbols] = np.arange(len(symbols))
        # A node is what can still become one of the reference's n-grams: a beginning of one.
        nodes: dict[tuple[int, ...], int] = {(): 0}
        for gram in counts:
            for i in range(1, self.n):
                nodes.setdefault(gram[:i], len(nodes))
        next_node = np.zeros((len(nodes), len(symbols) + 1), np.int32)  # the last class leads back to the start
        gain = np.zeros(next_node.shape, np.int64)
        for node, index in nodes.items():
            for c, symbol in enumerate(symbols):
                string: tuple[int, ...] = (*node, symbol)
                gain[index, c] = counts.get(string, 0)
                while string not in nodes:
                    string = string[1:]
                next_node[index, c] = nodes[string]
        return _Counter(class_of, next_node, gain)

    def compile(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        if not self.log and not absolute:
            return super().compile(reference, num_labels, length, absolute)
        class_of, next_node, gain = self._counter(reference, num_labels)
        # The node, and the total so far: a machine that adds up what its symbols are, the gains of the node's arcs.
        most, begin, symbols = int(gain.max()), np.zeros(length + 1, np.int64), np.arange(gain.shape[1])
        totals = np.arange(length * most + 1)[:, None]
        adds = np.minimum(totals + np.arange(most + 1), length * most).astype(np.int32)
        next_state, _, total, offsets, outgrown = compose(
            next_node, begin, symbols, adds, begin, gain, (len(next_node), len(adds)), self.max_states
        )
        if outgrown >= 0:
            raise TooManyStatesError(
                f"max_states: the {self.n}-gram machine for outputs of length {length} passed {self.max_states} states "
                f"at position {outgrown}; a smaller n makes it smaller; augment(..., beam=n) bounds the error"
            )
        product = self.smoothing + total
        final = np.where(product > 0, -np.log(np.maximum(product, 1e-300)), np.inf) if self.log else 0.0 - product
        return LossAutomaton(class_of, next_state, np.empty((0, next_state.shape[1])), final, offsets)

    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        class_of, next_node, gain = self._counter(reference, num_labels)
        if not self.log and not absolute:
            return ExplicitAutomaton(class_of, next_node.astype(np.int64), 0.0 - gain, np.zeros(len(next_node)))
        nodes, C = next_node.shape
        # The node as a unit vector, and behind it the total so far.
        start, stop, matrices = np.zeros(nodes + 1), np.zeros(nodes + 1), np.zeros((C, nodes + 1, nodes + 1))
        start[0] = stop[-1] = matrices[:, -1, -1] = 1.0
        for c in range(C):
            matrices[c, np.arange(nodes), next_node[:, c]] = 1.0
            matrices[c, :nodes, -1] = gain[:, c]
        # Its states are told apart by node and total, so that a vector is no multiple of another.
        return RationalAutomaton(start, matrices, stop, self.smoothing, class_of, True, self.max_states, self.log)


class _Counter(NamedTuple):
    """Counts n-grams: where a class leads from a node, and what it adds to the total."""

    class_of: NDArray[np.int64]  # (K,)
    next_node: NDArray[np.int32]  # (nodes, C)
    gain: NDArray[np.int64]  # (nodes, C)
