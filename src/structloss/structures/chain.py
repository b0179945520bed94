"""Chain: label sequences, scored by every q labels in a row. The usual CRF is the chain of order 2."""

import math
from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.automata import LossAutomaton
from structloss.kernels.checks import any_unknown
from structloss.losses import Loss, MachineLoss, PositionLoss
from structloss.losses.agreement import Agreement
from structloss.losses.labels import UNKNOWN, Labels, as_lengths, as_padded, check_labels
from structloss.structures import chain_native, chain_torch
from structloss.structures.base import Strata, Structure
from structloss.structures.beam import truncated
from structloss.structures.chain_parts import Parts
from structloss.structures.checks import at_least_float32, check_count, check_floating, check_scale
from structloss.structures.engine import is_native
from structloss.structures.machines import Augmentation, MachineBatch, Source, combined
from structloss.structures.strata import machine_strata, strata_levels
from structloss.structures.writers import Collapse, Emits, Writer

_AGREEMENT = Agreement()


class Chain(Structure):
    r"""A batch of linear chains of order q over K labels.

    The outputs are all label sequences y of an example's length l, and (Cortes 2018, section 2.1)

    .. math:: \text{score}(y) = \sum_{t=1}^{l} \text{potentials}[t, y_{t-q+1}, \ldots, y_t]

    Order 1 is independent labels, order 2 the usual linear-chain CRF. Before the first position history axes take
    index 0. Sums and maxima cost l * K**q.

    Args:
        potentials: floating-point (B, T, K, ..., K) with q label axes, oldest label first. -inf forbids.
        lengths: integers (B,) in any order, 0 to T, or a boolean mask (B, T) that is True on a prefix; by default T.
            What stands beyond a length never matters.
        emits: for each of the K labels, now called states, the labels that it writes: none, one or several. The chain
            is then latent (McAllester 2010, section 5): its outputs are still paths of states, but losses and
            references are about what they write, and `given(reference)` is all the paths that write it.

    Outputs are int64 (B, T), -1 beyond a length when they come from here. bfloat16 and float16 are computed and
    returned in float32.

    Example:
        >>> import torch, structloss as sl
        >>> chain = sl.Chain(torch.tensor([[[0., 2.], [1., 0.]]]))  # order 1: B = 1, T = 2, K = 2
        >>> chain.argmax(), chain.max()
        (tensor([[1, 0]]), tensor([3.]))
        >>> chain.log_partition()
        tensor([3.4402])
        >>> latent = sl.Chain(torch.zeros(1, 3, 4), emits=[[], [0], [1], [0, 1]])
        >>> latent.given([[0, 1]]).log_partition()  # log 6: paths of three states that write 0 1
        tensor([1.7918])
    """

    def __init__(
        self,
        potentials: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        emits: Sequence[Sequence[int]] | None = None,
    ) -> None:
        check_floating(potentials, "potentials")
        order = potentials.dim() - 2
        shape = tuple(potentials.shape)
        if order < 1 or len(set(shape[2:])) != 1 or shape[-1] == 0:
            raise ValueError(
                f"potentials: got shape {shape}, but wanted (B, T, K), (B, T, K, K), ... with K at least 1"
            )
        potentials = at_least_float32(potentials)
        lengths = as_lengths(lengths, shape[0], shape[1], potentials.device)
        if order == 1:
            self._parts = Parts(potentials, None, None, None, lengths, None, 1)
        else:
            table = potentials.reshape(*shape[:2], shape[-1] ** (order - 1), shape[-1])
            self._parts = Parts(None, table, None, None, lengths, None, order)
        if emits is not None:
            self._parts = self._parts.replace(writer=Emits.checked(emits, shape[-1]))

    @classmethod
    def from_emissions(
        cls,
        emissions: Tensor,
        transitions: Tensor | None = None,
        start: Tensor | None = None,
        end: Tensor | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        emits: Sequence[Sequence[int]] | None = None,
    ) -> Self:
        r"""The CRF layer: scores of labels and of transitions, without an array (B, T, K, K).

        .. math:: \text{score}(y) = \text{start}[y_1] + \sum_t \text{emissions}[t, y_t]
                  + \sum_{t \ge q} \text{transitions}[y_{t-q+1}, \ldots, y_t] + \text{end}[y_l]

        Args:
            emissions: (B, T, K).
            transitions: (K, K), from row to column; (K, ..., K) with q axes, oldest label first, makes a chain of order
                q, its transitions counted where all q labels exist; None makes one of order 1.
            start, end: (K,), of the first and of the last label.
            lengths, emits: as for `Chain`.

        Example:
            >>> import torch, structloss as sl
            >>> stay = torch.tensor([[1., 0.], [0., 1.]])
            >>> sl.Chain.from_emissions(torch.tensor([[[0., 0.5], [1., 0.], [1., 0.]]]), stay).argmax()
            tensor([[0, 0, 0]])
        """
        check_floating(emissions, "emissions")
        if emissions.dim() != 3 or emissions.shape[2] == 0:
            raise ValueError(f"emissions: got shape {tuple(emissions.shape)}, but wanted (B, T, K) with K at least 1")
        emissions = at_least_float32(emissions)
        batch, positions, K = emissions.shape

        def alike(x: Tensor | None, name: str) -> Tensor | None:
            if x is None:
                return None
            if x.dtype == emissions.dtype and x.device == emissions.device and x.shape == (K,):
                return x
            check_floating(x, name)
            if x.dim() == 0 or set(x.shape) != {K} or (name != "transitions" and x.dim() != 1):
                wanted = f"({K}, ..., {K})" if name == "transitions" else f"({K},)"
                raise ValueError(
                    f"{name}: got shape {tuple(x.shape)}, but wanted {wanted}, as emissions have {K} labels"
                )
            if x.device != emissions.device:
                raise ValueError(f"{name}: got device {x.device}, but the emissions are on {emissions.device}")
            return x.to(emissions.dtype)

        transitions = alike(transitions, "transitions")
        order = 1 if transitions is None else transitions.dim()
        if transitions is not None and order == 1:
            raise ValueError(f"transitions: got shape {tuple(transitions.shape)}, but wanted ({K}, {K}) or more axes")
        table = None if transitions is None else transitions.reshape(-1, K)
        lengths = as_lengths(lengths, batch, positions, emissions.device)
        parts = Parts(emissions, table, alike(start, "start"), alike(end, "end"), lengths, None, order)
        return cls._of(parts.replace(writer=Emits.checked(emits, K)) if emits is not None else parts)

    @classmethod
    def _of(cls, parts: Parts) -> Self:
        chain = cls.__new__(cls)
        chain._parts = parts
        return chain

    @property
    def order(self) -> int:
        """How many labels in a row a potential sees, q."""
        return self._parts.order

    @property
    def num_labels(self) -> int:
        """How many labels there are, K."""
        return self._parts.num_labels

    @property
    def lengths(self) -> Tensor:
        """How many labels each example's outputs have, (B,)."""
        return self._parts.lengths

    @property
    def _num_written(self) -> int:
        """How many labels references and losses are about."""
        return self.num_labels if self._parts.writer is None else self._parts.writer.num_labels

    def decode(self, y: Tensor | None = None) -> list[list[int]]:
        """What the outputs y (B, T) write, one list of labels each; by default those of `argmax()`.

        Without `emits` these are the outputs themselves, without their padding.

        Example:
            >>> import torch, structloss as sl
            >>> scores = torch.tensor([[[0., 2., 0.], [1., 0., 0.], [0., 0., 3.]]])
            >>> sl.Chain(scores, emits=[[], [7], [8, 9]]).decode()
            [[7, 8, 9]]
        """
        y = self.argmax() if y is None else y
        writer = self._parts.writer
        paths = [[k for k in row if k >= 0] for row in y.tolist()]
        return paths if writer is None else [writer.write(path) for path in paths]

    def __repr__(self) -> str:
        p = self._parts
        return (
            f"Chain(batch={p.lengths.shape[0]}, positions={p.num_positions}, labels={p.num_labels}, order={p.order}, "
            f"{p.any_potential.dtype}, {p.any_potential.device})"
        )

    @property
    def _native(self) -> bool:
        return is_native(self._parts.any_potential.device)

    def _padded(self, labels: Tensor) -> Tensor:
        """-1 beyond a length."""
        return torch.where(self._parts.within, labels, -1)

    def score(self, y: Tensor) -> Tensor:
        """The score (B,) of outputs y (B, T), or (n, B) of n outputs each, y (n, B, T). Cost l an output.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Chain(torch.tensor([[[0., 2.], [1., 0.]]])).score(torch.tensor([[1, 1]]))
            tensor([2.])
        """
        y, _ = as_padded(y, "y", self._parts.any_potential.device)
        wanted = (self._parts.lengths.shape[0], self._parts.num_positions)
        if y.shape[-2:] != wanted or y.dim() > 3:
            raise ValueError(f"y: got shape {tuple(y.shape)}, but wanted {wanted} or (n, {wanted[0]}, {wanted[1]})")
        lengths = self._parts.lengths if y.dim() == 2 else self._parts.lengths.repeat(y.shape[0])
        check_labels(y.flatten(0, -2), lengths, self.num_labels, "y", allow_unknown=False)
        return self._score(y)

    def _score(self, y: Tensor) -> Tensor:
        outputs = y if y.dim() == 3 else y[None]
        # Under torch.compile the gather of the torch engine is the faster graph.
        native = self._native and not torch.compiler.is_compiling()
        value = chain_native.score(self._parts, outputs) if native else chain_torch.score(self._parts, outputs)
        return value if y.dim() == 3 else value[0]

    def argmax(self) -> Tensor:
        """The best output (B, T), -1 beyond a length and in examples that have no output. Cost l * K**q.

        Of several best outputs, the lexicographically smallest.
        """
        with torch.no_grad():
            labels, exists = self._best()
            return torch.where(exists[:, None], self._padded(labels), -1)

    def _best(self) -> tuple[Tensor, Tensor]:
        return chain_native.argmax(self._parts) if self._native else chain_torch.argmax(self._parts)

    def max(self) -> Tensor:
        r"""The score (B,) of the best output. Its gradient is :math:`\phi(y)`, the count of potentials `argmax()` uses.

        Example:
            >>> import torch, structloss as sl
            >>> potentials = torch.tensor([[[0., 2.], [1., 0.]]], requires_grad=True)
            >>> sl.Chain(potentials).max().sum().backward(); potentials.grad
            tensor([[[0., 1.],
                     [1., 0.]]])
        """
        only = self._only_output()
        if only is not None:
            return only
        with torch.no_grad():
            labels, _ = self._best()
        return self._score(labels)  # -inf, with zero gradient, where there is no output: then every score is

    def log_partition(self) -> Tensor:
        r""":math:`\log \sum_y \exp(\text{score}(y))`, (B,). Time l * K**q, memory l * K**(q-1).

        Example:
            >>> import torch, structloss as sl
            >>> sl.Chain(torch.zeros(2, 3, 4, 4), lengths=[3, 1]).log_partition()  # log 4**3, log 4
            tensor([4.1589, 1.3863])
        """
        only = self._only_output()
        if only is not None:
            return only
        return chain_native.log_partition(self._parts) if self._native else chain_torch.log_partition(self._parts)

    def _only_output(self) -> Tensor | None:
        """The score of the one output, where every label of every example is given."""
        pinned = self._parts.pinned
        if pinned is None or torch.compiler.is_compiling():
            return None
        if any_unknown(pinned.cpu().numpy(), self._parts.lengths.cpu().numpy()):
            return None
        return self._of(self._parts.replace(pinned=None))._score(pinned)

    def marginals(self) -> Tensor:
        r"""The probability of every q labels in a row, (B, T, K, ..., K): the gradient of `log_partition()`.

        `s.augment(L, r).marginals()` is Cortes 2018's :math:`Q_w(z, s)`. Zero beyond a length; before the first
        position history axes have index 0. Sum over the history axes for the marginals of single labels. Cost l * K**q.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Chain(torch.tensor([[[0., 0.], [1., 0.]]])).marginals()
            tensor([[[0.5000, 0.5000],
                     [0.7311, 0.2689]]])
        """
        p = self._parts
        if self._native:
            arcs = chain_native.marginals(p)
        else:
            arcs = chain_torch.marginals(p, create_graph=torch.is_grad_enabled())
        return arcs.reshape(*arcs.shape[:2], *(p.num_labels,) * p.order)

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n outputs each, (n, B, T), -1 beyond a length, with probability exp(score) / Z. Cost l * K**q + n * l * K.

        Example:
            >>> import torch, structloss as sl
            >>> chain = sl.Chain(torch.tensor([[[0., 9.], [9., 0.]]]))
            >>> chain.sample(2, torch.Generator().manual_seed(0))
            tensor([[[1, 0]],
            <BLANKLINE>
                    [[1, 0]]])
        """
        p = self._parts
        check_count(n, "n")
        shape = (n, p.lengths.shape[0], p.num_positions)
        uniforms = torch.rand(shape, generator=generator, device=p.any_potential.device, dtype=torch.float64)
        with torch.no_grad():
            labels, exists = chain_native.sample(p, uniforms) if self._native else chain_torch.sample(p, uniforms)
        if not exists.all():
            raise ValueError(f"sample: example {int((~exists).int().argmax())} has no output: every score is -inf")
        return self._padded(labels)

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The scores (B, k) and outputs (B, k, T) of the k best, best first, ties in lexicographic order; exact.

        Where there are fewer than k outputs: score -inf, labels -1. Time k * l * K**q, memory k * l * K**(q-1).

        Example:
            >>> import torch, structloss as sl
            >>> sl.Chain(torch.tensor([[[0., 2.], [1., 0.]]])).topk(2)
            (tensor([[3., 2.]]), tensor([[[1, 0],
                     [1, 1]]]))
        """
        p = self._parts
        check_count(k, "k")
        with torch.no_grad():
            if not p.num_positions:
                first = torch.arange(k, device=p.lengths.device) == 0
                labels, exists = p.lengths.new_zeros(p.lengths.shape[0], k, 0), first.expand(p.lengths.shape[0], k)
            else:
                labels = chain_native.topk(p, k) if self._native else chain_torch.topk(p, k)
                # An example of length 0 has one output, the empty one.
                empty = (p.lengths == 0)[:, None] & (torch.arange(k, device=p.lengths.device) == 0)
                exists = (labels[:, :, 0] >= 0) | empty
        scores = self._score(torch.where(exists[:, :, None], labels.clamp(min=0), 0).transpose(0, 1)).T
        return torch.where(exists, scores, -math.inf), self._padded_many(labels, exists)

    def _padded_many(self, labels: Tensor, exists: Tensor) -> Tensor:
        return torch.where(self._parts.within[:, None] & exists[:, :, None], labels, -1)

    def augment(self, loss: Loss, reference: Labels, scale: float = 1.0, beam: int | None = None) -> Self:
        """The same outputs, y scored by score(y) + scale * loss(y, reference). It is a Chain again.

        Args:
            loss: Hamming, or a loss with a machine (EditDistance, SmithWaterman, NGram). With S machine states a
                position, operations on the result cost S times what they cost on self.
            reference: labels (B, T), or a list of label sequences, each of its own length (of the outputs' for Hamming,
                where -100 is unknown).
            scale: a number; negative to subtract the loss.
            beam: keep at most so many machine states a position, those that matter most to the sum: see `error_bound`
                for what that can have cost. For losses and lengths whose exact machine is too large.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Chain(torch.zeros(1, 2, 2)).augment(sl.Hamming(), torch.tensor([[0, 1]])).argmax()
            tensor([[1, 0]])
        """
        check_scale(scale)
        p = self._parts
        if beam is not None:
            return self._truncated(loss, reference, scale, beam)
        if isinstance(loss, PositionLoss) and not isinstance(p.writer, Collapse):
            costs = scale * self._position_costs(loss, reference)
            return self._of(p.replace(unary=costs if p.unary is None else p.unary + costs))
        added = Augmentation(self._machines(loss, reference), scale)
        self._compile(added.batch)
        return self._of(p.replace(machine=combined(p.machine, added)))

    def _compile(self, batch: MachineBatch) -> None:
        """Compile now: what is too large is an error here, and not wherever it is used first."""
        _ = batch.automata

    def _truncated(self, loss: Loss, reference: Labels, scale: float, beam: int) -> Self:
        check_count(beam, "beam")
        p = self._parts
        if p.writer is not None:
            raise NotImplementedError("beam: a chain whose states emit has no bound of its endings yet; use a cap")
        if p.machine is not None:
            raise NotImplementedError("beam: this chain carries a loss already; add the losses up and augment once")
        strings = self._strings(loss, reference)
        assert isinstance(loss, MachineLoss | PositionLoss)
        automata = [loss.open(string, self.num_labels, absolute=False) for string in strings]
        machines, bounds = truncated(p, automata, scale, beam)
        machine = Augmentation(MachineBatch.of(machines, p.num_positions), scale)
        above = torch.from_numpy(np.minimum(1.0, bounds * (1 + 1e-6)))  # so that float32 does not round it below
        return self._of(p.replace(machine=machine, error_bound=above.to(p.any_potential)))

    @property
    def error_bound(self) -> Tensor:
        r"""An upper bound of the relative error of Z, (B,); where it is 0, everything is exact.

        For a chain augmented with a `beam`, :math:`(Z - Z') / Z`, where Z' is the sum over the outputs that kept to the
        beam. The same bound holds for the error of every marginal. `structloss.structures.beam` has the proof. 1, which
        says nothing, for what is derived from such a chain.

        Example:
            >>> import torch, structloss as sl
            >>> chain, reference = sl.Chain(torch.zeros(1, 6, 3)), [[0, 1, 2, 0, 1, 2]]
            >>> chain.augment(sl.EditDistance(), reference, beam=100).error_bound
            tensor([0.])
            >>> chain.augment(sl.EditDistance(), reference, beam=20).error_bound
            tensor([0.5005])
        """
        bound = self._parts.error_bound
        return self._parts.any_potential.new_zeros(self._parts.lengths.shape[0]) if bound is None else bound

    def _machines(self, loss: Loss, reference: Labels, absolute: bool = False) -> MachineBatch:
        p = self._parts
        strings = self._strings(loss, reference)
        assert isinstance(loss, MachineLoss | PositionLoss)
        lengths, K, writer = p.lengths.tolist(), self.num_labels, p.writer

        def make(b: int) -> LossAutomaton:
            if writer is None:
                return loss.machine(strings[b], K, lengths[b], absolute)
            return writer.machine(loss, strings[b], lengths[b], absolute)

        return MachineBatch(make, len(lengths), p.num_positions, Source(loss, strings))

    def _strings(self, loss: Loss, reference: Labels) -> list[NDArray[np.int64]]:
        """The references, without their padding, for a loss that is a machine."""
        if not isinstance(loss, MachineLoss | PositionLoss):
            raise TypeError(f"loss: got {loss!r}, but wanted a loss that a Chain can carry, such as EditDistance()")
        if torch.compiler.is_compiling():
            raise NotImplementedError("augment: losses that are machines do not go into a compiled graph yet")
        p = self._parts
        labels, own = as_padded(reference, "reference")
        lengths = p.lengths.tolist()
        if own is None and p.writer is not None and not _one_each(p.writer):
            # What is written has a length of its own: a row's negative labels at the end are padding.
            ends = torch.where(labels >= 0, torch.arange(1, labels.shape[1] + 1, device=labels.device), 0)
            own = ends.amax(1) if ends.shape[1] else ends.sum(1)
        if labels.shape[0] != len(lengths) or (own is None and labels.shape[1] != p.num_positions):
            wanted = (len(lengths), p.num_positions)
            raise ValueError(f"reference: got shape {tuple(labels.shape)}, but wanted {wanted}, or a list of sequences")
        sizes = lengths if own is None else own.tolist()
        strings = [row[:size] for row, size in zip(labels.cpu().numpy(), sizes, strict=True)]
        for b, string in enumerate(strings):
            partial = isinstance(loss, PositionLoss | Agreement)
            wrong = (string < 0) & (string != UNKNOWN) if partial else string < 0
            if wrong.any():
                allowed = f"of at least 0, or {UNKNOWN} for unknown" if partial else "of at least 0"
                who = "given" if isinstance(loss, Agreement) else repr(loss)
                label = string[wrong.argmax()]
                raise ValueError(f"reference: reference[{b}] has the label {label}, but {who} wants labels {allowed}")
        return strings

    def _position_costs(self, loss: Loss, reference: Labels) -> Tensor:
        if not isinstance(loss, PositionLoss):
            raise TypeError(f"loss: got {loss!r}, but wanted a loss that a Chain can carry, such as Hamming()")
        p = self._parts
        if p.writer is not None and not _one_each(p.writer):
            raise ValueError(
                f"loss: got {loss!r}, which compares strings of one length, but the paths of this chain write strings "
                "of several; wanted a loss such as EditDistance()"
            )
        costs = loss.position_costs(self._reference(reference), p.lengths, self._num_written, p.any_potential.dtype)
        if p.writer is None:
            return costs
        return costs[:, :, torch.tensor(p.writer.write(range(self.num_labels)), device=costs.device)]

    def _reference(self, reference: Labels) -> Tensor:
        """References as long as the outputs, (B, T)."""
        p = self._parts
        labels, lengths = as_padded(reference, "reference", p.any_potential.device)
        if lengths is not None:
            if lengths.shape != p.lengths.shape:
                raise ValueError(f"reference: got {lengths.shape[0]} sequences, but the batch has {p.lengths.shape[0]}")
            if (lengths != p.lengths).any():
                b = int((lengths != p.lengths).int().argmax())
                raise ValueError(
                    f"reference: reference[{b}] has {int(lengths[b])} labels, but the outputs have {int(p.lengths[b])}"
                )
            labels = torch.nn.functional.pad(labels, (0, p.num_positions - labels.shape[1]), value=-1)
        if labels.shape != (p.lengths.shape[0], p.num_positions):
            wanted = (p.lengths.shape[0], p.num_positions)
            raise ValueError(f"reference: got shape {tuple(labels.shape)}, but wanted {wanted}")
        check_labels(labels, p.lengths, self._num_written, "reference", allow_unknown=True)
        return labels

    def given(self, reference: Labels) -> Self:
        """The outputs that agree with the reference wherever it is known (-100: unknown), scored as they were.

        One output where every label is known; with unknown labels, all completions (partial supervision). Of a chain
        whose states emit, all the paths that write the reference, which may then have a length of its own.

        Example:
            >>> import torch, structloss as sl
            >>> chain = sl.Chain(torch.tensor([[[0., 2.], [1., 0.]]]))
            >>> chain.given(torch.tensor([[0, -100]])).argmax()
            tensor([[0, 0]])
        """
        p = self._parts
        if p.writer is not None:
            return self.augment(_AGREEMENT, reference)
        labels = self._reference(reference)
        if p.pinned is None:
            return self._of(p.replace(pinned=labels))
        # What is asked twice must agree twice: a label that was fixed before stays fixed, and clashes forbid.
        clash = (p.pinned >= 0) & (labels >= 0) & (p.pinned != labels)
        pinned = torch.where(p.pinned >= 0, p.pinned, labels)
        penalty = torch.where(clash & p.within, -math.inf, 0)[:, :, None].to(p.any_potential.dtype)
        penalty = penalty.expand(*clash.shape, p.num_labels)
        return self._of(p.replace(pinned=pinned, unary=penalty if p.unary is None else p.unary + penalty))

    def uniform(self) -> Self:
        """The same outputs, every one with score 0 (what -inf forbids stays forbidden)."""

        def zero(x: Tensor | None) -> Tensor | None:
            return None if x is None else torch.where(x.detach().isneginf(), -math.inf, 0).to(x.dtype)

        p = self._parts
        machine = p.machine._replace(scale=0.0) if p.machine is not None and p.machine.forbids else None
        parts = p.replace(
            unary=zero(p.unary), table=zero(p.table), start=zero(p.start), end=zero(p.end), machine=machine
        )
        return self._of(parts)

    def expectation(self, other: Self) -> Tensor:
        """E[other.score(y)], y drawn from self. (B,); 0 where self has no output. Cost 3 * l * K**q.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Chain(torch.zeros(1, 1, 2)).expectation(sl.Chain(torch.tensor([[[1., 3.]]])))
            tensor([2.])
        """
        p, f = self._parts, other._parts
        same = p.order == f.order and p.num_labels == f.num_labels and p.num_positions == f.num_positions
        if not same or p.lengths.shape != f.lengths.shape:
            raise ValueError(f"other: got {other!r}, but wanted the batch, positions, labels and order of {self!r}")
        if p.lengths is not f.lengths and not torch.compiler.is_compiling() and (p.lengths != f.lengths).any():
            raise ValueError("other: got other lengths, but two chains are compared over the same outputs")
        if p.any_potential.dtype != f.any_potential.dtype:
            raise TypeError(f"other: got {f.any_potential.dtype}, but wanted {p.any_potential.dtype}")
        return chain_native.expectation(p, f) if self._native else chain_torch.expectation(p, f)

    def strata(self, loss: Loss, reference: Labels, lowest: bool = False) -> Strata:
        """The best output at each value of loss(y, reference), or the one of lowest score.

        With V values, cost V times that of `argmax()`.

        Example:
            >>> import torch, structloss as sl
            >>> chain = sl.Chain(torch.tensor([[[0., 2.], [1., 0.]]]))
            >>> losses, outputs, _ = chain.strata(sl.Hamming(), torch.tensor([[0, 0]]))
            >>> losses, outputs
            (tensor([[0., 1., 2.]]), tensor([[[0, 0],
                     [1, 0],
                     [1, 1]]]))
        """
        p = self._negated() if lowest else self._parts
        with torch.no_grad():
            if not isinstance(loss, PositionLoss) or p.machine is not None or isinstance(p.writer, Collapse):
                batch = self._machines(loss, reference, absolute=True)
                return machine_strata(p, batch, chain_native.argmax_under if self._native else chain_torch.argmax)
            levels = strata_levels(self._position_costs(loss, reference), p.lengths)
            engine = chain_native if self._native else chain_torch
            best, labels = engine.strata(p, levels.next_stratum, levels.cost_class, levels.sizes)
            within = torch.arange(levels.values.shape[1], device=best.device) < levels.sizes[:, :1]
        return Strata(levels.values.to(best.dtype), labels, within & (best > -math.inf))

    def _negated(self) -> Parts:
        """Every score negated; what -inf forbids stays forbidden."""

        def negative(x: Tensor | None) -> Tensor | None:
            return None if x is None else torch.where(x.detach().isneginf(), -math.inf, -x.detach())

        p = self._parts
        machine = None if p.machine is None else p.machine._replace(scale=-p.machine.scale)
        return p.replace(
            unary=negative(p.unary),
            table=negative(p.table),
            start=negative(p.start),
            end=negative(p.end),
            machine=machine,
        )


def _one_each(writer: Writer) -> bool:
    """Whether paths write as many labels as they have states."""
    return isinstance(writer, Emits) and writer.one_each
