"""What builds a factor graph: variables, factors with tables, hard factors, grids."""

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from structloss.structures import hard_factors
from structloss.structures.graph_blocks import Ragged, as_rows, factors_block, grid_edges, variables_block
from structloss.structures.graph_parts import Factors, Ints, Parts, Variables
from structloss.structures.hard_factors import HardFactor
from structloss.structures.relaxation import Relaxed

Method = Literal["auto", "exact", "lp", "bp", "ilp"]
Solver = Literal["dual", "highs"]

_METHODS = ("auto", "exact", "lp", "bp", "ilp")


class GraphBuilder:
    """The part of a `FactorGraph` that is about making one."""

    def __init__(
        self, method: Method = "auto", *, solver: Solver = "dual", tolerance: float = 1e-4, reweighted: bool = False
    ) -> None:
        if method not in _METHODS:
            raise ValueError(f"method: got {method!r}, but wanted one of {', '.join(_METHODS)}")
        if solver not in ("dual", "highs"):
            raise ValueError(f'solver: got {solver!r}, but wanted "dual" or "highs"')
        if not tolerance > 0:
            raise ValueError(f"tolerance: got {tolerance}, but wanted a positive number")
        self._method, self._solver, self._tolerance, self._reweighted = method, solver, tolerance, reweighted
        self._variables: list[Variables] = []
        self._factors: list[Factors] = []
        self._hard: list[HardFactor] = []
        self._open = True  # whether variables and factors may still be added
        self._strict = True  # whether hard factors that leave no output are an error
        self._sizes: list[Ints] | None = None  # how many labels the variables have, while none is added
        self._forget()

    def _forget(self) -> None:
        """What was computed, after the graph has changed."""
        self._made: Parts | None = None
        self._only: Tensor | None = None  # the one output that is left, where a reference says all of it
        self._solved: Relaxed | None = None

    def variable(self, scores: Tensor) -> int:
        """A variable in every example, with the scores (B, K) of its labels. Returns its number.

        Example:
            >>> import torch, structloss as sl
            >>> sl.FactorGraph().variable(torch.zeros(4, 3))
            0
        """
        if not isinstance(scores, Tensor) or scores.dim() != 2:
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"scores: got {got}, but wanted a tensor (B, K)")
        if len(set(self._counts(len(scores)).tolist())) > 1:
            raise ValueError("variable: the examples differ in how many variables they have; wanted variables()")
        numbers = self.variables(scores[:, None])
        return int(numbers[0])

    def variables(self, scores: Ragged) -> Tensor | list[Tensor]:
        """N variables at once, with scores (B, N, K); or a list with the scores (N, K) of each example.

        Returns their numbers (N,), or where examples differ a list of them.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph()
            >>> g.variables([torch.zeros(2, 3), torch.zeros(4, 3)])
            [tensor([0, 1]), tensor([0, 1, 2, 3])]
        """
        self._check_open()
        block = variables_block(scores)
        if not len(block.counts):
            raise ValueError("scores: got a batch of 0 examples, but wanted at least 1")
        before = self._counts(len(block.counts))
        self._check_like(block.scores)
        self._variables.append(block)
        self._sizes = None
        self._forget()
        if (block.counts == block.counts[0]).all() and (before == before[0]).all():
            return torch.arange(before[0], before[0] + block.counts[0])
        return [torch.arange(a, a + n) for a, n in zip(before.tolist(), block.counts.tolist(), strict=True)]

    def factor(self, scope: Sequence[int], scores: Tensor) -> None:
        """A factor over some variables, of every example, with the scores (B, K1, K2, ...) of their labels.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph()
            >>> y = g.variable(torch.zeros(1, 2)), g.variable(torch.zeros(1, 3))
            >>> g.factor(y, torch.arange(6.0).reshape(1, 2, 3))
            >>> g.argmax()
            tensor([[1, 2]])
        """
        scope = _whole_numbers(scope, "scope")
        if not isinstance(scores, Tensor) or scores.dim() != len(scope) + 1:
            got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
            raise ValueError(f"scores: got {got}, but wanted (B{', K' * len(scope)}) for {len(scope)} variables")
        self.factors([scope], scores[:, None])

    def factors(self, scopes: Any, scores: Ragged) -> None:
        """F factors at once, over scopes (F, arity), with scores (B, F, K, ...); or lists with those of each example.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph()
            >>> g.variables(torch.zeros(1, 3, 2))
            tensor([0, 1, 2])
            >>> g.factors([[0, 1], [1, 2]], torch.eye(2).expand(1, 2, 2, 2))
            >>> g.max()
            tensor([2.])
        """
        self._check_open()
        if not self._variables:
            raise ValueError("scopes: the graph has no variables yet")
        counts = self._counts(len(self._variables[0].counts))
        block = factors_block(scopes, scores, counts, self._all_sizes())
        self._check_like(block.scores)
        self._factors.append(block)
        self._forget()

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
            >>> g = sl.FactorGraph()
            >>> g.grid(torch.zeros(1, 2, 2, 3), torch.zeros(1, 2, 1, 3, 3), torch.zeros(1, 1, 2, 3, 3))
            tensor([[0, 1],
                    [2, 3]])
        """
        if self._variables:
            raise ValueError("grid: the graph has variables already; wanted an empty one")
        images = list(unaries) if not isinstance(unaries, Tensor) else list(as_rows(unaries, "unaries", 2, "H, W, K"))
        shapes = []
        for b, image in enumerate(images):
            if not isinstance(image, Tensor) or image.dim() != 3:
                raise ValueError(f"unaries: the image of example {b} is not a tensor (H, W, K)")
            shapes.append(tuple(image.shape[:2]))
        neighbours = []
        for name, scores, axis in (("right", right, 0), ("down", down, 1)):
            if len(scores) != len(images):
                raise ValueError(f"{name}: got {len(scores)} examples, but unaries has {len(images)}")
            rows = []
            for b, (image, (height, width)) in enumerate(zip(scores, shapes, strict=True)):
                labels = images[b].shape[2]
                wanted = (height, width - 1) if axis == 0 else (height - 1, width)
                if tuple(image.shape) != (*wanted, labels, labels):
                    raise ValueError(
                        f"{name}: example {b} has shape {tuple(image.shape)}, but wanted "
                        f"{(*wanted, labels, labels)} for an image {(height, width)} with {labels} labels"
                    )
                rows.append(image.reshape(-1, labels, labels))
            neighbours.append((rows, axis))
        numbers = self.variables([image.reshape(-1, image.shape[2]) for image in images])
        edges = [grid_edges(*shape) for shape in shapes]
        for rows, axis in neighbours:
            if any(len(row) for row in rows):
                self.factors([pair[axis] for pair in edges], rows)
        if isinstance(numbers, Tensor):
            return numbers.reshape(shapes[0])
        return [own.reshape(shape) for own, shape in zip(numbers, shapes, strict=True)]

    def exactly_one(self, variables: Sequence[int]) -> None:
        """Of these variables of two labels, exactly one is 1. No table: n of them cost n, not 2**n.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph()
            >>> ys = g.variables(torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, -1.0]]]))
            >>> g.exactly_one(ys)
            >>> g.argmax()
            tensor([[1, 0, 0]])
        """
        self._add_hard(hard_factors.exactly_one(self._binary(variables)))

    def at_most_one(self, variables: Sequence[int]) -> None:
        """Of these variables of two labels, none or one is 1. The cost is that of n small factors.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph()
            >>> g.at_most_one(g.variables(torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, 4.0]]])))
            >>> g.argmax()
            tensor([[0, 0, 1]])
        """
        self._add_hard(hard_factors.at_most_one(self._binary(variables)))

    def at_least_one(self, variables: Sequence[int]) -> None:
        """The logical or of these variables of two labels: one at least is 1. The cost is that of n small factors.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph()
            >>> g.at_least_one(g.variables(torch.tensor([[[0.0, -3.0], [0.0, -2.0], [0.0, -4.0]]])))
            >>> g.argmax()
            tensor([[0, 1, 0]])
        """
        self._add_hard(hard_factors.at_least_one(self._binary(variables)))

    def implies(self, variables: Sequence[int] | int, consequence: int) -> None:
        """Where all of these variables of two labels are 1, the consequence is. The cost is that of n small factors.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph()
            >>> ys = g.variables(torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, -1.0]]]))
            >>> g.implies(ys[:2], ys[2])
            >>> g.argmax()
            tensor([[1, 1, 1]])
        """
        several = [variables] if hasattr(variables, "__index__") and not _is_row(variables) else variables
        *checked, last = self._binary([*_whole_numbers(several, "variables"), consequence])
        self._add_hard(hard_factors.implies(checked, last))

    def budget(self, variables: Sequence[int], most: int) -> None:
        """Of these variables of two labels, at most so many are 1. It counts them: the cost is n * most**2.

        Example:
            >>> import torch, structloss as sl
            >>> g = sl.FactorGraph()
            >>> g.budget(g.variables(torch.tensor([[[0.0, 3.0], [0.0, 2.0], [0.0, 4.0]]])), 2)
            >>> g.argmax()
            tensor([[1, 0, 1]])
        """
        (count,) = _whole_numbers([most], "most")
        if count < 0:
            raise ValueError(f"most: got {most!r}, but wanted a whole number of at least 0: no output has fewer")
        numbers = self._binary(variables)
        self._add_hard(hard_factors.budget(numbers, min(count, len(numbers))))

    def _binary(self, variables: Sequence[int]) -> list[int]:
        numbers = _whole_numbers(variables, "variables")
        if not self._variables:
            raise ValueError("variables: the graph has no variables yet")
        if not numbers:
            raise ValueError("variables: got none, but a hard factor is over one at least")
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"variables: got {numbers}, which names one twice")
        for b, sizes in enumerate(self._all_sizes()):
            for v in numbers:
                if not 0 <= v < len(sizes):
                    raise ValueError(f"variables: got {v}, but example {b} has the variables 0 to {len(sizes) - 1}")
                if sizes[v] != 2:
                    raise ValueError(
                        f"variables: variable {v} of example {b} has {sizes[v]} labels, but a hard factor wants 2"
                    )
        return numbers

    def _add_hard(self, factor: HardFactor) -> None:
        self._check_open()
        self._hard.append(factor)
        self._forget()

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError("this graph was made of another by augment(), given() or uniform(): nothing can be added")

    def _counts(self, batch: int) -> Ints:
        """How many variables each example has so far."""
        if self._variables and len(self._variables[0].counts) != batch:
            raise ValueError(f"scores: got {batch} examples, but the graph has {len(self._variables[0].counts)}")
        return np.sum([x.counts for x in self._variables], 0) if self._variables else np.zeros(batch, np.int64)

    def _check_like(self, scores: Tensor) -> None:
        if self._variables:
            like = self._variables[0].scores
            if scores.device != like.device:
                raise ValueError(f"scores: got device {scores.device}, but the graph is on {like.device}")
            if scores.dtype != like.dtype:
                raise TypeError(f"scores: got {scores.dtype}, but the graph is of {like.dtype}")

    def _all_sizes(self) -> list[Ints]:
        """How many labels the variables of each example have; one array for all where they are alike."""
        if self._sizes is None:
            batch = len(self._variables[0].counts) if self._variables else 0
            blocks = [(x.counts, x.scores.shape[1]) for x in self._variables]
            if all((counts == counts[0]).all() for counts, _ in blocks):
                own = [np.repeat(size, counts[0]) for counts, size in blocks]
                self._sizes = [np.concatenate(own)] * batch if batch else []
            else:
                self._sizes = [np.concatenate([np.repeat(k, counts[b]) for counts, k in blocks]) for b in range(batch)]
        return self._sizes

    @property
    def _parts(self) -> Parts:
        if self._made is None:
            if not self._variables:
                raise ValueError("the graph has no variables: wanted variable(), variables() or grid() first")
            visible = np.sum([x.counts for x in self._variables], 0)
            like = self._variables[0].scores
            hidden: list[Variables] = []
            hard: list[Factors] = []
            for factor in self._hard:
                variables, factors = factor.parts(visible, len(hidden), like)
                hidden += variables
                hard += factors
            with torch.inference_mode(False), torch.enable_grad():  # it is kept for those who want a gradient later
                self._made = Parts.of(self._variables, hidden, self._factors, hard)
        return self._made

    def _new(self) -> Self:
        return type(self)(self._method, solver=self._solver, tolerance=self._tolerance, reweighted=self._reweighted)

    def _of(self, parts: Parts, only: Tensor | None) -> Self:
        """The same graph with other scores."""
        graph = self._new()
        graph._variables, graph._factors, graph._hard = list(self._variables), list(self._factors), list(self._hard)
        graph._made, graph._only, graph._sizes = parts, only, self._all_sizes()
        graph._open, graph._strict = False, self._strict
        return graph

    def _example(self, b: int, sign: float = 1.0, method: Method | None = None) -> Self:
        """One example by itself, its scores times the sign; that it has no output is no error."""
        graph, p, g = self._new(), self._parts, self._parts.graph
        graph._method = method or self._method
        first, once = g.variables[b], np.ones(1, np.int64)

        def scores(x: Tensor) -> Tensor:
            return torch.where(x.detach() > -math.inf, sign * x.detach(), -math.inf)[None]

        for v in range(first, first + p.topology.visible[b]):
            graph._variables.append(Variables(once, scores(p.unary[g.labels[v] : g.labels[v + 1]])))
        for f in range(g.factors[b], g.factors[b] + p.topology.own[b]):
            scope = g.scope[g.slots[f] : g.slots[f + 1]][None] - first
            graph._factors.append(Factors(once, scope, scores(p.tables[g.cells[f] : g.cells[f + 1]])))
        graph._hard, graph._strict = list(self._hard), False
        return graph


def _is_row(x: object) -> bool:
    """Whether it is a tensor of several numbers, or of one in a row."""
    return isinstance(x, Tensor) and x.dim() > 0


def _whole_numbers(values: Any, name: str) -> list[int]:
    """Numbers of variables, from any whole numbers."""
    try:
        return [operator.index(v) for v in values]
    except TypeError:
        raise TypeError(f"{name}: got {values!r:.60}, but wanted whole numbers") from None
