"""How the maxima and sums of a factor graph are found: one strategy for each method."""

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from structloss.structures.base import Found
from structloss.structures.engine import is_native
from structloss.structures.factor_graph import beliefs, native_engine, relaxation, torch_engine
from structloss.structures.factor_graph.native_engine import Plans
from structloss.structures.factor_graph.parts import Parts, Topology
from structloss.structures.factor_graph.relaxation import Solution

Method = Literal["auto", "exact", "lp", "bp", "ilp"]
Solver = Literal["dual", "highs"]

AUTO = 2.0**22  # cells an example that "auto" eliminates exactly: some hundredths of a second
MOST = 2.0**27  # and that "exact" does: a gigabyte
_SWEEPS = 20_000


class Inference:
    """What finds maxima and sums; what a strategy does not give is an error with a sentence."""

    name: str

    def _refusal(self, operation: str, wanted: str) -> NotImplementedError:
        return NotImplementedError(f'{operation}: method="{self.name}" does not give it; wanted {wanted}')

    def described(self, t: Topology) -> str:
        """What it does with these graphs, and why."""
        return self.name

    def solve(self, p: Parts) -> Solution:
        """The best answers, each with a certificate."""
        raise self._refusal("max", '"exact", "lp" or "ilp"')

    def certain(self, operation: str, t: Topology) -> "Inference":
        """A strategy whose answers are the best outputs for sure, for operations that ask again and again."""
        if self.name not in ("exact", "ilp"):
            raise self._refusal(operation, '"exact" or "ilp"')
        return self

    def log_partition(self, p: Parts) -> Tensor:
        """log Z, (B,), differentiable."""
        raise self._refusal("log_partition", '"exact", or "bp" for an approximation of log_partition and marginals')

    def expectation(self, p: Parts, f: Parts) -> Tensor:
        """E[score under f], of what is drawn under p, (B,)."""
        raise self._refusal("expectation", '"exact"')

    def draw(self, p: Parts, n: int, generator: torch.Generator | None) -> Found:
        """Outputs (n, B, N), and whether there are any, (B,)."""
        raise self._refusal("sample", '"exact"')


def _engine(p: Parts) -> Any:
    return native_engine if is_native(p.scores.device) else torch_engine


@dataclass(frozen=True)
class Exact(Inference):
    """Variable elimination, of at most so many cells an example."""

    name = "exact"
    most: float = MOST

    def fits(self, t: Topology) -> bool:
        """Whether it takes no more cells."""
        return all(order.plan is not None for _, order in t.orders(self.most))

    def cells(self, t: Topology) -> float:
        """The most cells of an example."""
        return max((order.cells for _, order in t.orders(self.most)), default=0.0)

    def described(self, t: Topology) -> str:
        width = max((order.width for _, order in t.orders(self.most)), default=0)
        return f"exact: elimination visits {self.cells(t):.0f} cells an example, tree-width {width}"

    def _plans(self, operation: str, t: Topology) -> Plans:
        plans = []
        for group, order in t.orders(self.most):
            if order.plan is None:
                other = 'method="bp" approximates log_partition and marginals, method="lp" bounds max'
                raise ValueError(
                    f"{operation}: example {group[0]} needs more than {order.cells:.2g} cells to eliminate its "
                    f"variables (tree-width {order.width} or more), but the most is {self.most:.2g}; {other}"
                )
            plans.append((group, order.plan))
        return plans

    def solve(self, p: Parts) -> Solution:
        return relaxation.whole(p, *_engine(p).argmax(p, self._plans("max", p.topology)))

    def log_partition(self, p: Parts) -> Tensor:
        return cast(Tensor, _engine(p).log_partition(p, self._plans("log_partition", p.topology)))

    def expectation(self, p: Parts, f: Parts) -> Tensor:
        return cast(Tensor, _engine(p).expectation(p, f, self._plans("expectation", p.topology)))

    def draw(self, p: Parts, n: int, generator: torch.Generator | None) -> Found:
        device, shape = p.scores.device, (n, len(p.topology.sizes))
        uniforms = torch.rand(shape, generator=generator, device=device, dtype=torch.float64)
        labels, exists = _engine(p).sample(p, self._plans("sample", p.topology), uniforms)
        return Found(p.topology.outputs(labels).to(device), torch.from_numpy(exists).to(device))


@dataclass(frozen=True)
class Program(Inference):
    """The linear relaxation over the local marginal polytope, "lp", or the integer program, "ilp"."""

    name: str
    solver: Solver
    tolerance: float = 1e-4

    def described(self, t: Topology) -> str:
        return f"{self.name}, by {self.solver}"

    def solve(self, p: Parts) -> Solution:
        if self.solver == "dual":
            return relaxation.dual(p, self.tolerance, _SWEEPS)
        from structloss.structures.factor_graph import highs  # needs scipy

        return highs.solve(p, integral=self.name == "ilp")


@dataclass(frozen=True)
class BeliefPropagation(Inference):
    """Belief propagation, plain or tree-reweighted, for sums."""

    name = "bp"
    tolerance: float
    reweighted: bool

    def log_partition(self, p: Parts) -> Tensor:
        return beliefs.log_partition(p, self.tolerance, self.reweighted)


@dataclass(frozen=True)
class Auto(Exact):
    """Elimination of what it fits; maxima are else relaxed, and sums an error."""

    name = "auto"
    most: float = AUTO
    relaxed: Program = Program("lp", "dual")

    def described(self, t: Topology) -> str:
        if self.fits(t):
            return super().described(t)
        return f"{self.relaxed.described(t)}: elimination would visit more than {self.cells(t):.2g} cells an example"

    def solve(self, p: Parts) -> Solution:
        return super().solve(p) if self.fits(p.topology) else self.relaxed.solve(p)

    def certain(self, operation: str, t: Topology) -> Inference:
        if not self.fits(t):
            raise self._refusal(operation, '"exact" or "ilp"')
        return Exact()  # asked again with a loss, it may be wider


def inference_of(method: Method, solver: Solver, tolerance: float, reweighted: bool) -> Inference:
    """The strategy of a method."""
    if solver not in get_args(Solver):
        raise ValueError(f'solver: got {solver!r}, but wanted "dual" or "highs"')
    if not tolerance > 0:
        raise ValueError(f"tolerance: got {tolerance}, but wanted a positive number")
    relaxed, integer = Program("lp", solver, tolerance), Program("ilp", "highs")
    strategies = (Auto(relaxed=relaxed), Exact(), relaxed, integer, BeliefPropagation(tolerance, reweighted))
    for strategy in strategies:
        if strategy.name == method:
            return strategy
    raise ValueError(f"method: got {method!r}, but wanted one of {', '.join(x.name for x in strategies)}")
