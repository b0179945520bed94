"""Losses that are not sums over positions: each has a direct definition, and a machine for each reference."""

import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.automata import LossAutomaton
from structloss.losses.base import Loss
from structloss.losses.labels import Labels, as_lengths, as_padded

String = NDArray[np.int64]

MAX_STATES = 1_000_000


class MachineLoss(Loss):
    """A loss of two strings that compiles to a deterministic machine.

    Machines are kept and used again, those asked for last, up to `cache_bytes` of them.
    """

    cache_bytes = 256 * 2**20

    def __init__(self, max_states: int = MAX_STATES) -> None:
        if max_states < 1:
            raise ValueError(f"max_states: got {max_states}, but wanted at least 1")
        self.max_states = max_states
        self._cache: OrderedDict[tuple[bytes, int, int, bool], LossAutomaton] = OrderedDict()
        self._cached = 0
        self._lock = threading.Lock()

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
        rows = answers.reshape(-1, answers.shape[-1]) if answers.numel() else answers.flatten(0, -2)
        batch = answers.shape[-2]
        if references.shape[-2] != batch:
            raise ValueError(f"reference: got {references.shape[-2]} references for {batch} answers")
        if lengths is not None:
            own = as_lengths(lengths, batch, answers.shape[-1], device)
        sizes = (rows >= 0).sum(1) if own is None else own.repeat(rows.shape[0] // max(1, batch))
        if reference_lengths is None:
            reference_lengths = sizes[:batch] if references.shape == answers.shape[-2:] else (references >= 0).sum(1)
        strings = [row[:size] for row, size in zip(rows.cpu().numpy(), sizes.tolist(), strict=True)]
        wanted = [r[:size] for r, size in zip(references.cpu().numpy(), reference_lengths.tolist(), strict=True)]
        values = [self.distance(string, wanted[i % batch]) for i, string in enumerate(strings)]
        return torch.tensor(values, dtype=torch.get_default_dtype(), device=device).reshape(answers.shape[:-1])

    def automaton(
        self, reference: Sequence[int] | String | Tensor, num_labels: int, length: int | None = None
    ) -> LossAutomaton:
        """The machine that gives every string of `length` labels its loss against the reference.

        Args:
            reference: labels; one that is not among the num_labels matches nothing.
            num_labels: K, how many labels the strings are made of.
            length: the length of the strings; by default that of the reference.
        """
        string = np.ascontiguousarray(reference, np.int64)
        if string.ndim != 1 or (string < 0).any():
            raise ValueError(f"reference: got {reference!r:.60}, but wanted one sequence of labels of at least 0")
        if num_labels < 1:
            raise ValueError(f"num_labels: got {num_labels}, but wanted at least 1")
        length = len(string) if length is None else length
        if length < 0:
            raise ValueError(f"length: got {length}, but wanted at least 0")
        return self.machine(string, num_labels, length, absolute=False)

    def machine(self, reference: String, num_labels: int, length: int, absolute: bool) -> LossAutomaton:
        """What `compile` gives, from the cache if it is there."""
        key = (reference.tobytes(), num_labels, length, absolute)
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        machine = self.compile(reference, num_labels, length, absolute)
        with self._lock:
            if key not in self._cache:
                self._cache[key] = machine
                self._cached += machine.num_bytes
            while self._cached > self.cache_bytes and len(self._cache) > 1:
                self._cached -= self._cache.popitem(last=False)[1].num_bytes
        return machine

    def __getstate__(self) -> dict[str, object]:
        """Locks and cached machines stay behind."""
        return {k: v for k, v in vars(self).items() if k not in ("_cache", "_cached", "_lock")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._cache, self._cached, self._lock = OrderedDict(), 0, threading.Lock()
