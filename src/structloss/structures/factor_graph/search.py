"""What asks for maxima again and again: the k best outputs, and the best at each value of a loss."""

import heapq
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from structloss.structures.base import Found, Strata
from structloss.structures.chain.strata import distinct
from structloss.structures.factor_graph.parts import Parts
from structloss.structures.factor_graph.readers import Reading
from structloss.structures.factor_graph.relaxation import Solution

Solve = Callable[[Parts], Solution]


def ranked(p: Parts, solve: Solve, k: int) -> Found:
    """The k best outputs (k, B, N) of graphs."""
    t = p.topology
    outputs, exists = np.full((k, t.batch, t.width), -1), np.zeros((k, t.batch), bool)
    for b in range(t.batch):
        for i, y in enumerate(_best_outputs(p.examples(np.array([b])), solve, k)):
            outputs[i, b, : len(y)], exists[i, b] = y, True
    return Found(*(torch.from_numpy(x).to(p.scores.device) for x in (outputs, exists)))


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


def strata(reading: Reading, like: Tensor, best: Callable[[Reading], Found]) -> Strata:
    """The best output at each value of absolute machines: one search for each, best(what is left of the reading)."""
    values = [distinct(reader.gains[-1]) for reader in reading.readers]
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    for i in range(max(1, *map(len, values), 0)):
        here = np.array([x[i] if i < len(x) else math.nan for x in values], np.float64)
        readers = tuple(reader.coming_to(value) for reader, value in zip(reading.readers, here.tolist(), strict=True))
        losses = torch.from_numpy(np.nan_to_num(here)[reading.of]).to(like)
        rows.append((losses[None], *best(replace(reading, readers=readers))))
    return Strata(*(torch.cat(x) for x in zip(*rows, strict=True)))
