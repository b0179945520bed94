"""FactorGraphBuilder: what builds a factor graph from variables, factors with tables, hard factors and grids."""

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structloss.structures.checks import at_least_float32, check_floating, objection, unfit
from structloss.structures.factor_graph.factor_graph import FactorGraph
from structloss.structures.factor_graph.inference import Method, Solver, inference_of
from structloss.structures.factor_graph.parts import Block, Parts
from structloss.structures.factor_graph.readers import Reading, attached
from structloss.structures.rows import Ints

Ragged = Tensor | Sequence[Tensor]


class FactorGraphBuilder:
    """Variables with a few labels each and factors that score some of them together, to be built into a `FactorGraph`.

    Every score may come from a network of its own. A builder may be added to after `build()`, and be built again.

    Example:
        >>> import torch, structloss as sl
        >>> g = sl.FactorGraphBuilder()
        >>> rain = g.variable(torch.tensor([[0.0, 1.0]]))
        >>> umbrella = g.variable(torch.tensor([[0.5, 0.0]]))
        >>> g.factor((rain, umbrella), torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]))
        >>> graph = g.build()
        >>> graph.argmax(), graph.max()
        (tensor([[1, 1]]), tensor([2.]))
    """

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._hard: list[Reading] = []
        self._sizes = np.zeros((0, 0), np.int64)  # (B, N): how many labels each variable has; 0 beyond

    def build(
        self, method: Method = "auto", *, solver: Solver = "dual", tolerance: float = 1e-4, reweighted: bool = False
    ) -> FactorGraph:
        """The graph of what was added so far.

        Args:
            method: how to find maxima and sums.
                "exact": by variable elimination; time and memory grow with the number of labels to the power of the
                graph's tree-width, and an error says so where that is too much.
                "lp": the linear relaxation, over the local marginal polytope. `max()` is its value, an upper bound;
                `certificate()` says how far from an output it is. Its gradient is the solution, McAllester 2010, eq.
                12.
                "ilp": the best output by HiGHS's integer programming.
                "bp": belief propagation, for `log_partition()` and `marginals()` only: exact on trees, else the Bethe
                approximation, or with `reweighted` the tree-reweighted upper bound.
                "auto": "exact" where elimination takes at most 2**22 cells an example, else "lp"; `inference` says
                which.
            solver: of "lp": our "dual" method, or "highs".
            tolerance: the relative gap at which "lp" stops, and the change of messages at which "bp" does.
            reweighted: whether "bp" is tree-reweighted.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> y = g.variables(torch.zeros(2, 3, 4))
            >>> g.build(method="lp")
            FactorGraph(batch=2, variables=3, factors=0, hard=0, method='lp', torch.float32, cpu)
        """
        inference = inference_of(method, solver, tolerance, reweighted)
        self._check_begun("build")
        own = Parts.of(
            self._blocks, np.count_nonzero(self._sizes, 1), self._sizes.shape[1], int(self._sizes.max(initial=1))
        )
        return FactorGraph(attached(own, [(reading, 0.0) for reading in self._hard]), tuple(self._hard), inference)

    def variable(self, scores: Tensor) -> int:
        """A variable in every example, with the scores (B, K) of its labels. Returns its number.

        Example:
            >>> import torch, structloss as sl
            >>> sl.FactorGraphBuilder().variable(torch.zeros(4, 3))
            0
        """
        _check_axes(scores, 2, "a tensor (B, K)")
        self._check_batch(len(scores))
        if not self._sizes.all():
            raise ValueError("variable: the examples differ in how many variables they have; wanted variables()")
        return int(self.variables(scores[:, None])[0])

    def variables(self, scores: Ragged) -> Tensor | list[Tensor]:
        """N variables at once, with scores (B, N, K); or a list with the scores (N, K) of each example.

        Returns their numbers (N,), or where examples differ a list of them.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> g.variables([torch.zeros(2, 3), torch.zeros(4, 3)])
            [tensor([0, 1]), tensor([0, 1, 2, 3])]
        """
        flat, counts = _as_rows(scores, "scores", 1, "N, K")
        if flat.shape[1] == 0:
            raise ValueError("scores: got no labels, but a variable has at least one")
        self._check_batch(len(counts))
        owner = np.repeat(np.arange(len(counts)), counts)
        self._add(Block.variables(owner, np.full(len(owner), flat.shape[1]), flat.reshape(-1)))
        before = self._sizes if len(self._blocks) > 1 else np.zeros((len(counts), 0), np.int64)
        first = np.count_nonzero(before, 1)
        last = first + np.array(counts, np.int64)
        width = int(last.max(initial=before.shape[1] + (scores.shape[1] if isinstance(scores, Tensor) else 0)))
        self._sizes = np.pad(before, ((0, 0), (0, width - before.shape[1])))
        number = np.arange(width)
        self._sizes[(number >= first[:, None]) & (number < last[:, None])] = flat.shape[1]
        numbers = [torch.arange(*ends) for ends in zip(first.tolist(), last.tolist(), strict=True)]
        return numbers if len(set(map(len, numbers))) > 1 or not before.all() else torch.arange(before.shape[1], width)

    def factor(self, scope: Sequence[int], scores: Tensor) -> None:
        """A factor over some variables, of every example, with the scores (B, K1, K2, ...) of their labels.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> y = g.variable(torch.zeros(1, 2)), g.variable(torch.zeros(1, 3))
            >>> g.factor(y, torch.arange(6.0).reshape(1, 2, 3))
            >>> g.build().argmax()
            tensor([[1, 2]])
        """
        scope = _whole_numbers(scope, "scope")
        _check_axes(scores, len(scope) + 1, f"(B{', K' * len(scope)}) for {len(scope)} variables")
        self.factors([scope], scores[:, None])

    def factors(self, scopes: Any, scores: Ragged) -> None:
        """F factors at once, over scopes (F, arity), with scores (B, F, K, ...); or lists with those of each example.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> g.variables(torch.zeros(1, 3, 2))
            tensor([0, 1, 2])
            >>> g.factors([[0, 1], [1, 2]], torch.eye(2).expand(1, 2, 2, 2))
            >>> g.build().max()
            tensor([2.])
        """
        self._check_begun("scopes")
        batch, shared = len(self._sizes), isinstance(scores, Tensor)
        own = [_as_scopes(x) for x in ([scopes] if shared else scopes)]
        if not shared and len(own) != batch:
            raise ValueError(
                f"scopes: got {len(own)} examples, but the graph has {batch}: scores are a list, so is this"
            )
        self._check_batch(len(scores))
        arity = own[0].shape[1]
        flat, counts = _as_rows(scores, "scores", arity, "F" + ", K" * arity)
        for b, count in enumerate(counts):
            wanted = len(own[b % len(own)])
            if count != wanted:
                raise ValueError(f"scores: example {b} has scores of {count} factors, but scopes of {wanted}")
        scope = np.concatenate([own[0][:0], *(own * batch if shared else own)])
        owner = np.repeat(np.arange(batch), counts)
        self._check_scopes(scope, owner, tuple(flat.shape[1:]))
        full = np.ones_like(owner)
        self._add(Block(owner, math.prod(flat.shape[1:]) * full, flat.reshape(-1), arity * full, scope.ravel()))

    def grid(self, unaries: Ragged, right: Ragged, down: Ragged) -> Tensor | list[Tensor]:
        """A grid of variables (an image): row after row, each with a factor to its right and to its lower neighbour.

        Args:
            unaries: scores (B, H, W, K), or (H, W, K) of each image.
            right: scores (B, H, W - 1, K, K) of each variable with the one to its right, or a list.
            down: scores (B, H - 1, W, K, K) of each variable with the one below, or a list.

        Returns:
            The numbers (H, W) of the variables, or a list of them.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> g.grid(torch.zeros(1, 2, 2, 3), torch.zeros(1, 2, 1, 3, 3), torch.zeros(1, 1, 2, 3, 3))
            tensor([[0, 1],
                    [2, 3]])
        """
        if self._blocks:
            raise ValueError("grid: the graph has variables already; wanted an empty one")
        if isinstance(unaries, Tensor):
            _as_rows(unaries, "unaries", 2, "H, W, K")
        images = list(unaries)
        for b, image in enumerate(images):
            if not isinstance(image, Tensor) or image.dim() != 3:
                raise ValueError(f"unaries: the image of example {b} is not a tensor (H, W, K)")
        places = [torch.arange(image[..., 0].numel()).reshape(image.shape[:2]) for image in images]
        neighbours = []
        for name, scores, axis in (("right", right, 1), ("down", down, 0)):
            if len(scores) != len(images):
                raise ValueError(f"{name}: got {len(scores)} examples, but unaries has {len(images)}")
            for b, (image, own) in enumerate(zip(images, scores, strict=True)):
                height, width, labels = image.shape
                wanted = (height - 1 + axis, width - axis, labels, labels)
                if own.shape != wanted:
                    raise ValueError(
                        f"{name}: example {b} has shape {tuple(own.shape)}, but wanted {wanted} for an image "
                        f"{(height, width)} with {labels} labels"
                    )
            ends = [(x[:, :-1], x[:, 1:]) if axis else (x[:-1], x[1:]) for x in places]
            neighbours.append(([torch.stack(x, -1).reshape(-1, 2) for x in ends], [x.flatten(0, 1) for x in scores]))
        numbers = self.variables([image.flatten(0, 1) for image in images])
        for scopes, rows in neighbours:
            if any(len(row) for row in rows):
                self.factors(scopes, rows)
        return places[0] if isinstance(numbers, Tensor) else places

    def exactly_one(self, variables: Sequence[int]) -> None:
        """Of these variables of two labels, exactly one is 1. No table: n of them cost n, not 2**n.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> ys = g.variables(torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, -1.0]]]))
            >>> g.exactly_one(ys)
            >>> g.build().argmax()
            tensor([[1, 0, 0]])
        """
        self._add_hard("exactly_one", variables, [(0, 1), (1, -1)], [1])

    def at_most_one(self, variables: Sequence[int]) -> None:
        """Of these variables of two labels, none or one is 1. The cost is that of n small factors.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> g.at_most_one(g.variables(torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, 4.0]]])))
            >>> g.build().argmax()
            tensor([[0, 0, 1]])
        """
        self._add_hard("at_most_one", variables, [(0, 1), (1, -1)], [0, 1])

    def at_least_one(self, variables: Sequence[int]) -> None:
        """The logical or of these variables of two labels: one at least is 1. The cost is that of n small factors.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> g.at_least_one(g.variables(torch.tensor([[[0.0, -3.0], [0.0, -2.0], [0.0, -4.0]]])))
            >>> g.build().argmax()
            tensor([[0, 1, 0]])
        """
        self._add_hard("at_least_one", variables, [(0, 1), (1, 1)], [1])

    def implies(self, variables: Sequence[int] | int, consequence: int) -> None:
        """Where all of these variables of two labels are 1, the consequence is. The cost is that of n small factors.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> ys = g.variables(torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, -1.0]]]))
            >>> g.implies(ys[:2], ys[2])
            >>> g.build().argmax()
            tensor([[1, 1, 1]])
        """
        row = not hasattr(variables, "__index__") or (isinstance(variables, Tensor) and variables.dim() > 0)
        several = _whole_numbers(variables if row else [variables], "variables")
        self._add_hard("implies", [consequence, *several], [(1, 2), (2, 1), (2, 2)], [2])

    def budget(self, variables: Sequence[int], most: int) -> None:
        """Of these variables of two labels, at most so many are 1. It counts them: the cost is n * most**2.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraphBuilder()
            >>> g.budget(g.variables(torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, 4.0]]])), 2)
            >>> g.build().argmax()
            tensor([[1, 0, 1]])
        """
        (count,) = _whole_numbers([most], "most")
        if count < 0:
            raise ValueError(f"most: got {most!r}, but wanted a whole number of at least 0: no output has fewer")
        numbers = _whole_numbers(variables, "variables")
        count = min(count, len(numbers))
        step = [(i, i + 1 if i < count else -1) for i in range(count + 1)]
        self._add_hard("budget", numbers, step, range(count + 1))

    def _add_hard(
        self, name: str, variables: Sequence[int], step: Sequence[tuple[int, int]], accepts: Sequence[int]
    ) -> None:
        numbers = _whole_numbers(variables, "variables")
        self._check_begun("variables")
        if not numbers:
            raise ValueError("variables: got none, but a hard factor is over one at least")
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"variables: got {numbers}, which names one twice")
        every = np.arange(len(self._sizes))
        scope = np.broadcast_to(numbers, (len(every), len(numbers)))
        self._check_known("variables: got", scope, every)
        wrong = self._sizes[every[:, None], scope] != 2
        if wrong.any():
            b, i = np.argwhere(wrong)[0]
            raise ValueError(
                f"variables: variable {numbers[i]} of example {b} has {self._sizes[b, numbers[i]]} labels, but a hard "
                "factor wants 2"
            )
        self._hard.append(Reading.hard(name, len(self._sizes), numbers, step, accepts))

    def _check_begun(self, name: str) -> None:
        if not self._blocks:
            raise ValueError(f"{name}: the graph has no variables yet: wanted variable(), variables() or grid() first")

    def _check_batch(self, batch: int) -> None:
        if self._blocks and batch != len(self._sizes):
            raise ValueError(f"scores: got {batch} examples, but the graph has {len(self._sizes)}")

    def _check_known(self, got: str, scope: Ints, owner: Ints) -> None:
        """Raise unless scopes (F, arity) name variables that their examples have, owner (F,)."""
        counts = np.count_nonzero(self._sizes, 1)
        unknown = (scope < 0) | (scope >= counts[owner, None])
        if unknown.any():
            b = owner[unknown.any(1).argmax()]
            raise ValueError(f"{got} {scope[unknown][0]}, but example {b} has the variables 0 to {counts[b] - 1}")

    def _check_scopes(self, scope: Ints, owner: Ints, extents: tuple[int, ...]) -> None:
        """Raise unless scopes (F, arity) name variables of their examples, once each, with so many labels."""
        self._check_known("scopes: got variable", scope, owner)
        ordered = np.sort(scope, 1)
        twice = (ordered[:, 1:] == ordered[:, :-1]).any(1)
        if twice.any():
            raise ValueError(f"scopes: got {tuple(scope[int(twice.argmax())].tolist())}, which names a variable twice")
        sizes = self._sizes[owner[:, None], scope]
        wrong = (sizes != np.array(extents)).any(1)
        if wrong.any():
            f = int(wrong.argmax())
            raise ValueError(
                f"scores: got a table {extents} for a factor over the variables {tuple(scope[f].tolist())} of example "
                f"{owner[f]}, which have {tuple(sizes[f].tolist())} labels"
            )

    def _add(self, block: Block) -> None:
        like = self._blocks[0].scores if self._blocks else block.scores
        if block.scores.device != like.device:
            raise ValueError(f"scores: got device {block.scores.device}, but the graph is on {like.device}")
        if block.scores.dtype != like.dtype:
            raise TypeError(f"scores: got {block.scores.dtype}, but the graph is of {like.dtype}")
        self._blocks.append(block)


