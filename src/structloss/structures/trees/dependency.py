"""DependencyTree: each word of a sentence hangs on another one or on the root, projectively or not."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from structloss.kernels.arborescence import CROSSING, CYCLE, ROOTS, first_fault
from structloss.losses import Hamming, Loss
from structloss.losses.references import UNKNOWN, Labels, as_aligned, as_positions, check_labels
from structloss.structures.checks import check_floating, check_over, check_shape
from structloss.structures.kinds import Computed
from structloss.structures.scores import of_numbers
from structloss.structures.trees import native_engine, torch_engine
from structloss.structures.trees.parts import Arcs, arcs_between
from structloss.structures.trees.template import Trees


class DependencyTree(Trees, Computed):
    r"""A batch of sets of dependency trees: every word hangs on one other word or on the root, without cycles.

    The outputs are heads (B, T): 0 for the root, i for word i, counted from 1 as in CoNLL-U; -1 beyond a length.

    .. math:: \text{score}(y) = \sum_d \text{scores}[d, y_d]

    where word d is counted from 0, as positions are. With R labels an output has the arc of each word, coded as
    head * R + label: `heads(y)` and `labels(y)` take it apart, `arcs(heads, labels)` puts it together. References are
    outputs, lists of them, or sets (B, T, (T + 1) * R); -100 is unknown. `Hamming` counts the wrong heads: 1 - UAS
    times the words; with labels the wrong arcs, 1 - LAS, or against `arcs(heads)` the wrong heads.

    Projective trees are those whose arcs do not cross when they are drawn above the sentence (Eisner 1996). Without
    that, all trees: sums by the matrix-tree theorem (Koo et al. 2007), maxima by Chu and Liu and Edmonds. Sums cost
    T**3; the best tree T**3 where it is projective, else T**2, on the CPU in both engines. `topk(k)` asks for k * T
    best trees, `sample(n)` for n * T sums. Trees are not told apart by their loss: `SlackHinge` is not for them.

    Args:
        scores: floating-point (B, T, T + 1), or with labels (B, T, T + 1, R); -inf forbids. What would hang a word on
            itself is not read.
        lengths: integers (B,), or a mask (B, T), gaps allowed: a word outside of it has no head and is none.
        projective: whether arcs may not cross.
        single_root: whether only one word hangs on the root, as treebanks have it.

    `marginals()` is the probability of each arc, in the shape of the scores. bfloat16 and float16 are computed and
    returned in float32.

    Example:
        >>> import torch, structloss as sl
        >>> scores = torch.tensor([[[1., 0., 2.], [0., 3., 0.]]])  # B = 1, T = 2
        >>> trees = sl.DependencyTree(scores)
        >>> trees.argmax(), trees.max()  # word 1 hangs on the root, word 2 on word 1
        (tensor([[0, 1]]), tensor([4.]))
        >>> trees.expected(sl.Hamming(), torch.tensor([[0, 1]]))  # wrong heads
        tensor([0.2384])
    """

    _made = ("_parts",)
    _engines = native_engine, torch_engine
    _only_native = frozenset(("argmax", "topk"))

    def __init__(
        self,
        scores: Tensor,
        lengths: Tensor | Sequence[int] | None = None,
        projective: bool = True,
        single_root: bool = True,
    ) -> None:
        check_floating(scores, "scores")
        shape = tuple(scores.shape)
        if len(shape) not in (3, 4) or shape[2] != shape[1] + 1 or 0 in shape[3:]:
            raise ValueError(f"scores: got shape {shape}, but wanted (B, T, T + 1), or (B, T, T + 1, R) with R labels")
        self._positions = as_positions(lengths, shape[0], shape[1], scores.device)
        self._projective, self._single_root = projective, single_root

        def within() -> Tensor:
            there = arcs_between(self._positions.spread(self._positions.within))
            return there if scores.dim() == 3 else there[..., None]

        self._scores = of_numbers(scores, within, "scores", lambda b, d, h, *_: f" for word {d + 1} on {h}")

    @property
    def lengths(self) -> Tensor:
        """How many words each example has, (B,)."""
        return self._positions.lengths

    @property
    def num_labels(self) -> int:
        """How many labels an arc may have, R."""
        return self._scores.shape[3] if self._scores.dim() == 4 else 1

    def _sizes(self) -> dict[str, object]:
        sizes: dict[str, object] = {"words": self._positions.width, "labels": self.num_labels}
        return {**sizes, "projective": self._projective, "single_root": self._single_root}

    # --- Heads and labels --------------------------------------------------------------------------------------------

    def heads(self, y: Tensor) -> Tensor:
        """The heads of outputs, 0 to T, and -1 beyond a length."""
        return torch.where(y >= 0, y.div(self.num_labels, rounding_mode="floor"), -1)

    def labels(self, y: Tensor) -> Tensor:
        """The labels of the arcs of outputs, and -1 beyond a length."""
        return torch.where(y >= 0, y % self.num_labels, -1)

    def arcs(self, heads: Tensor, labels: Tensor | None = None) -> Tensor:
        """Heads (B, T), and labels, as a reference. Without labels any will do: sets (B, T, (T + 1) * R).

        So `Hamming` against `arcs(heads, labels)` counts what LAS counts, against `arcs(heads)` what UAS does.

        Example:
            >>> import torch, structloss as sl
            >>> trees, heads = sl.DependencyTree(torch.zeros(1, 2, 3, 4)), torch.tensor([[2, 0]])
            >>> y = trees.arcs(heads, torch.tensor([[3, 1]]))
            >>> y, trees.labels(y), sl.Hamming()(y, trees.arcs(heads))
            (tensor([[11,  1]]), tensor([[3, 1]]), tensor([0.]))
        """
        R = self.num_labels
        if labels is not None:
            return torch.where((heads >= 0) & (labels >= 0), heads * R + labels, torch.minimum(heads, labels))
        if R == 1:
            return heads
        every = torch.arange(self._scores.shape[2] * R, device=heads.device).div(R, rounding_mode="floor")
        return (every == heads[..., None]) | (heads < 0)[..., None]

    # --- The template ------------------------------------------------------------------------------------------------

    @property
    def _lengths(self) -> tuple[Tensor, ...]:
        return (self.lengths,)

    def _examples(self, index: Tensor) -> Self:
        return self._with(_scores=self._scores[index], _positions=self._positions.examples(index))

    @cached_property
    def _parts(self) -> Arcs:
        """The scores of the words that count, these first, among the words and on the words."""
        with torch.enable_grad():  # a maximum asks for it first without
            scores = self._scores if self._scores.dim() == 4 else self._scores[..., None]
            index = self._positions.index
            if index is not None:
                nodes = torch.nn.functional.pad(index + 1, (1, 0))[:, None, :, None].expand_as(scores)
                scores = self._positions.compact(scores).gather(2, nodes)
        return Arcs(scores, self.lengths, self._single_root, self._projective)

    def _renumbered(self, arcs: Tensor, back: bool) -> Tensor:
        """Arcs (..., B, T) on words as they are numbered, on words that count; or back. -1 stays, as does none such."""
        index = self._positions.index
        if index is None:
            return arcs
        places = index if back else index.argsort(1)
        inside = torch.arange(index.shape[1], device=index.device) < self.lengths[:, None]
        nodes = torch.where(inside if back else inside.gather(1, places), places + 1, -2)
        nodes = torch.nn.functional.pad(nodes, (1, 0)).expand(*arcs.shape[:-1], -1)
        heads = nodes.gather(-1, self.heads(arcs).clamp(min=0))
        return torch.where((arcs >= 0) & (heads >= 0), heads * self.num_labels + self.labels(arcs), arcs.clamp(max=-1))

    def _checked(self, arcs: Tensor, name: str, projective: bool) -> Tensor:
        """Arcs (n, B, T) of words that count, unless these are no trees, as far as they are known."""
        lengths, heads = self.lengths.repeat(arcs.shape[0]).cpu().numpy(), self.heads(arcs).flatten(0, 1).cpu().numpy()
        example, word, fault = first_fault(heads, lengths, self._single_root, projective)
        if fault:
            row = heads[example, : lengths[example]].tolist()
            raise ValueError(
                f"{name}: example {example % max(1, self._batch)} has the heads {row}, "
                + {
                    CYCLE: f"in which word {word} does not reach the root, but wanted a tree",
                    ROOTS: f"in which word {word} is a second one on the root, but single_root wants one",
                    CROSSING: f"in which the arc of word {word} crosses another, but wanted a projective tree",
                }[fault]
            )
        return arcs

    def _choices(self, y: Tensor, name: str) -> Tensor:
        check_shape(y, tuple(self._scores.shape[:2]), name)
        y = torch.where(self._positions.within, self._renumbered(self._positions.compact_outputs(y), False), -1)
        absent = (y == -1).all(2, keepdim=True) & (self.lengths > 0)[:, None]
        known = torch.where(absent, 0, y).flatten(0, 1)
        arcs = self._scores.shape[2] * self.num_labels
        check_labels(known, self.lengths.repeat(y.shape[0]), arcs, name, allow_unknown=False)
        return self._checked(y, name, self._projective)

    def _outputs(self, choices: Tensor, exists: Tensor) -> Tensor:
        arcs = torch.where(self._positions.within & exists[:, :, None], self._renumbered(choices, True), -1)
        return self._positions.spread_outputs(arcs)

    def _score(self, choices: Tensor) -> Tensor:
        scores = self._parts.scores.flatten(2).expand(len(choices), -1, -1, -1)
        own = scores.gather(3, choices.clamp(min=0)[..., None])[..., 0]
        within = self._positions.within
        return self._summed(own, within, ((choices < 0) & within).any(2))

    def _strings(self, y: Tensor) -> list[list[int]]:
        return super()._strings(self.heads(y))

    # --- Losses and references ---------------------------------------------------------------------------------------

    def _reference(self, reference: Labels) -> Tensor:
        """Arcs (B, T), UNKNOWN where any will do, or sets (B, T, (T + 1) * R), those of words that count first."""
        arcs = as_aligned(reference, self._positions, self._scores.shape[2] * self.num_labels)
        if arcs.dtype != torch.bool:
            within = torch.where(self._positions.within, arcs, UNKNOWN)
            self._checked(self._renumbered(within, False)[None], "reference", projective=False)
        return arcs

    def _costs(self, loss: Loss, reference: Labels, dtype: torch.dtype) -> Tensor:
        arcs, choices = self._reference(reference), self._scores.shape[2] * self.num_labels
        costs = check_over(loss, "labels", self).costs_of(arcs, self.lengths, choices, dtype)
        return self._positions.spread(costs).reshape(self._scores.shape)

    def given(self, reference: Labels) -> Self:
        """The trees that agree with the reference wherever it is known (-100: unknown), scored as they were.

        Heads that no tree of the set has, such as arcs that cross where it is projective, leave none.

        Example:
            >>> import torch, structloss as sl
            >>> sl.DependencyTree(torch.zeros(1, 3, 4)).given(torch.tensor([[0, -100, -100]])).topk(4)[0][:, 0]
            tensor([0., 0., 0., -inf])
        """
        wrong = self._costs(Hamming(), reference, self.dtype) > 0
        return self._with(_scores=self._scores.masked_fill(wrong, -math.inf))
