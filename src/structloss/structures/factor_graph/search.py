"""The k best outputs of factor graphs, by maxima that are asked for again and again."""

import heapq
import math
from collections.abc import Callable

import numpy as np

from structloss.structures.base import Found
from structloss.structures.factor_graph.parts import Parts
from structloss.structures.factor_graph.relaxation import Solution

Solve = Callable[[Parts], Solution]


def ranked(p: Parts, solve: Solve, k: int) -> Found:
    """The k best outputs (k, B, N) of graphs."""
    t = p.topology
    outputs = [_best_outputs(p.examples(np.array([b])), solve, k) for b in range(t.batch)]
    return Found.of(outputs, k, t.width, p.scores.device)


def _best_outputs(p: Parts, solve: Solve, k: int) -> list[list[int]]:
    """The k best of one example (Lawler 1972).

    The rest of the outputs is split by the first variable that differs, and the best of each part is found by itself:
    k times the number of variables of them.
    """
    count = int(p.topology.visible[0])
    begin, base = p.graph.labels.tolist(), p.scores.detach()
    queue: list[tuple[float, list[int], list[int]]] = []
    outputs: list[list[int]] = []

    def search(struck: list[int]) -> None:
        left = p.with_scores(base.clone())
        left.scores[struck] = -math.inf
        labels = solve(left).labels
        score = float(left.score(labels.clip(0)[None])) if (labels >= 0).all() else -math.inf
        if score > -math.inf:
            heapq.heappush(queue, (-score, labels[:count].tolist(), struck))

    search([])
    while queue and len(outputs) < k:
        _, y, struck = heapq.heappop(queue)
        outputs.append(y)
        for v in range(count):
            labels = range(begin[v], begin[v + 1])
            part = [*struck, labels[y[v]]]
            if not set(labels).issubset(part):
                search(part)
            struck = [*struck, *(label for label in labels if label != labels[y[v]])]
    return outputs
