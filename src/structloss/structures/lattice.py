"""Lattice: the paths of any acyclic graph whose arcs have labels and scores, such as a recogniser's hypotheses."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from structloss.automata.open import OpenAutomaton
from structloss.automata.string import StringAutomaton
from structloss.kernels.lattice import walk
from structloss.kernels.workers import run
from structloss.losses import Loss, MachineLoss, PositionLoss
from structloss.losses.labels import UNKNOWN, Labels, as_padded
from structloss.structures import lattice_native, lattice_text, lattice_torch
from structloss.structures.base import Strata, Structure
from structloss.structures.checks import at_least_float32, check_count, check_floating, check_scale, objection, unfit
from structloss.structures.ctc import CTC
from structloss.structures.engine import is_native
from structloss.structures.lattice_strings import best_strings
from structloss.structures.topology import Floats, Ints, Machines, Topology, Weighted, build

Added = tuple[tuple[Machines, float], ...]  # what augments a lattice: the machines of a batch, and a scale


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
    longest path in the batch. bfloat16 and float16 are computed and returned in float32.

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
        rows = _as_arcs(arcs)
        largest = max((int(a[:, 2].max()) for a in rows if len(a)), default=0)
        if num_labels is None:
            num_labels = max(1, largest + 1)
        elif not isinstance(num_labels, int) or num_labels < 1:
            raise ValueError(f"num_labels: got {num_labels!r}, but wanted a whole number of at least 1")
        for b, a in enumerate(rows):
            _check_arcs(a, b, num_labels)
        topology, ending = build(rows, _as_final(final, rows))
        self._set(topology, _as_scores(scores, topology.sizes), ending, num_labels, ())

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
        arcs, final, firsts, seen = [], [], [], 0
        for b, texts in enumerate(strings):
            ends, states = [], 0
            rows: list[tuple[int, int, int]] = []
            for i, text in enumerate(texts):
                labels = torch.as_tensor(text)
                if labels.dim() != 1 or (labels.numel() and labels.dtype not in _INTEGERS):
                    raise TypeError(f"strings: strings[{b}][{i}] is {text!r:.60}, but wanted a sequence of labels")
                if labels.numel() and int(labels.min()) < 0:
                    raise ValueError(f"strings: strings[{b}][{i}] has the label {int(labels.min())}, below 0")
                firsts.append(seen + len(rows))
                source = 0
                for label in labels.tolist() or [-1]:
                    states += 1
                    rows.append((source, states, label))
                    source = states
                ends.append(source)
            arcs.append(np.array(rows, np.int64).reshape(-1, 3))
            final.append(ends)
            seen += len(rows)
        sizes = np.array([len(texts) for texts in strings], np.int64)
        if isinstance(scores, Tensor):
            if scores.dim() != 2 or scores.shape[0] != len(sizes) or (sizes - scores.shape[1]).any():
                wanted = f"(B, n), where B = {len(sizes)} and the lists have {sizes.tolist()} strings"
                raise ValueError(f"scores: got shape {tuple(scores.shape)}, but wanted {wanted}")
            scores = scores.flatten()
        values = _as_scores(scores, sizes)
        places = torch.tensor(firsts, dtype=torch.int64, device=values.device)
        return cls(arcs, values.new_zeros(seen).index_copy(0, places, values), final, num_labels)

    @staticmethod
    def ctc(log_probs: Tensor, lengths: Tensor | Sequence[int] | None = None, blank: int = 0) -> CTC:
        """The paths of connectionist temporal classification, a structure of their own: see `CTC`.

        Args:
            log_probs: (B, T, C), of each label at each frame.
            lengths: as for `Chain`.
            blank: which of the C labels is the blank. References are lists of labels without blanks.

        Example:
            >>> import torch, structloss as sl
            >>> log_probs = torch.zeros(1, 4, 3).log_softmax(2)
            >>> sl.NegativeLogLikelihood()(sl.Lattice.ctc(log_probs), [[1, 1]])
            tensor(2.7850)
        """
        return CTC(log_probs, lengths, blank)

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
        read = [lattice_text.read(text, f"texts[{b}]", symbols) for b, text in enumerate(texts)]
        scores = torch.tensor([score for a in read for score in a.scores], dtype=torch.get_default_dtype())
        num_labels = None if symbols is None else max(1, len(symbols))
        return cls([a.arcs for a in read], scores, [a.final for a in read], num_labels)

    def with_scores(self, scores: Tensor | Sequence[Tensor]) -> Self:
        """The same lattice with other scores for its arcs: nothing is sorted or multiplied again.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 1]]], torch.tensor([0., 1.]))
            >>> lattice.with_scores(torch.tensor([3., 1.])).decode()
            [[0]]
        """
        return self._like(scores=_as_scores(scores, self._topology.sizes))

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

    @property
    def _native(self) -> bool:
        return is_native(self._scores.device)

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
        """Numbers of arcs within the example (..., B, L) or (B, k, L) from numbers within the batch; -1 stays."""
        offset = torch.from_numpy(self._topology.offset).to(found.device)[:, None]
        return torch.where(found >= 0, found - offset, -1)

    def score(self, y: Tensor | Sequence[Sequence[int] | Tensor]) -> Tensor:
        r"""The score (B,) of paths y (B, L), or (n, B) of n paths each, y (n, B, L). Cost L a path.

        A path that this lattice forbids (by a score of -inf, or by `given`) has -inf; so has a row of -1, which is the
        empty path, where state 0 is not final. Of a list of label sequences, the score is
        :math:`\log \sum \exp(\text{score}(\text{path}))` over the paths that write the sequence.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 0], [1, 2, 1]]], torch.tensor([0., 0., 1.]))
            >>> lattice.score(torch.tensor([[1, 2]])), lattice.score([[0, 1]])
            (tensor([1.]), tensor([1.6931]))
        """
        if not isinstance(y, Tensor):
            return self.given(y).log_partition()
        paths = self._checked(y, "y")
        _, wrong = self._walk(Weighted(self._topology, self._scores, np.zeros(0), self._final), paths)
        # A row of -1 is also what argmax() gives where there is no output.
        wrong = np.where((paths >= 0).any(2).cpu().numpy(), wrong, -1)
        if (wrong >= 0).any():
            i, b = np.argwhere(wrong >= 0)[0].tolist()
            raise ValueError(
                f"y: {paths[i, b].tolist()} is no path of example {b}, from position {wrong[i, b]} on: wanted arcs "
                "from state 0, each from where the one before it leads, to a final state, and then -1"
            )
        return self._score(paths) if y.dim() == 3 else self._score(paths)[0]

    def _checked(self, y: Tensor, name: str) -> Tensor:
        """Paths (n, B, L)."""
        y, _ = as_padded(y, name, self._scores.device)
        wanted = (self._topology.batch, self._topology.num_levels - 1)
        if y.shape[-2:] != wanted or y.dim() > 3:
            raise ValueError(
                f"{name}: got shape {tuple(y.shape)}, but wanted {wanted} or (n, {wanted[0]}, {wanted[1]}): for each "
                "example the numbers of a path's arcs, -1 after its end"
            )
        return y if y.dim() == 3 else y[None]

    def _walk(self, w: Weighted, paths: Tensor) -> tuple[Floats, Ints]:
        """What is not differentiated of the score of paths (n, B, L), (n, B); and where one is none, else -1 (n, B)."""
        value, wrong = np.empty(paths.shape[:2]), np.empty(paths.shape[:2], np.int64)
        arrays = (w.topology.graph, w.constant, w.final, w.topology.offset, paths.cpu().contiguous().numpy())
        run(walk, torch.get_num_threads(), paths.shape[1], 5 * paths.numel(), *arrays, value, wrong)
        return value, wrong

    def _score(self, paths: Tensor) -> Tensor:
        """The score (n, B) of paths (n, B, L) of the lattice."""
        scores, (rest, _) = self._scores, self._walk(self._weighted, paths)
        offset = torch.from_numpy(self._topology.offset).to(paths.device)[:, None]
        used = torch.where(paths >= 0, paths + offset, 0)
        own = scores[used].double() if used.numel() else scores.new_zeros(used.shape, dtype=torch.float64)
        total = torch.where(paths >= 0, own, 0).sum(2) + torch.from_numpy(rest).to(paths.device)
        return torch.where(total > -math.inf, total, -math.inf).to(scores.dtype)

    def decode(self, paths: Tensor | None = None) -> list[Any]:
        """The labels that paths (B, L) write, by default those of `argmax()`: a list of labels for each example.

        Of paths (n, B, L), as `sample` gives them, n such lists.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 4], [1, 2, -1], [2, 3, 4]]], torch.zeros(3))
            >>> lattice.decode()
            [[4, 4]]
        """
        paths = self.argmax() if paths is None else paths
        numbers = self._checked(paths, "paths").cpu().numpy()
        sizes = self._topology.sizes[:, None]
        if (numbers >= sizes).any():
            b = int(np.argwhere(numbers >= sizes)[0, 1])
            raise ValueError(f"paths: got an arc {numbers[:, b].max()} of example {b}, which has {sizes[b, 0]}")
        labels = np.full(self._topology.num_scores + 1, -1, np.int64)  # the last: after an end
        labels[self._topology.graph.base] = self._topology.label
        written = labels[np.where(numbers >= 0, numbers + self._topology.offset[:, None], -1)]
        found = [[row[row >= 0].tolist() for row in rows] for rows in written]
        return found if paths.dim() == 3 else found[0]

    def argmax(self) -> Tensor:
        """The best path (B, L), -1 after its end and in examples that have none. Cost: the arcs.

        Of several best paths, the lexicographically smallest: the one that ends, then the one of the smallest arc.
        """
        with torch.no_grad():
            return self._paths(self._engine.argmax(self._weighted)[0])

    @property
    def _engine(self) -> Any:
        return lattice_native if self._native else lattice_torch

    def max(self) -> Tensor:
        """The score (B,) of the best path. Its gradient is 1 for the arcs of `argmax()`, and 0 for all others.

        Example:
            >>> import torch, structloss as sl
            >>> scores = torch.tensor([0., 2., 1.], requires_grad=True)
            >>> sl.Lattice([[[0, 1, 0], [0, 1, 1], [1, 2, 0]]], scores).max().sum().backward(); scores.grad
            tensor([0., 1., 1.])
        """
        return self._score(self.argmax()[None])[0]

    def log_partition(self) -> Tensor:
        r""":math:`\log \sum \exp(\text{score}(\text{path}))` over all paths, (B,). Cost: the arcs.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Lattice([[[0, 1, 0], [0, 1, 1], [1, 2, 0]]], torch.zeros(3)).log_partition()  # log 2
            tensor([0.6931])
        """
        return (
            lattice_native.log_partition(self._weighted)
            if self._native
            else lattice_torch.log_partition(self._weighted)
        )

    def marginals(self) -> Tensor:
        """The probability of each arc, (sum of n_b,): the gradient of `log_partition()` in the scores. Cost: the arcs.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Lattice([[[0, 1, 0], [0, 1, 1], [1, 2, 0]]], torch.tensor([0., 1., 0.])).marginals()
            tensor([0.2689, 0.7311, 1.0000])
        """
        if self._native:
            return lattice_native.marginals(self._weighted)
        return lattice_torch.marginals(self._weighted, create_graph=torch.is_grad_enabled())

    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """n paths each, (n, B, L), -1 after an end, with probability exp(score) / Z. Cost: the arcs, and n * L * D.

        D is the most arcs that leave a state.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 1], [1, 2, 0]]], torch.tensor([0., 99., 0.]))
            >>> lattice.sample(2, torch.Generator().manual_seed(0))
            tensor([[[1, 2]],
            <BLANKLINE>
                    [[1, 2]]])
        """
        check_count(n, "n")
        shape = (n, self._topology.batch, self._topology.num_levels - 1)
        uniforms = torch.rand(shape, generator=generator, device=self._scores.device, dtype=torch.float64)
        with torch.no_grad():
            found, exists = self._engine.sample(self._weighted, uniforms)
        if not exists.all():
            raise ValueError(f"sample: example {int((~exists).int().argmax())} has no output: every score is -inf")
        return self._paths(found)

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The scores (B, k) and paths (B, k, L) of the k best, best first, ties in lexicographic order; exact.

        Where there are fewer than k paths: score -inf, arcs -1. Time and memory k times the arcs.

        Example:
            >>> import torch, structloss as sl
            >>> sl.Lattice([[[0, 1, 0], [0, 1, 1], [1, 2, 0]]], torch.tensor([0., 2., 0.])).topk(2)
            (tensor([[2., 0.]]), tensor([[[1, 2],
                     [0, 2]]]))
        """
        check_count(k, "k")
        with torch.no_grad():
            found, exists = self._engine.topk(self._weighted, k)
            paths = self._paths(found.transpose(0, 1))
        scores = self._score(paths).T
        return torch.where(exists, scores, -math.inf), paths.transpose(0, 1)

    def topk_strings(self, k: int) -> tuple[Tensor, list[list[list[int]]]]:
        """The scores (B, k) and the k best different strings of each example, each worth its best path; exact.

        Best first, of equals the lexicographically smaller string first; score -inf where there are fewer. Best-first
        search, at most k * L sets of states in Python.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 7], [0, 1, 7], [0, 1, 2]]], torch.tensor([3., 2., 1.]))
            >>> lattice.topk_strings(2)
            (tensor([[3., 1.]]), [[[7], [2]]])
        """
        check_count(k, "k")
        w, t = self._weighted, self._topology
        with torch.no_grad():
            best = self._engine.completions(w)
        arcs = self._scores.detach().double().cpu().numpy()[w.topology.graph.base]
        arcs = arcs + w.constant if len(w.constant) else arcs
        strings, paths = [], np.full((k, t.batch, t.num_levels - 1), -1, np.int64)
        exists = torch.zeros(t.batch, k, dtype=torch.bool)
        for b in range(t.batch):
            found = best_strings(w.topology, b, arcs, w.final, best, k)
            strings.append([list(string) for string, _ in found])
            exists[b, : len(found)] = True
            for i, (_, path) in enumerate(found):
                paths[i, b, : len(path)] = np.array(path, np.int64) - t.offset[b]
        device = self._scores.device
        scores = self._score(torch.from_numpy(paths).to(device)).T
        return torch.where(exists.to(device), scores, -math.inf), strings

    def augment(self, loss: Loss, reference: Labels, scale: float = 1.0) -> Self:
        """The same paths, scored by score(path) + scale * loss(what it writes, reference). It is a Lattice again.

        Args:
            loss: one with a machine (EditDistance, SmithWaterman, NGram), or Hamming, under which strings that are not
                as long as the reference are outside. With S machine states for a state of the lattice, operations on
                the result cost S times what they cost on self; a cap keeps S small.
            reference: a list of label sequences, or labels (B, T) where negative ones at the end are padding.
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
        if not isinstance(loss, MachineLoss | PositionLoss):
            raise TypeError(f"loss: got {loss!r}, but wanted a loss that a Lattice can carry, such as EditDistance()")
        strings = self._references(reference)
        for b, string in enumerate(strings):
            if isinstance(loss, PositionLoss):
                wrong = (string >= self._num_labels) | ((string < 0) & (string != UNKNOWN))
                wanted = f"0 to {self._num_labels - 1}, or {UNKNOWN} for unknown"
            else:
                wrong, wanted = string < 0, "of at least 0"
            if wrong.any():
                label = int(string[wrong.argmax()])
                raise ValueError(f"reference: reference[{b}] has the label {label}, but {loss!r} wants labels {wanted}")
        return self._kept((loss, absolute), strings, lambda string: loss.open(string, self._num_labels, absolute))

    def _kept(self, key: Hashable, strings: list[Ints], make: Callable[[Ints], OpenAutomaton]) -> Machines:
        """A machine for each string, the same as the last time: products with the same machines are made once."""
        whole = (key, self._num_labels, *(string.tobytes() for string in strings))
        return self._topology.recent_machines.get(whole, lambda: tuple(make(string) for string in strings))

    def _references(self, reference: Labels) -> list[Ints]:
        """The labels of each example's reference."""
        labels, lengths = as_padded(reference, "reference")
        if labels.dim() != 2 or labels.shape[0] != self._topology.batch:
            wanted = f"({self._topology.batch}, T), or a list of {self._topology.batch} label sequences"
            raise ValueError(f"reference: got shape {tuple(labels.shape)}, but wanted {wanted}")
        rows = labels.cpu().numpy()
        if lengths is None:
            sizes = ((rows >= 0) * np.arange(1, rows.shape[1] + 1)).max(1, initial=0).tolist()
        else:
            sizes = lengths.tolist()
        return [np.ascontiguousarray(row[:size]) for row, size in zip(rows, sizes, strict=True)]

    def given(self, reference: Labels) -> Self:
        """The paths that write the reference, scored as they were; none, where the lattice does not have it.

        Args:
            reference: a list of label sequences, or labels (B, T) where negative ones at the end are padding.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 1], [1, 2, 0]]], torch.tensor([0., 2., 0.]))
            >>> lattice.given([[0, 0]]).argmax()
            tensor([[0, 2]])
        """
        strings = self._references(reference)
        for b, string in enumerate(strings):
            if (string < 0).any():
                raise ValueError(
                    f"reference: reference[{b}] has the label {string.min()}, but a Lattice wants labels of at least 0"
                )
        accepting = self._kept("given", strings, lambda string: StringAutomaton(string, self._num_labels))
        return self._with_machines(accepting, 0.0)

    def uniform(self) -> Self:
        """The same paths, every one with score 0 (what -inf forbids stays forbidden)."""
        scores = torch.where(self._scores.detach().isneginf(), -math.inf, 0).to(self._scores.dtype)
        return self._like(
            scores, np.where(self._final > -np.inf, 0.0, -np.inf), tuple((m, 0.0) for m, _ in self._added)
        )

    def expectation(self, other: Self) -> Tensor:
        """E[other.score(path)], the path drawn from self. (B,); 0 where self has no output. Cost: the arcs.

        Args:
            other: a lattice of the same arcs and final states; what augments the two may differ.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 1]]], torch.zeros(2))
            >>> lattice.expectation(lattice.with_scores(torch.tensor([1., 3.])))
            tensor([2.])
        """
        if not isinstance(other, Lattice):
            raise TypeError(f"other: got {type(other).__name__}, but wanted a Lattice")
        if not self._topology.same_paths(other._topology):
            raise ValueError(f"other: got {other!r}, but wanted the arcs and final states of {self!r}")
        if self._scores.dtype != other._scores.dtype:
            raise TypeError(f"other: got {other._scores.dtype}, but wanted {self._scores.dtype}")
        topology = self._weighted.topology
        for machines, _ in other._added:
            topology = topology.times(machines, forbid=False)
        mine = self._weighted if topology is self._weighted.topology else self._on(topology)
        value: Tensor = self._engine.expectation(mine, other._on(topology))
        return value

    def strata(self, loss: Loss, reference: Labels, lowest: bool = False) -> Strata:
        """The best path at each value of loss(what it writes, reference), or the one of lowest score.

        With V values, cost V times that of `argmax()`.

        Example:
            >>> import torch, structloss as sl
            >>> lattice = sl.Lattice([[[0, 1, 0], [0, 1, 1], [1, 2, 0]]], torch.tensor([0., 2., 0.]))
            >>> losses, paths, _ = lattice.strata(sl.EditDistance(), [[0, 0]])
            >>> losses, paths
            (tensor([[0., 1.]]), tensor([[[0, 2],
                     [1, 2]]]))
        """
        s, machines = self._negated() if lowest else self, self._machines(loss, reference, absolute=True)
        with torch.no_grad():
            w = s._on(s._weighted.topology.times(machines))
            t, (_, losses) = w.topology, w.topology.weights_of(machines)
            stratum, values = _strata_of(losses, t.example, w.final > -np.inf, t.batch)
            outputs = torch.full((*values.shape, t.num_levels - 1), -1, device=self._scores.device)
            exists = torch.zeros(values.shape, dtype=torch.bool, device=self._scores.device)
            for i in range(values.shape[1]):
                wanted = np.where(stratum == i, w.final, -np.inf)
                found, exists[:, i] = self._engine.argmax(w._replace(final=wanted))
                outputs[:, i] = self._paths(found)
        return Strata(torch.from_numpy(values).to(self._scores), outputs, exists)

    def _negated(self) -> Self:
        """Every score negated; what -inf forbids stays forbidden."""
        scores = self._scores.detach()
        return self._like(
            torch.where(scores.isneginf(), -math.inf, -scores),
            np.where(self._final > -np.inf, -self._final, -np.inf),
            tuple((machines, -scale) for machines, scale in self._added),
        )


