"""CTC: a label or a blank for each frame, and the string that is left without repeats and blanks."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.kernels import ctc
from structloss.kernels.workers import map_in_threads, run
from structloss.losses import LocalLoss, Loss, MachineLoss
from structloss.losses.agreement import Agreement
from structloss.losses.references import Labels, String, as_positions
from structloss.structures.chain.linear import LinearChain
from structloss.structures.chain.machines import MachineBatch
from structloss.structures.chain.native_engine import as_tensor, raise_for
from structloss.structures.chain.parts import Parts
from structloss.structures.chain.writers import Collapse
from structloss.structures.checks import at_least_float32, check_floating
from structloss.structures.derivatives import apply, guard

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
        if machine is None or machine.batch.source is None or not self._fast:
            return super()._log_partition()
        loss, references = machine.batch.source
        scores = self._parts.unary
        if isinstance(loss, Agreement) and all(r.ndim == 1 and (r >= 0).all() for r in references):
            return apply(_Alignments, scores, self._parts.lengths, references, self._blank)
        machines = self._endings(loss, references)
        worths, tops = [], np.zeros(len(references))
        for b, (_, final) in enumerate(machines):
            if not np.isfinite(final).all():
                return super()._log_partition()
            span = machine.scale * final
            if span.max() - span.min() > _SPAN:
                return super()._log_partition()
            tops[b] = span.max()
            worths.append(np.exp(span - tops[b]))
        sums = apply(_Endings, scores, self._parts.lengths, [m for m, _ in machines], worths, self._blank, True)
        return sums + torch.from_numpy(tops).to(sums)

    @property
    def _fast(self) -> bool:
        """Whether sums are made without the whole product."""
        return self._native and not torch.compiler.is_compiling() and self._parts.pinned is None

    def expected(self, loss: Loss, reference: Any) -> Tensor:
        """E[loss of what is written], exactly. (B,). Cost T * S * C."""
        if self._parts.machine is not None or not self._fast or not isinstance(loss, MachineLoss | LocalLoss):
            return super().expected(loss, reference)
        machines = self._endings(loss, self._references(reference))
        if any(np.isinf(final).any() for _, final in machines):
            return super().expected(loss, reference)
        worths = [final for _, final in machines]
        parts = self._parts
        return apply(_Endings, parts.unary, parts.lengths, [m for m, _ in machines], worths, self._blank, False)

    def _endings(self, loss: MachineLoss | LocalLoss, references: Sequence[Ints]) -> list[tuple[Ints, Floats]]:
        """Of each example where a label leads (S, C), as far as strings of its frames reach, and each state's loss."""
        lengths, C = self._parts.lengths.tolist(), self.num_labels

        def one(b: int) -> tuple[Ints, Floats]:
            machine = loss.open(references[b], C, absolute=True)
            machine.explore(lengths[b])
            following = machine.next_state[: machine.num_states, machine.class_of]
            # Nobody goes on from the states that only the last frame reaches: it does not matter where they lead.
            return np.maximum(following, 0), machine.final[: machine.num_states]

        return map_in_threads(one, range(len(lengths)), torch.get_num_threads())


class _Alignments(torch.autograd.Function):
    """log of the sum over the paths that write the references."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, lengths: Tensor, references: Sequence[Ints], blank: int) -> Tensor:
        array = scores.detach().contiguous().numpy()
        value, status = np.zeros(len(references)), np.zeros(len(references), np.int64)
        gradient = torch.zeros_like(scores if ctx.needs_input_grad[0] else scores[:, :0, :0])
        begin = np.concatenate([[0], np.cumsum([len(r) for r in references])]).astype(np.int64)
        labels = np.concatenate([*references, np.zeros(0, np.int64)])
        steps = array.shape[0] * array.shape[1] * (4 * array.shape[2] + 12 * (1 + int(np.diff(begin).max(initial=0))))
        run(
            ctc.alignments, torch.get_num_threads(), len(references), steps, array, lengths.numpy(), labels, begin,
            blank, ctx.needs_input_grad[0], value, gradient.numpy(), status,
        )  # fmt: skip
        raise_for(status)
        ctx.save_for_backward(scores)
        ctx.gradient = gradient
        return as_tensor(value, scores.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        g = torch.where(ctx.gradient.flatten(1).any(1), g, 0)  # no path, no gradient, even of an infinite value
        return *guard([ctx.gradient * g[:, None, None]], ctx.saved_tensors), None, None, None


class _Endings(torch.autograd.Function):
    """E[worth of the machine's last state], or the log of the sum over paths of their worth."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, lengths: Tensor, following: Sequence[Ints], worths: Sequence[Floats], blank: int,
        log: bool,
    ) -> Tensor:  # fmt: skip
        array, sizes = scores.detach().contiguous().numpy(), lengths.tolist()
        batch, T, C = array.shape
        wanted = ctx.needs_input_grad[0]
        value, status = np.zeros(batch), np.zeros(batch, np.int64)
        gradient = np.zeros((batch, T, C) if wanted else (batch, 0, 0))

        def one(b: int) -> None:
            p = np.empty((T, C))
            frames, status[b] = ctc.normalise(array[b], sizes[b], p, np.empty(T))
            if status[b] > 0 or frames == -math.inf:
                value[b] = -math.inf if log else 0.0
                return
            least = 0.0 if log else worths[b].min()
            mean = ctc.endings(sizes[b], blank, following[b], worths[b] - least, wanted, p, gradient[b])
            if log:
                value[b] = frames + math.log(mean) if mean > 0 else -math.inf
                gradient[b] /= mean if mean > 0 else 1.0
            else:
                value[b] = least + mean
                if wanted:
                    gradient[b, : sizes[b]] -= mean * p[: sizes[b]]

        map_in_threads(one, range(batch), torch.get_num_threads())
        raise_for(status)
        ctx.save_for_backward(scores)
        ctx.gradient = torch.from_numpy(gradient).to(scores.dtype)
        return as_tensor(value, scores.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return *guard([ctx.gradient * g[:, None, None]], ctx.saved_tensors), None, None, None, None, None
