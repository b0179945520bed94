"""FactorGraph: discrete variables, and factors over them that any network may score."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from structloss.losses import LocalLoss, Loss, MachineLoss
from structloss.losses.references import UNKNOWN, Labels, Positions, as_aligned, as_aligned_strings, as_strings
from structloss.structures.base import Found, Strata, Structure
from structloss.structures.checks import check_count, check_over, check_scale, check_shape
from structloss.structures.factor_graph import relaxation
from structloss.structures.factor_graph.inference import MOST, Auto, Exact, Inference
from structloss.structures.factor_graph.parts import Parts
from structloss.structures.factor_graph.readers import Reader, Reading, attached
from structloss.structures.factor_graph.relaxation import Certificate, Solution
from structloss.structures.factor_graph.search import ranked
from structloss.structures.rows import Floats, Ints
from structloss.structures.strata import best_at_each
from structloss.structures.tensors import drawn


class FactorGraph(Structure):
    r"""Variables with a few labels each, and factors that score some of them together: see `FactorGraphBuilder`.

    .. math:: \mathrm{score}(y) = \sum_v \theta_v(y_v) + \sum_f \theta_f(y_f)

    An output y (B, N) has a label for each variable, in the order of their creation; -1 beyond the variables of an
    example that has fewer. What it writes is the string of these labels. A reference is the same, a list of label
    sequences, or sets of labels (B, N, K); -100 is an unknown label. `marginals()` is the probability of each label of
    each variable, (B, N, K).

    How maxima and sums are found was said to `build()`. Under "lp", `argmax()` is the best output that was met on the
    way, which is the best of all, up to the gap, where `certificate()` is integral; where none was met that hard
    factors and -inf allow, each variable has its most probable label, and the score is -inf. Under "ilp" it is one of
    the best.

    Example:
        >>> import torch, structloss as sl
        >>> g = sl.FactorGraphBuilder()
        >>> y = g.variables(torch.tensor([[[0.0, 1.0], [0.5, 0.0]]]))
        >>> g.factor((0, 1), torch.eye(2)[None])
        >>> graph = g.build()
        >>> graph.argmax(), graph.max(), graph.augment(sl.EditDistance(), [[1, 1]]).argmax()
        (tensor([[1, 1]]), tensor([2.]), tensor([[0, 0]]))
    """

    _made = ("_solution",)
    _added: tuple[tuple[Reading, float], ...] = ()  # what losses of strings add, each with its scale

    def __init__(self, base: Parts, hard: tuple[Reading, ...], inference: Inference) -> None:
        self._base, self._parts, self._hard, self._inference = base, base, hard, inference
        self._positions = Positions(self.num_variables.to(self.device), base.topology.width)
        self._extents = torch.from_numpy(base.topology.extents).to(self.device)  # (B, N): of labels; 1 beyond

    def _with(self, **changed: Any) -> Self:
        graph = super()._with(**changed)
        graph._parts = attached(graph._base, graph._added)
        return graph

    def _sizes(self) -> dict[str, object]:
        t = self._base.topology
        factors, method = int(np.diff(t.graph.factors).max(initial=0)), repr(self._inference.name)
        return {"variables": t.width, "factors": factors, "hard": len(self._hard), "method": method}

    @property
    def num_variables(self) -> Tensor:
        """How many variables each example has, (B,)."""
        return torch.from_numpy(self._base.topology.visible)

    @property
    def num_labels(self) -> int:
        """K, the most labels of any variable."""
        return self._base.topology.num_labels

    @property
    def inference(self) -> str:
        """What finds maxima here, and why.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> y = g.variables(torch.zeros(1, 3, 2))
            >>> g.build().inference
            'exact: elimination visits 6 cells an example, tree-width 0'
        """
        return self._inference.described(self._parts.topology)

    # --- The template ------------------------------------------------------------------------------------------------

    @property
    def _batch(self) -> int:
        return self._base.batch

    @property
    def _potentials(self) -> tuple[Tensor, ...]:
        return (self._base.scores,)

    def _with_potentials(self, potentials: tuple[Tensor, ...]) -> Self:
        return self._with(_base=self._base.with_scores(*potentials))

    def _times(self, factor: float) -> Self:
        added = tuple((x, factor * scale) for x, scale in self._added if factor != 0 or x.forbids)
        return super()._times(factor)._with(_added=added)

    def _examples(self, index: Tensor) -> Self:
        at = index.cpu().numpy()
        hard = tuple(replace(x, of=x.of[at]) for x in self._hard)
        added = tuple((replace(x, of=x.of[at]), scale) for x, scale in self._added)
        only = None if self._only is None else self._only[index]
        return type(self)(self._base.examples(at), hard, self._inference)._with(_added=added, _only=only)

    def _choices(self, y: Tensor, name: str) -> Tensor:
        check_shape(y, tuple(self._extents.shape), name)
        absent = (y == -1).all(-1, keepdim=True)  # there is no output
        wrong = self._positions.within & ~absent & ((y < 0) | (y >= self._extents))
        if wrong.any():
            n, b, v = wrong.nonzero()[0].tolist()
            raise ValueError(
                f"{name}: example {b} has label {int(y[n, b, v])} for variable {v}, but its labels are 0 to "
                f"{int(self._extents[b, v]) - 1}"
            )
        return y

    def _whole(self, y: Tensor) -> Ints:
        """The labels (n, V) of all variables, hidden ones too, of outputs (n, B, N)."""
        t, labels = self._parts.topology, y.cpu().numpy().clip(0)
        whole, there = np.zeros((len(labels), len(t.sizes)), np.int64), t.variable_at >= 0
        whole[:, t.variable_at[there]] = labels[:, there]
        first = t.graph.variables[:-1] + t.visible
        for reading in (*self._hard, *(x for x, _ in self._added)):
            reading.fill(labels, first, whole)
            first = first + reading.num_hidden
        return whole

    def _score(self, choices: Tensor) -> Tensor:
        absent = (choices == -1).all(-1) & (self._positions.lengths > 0)
        return torch.where(absent, -math.inf, self._parts.score(self._whole(choices))).to(self.dtype)

    def _best(self, k: int) -> Found:
        p = self._parts
        if k == 1:
            return self._solution.found(p)
        return ranked(p, self._inference.certain("topk", p.topology).solve, k)

    def _log_partition(self) -> Tensor:
        return self._inference.log_partition(self._parts)

    def _draw(self, n: int, generator: torch.Generator | None) -> Found:
        return self._inference.draw(self._parts, n, generator)

    def _marginals(self) -> Tensor:
        return self._base.by_label(super()._marginals())

    def _check_same(self, other: Self) -> None:
        same = all(np.array_equal(a, b) for a, b in zip(self._base.graph, other._base.graph, strict=True))
        if not same or [x.key for x in self._hard] != [x.key for x in other._hard]:
            raise ValueError("other: got another graph, but wanted the variables and factors of this one")

    def _expectation(self, other: Self) -> Tensor:
        both = {x.key: x for x, _ in (*self._added, *other._added)}
        return self._inference.expectation(*(graph._parts_with(list(both.values())) for graph in (self, other)))

    def _parts_with(self, readings: Sequence[Reading]) -> Parts:
        """With the hidden variables of these readings, which add nothing unless they are its own."""
        scales = {x.key: scale for x, scale in self._added}
        if [x.key for x in readings] == list(scales):
            return self._parts
        return attached(self._base, [(x, scales.get(x.key)) for x in readings])

    # --- Maxima ------------------------------------------------------------------------------------------------------

    @cached_property
    def _solution(self) -> Solution:
        p = self._parts
        if self._only is not None:
            exists = self._score(self._only[None])[0] > -math.inf
            return relaxation.whole(p, self._whole(self._only[None])[0], exists.cpu().numpy())
        found = self._inference.solve(p)
        self._check_hard(found.certificate.dual > -math.inf)
        if self._hard and found.lost is not None and found.lost.any():
            raise ValueError(
                f"example {int(found.lost.int().argmax())}: the relaxation met no point that the hard factors allow; "
                'if there is one, method="exact" or "ilp" finds it'
            )
        return found

    def _check_hard(self, exists: Tensor) -> None:
        """Raise where hard factors contradict each other; what scores or a reference forbid is -inf."""
        if not self._hard or exists.all():
            return
        zeros = torch.zeros((*self._extents.shape, self.num_labels), dtype=self.dtype, device=self.device)
        alone = attached(self._base.bare(zeros), [(x, 0.0) for x in self._hard])
        possible = Auto().solve(alone).certificate.dual > -math.inf
        if not possible.all():
            names = ", ".join(sorted({x.name for x in self._hard}))
            raise ValueError(f"example {int((~possible).int().argmax())}: the hard factors ({names}) leave no output")

    def max(self) -> Tensor:
        """The score (B,) of the best output. Its gradient counts the scores that `argmax()` uses.

        Under "lp" the relaxation's value, found from above: at least the score of every output. Its gradient is the
        relaxed solution, phi(x, r) of McAllester 2010, eq. 12.
        """
        return super().max() if self._only is not None else self._solution.value(self._parts)

    def certificate(self) -> Certificate:
        """How good `max()` and `argmax()` are: value, bound, gap, and whether the solution is an output.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> y = g.variables(torch.tensor([[[0.0, 1.0], [0.5, 0.0]]]))
            >>> g.factor((0, 1), torch.eye(2)[None])
            >>> g.build(method="lp").certificate().integral
            tensor([True])
        """
        return self._solution.certificate

    def relaxed(self) -> Tensor:
        """The probability (B, N, K) of each label in the solution, r of McAllester 2010, eq. 12; 0 beyond.

        It is 0 and 1 where the solution is an output.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> y = g.variables(torch.tensor([[[0.0, 1.0], [0.5, 0.0]]]))
            >>> g.build(method="lp").relaxed()
            tensor([[[0., 1.],
                     [1., 0.]]])
        """
        return self._parts.by_label(torch.from_numpy(self._solution.mu).to(self._parts.scores))

    def round(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n outputs (n, B, N) by random rounding: each variable's label is drawn by itself from `relaxed()`.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> y = g.variables(torch.zeros(1, 3, 2))
            >>> g.factors([[0, 1], [1, 2], [0, 2]], (1 - torch.eye(2)).expand(1, 3, 2, 2))  # halves
            >>> g.build(method="lp").round(100).shape
            torch.Size([100, 1, 3])
        """
        check_count(n, "n")
        probability = self.relaxed()
        uniforms = torch.rand((n, *probability.shape[:2]), generator=generator, device=probability.device)
        return torch.where(self._positions.within, drawn(probability.log(), uniforms), -1)

    def relaxed_loss(self, loss: Loss, reference: Labels) -> Tensor:
        r"""The expected loss (B,) of `round()`; for a sum over variables L(y, r) of McAllester 2010, section 4.

        .. math:: L(y, r) = \sum_v \sum_k r_v(k) \, \mathrm{cost}_v(k)

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> y = g.variables(torch.tensor([[[0.0, 1.0], [0.5, 0.0]]]))
            >>> g.build(method="lp").relaxed_loss(sl.Hamming(), [[1, 1]])
            tensor([1.])
        """
        alone = type(self)(self._base.bare(self.relaxed().log()), (), Exact())
        return alone.expected(loss, reference)

    def log_partition(self) -> Tensor:
        """log Z, (B,). Time and memory as `inference` says. Under "bp" its approximation."""
        value = super().log_partition()
        if self._only is None:
            self._check_hard(value.detach().cpu() > -math.inf)
        return value

    # --- Losses and references ---------------------------------------------------------------------------------------

    def _reference(self, reference: Labels) -> Tensor:
        """A reference (B, N), -100 where it is unknown, or sets (B, N, K), checked."""
        labels = as_aligned(reference, self._positions, self.num_labels)
        if labels.dtype == torch.bool:
            wrong = ~(labels & (torch.arange(self.num_labels, device=self.device) < self._extents[..., None])).any(2)
        else:
            wrong = labels >= self._extents
        wrong = wrong & self._positions.within
        if wrong.any():
            b, v = wrong.nonzero()[0].tolist()
            got = "a set without a label of its own" if labels.dtype == torch.bool else int(labels[b, v])
            raise ValueError(
                f"reference: reference[{b}, {v}] is {got}, but the labels of variable {v} are 0 to "
                f"{int(self._extents[b, v]) - 1}, or {UNKNOWN} for unknown"
            )
        return labels

    def _reading(self, loss: Loss, reference: Labels, absolute: bool) -> Reading:
        """The machines of a loss, which read the variables in their order."""
        if isinstance(loss, MachineLoss):  # references have lengths of their own
            strings = as_strings(reference, self._batch, positions=self._positions)
        elif isinstance(loss, LocalLoss):
            self._reference(reference)
            strings = as_aligned_strings(reference, self._positions, self.num_labels)
        else:
            raise TypeError(f"loss: got {loss!r}, but wanted a loss that a factor graph can carry, such as Hamming()")
        t = self._base.topology
        numbers: dict[tuple[object, ...], int] = {}
        readers: list[Reader] = []
        of = []
        for string, sizes, n in zip(strings, t.extents, t.visible.tolist(), strict=True):
            of.append(numbers.setdefault((string.shape, string.tobytes(), sizes[:n].tobytes()), len(readers)))
            if of[-1] == len(readers):
                readers.append(Reader.of(loss.machine(string, self.num_labels, n, absolute), sizes[:n]))
        reading = Reading(repr(loss), tuple(readers), np.array(of, np.int64))
        if reading.num_cells > MOST:
            raise ValueError(
                f"loss: the machines of {loss!r} need tables of {reading.num_cells:.2g} cells in a factor graph, but "
                f"the most is {MOST:.2g}; wanted fewer variables, or a loss with fewer states, such as one with a cap"
            )
        return reading

    def augment(self, loss: Loss, reference: Labels, scale: float = 1.0) -> Self:
        """The same outputs, y scored by score(y) + scale * loss(y, reference). It is a factor graph again.

        Args:
            loss: Hamming, in the scores of the variables, at no cost. Or a loss with a machine, such as EditDistance,
                of the string of labels in the order of the variables: the states of its machine become hidden
                variables, and S states after a variable make the graph wider by a variable of S labels.
            reference: labels (B, N), a list of label sequences, or sets (B, N, K); -100 is unknown. It is as long as
                the outputs for Hamming, and has a length of its own for losses that compare strings.
            scale: a number; negative to subtract the loss.

        Under "lp" a relaxed solution r is scored with L(y, r), the expected loss of its random rounding, where the
        loss is a sum over variables.
        """
        check_scale(scale)
        if isinstance(loss, LocalLoss):
            check_over(loss, "labels", self)
            costs = loss.costs_of(self._reference(reference), self._positions.lengths, self.num_labels, self.dtype)
            scores = self._base.scores + scale * self._base.flat(costs)
            return self._with(_base=self._base.with_scores(scores))
        reading = self._reading(loss, reference, absolute=False)
        scales = {x.key: (x, own) for x, own in self._added}
        before = scales.get(reading.key, (reading, 0.0))[1]
        scales[reading.key] = reading, before + scale
        return self._with(_added=tuple(scales.values()))

    def given(self, reference: Labels) -> Self:
        """The outputs that agree with the reference wherever it is known (-100: unknown), scored as they were.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> y = g.variables(torch.tensor([[[0.0, 1.0], [0.5, 0.0]]]))
            >>> g.build().given([[-100, 1]]).argmax()
            tensor([[1, 1]])
        """
        wanted, within = self._reference(reference), self._positions.within
        only = None
        if wanted.dtype == torch.bool:
            struck = ~wanted
        else:
            labels = torch.arange(self.num_labels, device=wanted.device)
            struck = (wanted != UNKNOWN)[..., None] & (labels != wanted[..., None])
            if (~within | (wanted != UNKNOWN)).all():
                only = torch.where(within, wanted, -1)
        only = only if self._only is None else self._only  # of two that differ neither is left
        scores = self._base.scores.masked_fill(self._base.flat(struck), -math.inf)
        return self._with(_base=self._base.with_scores(scores), _only=only)

    def _strata(self, loss: Loss, reference: Labels) -> Strata:
        """The machine that tells losses apart makes the graph wider, and is searched once for each value."""
        solve = self._inference.certain("strata", self._parts.topology).solve
        reading = self._reading(loss, reference, absolute=True)

        def best(values: Floats) -> Found:
            value_of = dict(zip(reading.of.tolist(), values.tolist(), strict=True))
            readers = tuple(reader.coming_to(value_of[i]) for i, reader in enumerate(reading.readers))
            p = attached(self._base, [*self._added, (replace(reading, readers=readers), 1.0)])
            return solve(p).found(p)

        return best_at_each([reading.readers[i].gains[-1] for i in reading.of], self._base.scores, best)