def _strata_of(losses: Floats, example: Ints, ends: NDArray[np.bool_], batch: int) -> tuple[Ints, Floats]:
    """Of each node where a path ends, which of its example's values its loss is (-1 elsewhere); the values (B, V).

    Losses that differ by rounding only are one value. Values that an example does not have are 0.
    """
    stratum, found = np.full(len(losses), -1, np.int64), []
    for b in range(batch):
        here = np.flatnonzero((example == b) & ends)
        values = np.unique(losses[here])
        values = values[np.diff(values, prepend=-np.inf) > 1e-8]
        stratum[here] = np.searchsorted(values, losses[here], side="right") - 1
        found.append(values)
    table = np.zeros((batch, max([len(values) for values in found], default=1) or 1))
    for b, values in enumerate(found):
        table[b, : len(values)] = values
    return stratum, table


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _as_arcs(arcs: Sequence[Any]) -> list[Ints]:
    """(n_b, 3) of each example."""
    try:
        rows = [np.asarray(a.cpu() if isinstance(a, Tensor) else a) for a in arcs]
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"arcs: got {arcs!r:.60}, but wanted a list of integers (n, 3), one for each example"
        ) from error
    for b, a in enumerate(rows):
        if a.size == 0:
            rows[b] = np.zeros((0, 3), np.int64)
        elif a.ndim != 2 or a.shape[1] != 3:
            raise ValueError(f"arcs: arcs[{b}] has shape {a.shape}, but wanted (n, 3): source, target, label")
        elif not np.issubdtype(a.dtype, np.integer):
            raise TypeError(f"arcs: arcs[{b}] has {a.dtype}, but wanted integers: source, target, label")
        else:
            rows[b] = np.ascontiguousarray(a, np.int64)
    return rows


