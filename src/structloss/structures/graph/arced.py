"""What lattices and forests have in common: scores of arcs, and outputs that are the numbers of arcs."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from structloss.structures.base import NativeEngine
from structloss.structures.checks import check_shape
from structloss.structures.engine import engine_of
from structloss.structures.graph import native_engine, torch_engine
from structloss.structures.graph.build import as_scores
from structloss.structures.graph.packing import Packing, Weighted
from structloss.structures.kinds import Computed, Scored
from structloss.structures.tensors import wide


class Arced(Scored, Computed):
    """A batch of packed forests whose arcs have scores. Inside, an output is the numbers of its arcs (B, L)."""

    _outputs_are: ClassVar[tuple[str, str]]  # in a word, and in many
    _packing: Packing

    @property
    @abstractmethod
    def _parts(self) -> Weighted[Any]:
        """Made anew each time: under `no_grad` the scores would forget where they come from."""

    @property
    def _engine(self) -> NativeEngine[Weighted[Packing]]:
        name = engine_of(self.device)
        if name == "triton":
            from structloss.structures.graph import triton_engine

            return triton_engine
        return native_engine if name == "native" else torch_engine

    @property
    def _on_triton(self) -> frozenset[str]:  # type: ignore[override]
        from structloss.structures.graph import triton_engine

        return triton_engine.OPERATIONS if triton_engine.covers(self._parts.packing) else frozenset()

    @property
    def scores(self) -> Tensor:
        """Those of the arcs of all examples in order, (sum of n_b,)."""
        return self._scores

    def with_scores(self, scores: Tensor | Sequence[Tensor]) -> Self:
        """The same arcs with other scores: nothing is sorted or multiplied again.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 1]]], torch.tensor([0., 1.]))
            >>> lattice.with_scores(torch.tensor([3., 1.])).decode()
            [[0]]
        """
        return self._with(_scores=as_scores(scores, self._packing.sizes))

    @property
    def _batch(self) -> int:
        return self._packing.batch

    @property
    @abstractmethod
    def _width(self) -> int:
        """How many arcs the largest output has."""

    @property
    def _offset(self) -> Tensor:
        """Where the numbers of each example begin, (B, 1)."""
        return torch.from_numpy(self._packing.offset).to(self.device)[:, None]

    def _choices(self, y: Tensor, name: str) -> Tensor:
        check_shape(y, (self._batch, self._width), name)
        numbers = torch.where(y >= 0, y + self._offset, -1)
        missing = self._packing.longest - self._width  # the end of a path
        arcs, whole = self._packing.walk(torch.nn.functional.pad(numbers, (0, missing), value=-1))
        bad = ~whole & (y >= 0).any(2)  # a row of -1 is also what argmax() gives where there is no output
        if bad.any():
            i, b = bad.nonzero()[0].tolist()
            raise ValueError(
                f"{name}: {y[i, b].tolist()} is no {self._outputs_are[0]} of example {b}, from position "
                f"{int((arcs[i, b] >= 0).sum())} on: wanted {self._outputs_are[1]}, and then -1"
            )
        return torch.from_numpy(np.append(self._packing.packed.number, -1)).to(arcs.device)[arcs]

    def _outputs(self, choices: Tensor, exists: Tensor) -> Tensor:
        there = exists[:, :, None] & (choices >= self._packing.num_ends)
        return torch.where(there, choices - self._offset, -1)[:, :, : self._width]

    def _score(self, choices: Tensor) -> Tensor:
        w = self._parts
        arcs, whole = w.packing.walk(choices)
        total = wide(w.scores.new_zeros(whole.shape))
        if len(w.scores):
            own = wide(w.scores[choices.clamp(0)])
            if w.constant.size:
                own = own + wide(torch.from_numpy(w.constant).to(self.device))[arcs.clamp(0)]
            total = torch.where(arcs >= 0, own, 0).sum(2)
        return torch.where(whole & (total > -math.inf), total, -math.inf).to(self.dtype)

    def _expectation(self, other: Self) -> Tensor:
        return self._engine.expectation(self._parts, other._parts)

    def _check_same(self, other: Self) -> None:
        if not self._packing.same_outputs(other._packing):
            raise ValueError(f"other: got {other!r}, but wanted the arcs and ends of {self!r}")
