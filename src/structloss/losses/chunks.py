"""ChunkErrors and ChunkF1: chunks that are missed and made up, as taggers are judged by."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from structloss.automata import LossAutomaton, OpenAutomaton
from structloss.automata.automaton import MAX_STATES
from structloss.automata.chunks import CountingAutomaton, Tracker, track, weighed
from structloss.losses.machine import MachineLoss, Neighbours
from structloss.losses.numbers import check_at_least_zero
from structloss.losses.references import UNKNOWN, String
from structloss.losses.schemes import Tags, chunks

Numbers = NDArray[np.int64] | int


class ChunkLoss(MachineLoss):
    """A loss that depends on how many chunks are right, how many the answer has, and how many the reference has.

    A chunk is right where its type, begin and end are those of a chunk of the reference: see `schemes.chunks`. Where
    the reference is unknown (-100), and beyond its end, every label is read as O, in the answer too.
    """

    def __init__(self, labels: Sequence[str], max_states: int) -> None:
        super().__init__(max_states)
        self.labels, self._tags = tuple(labels), Tags.of(labels)

    def value(self, right: Numbers, made: Numbers, wanted: int) -> NDArray[np.float64]:
        """The loss from the three numbers."""
        raise NotImplementedError

    def distance(self, y: String, reference: String) -> float:
        known = self._checked(reference, 0) >= 0
        there = min(len(y), len(known))
        kept = [self.labels[k] if known[t] else "O" for t, k in enumerate(y.tolist()[:there])]
        ours = chunks(kept)
        theirs = chunks([self.labels[k] if k >= 0 else "O" for k in reference.tolist()])
        return float(self.value(len(ours & theirs), len(ours), len(theirs)))

    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        return CountingAutomaton(self._track(reference, num_labels), self.value, self.max_states)

    def _track(self, reference: String, num_labels: int, every: bool = True) -> Tracker:
        return track(*self._tags, self._checked(reference, num_labels), num_labels, every)

    def _checked(self, reference: String, num_labels: int) -> String:
        if reference.ndim > 1:
            raise TypeError(f"reference: got sets of labels, but {self!r} counts chunks of labels, or of {UNKNOWN}")
        largest = max(num_labels - 1, int(reference.max(initial=-1)))
        if largest >= len(self.labels):
            raise ValueError(f"labels: got {len(self.labels)} names, but there are labels up to {largest}")
        return reference


class ChunkErrors(ChunkLoss, name="chunk-errors"):
    r"""Chunks that are missed and made up: names that are not found, and words that are taken for names.

    .. math:: L(y, r) = \text{miss} \cdot |R \setminus Y| + \text{false alarm} \cdot |Y \setminus R|

    where R and Y are the chunks, (type, begin, end), of the reference and of the answer. They are read as conlleval
    and seqeval (without `mode="strict"`) read them, which needs no scheme: B-X begins a chunk, and so does I-X where
    no X is open (after O, after another type, at the start); E-X and S-X, or BILOU's L-X and U-X, end one. Where the
    reference is unknown (-100), and beyond its end, labels are read as O in both.

    Args:
        labels: the names of labels 0, 1, ...: "O", and types with a prefix, "B-PER", "I-PER", ... (IOB1, IOB2, IOBES,
            BILOU).
        miss: what a chunk of the reference costs that the answer lacks.
        false_alarm: what a chunk of the answer costs that the reference lacks. A chunk whose end is wrong costs both.
        max_states: raise `TooManyStatesError` rather than build a larger machine.

    The machine of a chain of order 2 has at most 3 states a position, and 1 where the reference has no chunk: what a
    chunk of y costs as such is a score of neighbouring labels. Elsewhere, and where the reference has unknown labels,
    it has 2 states more than there are types.

    Example:
        >>> import structloss as sl
        >>> labels = ["O", "B-PER", "I-PER"]
        >>> sl.ChunkErrors(labels)([[1, 2, 0, 1]], [[1, 0, 0, 1]])  # the first ends too late: missed, and made up
        tensor([2.])
        >>> sl.ChunkErrors(labels, miss=3.0)([[0, 0, 0, 2]], [[1, 0, 0, 1]])  # I-PER after O begins a chunk
        tensor([3.])
    """

    def __init__(
        self, labels: Sequence[str], miss: float = 1.0, false_alarm: float = 1.0, max_states: int = MAX_STATES
    ) -> None:
        super().__init__(labels, max_states)
        self.miss, self.false_alarm = check_at_least_zero(miss, "miss"), check_at_least_zero(false_alarm, "false_alarm")
        self._rest = self._apart()

    def _apart(self) -> "MachineLoss | None":
        return _BeginningsAside(self.labels, self.miss, self.false_alarm, self.max_states)

    def __repr__(self) -> str:
        return f"ChunkErrors({len(self.labels)} labels, miss={self.miss}, false_alarm={self.false_alarm})"

    def value(self, right: Numbers, made: Numbers, wanted: int) -> NDArray[np.float64]:
        return np.asarray(self.miss * (wanted - right) + self.false_alarm * (made - right))

    def compile(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        if absolute or length != len(reference):
            return super().compile(reference, num_labels, length, absolute)
        tracker = self._track(reference, num_labels)
        return tracker.levelled(*self._weights(tracker))

    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        if absolute:
            return super().compile_open(reference, num_labels, absolute)
        tracker = self._track(reference, num_labels)
        return weighed(tracker, *self._weights(tracker))

    def _weights(self, tracker: Tracker) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A chunk that is made costs a false alarm; one that turns out right gives that back, and its miss."""
        both = self.miss + self.false_alarm
        weights = self._beginning * tracker.made.astype(np.float64) - both * tracker.right
        return weights, self.miss * tracker.chunks - both * tracker.ends.astype(np.float64)

    @property
    def _beginning(self) -> float:
        return self.false_alarm

    def neighbours(self, references: Sequence[String], lengths: Sequence[int], num_labels: int) -> Neighbours | None:
        if any(r.ndim > 1 for r in references) or [len(r) for r in references] != lengths:
            return None
        together = np.concatenate([np.empty(0, np.int64), *references])
        if (self._checked(together, num_labels) < 0).any():
            return None
        kind, begins, closes = (x[:num_labels] for x in self._tags)
        open_after = np.where(closes, -1, kind)
        start = kind >= 0
        pairs = start & (begins | (open_after[:, None] != kind))
        assert self._rest is not None
        start_costs, pair_costs = (self.false_alarm * x.astype(np.float64) for x in (start, pairs))
        return Neighbours(start_costs, pair_costs, self._rest)


