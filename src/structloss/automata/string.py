"""StringAutomaton: the machine that accepts one string and no other."""

import numpy as np

from structloss.automata.automaton import check_num_labels
from structloss.automata.open import ExplicitAutomaton, Ints
from structloss.kernels.checks import UNKNOWN


class StringAutomaton(ExplicitAutomaton):
    """0 for one string of labels, and inf, which means outside, for every other. Cost: its length times its classes.

    State j has read the first j labels, state l the whole string, state l + 1 is dead.

    Args:
        string: labels (l,), or sets of them (l, m) filled up with -1; -100 stands for any label, and one that is not
            among the num_labels is never read, so that no string is accepted.
        num_labels: K, how many labels there are.

    Example:
        >>> import numpy as np
        >>> from structloss.automata.string import StringAutomaton
        >>> machine = StringAutomaton(np.array([0, 2]), num_labels=3)
        >>> machine.weight([0, 2]), machine.weight([0]), machine.weight([0, 2, 1])
        (0.0, inf, inf)
    """

    def __init__(self, string: Ints, num_labels: int) -> None:
        check_num_labels(num_labels)
        sets = string if string.ndim == 2 else string[:, None]
        length, within = len(sets), (sets >= 0) & (sets < num_labels)
        known = np.unique(sets[within])
        class_of = np.full(num_labels, len(known), np.int64)
        class_of[known] = np.arange(len(known))
        next_state = np.full((length + 2, len(known) + 1), length + 1, np.int64)
        read, unknown = np.nonzero(within)[0], np.flatnonzero((sets == UNKNOWN).any(1))
        next_state[read, class_of[sets[within]]] = read + 1
        next_state[unknown] = unknown[:, None] + 1
        final = np.full(length + 2, np.inf)
        final[length] = 0.0
        super().__init__(class_of, next_state, np.zeros(next_state.shape), final)
