"""Losses that are not sums over positions: each has a direct definition, and a machine for each reference."""

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.automata import LossAutomaton, OpenAutomaton
from structloss.automata.automaton import MAX_STATES, check_num_labels
from structloss.automata.pairs import ScaledAutomaton, SumAutomaton, weighted_sum
from structloss.losses.base import Loss, Terms, shown
from structloss.losses.cache import CACHE, M
from structloss.losses.local import LocalLoss
from structloss.losses.references import UNKNOWN, Labels, String, as_padded, as_positions, as_strings, is_sets


class Neighbours(NamedTuple):
    """A part of a loss that neighbouring labels decide, whatever the reference is, and the loss that is left."""

    start: NDArray[np.float64]  # (K,), what the first label costs
    pairs: NDArray[np.float64]  # (K, K), what a label costs after another
    rest: "MachineLoss"


class MachineLoss(Loss):
    """A loss of two strings that compiles to a deterministic machine.

    Write `distance`, its own definition, and `compile_open`, its machine; the two are tested against each other. A
    reference is a string of labels, of which -100 agrees with any, or sets of labels: see `references.String`.
    Machines are kept and used again: see `structloss.cache_info`.
    """

    reads_strings = True

    def __init__(self, max_states: int = MAX_STATES) -> None:
        if not isinstance(max_states, int) or max_states < 1:
            raise ValueError(f"max_states: got {max_states!r}, but wanted a whole number of at least 1")
        self.max_states = max_states
        self._owner = CACHE.owner(self)

    @abstractmethod
    def distance(self, y: String, reference: String) -> float:
        """The loss of one answer, by its own definition."""

    @abstractmethod
    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        """The machine for one reference and strings of any length; `absolute`: the loss in final weights alone."""

    def compile(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        """The machine for one reference and strings of one length, which is often much smaller."""
        machine = self.compile_open(reference, num_labels, absolute)
        return machine.levelled([[label] for label in range(num_labels)], length)

    def neighbours(self, references: Sequence[String], lengths: Sequence[int], num_labels: int) -> Neighbours | None:
        """What a chain of order 2 may score by itself, for strings of these lengths; None where that is nothing."""
        return None

    def _sum(self, terms: Terms) -> "MachineSum":
        return MachineSum(terms)

    def __call__(self, y: Labels, reference: Labels, lengths: Tensor | Sequence[int] | None = None) -> Tensor:
        answers, own = as_padded(y, "y")
        batch, width = answers.shape[-2:]
        many = answers.reshape(math.prod(answers.shape[:-2]), batch, width)
        if own is not None and bool((many < 0).sum() > (width - own).sum()):
            as_strings(y, batch, "y")  # a list has no padding: this names the label that is none
        positions = None if lengths is None else as_positions(lengths, batch, width, answers.device)
        if positions is not None:
            many = torch.where(positions.within, positions.compact_outputs(many), -1)
        elif own is None and isinstance(reference, Tensor | np.ndarray) and reference.shape[:2] == (batch, width):
            # What answers skip, and where the reference has no label either, is in neither.
            there = torch.as_tensor(reference).to(many.device)
            there = there.any(2) if is_sets(reference) else there >= 0
            answered = (many >= 0).any(0)
            skipped = ~answered & (answered.flip(1).cumsum(1).flip(1) > 0)
            positions = as_positions(there | ~skipped, batch, width, many.device)
        wanted = as_strings(reference, batch, positions=positions)
        rows = many.cpu().numpy()
        values = [[self.distance(row[row >= 0], r) for row, r in zip(one, wanted, strict=True)] for one in rows]
        found = torch.tensor(values, dtype=torch.get_default_dtype(), device=answers.device)
        return found.reshape(answers.shape[:-1])

    @overload
    def automaton(
        self, reference: Sequence[int] | String | Tensor, num_labels: int, length: None = None
    ) -> OpenAutomaton: ...

    @overload
    def automaton(self, reference: Sequence[int] | String | Tensor, num_labels: int, length: int) -> LossAutomaton: ...

    def automaton(
        self, reference: Sequence[int] | String | Tensor, num_labels: int, length: int | None = None
    ) -> LossAutomaton | OpenAutomaton:
        """The machine that gives every string of `length` labels its loss against the reference.

        Args:
            reference: labels; one that is not among the num_labels matches nothing.
            num_labels: K, how many labels the strings are made of.
            length: the length of the strings. Knowing it makes the machine much smaller; None is for strings of any
                length, and the machine then finds its states as they are asked for.
        """
        string = np.ascontiguousarray(reference, np.int64)
        if string.ndim != 1 or ((string < 0) & (string != UNKNOWN)).any():
            raise ValueError(
                f"reference: got {reference!r:.60}, but wanted one sequence of labels of at least 0, or {UNKNOWN}"
            )
        if length is None:
            return self.open(string, num_labels, absolute=False)
        if length < 0:
            raise ValueError(f"length: got {length}, but wanted at least 0")
        return self.machine(string, num_labels, length, absolute=False)

    def machine(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        """What `compile` gives, from the cache if it is there."""
        check_num_labels(num_labels)
        key = (reference.tobytes(), reference.shape, num_labels, length, absolute)
        return self.kept(key, lambda: self.compile(reference, num_labels, length, absolute))

    def kept(self, key: tuple[Hashable, ...], make: Callable[[], M]) -> M:
        """The machine of this key, from the cache if it is there."""
        return CACHE.get(self._owner, key, make)

    def open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        """What `compile_open` gives, from the cache if it is there."""
        check_num_labels(num_labels)
        key = (reference.tobytes(), reference.shape, num_labels, None, absolute)
        return self.kept(key, lambda: self.compile_open(reference, num_labels, absolute))

    def written(
        self, reference: String, num_labels: int, strings: tuple[tuple[int, ...], ...], length: int, absolute: bool
    ) -> LossAutomaton:
        """The machine of what `length` symbols write, symbol k writing strings[k]: see `OpenAutomaton.levelled`."""
        check_num_labels(num_labels)
        key = (reference.tobytes(), reference.shape, num_labels, length, absolute, strings)
        if all(len(string) == 1 for string in strings):  # as many labels as symbols: a known length is worth much
            labels = np.array([string[0] for string in strings])
            return self.kept(key, lambda: self.machine(reference, num_labels, length, absolute).renamed(labels))
        return self.kept(key, lambda: self.compile_open(reference, num_labels, absolute).levelled(strings, length))

    def __getstate__(self) -> dict[str, object]:
        """Kept machines stay behind."""
        return {k: v for k, v in vars(self).items() if k != "_owner"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._owner = CACHE.owner(self)


class MachineSum(MachineLoss):
    r"""A weighted sum of losses, :math:`L(y, r) = \sum_i f_i L_i(y, r)`. Write it with `*` and `+`.

    Its machine runs those of its terms at once: their states are pairs. What is outside one term, costs inf there, is
    outside the sum: inf, whatever the factors are, 0 and negative ones too.

    Example:
        >>> import structloss as sl
        >>> loss = 0.5 * sl.EditDistance() + sl.NGram(2)
        >>> loss([[0, 1, 2]], [[0, 1, 3]])  # 0.5 * 1 - log(1 + 1)
        tensor([-0.1931])
    """

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        self._rests: dict[tuple[bool, ...], MachineSum] = {}
        self._terms: list[tuple[float, MachineLoss | LocalLoss]] = []
        for factor, loss in terms:
            if not isinstance(loss, MachineLoss | LocalLoss):
                raise TypeError(f"loss: got {loss!r}, but wanted a loss that has a machine")
            self._terms.append((factor, loss))

    @property
    def terms(self) -> Terms:
        return [(factor, loss) for factor, loss in self._terms]

    def __repr__(self) -> str:
        return shown(self.terms)

    def following(self, metrics: Mapping[str, float]) -> "MachineSum":
        """The sum of what follows; itself where nothing does, so that its machines stay."""
        return MachineSum([(factor, loss.following(metrics)) for factor, loss in self._terms]) if self.weights else self

    @property
    def weights(self) -> dict[str, float]:
        return {name: weight for _, loss in self._terms for name, weight in loss.weights.items()}

    def neighbours(self, references: Sequence[String], lengths: Sequence[int], num_labels: int) -> Neighbours | None:
        """Each term's, added up; what is left is the sum of what is left of each, the same one each time."""
        found = [
            loss.neighbours(references, lengths, num_labels) if isinstance(loss, MachineLoss) else None
            for _, loss in self._terms
        ]
        apart = [(factor, part) for (factor, _), part in zip(self._terms, found, strict=True) if part is not None]
        if not apart:
            return None
        rest: Terms = [
            (f, loss if part is None else part.rest) for (f, loss), part in zip(self._terms, found, strict=True)
        ]
        which = tuple(part is not None for part in found)
        start, pairs = sum(f * x.start for f, x in apart), sum(f * x.pairs for f, x in apart)
        return Neighbours(np.asarray(start), np.asarray(pairs), self._rests.setdefault(which, MachineSum(rest)))

    def distance(self, y: String, reference: String) -> float:
        values = [loss.distance(y, reference) for _, loss in self._terms]
        if math.inf in values:
            return math.inf
        return sum(factor * value for (factor, _), value in zip(self._terms, values, strict=True))

    # The machines of terms are not kept: that of the sum is, and holds what it needs of them.

    def compile(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        made = [_compiled(loss, reference, num_labels, length, absolute) for _, loss in self._terms]
        machine, factor = made[0], self._terms[0][0]
        if len(made) == 1:
            return machine.times(factor)
        for (further, _), addend in zip(self._terms[1:], made[1:], strict=True):
            machine, factor = weighted_sum(machine, factor, addend, further, self.max_states), 1.0
        return machine

    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        made = [
            (loss.compile_open if isinstance(loss, MachineLoss) else loss.open)(reference, num_labels, absolute)
            for _, loss in self._terms
        ]
        machine, factor = made[0], self._terms[0][0]
        if len(made) == 1:
            return ScaledAutomaton(machine, factor)
        for (further, _), addend in zip(self._terms[1:], made[1:], strict=True):
            machine, factor = SumAutomaton(machine, factor, addend, further, self.max_states), 1.0
        return machine


def _compiled(
    loss: MachineLoss | LocalLoss, reference: String, num_labels: int, length: int, absolute: bool
) -> LossAutomaton:
    """The machine of a term for strings of one length, all outside a local loss whose reference has another."""
    if isinstance(loss, MachineLoss):
        return loss.compile(reference, num_labels, length, absolute)
    if length == len(reference):
        return loss.machine(reference, num_labels, length, absolute)
    return loss.open(reference, num_labels, absolute).levelled([[label] for label in range(num_labels)], length)