class CorpusFBeta(ChunkErrors, name="fbeta"):
    r"""ChunkErrors whose weights follow the F-score of a corpus, so that training ends at the highest one.

    .. math:: \text{miss} = 2 - \tfrac{2F}{1 + \beta^2}, \quad \text{false alarm} = \tfrac{2F}{1 + \beta^2}, \qquad
              F = \frac{(1 + \beta^2) \, |R \cap Y|}{\beta^2 |R| + |Y|}

    :math:`F_\beta` of a whole corpus is no sum over sentences, but it is pseudo-linear: where it is highest, the linear
    loss with these weights is lowest (Parambath et al. 2014). So F on development data gives the weights, these a
    better F, and a few rounds are enough: `following` makes the next loss from what was reached.
    `structloss train tagging --loss f1` and `ChainTagger(loss="f1")` do that after each pass.

    Args:
        labels: the names of labels 0, 1, ..., as for `ChunkErrors`.
        beta: how many times recall counts as much as precision; 1 is F1.
        reached: F, from 0 to 1.
        max_states: raise `TooManyStatesError` rather than build a larger machine.

    Example:
        >>> import structloss as sl
        >>> loss = sl.CorpusFBeta(["O", "B-PER", "I-PER"])
        >>> loss.following({"precision": 0.5, "recall": 0.5})
        CorpusFBeta(3 labels, beta=1.0, reached=0.5)
        >>> loss.following({"precision": 0.5, "recall": 0.5}).weights
        {'miss': 1.5, 'false_alarm': 0.5}
    """

    objective = "hinge"

    def __init__(
        self, labels: Sequence[str], beta: float = 1.0, reached: float = 0.5, max_states: int = MAX_STATES
    ) -> None:
        if not 0 < beta < math.inf:
            raise ValueError(f"beta: got {beta!r}, but wanted a finite number above 0")
        if not 0 <= reached <= 1:
            raise ValueError(f"reached: got {reached!r}, but wanted a number from 0 to 1")
        self.beta, self.reached = float(beta), float(reached)
        false_alarm = 2 * self.reached / (1 + self.beta**2)
        super().__init__(labels, 2 - false_alarm, false_alarm, max_states)

    def __repr__(self) -> str:
        return f"CorpusFBeta({len(self.labels)} labels, beta={self.beta}, reached={self.reached:.4g})"

    @property
    def weights(self) -> dict[str, float]:
        return {"miss": self.miss, "false_alarm": self.false_alarm}

    def following(self, metrics: Mapping[str, float]) -> "CorpusFBeta":
        """With the weights that belong to the `precision` and `recall` that were reached, if there are any."""
        if "precision" not in metrics:
            return self
        precision, recall = metrics["precision"], metrics["recall"]
        right, all_of_it = (1 + self.beta**2) * precision * recall, self.beta**2 * precision + recall
        return CorpusFBeta(self.labels, self.beta, right / all_of_it if all_of_it else 0.0, self.max_states)


