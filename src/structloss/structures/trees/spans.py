"""What is common to structures whose outputs are binary trees of labelled spans."""

import math
from abc import abstractmethod
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from structloss.losses import Loss
from structloss.losses.references import as_padded
from structloss.structures.base import Found, Strata
from structloss.structures.checks import check_over, check_shape
from structloss.structures.trees.charts import Chart
from structloss.structures.trees.forest import Forest
from structloss.structures.trees.strata import strata
from structloss.structures.trees.template import Trees


class SpanTrees(Trees):
    """Binary trees over T words, whose spans have one of K labels.

    A span from word i to word j, both included and counted from 0, with label k is one number, (i * T + j) * K + k: a
    *bracket*. An output is the 2n - 1 brackets of a tree (B, 2T - 1), each before those inside it, from left to right.
    """

    _only_native = frozenset(("argmax", "topk", "sample"))

    _scores: Tensor  # (B, T, T, K), of each bracket
    lengths: Tensor  # (B,)

    @property
    @abstractmethod
    def _chart(self) -> Chart:
        """The trees as forests."""

    @property
    def _rules(self) -> Tensor:
        """What the arcs of the chart score besides their brackets, flat."""
        return self._scores.new_zeros(1)

    @property
    def num_labels(self) -> int:
        """How many labels a span may have, K."""
        return self._scores.shape[3]

    @property
    def _lengths(self) -> tuple[Tensor, ...]:
        return (self.lengths,)

    def _examples(self, index: Tensor) -> Self:
        return self._with(_scores=self._scores[index], lengths=self.lengths[index])

    @property
    def _width(self) -> int:
        return max(0, 2 * self._scores.shape[1] - 1)

    def brackets(self, y: Tensor) -> Tensor:
        """The first word, the last word and the label of each bracket of outputs (..., 2T - 1, 3); -1: none."""
        width, labels = self._scores.shape[2:]
        found = torch.stack([y // (width * labels), y // labels % width, y % labels], -1)
        return torch.where(y[..., None] >= 0, found, -1)

    def _strings(self, y: Tensor) -> list[Any]:
        return [[tuple(x) for x in row if x[0] >= 0] for row in self.brackets(y).tolist()]

    # --- By the chart ------------------------------------------------------------------------------------------------

    @property
    def _forest(self) -> Forest:
        """The same trees as a Forest."""
        chart = self._chart
        flat, rules = self._scores.flatten(), self._rules
        total = flat.new_zeros(len(chart.span))
        for values, place in ((flat, chart.span), (rules, chart.rule)):
            index = torch.from_numpy(place).to(self.device)
            own = values[index.clamp(min=0)] if len(values) else flat.new_zeros(len(index))
            total = total + torch.where(index >= 0, own, 0)
        forest = Forest.__new__(Forest)
        forest._packing, forest._scores, forest._names = chart.forests, total, None
        return forest

    def _read(self, arcs: Tensor) -> Tensor:
        """The brackets (n, B, 2T - 1) that trees of the chart (n, B, L) write."""
        example, place = (
            self._scores[0].numel() if self._batch else 1,
            torch.from_numpy(self._chart.span).to(arcs.device),
        )
        codes = torch.where(arcs >= 0, place[arcs.clamp(min=0)], -1) if len(place) else arcs
        first = torch.argsort(codes < 0, dim=2, stable=True)  # those that write, in their order
        codes = codes.gather(2, first)[:, :, : self._width]
        codes = torch.nn.functional.pad(codes, (0, self._width - codes.shape[2]), value=-1)
        return torch.where(codes >= 0, codes % max(1, example), -1)

    def _own(self, choices: Tensor) -> Tensor:
        """The scores of brackets (n, B, L)."""
        return self._scores.flatten(1).expand(len(choices), -1, -1).gather(2, choices.clamp(min=0))

    def _ranked(self, k: int) -> Found:
        found = self._forest._best(k)
        return Found(self._read(found.choices), found.exists)

    def _draw(self, n: int, generator: torch.Generator | None) -> Found:
        found = self._forest._draw(n, generator)
        return Found(self._read(found.choices), found.exists)

    def _strata(self, loss: Loss, reference: Any) -> Strata:
        costs, place = self._costs(loss, reference, torch.float64).flatten(), torch.from_numpy(self._chart.span)
        own = torch.where(place >= 0, costs.cpu()[place.clamp(min=0)], 0) if len(costs) else torch.zeros(len(place))
        found = strata(self._chart.forests, self._forest.scores, own.double().numpy())
        return found._replace(outputs=self._read(found.outputs))

    # --- Outputs and references --------------------------------------------------------------------------------------

    def _choices(self, y: Tensor, name: str) -> Tensor:
        check_shape(y, (self._batch, self._width), name)
        lengths, labels, width = self.lengths.tolist(), self.num_labels, self._scores.shape[1]
        for i, b in np.ndindex(y.shape[0], self._batch):
            row = y[i, b].tolist()
            if set(row) != {-1} and not _is_tree(row, lengths[b], width, labels):
                raise ValueError(
                    f"{name}: {self._strings(y[i, b][None])[0]} are not the brackets of a binary tree over the "
                    f"{lengths[b]} words of example {b}, each before those inside it, from left to right, and then -1"
                )
        return y

    def _reference(self, reference: Any) -> list[list[tuple[int, int, int]]]:
        """The brackets of each example."""
        rows = reference.tolist() if isinstance(reference, Tensor | np.ndarray) else reference
        triples = any(isinstance(x, list | tuple) or getattr(x, "ndim", 0) for row in rows for x in row)
        if triples:
            found: list[list[Any]] = [[tuple(int(v) for v in x) for x in row if int(x[0]) >= 0] for row in rows]
        else:
            codes, _ = as_padded(reference, "reference")
            found = self._strings(codes)
        if len(found) != self._batch:
            raise ValueError(f"reference: got brackets of {len(found)} examples, but the batch has {self._batch}")
        for b, (own, n) in enumerate(zip(found, self.lengths.tolist(), strict=True)):
            for i, x in enumerate(own):
                if len(x) != 3 or not 0 <= x[0] <= x[1] < n or not (0 <= x[2] < self.num_labels or x[2] == -100):
                    raise ValueError(
                        f"reference: reference[{b}][{i}] is {x}, but wanted (begin, end, label), words 0 to {n - 1} "
                        f"and labels 0 to {self.num_labels - 1}, or -100 for unknown"
                    )
                for other in own[:i]:
                    (a, c), (d, e) = sorted([x[:2], other[:2]])
                    if a < d <= c < e:
                        raise ValueError(f"reference: brackets {other} and {x} of example {b} cross, but wanted a tree")
        return found

    def _costs(self, loss: Loss, reference: Any, dtype: torch.dtype) -> Tensor:
        """Of brackets (B, T, T, K); what every tree costs is added to the span of all words."""
        local = check_over(loss, "brackets", self)
        width, labels = self._scores.shape[2:]
        rows = self._reference(reference)
        if any(k < 0 for row in rows for _, _, k in row):
            raise ValueError(f"reference: got a bracket whose label is unknown, but {loss!r} compares labels")
        codes, _ = as_padded(
            [[(i * width + j) * labels + k for i, j, k in row] for row in rows], "reference", self.device
        )
        costs = local.costs_of(codes, torch.ones_like(self.lengths), width * width * labels + 1, dtype)[:, 0]
        own, last = costs[:, :-1].reshape(self._scores.shape), (self.lengths - 1).clamp(min=0)
        if not width:
            return own
        whole = torch.zeros_like(own[..., 0])
        whole[torch.arange(self._batch, device=self.device), 0, last] = costs[:, -1]
        return own + whole[..., None]

    def given(self, reference: Any) -> Self:
        """The trees that have all brackets of the reference, scored as they were. A label of -100 is unknown.

        Example:
            >>> import torch, structloss as sl
            >>> trees = sl.ConstituencyTree(torch.zeros(1, 4, 4, 1))
            >>> trees.given([[(0, 2, 0)]]).log_partition().exp(), trees.log_partition().exp()
            (tensor([2.]), tensor([5.]))
        """
        rows, width = self._reference(reference), self._scores.shape[1]
        i, j = np.arange(width)[:, None], np.arange(width)
        forbidden = np.zeros(self._scores.shape, np.bool_)
        for b, row in enumerate(rows):
            for begin, end, label in row:
                crossing = ((i < begin) & (begin <= j) & (j < end)) | ((begin < i) & (i <= end) & (end < j))
                forbidden[b] |= crossing[..., None]
                forbidden[b, begin, end] |= (np.arange(self.num_labels) != label) & (label >= 0)
        return self._with(_scores=self._scores.masked_fill(torch.from_numpy(forbidden).to(self.device), -math.inf))


def _is_tree(row: list[int], n: int, width: int, labels: int) -> bool:
    """Whether these brackets are those of a binary tree over n words, in their order, and then -1."""
    waiting = [(0, n - 1, True)] if n else []  # from which word a span goes to which, or to one before it
    for t, code in enumerate(row):
        if not waiting:
            return all(x == -1 for x in row[t:])
        i, j = code // (width * labels), code // labels % width
        first, last, exact = waiting.pop()
        if code < 0 or i != first or j < i or (j != last if exact else j >= last):
            return False
        if not exact:
            waiting.append((j + 1, last, True))
        if i < j:
            waiting.append((i, j, False))
    return not waiting
