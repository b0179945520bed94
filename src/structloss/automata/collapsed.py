"""CollapsedAutomaton: a machine that reads CTC's paths, and passes what they write on to another."""

import numpy as np

from structloss.automata.open import Ints, OpenAutomaton


class CollapsedAutomaton(OpenAutomaton):
    """The loss of what a path writes: its labels, each run of equals once, without the blanks.

    A state is one of the machine's and the label of the last frame. Cost: as many states as such pairs are reached.

    Example:
        >>> import structloss as sl
        >>> from structloss.automata.collapsed import CollapsedAutomaton
        >>> machine = CollapsedAutomaton(sl.EditDistance().automaton([1, 1], num_labels=3), blank=0)
        >>> machine.weight([1, 1, 0, 1]), machine.weight([1, 1, 1, 1])
        (0.0, 1.0)
    """

    def __init__(self, machine: OpenAutomaton, blank: int) -> None:
        K = machine.num_labels
        super().__init__(np.arange(K), K, machine.max_states * K)
        self._machine, self._blank = machine, blank
        self._pairs: dict[int, int] = {}
        self._inner, self._last = np.zeros(len(self.final), np.int64), np.zeros(len(self.final), np.int64)
        self._enter(np.zeros(1, np.int64), np.full(1, blank))

    def _enter(self, inner: Ints, last: Ints) -> Ints:
        """The states of these pairs."""
        keys = (inner * self.num_labels + last).tolist()
        found = np.array([self._pairs.setdefault(key, len(self._pairs)) for key in keys], np.int64)
        before, self.num_states = self.num_states, len(self._pairs)
        self._check_size(self.num_states)
        if self.num_states > len(self.final):
            self.num_states, total = before, self.num_states
            self._grow(total)
            self.num_states = total
            more = np.zeros(len(self.final) - len(self._inner), np.int64)
            self._inner, self._last = np.concatenate([self._inner, more]), np.concatenate([self._last, more])
        self._inner[found], self._last[found] = inner, last
        self.final[found] = self._machine.final[inner]
        return found

    def _expand(self, states: Ints, classes: Ints) -> None:
        inner, writes = self._inner[states], (classes != self._blank) & (classes != self._last[states])
        weights = np.zeros(len(states))
        inner[writes], weights[writes] = self._machine.follow(inner[writes], self._machine.class_of[classes[writes]])
        found = self._enter(inner, classes)
        self.next_state[states, classes], self.weights[states, classes] = found, weights