class CorpusF1(CorpusFBeta, name="f1"):
    """`CorpusFBeta` with beta = 1: what most people report.

    Example:
        >>> import structloss as sl
        >>> sl.CorpusF1(["O", "B-PER", "I-PER"], reached=0.6).weights
        {'miss': 1.4, 'false_alarm': 0.6}
    """

    def __init__(self, labels: Sequence[str], reached: float = 0.5, max_states: int = MAX_STATES) -> None:
        super().__init__(labels, 1.0, reached, max_states)


class _BeginningsAside(ChunkErrors):
    """ChunkErrors without what a chunk costs where it begins: miss * |R| - (miss + false_alarm) * |R & Y|.

    The type that is open matters only where the reference's next chunk begins, and has that type.
    """

    def _apart(self) -> None:
        return None

    def value(self, right: Numbers, made: Numbers, wanted: int) -> NDArray[np.float64]:
        return np.asarray(self.miss * wanted - (self.miss + self.false_alarm) * right)

    def _track(self, reference: String, num_labels: int, every: bool = False) -> Tracker:
        return super()._track(reference, num_labels, every)

    @property
    def _beginning(self) -> float:
        return 0.0

    def neighbours(self, references: Sequence[String], lengths: Sequence[int], num_labels: int) -> None:
        return None


class ChunkF1(ChunkLoss, name="chunk-f1"):
    r"""1 - F1 of the sentence's chunks, 0 where neither the answer nor the reference has one.

    .. math:: L(y, r) = 1 - \frac{2 |R \cap Y|}{|R| + |Y|}

    Chunks, unknown labels and `labels` are those of `ChunkErrors`. The F1 that is reported is that of a whole corpus,
    which is no mean over sentences: for it, train on `ChunkErrors` with miss = 1 - F/2 and false_alarm = F/2, where F
    is the F1 that is reached (Parambath et al. 2014).

    Args:
        labels: the names of labels 0, 1, ...
        max_states: raise `TooManyStatesError` rather than build a larger machine.

    A state is one of `ChunkErrors`, times how many chunks are right and how many there are so far: at position t up to
    (types + 2) * |R| * t states.

    Example:
        >>> import structloss as sl
        >>> sl.ChunkF1(["O", "B-PER", "I-PER"])([[1, 2, 0, 1], [0, 0, 0, 0]], [[1, 0, 0, 1], [0, 0, 0, 0]])
        tensor([0.5000, 0.0000])
    """

    def __init__(self, labels: Sequence[str], max_states: int = MAX_STATES) -> None:
        super().__init__(labels, max_states)

    def __repr__(self) -> str:
        return f"ChunkF1({len(self.labels)} labels)"

    def value(self, right: Numbers, made: Numbers, wanted: int) -> NDArray[np.float64]:
        total = np.asarray(made + wanted)
        return np.where(total > 0, 1.0 - 2.0 * np.asarray(right) / np.maximum(total, 1), 0.0)