def _check_arcs(arcs: Ints, b: int, num_labels: int) -> None:
    """Raise for states and labels that make no sense."""
    wrong = (arcs[:, :2] < 0).any(1) | (arcs[:, :2] > _LAST_STATE).any(1)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(f"arcs: arcs[{b}][{i}] is {arcs[i].tolist()}, but states are numbers from 0 to {_LAST_STATE}")
    wrong = (arcs[:, 2] < -1) | (arcs[:, 2] >= num_labels)
    if wrong.any():
        i = int(wrong.argmax())
        raise ValueError(
            f"arcs: arcs[{b}][{i}] is {arcs[i].tolist()}, but labels are 0 to {num_labels - 1}, or -1 for epsilon"
        )


_LAST_STATE = 2**31 - 1


def _as_final(final: Sequence[Iterable[int] | Mapping[int, float]] | None, arcs: list[Ints]) -> list[dict[int, float]]:
    """The final states of each example and their scores."""
    if final is None:
        return [dict.fromkeys(np.setdiff1d(np.append(a[:, 1], 0), a[:, 0]).tolist(), 0.0) for a in arcs]
    if len(final) != len(arcs):
        raise ValueError(f"final: got {len(final)}, but arcs has {len(arcs)} examples")
    result = []
    for b, (given, a) in enumerate(zip(final, arcs, strict=True)):
        try:
            pairs = given.items() if isinstance(given, Mapping) else [(state, 0.0) for state in given]
            scores = {int(state): float(score) for state, score in pairs}
        except (TypeError, ValueError) as error:
            raise TypeError(f"final: final[{b}] is {given!r:.60}, but wanted states, or a dict of scores") from error
        named = {0, *a[:, :2].reshape(-1).tolist()}
        for state, score in scores.items():
            if state not in named:
                raise ValueError(f"final: final[{b}] has state {state}, but no arc of arcs[{b}] leaves or enters it")
            if not score < math.inf:
                raise ValueError(
                    f"final: final[{b}] has the score {score} for state {state}, but wanted a number or -inf"
                )
        result.append({state: score for state, score in scores.items() if score > -math.inf})
    return result


