"""Lattice: the paths of any acyclic graph whose arcs have labels and scores, such as a recogniser's hypotheses."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.automata.open import OpenAutomaton
from structloss.automata.string import StringAutomaton
from structloss.losses import LocalLoss, Loss, MachineLoss
from structloss.losses.references import Labels, String, as_strings
from structloss.structures.base import Found, Strata, Structure, times
from structloss.structures.checks import check_count, check_scale, check_shape
from structloss.structures.engine import is_native
from structloss.structures.graph import native_engine, torch_engine
from structloss.structures.graph.build import as_arcs, as_final, as_list, as_scores, check_arcs
from structloss.structures.graph.strings import best_strings
from structloss.structures.graph.text import read
from structloss.structures.graph.topology import Floats, Ints, Machines, Topology, Weighted, build

Added = tuple[tuple[Machines, float], ...]  # what augments a lattice: the machines of a batch, and a scale


class GraphEngine(Protocol):
    """What computes on lattices: an `Engine`, whose choices are the scores that paths use.

    And `completions`, the best score of a way to end from each node, (N,).
    """

    def log_partition(self, w: Weighted, /) -> Tensor: ...
    def expectation(self, w: Weighted, f: Weighted, /) -> Tensor: ...
    def best(self, w: Weighted, k: int, /) -> Found: ...
    def draw(self, w: Weighted, n: int, generator: torch.Generator | None, /) -> Found: ...
    def completions(self, w: Weighted, /) -> Floats: ...


class Lattice(Structure):
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

    def __init__(
        self,
        arcs: Sequence[Any],
        scores: Tensor | Sequence[Tensor],
        final: Sequence[Iterable[int] | Mapping[int, float]] | None = None,
        num_labels: int | None = None,
    ) -> None:
        rows = as_arcs(arcs)
        largest = max((int(a[:, 2].max()) for a in rows if len(a)), default=0)
        if num_labels is None:
            num_labels = max(1, largest + 1)
        elif not isinstance(num_labels, int) or num_labels < 1:
            raise ValueError(f"num_labels: got {num_labels!r}, but wanted a whole number of at least 1")
        for b, a in enumerate(rows):
            check_arcs(a, b, num_labels)
        ends = as_final(final, rows)
        topology, ending = build(rows, ends)
        self._set(topology, as_scores(scores, topology.sizes), ending, num_labels, ())

    def _set(self, topology: Topology, scores: Tensor, final: Floats, num_labels: int, added: Added) -> None:
        self._topology, self._scores, self._final, self._num_labels = topology, scores, final, num_labels
        self._added = added

    def _like(self, scores: Tensor | None = None, final: Floats | None = None, added: Added | None = None) -> Self:
        """The same arcs with some of the rest exchanged."""
        lattice = type(self).__new__(type(self))
        lattice._set(
            self._topology,
            self._scores if scores is None else scores,
            self._final if final is None else final,
            self._num_labels,
            self._added if added is None else added,
        )
        return lattice

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
        acceptors = [read(text, f"texts[{b}]", symbols) for b, text in enumerate(texts)]
        scores = torch.tensor([score for a in acceptors for score in a.scores], dtype=torch.get_default_dtype())
        num_labels = None if symbols is None else max(1, len(symbols))
        return cls([a.arcs for a in acceptors], scores, [a.final for a in acceptors], num_labels)

    def with_scores(self, scores: Tensor | Sequence[Tensor]) -> Self:
        """The same lattice with other scores for its arcs: nothing is sorted or multiplied again.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 1]]], torch.tensor([0., 1.]))
            >>> lattice.with_scores(torch.tensor([3., 1.])).decode()
            [[0]]
        """
        return self._like(scores=as_scores(scores, self._topology.sizes))

    @property
    def scores(self) -> Tensor:
        """Those of the arcs of all examples in order, (sum of n_b,)."""
        return self._scores

    @property
    def num_labels(self) -> int:
        """How many labels there are, K."""
        return self._num_labels

    def __repr__(self) -> str:
        t = self._topology
        return (
            f"Lattice(batch={t.batch}, states={t.num_nodes}, arcs={t.num_arcs}, positions={t.num_levels - 1}, "
            f"labels={self._num_labels}, {self._scores.dtype}, {self._scores.device})"
        )

    # --- The template ------------------------------------------------------------------------------------------------

    @property
    def _batch(self) -> int:
        return self._topology.batch

    @property
    def _potentials(self) -> tuple[Tensor, ...]:
        return (self._scores,)

    def _with_potentials(self, potentials: tuple[Tensor, ...]) -> Self:
        return self._like(scores=potentials[0])

    def _times(self, factor: float) -> Self:
        final = factor * np.where(self._final > -np.inf, self._final, 0.0)
        added = tuple((machines, factor * scale) for machines, scale in self._added)
        return self._like(times(self._scores, factor), np.where(self._final > -np.inf, final, -np.inf), added)

    @property
    def _engine(self) -> GraphEngine:
        return native_engine if is_native(self.device) else torch_engine

    @cached_property
    def _weighted(self) -> Weighted:
        """The product with everything that augments it."""
        topology = self._topology
        for machines, _ in self._added:
            topology = topology.times(machines)
        return self._on(topology)

    def _on(self, topology: Topology) -> Weighted:
        """Its scores on a product with its machines, and perhaps with others."""
        constant, final = np.zeros(0), np.where(topology.ends, self._final[topology.origin], -np.inf)
        for machines, scale in self._added:
            weights, ending = topology.weights_of(machines)
            outside = np.isinf(ending)
            final = np.where(outside, -np.inf, final + scale * np.where(outside, 0.0, ending))
            if scale != 0.0 and weights.any():
                constant = scale * weights + (constant if len(constant) else 0.0)
        return Weighted(topology, self._scores, constant, final)

    def _paths(self, found: Tensor) -> Tensor:
        """Numbers of arcs within the example (n, B, L) from numbers within the batch; -1 stays."""
        offset = torch.from_numpy(self._topology.offset).to(found.device)[:, None]
        return torch.where(found >= 0, found - offset, -1)

    def _choices(self, y: Tensor, name: str) -> Tensor:
        check_shape(y, (self._batch, self._topology.num_levels - 1), name)
        _, wrong = Weighted(self._topology, self._scores, np.zeros(0), self._final).walk(y)
        bad = (wrong >= 0) & (y >= 0).any(2)  # a row of -1 is also what argmax() gives where there is no output
        if bad.any():
            i, b = bad.nonzero()[0].tolist()
            raise ValueError(
                f"{name}: {y[i, b].tolist()} is no path of example {b}, from position {int(wrong[i, b])} on: wanted "
                "arcs from state 0, each from where the one before it leads, to a final state, and then -1"
            )
        return y

    def _outputs(self, choices: Tensor, exists: Tensor) -> Tensor:
        return torch.where(exists[:, :, None], choices, -1)

    def _score(self, paths: Tensor) -> Tensor:
        """The score (n, B) of paths (n, B, L) of the lattice."""
        scores, (rest, _) = self._scores, self._weighted.walk(paths)
        offset = torch.from_numpy(self._topology.offset).to(paths.device)[:, None]
        used = torch.where(paths >= 0, paths + offset, 0)
        own = scores[used].double() if used.numel() else scores.new_zeros(used.shape, dtype=torch.float64)
        total = torch.where(paths >= 0, own, 0).sum(2) + rest
        return torch.where(total > -math.inf, total, -math.inf).to(scores.dtype)

    def _best(self, k: int) -> Found:
        choices, exists = self._engine.best(self._weighted, k)
        return Found(self._paths(choices), exists)

    def _draw(self, n: int, generator: torch.Generator | None) -> Found:
        choices, exists = self._engine.draw(self._weighted, n, generator)
        return Found(self._paths(choices), exists)

    def _log_partition(self) -> Tensor:
        return self._engine.log_partition(self._weighted)

    def _marginals(self) -> Tensor:
        # By tensor operations they are the gradient of log Z, as of any structure.
        return native_engine.marginals(self._weighted) if is_native(self.device) else super()._marginals()

    def _strings(self, y: Tensor) -> list[list[int]]:
        numbers, t = self._choices(y[None], "y")[0].cpu().numpy(), self._topology
        labels = np.full(t.num_scores + 1, -1, np.int64)  # the last: after an end
        labels[t.graph.base] = t.label
        written = labels[np.where(numbers >= 0, numbers + t.offset[:, None], -1)]
        return [row[row >= 0].tolist() for row in written]

    def _check_same(self, other: Self) -> None:
        if not self._topology.same_paths(other._topology):
            raise ValueError(f"other: got {other!r}, but wanted the arcs and final states of {self!r}")

    def _expectation(self, other: Self) -> Tensor:
        topology = self._weighted.topology
        for machines, _ in other._added:
            topology = topology.times(machines, forbid=False)
        mine = self._weighted if topology is self._weighted.topology else self._on(topology)
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
        w, t = self._weighted, self._topology
        with torch.no_grad():
            best = self._engine.completions(w)
        arcs = self._scores.detach().double().cpu().numpy()[w.topology.graph.base]
        arcs = arcs + w.constant if len(w.constant) else arcs
        strings, paths = [], np.full((k, t.batch, t.num_levels - 1), -1, np.int64)
        exists = torch.zeros(k, t.batch, dtype=torch.bool)
        for b in range(t.batch):
            found = best_strings(w.topology, b, arcs, w.final, best, k)
            strings.append([list(string) for string, _ in found])
            exists[: len(found), b] = True
            for i, (_, path) in enumerate(found):
                paths[i, b, : len(path)] = np.array(path, np.int64) - t.offset[b]
        device = self._scores.device
        scores = self._score(torch.from_numpy(paths).to(device))
        return torch.where(exists.to(device), scores, -math.inf), strings

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
        return self._with_machines(self._machines(loss, reference, absolute=False), scale)

    def _with_machines(self, machines: Machines, scale: float) -> Self:
        already = dict(self._added)
        already[machines] = already.get(machines, 0.0) + scale
        return self._like(added=tuple(already.items()))

    def _machines(self, loss: Loss, reference: Labels, absolute: bool) -> Machines:
        if not isinstance(loss, MachineLoss | LocalLoss):
            raise TypeError(f"loss: got {loss!r}, but wanted a loss that a Lattice can carry, such as EditDistance()")
        strings = as_strings(reference, self._batch)
        return self._kept((loss, absolute), strings, lambda string: loss.open(string, self._num_labels, absolute))

    def _kept(self, key: Hashable, strings: list[String], make: Callable[[String], OpenAutomaton]) -> Machines:
        """A machine for each string, the same as the last time: products with the same machines are made once."""
        whole = (key, self._num_labels, *((string.tobytes(), string.shape) for string in strings))
        return self._topology.recent_machines.get(whole, lambda: tuple(make(string) for string in strings))

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
        strings = as_strings(reference, self._batch)
        accepting = self._kept("given", strings, lambda string: StringAutomaton(string, self._num_labels))
        return self._with_machines(accepting, 0.0)

    def strata(self, loss: Loss, reference: Labels, lowest: bool = False) -> Strata:
        """The best path at each value of loss(what it writes, reference), or the one of lowest score.

        With V values, cost V times that of `argmax()`.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 1], [1, 2, 0]]], torch.tensor([0., 2., 0.]))
            >>> losses, paths, _ = lattice.strata(sl.EditDistance(), [[0, 0]])
            >>> losses[:, 0], paths[:, 0]
            (tensor([0., 1.]), tensor([[0, 2],
                    [1, 2]]))
        """
        s, machines = self.detach()._times(-1.0) if lowest else self, self._machines(loss, reference, absolute=True)
        with torch.no_grad():
            w = s._on(s._weighted.topology.times(machines))
            t, (_, losses) = w.topology, w.topology.weights_of(machines)
            stratum, values = _strata_of(losses, t.example, w.final > -np.inf, t.batch)
            found = [
                self._engine.best(w._replace(final=np.where(stratum == i, w.final, -np.inf)), 1)
                for i in range(len(values))
            ]
            choices, exists = torch.cat([f.choices for f in found]), torch.cat([f.exists for f in found])
        return Strata(torch.from_numpy(values).to(self._scores), self._outputs(self._paths(choices), exists), exists)


def _strata_of(losses: Floats, example: Ints, ends: NDArray[np.bool_], batch: int) -> tuple[Ints, Floats]:
    """Of each node where a path ends, which of its example's values its loss is (-1 elsewhere); the values (V, B).

    Losses that differ by rounding only are one value. Values that an example does not have are 0.
    """
    stratum, found = np.full(len(losses), -1, np.int64), []
    for b in range(batch):
        here = np.flatnonzero((example == b) & ends)
        values = np.unique(losses[here])
        values = values[np.diff(values, prepend=-np.inf) > 1e-8]
        stratum[here] = np.searchsorted(values, losses[here], side="right") - 1
        found.append(values)
    table = np.zeros((max([len(values) for values in found], default=1) or 1, batch))
    for b, values in enumerate(found):
        table[: len(values), b] = values
    return stratum, table
