"""CTC: a label or a blank for each frame, and the string that is left without repeats and blanks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from structloss.automata import OpenAutomaton
from structloss.kernels import ctc, sparse_ctc
from structloss.kernels.prices import Prices
from structloss.kernels.types import Array
from structloss.kernels.words import WordMachine
from structloss.kernels.workers import map_in_threads, run
from structloss.losses import LocalLoss, Loss, MachineLoss
from structloss.losses.agreement import Agreement
from structloss.losses.references import Labels, String, as_positions
from structloss.structures import sparse
from structloss.structures.base import Found
from structloss.structures.certified import Certified
from structloss.structures.chain import ctc_maxima, ctc_strings, native_engine
from structloss.structures.chain.linear import LinearChain
from structloss.structures.chain.machines import MachineBatch, Source
from structloss.structures.chain.native_engine import raise_for
from structloss.structures.chain.parts import Parts
from structloss.structures.chain.writers import Collapse
from structloss.structures.checks import at_least_float32, check_count, check_floating, check_tolerance
from structloss.structures.derivatives import Solve, known
from structloss.structures.engine import engine_of
from structloss.structures.rows import Floats, Ints

# Beyond this span of scale * loss, linear arithmetic might lose what counts, and the whole product is made instead.
_SPAN = 200.0


class CTC(LinearChain):
    r"""Connectionist temporal classification (Graves et al. 2006): a label or a blank for each frame.

    The outputs are the paths, a label for each frame, score(path) = the sum of log_probs[t, path_t]; a path writes its
    labels, each run of equals once, without the blanks. Losses and references are about what is written. So
    `NegativeLogLikelihood` is the CTC loss, and `Risk(EditDistance(cap=3))` the expected number of label errors itself,
    exactly, without an n-best list.

    With C labels and S states of the loss machine, `log_partition()` of an augmented CTC and `expected()` cost
    T * S * C in the native engine, as the label before is summed out. `max()`, `argmax()` and `topk(k)` search: they
    leave out what is proved not to be among the best, and find the states of the machine as they come to them, at most
    T * S * C. Every other operation on an augmented CTC (draws, and `strata` for `SlackHinge`), and the torch engine,
    walk the whole product, T * S * C * C; so do sums where scale * loss spans more than 200 nats or some string is
    outside the loss, and maxima with two losses, with the same result. `given(reference).log_partition()` and its
    `max()` cost T * (2n + 1).

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
                raise ValueError(
                    f"reference: reference[{b}] has the blank, {self._blank}; wanted labels without it; padding is -1 "
                    "or -100 at the end of a row, or take lists: structloss.without_padding(targets, target_lengths)"
                )
        return strings

    def augment(self, loss: Loss, reference: Labels, scale: float = 1.0, tolerance: float = 0.0) -> Self:
        """As of every chain: see `LinearChain.augment`. It takes no tolerance other than 0."""
        if check_tolerance(tolerance):
            raise NotImplementedError(
                f"tolerance: got {tolerance} in augment, but only an expectation takes one: a path of little "
                "probability may have most of the weight under exp(scale * loss)"
            )
        return super().augment(loss, reference, scale)

    def _compile(self, batch: MachineBatch) -> None:
        """Not now: sums go another way than over the whole product."""

    def _by_triton(self, source: Source, scale: float | None) -> Tensor | None:
        """What `_solve` computes, by Triton kernels; None where the whole product is needed."""
        from structloss.structures.chain import triton_ctc

        (loss, references), scores, C = source, self._parts.unary, self.num_labels
        assert scores is not None
        if not triton_ctc.covers(scores, references):
            return None
        if scale is not None and isinstance(loss, Agreement) and _all_known(references):
            return triton_ctc.likelihood(scores, self.lengths, references, self._blank)
        machines = [loss.open(r, C, absolute=True) for r in references]
        if scale is None:
            return triton_ctc.expected(scores, self.lengths, machines, self._blank)
        return triton_ctc.log_partition(scores, self.lengths, machines, scale, self._blank)

    def _log_partition(self) -> Tensor:
        machine, engine = self._parts.machine, engine_of(self.device)
        if engine == "triton" and machine is not None and machine.batch.source is not None:
            found = self._by_triton(machine.batch.source, machine.scale)
            return super()._log_partition() if found is None else found
        source = machine.batch.source if machine is not None and engine == "native" else None
        solve = None if machine is None or source is None else self._solve(source, machine.scale)
        return super()._log_partition() if solve is None else known(solve, [self._parts.unary])

    def _machines_apart(self) -> tuple[Sequence[OpenAutomaton], float] | None:
        """Each example's machine, which reads what paths write, and the scale; None where there are only products."""
        machine = self._parts.machine
        if machine is None or machine.batch.source is None or not self._native or torch.compiler.is_compiling():
            return None
        return machine.batch.open_machines(self.num_labels), machine.scale

    def _best(self, k: int) -> Found:
        apart = self._machines_apart()
        if apart is None and k == 1 and self._parts.machine is None and self._native and not self._opaque:
            return ctc_maxima.best_labels(self._parts.arrays.unary, self.lengths.numpy())
        if apart is None:
            return super()._best(k)
        machine, (scores, *_), lengths = self._parts.machine, self._parts.arrays, self.lengths.numpy()
        assert machine is not None
        assert machine.batch.source is not None
        loss, references = machine.batch.source
        if k > 1:
            return ctc_maxima.several(scores, lengths, *apart, self._blank, k)
        if isinstance(loss, Agreement) and _all_known(references):
            return ctc_maxima.best_aligned(scores, lengths, references, self._blank)
        return ctc_maxima.best(scores, lengths, *apart, self._blank)

    def _score(self, choices: Tensor) -> Tensor:
        apart = self._machines_apart()
        if apart is None:
            return super()._score(choices)
        add = partial(ctc_maxima.add_losses, *apart, self._blank, self.lengths.numpy())
        return native_engine.score(self._parts, choices, add)

    def topk_strings(self, k: int, limit: int = 50_000) -> tuple[Tensor, list[list[list[int]]]]:
        """The log-probabilities (k, B) of the k most probable different strings of each example, and these; exact.

        A string is worth all paths that write it. Best first, of equals the lexicographically smaller string first;
        -inf where there are fewer. The log-probabilities are differentiable. Best-first search over beginnings,
        each with a bound on what any string is worth that begins so: the list is proved to be right, or there is an
        error. Cost: T * C for each beginning that is continued, and T * C * C for the bounds, at most 256 labels being
        told apart there.

        Args:
            k: how many strings.
            limit: of the beginnings that are continued for an example; more are a ValueError.

        Example:
            >>> import torch, structloss as sl
            >>> frames = torch.tensor([[[0.6, 0.4], [0.6, 0.4]]]).log()
            >>> scores, strings = sl.CTC(frames).topk_strings(2)
            >>> strings, scores.exp()[:, 0]  # the best path is two blanks, with 0.36
            ([[[1], []]], tensor([0.6400, 0.3600]))
        """
        check_count(k, "k")
        check_count(limit, "limit")
        if self._parts.machine is not None:
            raise NotImplementedError("topk_strings: a CTC with a loss has none; ask the CTC before augment or given")
        rows = self._parts.unary.detach().cpu().numpy()  # type: ignore[union-attr]
        found = [
            ctc_strings.best_strings(row[:length], self._blank, k, limit)
            for row, length in zip(rows, self.lengths.tolist(), strict=True)
        ]
        total = self.log_partition()
        scores = []
        for i in range(k):
            exists = torch.tensor([i < len(strings) for strings in found], device=self.device)
            own = self.given([strings[i] if i < len(strings) else () for strings in found]).log_partition()
            scores.append(torch.where(exists, own - torch.where(exists, total, 0), -torch.inf))
        return torch.stack(scores), [[list(string) for string in strings] for strings in found]

    def certified(self, loss: Loss, reference: Any, tolerance: float) -> Certified:
        """E[loss of what is written] to within a tolerance, and the bound that was reached, (B,) each.

        The loss is an edit distance, of labels or words. Probability too small to matter is sent to a neighbouring
        state, and what that can cost is added up: the error of the value, and of each component of its gradient in the
        scores, is at most `error_bound`. That is at most the tolerance, and what the scores' own precision rounds the
        value by; but for a model so unsure that more than 1,000 states a frame, or 50,000 in all, matter. Then so many
        are kept, a warning says so, and the bound is what was reached. With a window the bound is one-sided: the
        expected edit distance itself, without the window, is at most value + error_bound.

        Cost: T * C, and the states that matter, times the labels that each of them follows.

        Args:
            loss: `EditDistance` or `WordErrors`, best with a window or a cap.
            reference: as for `expected`.
            tolerance: above 0. In a batch, of each example.

        Example:
            >>> import torch, structloss as sl
            >>> ctc = sl.CTC((9 * torch.eye(3)[[1, 0, 2, 2]])[None])
            >>> found = ctc.certified(sl.EditDistance(window=3), [[1, 2, 1]], tolerance=1e-3)
            >>> found.value, bool(found.error_bound <= 1e-3)
            (tensor([1.0002]), True)
        """
        p = self._parts
        plain = p.machine is None and p.pinned is None and p.unary is not None
        loss = sparse.check(loss, tolerance, self._native, plain, "CTC")
        assert p.unary is not None
        lengths, blank = p.lengths.tolist(), self._blank

        def walk(
            scores: Array, b: int, machine: WordMachine, prices: Prices, most: float, limit: int, gradient: Array
        ) -> tuple[float, float, int, int]:
            return sparse_ctc.expected(scores[b], lengths[b], blank, machine, prices, most, limit, gradient)

        references = self._references(reference)
        return sparse.certified(
            p.unary, range(len(lengths)), lengths, walk, loss, references, self.num_labels, tolerance, self.dtype
        )

    def expected(self, loss: Loss, reference: Any, tolerance: float = 0.0) -> Tensor:
        """E[loss of what is written], exactly. (B,). Cost T * S * C; with a tolerance, the value of `certified`."""
        if tolerance:
            return self.certified(loss, reference, tolerance).value
        solve = None
        alone, engine = self._parts.machine is None, engine_of(self.device)
        if alone and engine == "triton" and isinstance(loss, MachineLoss | LocalLoss):
            found = self._by_triton(Source(loss, self._references(reference)), None)
            return super().expected(loss, reference) if found is None else found
        if alone and engine == "native" and isinstance(loss, MachineLoss | LocalLoss):
            solve = self._solve(Source(loss, self._references(reference)), None)
        return super().expected(loss, reference) if solve is None else known(solve, [self._parts.unary])

    def _solve(self, source: Source, scale: float | None) -> Solve | None:
        """log of the sum over paths of exp(score + scale * loss), or without a scale E[loss]; without the product.

        Paths that write what is known are aligned with it; else only the states in which loss machines end matter. None
        if some string is outside the loss, or scale * loss spans more than 200 nats: then the whole product is needed.
        """
        loss, references = source
        lengths, C = self.lengths.tolist(), self.num_labels
        if isinstance(loss, Agreement) and _all_known(references):
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


def _all_known(references: Sequence[String]) -> bool:
    """Whether they are labels, none of which is unknown or one of a set."""
    return all(r.ndim == 1 and (r >= 0).all() for r in references)


def _in_a_row(parts: Sequence[Array], nothing: Array) -> tuple[Array, Ints]:
    """The arrays of a batch one after the other, and where each begins, (B + 1,)."""
    return np.concatenate([*parts, nothing]), np.cumsum([0, *map(len, parts)]).astype(np.int64)