def _as_scores(scores: Tensor | Sequence[Tensor], sizes: Ints) -> Tensor:
    """(sum of n_b,), numbers or -inf."""
    if not isinstance(scores, Tensor):
        if len(scores) != len(sizes):
            raise ValueError(f"scores: got a list of {len(scores)}, but wanted {len(sizes)}, one for each example")
        for b, (own, size) in enumerate(zip(scores, sizes.tolist(), strict=True)):
            check_floating(own, f"scores[{b}]")
            if own.shape != (size,):
                raise ValueError(f"scores: scores[{b}] has shape {tuple(own.shape)}, but wanted ({size},)")
        scores = torch.cat(list(scores)) if len(scores) else torch.zeros(0)
    check_floating(scores, "scores")
    if scores.shape != (int(sizes.sum()),):
        raise ValueError(
            f"scores: got shape {tuple(scores.shape)}, but wanted ({int(sizes.sum())},), one for each of the arcs of "
            f"{len(sizes)} examples in order"
        )
    wrong = unfit(scores)
    if wrong.any():
        i = int(wrong.int().argmax())
        b = int(np.searchsorted(np.cumsum(sizes), i, side="right"))
        raise ValueError(f"scores: example {b} has {objection(scores[i], f' at arc {i - int(sizes[:b].sum())}')}")
    return at_least_float32(scores)
