"""FactorGraphBuilder: what builds a factor graph from variables, factors with tables, hard factors and grids."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from structloss.structures.factor_graph.blocks import Ragged, as_rows, factors_block, variables_block
from structloss.structures.factor_graph.factor_graph import FactorGraph
from structloss.structures.factor_graph.inference import Method, Solver, inference_of
from structloss.structures.factor_graph.parts import Block, Parts
from structloss.structures.factor_graph.readers import Reading, attached


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
        self._batch = 0
        self._sizes = [np.zeros(0, np.int64)]  # how many labels the variables of each example have; one where all alike

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
        width, labels = (max(xs) for xs in zip(*((len(x), x.max(initial=1)) for x in self._sizes), strict=True))
        visible = np.array([len(x) for x in self._sizes] * (self._batch // len(self._sizes)), np.int64)
        own = Parts.of(self._blocks, visible, width, int(labels))
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
        if len({len(x) for x in self._sizes}) > 1:
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
        block = variables_block(scores)
        self._check_batch(len(scores))
        self._add(block)
        self._batch = len(scores)
        rows = [scores.shape[1:]] if isinstance(scores, Tensor) else [row.shape for row in scores]
        if len(set(rows)) > 1 or len(self._sizes) > 1:
            self._sizes, rows = self._sizes * (self._batch // len(self._sizes)), rows * (self._batch // len(rows))
        numbers = [torch.arange(len(x), len(x) + n) for x, (n, _) in zip(self._sizes, rows, strict=False)]
        self._sizes = [np.append(x, np.full(n, k)) for x, (n, k) in zip(self._sizes, rows, strict=False)]
        return numbers[0] if len({tuple(x.tolist()) for x in numbers}) == 1 else numbers

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
        self._add(factors_block(scopes, scores, self._batch, self._sizes))

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
            as_rows(unaries, "unaries", 2, "H, W, K")
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
        for b, sizes in enumerate(self._sizes):
            for v in numbers:
                if not 0 <= v < len(sizes):
                    raise ValueError(f"variables: got {v}, but example {b} has the variables 0 to {len(sizes) - 1}")
                if sizes[v] != 2:
                    raise ValueError(
                        f"variables: variable {v} of example {b} has {sizes[v]} labels, but a hard factor wants 2"
                    )
        self._hard.append(Reading.hard(name, self._batch, numbers, step, accepts))

    def _check_begun(self, name: str) -> None:
        if not self._blocks:
            raise ValueError(f"{name}: the graph has no variables yet: wanted variable(), variables() or grid() first")

    def _check_batch(self, batch: int) -> None:
        if self._blocks and batch != self._batch:
            raise ValueError(f"scores: got {batch} examples, but the graph has {self._batch}")

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
