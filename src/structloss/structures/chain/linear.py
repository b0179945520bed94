"""What chains have in common: paths of one state a position, scored by every q states in a row, and what they write."""

import math
from collections.abc import Sequence
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from structloss.automata import LossAutomaton
from structloss.kernels.checks import first_bad_label
from structloss.losses import LocalLoss, Loss, MachineLoss, references
from structloss.losses.agreement import Agreement
from structloss.losses.machine import Neighbours
from structloss.losses.references import Labels, Positions, String, as_aligned, as_strings
from structloss.structures import compiled
from structloss.structures.base import Found, NativeEngine, Strata
from structloss.structures.chain import native_engine, torch_engine
from structloss.structures.chain.machines import Augmentation, MachineBatch, Source, combined, joint
from structloss.structures.chain.parts import Parts
from structloss.structures.chain.writers import writer_of
from structloss.structures.checks import check_over, check_scale, check_shape
from structloss.structures.engine import engine_of, is_native
from structloss.structures.kinds import Parted
from structloss.structures.rows import Floats
from structloss.structures.strata import best_at_each, sums_of

_AGREEMENT = Agreement()
_MOST_VALUES = 1 << 14  # of a loss, that its strata may have


class ChainEngine(NativeEngine[Parts], Protocol):
    """What computes on chains."""

    def marginals(self, p: Parts, /) -> Tensor:
        """The gradient of log Z in the score of each arc, (B, T, H, K); differentiable again where the engine can."""


