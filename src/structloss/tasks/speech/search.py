"""The strings that a CTC finds most probable, by a search along the frames: what recognisers call a beam."""

from collections import defaultdict

import torch
from torch import Tensor

from structloss.structures import CTC

_NEGLIGIBLE = 1e-4  # probability of a label in a frame, below which no string goes on with it


def best_strings(structure: CTC, blank: int, k: int, beam: int | None = None) -> tuple[Tensor, list[list[list[int]]]]:
    """About the k most probable strings of each example: their log-probabilities (k, B) and they, k rows of B.

    Prefix search (Graves et al. 2006; Hannun et al. 2014): of all beginnings, each with the sum over its paths, `beam`
    stay after every frame, by default k + 16. So a string of the k may be missed, but the probability of those found is
    exact, and differentiable. Where there are fewer than k: -inf, and an empty string.
    """
    probabilities = structure.detach()._potentials[0].exp().tolist()
    listed = [
        _search(rows[:length], blank, beam or k + 16)[:k]
        for rows, length in zip(probabilities, structure.lengths.tolist(), strict=True)
    ]
    strings = [[row[i] if i < len(row) else [] for row in listed] for i in range(k)]
    exists = torch.tensor([[i < len(row) for row in listed] for i in range(k)])
    scores = torch.stack([structure.given(row).log_partition() for row in strings])
    return torch.where(exists, scores, -torch.inf), strings


def _search(rows: list[list[float]], blank: int, beam: int) -> list[list[int]]:
    """Strings, the most probable first as far as the search knows."""
    parents, labels = [-1], [-1]  # of each beginning, by its number: that without its last label, and this
    longer: dict[tuple[int, int], int] = {}
    kept: list[tuple[int, float, float]] = [(0, 1.0, 0.0)]  # numbers; how probable when the last frame is blank, or not
    for row in rows:
        likely = [(c, p) for c, p in enumerate(row) if p > _NEGLIGIBLE and c != blank]
        after_blank: defaultdict[int, float] = defaultdict(float)
        after_label: defaultdict[int, float] = defaultdict(float)
        for number, ends_blank, ends_label in kept:
            both, last = ends_blank + ends_label, labels[number]
            after_blank[number] += both * row[blank]
            if number:
                after_label[number] += ends_label * row[last]
            for c, p in likely:
                following = longer.get((number, c))
                if following is None:
                    following = longer[number, c] = len(parents)
                    parents.append(number)
                    labels.append(c)
                after_label[following] += (ends_blank if c == last else both) * p
        found = [(n, after_blank[n], after_label[n]) for n in {*after_blank, *after_label}]
        found.sort(key=lambda one: (-one[1] - one[2], one[0]))
        total = sum(x + y for _, x, y in found[:beam]) or 1.0
        kept = [(n, x / total, y / total) for n, x, y in found[:beam]]
    strings = []
    for number, _, _ in kept:
        string: list[int] = []
        while number:
            string.append(labels[number])
            number = parents[number]
        strings.append(string[::-1])
    return strings
