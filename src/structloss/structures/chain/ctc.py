"""CTC: a label or a blank for each frame, and the string that is left without repeats and blanks."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels import ctc
from structloss.kernels.types import Array
from structloss.kernels.workers import map_in_threads, run
from structloss.losses import EditDistance, LocalLoss, Loss, MachineLoss
from structloss.losses.agreement import Agreement
from structloss.losses.references import Labels, String, as_positions
from structloss.structures.base import Certified
from structloss.structures.chain.linear import LinearChain
from structloss.structures.chain.machines import MachineBatch, Source
from structloss.structures.chain.native_engine import raise_for
from structloss.structures.chain.parts import Parts
from structloss.structures.chain.sparse import certified
from structloss.structures.chain.writers import Collapse
from structloss.structures.checks import at_least_float32, check_floating, check_tolerance
from structloss.structures.derivatives import Solve, known

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Beyond this span of scale * loss, linear arithmetic might lose what counts, and the whole product is made instead.
_SPAN = 200.0


class CTC(LinearChain):
    r"""Connectionist temporal classification (Graves et al. 2006): a label or a blank for each frame.

    The outputs are the paths, a label for each frame, score(path) = the sum of log_probs[t, path_t]; a path writes its
    labels, each run of equals once, without the blanks. Losses and references are about what is written. So
    `NegativeLogLikelihood` is the CTC loss, and `Risk(EditDistance(cap=3))` the expected number of label errors itself,
    exactly, without an n-best list.

    With C labels and S states of the loss machine, `log_partition()` of an augmented CTC and `expected()` cost
    T * S * C in the native engine, as the label before is summed out; every other operation on an augmented CTC, and
    the torch engine, walk the whole product, T * S * C * C; so do sums where scale * loss spans more than 200 nats or
    some string is outside the loss, with the same result. `given(reference).log_partition()` costs T * (2n + 1).

    Args:
        log_probs: floating-point (B, T, C). They need not be normalised: log_partition() is what they sum up to.
        lengths: as for `Chain`.
        blank: which of the C labels is the blank.

    Example:
        >>> import torch, structloss as sl
        >>> ctc = sl.CTC(torch.zeros(1, 3, 3).log_softmax(2))
        >>> sl.NegativeLogLikelihood()(ctc, [[1, 2]])  # 5 of 27 paths write 1 2
        tensor(1.6864)
        >>> sl.Risk(sl.EditDistance(cap=2))(ctc, [[1, 2]])
        tensor(1.0370)
    """

    def __init__(self, log_probs: Tensor, lengths: Tensor | Sequence[int] | None = None, blank: int = 0) -> None:
        check_floating(log_probs, "log_probs")
        if log_probs.dim() != 3 or log_probs.shape[2] == 0:
            wanted = "(B, T, C) with C at least 1"
            raise ValueError(f"log_probs: got shape {tuple(log_probs.shape)}, but wanted {wanted}")
        batch, frames, C = log_probs.shape
        if not 0 <= blank < C:
            raise ValueError(f"blank: got {blank!r}, but wanted 0 to {C - 1}")
        self._positions = as_positions(lengths, batch, frames, log_probs.device)
        scores = self._positions.compact(at_least_float32(log_probs))
        self._parts = Parts(scores, None, None, None, self._positions.lengths, None, 1, writer=Collapse(C, blank))

    @property
    def _blank(self) -> int:
        assert isinstance(self._parts.writer, Collapse)
        return self._parts.writer.blank

    def _references(self, reference: Labels) -> list[String]:
        strings = super()._references(reference)
        for b, string in enumerate(strings):
            blank = string == self._blank
            if string.ndim == 2 and not (blank | (string < 0)).all(1).any():  # of a set, what is written
                string = np.where(blank, -1, string)
                strings[b] = np.take_along_axis(string, np.argsort(string < 0, axis=1, kind="stable"), 1)
            elif blank.any():
                raise ValueError(f"reference: reference[{b}] has the blank, {self._blank}; wanted labels without it")
        return strings

    def _compile(self, batch: MachineBatch) -> None:
        """Not now: sums go another way than over the whole product."""

    def _log_partition(self) -> Tensor:
        machine = self._parts.machine
        source = machine.batch.source if machine is not None and self._native else None
        solve = None if machine is None or source is None else self._solve(source, machine.scale)
        return super()._log_partition() if solve is None else known(solve, [self._parts.unary])

    def certified(self, loss: Loss, reference: Any, tolerance: float) -> Certified:
        """E[loss of what is written] to within a tolerance, and the bound that was reached, (B,) each.

        The loss is an edit distance. Probability too small to matter is sent to a neighbouring state, and what that can
        cost is added up: the error of the value, and of each component of its gradient in the scores, is at most
        `error_bound`. That is at most the tolerance, and what the scores' own precision rounds the value by; but for a
        model so unsure that more than 1,000 states a frame, or 50,000 in all, matter. Then so many are kept, a warning
        says so, and the bound is what was reached. With a window the bound is one-sided: the expected edit distance
        itself, without the window, is at most value + error_bound.

        Cost: T * C, and the states that matter, times the labels that each of them follows.

        Args:
            loss: `EditDistance`, best with a window or a cap.
            reference: as for `expected`.
            tolerance: above 0. In a batch, of each example.

        Example:
            >>> import torch, structloss as sl
            >>> ctc = sl.CTC((9 * torch.eye(3)[[1, 0, 2, 2]])[None])
            >>> found = ctc.certified(sl.EditDistance(window=3), [[1, 2, 1]], tolerance=1e-3)
            >>> found.value, bool(found.error_bound <= 1e-3)
            (tensor([1.0002]), True)
        """
        tolerance = check_tolerance(tolerance)
        if tolerance == 0.0:
            raise ValueError("tolerance: got 0, but wanted a number above 0; expected() has the risk exactly")
        if type(loss) is not EditDistance:
            raise NotImplementedError(f"tolerance: got {loss!r}, but only an EditDistance takes one")
        if not self._native:
            raise NotImplementedError("tolerance: the torch engine has the risk exactly; only the native one takes one")
        if np.min(loss.substitution) < 0:
            raise NotImplementedError("tolerance: got substitution costs below 0, but wanted costs of at least 0")
        p = self._parts
        if p.machine is not None or p.pinned is not None or p.unary is None:
            raise NotImplementedError("tolerance: this CTC is augmented or restricted, but only a plain one takes one")
        return certified(p.unary, p.lengths.tolist(), self._blank, loss, self._references(reference), tolerance)

    def expected(self, loss: Loss, reference: Any, tolerance: float = 0.0) -> Tensor:
        """E[loss of what is written], exactly. (B,). Cost T * S * C; with a tolerance, the value of `certified`."""
        if tolerance:
            return self.certified(loss, reference, tolerance).value
        solve = None
        if self._parts.machine is None and self._native and isinstance(loss, MachineLoss | LocalLoss):
            solve = self._solve(Source(loss, self._references(reference)), None)
        return super().expected(loss, reference) if solve is None else known(solve, [self._parts.unary])

    def _solve(self, source: Source, scale: float | None) -> Solve | None:
        """log of the sum over paths of exp(score + scale * loss), or without a scale E[loss]; without the product.

        Paths that write what is known are aligned with it; else only the states in which loss machines end matter. None
        if some string is outside the loss, or scale * loss spans more than 200 nats: then the whole product is needed.
        """
        loss, references = source
        lengths, C = self.lengths.tolist(), self.num_labels
        if isinstance(loss, Agreement) and all(r.ndim == 1 and (r >= 0).all() for r in references):
            steps = 4 * C + 12 * (1 + max(map(len, references), default=0))
            return self._solved(ctc.alignments, steps, *_in_a_row(references, np.zeros(0, np.int64)), self._blank)

        def states(b: int) -> tuple[Ints, Floats]:
            """Where each label leads (S, C), as far as strings of the frames reach, and the loss of ending, (S,)."""
            machine = loss.open(references[b], C, absolute=True)
            following, final = machine.explored(lengths[b])
            # Nobody goes on from the states that only the last frame reaches: it does not matter where they lead.
            return np.maximum(following[:, machine.class_of], 0), final

        machines = map_in_threads(states, range(len(lengths)), torch.get_num_threads())
        if any(not np.isfinite(x).all() or abs(scale or 0.0) * np.ptp(x) > _SPAN for _, x in machines):
            return None
        if scale is None:
            shift = np.array([x.min() for _, x in machines])
            worth = [x - low for (_, x), low in zip(machines, shift, strict=True)]
        else:
            shift = np.array([(scale * x).max() for _, x in machines])
            worth = [np.exp(scale * x - top) for (_, x), top in zip(machines, shift, strict=True)]
        following, begin = _in_a_row([x for x, _ in machines], np.zeros((0, C), np.int64))
        worths = np.concatenate([*worth, np.zeros(0)])
        arrays = (following, begin, worths, shift.astype(np.float64), scale is not None, self._blank)
        return self._solved(ctc.endings, 10 * C * max(map(len, worth), default=0), *arrays)

    def _solved(self, kernel: Callable[..., None], steps: int, *arrays: Any) -> Solve:
        """The Solve of a kernel that takes so many steps for a frame."""
        lengths, threads = self.lengths.numpy(), torch.get_num_threads()

        def solve(potentials: Sequence[Array | None], wanted: Sequence[bool]) -> tuple[Array, Sequence[Array]]:
            (scores,) = potentials
            assert scores is not None
            batch, frames, _ = scores.shape
            value, status = np.zeros(batch), np.zeros(batch, np.int64)
            gradient = np.zeros(scores.shape if wanted[0] else (batch, 0, 0))
            run(kernel, threads, batch, batch * frames * steps, scores, lengths, *arrays, value, gradient, status)
            raise_for(status)
            return value, [gradient]

        return solve


def _in_a_row(parts: Sequence[Array], nothing: Array) -> tuple[Array, Ints]:
    """The arrays of a batch one after the other, and where each begins, (B + 1,)."""
    return np.concatenate([*parts, nothing]), np.cumsum([0, *map(len, parts)]).astype(np.int64)