class LinearChain(Parted):
    """A batch of paths over K states, scored by every q states in a row; T positions, of which some may not count."""

    _kind: ClassVar[int]
    _parts: Parts
    _positions: Positions

    def __init_subclass__(cls, **rest: object) -> None:
        super().__init_subclass__(**rest)
        cls._kind = compiled.register_object(cls)

    def _flat(self) -> tuple[list[Tensor], list[int]]:
        """Its tensors and integers, for a compiled graph; the potentials come first."""
        p = self._parts
        if p.machine is not None:
            raise NotImplementedError("augment: a chain times a loss machine is made within a node of a compiled graph")
        maybe = [*p.potentials, p.lengths, p.pinned, self._positions.index]
        there = [int(x is not None) for x in maybe]
        rest = [sum(there[:4]), *there, p.order, self._positions.width, *([] if p.writer is None else p.writer.code())]
        return [x for x in maybe if x is not None], rest

    @classmethod
    def _of_flat(cls, tensors: list[Tensor], rest: list[int]) -> Self:
        """What `_flat` was made of."""
        given = iter(tensors)
        unary, table, start, end, lengths, pinned, index = (next(given) if there else None for there in rest[1:8])
        assert lengths is not None
        chain = cls.__new__(cls)
        chain._parts = Parts(unary, table, start, end, lengths, pinned, rest[8], writer=writer_of(rest[10:]))
        chain._positions = Positions(lengths, rest[9], index)
        return chain

    def _empty(self, name: str, number: int) -> list[Tensor]:
        """Tensors without content, of the shapes that an operation gives in a compiled graph."""
        p, B = self._parts, self._batch
        if name == "best":
            shape = (number, B, p.num_positions)
            return [p.lengths.new_empty(shape), p.lengths.new_empty(shape[:2], dtype=torch.bool)]
        return [p.any_potential.new_empty(self._arcs if name == "marginals" else (B,))]

    @property
    def _arcs(self) -> tuple[int, ...]:
        """(B, T, K, ..., K)."""
        return self._batch, self._parts.num_positions, *(self.num_labels,) * self._parts.order

    @property
    def _opaque(self) -> bool:
        """Whether an objective of it is one node of the graph that is being compiled."""
        return torch.compiler.is_compiling() and self._native

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

    @property
    def _one_each(self) -> bool:
        """Whether a path writes a label for each of its states, so that a reference is aligned with it."""
        return self._parts.writer is None or self._parts.writer.one_each

    def _sizes(self) -> dict[str, object]:
        p = self._parts
        return {"positions": p.num_positions, "labels": p.num_labels, "order": p.order}

    # --- The template ------------------------------------------------------------------------------------------------

    def _examples(self, index: Tensor) -> Self:
        result = super()._examples(index)
        result._positions = self._positions.examples(index)
        return result

    def _times(self, factor: float) -> Self:
        scaled = super()._times(factor)
        machine = self._parts.machine
        if machine is None:
            return scaled
        if factor == 0.0 and not machine.forbids:
            return self._like(scaled._parts.replace(machine=None))
        return self._like(scaled._parts.replace(machine=machine._replace(scale=factor * machine.scale)))

    @property
    def _native(self) -> bool:
        return is_native(self._parts.lengths.device)

    @property
    def _engine(self) -> ChainEngine:
        name = engine_of(self._parts.lengths.device)
        if name == "triton":
            from structloss.structures.chain import triton_engine

            return triton_engine
        return native_engine if name == "native" else torch_engine

    @property
    def _on_triton(self) -> frozenset[str]:  # type: ignore[override]
        from structloss.structures.chain import triton_engine

        return triton_engine.OPERATIONS if triton_engine.covers(self._parts) else frozenset()

    def _choices(self, y: Tensor, name: str) -> Tensor:
        check_shape(y, (self._batch, self._positions.width), name)
        y = self._positions.compact_outputs(y)
        absent = ((y == -1) | ~self._parts.within).all(2, keepdim=True) & (self.lengths > 0)[:, None]
        checked = torch.where(absent, 0, y).flatten(0, 1)
        references.check_labels(checked, self.lengths.repeat(y.shape[0]), self.num_labels, name, allow_unknown=False)
        return y

    def _outputs(self, choices: Tensor, exists: Tensor) -> Tensor:
        labels = torch.where(self._parts.within & exists[:, :, None], choices, -1)
        return self._positions.spread_outputs(labels)

    def _score(self, choices: Tensor) -> Tensor:
        # Under torch.compile the gather of the torch engine is the faster graph.
        if self._native and not torch.compiler.is_compiling():
            return native_engine.score(self._parts, choices)
        value = torch_engine.score(self._parts, choices.clamp(min=0))
        absent = choices[..., :1] < 0  # a row of -1: there is no output
        return torch.where(absent.any(2) & (self.lengths > 0), -math.inf, value)

    def _best(self, k: int) -> Found:
        if self._opaque:
            return Found(*compiled.call("best", [self], number=k))
        return super()._best(k)

    def _log_partition(self) -> Tensor:
        if self._opaque:
            return compiled.call("log_partition", [self])[0]
        return super()._log_partition()

    def _marginals(self) -> Tensor:
        if self._opaque:
            return compiled.call("marginals", [self])[0]
        return self._positions.spread(self._engine.marginals(self._parts).reshape(self._arcs))

    @property
    def _lengths(self) -> tuple[Tensor, ...]:
        return (self._parts.lengths,)

    def _expectation(self, other: Self) -> Tensor:
        if self._opaque:
            return compiled.call("expectation", [self, other])[0]
        return self._engine.expectation(self._parts, other._parts)

    def _strings(self, y: Tensor) -> list[list[int]]:
        writer, paths = self._parts.writer, super()._strings(y)
        return paths if writer is None else [writer.write(path) for path in paths]

    # --- Losses and references ---------------------------------------------------------------------------------------

    def augment(self, loss: Loss, reference: Labels, scale: float = 1.0) -> Self:
        """The same outputs, y scored by score(y) + scale * loss(what y writes, reference). It is a chain again.

        Args:
            loss: Hamming, or a loss with a machine such as EditDistance, SmithWaterman or NGram. With S machine states
                a position, operations on the result cost S times what they cost on self.
            reference: labels (B, T), a list of label sequences, or sets (B, T, K); -100 is unknown. It is as long as
                the outputs for Hamming, and has a length of its own for losses that compare strings.
            scale: a number; negative to subtract the loss.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Chain(torch.zeros(1, 2, 2)).augment(sl.Hamming(), torch.tensor([[0, 1]])).argmax()
            tensor([[1, 0]])
        """
        check_scale(scale)
        p = self._parts
        if isinstance(loss, LocalLoss) and self._one_each:
            costs = scale * self._costs(loss, reference)
            return self._like(p.replace(unary=costs if p.unary is None else p.unary + costs))
        batch = self._machines(loss, reference)
        if p.order == 2 and p.writer is None and isinstance(loss, MachineLoss) and batch.source is not None:
            apart = loss.neighbours(batch.source.references, self.lengths.tolist(), self.num_labels)
            if apart is not None:
                p = self._scoring_neighbours(apart, scale)
                batch = self._machines_of(apart.rest, batch.source.references)
        self._compile(batch)
        return self._like(p.replace(machine=combined(p.machine, Augmentation(batch, scale))))

    def _scoring_neighbours(self, costs: Neighbours, scale: float) -> Parts:
        """Of order 2, first labels and neighbouring ones scored by scale times what they cost, too."""
        p = self._parts
        assert p.table is not None
        start, pairs = (scale * torch.from_numpy(x).to(p.table) for x in (costs.start, costs.pairs))
        if not p.shared:  # a table of its own scores the first label in the row of history 0
            pairs = pairs.expand(p.num_positions, *pairs.shape).clone()
            pairs[:1] = 0
        return p.replace(table=p.table + pairs, start=start if p.start is None else p.start + start)

    def _compile(self, batch: MachineBatch) -> None:
        """Compile now: what is too large is an error here, and not wherever it is used first."""
        _ = batch.automata

    def _costs(self, loss: LocalLoss, reference: Labels) -> Tensor:
        """What each state costs at each position, (B, T, K)."""
        check_over(loss, "labels", self)
        labels = as_aligned(reference, self._positions, self._num_written)
        costs = loss.costs_of(labels, self.lengths, self._num_written, self.dtype)
        writer = self._parts.writer
        if writer is None:
            return costs
        return costs[:, :, torch.tensor(writer.write(range(self.num_labels)), device=costs.device)]

    def _machines(self, loss: Loss, reference: Labels, absolute: bool = False) -> MachineBatch:
        if not isinstance(loss, MachineLoss | LocalLoss):
            raise TypeError(f"loss: got {loss!r}, but wanted a loss that a chain can carry, such as EditDistance()")
        if torch.compiler.is_compiling():
            raise NotImplementedError(
                "augment: a loss that is a machine is compiled into a graph within an objective, in the native engine"
            )
        aligned = isinstance(loss, LocalLoss) and self._one_each
        strings = (
            references.as_aligned_strings(reference, self._positions, self._num_written)
            if aligned
            else self._references(reference)
        )
        return self._machines_of(loss, strings, absolute)

    def _machines_of(
        self, loss: MachineLoss | LocalLoss, strings: Sequence[String], absolute: bool = False
    ) -> MachineBatch:
        lengths, K, writer = self.lengths.tolist(), self.num_labels, self._parts.writer

        def make(b: int) -> LossAutomaton:
            if writer is None:
                return loss.machine(strings[b], K, lengths[b], absolute)
            return writer.machine(loss, strings[b], lengths[b], absolute)

        return MachineBatch(make, len(lengths), self._parts.num_positions, Source(loss, strings))

    def _references(self, reference: Labels) -> list[String]:
        """The references as strings."""
        return as_strings(reference, self._batch, positions=self._positions if self._one_each else None)

    def given(self, reference: Labels) -> Self:
        """The outputs that agree with the reference wherever it is known (-100: unknown), scored as they were.

        One output where every label is known; with unknown labels or sets of labels, all completions (partial
        supervision). Of a chain whose states write strings, all the paths that write the reference.

        Example:
            >>> import torch, structloss as sl
            >>> chain = sl.Chain(torch.tensor([[[0., 2.], [1., 0.]]]))
            >>> chain.given(torch.tensor([[0, -100]])).argmax()
            tensor([[0, 0]])
            >>> chain.given(torch.tensor([[[True, True], [False, True]]])).argmax()
            tensor([[1, 1]])
        """
        p = self._parts
        if p.writer is not None:
            return self.augment(_AGREEMENT, reference)
        labels = as_aligned(reference, self._positions, self.num_labels)
        if labels.dtype == torch.bool:
            return self._forbidding(~labels)
        if p.pinned is None:
            return self._like(p.given(labels, self._native), self._all_known(labels))
        # What is asked twice must agree twice: a label that was fixed before stays fixed, and clashes forbid.
        clash = (p.pinned >= 0) & (labels >= 0) & (p.pinned != labels) & p.within
        pinned = torch.where(p.pinned >= 0, p.pinned, labels)
        both = self._like(p.replace(pinned=pinned), self._all_known(pinned))
        return both._forbidding(clash[:, :, None].expand(*clash.shape, p.num_labels))

    def _all_known(self, labels: Tensor) -> Tensor | None:
        """The labels, if they say all of an output. It is asked once, so that sums and maxima need not ask a device."""
        if torch.compiler.is_compiling():
            return None
        bad = first_bad_label(labels.cpu().numpy(), self.lengths.cpu().numpy(), self.num_labels, False)
        return labels if bad == (-1, -1) else None

    def _forbidding(self, labels: Tensor) -> Self:
        """Without some labels at some positions, (B, T, K)."""
        penalty = torch.where(labels, -math.inf, 0).to(self.dtype)
        unary = self._parts.unary
        return self._like(self._parts.replace(unary=penalty if unary is None else unary + penalty))

    def _strata(self, loss: Loss, reference: Labels) -> Strata:
        p, search = self._parts, native_engine.argmax if self._native else torch_engine.argmax
        if isinstance(loss, LocalLoss) and p.machine is None and self._one_each:  # all values by one search
            most = max(_MOST_VALUES, p.num_positions + 1)
            losses, machines = sums_of(self._costs(loss, reference), self.lengths, most, "positions")
            found = search(p, machines)
            return Strata(torch.from_numpy(losses[: len(found.exists)]).to(p.any_potential), *found)
        both, theirs = joint(p.machine, Augmentation(self._machines(loss, reference, absolute=True), 1.0), p.no_machine)

        def best(values: Floats) -> Found:
            wanted = np.where(np.abs(theirs.final - values[:, None]) < 1e-8, 0.0, -np.inf)
            return search(p, both._replace(final=both.final + wanted))

        return best_at_each(theirs.final, p.any_potential, best)
