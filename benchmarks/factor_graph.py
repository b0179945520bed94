"""Factor graphs: relaxed grids by our dual method against HiGHS, and a chain-shaped graph against Chain.

Scores are standard normal, of variables and of pairs: hard instances, whose relaxation is fractional nearly everywhere.
Both solve the same program; that the answers agree to the gap is checked. HiGHS runs its interior point method to its
usual precision; our method stops at a certified relative gap of 1e-3.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import structloss as sl
from structloss.structures.factor_graph.highs import program

RESULTS = Path(__file__).parent / "results"
GAP = 1e-3


def grid(size: int, labels: int = 5) -> sl.FactorGraph:
    random = torch.Generator().manual_seed(size)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(1, *shape, generator=random, dtype=torch.float64)

    g = sl.FactorGraphBuilder()
    g.grid(draw(size, size, labels), draw(size, size - 1, labels, labels), draw(size - 1, size, labels, labels))
    return g.build(method="lp", tolerance=GAP)


def best_of(function: Callable[[], Any], times: int) -> tuple[float, Any]:
    seconds = []
    for _ in range(times):
        begin = time.perf_counter()
        value = function()
        seconds.append(time.perf_counter() - begin)
    return min(seconds), value


def highs(g: sl.FactorGraph, limit: float) -> tuple[float, float, bool]:
    """Seconds, value, and whether it ended within the limit."""
    from scipy.optimize import linprog

    p = g._parts
    matrix, right = program(p)
    scores = p.array
    begin = time.perf_counter()
    found = linprog(-scores, A_eq=matrix, b_eq=right, method="highs-ipm", options={"time_limit": limit})
    return time.perf_counter() - begin, float("nan") if found.fun is None else -found.fun, found.status == 0


def relaxations(sizes: list[int], limit: float) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    grid(4).max()  # kernels are compiled
    for size in sizes:
        seconds, g = best_of(lambda size=size: (g := grid(size), g.max())[0], 3 if size < 100 else 2)
        certificate = g.certificate()
        dual, gap = float(certificate.dual), float(certificate.gap / certificate.dual)
        theirs, value, ended = highs(g, limit)
        assert gap <= GAP, gap
        if ended:
            assert float(certificate.primal) <= value * (1 + 1e-6)
            assert value <= dual * (1 + 1e-6)
        rows.append({"grid": f"{size} x {size} x 5", "seconds": seconds, "gap": gap, "bound": dual, "HiGHS": theirs,
                     "HiGHS ended": ended, "ratio": theirs / seconds})  # fmt: skip
        more = "" if ended else " or more: stopped"
        print(f"{rows[-1]['grid']:>13}: {seconds:7.3f} s to a gap of {gap:.1e}; HiGHS {theirs:7.2f} s{more}; "
              f"{theirs / seconds:.1f} times", flush=True)  # fmt: skip
    return rows


def chain(batch: int = 32, length: int = 50, labels: int = 10) -> dict[str, float]:
    """The CRF loss with its gradient, as a graph and as a chain."""
    torch.manual_seed(0)
    unary = torch.randn(batch, length, labels, requires_grad=True)
    pairs = torch.randn(labels, labels, requires_grad=True)
    y = torch.randint(0, labels, (batch, length))
    first = torch.arange(length - 1)
    scopes = torch.stack([first, first + 1], 1)

    def as_graph() -> torch.Tensor:
        g = sl.FactorGraphBuilder()
        g.variables(unary)
        g.factors(scopes, pairs.expand(batch, length - 1, labels, labels))
        value = sl.NegativeLogLikelihood()(g.build(method="exact"), y)
        value.backward()
        return value.detach()

    def as_chain() -> torch.Tensor:
        value = sl.NegativeLogLikelihood()(sl.Chain.from_emissions(unary, pairs), y)
        value.backward()
        return value.detach()

    torch.testing.assert_close(as_graph(), as_chain())
    ours, theirs = best_of(as_graph, 20)[0], best_of(as_chain, 20)[0]
    print(f"CRF loss, B={batch} T={length} K={labels}: graph {1e3 * ours:.2f} ms, Chain {1e3 * theirs:.2f} ms; "
          f"{ours / theirs:.1f} times slower")  # fmt: skip
    return {"graph": ours, "chain": theirs}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 30, 100])
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for HiGHS")
    arguments = parser.parse_args()
    results = {"chain": chain(), "relaxations": relaxations(arguments.sizes, arguments.limit)}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "factor_graph.json").write_text(json.dumps(results, indent=1))
