"""Lattice: the paths of any acyclic graph whose arcs have labels and scores, such as a recogniser's hypotheses."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from structloss.losses import LocalLoss, Loss, MachineLoss
from structloss.losses.agreement import Agreement
from structloss.losses.references import Labels, as_strings
from structloss.structures import sparse
from structloss.structures.base import Found, Strata
from structloss.structures.certified import Certified
from structloss.structures.checks import check_count, check_scale
from structloss.structures.engine import is_native
from structloss.structures.graph.arced import Arced
from structloss.structures.graph.build import as_arcs, as_final, as_list, as_scores
from structloss.structures.graph.packing import Weighted
from structloss.structures.graph.sparse import certified
from structloss.structures.graph.strings import best_strings
from structloss.structures.graph.text import Acceptor, from_fst, read, to_fst
from structloss.structures.graph.topology import END, Machines, Topology, build
from structloss.structures.rows import Floats
from structloss.structures.strata import best_at_each
from structloss.structures.tensors import times

_AGREEMENT = Agreement()


class Lattice(Arced):
    r"""A batch of acyclic weighted acceptors, each with its own states and arcs.

    The outputs are the paths from state 0 to a final state, and

    .. math:: \text{score}(\text{path}) = \sum_{a \in \text{path}} \text{scores}[a] + \text{final}[\text{its end}]

    A path writes the labels of its arcs; several paths may write one string. Losses and references are about strings,
    `given(r)` is the set of all paths that write r. States that no path uses do no harm: they are left out, and the
    scores of their arcs have zero gradient. Sums and maxima cost the number of arcs, of an augmented lattice that of
    its product with the loss machine, which is made once, as far as the lattice reaches.

    Args:
        arcs: for each example integers (n_b, 3): source, target, label (-1: epsilon, which writes nothing).
        scores: floating-point (sum of n_b,), of the arcs of all examples in order, or a list of (n_b,). -inf forbids.
        final: for each example its final states, or a dict of final states and their scores (numbers); by default the
            states that no arc leaves.
        num_labels: K, by default the largest label + 1.

    Outputs are int64 (B, L): numbers of arcs, counted within the example, -1 after the end; L is the length of the
    longest path in the batch. Of several best paths the lexicographically smallest is the one that ends, then the one
    of the smallest arc. `marginals()` is the probability of each arc, (sum of n_b,). bfloat16 and float16 are computed
    and returned in float32.

    Example:
        >>> import torch, structloss as sl
        >>> arcs = [[0, 1, 0], [0, 1, 1], [1, 2, 2], [0, 2, 1]]
        >>> lattice = sl.Lattice([arcs], torch.tensor([0., 2., 1., 1.]))
        >>> lattice.argmax(), lattice.decode(), lattice.max()
        (tensor([[1, 2]]), [[1, 2]], tensor([3.]))
        >>> lattice.log_partition()
        tensor([3.2395])
    """

    _outputs_are = "path", "arcs from state 0, each from where the one before it leads, to a final state"
    _made = ("_product",)
    _packing: Topology

    def __init__(
        self,
        arcs: Sequence[Any],
        scores: Tensor | Sequence[Tensor],
        final: Sequence[Iterable[int] | Mapping[int, float]] | None = None,
        num_labels: int | None = None,
    ) -> None:
        rows, self._num_labels = as_arcs(arcs, num_labels)
        self._packing, self._final = build(rows, as_final(final, rows))
        self._scores = as_scores(scores, self._packing.sizes)
        self._added: dict[Machines, float] = {}  # what augments it: the machines of the batch, and a scale

    @classmethod
    def nbest(
        cls,
        strings: Sequence[Sequence[Sequence[int] | Tensor]],
        scores: Tensor | Sequence[Tensor],
        num_labels: int | None = None,
    ) -> Self:
        """An n-best list: one path for each string, a chain of arcs whose first has the score.

        Args:
            strings: for each example a list of label sequences. An empty one is an epsilon arc.
            scores: floating-point (B, n), or a list of (n_b,).
            num_labels: as for `Lattice`.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Lattice.nbest([[[0, 1], [0], []]], torch.tensor([[0., 1., 0.5]])).decode()
            [[0]]
        """
        arcs, values, final = as_list(strings, scores)
        return cls(arcs, values, final, num_labels)

    @classmethod
    def from_text(cls, texts: Sequence[str | Path] | str | Path, symbols: Sequence[str] | None = None) -> Self:
        """From OpenFst's (AT&T's) text of acceptors, or files of it: `source target label [weight]`, `state [weight]`.

        The state of the first line is the start. Weights are costs: a score is minus a weight. The scores are a leaf
        tensor in torch's default precision, `.scores`.

        Args:
            texts: for each example the text itself, or a `Path` to it, as `fstprint --acceptor` writes it.
            symbols: the names of labels 0, 1, ...; `<eps>` writes nothing. Without them labels are numbers as OpenFst
                counts them, label y being y + 1 and 0 epsilon.

        Example:
            >>> import structloss as sl
            >>> text = '''0 1 a 0.5
            ... 0 1 b 0.25
            ... 1'''
            >>> lattice = sl.Lattice.from_text([text], symbols=["a", "b"])
            >>> lattice.decode(), lattice.scores
            ([[1]], tensor([-0.5000, -0.2500]))
        """
        if isinstance(texts, str | Path):
            texts = [texts]
        return cls._of([read(text, f"texts[{b}]", symbols) for b, text in enumerate(texts)], symbols)

    @classmethod
    def from_fst(cls, fsts: Sequence[Any], symbols: Sequence[str] | None = None) -> Self:
        """From acceptors that are pywrapfst or pynini objects, one for each example: as `from_text`.

        Needs nothing but the objects: whoever has them has the extra `fst`.

        Args:
            fsts: the objects. Weights are costs, of whatever type.
            symbols: the names of labels 0, 1, ..., which are then looked up in the objects' symbol tables.
        """
        return cls._of([from_fst(fst, f"fsts[{b}]", symbols) for b, fst in enumerate(fsts)], symbols)

    @classmethod
    def _of(cls, acceptors: Sequence[Acceptor], symbols: Sequence[str] | None) -> Self:
        scores = torch.tensor([score for a in acceptors for score in a.scores], dtype=torch.get_default_dtype())
        num_labels = None if symbols is None else max(1, len(symbols))
        return cls([a.arcs for a in acceptors], scores, [a.final for a in acceptors], num_labels)

    def to_fst(self, symbols: Sequence[str] | None = None, arc_type: str = "standard") -> list[Any]:
        """A pywrapfst object for each example: label y is its symbol y + 1, a cost is minus a score.

        Needs the extra `fst`. Arcs of score -inf, and states that no path uses, are left out. `from_fst` reads them
        again. A lattice that is augmented is written as the product that it is, with the losses in its costs.

        Args:
            symbols: the names of labels 0, 1, ...: the objects then have symbol tables.
            arc_type: OpenFst's type of the weights: "standard", "log" or "log64".
        """
        return to_fst(self._parts, symbols, arc_type)

    @property
    def num_labels(self) -> int:
        """How many labels there are, K."""
        return self._num_labels

    def _sizes(self) -> dict[str, object]:
        t, arcs = self._packing, int((self._packing.label != END).sum())
        return {"states": t.num_items, "arcs": arcs, "positions": t.longest - 1, "labels": self._num_labels}

    # --- The template ------------------------------------------------------------------------------------------------

    def _times(self, factor: float) -> Self:
        added = {machines: factor * scale for machines, scale in self._added.items()}
        return self._with(_scores=times(self._scores, factor), _final=factor * self._final, _added=added)

    @property
    def _parts(self) -> Weighted[Topology]:
        return self._weighted(*self._product)

    @cached_property
    def _product(self) -> tuple[Topology, Floats]:
        """With everything that augments it, and what that adds."""
        topology = self._packing
        for machines in self._added:
            topology = topology.times(machines)
        return topology, self._added_on(topology)

    def _weighted(self, topology: Topology, added: Floats) -> Weighted[Topology]:
        return Weighted(topology, torch.cat([torch.from_numpy(self._final).to(self._scores), self._scores]), added)

    def _added_on(self, topology: Topology) -> Floats:
        """What its machines add to each arc of a product with them, and perhaps with others, (A,)."""
        constant = np.zeros(topology.num_arcs if topology.machines else 0)
        for machines, scale in self._added.items():
            weights = topology.machines[machines]
            outside = np.isinf(weights)
            constant = np.where(outside, -np.inf, constant + scale * np.where(outside, 0.0, weights))
        return constant

    @property
    def _width(self) -> int:
        return self._packing.longest - 1

    def _strings(self, y: Tensor) -> list[list[int]]:
        arcs = self._packing.walk(self._choices(y[None], "y"))[0][0]
        labels = np.append(self._packing.label, -1)[arcs.cpu().numpy()]
        return [row[row >= 0].tolist() for row in labels]

    def _expectation(self, other: Self) -> Tensor:
        topology, added = self._product
        for machines in other._added:
            topology = topology.times(machines, forbid=False)
        added = added if topology is self._product[0] else self._added_on(topology)
        theirs = other._weighted(topology, other._added_on(topology))
        return self._engine.expectation(self._weighted(topology, added), theirs)

    def topk_strings(self, k: int) -> tuple[Tensor, list[list[list[int]]]]:
        """The scores (k, B) of the k best different strings of each example, and these; exact.

        A string is worth its best path. Best first, of equals the lexicographically smaller string first; score -inf
        where there are fewer. Best-first search, at most k * L sets of states in Python.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 7], [0, 1, 7], [0, 1, 2]]], torch.tensor([3., 2., 1.]))
            >>> lattice.topk_strings(2)
            (tensor([[3.],
                    [1.]]), [[[7], [2]]])
        """
        check_count(k, "k")
        found, width = best_strings(self._parts, k), self._packing.longest
        paths, exists = Found.of([[path for _, path in listed] for listed in found], k, width, self.device)
        scores = torch.where(exists, self._score(paths), -math.inf)
        return scores, [[list(string) for string, _ in listed] for listed in found]

    # --- Losses and references ---------------------------------------------------------------------------------------

    def augment(self, loss: Loss, reference: Labels, scale: float = 1.0) -> Self:
        """The same paths, scored by score(path) + scale * loss(what it writes, reference). It is a Lattice again.

        Args:
            loss: one with a machine such as EditDistance, SmithWaterman or NGram; or Hamming, under which strings that
                are not as long as the reference are outside. With S machine states for a state of the lattice,
                operations on the result cost S times what they cost on self; a cap keeps S small.
            reference: a list of label sequences, labels (B, U) where negative ones at the end are padding, or sets of
                labels; -100 inside is unknown.
            scale: a number; negative to subtract the loss.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 1], [1, 2, 0]]], torch.zeros(3))
            >>> lattice.augment(sl.EditDistance(), [[0, 0]]).decode()
            [[1, 0]]
        """
        check_scale(scale)
        machines = self._machines(loss, reference, absolute=False)
        return self._with(_added=self._added | {machines: self._added.get(machines, 0.0) + scale})

    def _machines(self, loss: Loss, reference: Labels, absolute: bool) -> Machines:
        """A machine for each example, the same as the last time: products with the same machines are made once."""
        if not isinstance(loss, MachineLoss | LocalLoss):
            raise TypeError(f"loss: got {loss!r}, but wanted a loss that a Lattice can carry, such as EditDistance()")
        strings, K = as_strings(reference, self._batch), self._num_labels
        key = (loss, absolute, K, *((string.tobytes(), string.shape) for string in strings))
        make = self._packing.recent_machines.get
        return make(key, lambda: tuple(loss.open(string, K, absolute) for string in strings))

    def given(self, reference: Labels) -> Self:
        """The paths that write the reference, scored as they were; none, where the lattice does not have it.

        Args:
            reference: as for `augment`; an unknown label (-100) agrees with any.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 1], [1, 2, 0]]], torch.tensor([0., 2., 0.]))
            >>> lattice.given([[0, 0]]).argmax()
            tensor([[0, 2]])
        """
        return self.augment(_AGREEMENT, reference, 0.0)

    def certified(self, loss: Loss, reference: Labels, tolerance: float) -> Certified:
        """E[loss of what a path writes] to within a tolerance, and the bound that was reached: see `CTC.certified`.

        Cost: the arcs, and the machine states that matter at a node times the arcs that are not hardly taken.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 1], [1, 2, 0]]], torch.tensor([3., 0., 0.]))
            >>> found = lattice.certified(sl.EditDistance(window=3), [[0, 0]], tolerance=1e-3)
            >>> found.value, bool(found.error_bound <= 1e-3)
            (tensor([0.0474]), True)
        """
        loss = sparse.check(loss, tolerance, is_native(self.device), not self._added, "lattice")
        strings, own = as_strings(reference, self._batch), self._weighted(self._packing, np.empty(0))
        return certified(own, loss, strings, self._num_labels, tolerance, self.dtype)

    def _strata(self, loss: Loss, reference: Labels) -> Strata:
        machines = self._machines(loss, reference, absolute=True)
        p = self._product[0].times(machines)
        w, losses = self._weighted(p, self._added_on(p)), p.machines[machines]
        ends = p.label == END
        example = p.level_and_example[1][p.heads]

        def best(values: Floats) -> Found:
            wanted = ~ends | (np.abs(losses - values[example]) < 1e-8)
            return self._engine.best(w._replace(constant=np.where(wanted, w.constant, -np.inf)), 1)

        possible = ends & (w.constant > -np.inf)
        return best_at_each([losses[possible & (example == b)] for b in range(self._batch)], self._scores, best)
