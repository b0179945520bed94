"""Losses that are not sums over positions: each has a direct definition, and a machine for each reference."""

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.automata import LossAutomaton, OpenAutomaton
from structloss.automata.automaton import MAX_STATES, check_num_labels
from structloss.losses.base import Loss
from structloss.losses.cache import CACHE, M
from structloss.losses.labels import Labels, as_lengths, as_padded

String = NDArray[np.int64]


class MachineLoss(Loss):
    """A loss of two strings that compiles to a deterministic machine.

    Machines are kept and used again: see `structloss.cache_info`.
    """

    def __init__(self, max_states: int = MAX_STATES) -> None:
        if not isinstance(max_states, int) or max_states < 1:
            raise ValueError(f"max_states: got {max_states!r}, but wanted a whole number of at least 1")
        self.max_states = max_states
        self._owner = CACHE.owner(self)

    @abstractmethod
    def distance(self, y: String, reference: String) -> float:
        """The loss of one answer, by its own definition."""

    @abstractmethod
    def compile(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        """The machine for one reference and outputs of one length; `absolute`: the loss in final weights alone."""

    def __call__(self, y: Labels, reference: Labels, lengths: Tensor | None = None) -> Tensor:
        answers, own = as_padded(y, "y")
        references, reference_lengths = as_padded(reference, "reference")
        device = answers.device
        rows = answers.flatten(0, -2)
        batch = answers.shape[-2]
        if references.shape[-2] != batch:
            raise ValueError(f"reference: got {references.shape[-2]} references for {batch} answers")
        if lengths is not None:
            own = as_lengths(lengths, batch, answers.shape[-1], device)
        sizes = (rows >= 0).sum(1) if own is None else own.repeat(rows.shape[0] // max(1, batch))
        if reference_lengths is None:
            alike = references.shape == answers.shape[-2:] and len(sizes)
            reference_lengths = sizes[:batch] if alike else (references >= 0).sum(1)
        strings = [row[:size] for row, size in zip(rows.cpu().numpy(), sizes.tolist(), strict=True)]
        wanted = [r[:size] for r, size in zip(references.cpu().numpy(), reference_lengths.tolist(), strict=True)]
        values = [self.distance(string, wanted[i % batch]) for i, string in enumerate(strings)]
        return torch.tensor(values, dtype=torch.get_default_dtype(), device=device).reshape(answers.shape[:-1])

    @abstractmethod
    def compile_open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        """The machine for one reference and strings of any length."""

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
        if string.ndim != 1 or (string < 0).any():
            raise ValueError(f"reference: got {reference!r:.60}, but wanted one sequence of labels of at least 0")
        if length is None:
            return self.open(string, num_labels, absolute=False)
        if length < 0:
            raise ValueError(f"length: got {length}, but wanted at least 0")
        return self.machine(string, num_labels, length, absolute=False)

    def machine(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        """What `compile` gives, from the cache if it is there."""
        check_num_labels(num_labels)
        key = (reference.tobytes(), num_labels, length, absolute)
        return self.kept(key, lambda: self.compile(reference, num_labels, length, absolute))

    def kept(self, key: tuple[Hashable, ...], make: Callable[[], M]) -> M:
        """The machine of this key, from the cache if it is there."""
        return CACHE.get(self._owner, key, make)

    def open(self, reference: String, num_labels: int, absolute: bool) -> OpenAutomaton:
        """What `compile_open` gives, from the cache if it is there."""
        check_num_labels(num_labels)
        key = (reference.tobytes(), num_labels, None, absolute)
        return self.kept(key, lambda: self.compile_open(reference, num_labels, absolute))

    def written(
        self, reference: String, num_labels: int, strings: tuple[tuple[int, ...], ...], length: int, absolute: bool
    ) -> LossAutomaton:
        """The machine of what `length` symbols write, symbol k writing strings[k]: see `OpenAutomaton.levelled`."""
        check_num_labels(num_labels)
        key = (reference.tobytes(), num_labels, length, absolute, strings)
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