def _check_axes(scores: Tensor, number: int, wanted: str) -> None:
    if not isinstance(scores, Tensor) or scores.dim() != number:
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"scores: got {got}, but wanted {wanted}")


def _whole_numbers(values: Any, name: str) -> list[int]:
    """Numbers of variables, from any whole numbers."""
    try:
        return [operator.index(v) for v in values]
    except TypeError:
        raise TypeError(f"{name}: got {values!r:.60}, but wanted whole numbers") from None


def _as_rows(scores: Ragged, name: str, dims: int, axes: str) -> tuple[Tensor, list[int]]:
    """Scores (B, n, ...), or (n, ...) of each example, with `dims` axes after n, as one tensor; each example's n."""
    if isinstance(scores, Tensor):
        check_floating(scores, name)
        if scores.dim() != dims + 2:
            raise ValueError(f"{name}: got shape {tuple(scores.shape)}, but wanted (B, {axes})")
        flat, counts = scores.flatten(0, 1), [scores.shape[1]] * len(scores)
    else:
        rows = list(scores)
        if not rows:
            raise ValueError(f"{name}: got an empty list, but wanted a tensor for each example")
        for b, row in enumerate(rows):
            check_floating(row, f"{name}[{b}]")
            if row.dim() != dims + 1 or row.shape[1:] != rows[0].shape[1:]:
                shape = tuple(row.shape)
                raise ValueError(f"{name}: {name}[{b}] has shape {shape}, but wanted ({axes}), as {name}[0] has")
            if row.dtype != rows[0].dtype:
                raise TypeError(f"{name}: {name}[{b}] is {row.dtype}, but {name}[0] is {rows[0].dtype}")
        flat, counts = torch.cat(rows), [len(row) for row in rows]
    flat = at_least_float32(flat)
    wrong = unfit(flat)
    if wrong.any():
        i, *place = wrong.nonzero()[0].tolist()
        b = int(np.searchsorted(np.cumsum(counts), i, side="right"))
        where = f" at {(i - sum(counts[:b]), *place)}"
        raise ValueError(f"{name}: example {b} has {objection(flat[(i, *place)], where)}")
    return flat, counts


def _as_scopes(scopes: Tensor | Sequence[Sequence[int]]) -> Ints:
    """(F, arity)"""
    x = torch.as_tensor(scopes)
    if x.dim() != 2 or x.is_floating_point():
        raise ValueError(f"scopes: got {x.dtype} of shape {tuple(x.shape)}, but wanted integers (F, arity)")
    if x.shape[1] == 0:
        raise ValueError("scopes: got a factor over no variable")
    return x.cpu().numpy().astype(np.int64)
