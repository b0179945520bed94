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
from structloss.structures.base import Computed, Found, NativeEngine, Scored, Strata, times
from structloss.structures.certified import Certified
from structloss.structures.checks import check_count, check_scale, check_shape
from structloss.structures.engine import is_native
from structloss.structures.graph import native_engine, torch_engine
from structloss.structures.graph.build import as_arcs, as_final, as_list, as_scores
from structloss.structures.graph.sparse import certified
from structloss.structures.graph.strings import best_strings
from structloss.structures.graph.text import Acceptor, from_fst, read, to_fst
from structloss.structures.graph.topology import Machines, Topology, Weighted, build
from structloss.structures.rows import Floats
from structloss.structures.strata import best_at_each
from structloss.structures.tensors import wide

_AGREEMENT = Agreement()


class Lattice(Scored, Computed):
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

    _made = ("_parts",)

    def __init__(
        self,
        arcs: Sequence[Any],
        scores: Tensor | Sequence[Tensor],
        final: Sequence[Iterable[int] | Mapping[int, float]] | None = None,
        num_labels: int | None = None,
    ) -> None:
        rows, self._num_labels = as_arcs(arcs, num_labels)
        self._topology, self._final = build(rows, as_final(final, rows))
        self._scores = as_scores(scores, self._topology.sizes)
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

    def with_scores(self, scores: Tensor | Sequence[Tensor]) -> Self:
        """The same lattice with other scores for its arcs: nothing is sorted or multiplied again.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 1]]], torch.tensor([0., 1.]))
            >>> lattice.with_scores(torch.tensor([3., 1.])).decode()
            [[0]]
        """
        return self._with(_scores=as_scores(scores, self._topology.sizes))

    @property
    def scores(self) -> Tensor:
        """Those of the arcs of all examples in order, (sum of n_b,)."""
        return self._scores

    @property
    def num_labels(self) -> int:
        """How many labels there are, K."""
        return self._num_labels

    def _sizes(self) -> dict[str, object]:
        t = self._topology
        return {
            "states": t.num_nodes, "arcs": t.num_arcs, "positions": t.num_levels - 1, "labels": self._num_labels,
        }  # fmt: skip

    # --- The template ------------------------------------------------------------------------------------------------

    @property
    def _batch(self) -> int:
        return self._topology.batch

    def _times(self, factor: float) -> Self:
        final = np.multiply(self._final, factor, out=self._final.copy(), where=self._final > -np.inf)
        added = {machines: factor * scale for machines, scale in self._added.items()}
        return self._with(_scores=times(self._scores, factor), _final=final, _added=added)

    @property
    def _engine(self) -> NativeEngine[Weighted]:
        return native_engine if is_native(self.device) else torch_engine

    @cached_property
    def _parts(self) -> Weighted:
        """The product with everything that augments it."""
        topology = self._topology
        for machines in self._added:
            topology = topology.times(machines)
        return self._on(topology)

    def _on(self, topology: Topology) -> Weighted:
        """Its scores on a product with its machines, and perhaps with others."""
        constant, final = topology.zeros, np.where(topology.ends, self._final[topology.origin], -np.inf)
        for machines, scale in self._added.items():
            weights, ending = topology.machines[machines]
            outside = np.isinf(ending)
            final = np.where(outside, -np.inf, final + scale * np.where(outside, 0.0, ending))
            if scale != 0.0 and weights.any():
                constant = constant + scale * weights
        return Weighted(topology, self._scores, constant, final)

    @property
    def _offset(self) -> Tensor:
        """Where the scores of each example begin, (B, 1)."""
        return torch.from_numpy(self._topology.offset).to(self.device)[:, None]

    def _choices(self, y: Tensor, name: str) -> Tensor:
        check_shape(y, (self._batch, self._topology.num_levels - 1), name)
        choices = torch.where(y >= 0, y + self._offset, -1)
        arcs, ends = self._topology.walk(choices)
        bad = (ends < 0) | ~torch.from_numpy(self._topology.ends).to(self.device)[ends]
        bad &= (y >= 0).any(2)  # a row of -1 is also what argmax() gives where there is no output
        if bad.any():
            i, b = bad.nonzero()[0].tolist()
            path, known = y[i, b].tolist(), arcs[i, b].tolist()
            wrong = next((t for t, y_t in enumerate(path) if y_t >= 0 > known[t]), len(path) - known.count(-1))
            raise ValueError(
                f"{name}: {path} is no path of example {b}, from position {wrong} on: wanted "
                "arcs from state 0, each from where the one before it leads, to a final state, and then -1"
            )
        return choices

    def _outputs(self, choices: Tensor, exists: Tensor) -> Tensor:
        return torch.where(exists[:, :, None] & (choices >= 0), choices - self._offset, -1)

    def _score(self, choices: Tensor) -> Tensor:
        w = self._parts
        arcs, ends = w.topology.walk(choices)
        constant, final = (wide(torch.from_numpy(x).to(self.device)) for x in (w.constant, w.final))
        total = torch.where(ends >= 0, final[ends], -math.inf)
        if w.topology.num_arcs:
            own = wide(self._scores[choices.clamp(0)]) + constant[arcs.clamp(0)]
            total = total + torch.where(arcs >= 0, own, 0).sum(2)
        return torch.where(total > -math.inf, total, -math.inf).to(self.dtype)

    def _strings(self, y: Tensor) -> list[list[int]]:
        choices, t = self._choices(y[None], "y")[0].cpu().numpy(), self._topology
        labels = np.full(t.num_scores + 1, -1, np.int64)  # the last: after an end
        labels[t.graph.base] = t.label
        return [row[row >= 0].tolist() for row in labels[choices]]

    def _check_same(self, other: Self) -> None:
        if not self._topology.same_paths(other._topology):
            raise ValueError(f"other: got {other!r}, but wanted the arcs and final states of {self!r}")

    def _expectation(self, other: Self) -> Tensor:
        topology = self._parts.topology
        for machines in other._added:
            topology = topology.times(machines, forbid=False)
        mine = self._parts if topology is self._parts.topology else self._on(topology)
        return self._engine.expectation(mine, other._on(topology))

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
        found, width = best_strings(self._parts, k), self._topology.num_levels - 1
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
        make = self._topology.recent_machines.get
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
        strings, t = as_strings(reference, self._batch), self._topology
        return certified(t, self._final, self._scores, loss, strings, self._num_labels, tolerance, self.dtype)

    def _strata(self, loss: Loss, reference: Labels) -> Strata:
        machines = self._machines(loss, reference, absolute=True)
        w = self._on(self._parts.topology.times(machines))
        (_, example), (_, losses) = w.topology.level_and_example, w.topology.machines[machines]
        ends = w.final > -np.inf

        def best(values: Floats) -> Found:
            final = np.where(np.abs(losses - values[example]) < 1e-8, w.final, -np.inf)
            return self._engine.best(w._replace(final=final), 1)

        return best_at_each([losses[ends & (example == b)] for b in range(self._batch)], self._scores, best)
