"""Forest: the trees of any packed forest, such as a parser's chart; a lattice is the case of one tail."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from structloss.losses import Loss
from structloss.losses.references import Labels, as_padded
from structloss.structures.base import Found, Strata
from structloss.structures.checks import check_over
from structloss.structures.graph import native_engine
from structloss.structures.graph.arced import Arced
from structloss.structures.graph.build import as_rows, as_scores
from structloss.structures.graph.packing import Packing, Weighted
from structloss.structures.rows import Ints
from structloss.structures.trees import forest_text
from structloss.structures.trees.packed import Forests, build
from structloss.structures.trees.strata import strata
from structloss.structures.trees.template import Trees


class Forest(Arced, Trees):
    r"""A batch of packed forests (hypergraphs), each with items and arcs of its own.

    An arc has a head, which is an item, and up to two tails, items too. The outputs are the trees of item 0: an arc of
    which it is the head, and a tree of each of that arc's tails.

    .. math:: \text{score}(\text{tree}) = \sum_{a \in \text{tree}} \text{scores}[a]

    Whatever is parsed by a chart is one (Huang and Chiang 2005): items are spans, arcs are rules applied to them. Where
    all arcs have one tail it is a lattice. Sums and maxima cost the number of arcs, the k best trees k * k times it.

    Args:
        arcs: for each example integers (n_b, 3): head, first tail, second tail; -1 for a tail that is not there. No
            item is below itself: a cycle is an error.
        scores: floating-point (sum of n_b,), of the arcs of all examples in order, or a list of (n_b,). -inf forbids.

    Outputs are int64 (B, L): numbers of arcs, counted within the example, an arc before the trees of its tails; -1
    after the end. A reference is arcs (B, U) or lists of them, in any order: all of a tree's, or those that count as
    right under `BracketErrors`. Of several best trees the lexicographically smallest is the one of the smallest arc, at
    the first place where they differ. `marginals()` is how often each arc is used in the mean, (sum of n_b,): its
    probability, unless a tree uses it twice. Sums are tensor operations in the torch engine; trees are sought and drawn
    on the CPU.

    Example:
        >>> import torch, structloss as sl
        >>> arcs = [[0, 1, 2], [0, 2, 1], [1, -1, -1], [2, -1, -1], [2, 1, -1]]
        >>> forest = sl.Forest([arcs], torch.tensor([0., 1., 0., 0., 2.]))
        >>> forest.argmax(), forest.max()
        (tensor([[1, 4, 2, 2]]), tensor([3.]))
        >>> forest.marginals()[:2]
        tensor([0.2689, 0.7311])
    """

    _outputs_are = "tree", "an arc of item 0, each before the trees of its tails"
    _only_native = frozenset(("argmax", "topk", "sample"))
    _packing: Forests

    def __init__(self, arcs: Sequence[Any], scores: Tensor | Sequence[Tensor]) -> None:
        rows = _as_arcs(arcs)
        self._packing = build(rows)
        self._scores = as_scores(scores, self._packing.sizes)
        self._names: list[list[str]] | None = None

    @classmethod
    def from_text(cls, texts: Sequence[str | Path] | str | Path) -> Self:
        """From lines `head -> tail tail : score`, or files of them; tails and score may be left out.

        Items are named by anything without spaces; the head of the first line is the root. The scores are a leaf tensor
        in torch's default precision, `.scores`, in the order of the lines.

        Example:
            >>> import structloss as sl
            >>> forest = sl.Forest.from_text('''S -> NP VP : 0.5
            ... NP ->
            ... VP -> NP : 1
            ... VP -> : 2''')
            >>> forest.max(), forest.decode()
            (tensor([2.5000]), [[0, 1, 3]])
        """
        if isinstance(texts, str | Path):
            texts = [texts]
        read = [forest_text.read(text, f"texts[{b}]") for b, text in enumerate(texts)]
        scores = torch.tensor([x for _, own, _ in read for x in own], dtype=torch.get_default_dtype())
        forest = cls([arcs for arcs, _, _ in read], scores)
        forest._names = [names for _, _, names in read]
        return forest

    def draw(self, path: str | Path, example: int = 0, y: Tensor | None = None) -> Path:
        """Draw an example into a file whose name ends in .svg, .png or .pdf; the arcs of the tree y are bold.

        Args:
            path: the file.
            example: which of the batch.
            y: a tree (L,), by default the best.
        """
        from structloss.structures.trees.drawing import draw_forest

        own = (self.argmax()[example] if y is None else y).tolist()
        return draw_forest(self._packing, example, self._names, [a for a in own if a >= 0], Path(path))

    def _sizes(self) -> dict[str, object]:
        return {"items": self._packing.num_items, "arcs": len(self._scores)}

    # --- The template ------------------------------------------------------------------------------------------------

    @property
    def _parts(self) -> Weighted[Packing]:
        return Weighted(self._packing, self._scores, np.empty(0))

    @property
    def _width(self) -> int:
        return self._packing.longest

    def _best(self, k: int) -> Found:
        return native_engine.best(self._parts, k)

    def _draw(self, n: int, generator: torch.Generator | None) -> Found:
        return native_engine.draw(self._parts, n, generator)

    # --- Losses and references ---------------------------------------------------------------------------------------

    def _reference(self, reference: Labels) -> Tensor:
        """Arcs (B, U), negative where there is none, each one of the example's."""
        arcs, _ = as_padded(reference, "reference", self.device)
        if arcs.dim() != 2 or arcs.shape[0] != self._batch:
            raise ValueError(
                f"reference: got shape {tuple(arcs.shape)}, but wanted ({self._batch}, U), or lists of arcs"
            )
        sizes = torch.from_numpy(self._packing.sizes).to(self.device)[:, None]
        if (arcs >= sizes).any():
            b, i = (arcs >= sizes).nonzero()[0].tolist()
            raise ValueError(
                f"reference: reference[{b}][{i}] is {int(arcs[b, i])}, but example {b} has {int(sizes[b])} arcs"
            )
        return arcs

    def _costs(self, loss: Loss, reference: Labels, dtype: torch.dtype) -> Tensor:
        """Of arcs (A,); what every tree costs is added to the arcs of its root."""
        local, arcs, f = check_over(loss, "brackets", self), self._reference(reference), self._packing
        costs = local.costs_of(arcs, arcs.new_ones(len(arcs)), 1 + int(f.sizes.max(initial=0)), dtype)[:, 0]
        owner = f.owner.to(self.device)
        own = costs[owner, torch.arange(len(owner), device=self.device) - self._offset[owner, 0]]
        at_root = torch.from_numpy(f.numbered_heads == f.packed.root[f.owner.numpy()]).to(self.device)
        return own + torch.where(at_root, costs[owner, -1], 0)

    def given(self, reference: Labels) -> Self:
        """The trees that agree with the reference: where it has an arc of an item, they use no other arc of it.

        A whole tree leaves that tree only, some of its arcs all trees that could have them.
        """
        arcs, f = self._reference(reference), self._packing
        number = (arcs + self._offset)[arcs >= 0].cpu()
        heads = torch.from_numpy(f.numbered_heads)
        known = torch.zeros(f.num_items + 1, dtype=torch.bool)
        known[heads[number]] = True
        forbidden = known[heads]
        forbidden[number] = False
        return self._with(_scores=self._scores.masked_fill(forbidden.to(self.device), -math.inf))

    def _strata(self, loss: Loss, reference: Labels) -> Strata:
        costs = self._costs(loss, reference, torch.float64).cpu().numpy()
        return strata(self._packing, self._scores, costs)


def _as_arcs(arcs: Sequence[Any]) -> list[Ints]:
    """(n_b, 3) of each example."""
    rows = as_rows(arcs, "head, first tail, second tail")
    for b, a in enumerate(rows):
        wrong = (a < [0, -1, -1]).any(1)
        if wrong.any():
            i = int(wrong.argmax())
            raise ValueError(f"arcs: arcs[{b}][{i}] is {a[i].tolist()}, but items are at least 0, or -1 for no tail")
    return rows
